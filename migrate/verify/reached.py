# SPDX-License-Identifier: Apache-2.0
"""What a walk over the wheel reached, as entries in the order of the log: one for each time that
a broker would deliver a record.
"""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.cache import kernel
from message_store.kernels.raw_memory import (
    address_of,
    load_i32,
    load_i64,
    store_i32,
    store_i64,
)
from message_store.reading.consume_queue import QueueEntries
from migrate.verify.entries import TARGET_ENTRY
from timer_wheel.format.timer_log import TIMER_UNIT, TimerUnits

END = -1
"""Where a chain ends."""
NOWHERE = -2
"""A position at which no unit begins."""

_SPARE_STEPS = 1 << 16


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], uint8[::1])")
def _walk(
    last: Any, previous: Any, units: Any, slots: Any, steps: Any, first: Any, broken: Any
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
    ``broken``: it leads to no unit, or not backwards, or all chains together have no end.
    """

    units: NDArray[np.int64]
    slots: NDArray[np.int64]
    steps: NDArray[np.int64]
    first: NDArray[np.int64]
    broken: NDArray[np.bool_]


def walk_chains(last: NDArray[np.int64], previous: NDArray[np.int64]) -> Walk:
    """Walk from the unit numbers ``last`` (one a slot) along ``previous`` (one a unit).

    ``END`` and ``NOWHERE`` stand for what is no unit. Chains that share units are walked each, up
    to a bound.
    """
    room = 2 * len(previous) + _SPARE_STEPS
    units, slots = np.empty(room, np.int64), np.empty(room, np.int64)
    steps, first = np.zeros(len(last), np.int64), np.full(len(last), NOWHERE, np.int64)
    broken = np.zeros(len(last), np.uint8)
    done = _walk(
        np.ascontiguousarray(last),
        np.ascontiguousarray(previous),
        units,
        slots,
        steps,
        first,
        broken,
    )
    return Walk(units[:done], slots[:done], steps, first, broken.astype(bool))


_UNIT_BYTES = TIMER_UNIT.size
_UNIT_LOG_OFFSET = TIMER_UNIT.offset_of("commit_log_offset")
_UNIT_SIZE = TIMER_UNIT.offset_of("record_size_bytes")
_UNIT_FLAGS = TIMER_UNIT.offset_of("magic")
_UNIT_HASH = TIMER_UNIT.offset_of("topic_hash")
_QUEUE_BYTES = QUEUE_UNIT.size
_QUEUE_TAGS_CODE = QUEUE_UNIT.offset_of("tags_code")
_ENTRY_BYTES = TARGET_ENTRY.size
_ENTRY_LOG_OFFSET = TARGET_ENTRY.offset_of("commit_log_offset")
_ENTRY_SIZE = TARGET_ENTRY.offset_of("size_bytes")
_ENTRY_FLAGS = TARGET_ENTRY.offset_of("flags")
_ENTRY_QUEUE_OFFSET = TARGET_ENTRY.offset_of("queue_offset")
_ENTRY_SLOT_TIME = TARGET_ENTRY.offset_of("slot_time_ms")
_ENTRY_TAGS_CODE = TARGET_ENTRY.offset_of("tags_code")
_ENTRY_HASH = TARGET_ENTRY.offset_of("topic_hash")


@kernel("void(int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64)")
def _fill(
    units: int, queue: int, reached: Any, numbers: Any, slots: Any, times_ms: Any, entries: int
) -> None:
    for row in range(len(reached)):
        unit = units + reached[row] * _UNIT_BYTES
        entry = entries + row * _ENTRY_BYTES
        tags_code = np.int64(0)
        if numbers[row] >= 0:
            tags_code = load_i64(queue + numbers[row] * _QUEUE_BYTES + _QUEUE_TAGS_CODE)
        store_i64(entry + _ENTRY_LOG_OFFSET, load_i64(unit + _UNIT_LOG_OFFSET))
        store_i32(entry + _ENTRY_SIZE, load_i32(unit + _UNIT_SIZE))
        store_i32(entry + _ENTRY_FLAGS, load_i32(unit + _UNIT_FLAGS))
        store_i64(entry + _ENTRY_QUEUE_OFFSET, numbers[row])
        store_i64(entry + _ENTRY_SLOT_TIME, times_ms[slots[row]])
        store_i64(entry + _ENTRY_TAGS_CODE, tags_code)
        store_i32(entry + _ENTRY_HASH, load_i32(unit + _UNIT_HASH))


def reached_entries(
    walk: Walk, slot_times_ms: NDArray[np.int64], units: TimerUnits, queue: QueueEntries
) -> NDArray[np.void]:
    """Rows of TARGET_ENTRY in the order of the log; a unit reached twice has two."""
    offsets = units.units["commit_log_offset"].astype(np.int64)
    reached, slots = _in_log_order(walk, offsets)
    numbers = _queue_numbers(offsets, reached, queue)
    entries = np.empty(len(reached), TARGET_ENTRY.dtype)
    unit_rows, queue_rows = (np.ascontiguousarray(rows) for rows in (units.units, queue.units))
    _fill(
        address_of(unit_rows),
        address_of(queue_rows),
        reached,
        numbers,
        slots,
        slot_times_ms,
        address_of(entries),
    )
    return entries


def _in_log_order(
    walk: Walk, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The units that were reached, as often as they were, and from which slot."""
    slot_of = np.full(len(offsets), -1, np.int64)
    slot_of[walk.units] = walk.slots
    each_once = len(walk.units) == len(offsets) and bool((slot_of >= 0).all())
    if each_once and bool((offsets[1:] > offsets[:-1]).all()):
        return np.arange(len(offsets)), slot_of
    order = np.argsort(offsets[walk.units], kind="stable")
    return walk.units[order], walk.slots[order]


def _queue_numbers(
    offsets: NDArray[np.int64], reached: NDArray[np.int64], queue: QueueEntries
) -> NDArray[np.int64]:
    """The number of the queue entry of each unit's record; -1 where none leads to it."""
    known = queue.commit_log_offset
    if np.array_equal(known, offsets):
        return reached
    if not len(known):
        return np.full(len(reached), -1, np.int64)
    wanted = offsets[reached]
    order = np.argsort(known, kind="stable")
    places = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
    return np.where(known[order[places]] == wanted, order[places], -1)
