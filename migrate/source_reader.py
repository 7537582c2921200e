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
    """
    buffer = np.zeros(BUFFER_BYTES + SPARE_BYTES, np.uint8)
    ends = offsets + sizes
    first = 0
    while first < len(offsets):
        reach = int(np.searchsorted(ends, offsets[first] + BUFFER_BYTES, side="right"))
        # `ends` ascends in a sound store; in a damaged one this may stop early, which only makes a
        # chunk small
        end = max(first + 1, min(reach, len(offsets)))
        if end - first == 1 and sizes[first] > BUFFER_BYTES:
            buffer = _room_for(log, int(offsets[first]), int(sizes[first]), buffer)
        yield _read_chunk(log, offsets, sizes, first, end, buffer)
        first = end


def _room_for(
    log: SegmentReader, offset: int, size: int, buffer: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """A larger buffer, but only for a record that says itself that it is as long as its entry
    claims.
    """
    head = bytearray(BLANK_RECORD.size)
    segment = log.segment_at(offset)
    if segment is None or offset + size > segment.start_offset + segment.length_bytes:
        return buffer
    if log.read_into(offset, memoryview(head)) < len(head):
        return buffer
    if BLANK_RECORD.decode_at(head, 0)["size_bytes"] != size:
        return buffer
    return np.zeros(size + SPARE_BYTES, np.uint8) if size + SPARE_BYTES > len(buffer) else buffer


def _read_chunk(
    log: SegmentReader,
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int32],
    first: int,
    end: int,
    buffer: NDArray[np.uint8],
) -> Chunk:
    starts = offsets[first:end]
    ends = starts + sizes[first:end]
    places = np.full(end - first, NOT_THERE, np.int64)
    cuts = np.flatnonzero(starts[1:] - ends[:-1] > GAP_BYTES) + 1
    files = starts // max(1, log.file_bytes)
    cuts = np.union1d(cuts, np.flatnonzero(np.diff(files)) + 1)
    filled = 0
    view = buffer.data[: len(buffer) - SPARE_BYTES]
    for begin, stop in _pairs(cuts, end - first):
        span = int(ends[begin:stop].max() - starts[begin])
        room = view[filled : filled + max(0, span)]
        count = log.read_into(int(starts[begin]), room) if room.nbytes else 0
        inside = (ends[begin:stop] - starts[begin] <= count) & (starts[begin:stop] >= starts[begin])
        places[begin:stop][inside] = (starts[begin:stop] - starts[begin] + filled)[inside]
        filled += count
    return Chunk(first, end, buffer, filled, places)


def _pairs(cuts: NDArray[Any], end: int) -> Iterator[tuple[int, int]]:
    bounds = [0, *cuts.tolist(), end]
    yield from pairwise(bounds)
