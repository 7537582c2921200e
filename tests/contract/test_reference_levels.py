# SPDX-License-Identifier: Apache-2.0
"""The reference levels keep the contract, but for what a broker does otherwise."""

import inspect
from pathlib import Path

import pytest

from legacy_levels.reference.store import ReferenceLevelStore
from message_store import Clock, DelayStore
from tests.contract.test_level_store import SMALL_FILES, Levels


def _cancels(name: str) -> bool:
    """Whether a test of the contract takes a message back: RocketMQ's levels cannot."""
    return ".cancel" in inspect.getsource(getattr(Levels, name))


NOTHING_IS_TAKEN_BACK = (
    *(name for name in dir(Levels) if name.startswith("test_") and _cancels(name)),
    "test_a_closed_store_refuses_every_call",
    "test_a_handle_takes_no_neighbour_of_its_key",
)

WHAT_IS_DUE_LATER_THAN_ITS_DELAY_COMES_AT_ONCE = (
    "test_a_clock_that_is_set_back_stops_nothing",
    "test_an_earlier_time_keeps_what_waits",
    "test_what_waits_comes_once_after_kills_before_and_behind_a_clock_that_was_set_back",
    "test_what_waits_is_there_after_reopening",
    "test_what_was_due_at_once_waits_for_its_time_although_the_clock_was_set_far_back",
    "test_what_was_due_by_a_clock_that_was_ahead_holds_nothing_back",
)
"""A broker whose clock was set back believes no due time: #correctDeliverTimestamp."""

EACH_LEVEL_GOES_ON_BY_ITSELF = (
    "test_equal_promises_made_at_different_times_keep_the_order_of_placing",
)
"""A broker compares no due times of two levels."""

A_KILL_REPEATS = (
    "test_every_reopening_within_one_moment_repeats_nothing",
    "test_what_was_due_at_once_comes_at_once_although_time_was_far_ahead",
)
"""A broker goes on where its offsets were last saved."""

A_TIME_HAS_64_BITS = ("test_the_end_of_all_time_brings_everything_and_later_promises_are_kept",)
"""No record can say that it was stored later."""


@pytest.mark.check  # test_oracle.py compares it in the first tier
class TestReferenceLevels(Levels):
    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return ReferenceLevelStore.open(folder, clock=clock, settings=SMALL_FILES)

    def abandon(self, store: DelayStore) -> None:
        assert isinstance(store, ReferenceLevelStore)
        store.live.abandon()


for _name in (
    *NOTHING_IS_TAKEN_BACK, *WHAT_IS_DUE_LATER_THAN_ITS_DELAY_COMES_AT_ONCE,
    *EACH_LEVEL_GOES_ON_BY_ITSELF, *A_KILL_REPEATS, *A_TIME_HAS_64_BITS,
):  # fmt: skip
    assert hasattr(Levels, _name), _name
    setattr(TestReferenceLevels, _name, None)
