# SPDX-License-Identifier: Apache-2.0
"""The fast form of ``SlotsOfWheel.put_slot`` and ``revise_slot``: kernels that place and revise.

The wheel is the bytes of its file, in memory; a page of it that was changed is noted. Whoever calls
has made sure that every address leads to as many bytes as are said to be there.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.raw_memory import load_i32, load_i64, store_i32, store_i64
from timer_wheel.format.timer_due import FINEST_MS, OVERDUE_MARK_MS
from timer_wheel.format.timer_log import FLAG_DELETE, FLAG_ROLL, NO_POSITION, TIMER_UNIT
from timer_wheel.format.wheel_file import SLOT
from timer_wheel.format.wheel_math import WHEEL_SLOTS

Int64s = NDArray[np.int64]

POSITION, SLOT_TIME, WRITE_TIME, FLAGS, LOG_OFFSET, SIZE, TOPIC_HASH = range(7)
ROW_COLUMNS = 7
"""What a row of the timer log says, its chain apart; int64 all."""

PAGE_BYTES = 4096

MARKERS, OVERDUE, ROLLS, DOUBTED, FALLS, LINKS, NEWEST = range(7)
"""What ``revise_wheel`` counts: delete markers that are yet to be read, what was due when it was
stored and is yet to be read, and units, old and new, that were to roll, or have a time at which no
slot begins, or whose records do not lie behind that of the unit before; and units whose link does
not lead to the last unit before them in their slot. ``NEWEST`` is no count: where the record of the
last unit lies, so that the next file goes on from there.
"""
COUNTS = 7

_UNIT = TIMER_UNIT.size
_AT_SIZE = TIMER_UNIT.offset_of("size_bytes")
_AT_PREVIOUS = TIMER_UNIT.offset_of("previous_position")
_AT_MAGIC = TIMER_UNIT.offset_of("magic")
_AT_WRITE_TIME = TIMER_UNIT.offset_of("write_time_ms")
_AT_DELAY = TIMER_UNIT.offset_of("delay_ms")
_AT_LOG_OFFSET = TIMER_UNIT.offset_of("commit_log_offset")
_AT_RECORD_SIZE = TIMER_UNIT.offset_of("record_size_bytes")
_AT_TOPIC_HASH = TIMER_UNIT.offset_of("topic_hash")
_AT_RESERVED = TIMER_UNIT.offset_of("reserved")
_SLOT = SLOT.size
_AT_TIME = SLOT.offset_of("time_units")
_AT_FIRST = SLOT.offset_of("first_position")
_AT_LAST = SLOT.offset_of("last_position")
_AT_COUNT = SLOT.offset_of("unit_count")
_AT_SLOT_MAGIC = SLOT.offset_of("magic")
_UNKNOWN_FLAGS = ~0xF
_HASH_BITS = 0xFFFFFFFF


@inline_kernel
def _is_unit(unit: int) -> bool:
    if load_i32(unit + _AT_SIZE) != _UNIT:
        return False
    return bool(load_i32(unit + _AT_MAGIC) & _UNKNOWN_FLAGS == 0)


@inline_kernel
def _slot_time(unit: int) -> int:
    return load_i64(unit + _AT_WRITE_TIME) + load_i32(unit + _AT_DELAY)  # type: ignore[no-any-return]


@inline_kernel
def _hang(wheel: int, dirty: Any, slot: int, hand: int, position: int, flags: int) -> int:
    """Make a unit the last of its slot; returns the previous unit's position, or -1. ``slot`` and
    ``hand`` are times in units of the precision. A slot before the hand is over, and one of another
    time is free. A unit before the hand never ousts a slot that is yet to be read.
    """
    index = slot % WHEEL_SLOTS
    place = wheel + index * _SLOT
    if slot < hand and load_i64(place + _AT_TIME) >= hand:
        return NO_POSITION
    dirty[index * _SLOT // PAGE_BYTES] = 1
    weight = -1 if flags & FLAG_DELETE else 1
    if slot >= hand and load_i64(place + _AT_TIME) == slot:
        before = load_i64(place + _AT_LAST)
        store_i64(place + _AT_LAST, position)
        store_i32(place + _AT_COUNT, load_i32(place + _AT_COUNT) + weight)
        return before  # type: ignore[no-any-return]
    store_i64(place + _AT_TIME, slot)
    store_i64(place + _AT_FIRST, position)
    store_i64(place + _AT_LAST, position)
    store_i32(place + _AT_COUNT, weight)
    store_i32(place + _AT_SLOT_MAGIC, 0)
    return NO_POSITION


@kernel("void(int64[:, ::1], int64, int64, uint8[::1], int64, int64, int64)")
def place_units(
    rows: Any, wheel: int, target: int, dirty: Any, precision_ms: int, hand_ms: int, first: int
) -> None:
    """Append rows to the chains of their slots in order, and write their units to ``target``.

    ``rows`` is int64, ROW_COLUMNS by messages. Written are those from column ``first`` on, as far
    as their positions follow each other. ``wheel`` is the address of the wheel's bytes, ``dirty``
    has an element for each of its pages. RocketMQ: TimerMessageStore#doEnqueue (5.5.0).
    """
    hand = hand_ms // precision_ms
    unit = target
    for row in range(first, rows.shape[1]):
        position = rows[POSITION, row]
        if row > first and position != rows[POSITION, row - 1] + _UNIT:
            break
        flags = rows[FLAGS, row]
        slot = rows[SLOT_TIME, row] // precision_ms
        before = _hang(wheel, dirty, slot, hand, position, flags)
        store_i32(unit + _AT_SIZE, _UNIT)
        store_i64(unit + _AT_PREVIOUS, before)
        store_i32(unit + _AT_MAGIC, flags)
        store_i64(unit + _AT_WRITE_TIME, rows[WRITE_TIME, row])
        store_i32(unit + _AT_DELAY, rows[SLOT_TIME, row] - rows[WRITE_TIME, row])
        store_i64(unit + _AT_LOG_OFFSET, rows[LOG_OFFSET, row])
        store_i32(unit + _AT_RECORD_SIZE, rows[SIZE, row])
        store_i32(unit + _AT_TOPIC_HASH, rows[TOPIC_HASH, row])
        store_i64(unit + _AT_RESERVED, 0)
        unit += _UNIT


@kernel("int64(int64, int64)")
def count_units(units: int, room: int) -> int:
    """How many units stand one behind another at the beginning of ``room`` places."""
    for index in range(room):
        if not _is_unit(units + index * _UNIT):
            return index
    return room


@kernel("void(int64, int64, int64, int64, uint8[::1], int64, int64, int64[::1], int64[:, ::1])")
def revise_wheel(
    units: int,
    count: int,
    position: int,
    wheel: int,
    dirty: Any,
    precision_ms: int,
    hand_ms: int,
    counts: Int64s,
    odd_links: Any,
) -> None:
    """Hang the units of a file, the first of which has this position, on a wheel in their order.

    What the hand has passed is left out. ``odd_links`` gets the positions of the first units that
    are counted under LINKS, where they should lead and where they do, as many as it has room for.
    """
    hand = hand_ms // precision_ms
    for index in range(count):
        unit = units + index * _UNIT
        time_ms = _slot_time(unit)
        slot = time_ms // precision_ms
        flags = load_i32(unit + _AT_MAGIC)
        log_offset = load_i64(unit + _AT_LOG_OFFSET)
        counts[FALLS] += log_offset <= counts[NEWEST]
        counts[NEWEST] = log_offset
        counts[ROLLS] += flags & FLAG_ROLL != 0
        behind_ms = time_ms % precision_ms
        counts[DOUBTED] += behind_ms != 0 and behind_ms != OVERDUE_MARK_MS
        if slot >= hand:
            place = position + index * _UNIT
            below = _hang(wheel, dirty, slot, hand, place, flags)
            previous = load_i64(unit + _AT_PREVIOUS)
            if previous != below:
                if counts[LINKS] < len(odd_links):
                    odd_links[counts[LINKS], 0] = place
                    odd_links[counts[LINKS], 1] = below
                    odd_links[counts[LINKS], 2] = previous
                counts[LINKS] += 1
            counts[MARKERS] += flags & FLAG_DELETE != 0
            counts[OVERDUE] += time_ms % FINEST_MS == OVERDUE_MARK_MS


@inline_kernel
def _unit_at(position: int, files: Any, start: int, end: int, file_bytes: int) -> int:
    """Where in memory the unit of this position lies; -1 where no unit can be."""
    if position < start or position >= end:
        return -1
    within = position % file_bytes
    if within % _UNIT or within + _UNIT > file_bytes:
        return -1
    address = files[(position - start) // file_bytes]
    if address < 0 or not _is_unit(address + within):
        return -1
    return int(address + within)


@inline_kernel
def _read(unit: int, position: int, rows: Any, row: int) -> None:
    rows[POSITION, row] = position
    rows[SLOT_TIME, row] = _slot_time(unit)
    rows[WRITE_TIME, row] = load_i64(unit + _AT_WRITE_TIME)
    rows[FLAGS, row] = load_i32(unit + _AT_MAGIC)
    rows[LOG_OFFSET, row] = load_i64(unit + _AT_LOG_OFFSET)
    rows[SIZE, row] = load_i32(unit + _AT_RECORD_SIZE)
    rows[TOPIC_HASH, row] = load_i32(unit + _AT_TOPIC_HASH)


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64, int64, int64, int64, int64, int64[::1],"
    " int64[::1], int64[:, ::1])"
)
def walk_slots(
    heads: Int64s,
    slots: Int64s,
    files: Int64s,
    start: int,
    end: int,
    file_bytes: int,
    precision_ms: int,
    known: int,
    lengths: Int64s,
    stops: Int64s,
    rows: Any,
) -> int:
    """Walk chains from their last units backwards; slot after slot, each in order of placing.

    They end before the unit at the position ``known``; ``stops`` gets where each has ended.

    ``slots`` are their times in units of the precision; ``files`` says where in memory each file of
    the timer log lies, the first of which begins at ``start``. A link that leads forwards, nowhere,
    or to the unit of another slot ends its chain. Called twice: with ``rows`` without room to fill
    ``lengths``, then with room for all of them. Returns how many links led astray.
    """
    wants_rows = rows.shape[1] > 0
    place, astray = 0, 0
    for chain in range(len(heads)):
        position, length = heads[chain], 0
        place += lengths[chain] if wants_rows else 0
        while position != NO_POSITION and position != known:
            unit = _unit_at(position, files, start, end, file_bytes)
            if unit < 0 or _slot_time(unit) // precision_ms != slots[chain]:
                astray += 1
                break
            length += 1
            if wants_rows:
                _read(unit, position, rows, place - length)
            before = load_i64(unit + _AT_PREVIOUS)
            if before >= position:
                astray += 1
                break
            position = before
        stops[chain] = position
        if not wants_rows:
            lengths[chain] = length
    return astray


def may_be_of_topic(unit_hash: Any, topic_hash: int) -> Any:
    """Whether a unit with this hash may be of a topic with that: one bit of it may have been
    flipped. The record tells.

    >>> may_be_of_topic(-2147483644, 4), may_be_of_topic(5, 4), may_be_of_topic(7, 4)
    (True, True, False)
    """
    other = (unit_hash ^ topic_hash) & _HASH_BITS
    return other & (other - 1) == 0


_may_be_of_topic = inline_kernel(may_be_of_topic)


@kernel("int64(int64, int64, int64, boolean, int64, int64, int64, int64, int64[:, ::1])")
def scan_units(
    units: int,
    count: int,
    position: int,
    is_any: bool,
    topic_hash: int,
    first_ms: int,
    last_ms: int,
    flags: int,
    rows: Any,
) -> int:
    """Find units of a topic, or of any, in a file by the time of their slot or by their flags.

    Found is what has a slot time from ``first_ms`` to ``last_ms``, or one of ``flags``, or a time
    that says that it was overdue. Returns how many there are; ``rows`` gets as many as it has room
    for.
    """
    found = 0
    for index in range(count):
        unit = units + index * _UNIT
        if not is_any and not _may_be_of_topic(load_i32(unit + _AT_TOPIC_HASH), topic_hash):
            continue
        time_ms = _slot_time(unit)
        is_it = first_ms <= time_ms <= last_ms or load_i32(unit + _AT_MAGIC) & flags != 0
        if is_it or time_ms % FINEST_MS == OVERDUE_MARK_MS:
            if found < rows.shape[1]:
                _read(unit, position + index * _UNIT, rows, found)
            found += 1
    return found
