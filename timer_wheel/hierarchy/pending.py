# SPDX-License-Identifier: Apache-2.0
"""What waits on a hierarchical wheel: all of it in parts, and when the first of it is due."""

from collections.abc import Iterator

import numpy as np

from message_store.columns.byte_column import int64s
from message_store.format.java_numbers import string_hash
from message_store.interface.delay_store import Pending
from timer_wheel.format.index_layouts import Rows
from timer_wheel.hierarchy.timer_index import TimerIndex
from timer_wheel.timers.pending import Filter, pending_of

_FIRST_LOOK = 64


def waiting_in_parts(index: TimerIndex, wanted: Filter) -> Iterator[Pending]:
    """Every message that waits and passes. Raises StoreClosedError when the store is closed."""
    parts = index.waiting.parts()
    while True:
        with index.store.reading():
            rows = next(parts, None)
            if rows is None:
                return
            rows = _live(index, _may_pass(rows, wanted))
        for due_ms, offset, size_bytes in zip(
            rows["due_ms"].tolist(),
            rows["commit_log_offset"].tolist(),
            rows["size_bytes"].tolist(),
            strict=True,
        ):
            with index.store.reading():
                message = index.store.log.record(offset, size_bytes)
            if wanted.passes(message):
                yield pending_of(message, due_ms, size_bytes)


def _may_pass(rows: Rows, wanted: Filter) -> Rows:
    chosen = wanted.in_time(int64s(rows["due_ms"]))
    if wanted.topic is not None:
        chosen &= rows["topic_hash"] == string_hash(wanted.topic)
    return rows[chosen]


def _live(index: TimerIndex, rows: Rows) -> Rows:
    """The messages whose records can be read and that nobody took back."""
    facts = index.facts_of(rows, keys=len(index.marks) > 0)
    is_taken = index.marks.take_away(int64s(rows["commit_log_offset"]), facts)
    return rows[facts.is_fine & ~is_taken]


def first_due_ms(index: TimerIndex) -> int | None:
    """When the first message that waits is due, or its slot begins; None when nothing waits."""
    if not len(index.marks):
        return index.waiting.first_ms()
    return min(_first_of_each_part(index), default=None)


def _first_of_each_part(index: TimerIndex) -> Iterator[int]:
    """When the first message is due that was not taken back, in each part that has one."""
    found: int | None = None
    for rows in index.waiting.parts():
        rows = rows[np.argsort(rows["due_ms"], kind="stable")]
        if found is not None:
            rows = rows[rows["due_ms"] < found]
        begin, count = 0, _FIRST_LOOK
        while begin < len(rows):
            live = _live(index, rows[begin : begin + count])
            if len(live):
                found = int(live["due_ms"][0])
                yield found
                break
            begin, count = begin + count, 2 * count
