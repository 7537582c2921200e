# SPDX-License-Identifier: Apache-2.0
"""Finds entries of a level queue by due time, or by the end of their record.

Log offsets rise along a queue without exception. Due times rise in a few long runs; a new run
begins at each entry that is due earlier than the one before it. If there are so many runs that
bisecting each costs more than reading all entries, all are compared.
"""

import bisect

import numpy as np

from legacy_levels.engine.cursor import UnitQueue
from message_store.reading.consume_queue import Int64Array

_ENTRIES_AT_ONCE = 1 << 18
_WORTH_A_BISECTION = 2_000


class DueRuns:
    """The runs of rising due times in a queue, looked for when they are first needed."""

    def __init__(self, queue: UnitQueue) -> None:
        self._queue = queue
        self._starts: list[int] = []
        self._known_end = queue.min_offset
        self._last_ms = 0

    def _read_on(self) -> None:
        """Take note of what was appended since the last time."""
        queue = self._queue
        self._known_end = max(self._known_end, queue.min_offset)
        while self._known_end < queue.max_offset:
            first = self._known_end
            units = queue.units(first, min(first + _ENTRIES_AT_ONCE, queue.max_offset))
            due_ms = units["tags_code"].astype(np.int64)
            falls = np.flatnonzero(np.diff(due_ms, prepend=self._last_ms) < 0) + first
            if not self._starts and (not len(falls) or falls[0] != first):
                self._starts.append(first)
            self._starts += falls.tolist()
            self._last_ms = int(due_ms[-1])
            self._known_end += len(units)

    def find(self, due_ms: int) -> Int64Array:
        """The queue offsets of all entries due at exactly this time, in order."""
        self._read_on()
        queue = self._queue
        if not self._starts or queue.min_offset >= queue.max_offset:
            return np.zeros(0, np.int64)
        cut = max(bisect.bisect_right(self._starts, queue.min_offset) - 1, 0)
        starts = [max(start, queue.min_offset) for start in self._starts[cut:]]
        ends = [*starts[1:], queue.max_offset]
        pieces = []
        if len(starts) * _WORTH_A_BISECTION > queue.max_offset - queue.min_offset:
            pieces = [self._compare(first, due_ms) for first in _pieces(queue)]
        else:
            for first, last in zip(starts, ends, strict=True):
                low = self._bisect(first, last, due_ms)
                high = self._bisect(low, last, due_ms + 1)
                pieces.append(np.arange(low, high))
        return np.concatenate(pieces)

    def _compare(self, first: int, due_ms: int) -> Int64Array:
        last = min(first + _ENTRIES_AT_ONCE, self._queue.max_offset)
        units = self._queue.units(first, last)
        return first + np.flatnonzero(units["tags_code"] == due_ms)

    def _bisect(self, low: int, high: int, due_ms: int) -> int:
        """The first entry of a run that is not due earlier."""
        while low < high:
            middle = (low + high) // 2
            if int(self._queue.units(middle, middle + 1)["tags_code"][0]) < due_ms:
                low = middle + 1
            else:
                high = middle
        return low


def _pieces(queue: UnitQueue) -> range:
    return range(queue.min_offset, queue.max_offset, _ENTRIES_AT_ONCE)


def find_record_end(queue: UnitQueue, record_end: int) -> int | None:
    """The queue offset of the entry whose record ends at this place of the log; None for none.

    A record's end is asked for and not its beginning, because that is what a neutral unit keeps.
    """
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        [unit] = queue.units(middle, middle + 1)
        end = int(unit["commit_log_offset"]) + int(unit["size_bytes"])
        if end == record_end:
            return middle
        if end < record_end:
            low = middle + 1
        else:
            high = middle
    return None
