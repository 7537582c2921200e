# SPDX-License-Identifier: Apache-2.0
"""A walk over all chains of the wheel, and the entries that it reached, in the order of the log.

A record has an entry for each time that a broker would deliver it.
"""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.kernels.cache import kernel
from message_store.reading.consume_queue import QueueEntries
from migrate.verify.digests.entries import TARGET_ENTRY
from timer_wheel.format.timer_log import TimerUnits

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
    """Walk the chain of every slot from its last unit to its first.

    ``last`` is int64[slots], ``previous`` int64[units]; both hold indexes of units, or ``END`` or
    ``NOWHERE``. Chains that share units are walked each, up to a bound.
    RocketMQ: TimerMessageStore#dequeue walks a slot in this order.
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


def reached_entries(
    walk: Walk, slot_times_ms: NDArray[np.int64], units: TimerUnits, queue: QueueEntries
) -> NDArray[np.void]:
    """Rows of TARGET_ENTRY in the order of the log; a unit that is reached twice has two.

    ``slot_times_ms`` is int64[slots], the times of the slots that were walked.
    """
    offsets = units.units["commit_log_offset"].astype(np.int64)
    reached, slots = _in_log_order(walk, offsets)
    numbers = _queue_numbers(offsets, reached, queue)
    rows = units.units
    if len(reached) != len(rows) or not np.array_equal(reached, np.arange(len(rows))):
        rows = rows[reached]
    entries = target_entries(numbers, queue)
    entries["commit_log_offset"] = rows["commit_log_offset"]
    entries["size_bytes"] = rows["record_size_bytes"]
    entries["flags"] = rows["magic"]
    entries["slot_time_ms"] = slot_times_ms[slots]
    entries["topic_hash"] = rows["topic_hash"]
    return entries


def target_entries(numbers: NDArray[np.int64], queue: QueueEntries) -> NDArray[np.void]:
    """Rows of TARGET_ENTRY with what the queue entries of these numbers say; -1: no entry."""
    entries = np.zeros(len(numbers), TARGET_ENTRY.dtype)
    entries["queue_offset"] = numbers
    is_known = numbers >= 0
    entries["tags_code"][is_known] = queue.units["tags_code"][numbers[is_known]]
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
    queued = queue.commit_log_offset
    if np.array_equal(queued, offsets):
        return reached
    if not len(queued):
        return np.full(len(reached), -1, np.int64)
    wanted = offsets[reached]
    order = np.argsort(queued, kind="stable")
    indexes = np.minimum(np.searchsorted(queued[order], wanted), len(queued) - 1)
    return np.where(queued[order[indexes]] == wanted, order[indexes], -1)
