# SPDX-License-Identifier: Apache-2.0
"""A walk over all chains of the wheel, and the entries that it reached, in the order of the log.

A record has an entry for each time that a broker would deliver it. Chains lead backwards, all over
the timer log, and where everything is right the walk tells nothing that the log itself does not.
So the log is first read from its front, which :func:`entries_in_order` does.
"""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.files.array_room import as_type, new_array, row_blocks, zero_array
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.raw_memory import address_of, load_i32, load_i64, store_i32, store_i64
from message_store.reading.consume_queue import QueueEntries
from migrate.verify.digests.entries import TARGET_ENTRY
from timer_wheel.format.timer_log import NO_POSITION, TIMER_UNIT, TimerUnits
from timer_wheel.format.wheel_math import WHEEL_SLOTS, slot_index

END = -1
"""Where a chain ends."""
NOWHERE = -2
"""A position at which no unit begins."""
Indexes = NDArray[np.int64] | range
"""Of units or queue entries: a range where they are all, in order."""

_SPARE_STEPS = 1 << 16


_UNIT_OFFSET = TIMER_UNIT.offset_of("commit_log_offset")
_UNIT_SIZE = TIMER_UNIT.offset_of("record_size_bytes")
_UNIT_FLAGS = TIMER_UNIT.offset_of("magic")
_UNIT_PREVIOUS = TIMER_UNIT.offset_of("previous_position")
_UNIT_WRITTEN = TIMER_UNIT.offset_of("write_time_ms")
_UNIT_DELAY = TIMER_UNIT.offset_of("delay_ms")
_UNIT_TOPIC_HASH = TIMER_UNIT.offset_of("topic_hash")
_QUEUE_OFFSET_OF_RECORD = QUEUE_UNIT.offset_of("commit_log_offset")
_QUEUE_TAGS = QUEUE_UNIT.offset_of("tags_code")
_OFFSET = TARGET_ENTRY.offset_of("commit_log_offset")
_SIZE = TARGET_ENTRY.offset_of("size_bytes")
_FLAGS = TARGET_ENTRY.offset_of("flags")
_QUEUE_OFFSET = TARGET_ENTRY.offset_of("queue_offset")
_SLOT_TIME = TARGET_ENTRY.offset_of("slot_time_ms")
_TAGS = TARGET_ENTRY.offset_of("tags_code")
_TOPIC_HASH = TARGET_ENTRY.offset_of("topic_hash")
_UNIT_BYTES, _QUEUE_BYTES, _ENTRY_BYTES = TIMER_UNIT.size, QUEUE_UNIT.size, TARGET_ENTRY.size


@inline_kernel
def _put(entry: int, unit: int, number: int, tags: int, slot_time_ms: int) -> None:
    """Fill a row of TARGET_ENTRY from its unit, and from what the queue and the slot say."""
    store_i64(entry + _OFFSET, load_i64(unit + _UNIT_OFFSET))
    store_i32(entry + _SIZE, load_i32(unit + _UNIT_SIZE))
    store_i32(entry + _FLAGS, load_i32(unit + _UNIT_FLAGS))
    store_i64(entry + _QUEUE_OFFSET, number)
    store_i64(entry + _SLOT_TIME, slot_time_ms)
    store_i64(entry + _TAGS, tags)
    store_i32(entry + _TOPIC_HASH, load_i32(unit + _UNIT_TOPIC_HASH))


@kernel(
    "int64(int64, int64, int64, int64, int64, int64, int32[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1], int64, int64)"
)
def _follow(
    units: int, queue: int, first: int, last: int, position: int, precision_ms: int, places: Any,
    slot_times_ms: Any, slot_firsts: Any, tails: Any, counts: Any, entries: int, log_offset: int,
) -> int:  # fmt: skip
    """Rows of TARGET_ENTRY for the units ``first`` to ``last``, which begin at ``position``.

    Returns the log offset of the last one; -1 as soon as one is not the next of its slot's chain,
    nor of its queue entry, or its record does not lie behind ``log_offset``. ``places`` is the slot
    at each place of the ring, ``tails`` and ``counts`` are the last unit of each slot so far, and
    how many it has.
    """
    for number in range(first, last):
        unit, entry = units + number * _UNIT_BYTES, entries + number * _ENTRY_BYTES
        time_ms = load_i64(unit + _UNIT_WRITTEN) + load_i32(unit + _UNIT_DELAY)
        slot = places[time_ms // precision_ms % WHEEL_SLOTS]
        if slot < 0 or slot_times_ms[slot] != time_ms:
            return -1
        if load_i64(unit + _UNIT_PREVIOUS) != tails[slot]:
            return -1
        if counts[slot] == 0 and slot_firsts[slot] != position:
            return -1
        tails[slot] = position
        counts[slot] += 1
        position += _UNIT_BYTES
        queued, offset = queue + number * _QUEUE_BYTES, load_i64(unit + _UNIT_OFFSET)
        if offset != load_i64(queued + _QUEUE_OFFSET_OF_RECORD) or offset <= log_offset:
            return -1
        log_offset = offset
        _put(entry, unit, number, load_i64(queued + _QUEUE_TAGS), time_ms)
    return log_offset


@attrs.frozen(eq=False)
class Slots:
    """The slots that a starting broker's hand will still reach, in the order of their time."""

    times_ms: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    counts: NDArray[np.int64]


def entries_in_order(
    slots: Slots, units: TimerUnits, queue: QueueEntries, precision_ms: int
) -> NDArray[np.void] | None:
    """Rows of TARGET_ENTRY, one a unit, where every chain has the units of its slot's time and no
    others, and each unit is of the queue entry of its number, in the order of the log.

    None where anything differs: only a walk tells what. What it would find wrong differs here.
    """
    if len(units) != len(queue) or not len(units):
        return None
    places = np.full(WHEEL_SLOTS, -1, np.int32)
    places[slot_index(slots.times_ms, precision_ms)] = np.arange(len(slots.times_ms))
    tails = np.full(len(slots.times_ms), NO_POSITION, np.int64)
    counts = np.zeros(len(tails), np.int64)
    entries = new_array(len(units), TARGET_ENTRY.dtype)
    where = address_of(units.units), address_of(queue.units)
    log_offset = -1
    for first, last, position in units.runs():
        log_offset = _follow(
            *where, first, last, position, precision_ms, places, slots.times_ms, slots.first,
            tails, counts, address_of(entries), log_offset,
        )  # fmt: skip
        if log_offset < 0:
            return None
    is_whole = (tails == slots.last) & (counts == slots.counts) & (counts > 0)
    return entries if is_whole.all() else None


# --- the walk -------------------------------------------------------------------------------------


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1], uint8[::1], int32[::1])"
)
def _walk(
    last: Any,
    previous: Any,
    units: Any,
    slots: Any,
    steps: Any,
    first: Any,
    broken: Any,
    visits: Any,
) -> int:
    done = 0
    for slot in range(len(last)):
        unit = last[slot]
        first[slot] = unit
        while unit >= 0:
            if done == len(units):
                broken[slot:] = 1
                return done
            units[done] = unit
            slots[done] = slot
            done += 1
            steps[slot] += 1
            visits[unit] += 1
            first[slot] = unit
            before = previous[unit]
            if before >= unit:
                before = NOWHERE
            unit = before
        broken[slot] = unit != END
    return done


@attrs.frozen(eq=False)
class Walk:
    """Every step of a walk over all slots.

    ``units[i]`` was reached from ``slots[i]``; a unit that two chains lead to is there twice. For
    each slot: ``steps`` taken, the ``first`` unit (the last one reached), and whether the chain was
    ``broken``: it leads to no unit, or not backwards, or all chains together have no end. For each
    unit, how often it was reached: ``visits``.
    """

    units: NDArray[np.int64]
    slots: NDArray[np.int64]
    steps: NDArray[np.int64]
    first: NDArray[np.int64]
    broken: NDArray[np.bool_]
    visits: NDArray[np.int32]


def walk_chains(last: NDArray[np.int64], previous: NDArray[np.int64]) -> Walk:
    """Walk the chain of every slot from its last unit to its first.

    ``last`` is int64[slots], ``previous`` int64[units]; both hold indexes of units, or ``END`` or
    ``NOWHERE``. Chains that share units are walked each, up to a bound.
    RocketMQ: TimerMessageStore#dequeue walks a slot in this order.
    """
    room = 2 * len(previous) + _SPARE_STEPS
    units, slots = new_array(room, np.int64), new_array(room, np.int64)
    steps, first = np.zeros(len(last), np.int64), np.full(len(last), NOWHERE, np.int64)
    broken = np.zeros(len(last), np.uint8)
    visits = zero_array(len(previous), np.int32)
    done = _walk(
        np.ascontiguousarray(last),
        np.ascontiguousarray(previous),
        units,
        slots,
        steps,
        first,
        broken,
        visits,
    )
    return Walk(units[:done], slots[:done], steps, first, broken.astype(bool), visits)


@kernel("void(int64, int64, int64[::1], int64[::1], int64[::1], int64)")
def _fill(
    units: int, queue: int, reached: Any, numbers: Any, slot_times_ms: Any, entries: int
) -> None:
    """Rows of TARGET_ENTRY for the units ``reached``, with the queue entries of these numbers."""
    for row in range(len(reached)):
        unit, entry = units + reached[row] * _UNIT_BYTES, entries + row * _ENTRY_BYTES
        number = numbers[row]
        tags = load_i64(queue + number * _QUEUE_BYTES + _QUEUE_TAGS) if number >= 0 else 0
        _put(entry, unit, number, tags, slot_times_ms[row])


def reached_entries(
    walk: Walk, slot_times_ms: NDArray[np.int64], units: TimerUnits, queue: QueueEntries
) -> NDArray[np.void]:
    """Rows of TARGET_ENTRY in the order of the log; a unit that is reached twice has two.

    ``slot_times_ms`` is int64[slots], the times of the slots that were walked.
    """
    offsets = as_type(units.units["commit_log_offset"], np.int64)
    reached, slots = _in_log_order(walk, offsets)
    numbers = _queue_numbers(offsets, reached, queue)
    entries = new_array(len(slots), TARGET_ENTRY.dtype)
    if not len(slots):
        return entries
    where = address_of(units.units), address_of(queue.units) if len(queue) else 0
    for rows in row_blocks(len(slots)):
        _fill(
            *where,
            _picked(reached, rows),
            _picked(numbers, rows),
            slot_times_ms[slots[rows]],
            address_of(entries[rows]),
        )
    return entries


def _picked(indexes: Indexes, rows: slice) -> NDArray[np.int64]:
    """Some of the indexes, as an array."""
    part = indexes[rows]
    return np.arange(part.start, part.stop) if isinstance(part, range) else part


def _in_log_order(walk: Walk, offsets: NDArray[np.int64]) -> tuple[Indexes, NDArray[np.int64]]:
    """The units that were reached, as often as they were, and from which slot."""
    slot_of = new_array(len(offsets), np.int64)
    slot_of[:] = -1
    slot_of[walk.units] = walk.slots
    each_once = len(walk.units) == len(offsets) and bool((slot_of >= 0).all())
    if each_once and bool((offsets[1:] > offsets[:-1]).all()):
        return range(len(offsets)), slot_of
    order = np.argsort(offsets[walk.units], kind="stable")
    return walk.units[order], walk.slots[order]


def _queue_numbers(offsets: NDArray[np.int64], reached: Indexes, queue: QueueEntries) -> Indexes:
    """The number of the queue entry of each unit's record; -1 where none leads to it."""
    units = queue.units["commit_log_offset"]
    if len(units) == len(offsets) and all(
        np.array_equal(units[rows], offsets[rows]) for rows in row_blocks(len(offsets))
    ):
        return reached
    if not len(units):
        return np.full(len(reached), -1, np.int64)
    queued, wanted = queue.commit_log_offset, offsets[_picked(reached, slice(None))]
    order = np.argsort(queued, kind="stable")
    indexes = np.minimum(np.searchsorted(queued[order], wanted), len(queued) - 1)
    return np.where(queued[order[indexes]] == wanted, order[indexes], -1)
