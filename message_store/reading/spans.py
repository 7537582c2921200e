# SPDX-License-Identifier: Apache-2.0
"""Reads the records that entries name from a log's files, many at once: each span of the log in one
read.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from message_store.files.segments import SegmentReader
from message_store.reading.commit_log import ByteArray, Int64Array

CHUNK_ENTRIES = 1 << 14
"""A span has at most so many records."""

BUFFER_BYTES = 2 << 20
_GAP_BYTES = 64 << 10


@attrs.frozen(eq=False)
class Span:
    """Records ``first`` to ``last``, and the bytes of the log that should hold them.

    ``buffer`` has ``available`` bytes from log offset ``offset`` on; it is used again for the next
    span. A record that the files do not hold whole comes in a span of its own without bytes.
    """

    first: int
    last: int
    buffer: ByteArray
    offset: int
    available: int


def read_spans(reader: SegmentReader, offsets: Int64Array, sizes: Int64Array) -> Iterator[Span]:
    """As ``SpanReader.spans``, of all records at once."""
    return SpanReader(reader, is_read_once=False).spans(offsets, sizes)


class SpanReader:
    """Reads a log's records in spans, with one buffer.

    What is read once leaves the system's cache as it was. So a log larger than memory evicts
    nothing, and no new memory is looked for: on a virtual machine that took longer than all the
    rest (docs/PERFORMANCE.md).
    """

    def __init__(self, reader: SegmentReader, *, is_read_once: bool) -> None:
        self._reader = reader
        self._behind = _Behind(reader) if is_read_once else None
        self._buffer = np.zeros(BUFFER_BYTES, np.uint8)

    def spans(self, offsets: Int64Array, sizes: Int64Array) -> Iterator[Span]:
        """Records of these sizes at these offsets, which rise, also from call to call. Raises
        SourceError where the disk refuses.
        """
        ends = offsets + np.maximum(sizes, 0)
        limits = _file_ends(self._reader, offsets)
        first = 0
        while first < len(offsets):
            offset, limit = int(offsets[first]), int(limits[first])
            if limit < 0 or ends[first] > limit:
                yield Span(first, first + 1, self._buffer, offset, 0)
                first += 1
                continue
            if ends[first] - offset > len(self._buffer):
                self._buffer = np.zeros(int(ends[first]) - offset, np.uint8)
            last = _last_of_span(offsets, ends, first, min(offset + len(self._buffer), limit))
            wanted = int(ends[first:last].max()) - offset
            if self._behind is not None:
                self._behind.look_ahead(offset, limit)
            available = self._reader.read_into(offset, self._buffer[:wanted].data)
            yield Span(first, last, self._buffer, offset, available)
            if self._behind is not None:
                self._behind.forget(offset, available)
            first = last


class _Behind:
    """What was read of one file of a row that the system had not cached before."""

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader
        self._first, self._file_end, self._is_cold = 0, 0, False

    def look_ahead(self, offset: int, file_end: int) -> None:
        """Before a file is read: whether the system has it already."""
        if file_end != self._file_end:
            self._first, self._file_end = offset, file_end
            self._is_cold = not self._reader.is_cached(offset)

    def forget(self, offset: int, count: int) -> None:
        """After a read: from the file's first on, because the system forgets only whole pages, of
        which the last may be large.
        """
        if self._is_cold and count:
            self._reader.forget(self._first, offset + count)


def _last_of_span(offsets: Int64Array, ends: Int64Array, first: int, limit: int) -> int:
    """One past the last entry that lies whole before ``limit``, up to the first wide gap."""
    last = min(int(np.searchsorted(offsets, limit)), first + CHUNK_ENTRIES, len(offsets))
    if (too_far := ends[first:last] > limit).any():
        last = first + int(too_far.argmax())
    wide = offsets[first + 1 : last] - ends[first : last - 1] > _GAP_BYTES
    return first + 1 + int(wide.argmax()) if wide.any() else last


def _file_ends(reader: SegmentReader, offsets: Int64Array) -> Int64Array:
    """Where the file ends that holds each offset; -1 where none does."""
    if not reader.segments:
        return np.full(len(offsets), -1, np.int64)
    starts = np.array([segment.start_offset for segment in reader.segments], np.int64)
    lengths = np.array([segment.length_bytes for segment in reader.segments], np.int64)
    indexes = np.searchsorted(starts, offsets, side="right") - 1
    file_ends = starts[indexes] + lengths[indexes]
    return np.where((indexes >= 0) & (offsets < file_ends), file_ends, -1)
