# SPDX-License-Identifier: Apache-2.0
"""After a crash a broker repeats its last second; we leave out what the log shows as done, and find
what it shows as stored.
"""

from pathlib import Path

import pytest

from message_store import AfterMs, ManualClock, Message
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from tests.faults.engines import abandon, open_hierarchy
from tests.timer_wheel.wheel_store_builder import (
    LOG_FILE_BYTES,
    NOW_MS,
    WheelStoreBuilder,
)
from timer_wheel import pending_records, read_wheel_store
from timer_wheel.reading.state import WheelState

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


@pytest.mark.parametrize("is_delivered", [False, True])
@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_a_copy_behind_the_marker_is_of_what_was_scheduled_again(
    builder: WheelStoreBuilder, earlier: int, *, is_delivered: bool
) -> None:
    """Equal messages were cancelled, and one came behind the cancel."""
    for _ in range(earlier):
        builder.put_and_place(NOW_MS, key="A")
    builder.place(builder.put(NOW_MS, key="A", deletes="A"), NOW_MS, flags=5)
    again = builder.put_and_place(NOW_MS, key="A")
    if is_delivered:
        builder.deliver(again, stored_ms=DEALT_WITH_MS)
    root = builder.stop()
    state = read_wheel_store(root, now_ms=DEALT_WITH_MS, topic_in_delete_key=None, after_crash=True)
    assert counts(state) == (int(not is_delivered), earlier, 1)
    assert state.done_already_count == int(is_delivered)


@pytest.mark.parametrize("is_delivered", [False, True])
def test_a_hierarchical_wheel_is_read_so_too(tmp_path: Path, *, is_delivered: bool) -> None:
    clock = ManualClock(NOW_MS)
    store = open_hierarchy(tmp_path, clock)
    message = Message("orders", b"", unique_key="A")
    store.cancel(store.schedule(message, AfterMs(5_000)))
    store.schedule(message, AfterMs(5_000))
    store.flush()
    if is_delivered:
        assert len(store.advance(NOW_MS + 5_000)) == 1
    abandon(store)
    state = read_wheel_store(StoreRoot(tmp_path), now_ms=NOW_MS + 5_000, after_crash=True)
    assert counts(state)[:2] == (int(not is_delivered), 1)


# --- recalled and rolled --------------------------------------------------------------------------


def put_both(builder: WheelStoreBuilder, *, rolled: bool) -> dict[int, int]:
    """Put a message that is due later and the marker that recalls it; their flags by number."""
    stored_ms = DEALT_WITH_MS if rolled else 0
    return {
        builder.put(LATER_MS, key="A", deletes=deletes, rolled=rolled, stored_ms=stored_ms): flags
        for deletes, flags in ((None, 1), ("A", 5))
    }


def place_both(builder: WheelStoreBuilder, both: dict[int, int], slot_ms: int) -> None:
    rolls = 0 if slot_ms == LATER_MS else ROLLS
    for number, flags in both.items():
        builder.place(number, slot_ms, flags=flags | rolls)


def counts(state: WheelState) -> tuple[int, int, int]:
    return len(state.pending), len(state.cancelled), len(state.markers)


def test_what_was_recalled_and_rolled_is_recalled_once(builder: WheelStoreBuilder) -> None:
    place_both(builder, put_both(builder, rolled=False), NOW_MS)
    place_both(builder, put_both(builder, rolled=True), LATER_MS)
    root = builder.stop()
    assert counts(read(root)) == (0, 1, 1)
    assert counts(read(root, after_crash=False)) == (0, 2, 2)


def test_what_was_recalled_and_rolled_and_would_be_placed_again_is_recalled_once(
    builder: WheelStoreBuilder,
) -> None:
    place_both(builder, put_both(builder, rolled=False), NOW_MS)
    copies = put_both(builder, rolled=True)
    place_both(builder, copies, LATER_MS)
    # Neither the slot nor the place in the queue was written down any more.
    root = builder.stop(last_queue_offset=2, master_queue_offset=2)
    state = read(root)
    assert counts(state) == (0, 1, 1)
    assert state.cancelled.slot_time_ms.tolist() == [LATER_MS]
    assert state.done_already_count == 4
    assert counts(read(root, after_crash=False)) == (0, 3, 3)


def test_what_was_recalled_and_rolled_twice_since_the_checkpoint_is_recalled_once(
    builder: WheelStoreBuilder,
) -> None:
    place_both(builder, put_both(builder, rolled=False), NOW_MS)
    place_both(builder, put_both(builder, rolled=True), NOW_MS + 1000)
    builder.put(LATER_MS, key="B", rolled=True, stored_ms=NOW_MS + 2_010)
    place_both(builder, put_both(builder, rolled=True), LATER_MS)
    root = builder.stop(last_queue_offset=2, master_queue_offset=2)
    state = read(root)
    assert counts(state) == (1, 1, 1)
    assert state.cancelled.slot_time_ms.tolist() == [LATER_MS]


@pytest.mark.parametrize("rolled", [0, 1], ids=["the message", "the marker"])
def test_a_crash_between_the_rolls_of_message_and_marker_leaves_it_recalled_once(
    rolled: int, builder: WheelStoreBuilder
) -> None:
    both = put_both(builder, rolled=False)
    place_both(builder, both, NOW_MS)
    deletes, flags = (None, 1) if rolled == 0 else ("A", 5)
    new = builder.put(LATER_MS, key="A", deletes=deletes, rolled=True, stored_ms=DEALT_WITH_MS)
    builder.place(new, LATER_MS, flags=flags)
    state = read(builder.stop())
    assert counts(state) == (0, 1, 1)
    assert state.done_already_count == 1


# --- not yet in the queue -------------------------------------------------------------------------


def test_what_the_queue_does_not_know_yet_waits_all_the_same(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(LATER_MS, key="A")
    for key in ("B", "C"):
        builder.put(LATER_MS, key=key, stored_ms=NOW_MS + 100)
    root = builder.stop(queued=2)
    assert pending_keys(root) == ["A", "B", "C"]
    assert read(root).pending.queue_offset.tolist() == [-1, 1, 2]
    assert pending_keys(root, after_crash=False) == ["A", "B"]


def test_what_was_just_rolled_is_pending_also_before_its_copy_reaches_the_queue(
    builder: WheelStoreBuilder,
) -> None:
    old = builder.put(LATER_MS, key="A")
    builder.place(old, NOW_MS, flags=ROLLS)
    new = builder.put(LATER_MS, key="A", rolled=True, stored_ms=DEALT_WITH_MS)
    state = read(builder.stop(queued=1))
    offset = builder.queue[new].commit_log_offset
    assert state.pending.commit_log_offset.tolist() == [offset]
    assert state.done_already_count == 1


def test_what_was_recalled_and_rolled_is_recalled_also_before_the_copies_reach_the_queue(
    builder: WheelStoreBuilder,
) -> None:
    place_both(builder, put_both(builder, rolled=False), NOW_MS)
    put_both(builder, rolled=True)
    assert counts(read(builder.stop(queued=2))) == (0, 1, 1)


def test_a_message_lost_by_the_queue_long_before_the_hand_moved_last_waits(
    builder: WheelStoreBuilder,
) -> None:
    """A log file later and a minute before: the wheel's own checkpoint is no bound for these."""
    builder.put_and_place(LATER_MS, key="A")
    for number in range(30):
        builder.put(LATER_MS, key=f"B{number}", stored_ms=NOW_MS - 60_000 + number)
    assert builder.log_end > LOG_FILE_BYTES
    assert len(read(builder.stop(queued=1)).pending) == 31


def test_a_message_on_the_wheel_that_its_queue_has_lost_waits_once(
    builder: WheelStoreBuilder,
) -> None:
    for key in ("A", "B"):
        number = builder.put(LATER_MS, key=key, stored_ms=NOW_MS + 100)
        builder.place(number, LATER_MS)
    assert pending_keys(builder.stop(queued=1)) == ["A", "B"]


def test_a_message_without_a_due_time_stops_a_broker_also_before_it_reaches_the_queue(
    builder: WheelStoreBuilder,
) -> None:
    builder.put(LATER_MS, key="A", stored_ms=NOW_MS + 100)
    builder.put(None, key="B", stored_ms=NOW_MS + 100)
    root = builder.stop(queued=1, last_queue_offset=0, master_queue_offset=0)
    assert pending_keys(root) == ["A"]
    assert read(root).blocking == ((1, builder.queue[1].commit_log_offset),)
