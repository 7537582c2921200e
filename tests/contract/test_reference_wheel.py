# SPDX-License-Identifier: Apache-2.0
"""The reference wheel keeps the contract, but for what a broker does otherwise."""

from pathlib import Path

import pytest

from message_store import Clock, DelayStore
from tests.contract.test_wheel_store import SMALL, Wheel
from timer_wheel.reference.store import ReferenceWheelStore

A_MARKER_TAKES_LATER_MESSAGES_TOO = (
    "test_one_cancelled_key_leaves_the_same_key_elsewhere",
    "test_a_cancelled_message_can_be_scheduled_again_for_the_same_time",
    "test_a_cancelled_key_says_nothing_of_a_later_message",
    "test_a_handle_takes_all_that_share_it_however_they_were_scheduled",
    "test_a_receipt_takes_back_its_own_message_and_no_other",
    "test_a_receipt_of_what_was_due_when_stored_takes_back_that_alone",
)
"""A broker's delete marker says no order, and no topic."""

THE_HAND_FOLLOWS_THE_CLOCK = (
    "test_a_clock_that_is_set_back_stops_nothing",
    "test_what_is_overdue_when_the_clock_is_set_back_comes_once",
    "test_what_was_due_by_a_clock_that_was_ahead_holds_nothing_back",
    "test_a_batch_is_the_same_as_one_by_one",
)
"""A broker whose clock was set back puts nothing until that has caught up with the hand. What is
due before the hand is put in the order of the queue.
"""

EVERY_SLOT_IS_STEPPED = ("test_the_end_of_all_time_brings_everything_and_later_promises_are_kept",)
"""A leap of all time is too many slots."""


@pytest.mark.check  # it steps through each slot; test_oracle.py compares it in the first tier
class TestReferenceWheel(Wheel):
    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return ReferenceWheelStore.open(
            folder, clock=clock, precision_ms=self.precision_ms, settings=SMALL
        )

    def abandon(self, store: DelayStore) -> None:
        assert isinstance(store, ReferenceWheelStore)
        store.abandon()


for _name in (
    *A_MARKER_TAKES_LATER_MESSAGES_TOO, *THE_HAND_FOLLOWS_THE_CLOCK, *EVERY_SLOT_IS_STEPPED,
):  # fmt: skip
    assert hasattr(Wheel, _name), _name
    setattr(TestReferenceWheel, _name, None)
