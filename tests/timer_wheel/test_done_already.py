# SPDX-License-Identifier: Apache-2.0
"""After a crash a broker repeats its last second; we leave out what the log shows as done."""

from pathlib import Path

import pytest

from message_store.segment_files import SegmentReader
from message_store.store_root import StoreRoot
from tests.timer_wheel.wheel_store_builder import NOW_MS, WheelStoreBuilder
from timer_wheel import pending_records, read_wheel_store
from timer_wheel.wheel_reader import WheelState

# The slot in hand is the one at NOW_MS; it is dealt with a second later.
DEALT_WITH_MS = NOW_MS + 1_010
LATER_MS = NOW_MS + 60_000
ROLLS = 3


@pytest.fixture
def builder(tmp_path: Path) -> WheelStoreBuilder:
    return WheelStoreBuilder(tmp_path)


def read(root: StoreRoot, *, after_crash: bool = True) -> WheelState:
    return read_wheel_store(root, now_ms=DEALT_WITH_MS, after_crash=after_crash)


def pending_keys(root: StoreRoot, *, after_crash: bool = True) -> list[str | None]:
    pending = read(root, after_crash=after_crash).pending
    with SegmentReader(root.commit_log) as log:
        records = list(pending_records(log, pending))
    return [record.unique_key if record else None for record in records]


def test_what_was_delivered_from_the_slot_in_hand_is_not_pending(
    builder: WheelStoreBuilder,
) -> None:
    first = builder.put_and_place(NOW_MS, key="A")
    builder.put_and_place(NOW_MS, key="B")
    builder.deliver(first, stored_ms=DEALT_WITH_MS)
    root = builder.stop()
    assert pending_keys(root) == ["B"]
    assert read(root).done_already_count == 1
    assert pending_keys(root, after_crash=False) == ["A", "B"]
    assert read(root, after_crash=False).done_already_count == 0


def test_what_was_rolled_from_the_slot_in_hand_is_pending_once(builder: WheelStoreBuilder) -> None:
    old = builder.put(LATER_MS, key="A")
    builder.place(old, NOW_MS, flags=ROLLS)
    new = builder.put(LATER_MS, key="A", rolled=True, stored_ms=DEALT_WITH_MS)
    position = builder.place(new, LATER_MS)
    # The place in the queue was not written down any more: a broker places the new one again.
    root = builder.stop(last_queue_offset=1, master_queue_offset=1)
    assert pending_keys(root, after_crash=False) == ["A", "A", "A"]
    state = read(root)
    assert state.pending.position.tolist() == [position]
    assert state.done_already_count == 2


def test_a_message_that_rolled_and_was_then_delivered_is_not_pending(
    builder: WheelStoreBuilder,
) -> None:
    old = builder.put(NOW_MS + 1000, key="A")
    builder.place(old, NOW_MS, flags=ROLLS)
    new = builder.put(NOW_MS + 1000, key="A", rolled=True, stored_ms=DEALT_WITH_MS)
    builder.place(new, NOW_MS + 1000)
    builder.deliver(new, stored_ms=NOW_MS + 2_010)
    assert pending_keys(builder.stop()) == []


def test_what_was_overdue_and_went_past_the_wheel_is_not_pending(
    builder: WheelStoreBuilder,
) -> None:
    for key in ("A", "B"):
        builder.put(NOW_MS - 5_000, key=key, stored_ms=NOW_MS + 100)
    builder.deliver(1, stored_ms=NOW_MS + 110)
    root = builder.stop(last_queue_offset=0, master_queue_offset=0)
    assert pending_keys(root) == ["A"]


def test_of_equal_messages_each_copy_counts_for_one(builder: WheelStoreBuilder) -> None:
    first, *_ = [builder.put_and_place(NOW_MS, key="A") for _ in range(3)]
    builder.deliver(first, stored_ms=DEALT_WITH_MS)
    builder.deliver(first, stored_ms=DEALT_WITH_MS)
    assert pending_keys(builder.stop()) == ["A"]


def test_a_record_of_the_same_key_that_is_no_copy_leaves_the_message_pending(
    builder: WheelStoreBuilder,
) -> None:
    number = builder.put_and_place(NOW_MS, key="A")
    builder.deliver(number, stored_ms=DEALT_WITH_MS, body=b"another body")
    assert pending_keys(builder.stop()) == ["A"]


def test_a_copy_that_lies_before_the_message_is_another_ones(builder: WheelStoreBuilder) -> None:
    first = builder.put(NOW_MS - 1000, key="A", stored_ms=NOW_MS)
    builder.deliver(first, stored_ms=DEALT_WITH_MS)
    builder.put_and_place(NOW_MS - 1000, key="A")
    root = builder.stop(last_read_ms=NOW_MS - 1000)
    assert pending_keys(root) == ["A"]


def test_what_was_recalled_and_rolled_is_recalled_once(builder: WheelStoreBuilder) -> None:
    both = ((None, 1), ("A", 5))
    for deletes, flags in both:
        builder.place(builder.put(LATER_MS, key="A", deletes=deletes), NOW_MS, flags=flags | ROLLS)
    for deletes, flags in both:
        new = builder.put(LATER_MS, key="A", deletes=deletes, rolled=True, stored_ms=DEALT_WITH_MS)
        builder.place(new, LATER_MS, flags=flags)
    state = read(builder.stop())
    assert (len(state.pending), len(state.cancelled), len(state.markers)) == (0, 1, 1)
