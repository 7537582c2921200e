# SPDX-License-Identifier: Apache-2.0
"""Messages that wait, as rows: made from records, sorted, and cut by the slots of a wheel."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from message_store.columns.byte_column import Int64s, int64s
from message_store.kernels.cache import kernel
from message_store.kernels.log import store_time_at
from message_store.writing.log import LiveLog
from timer_wheel.format.index_layouts import (
    FLAG_ALWAYS,
    FLAG_MARKER,
    FLAG_STORED_AGAIN,
    NATIVE_ROW,
    Rows,
    Wheel,
    slot_of,
)
from timer_wheel.format.timer_due import due_times, was_due_when_stored
from timer_wheel.format.wheel_math import PRECISIONS_MS
from timer_wheel.timers.rows import Bools, TimerFacts


@kernel("void(int64[::1], int64[::1])")
def _read_store_times(addresses: Any, times_ms: Any) -> None:
    for row in range(len(addresses)):
        times_ms[row] = store_time_at(addresses[row]) if addresses[row] >= 0 else 0


def store_times_ms(log: LiveLog, offsets: Int64s, sizes: Int64s) -> Int64s:
    """The store time of the record at each of these places; 0 where the log has none."""
    addresses = log.record_addresses(offsets, sizes)
    times_ms = np.empty(len(addresses), np.int64)
    _read_store_times(addresses, times_ms)
    return times_ms


BLOCK_ROWS = 1 << 15
"""How many messages of one slot stand together at most."""


def no_rows(count: int = 0) -> Rows:
    """Rows of zeros."""
    return np.zeros(count, NATIVE_ROW)


def together(parts: Sequence[Rows]) -> Rows:
    """The rows of all of these, in order; not copied where only one part has any."""
    parts = [part for part in parts if len(part)]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else no_rows()


def rows_of(
    queue_offsets: Int64s,
    commit_log_offsets: Int64s,
    sizes: Int64s,
    facts: TimerFacts,
    slot_precision_ms: int,
) -> Rows:
    """What the records at these places ask for."""
    rows = np.empty(len(queue_offsets), NATIVE_ROW)
    due_ms = due_times(facts.out_ms, facts.store_ms, slot_precision_ms)
    rows["due_ms"] = np.where(facts.is_marker, marker_times(facts, slot_precision_ms), due_ms)
    rows["queue_offset"] = queue_offsets
    rows["commit_log_offset"] = commit_log_offsets
    rows["size_bytes"] = sizes
    rows["topic_hash"] = facts.topic_hash
    again = np.where(facts.roll_times > 0, FLAG_STORED_AGAIN, 0)
    rows["flags"] = FLAG_ALWAYS | again | np.where(facts.is_marker, FLAG_MARKER, 0)
    return rows


def marker_times(facts: TimerFacts, slot_precision_ms: int) -> Int64s:
    """Until when these delete markers count. One whose target was due at once may be older than
    that, by a clock that was set back: its time lasts at least as long as that of the slot that its
    target was stored in.
    """
    due_ms = due_times(facts.out_ms, facts.store_ms, slot_precision_ms)
    last_ms = np.where(was_due_when_stored(facts.out_ms), facts.out_ms + max(PRECISIONS_MS), 0)
    return int64s(np.maximum(due_ms, last_ms))


def is_marker(rows: Rows) -> Bools:
    """Which rows are delete markers."""
    return np.asarray(rows["flags"] & FLAG_MARKER != 0)


def is_stored_again(rows: Rows) -> Bools:
    """Which rows are messages whose first record was replaced by a younger one."""
    return np.asarray(rows["flags"] & FLAG_STORED_AGAIN != 0)


def in_order(rows: Rows) -> Rows:
    """The rows by promise, equal ones in order of the queue."""
    if len(rows) < 2:
        return rows
    due_ms, queue_offset = rows["due_ms"], rows["queue_offset"]
    later = np.diff(due_ms)
    if (later > 0).all() or bool(((later > 0) | (later == 0) & (np.diff(queue_offset) > 0)).all()):
        return rows
    return rows[np.lexsort((queue_offset, due_ms))]


def by_slot(rows: Rows, wheel: Wheel) -> Iterator[tuple[int, Rows]]:
    """The rows of each slot that holds any, in order of the queue; many in parts, so that nobody
    has to read an hour to know of a second.
    """
    if not len(rows):
        return
    if not (np.diff(rows["queue_offset"]) > 0).all():
        rows = rows[np.argsort(rows["queue_offset"], kind="stable")]
    slots = slot_of(int64s(rows["due_ms"]), wheel)
    numbers = (slots - slots.min()) // wheel.slot_ms
    if numbers.max() < 1 << 16:  # such numbers are sorted digit by digit
        numbers = numbers.astype(np.uint16)
    order = np.argsort(numbers, kind="stable")
    slots, rows = slots[order], rows[order]
    begins = np.flatnonzero(np.concatenate([[True], slots[1:] != slots[:-1]]))
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(rows)], strict=True):
        for part in range(begin, end, BLOCK_ROWS):
            yield int(slots[begin]), rows[part : min(end, part + BLOCK_ROWS)]
