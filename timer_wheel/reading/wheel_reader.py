# SPDX-License-Identifier: Apache-2.0
"""Reads a store's wheel as a starting broker would: what is pending, and in which slot.

The slots of the wheel file are revised by the timer log and walked from the hand on. After a crash
of ours hand and units are those of the last flush, as for an opening. The timer queue is read from
where placing resumes. Then the messages that delete markers cancel are left out. The live record of
a message that has rolled is its last one, and the only one that is reached. If a broker of 5.4 or
newer has used its RocksDB timeline, the messages there are included.

Limitations: wheel and timer log are read whole, 52 bytes a unit, of a timeline 20 bytes an entry.
The record of each message that is still in the queue is read.
"""

from collections.abc import Callable
from functools import cache, partial

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader, require_appendable
from message_store.files.store_root import TIMER_LOG_FILE_BYTES, StoreRoot
from message_store.format.java_numbers import LONG_MAX
from message_store.reading.engine_choice import is_hierarchical
from timer_wheel.format.checkpoint import (
    LastFlush,
    TimerCheckpoint,
    checkpoint_damage,
    read_last_flush,
)
from timer_wheel.format.timer_log import TIMER_BLANK, TIMER_UNIT, TimerUnits, read_units
from timer_wheel.format.wheel_file import NO_SLOTS, SLOT, WheelSlots, all_slots, read_wheel
from timer_wheel.format.wheel_math import (
    DEFAULT_PRECISION_MS,
    WHEEL_SLOTS,
    Int64Array,
    effective_read_time_ms,
)
from timer_wheel.reading.delete_markers import cancelled
from timer_wheel.reading.kept_units import kept_units
from timer_wheel.reading.lost_messages import LostMessages
from timer_wheel.reading.outstanding import outstanding
from timer_wheel.reading.pending_timers import PendingTimers
from timer_wheel.reading.precision import precision_of_slots, precision_of_units
from timer_wheel.reading.state import WheelState

NATIVE_SLOT = SLOT.dtype.newbyteorder("=")
"""A slot in the machine's own byte order, for arrays that are worked on."""


def revised_slots(
    wheel: WheelSlots,
    units: TimerUnits,
    begin_position: int,
    read_time_ms: int,
    precision_ms: int,
) -> WheelSlots:
    """The slots in use, in native byte order, once they agree with the units of the log.

    Only units from the file that holds ``begin_position`` on are applied. Where a slot that is yet
    to be read still points behind the end of the log, units are applied again from that slot's
    first one on.
    """
    revised = _apply(wheel, units, units.index_of_file(begin_position), precision_ms)
    slots = revised.slots
    time_units = slots["time_units"] - read_time_ms // precision_ms
    is_ahead = (time_units >= 0) & (time_units < WHEEL_SLOTS)
    dangling = slots[is_ahead & (slots["last_position"] > units.end_position)]
    first = int(dangling["first_position"].min()) if len(dangling) else units.end_position
    if first < units.end_position:
        revised = _apply(revised, units, units.index_of_file(first), precision_ms)
    return revised


def _apply(wheel: WheelSlots, units: TimerUnits, first_index: int, precision_ms: int) -> WheelSlots:
    return revise_slots(
        wheel, units.positions[first_index:], units.slot_time_ms[first_index:], precision_ms
    )


def revise_slots(
    wheel: WheelSlots, positions: Int64Array, slot_time_ms: Int64Array, precision_ms: int
) -> WheelSlots:
    """The slots in use, in native byte order, once these units are applied all at once."""
    time_units = slot_time_ms // precision_ms
    is_used = np.zeros(WHEEL_SLOTS, np.bool_)
    is_used[wheel.index] = True
    is_used[time_units % WHEEL_SLOTS] = True
    used_index = np.flatnonzero(is_used)
    row_of = np.empty(WHEEL_SLOTS, np.int64)
    row_of[used_index] = np.arange(len(used_index), dtype=np.int64)
    slots = np.zeros(len(used_index), NATIVE_SLOT)
    slots[row_of[wheel.index]] = wheel.slots
    _revise(slots, row_of[time_units % WHEEL_SLOTS], positions, time_units)
    return attrs.evolve(wheel, index=used_index, slots=slots)


def _revise(
    slots: NDArray[np.void], index: Int64Array, positions: Int64Array, time_units: Int64Array
) -> None:
    """Apply units to ``slots`` in place; ``index`` is the row of each unit's slot."""
    places = np.arange(len(positions), dtype=np.int64)
    # Of equal indexes the last assignment stays: each slot's last unit, or its first from behind.
    newest = np.empty(len(slots), np.int64)
    newest[index] = places
    ousted_until = np.full(len(slots), -1, np.int64)
    is_ousted = time_units != time_units[newest[index]]
    ousted_until[index[is_ousted]] = places[is_ousted]
    staying = np.flatnonzero(places > ousted_until[index])[::-1]
    oldest = np.empty(len(slots), np.int64)
    oldest[index[staying]] = staying

    last = np.flatnonzero(newest[index] == places)
    used = index[last]
    is_continued = slots["time_units"][used] == time_units[last]
    is_continued &= ousted_until[used] < 0
    slots["first_position"][used] = np.where(
        is_continued, slots["first_position"][used], positions[oldest[used]]
    )
    slots["last_position"][used] = positions[last]
    slots["time_units"][used] = time_units[last]


_WORTH_COMPILING = 20_000
"""From so many units on, loading the compiled walk takes less than walking without it."""

_SIGNATURE = "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], uint8[::1])"

UNUSED = -1


@attrs.frozen(eq=False)
class Chains:
    """The units of all slots: ``lengths[i]`` of ``unit_indexes`` are slot i's, oldest first.

    ``met`` has for each slot the unit at which its chain ran into one that had been walked before,
    or -1. A chain ends there; a broker would go on and deliver those units a second time.
    """

    unit_indexes: Int64Array
    lengths: Int64Array
    met: Int64Array


def walk_chains(heads: Int64Array, previous: Int64Array) -> Chains:
    """The chains that begin at ``heads``, one a slot.

    ``previous`` has for each unit the one placed before it. Both hold indexes of units, and -1 for
    none. A link that does not lead backwards ends its chain, so that damage cannot make a circle.
    """
    order = np.empty(len(previous), np.int64)
    lengths = np.zeros(len(heads), np.int64)
    met = np.full(len(heads), UNUSED, np.int64)
    walked = np.zeros(len(previous), np.uint8)
    walk = _compiled() if len(previous) >= _WORTH_COMPILING else _walk
    count = walk(heads, previous, order, lengths, met, walked)
    return Chains(order[:count], lengths, met)


@cache
def _compiled() -> Callable[..., int]:
    from message_store.kernels.cache import kernel

    return kernel(_SIGNATURE)(_walk)


def _walk(
    heads: Int64Array,
    previous: Int64Array,
    order: Int64Array,
    lengths: Int64Array,
    met: Int64Array,
    walked: NDArray[np.uint8],
) -> int:
    count = 0
    for slot in range(len(heads)):
        start = count
        unit = heads[slot]
        while 0 <= unit < len(previous):
            if walked[unit]:
                met[slot] = unit
                break
            walked[unit] = 1
            order[count] = unit
            count += 1
            before = previous[unit]
            if before >= unit:
                break
            unit = before
        lengths[slot] = count - start
        order[start:count] = order[start:count][::-1].copy()
    return count


def read_wheel_store(
    root: StoreRoot,
    *,
    now_ms: int,
    precision_ms: int | None = None,
    snapshots_on: bool | None = False,
    topic_in_delete_key: bool | None = False,
    whole_log: bool = False,
    after_crash: bool = False,
) -> WheelState:
    """What a broker that starts at ``now_ms`` would deliver from this store's wheel.

    ``precision_ms`` None is told by the wheel. ``snapshots_on`` and ``topic_in_delete_key`` are the
    broker's `timerWheelSnapshotFlush` and `appendTopicForTimerDeleteKey`; None lets both kinds
    count. ``whole_log`` applies all timer log files, ``after_crash`` finds what no queue has, and
    leaves out what was done and a broker repeats. Raises SourceError, FormatError.
    """
    if is_hierarchical(root):
        return _read_hierarchy(root, after_crash=after_crash)
    flush, wheel = read_last_flush(root), read_wheel(root, snapshots_on=snapshots_on)
    checkpoint, crash = flush.checkpoint, flush if after_crash else None
    hand_ms, from_ms = checkpoint.last_read_time_ms, _heeded_from_ms(flush, now_ms, after_crash)
    with SegmentReader(root.timer_log) as log, open_log(root) as commit_log:
        begin = _first_applied(log, wheel, checkpoint, crash, whole_log=whole_log)
        every = read_units(log, begin)
        wheel, units, begin = _as_opened(root, wheel, every, begin, commit_log, crash)
        precision_ms = precision_ms or flush.precision_ms or _guessed(root, units, hand_ms)
        read_time_ms = effective_read_time_ms(hand_ms, now_ms, precision_ms)
        revised = revised_slots(wheel, units, begin, read_time_ms, precision_ms)
        placed, shared_positions, alone = _placed(revised, units, read_time_ms, precision_ms)
        first_ms = (flush.hand_ms if after_crash else hand_ms) or read_time_ms
        passed = _in_slots(revised, units, first_ms, read_time_ms, precision_ms)[0]
        found = passed.rows(passed.commit_log_offset >= commit_log.min_offset).followed_by(placed)
        of = partial(cancelled, commit_log=commit_log, now_ms=from_ms, precision_ms=precision_ms)
        left = outstanding(root, commit_log, (units, every), found, checkpoint, of, flush=crash)
        is_passed = (left.timers.position >= 0) & (left.timers.slot_time_ms < read_time_ms)
        recalled = of(left.timers)
        is_over = recalled.for_broker(topic_in_delete_key) | (recalled.recalled & (from_ms == 0))
        unreachable_count = _deliverable_count(root, left.timers.rows(is_passed & ~is_over))
        timers, recalled = left.timers.rows(~is_passed), recalled.rows(~is_passed)
        is_cancelled = recalled.for_broker(topic_in_delete_key)
    is_told = not after_crash and hand_ms > 0  # else units of what is done may be unlinked
    return WheelState(
        **left.counts,
        precision_ms=precision_ms,
        checkpoint=checkpoint,
        read_time_ms=read_time_ms,
        unit_count=len(units),
        slots_used=len(np.unique(placed.slot_time_ms)),
        pending=timers.rows(~(is_cancelled | timers.is_marker)),
        markers=timers.rows(timers.is_marker),
        cancelled=timers.rows(is_cancelled),
        recalled_by_topic_count=int((recalled.by_topic_and_key & ~recalled.by_key).sum()),
        shared_positions=shared_positions,
        lost_log_bytes=_lost_log_bytes(checkpoint, units, log.file_bytes, crash),
        unlinked_count=_unlinked_count(alone, timers, commit_log.min_offset) if is_told else 0,
        cut_slot_count=_cut_slot_count(revised, units, read_time_ms, precision_ms) * (hand_ms > 0),
        unreachable_count=unreachable_count,
        checkpoint_damage=checkpoint_damage(root, now_ms),
    )


def _as_opened(
    root: StoreRoot,
    wheel: WheelSlots,
    units: TimerUnits,
    begin: int,
    commit_log: SegmentReader,
    crash: LastFlush | None,
) -> tuple[WheelSlots, TimerUnits, int]:
    """Slots, units, and the position from which units are applied: after a crash of ours no slot
    counts but by the units that an opening keeps.
    """
    if crash is None or not crash.is_ours:
        return wheel, units, begin
    return NO_SLOTS, kept_units(root, units, commit_log, crash), 0


def _heeded_from_ms(flush: LastFlush, now_ms: int, after_crash: bool) -> int:
    """Before which time a delete marker without a unit has no effect: our engines heed any."""
    return 0 if after_crash and flush.is_ours else now_ms


def _first_applied(
    log: SegmentReader,
    wheel: WheelSlots,
    checkpoint: TimerCheckpoint,
    crash: LastFlush | None,
    *,
    whole_log: bool,
) -> int:
    """The position from which a broker applies units. After a crash of ours all count, as for an
    opening, which refuses a row with gaps. Raises SourceError.
    """
    if crash is not None and crash.is_ours:
        require_appendable(log.segments, TIMER_LOG_FILE_BYTES)
        return 0
    flushed = wheel.log_position or checkpoint.flush_position
    return 0 if whole_log else max(0, flushed - log.file_bytes)


def _deliverable_count(root: StoreRoot, undone: PendingTimers) -> int:
    """How many of these are messages of which it is not noted that nobody can deliver them."""
    lost, undone = LostMessages(root).all(), undone.rows(~undone.is_marker)
    noted = [each.commit_log_offset for each in lost]
    return int((~np.isin(undone.commit_log_offset, noted)).sum())


def _unlinked_count(alone: Int64Array, timers: PendingTimers, log_begin: int) -> int:
    """How many records nothing leads to; retention takes messages that are due."""
    return len(np.setdiff1d(alone[alone >= log_begin], timers.commit_log_offset))


def _cut_slot_count(
    wheel: WheelSlots, units: TimerUnits, read_time_ms: int, precision_ms: int
) -> int:
    """How many slots to come begin where the timer log has no unit any more."""
    first = _asked(wheel, read_time_ms, LONG_MAX, precision_ms)["first_position"].astype(np.int64)
    is_lost = (first >= 0) & (first < units.end_position) & (units.index_at(first) < 0)
    return int(is_lost.sum())


def _lost_log_bytes(
    checkpoint: TimerCheckpoint, units: TimerUnits, file_bytes: int, crash: LastFlush | None
) -> int:
    """How many bytes of a timer log were lost; none after a crash of ours, when an opening makes
    them again. A flush may end at a blank.
    """
    if crash is not None and crash.is_ours:
        return 0
    lost_bytes = checkpoint.flush_position - units.end_position
    is_blank = file_bytes and checkpoint.flush_position % file_bytes == 0
    is_blank = is_blank and lost_bytes < TIMER_UNIT.size + TIMER_BLANK.size
    return 0 if is_blank else max(0, lost_bytes)


def _read_hierarchy(root: StoreRoot, *, after_crash: bool) -> WheelState:
    from timer_wheel.reading.hierarchy_reader import read_hierarchy

    return read_hierarchy(root, after_crash=after_crash)


def _guessed(root: StoreRoot, units: TimerUnits, hand_ms: int) -> int:
    return guess_precision(units, all_slots(root), hand_ms=hand_ms)


def guess_precision(units: TimerUnits, wheel: WheelSlots = NO_SLOTS, *, hand_ms: int = 0) -> int:
    """The precision that a wheel was written with, which a broker stores nowhere: told by its
    slots, else by its units (``precision``). Where nothing tells it is the default.
    """
    at = units.index_at(wheel.slots["last_position"].astype(np.int64))
    times = np.full(len(at), -1, np.int64)
    times[at >= 0] = units.slot_time_ms[at[at >= 0]]
    told = precision_of_slots(wheel.slots, times, hand_ms)
    return told or precision_of_units(units, hand_ms) or DEFAULT_PRECISION_MS


def _placed(
    wheel: WheelSlots, units: TimerUnits, read_time_ms: int, precision_ms: int
) -> tuple[PendingTimers, Int64Array, Int64Array]:
    """What the hand will find, slot by slot; the positions at which two chains meet; and where the
    records are of units in slots to come that are in no chain.
    """
    placed, chains = _in_slots(wheel, units, read_time_ms, LONG_MAX, precision_ms)
    is_alone = units.slot_time_ms >= read_time_ms
    is_alone[chains.unit_indexes] = False
    alone = units.units["commit_log_offset"][is_alone].astype(np.int64)
    return placed, units.positions[chains.met[chains.met >= 0]], alone


def _asked(wheel: WheelSlots, from_ms: int, to_ms: int, precision_ms: int) -> NDArray[np.void]:
    """The slots from one time up to another, which stand where they belong."""
    time_units = wheel.slots["time_units"]
    is_asked = (time_units % WHEEL_SLOTS == wheel.index) & (time_units < to_ms // precision_ms)
    chosen: NDArray[np.void] = wheel.slots[
        is_asked & (time_units >= max(1, from_ms // precision_ms))
    ]
    return chosen


def _in_slots(
    wheel: WheelSlots, units: TimerUnits, from_ms: int, to_ms: int, precision_ms: int
) -> tuple[PendingTimers, Chains]:
    """What lies in the slots from one time up to another, slot by slot, and their chains."""
    used = _asked(wheel, from_ms, to_ms, precision_ms)
    used = used[np.argsort(used["time_units"], kind="stable")]
    chains = walk_chains(
        units.index_at(used["last_position"]),
        units.index_at(units.units["previous_position"].astype(np.int64)),
    )
    chosen = units.units[chains.unit_indexes]
    placed = PendingTimers(
        position=units.positions[chains.unit_indexes],
        queue_offset=np.full(len(chosen), -1, np.int64),
        slot_time_ms=np.repeat(used["time_units"] * precision_ms, chains.lengths),
        flags=chosen["magic"].astype(np.int64),
        commit_log_offset=chosen["commit_log_offset"].astype(np.int64),
        size_bytes=chosen["record_size_bytes"].astype(np.int64),
    )
    return placed, chains
