# SPDX-License-Identifier: Apache-2.0
"""A walk over all chains of the wheel, and the entries that it reached, in the order of the log.

A record has an entry for each time that a broker would deliver it.
"""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.files.array_room import as_type, new_array, row_blocks, zero_array
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.cache import kernel
from message_store.kernels.raw_memory import address_of, load_i32, load_i64, store_i32, store_i64
from message_store.reading.consume_queue import QueueEntries
from migrate.verify.digests.entries import TARGET_ENTRY
from timer_wheel.format.timer_log import TIMER_UNIT, TimerUnits

END = -1
"""Where a chain ends."""
NOWHERE = -2
"""A position at which no unit begins."""
Indexes = NDArray[np.int64] | range
"""Of units or queue entries: a range where they are all, in order."""

_SPARE_STEPS = 1 << 16


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


_UNIT_OFFSET = TIMER_UNIT.offset_of("commit_log_offset")
_UNIT_SIZE = TIMER_UNIT.offset_of("record_size_bytes")
_UNIT_FLAGS = TIMER_UNIT.offset_of("magic")
_UNIT_TOPIC_HASH = TIMER_UNIT.offset_of("topic_hash")
_QUEUE_TAGS = QUEUE_UNIT.offset_of("tags_code")
_OFFSET = TARGET_ENTRY.offset_of("commit_log_offset")
_SIZE = TARGET_ENTRY.offset_of("size_bytes")
_FLAGS = TARGET_ENTRY.offset_of("flags")
_QUEUE_OFFSET = TARGET_ENTRY.offset_of("queue_offset")
_SLOT_TIME = TARGET_ENTRY.offset_of("slot_time_ms")
_TAGS = TARGET_ENTRY.offset_of("tags_code")
_TOPIC_HASH = TARGET_ENTRY.offset_of("topic_hash")
_UNIT_BYTES, _QUEUE_BYTES, _ENTRY_BYTES = TIMER_UNIT.size, QUEUE_UNIT.size, TARGET_ENTRY.size


@kernel("void(int64, int64, int64[::1], int64[::1], int64[::1], int64)")
def _fill(
    units: int, queue: int, reached: Any, numbers: Any, slot_times_ms: Any, entries: int
) -> None:
    """Rows of TARGET_ENTRY for the units ``reached``, with the queue entries of these numbers."""
    for row in range(len(reached)):
        unit, entry = units + reached[row] * _UNIT_BYTES, entries + row * _ENTRY_BYTES
        number = numbers[row]
        tags = load_i64(queue + number * _QUEUE_BYTES + _QUEUE_TAGS) if number >= 0 else 0
        store_i64(entry + _OFFSET, load_i64(unit + _UNIT_OFFSET))
        store_i32(entry + _SIZE, load_i32(unit + _UNIT_SIZE))
        store_i32(entry + _FLAGS, load_i32(unit + _UNIT_FLAGS))
        store_i64(entry + _QUEUE_OFFSET, number)
        store_i64(entry + _SLOT_TIME, slot_times_ms[row])
        store_i64(entry + _TAGS, tags)
        store_i32(entry + _TOPIC_HASH, load_i32(unit + _UNIT_TOPIC_HASH))


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
