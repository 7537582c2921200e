# SPDX-License-Identifier: Apache-2.0
"""Reading pending records in place, front to back, many with one system call, into one reused
buffer.

Records that lie close together are read together; over a wide gap (messages that are not pending)
the reader jumps. No length is trusted: what a queue entry claims is held against the file, and
against the record's own length before room is made for it.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.java_numbers import LONG_MAX
from message_store.record_layout import BLANK_RECORD
from message_store.segment_files import SegmentReader

BUFFER_BYTES = 2 << 20
"""Stays in the cache between the read, the rewrite and the write."""

GAP_BYTES = 32 << 10
"""Reading over a gap as wide as this costs as much as jumping it."""

SPARE_BYTES = 16
"""Kernels compare names a word at a time and may look this far beyond a record."""

NOT_THERE = -1


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
    """Read the records at ``offsets`` (ascending) in chunks; a chunk's buffer is reused for the
    next one.

    No chunk holds, or claims, more than ``BUFFER_BYTES``, unless it is of a single record. Raises
    SourceError when the disk refuses.
    """
    buffer = np.zeros(BUFFER_BYTES + SPARE_BYTES, np.uint8)
    is_there = _is_there(log, offsets, sizes)
    ends = np.maximum.accumulate(np.where(is_there, offsets + sizes, 0))
    claimed = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
    first = 0
    while first < len(offsets):
        before = int(claimed[first - 1]) if first else 0
        reach = min(int(offsets[first]) + BUFFER_BYTES, LONG_MAX)
        in_reach = int(np.searchsorted(ends, reach, side="right"))
        in_claim = int(np.searchsorted(claimed, before + BUFFER_BYTES, side="right"))
        end = max(first + 1, min(in_reach, in_claim))
        if is_there[first] and sizes[first] + SPARE_BYTES > len(buffer):
            buffer = np.zeros(int(sizes[first]) + SPARE_BYTES, np.uint8)
        yield _read_chunk(log, offsets, sizes, first, end, is_there[first:end], buffer)
        first = end


def _segment_numbers(log: SegmentReader, offsets: NDArray[np.int64]) -> NDArray[np.intp]:
    """The place of each offset's file in the row; -1 before the first one."""
    starts = np.array([segment.start_offset for segment in log.segments], np.int64)
    return np.searchsorted(starts, offsets, side="right") - 1


def _is_there(
    log: SegmentReader, offsets: NDArray[np.int64], sizes: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Which entries lie within one file; a very long one must say so itself before room is made."""
    if not log.segments:
        return np.zeros(len(offsets), np.bool_)
    numbers = _segment_numbers(log, offsets)
    ends = np.array([one.start_offset + one.length_bytes for one in log.segments], np.int64)
    inside = (numbers >= 0) & (offsets < ends[numbers]) & (sizes > 0)
    inside[inside] = sizes[inside] <= (ends[numbers] - offsets)[inside]
    for at in np.flatnonzero(inside & (sizes > BUFFER_BYTES)).tolist():
        inside[at] = _told_size(log, int(offsets[at])) == sizes[at]
    return inside


def _told_size(log: SegmentReader, offset: int) -> int:
    head = bytearray(BLANK_RECORD.size)
    if log.read_into(offset, memoryview(head)) < len(head):
        return 0
    return int(BLANK_RECORD.decode_at(head, 0)["size_bytes"])


def _read_chunk(
    log: SegmentReader,
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int32],
    first: int,
    end: int,
    is_there: NDArray[np.bool_],
    buffer: NDArray[np.uint8],
) -> Chunk:
    places = np.full(end - first, NOT_THERE, np.int64)
    there = np.flatnonzero(is_there)
    starts = offsets[first:end][there]
    ends = starts + sizes[first:end][there]
    reach = np.maximum.accumulate(ends)
    cuts = np.flatnonzero(starts[1:] - reach[:-1] > GAP_BYTES) + 1
    cuts = np.union1d(cuts, np.flatnonzero(np.diff(_segment_numbers(log, starts))) + 1)
    filled = 0
    view = buffer.data[: len(buffer) - SPARE_BYTES]
    for begin, stop in _pairs(cuts, len(there)):
        room = view[filled : filled + int(reach[stop - 1] - starts[begin])]
        count = log.read_into(int(starts[begin]), room)
        # a file that was cut short while we read gives less than it promised
        inside = ends[begin:stop] - starts[begin] <= count
        places[there[begin:stop][inside]] = (starts[begin:stop] - starts[begin] + filled)[inside]
        filled += count
    return Chunk(first, end, buffer, filled, places)


def _pairs(cuts: NDArray[Any], end: int) -> Iterator[tuple[int, int]]:
    bounds = [0, *cuts.tolist(), end] if end else []
    yield from pairwise(bounds)
