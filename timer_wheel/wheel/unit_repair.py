# SPDX-License-Identifier: Apache-2.0
"""Puts right a unit of the timer log of which a bit was flipped: something else knows better.

That is its record, the queue, or the order of the units. Slots begin at multiples of their width,
or one millisecond behind one for what was overdue. No single bit of a delay or a placing time leads
from one multiple to another: the times alone tell which records to read. A delete marker that has
lost its flag looks like any message. The wheel file counts it the other way; at the latest a turn
reads its record. A unit that leads to no record has its entry in the queue. A link leads to the
last unit before it in its slot. Where it does not, one of the two may have lost its slot.
"""

from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from message_store.base.printable import counted
from message_store.columns.byte_column import Int64s
from message_store.files.notes import LostMessage
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import found_warning
from timer_wheel.format.timer_due import OVERDUE_MARK_MS
from timer_wheel.format.timer_log import FLAG_DELETE
from timer_wheel.format.wheel_file import WheelSlots
from timer_wheel.format.wheel_math import floor_ms, roll_slot_ms
from timer_wheel.timers.recall import why_damaged
from timer_wheel.timers.rows import Bools, TimerFacts, TimerRows
from timer_wheel.timers.unit_kernels import (
    DOUBTED,
    FLAGS,
    LINKS,
    LOG_OFFSET,
    MARKERS,
    OVERDUE,
    SIZE,
    TOPIC_HASH,
)
from timer_wheel.wheel.live_timers import LiveTimers
from timer_wheel.wheel.slots import LiveWheel

_MOST_DAMAGED = 16
"""Of units that are read together. A flipped bit is one unit's. Where more records are missing the
log is damaged, and looking for each takes long. A wheel file that tells more units otherwise is of
another time. A choice, not measured.
"""
_TIME_BITS = 64
_DELAY_BITS = 32
_MOST_DELAY_MS = 1 << 31
"""More than the 32 bits of a delay hold. No clock shows so early a time: a unit whose slot is
before it has lost its placing time.
"""

Times = tuple[int, int]
"""The placing time and the delay of a unit, in milliseconds."""


def mend_units(timers: LiveTimers, counts: Int64s, file: WheelSlots | None) -> int:
    """Put right what contradicts its record, among the units whose times, flags or links, or whose
    slots in the wheel file, give a reason to look; returns how many. ``counts`` is what ``revise``
    counted. Raises TargetError.
    """
    mended = 0
    slots = np.empty(0, np.int64) if file is None else timers.wheel.miscounted(file)
    if len(slots):
        rows, _ = timers.log.walk(timers.wheel, slots)
        mended += mend_flags(timers, rows, timers.facts(rows))
    told = _Told.of(timers, int(counts[LINKS]), file)
    if not (counts[DOUBTED] or counts[OVERDUE] or counts[MARKERS] or len(told.doubted)):
        return mended
    for rows in timers.log.all_units():
        off_ms = rows.slot_time_ms % timers.precision_ms
        is_ahead = rows.slot_time_ms >= timers.wheel.hand_ms
        doubted = is_ahead & (rows.is_marker | (off_ms == OVERDUE_MARK_MS))
        doubted |= (off_ms != 0) & (off_ms != OVERDUE_MARK_MS)
        doubted |= np.isin(rows.position, told.doubted)
        mended += _mend(timers, rows.rows(doubted), told)
    return mended


@attrs.frozen(eq=False)
class _Told:
    """What links and the wheel file tell of the slots of units otherwise than their own times.

    ``slots`` has for the position of a unit the slots that it may have been in, in units of the
    precision. ``doubted`` are the positions of all that may be in another slot than their own:
    these, and the ends of links that do not lead to the last unit before in the slot. Nothing but
    damage makes such links, and a process that was stopped while it put units away.
    """

    slots: Mapping[int, set[int]]
    doubted: Int64s

    @classmethod
    def of(cls, timers: LiveTimers, odd_links: int, file: WheelSlots | None) -> "_Told":
        """Of so many links that ``revise`` counted, and the file."""
        links = _odd_links(timers, odd_links)
        units, below, previous = links.T
        ends, theirs = np.concatenate([units, previous]), np.concatenate([previous, units])
        slots = _slots_at(timers, theirs)
        if file is not None:
            positions, its_slots = timers.wheel.told_otherwise(file)
            known = _slots_at(timers, positions)
            is_other = (known >= 0) & (known != its_slots)
            if is_other.sum() <= _MOST_DAMAGED:  # else the file is of another time
                ends = np.concatenate([ends, positions[is_other]])
                slots = np.concatenate([slots, its_slots[is_other]])
        known = _slots_at(timers, ends)
        is_other = (slots >= 0) & (known >= 0) & (slots != known)
        told: dict[int, set[int]] = {}
        for position, slot in zip(ends[is_other].tolist(), slots[is_other].tolist(), strict=True):
            told.setdefault(position, set()).add(slot)
        return cls(told, np.unique(np.concatenate([units, below, previous, ends[is_other]])))


def _odd_links(timers: LiveTimers, count: int) -> Int64s:
    """Units whose link does not lead to the last unit before them in their slot, a row each: where
    they are, where they should lead and where they do.
    """
    wheel, links = timers.wheel, np.empty((count, 3), np.int64)
    if count:
        timers.log.revise(LiveWheel(wheel.precision_ms, wheel.hand_ms), links)
    return links


def _slots_at(timers: LiveTimers, positions: Int64s) -> Int64s:
    """The slots of the units at these positions, in units of the precision; -1 where none is."""
    times = timers.log.slot_times_at(positions) if len(positions) else positions
    return np.where(times < 0, -1, times // timers.precision_ms)


def _mend(timers: LiveTimers, rows: TimerRows, told: _Told) -> int:
    if not len(rows):
        return 0
    rows, facts, mended = mend_places(timers, rows)
    mended += mend_flags(timers, rows, facts)
    misplaced = np.zeros(len(rows), bool)
    times_ms = rows.slot_time_ms
    was_put_away = times_ms % timers.precision_ms == OVERDUE_MARK_MS
    was_put_away &= (times_ms < timers.wheel.hand_ms) & (times_ms >= _MOST_DELAY_MS)
    asked = facts.is_fine & (times_ms != facts.out_ms) & ~was_put_away
    for row in np.flatnonzero(asked).tolist():
        unit = rows.rows(slice(row, row + 1))
        slots = told.slots.get(int(unit.position[0]), set())
        out_ms, store_ms = int(facts.out_ms[row]), int(facts.store_ms[row])
        times = _right_times(timers, unit, out_ms, store_ms, slots)
        if times is not None:
            write_ms, delay_ms = times
            timers.log.overwrite(int(unit.position[0]), write_time_ms=write_ms, delay_ms=delay_ms)
            mended += 1
        elif not unit.is_roll[0]:
            misplaced[row] = _slot(timers, unit.slot_time_ms) != _slot(timers, facts.out_ms[[row]])
    misplaced |= rows.table[TOPIC_HASH] != facts.topic_hash
    note_damaged_markers(timers, rows, facts, misplaced)
    return mended


def mend_places(
    timers: LiveTimers, rows: TimerRows, *, keys: bool = False
) -> tuple[TimerRows, TimerFacts, int]:
    """Let units whose records are not where they say have the place that the queue has for them;
    returns the rows, what their records say, and how many units did not. Raises TargetError.
    """
    facts = timers.facts(rows, keys=keys)
    found = right_places(timers, rows, facts)
    if not found:
        return rows, facts, 0
    rows = TimerRows(rows.table.copy())
    for row, (offset, size_bytes) in found.items():
        rows.table[LOG_OFFSET, row], rows.table[SIZE, row] = offset, size_bytes
        timers.log.overwrite(
            int(rows.position[row]), commit_log_offset=offset, record_size_bytes=size_bytes
        )
    return rows, timers.facts(rows, keys=keys), len(found)


def right_places(
    timers: LiveTimers, rows: TimerRows, facts: TimerFacts
) -> dict[int, tuple[int, int]]:
    """Where the records of some rows are that are not where their units say, and their sizes; none
    where so many are not that their log is damaged, and not their units.
    """
    bad = np.array(sorted(facts.problems), np.int64)
    bad = bad[rows.position[bad] >= 0]
    if len(bad) > _MOST_DAMAGED:
        return {}
    found = ((row, _place_nearby(timers, rows.rows(slice(row, row + 1)))) for row in bad.tolist())
    return {row: place for row, place in found if place is not None}


def _place_nearby(timers: LiveTimers, unit: TimerRows) -> tuple[int, int] | None:
    """The one entry of the queue that this unit was made for: at its place, with another size; or
    one bit away from its place, with its size.

    A unit that has its entry is right: its record is damaged. So may be one that leads to before
    the log: retention took its record, and its message has a younger one.
    """
    offset, size_bytes = int(unit.commit_log_offset[0]), int(unit.size_bytes[0])
    log = timers.store.log
    if offset < log.min_offset:
        return None
    if (its_bytes := _size_in_queue(timers, offset)) is not None:
        is_it = its_bytes != size_bytes and _fits(timers, unit, offset, its_bytes)
        return (offset, its_bytes) if is_it else None
    fitting = [
        other
        for other in _flipped(offset, _TIME_BITS)
        if log.min_offset <= other < log.end
        and _size_in_queue(timers, other) == size_bytes
        and _fits(timers, unit, other, size_bytes)
    ]
    return (fitting[0], size_bytes) if len(fitting) == 1 else None


def _size_in_queue(timers: LiveTimers, commit_log_offset: int) -> int | None:
    """The size of the record that an entry leads to, at this place; None where none does."""
    first = timers.queue.first_behind(commit_log_offset - 1)
    entry = timers.queue.units(first, first + 1)
    is_there = len(entry) > 0 and entry["commit_log_offset"][0] == commit_log_offset
    return int(entry["size_bytes"][0]) if is_there else None


def _fits(timers: LiveTimers, unit: TimerRows, offset: int, size_bytes: int) -> bool:
    """Whether the record at a place is one that this unit may have been made for."""
    its = TimerRows(unit.table.copy())
    its.table[LOG_OFFSET], its.table[SIZE] = offset, size_bytes
    facts = timers.facts(its)
    is_it = facts.is_fine & (facts.topic_hash == its.table[TOPIC_HASH])
    is_it &= facts.is_marker == its.is_marker
    is_it &= its.is_roll | (_slot(timers, facts.out_ms) <= _slot(timers, its.slot_time_ms))
    return bool(is_it.all())


def mend_links(timers: LiveTimers, count: int) -> int:
    """Let units lead to the last unit before them in their slot whose link is one bit away from
    that, or leads to no unit before them in their slot: of so many that ``revise`` counted. Returns
    how many. Raises TargetError.
    """
    links = _odd_links(timers, count)
    units, below, previous = links.T
    slots, others = _slots_at(timers, units), _slots_at(timers, previous)
    other = below ^ previous
    astray = (previous >= units) | (others != slots) & (previous >= timers.log.segments.min_offset)
    mended = links[(other & (other - 1) == 0) | astray]
    for position, right, _ in mended.tolist():
        timers.log.overwrite(position, previous_position=right)
    return len(mended)


def _slot(timers: LiveTimers, time_ms: Int64s) -> int:
    return int(time_ms[0]) // timers.precision_ms


def note_damaged_markers(
    timers: LiveTimers, rows: TimerRows, facts: TimerFacts, misplaced: Bools
) -> None:
    """Note the delete markers that are yet to be read and whose records are not what they were."""
    is_asked = rows.is_marker & (rows.slot_time_ms >= timers.wheel.hand_ms)
    is_asked &= rows.commit_log_offset >= timers.store.log.min_offset
    found = [
        LostMessage(int(rows.commit_log_offset[row]), why)
        for row in np.flatnonzero(is_asked).tolist()
        if (why := why_damaged(facts, row, is_in_place=not misplaced[row])) is not None
    ]
    if found:
        timers.lost.cancels.add(found)


def mend_flags(timers: LiveTimers, rows: TimerRows, facts: TimerFacts) -> int:
    """Let the units of these rows, and the rows, say what their records do: which are delete
    markers; returns how many did not. Raises TargetError.
    """
    mended = with_right_flags(rows, facts)
    write_flags(timers, mended)
    return len(mended)


def with_right_flags(rows: TimerRows, facts: TimerFacts) -> TimerRows:
    """Let the rows alone say so; returns those that did not, for ``write_flags``."""
    is_other = are_other_kinds(rows, facts)
    rows.table[FLAGS][is_other] ^= FLAG_DELETE
    return rows.rows(is_other)


def write_flags(timers: LiveTimers, rows: TimerRows) -> None:
    """Give units the flags of their rows. Raises TargetError."""
    for position, flags in zip(rows.position.tolist(), rows.table[FLAGS].tolist(), strict=True):
        timers.log.overwrite(position, magic=flags)


def are_other_kinds(rows: TimerRows, facts: TimerFacts) -> Bools:
    """Units that wrongly say or deny a delete marker; a damaged delete marker is no message."""
    is_it: Bools = facts.is_fine & (facts.is_marker != rows.is_marker)
    return is_it & ~(rows.is_marker & facts.is_odd_marker)


def _right_times(
    timers: LiveTimers, unit: TimerRows, out_ms: int, store_ms: int, slots: set[int]
) -> Times | None:
    """Placing time and delay, one flipped bit away, that fit the record; None if they are right, or
    nothing fits. ``slots`` are those that something else tells of the unit. Where the record names
    one of them, they are two witnesses against the unit.
    """
    slot_ms, write_ms = int(unit.slot_time_ms[0]), int(unit.write_time_ms[0])
    delay_ms, width_ms = slot_ms - write_ms, timers.precision_ms
    one_bit = [*_with_one_bit(write_ms, delay_ms)]
    placed_ms = floor_ms(store_ms, width_ms)
    is_whole = slot_ms % width_ms in (0, OVERDUE_MARK_MS)
    if unit.is_roll[0]:
        has_hole = slot_ms < _MOST_DELAY_MS or delay_ms == 0
        if is_whole and not has_hole:
            return None
        # It may be in any slot before its own.
        its = [each * width_ms for each in sorted(slots) if each <= out_ms // width_ms]
        ways = [way for way in one_bit if way[0] % width_ms == 0 and sum(way) in its]
        ways = ways or [(placed_ms, each - placed_ms) for each in its[-1:]]
        if not ways and write_ms % width_ms != 0:
            ways = [way for way in one_bit if way[0] % width_ms == 0]
        begin_ms = placed_ms if has_hole else write_ms
        parked_ms = int(roll_slot_ms(out_ms, begin_ms, width_ms, timers.window_slots))
        ways = ways or [(begin_ms, min(parked_ms, floor_ms(out_ms, width_ms)) - begin_ms)]
    else:
        ways = [way for way in one_bit if sum(way) == out_ms]
        if not ways and out_ms // width_ms in slots:
            ways = [(placed_ms, out_ms - placed_ms)]
        if not ways and not is_whole:
            # It was put into a slot that was over then, or was due at once on an older wheel.
            ways = [
                (write, delay)
                for write, delay in one_bit
                if write % width_ms == 0 and (write + delay) % width_ms == OVERDUE_MARK_MS
            ]
    ways = [way for way in ways if abs(way[1]) < _MOST_DELAY_MS]
    return min(ways, key=lambda way: (abs(way[0] - store_ms), abs(way[1])), default=None)


def _with_one_bit(write_ms: int, delay_ms: int) -> Iterator[Times]:
    """Placing times and delays that differ from these in one bit."""
    for each in _flipped(delay_ms, _DELAY_BITS):
        yield write_ms, each
    for each in _flipped(write_ms, _TIME_BITS):
        yield each, delay_ms


def _flipped(number: int, bits: int) -> Iterator[int]:
    """The numbers of so many bits, with a sign, that differ from one in one bit."""
    half = 1 << (bits - 1)
    return (((number ^ 1 << bit) + half) % (2 * half) - half for bit in range(bits))


def has_doubtful_units(timers: LiveTimers, rows: TimerRows) -> bool:
    """Whether a unit among these that do not roll looks as if it had lost the flag that says so, or
    has a time that no slot begins at: its record has to be read before it is believed.
    """
    delay_ms = rows.slot_time_ms - rows.write_time_ms
    window = timers.window_slots
    is_parked = delay_ms == window * timers.precision_ms
    is_parked |= delay_ms == window // 2 * timers.precision_ms
    return bool((is_parked | (rows.slot_time_ms % timers.precision_ms != 0)).any())


def repair_finding(count: int) -> Finding:
    """What to say of units that were put right."""
    units = counted(count, "unit contradicts its record", "units contradict their records")
    return found_warning(
        "timerlog",
        f"{units}: a bit was another, or a killed broker placed it twice",
        "a broker believes the unit: its message comes early or late, or never",
        "none is needed: the record is believed; look at the disk",
    )
