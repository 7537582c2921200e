# SPDX-License-Identifier: Apache-2.0
"""A walk over all chains of the wheel, and the entries that it reached, in the order of the log.

A record has an entry for each time that a broker would deliver it.
"""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.files.array_room import as_type, new_array, row_blocks, zero_array
from message_store.kernels.cache import kernel
from message_store.reading.consume_queue import QueueEntries
from migrate.verify.digests.entries import TARGET_ENTRY
from timer_wheel.format.timer_log import TimerUnits

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


def reached_entries(
    walk: Walk, slot_times_ms: NDArray[np.int64], units: TimerUnits, queue: QueueEntries
) -> NDArray[np.void]:
    """Rows of TARGET_ENTRY in the order of the log; a unit that is reached twice has two.

    ``slot_times_ms`` is int64[slots], the times of the slots that were walked.
    """
    offsets = as_type(units.units["commit_log_offset"], np.int64)
    reached, slots = _in_log_order(walk, offsets)
    numbers = _queue_numbers(offsets, reached, queue)
    entries = zero_array(len(slots), TARGET_ENTRY.dtype)
    for rows in row_blocks(len(slots)):
        block = entries[rows]
        there = units.units[rows if isinstance(reached, range) else reached[rows]]
        block["commit_log_offset"] = there["commit_log_offset"]
        block["size_bytes"] = there["record_size_bytes"]
        block["flags"] = there["magic"]
        block["slot_time_ms"] = slot_times_ms[slots[rows]]
        block["topic_hash"] = there["topic_hash"]
        fill_from_queue(block, _picked(numbers, rows), queue)
    return entries


def fill_from_queue(
    entries: NDArray[np.void], numbers: NDArray[np.int64], queue: QueueEntries
) -> None:
    """Fill in what the queue entries of these numbers say of rows of TARGET_ENTRY; -1: no entry."""
    entries["queue_offset"] = numbers
    is_known = numbers >= 0
    if is_known.all():
        entries["tags_code"] = queue.units["tags_code"][numbers]
    else:
        entries["tags_code"][is_known] = queue.units["tags_code"][numbers[is_known]]


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
