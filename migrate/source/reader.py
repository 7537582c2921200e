# SPDX-License-Identifier: Apache-2.0
"""Reading pending records in place, front to back, many with one system call, into one reused
buffer.

Records that lie close together are read together; over a wide gap (messages that are not pending)
the reader jumps. No length is trusted: what a queue entry claims is held against the file, and
against the record's own length before room is made for it.
"""

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.files.segments import SegmentReader
from message_store.format.record_layout import BLANK_RECORD
from migrate.source.read_kernels import (
    DOUBTFUL,
    END,
    FIRST,
    GONE,
    LENGTH,
    NOT_THERE,
    OFFSET,
    RUN_COLUMNS,
    THERE,
    judge_entries,
    lay_out_chunk,
)

__all__ = ["NOT_THERE", "Chunk", "read_chunks"]

BUFFER_BYTES = 2 << 20
"""Stays in the cache between the read, the rewrite and the write."""

GAP_BYTES = 32 << 10
"""Reading over a gap as wide as this costs as much as jumping it."""

SPARE_BYTES = 16
"""Kernels compare names a word at a time and may look this far beyond a record."""

_ROWS = 1 << 14
"""So many records at most are in a chunk."""


@attrs.frozen(eq=False)
class Chunk:
    """Records ``first`` to ``end`` of a run: ``buffer`` and the place of each in it, ``NOT_THERE``
    when unreadable.
    """

    first: int
    end: int
    buffer: NDArray[np.uint8]
    buffer_bytes: int
    places: NDArray[np.int64]


def read_chunks(
    log: SegmentReader, offsets: NDArray[np.int64], sizes: NDArray[np.int32]
) -> Iterator[Chunk]:
    """Read the records at ``offsets`` (ascending) in chunks; a chunk's arrays are reused for the
    next one.

    No chunk holds, or claims, more than ``BUFFER_BYTES``, unless it is of a single record. Raises
    SourceError when the disk refuses.
    """
    buffer = np.zeros(BUFFER_BYTES + SPARE_BYTES, np.uint8)
    places = np.empty(_ROWS, np.int64)
    runs = np.empty((_ROWS, RUN_COLUMNS), np.int64)
    starts = np.array([segment.start_offset for segment in log.segments], np.int64)
    kinds = _kinds(log, starts, offsets, sizes)
    first = 0
    while first < len(offsets):
        end, run_count = lay_out_chunk(
            offsets, sizes, kinds, starts, first, BUFFER_BYTES, GAP_BYTES, places, runs
        )
        needed = int(runs[:run_count, LENGTH].sum())
        if needed + SPARE_BYTES > len(buffer):
            buffer = np.zeros(needed + SPARE_BYTES, np.uint8)
        filled = _read_runs(log, runs[:run_count], sizes[first:end], places, buffer)
        yield Chunk(first, end, buffer, filled, places[: end - first])
        first = end


def _kinds(
    log: SegmentReader,
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int32],
) -> NDArray[np.uint8]:
    """Which entries lie within one file; a very long one must say so itself before room is made."""
    ends = np.array([one.start_offset + one.length_bytes for one in log.segments], np.int64)
    kinds = np.empty(len(offsets), np.uint8)
    if judge_entries(offsets, sizes, starts, ends, BUFFER_BYTES, kinds):
        for at in np.flatnonzero(kinds == DOUBTFUL).tolist():
            kinds[at] = THERE if _told_size(log, int(offsets[at])) == sizes[at] else GONE
    return kinds


def _told_size(log: SegmentReader, offset: int) -> int:
    head = bytearray(BLANK_RECORD.size)
    if log.read_into(offset, memoryview(head)) < len(head):
        return 0
    return int(BLANK_RECORD.decode_at(head, 0)["size_bytes"])


def _read_runs(
    log: SegmentReader,
    runs: NDArray[np.int64],
    sizes: NDArray[np.int32],
    places: NDArray[np.int64],
    buffer: NDArray[np.uint8],
) -> int:
    """Fill the buffer with runs, one behind the other; returns how many bytes they are."""
    filled = 0
    for run in runs:
        length = int(run[LENGTH])
        count = log.read_into(int(run[OFFSET]), buffer.data[filled : filled + length])
        if count < length:  # a file that was cut short while we read
            rows = slice(int(run[FIRST]), int(run[END]))
            places[rows][places[rows] + sizes[rows] > filled + count] = NOT_THERE
        filled += length
    return filled
