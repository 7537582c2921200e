# SPDX-License-Identifier: Apache-2.0
"""What a starting broker would find on a wheel: which messages, from where, and which no more."""

import os
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from tests.independent.raw_files import QueueUnit, encode_timer_unit, timer_units
from tests.independent.target_reader import read_target
from tests.independent.tiny_target import NOW_MS as TINY_NOW_MS
from tests.independent.tiny_target import write_tiny_target
from tests.timer_wheel.wheel_store_builder import (
    LOG_FILE_BYTES,
    NOW_MS,
    TIMER_FILE_BYTES,
    WheelStoreBuilder,
    write_wheel,
)
from timer_wheel import PendingTimers, WheelState, pending_records, read_wheel_store
from timer_wheel.format.timer_log import read_units
from timer_wheel.reading.wheel_reader import guess_precision

WEEK_MS = 7 * 86_400_000
FORTNIGHT_MS = 2 * WEEK_MS


@pytest.fixture
def builder(tmp_path: Path) -> WheelStoreBuilder:
    return WheelStoreBuilder(tmp_path)


def keys_of(root: StoreRoot, timers: PendingTimers) -> list[str | None]:
    with SegmentReader(root.commit_log) as log:
        records = list(pending_records(log, timers))
    return [record.unique_key if record else None for record in records]


def pending_keys(
    root: StoreRoot, *, snapshots_on: bool | None = False, **options: bool
) -> list[str | None]:
    state = read_wheel_store(root, now_ms=NOW_MS, snapshots_on=snapshots_on, **options)
    return keys_of(root, state.pending)


# --- slots and chains ---------------------------------------------------------------------------


def test_pending_messages_come_in_order_of_slot_and_placing(builder: WheelStoreBuilder) -> None:
    for ahead_s in (30, 10, 30, 20, 10, 30):
        builder.put_and_place(NOW_MS + ahead_s * 1000)
    root = builder.stop()
    state = read_wheel_store(root, now_ms=NOW_MS)
    assert keys_of(root, state.pending) == ["K1", "K4", "K3", "K0", "K2", "K5"]
    assert (state.pending.slot_time_ms - NOW_MS).tolist() == [10_000] * 2 + [20_000] + [30_000] * 3
    assert state.pending.position.tolist() == [52, 228, 156, 0, 104, 280]
    assert state.pending.queue_offset.tolist() == [-1] * 6
    assert (state.unit_count, state.slots_used, state.precision_ms) == (6, 3, 1000)
    assert len(state.cancelled) == len(state.markers) == state.expired_count == 0


def test_a_store_without_any_wheel_has_nothing_on_it(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    state = read_wheel_store(StoreRoot(tmp_path), now_ms=NOW_MS)
    assert len(state.pending) == state.unit_count == state.resume_queue_offset == 0


def test_it_finds_what_an_independent_reader_finds(tmp_path: Path) -> None:
    write_tiny_target(tmp_path)
    state = read_wheel_store(StoreRoot(tmp_path), now_ms=TINY_NOW_MS)
    expected = [
        (
            message.unit.position,
            message.slot_time_ms,
            message.unit.magic,
            message.unit.commit_log_offset,
            message.unit.record_size_bytes,
        )
        for message in read_target(tmp_path)
    ]
    timers = state.pending
    columns = (
        timers.position,
        timers.slot_time_ms,
        timers.flags,
        timers.commit_log_offset,
        timers.size_bytes,
    )
    found = list(zip(*(column.tolist() for column in columns), strict=True))
    assert sorted(found) == sorted(expected)
    assert len(found) == 12


@pytest.mark.parametrize(
    ("last_read_ms", "slot_ms", "is_read"),
    [
        (NOW_MS, NOW_MS, True),
        (NOW_MS, NOW_MS - 1000, False),
        (NOW_MS - 5000, NOW_MS - 5000, True),
        (0, NOW_MS - WEEK_MS + 60_000, True),
        (0, NOW_MS - WEEK_MS + 59_000, False),
        (NOW_MS, NOW_MS + WEEK_MS, True),
    ],
)
def test_slots_before_the_hand_are_never_read(
    builder: WheelStoreBuilder, last_read_ms: int, slot_ms: int, is_read: bool
) -> None:
    number = builder.put(slot_ms)
    builder.place(number, slot_ms, write_time_ms=NOW_MS - WEEK_MS)
    state = read_wheel_store(builder.stop(last_read_ms=last_read_ms), now_ms=NOW_MS)
    assert len(state.pending) == is_read
    assert state.read_time_ms == max(last_read_ms, NOW_MS - WEEK_MS + 60_000)


def test_a_slot_taken_by_another_time_has_lost_its_chain(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(NOW_MS + 1000)
    number = builder.put(NOW_MS + 1000 + FORTNIGHT_MS)
    builder.place(number, NOW_MS + 1000 + FORTNIGHT_MS)
    assert pending_keys(builder.stop()) == ["K1"]


def test_a_rolling_message_is_pending_in_the_slot_where_it_is_parked(
    builder: WheelStoreBuilder,
) -> None:
    number = builder.put(NOW_MS + 10 * 86_400_000)
    builder.place(number, NOW_MS + 86_400_000, flags=3)
    state = read_wheel_store(builder.stop(), now_ms=NOW_MS)
    assert state.pending.is_roll.tolist() == [True]
    assert state.pending.slot_time_ms.tolist() == [NOW_MS + 86_400_000]


def test_the_live_record_of_a_rolled_message_is_its_last(builder: WheelStoreBuilder) -> None:
    out_ms = NOW_MS + 1000
    first = builder.put(out_ms, key="A")
    builder.place(first, NOW_MS - 5000, flags=3, write_time_ms=NOW_MS - 10_000)
    again = builder.put(out_ms, key="A")
    builder.place(again, out_ms)
    state = read_wheel_store(builder.stop(), now_ms=NOW_MS)
    assert state.pending.commit_log_offset.tolist() == [builder.queue[again].commit_log_offset]


def test_units_whose_records_retention_has_deleted_are_expired(builder: WheelStoreBuilder) -> None:
    for ahead_s in range(30):
        builder.put_and_place(NOW_MS + ahead_s * 1000)
    root = builder.stop()
    os.unlink(root.commit_log / f"{0:020d}")
    state = read_wheel_store(root, now_ms=NOW_MS)
    gone = sum(unit.commit_log_offset < LOG_FILE_BYTES for unit in builder.queue)
    assert 0 < gone < 30
    assert (state.expired_count, len(state.pending)) == (gone, 30 - gone)


def test_a_link_to_0_in_place_of_none_is_named(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(NOW_MS + 1000)
    builder.put_and_place(NOW_MS + 2000)
    damaged = bytearray(builder.log)
    damaged[56:64] = bytes(8)
    builder.log = bytes(damaged)
    state = read_wheel_store(builder.stop(), now_ms=NOW_MS)
    assert len(state.pending) == 2
    assert state.shared_positions.tolist() == [0]


# --- the wheel file and the log -----------------------------------------------------------------


def five_files(builder: WheelStoreBuilder) -> WheelStoreBuilder:
    for ahead_s in range(18):
        builder.put_and_place(NOW_MS + ahead_s * 1000)
    assert len(builder.log) // TIMER_FILE_BYTES == 4
    return builder


@pytest.mark.parametrize(
    ("flush_position", "found"),
    [
        # The last two files, as a clean stop has it: the position's own file and the one before.
        (None, range(12, 18)),
        (4 * TIMER_FILE_BYTES, range(12, 18)),
        (4 * TIMER_FILE_BYTES - 1, range(8, 18)),
        (2 * TIMER_FILE_BYTES, range(4, 18)),
        (0, range(18)),
        # Far beyond the log: the last file.
        (10**9, range(16, 18)),
        (-5, range(18)),
    ],
)
def test_a_broker_applies_only_the_last_files_to_a_stale_wheel(
    builder: WheelStoreBuilder, flush_position: int | None, found: range
) -> None:
    root = five_files(builder).stop(flush_position=flush_position, slots={})
    assert pending_keys(root) == [f"K{number}" for number in found]
    assert pending_keys(root, whole_log=True) == [f"K{number}" for number in range(18)]


def test_the_wheel_file_reaches_what_the_last_files_do_not(builder: WheelStoreBuilder) -> None:
    assert len(pending_keys(five_files(builder).stop())) == 18


def test_a_slot_out_of_its_place_is_never_found(builder: WheelStoreBuilder) -> None:
    slots = five_files(builder).remembered()
    first = slots.pop(min(slots))
    slots[first.index + 100] = attrs.evolve(first, index=first.index + 100)
    assert pending_keys(builder.stop(slots=slots)) == [f"K{number}" for number in range(1, 18)]


def test_a_stale_wheel_is_brought_up_to_the_log(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(NOW_MS + 1000)
    stale = builder.remembered()
    builder.put_and_place(NOW_MS + 1000)
    builder.put_and_place(NOW_MS + 2000)
    assert pending_keys(builder.stop(slots=stale)) == ["K0", "K1", "K2"]


def test_a_wheel_ahead_of_its_log_is_hung_on_what_is_left(builder: WheelStoreBuilder) -> None:
    """The log lost its end in a crash; the slot's units before it are in a file not scanned."""
    for _ in range(3):
        builder.put_and_place(NOW_MS + 5000)
    for ahead_s in range(20, 29):
        builder.put_and_place(NOW_MS + ahead_s * 1000)
    whole = builder.log
    builder.put_and_place(NOW_MS + 5000)
    builder.log = whole
    root = builder.stop(flush_position=2 * TIMER_FILE_BYTES + 10**6)
    assert pending_keys(root)[:3] == ["K0", "K1", "K2"]


@pytest.mark.parametrize("snapshots_on", [True, False, None])
def test_a_snapshot_is_the_wheel_only_where_the_mode_is_on(
    builder: WheelStoreBuilder, snapshots_on: bool | None
) -> None:
    """With the mode on the plain wheel stays zeros; switched off again, a broker believes it.
    Whoever does not know the mode finds what waits.
    """
    snapshot = five_files(builder).remembered()
    position = len(builder.log)
    root = builder.stop(slots={})
    write_wheel(builder.path / f"timerwheel.{position}", snapshot)
    count = 6 if snapshots_on is False else 18
    assert len(pending_keys(root, snapshots_on=snapshots_on)) == count


@pytest.mark.parametrize("is_in_file", [True, False])
def test_of_file_and_snapshot_each_slot_is_the_one_that_leads_farther(
    builder: WheelStoreBuilder, is_in_file: bool
) -> None:
    """The mode was switched on, or off again, while messages waited."""
    for _ in range(3):
        builder.put_and_place(NOW_MS + 1000)
    early, position = builder.remembered(), len(builder.log)
    builder.put_and_place(NOW_MS + 1000)
    late = builder.remembered()
    for ahead_s in range(20, 40):
        builder.put_and_place(NOW_MS + ahead_s * 1000)
    root = builder.stop(slots=late if is_in_file else early)
    write_wheel(builder.path / f"timerwheel.{position}", early if is_in_file else late)
    assert pending_keys(root, snapshots_on=None) == [f"K{number}" for number in range(24)]


def test_a_torn_snapshot_hides_nothing_from_who_does_not_know_the_mode(
    builder: WheelStoreBuilder,
) -> None:
    root = five_files(builder).stop()
    (builder.path / "timerwheel.52").write_bytes(b"half")
    assert pending_keys(root, snapshots_on=None) == pending_keys(root)


def test_units_behind_a_snapshot_are_applied_again(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(NOW_MS + 1000)
    snapshot, position = builder.remembered(), len(builder.log)
    for ahead_s in range(12):
        builder.put_and_place(NOW_MS + ahead_s * 1000)
    # The checkpoint alone would leave out the first file; the snapshot's name overrules it.
    root = builder.stop(slots={}, flush_position=3 * TIMER_FILE_BYTES)
    write_wheel(builder.path / f"timerwheel.{position}", snapshot)
    assert len(pending_keys(root, snapshots_on=True)) == 13


# --- the queue in front -------------------------------------------------------------------------


def five_placed(builder: WheelStoreBuilder, order: tuple[int, ...] = (0, 1, 2, 3, 4)) -> None:
    for ahead_s in range(1, 6):
        builder.put(NOW_MS + ahead_s * 1000)
    for number in order:
        builder.place(number, NOW_MS + (number + 1) * 1000)


def counts(state: WheelState) -> tuple[int, int, int]:
    on_wheel = int((state.pending.position >= 0).sum())
    return state.resume_queue_offset, on_wheel, len(state.pending) - on_wheel


@pytest.mark.parametrize(
    ("order", "last_offset", "master_offset", "expected"),
    [
        # Everything placed, and the checkpoint says so.
        ((0, 1, 2, 3, 4), 5, 5, (5, 5, 0)),
        # The last unit decides, not the checkpoint's own offset.
        ((0, 1, 2, 3, 4), 2, 5, (5, 5, 0)),
        ((0, 1, 2), 5, 5, (3, 3, 2)),
        # The master's offset only lowers it: every message twice.
        ((0, 1, 2, 3, 4), 5, 0, (0, 5, 5)),
        ((0, 1, 2, 3, 4), 5, 3, (3, 5, 2)),
        ((0, 1, 2, 3, 4), 5, 99, (5, 5, 0)),
        # Units in reverse order: four of five twice.
        ((4, 3, 2, 1, 0), 5, 5, (1, 5, 4)),
        # No timer log: the checkpoint is believed, and nothing is ever delivered.
        ((), 5, 5, (5, 0, 0)),
        ((), 2, 5, (2, 0, 3)),
        ((), 0, 0, (0, 0, 5)),
        # Offsets that cannot be are clamped to what the queue has.
        ((), 99, 99, (5, 0, 0)),
        ((), -7, 99, (0, 0, 5)),
    ],
)
def test_placing_resumes_where_a_broker_resumes(
    builder: WheelStoreBuilder,
    order: tuple[int, ...],
    last_offset: int,
    master_offset: int,
    expected: tuple[int, int, int],
) -> None:
    five_placed(builder, order)
    root = builder.stop(last_queue_offset=last_offset, master_queue_offset=master_offset)
    assert counts(read_wheel_store(root, now_ms=NOW_MS)) == expected


def test_without_a_checkpoint_each_message_counts_once(builder: WheelStoreBuilder) -> None:
    """A broker places all of them again, and delivers them twice."""
    five_placed(builder)
    root = builder.stop()
    os.unlink(root.config_file("timercheck"))
    assert counts(read_wheel_store(root, now_ms=NOW_MS)) == (0, 5, 0)


def test_a_record_with_a_shifted_queue_offset_is_looked_for_in_the_queue(
    builder: WheelStoreBuilder,
) -> None:
    """What a broker rebuilds after appended records were lost from it lies one index lower."""
    for ahead_s in range(1, 6):
        number = builder.put(NOW_MS + ahead_s * 1000, queue_offset=ahead_s)
        if number < 3:
            builder.place(number, NOW_MS + ahead_s * 1000)
    assert counts(read_wheel_store(builder.stop(), now_ms=NOW_MS)) == (3, 3, 2)


def test_without_its_queue_entry_the_record_itself_is_believed(builder: WheelStoreBuilder) -> None:
    five_placed(builder, (0, 1, 2))
    wrong = builder.queue[2]
    builder.queue[2] = QueueUnit(wrong.commit_log_offset, wrong.size_bytes + 1, 0)
    assert counts(read_wheel_store(builder.stop(), now_ms=NOW_MS)) == (3, 3, 2)


def test_an_unreadable_last_record_leaves_the_checkpoint_to_decide(
    builder: WheelStoreBuilder,
) -> None:
    five_placed(builder, (0, 1, 2))
    offset = builder.queue[2].commit_log_offset
    builder.records[offset] = b"\xff" * len(builder.records[offset])
    state = read_wheel_store(builder.stop(last_queue_offset=4), now_ms=NOW_MS)
    assert state.resume_queue_offset == 4


def test_an_empty_last_log_file_leaves_the_checkpoint_to_decide(builder: WheelStoreBuilder) -> None:
    five_placed(builder, (0, 1, 2, 3))
    root = builder.stop(last_queue_offset=2)
    log_file = root.timer_log / f"{0:020d}"
    data = log_file.read_bytes()
    blank = bytes.fromhex("000000140000000000000000cbd43194")
    log_file.write_bytes(data[:208] + blank + bytes(4))
    (root.timer_log / f"{TIMER_FILE_BYTES:020d}").write_bytes(bytes(TIMER_FILE_BYTES))
    assert read_wheel_store(root, now_ms=NOW_MS).resume_queue_offset == 2


def test_resuming_never_goes_below_the_oldest_queue_file(builder: WheelStoreBuilder) -> None:
    for ahead_s in range(25):
        builder.put(NOW_MS + ahead_s * 1000)
    root = builder.stop(last_queue_offset=3)
    os.unlink(root.timer_queue() / f"{0:020d}")
    assert counts(read_wheel_store(root, now_ms=NOW_MS)) == (10, 0, 15)


def test_what_waits_in_the_queue_is_due_by_its_record(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(NOW_MS + 9000)
    builder.put(NOW_MS + 4000)
    builder.put(NOW_MS - 4000)
    state = read_wheel_store(builder.stop(last_queue_offset=1), now_ms=NOW_MS)
    assert state.pending.position.tolist() == [0, -1, -1]
    assert state.pending.queue_offset.tolist() == [-1, 1, 2]
    assert (state.pending.slot_time_ms - NOW_MS).tolist() == [9000, 4000, -4000]


@pytest.mark.parametrize("out_ms", [None, "soon", "1.5", str(2**63)])
def test_an_entry_without_a_due_time_is_named_for_stopping_a_broker(
    builder: WheelStoreBuilder, out_ms: str | None
) -> None:
    builder.put(NOW_MS)
    builder.put(out_ms)
    builder.put(NOW_MS + 1000)
    root = builder.stop(last_queue_offset=0)
    state = read_wheel_store(root, now_ms=NOW_MS)
    assert [queue_offset for queue_offset, _ in state.blocking] == [1]
    assert keys_of(root, state.pending) == ["K0", "K2"]


@pytest.mark.parametrize(
    "entry",
    [
        QueueUnit(0, 2**31 - 1, 0),
        QueueUnit(10**12, 200, 0),
        QueueUnit(3, 200, 0),
        QueueUnit(0, 200, 0),
        QueueUnit(0, 100, 0),
    ],
    ids=["pre-blank", "behind the log", "no record", "longer", "shorter"],
)
def test_an_entry_without_a_record_is_passed_over(
    builder: WheelStoreBuilder, entry: QueueUnit
) -> None:
    builder.put(NOW_MS)
    builder.put(NOW_MS)
    builder.queue[0] = entry
    root = builder.stop(last_queue_offset=0)
    assert pending_keys(root) == ["K1"]


# --- recall -------------------------------------------------------------------------------------

OUT_MS = NOW_MS + 60_000


@pytest.mark.parametrize(
    ("marker_text", "topic_in_delete_key", "is_deleted"),
    [
        ("A", False, True),
        ("TopicA+A", False, False),
        ("A", True, False),
        ("TopicA+A", True, True),
        ("TopicB+A", True, False),
        ("B", False, False),
        # Whatever the broker: what somebody wanted.
        ("A", None, True),
        ("TopicA+A", None, True),
        ("TopicB+A", None, False),
        ("B", None, False),
    ],
)
def test_a_marker_must_name_the_key_in_the_form_of_its_broker(
    builder: WheelStoreBuilder,
    marker_text: str,
    topic_in_delete_key: bool | None,
    is_deleted: bool,
) -> None:
    builder.put_and_place(OUT_MS, key="A")
    builder.place(builder.put(OUT_MS, key="A", deletes=marker_text), OUT_MS, flags=5)
    builder.put_and_place(OUT_MS, key="C")
    root = builder.stop()
    state = read_wheel_store(root, now_ms=NOW_MS, topic_in_delete_key=topic_in_delete_key)
    assert keys_of(root, state.pending) == (["C"] if is_deleted else ["A", "C"])
    assert keys_of(root, state.cancelled) == (["A"] if is_deleted else [])
    assert state.markers.is_marker.tolist() == [True]


@pytest.mark.parametrize(
    ("topic_in_delete_key", "expected"),
    [(None, ["A", "B", "C"]), (False, ["A", "C"]), (True, ["B", "C"])],
)
def test_messages_that_only_a_marker_with_the_topic_names_are_counted(
    builder: WheelStoreBuilder, topic_in_delete_key: bool | None, expected: list[str]
) -> None:
    for key, marker_texts in (("A", ["A"]), ("B", ["TopicA+B"]), ("C", ["C", "TopicA+C"])):
        builder.put_and_place(OUT_MS, key=key)
        for text in marker_texts:
            builder.place(builder.put(OUT_MS, key=key, deletes=text), OUT_MS, flags=5)
    root = builder.stop()
    state = read_wheel_store(root, now_ms=NOW_MS, topic_in_delete_key=topic_in_delete_key)
    assert state.recalled_by_topic_count == 1
    assert keys_of(root, state.cancelled) == expected


def test_the_plain_key_takes_away_messages_of_every_topic(builder: WheelStoreBuilder) -> None:
    for topic in ("TopicA", "TopicB"):
        builder.place(builder.put(OUT_MS, key="A", topic=topic), OUT_MS)
    builder.place(builder.put(OUT_MS, key="A", deletes="A"), OUT_MS, flags=5)
    assert pending_keys(builder.stop()) == []


@pytest.mark.parametrize(
    ("marker", "target", "is_deleted"),
    [
        # (slot, flags, TIMER_OUT_MS) of each, in seconds from now.
        ((60, 5, 60), (60, 1, 60), True),
        # Only within one slot.
        ((60, 5, 60), (61, 1, 61), False),
        ((61, 5, 61), (60, 1, 60), False),
        # The slot counts where nothing rolls, not what the record says.
        ((60, 5, 60), (60, 1, 99), True),
        ((60, 5, 99), (60, 1, 60), True),
        # What rolls ends in the slot of its TIMER_OUT_MS.
        ((50, 7, 900), (40, 3, 900), True),
        ((900, 5, 900), (40, 3, 900), True),
        ((50, 7, 900), (900, 1, 900), True),
        ((50, 7, 900), (50, 3, 901), False),
        ((50, 7, 900), (50, 1, 50), False),
    ],
)
def test_marker_and_target_meet_in_the_slot_where_both_end(
    builder: WheelStoreBuilder,
    marker: tuple[int, int, int],
    target: tuple[int, int, int],
    is_deleted: bool,
) -> None:
    for (slot_s, flags, out_s), deletes in ((target, None), (marker, "A")):
        number = builder.put(NOW_MS + out_s * 1000, key="A", deletes=deletes)
        builder.place(number, NOW_MS + slot_s * 1000, flags=flags)
    assert pending_keys(builder.stop()) == ([] if is_deleted else ["A"])


@pytest.mark.parametrize(
    ("out_s", "placed", "is_deleted"),
    [
        (60, (True, True), True),
        (60, (True, False), True),
        (60, (False, True), True),
        (60, (False, False), True),
        # Overdue: what is on the wheel is read slot by slot, what waits in the queue never placed.
        (-5, (True, True), True),
        (-5, (True, False), False),
        (-5, (False, True), False),
        (-5, (False, False), False),
    ],
)
def test_what_waits_in_the_queue_is_recalled_unless_it_is_overdue(
    builder: WheelStoreBuilder, out_s: int, placed: tuple[bool, bool], is_deleted: bool
) -> None:
    out_ms = NOW_MS + out_s * 1000
    target, marker = (None, 1, placed[0]), ("A", 5, placed[1])
    # What is placed was put first: a broker places in the order of the queue.
    for deletes, flags, is_placed in sorted((target, marker), key=lambda timer: not timer[2]):
        number = builder.put(out_ms, key="A", deletes=deletes)
        if is_placed:
            builder.place(number, out_ms, flags=flags, write_time_ms=NOW_MS - 10_000)
    root = builder.stop(last_read_ms=NOW_MS - 10_000, last_queue_offset=0)
    assert pending_keys(root) == ([] if is_deleted else ["A"])


def test_a_marker_whose_record_is_gone_has_no_effect(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(OUT_MS, key="A")
    number = builder.put(OUT_MS, key="A", deletes="A")
    builder.place(number, OUT_MS, flags=5)
    builder.put_and_place(OUT_MS, key="last")
    offset = builder.queue[number].commit_log_offset
    builder.records[offset] = b"\xff" * len(builder.records[offset])
    assert pending_keys(builder.stop()) == ["A", "last"]


def test_messages_without_a_key_cannot_be_recalled(builder: WheelStoreBuilder) -> None:
    builder.place(builder.put(OUT_MS, key=""), OUT_MS)
    builder.place(builder.put(OUT_MS, key="A", deletes="A"), OUT_MS, flags=5)
    assert len(read_wheel_store(builder.stop(), now_ms=NOW_MS).pending) == 1


# --- precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision_ms", [100, 200, 500, 1000])
def test_the_wheel_tells_its_precision(tmp_path: Path, precision_ms: int) -> None:
    """Whole seconds only, so that the times alone could not tell."""
    builder = WheelStoreBuilder(tmp_path, precision_ms)
    for ahead_s in range(5):
        builder.put_and_place(NOW_MS + ahead_s * 1000)
    root = builder.stop()
    state = read_wheel_store(root, now_ms=NOW_MS)
    assert (state.precision_ms, len(state.pending)) == (precision_ms, 5)


@pytest.mark.parametrize(
    ("delays_ms", "precision_ms"),
    [
        ((1000, 5000), 1000),
        ((1000, 1500), 500),
        ((1000, 1400), 200),
        ((1500, 1400), 100),
        ((1500, 1700), 100),
        ((1001,), 1000),  # as what was overdue when it was stored: it says nothing
        ((1002, 1900), 100),
        ((), 1000),
    ],
)
def test_without_slots_the_times_tell_the_precision(
    tmp_path: Path, delays_ms: tuple[int, ...], precision_ms: int
) -> None:
    builder = WheelStoreBuilder(tmp_path, precision_ms)
    for delay_ms in delays_ms:
        builder.place(builder.put(NOW_MS + delay_ms), NOW_MS + delay_ms)
    root = builder.stop()
    with SegmentReader(root.timer_log) as log:
        assert guess_precision(read_units(log)) == precision_ms


def test_read_with_the_wrong_precision_a_wheel_looks_empty(tmp_path: Path) -> None:
    builder = WheelStoreBuilder(tmp_path, 100)
    builder.put_and_place(NOW_MS + 1000)
    root = builder.stop(flush_position=10**9)
    os.unlink(root.timer_log / f"{0:020d}")
    (root.timer_log / f"{0:020d}").write_bytes(bytes(TIMER_FILE_BYTES))
    state = read_wheel_store(root, now_ms=NOW_MS, precision_ms=1000)
    assert len(state.pending) == 0


# --- damage -------------------------------------------------------------------------------------


def test_units_with_wild_numbers_are_no_error(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(NOW_MS + 1000)
    builder.put_and_place(NOW_MS + 2000)
    root = builder.stop()
    [unit, other] = timer_units(root.timer_log)
    wild = bytearray(encode_timer_unit(other))
    wild[4:12] = (2**63 - 1).to_bytes(8, "big")
    wild[28:40] = (2**62).to_bytes(8, "big") + (2**31 - 1).to_bytes(4, "big")
    path = root.timer_log / f"{0:020d}"
    path.write_bytes((encode_timer_unit(unit) + bytes(wild)).ljust(TIMER_FILE_BYTES, b"\0"))
    state = read_wheel_store(root, now_ms=NOW_MS)
    assert keys_of(root, state.pending) == ["K0", None]


def test_slots_with_wild_numbers_are_no_error(builder: WheelStoreBuilder) -> None:
    builder.put_and_place(NOW_MS + 1000)
    root = builder.stop()
    noise = np.random.default_rng(7).integers(0, 256, 38_707_200, np.uint8)
    root.timer_wheel.write_bytes(noise.tobytes())
    assert "K0" in pending_keys(root)
