# SPDX-License-Identifier: Apache-2.0
"""The commit log read in bulk: where it ends, what time its files begin, record heads by offset.

A record counts when its magic, length, own offset, parts and body checksum all fit. Bytes behind
the last record may be stale and mean nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from message_store.files.segments import Segment, SegmentReader
from message_store.format.java_numbers import LONG_MAX
from message_store.format.members.dledger_entry import ENTRY_HEAD
from message_store.format.record_layout import (
    SMALLEST_RECORD_BYTES,
)
from message_store.kernels.dispatch import read_prepared_offsets as prepared_of_heads
from message_store.kernels.dispatch import read_store_times as times_of_heads
from message_store.kernels.log import (
    FILE_ENDS,
    LONGEST_HEAD_BYTES,
    NO_RECORD,
    WALKED,
    find_record_head,
    walk_window,
)
from message_store.kernels.raw_memory import address_of
from message_store.reading.entries import find_last_entry, record_offset

Int32Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Int64Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
BoolArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]
ByteArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]
ByteRows: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.uint8]]

NO_TIME = -1
"""Given as a store time where no record begins."""

_FIRST_WINDOW_BYTES = 256 << 10
_WINDOW_BYTES = 4 << 20
_HEADS_AT_ONCE = 1 << 14
_GAP_BYTES = 64 << 10


@attrs.frozen
class LogBounds:
    """Where the log begins, where its last whole record ends, and when that was stored.

    ``oldest_store_ms`` and ``newest_store_ms`` are of what was looked at, NO_TIME when nothing was
    found there. ``damaged_places`` are log offsets at which no record began, where one should.
    """

    log_min: int
    log_end: int
    newest_store_ms: int
    bytes_scanned: int
    oldest_store_ms: int = NO_TIME
    damaged_places: tuple[int, ...] = ()


class LogWalk:
    """Walks a log from one offset on, a buffer at a time, and gives each buffer to a kernel.

    ``visit(address, length, base, file_room)`` reads records from the start of a buffer and returns
    where it stopped and why (``kernels.log``). The walk ends where no record begins: the following
    bytes may be stale. Below ``known_end``, where records are known to follow, it continues with
    the next record that names its own offset, or with the next file. In a DLedger log the heads of
    entries say where it ends.
    """

    def __init__(self, reader: SegmentReader, *, known_end: int = 0) -> None:
        self._reader = reader
        self._last_used = start_of_last_used_file(reader)
        self._told_end = known_end
        self._known_end = max(known_end, self._last_used)
        self._buffer = np.zeros(_FIRST_WINDOW_BYTES, np.uint8)
        self.bytes_scanned = 0
        self.damaged_places: list[int] = []

    def run(
        self,
        offset: int,
        visit: Callable[[int, int, int, int], tuple[int, int]],
        *,
        stop_at: int = LONG_MAX,
    ) -> int:
        """Walk from ``offset`` to ``stop_at``, both where a record or a file begins.

        Returns where the last record ends. Of a log that grows meanwhile the walk reads as far as
        the files go that are there now: it would never end behind a fast writer.
        """
        self._reader.grow()
        stop_at = min(stop_at, self._reader.end_offset)
        if max(self._last_used, self._told_end) < stop_at:
            entries_end = end_of_entries(self._reader, self._last_used, known_end=self._told_end)
            if entries_end is not None:
                self._known_end = max(entries_end, self._told_end)
                stop_at = min(stop_at, self._known_end)
        end = offset
        while offset < stop_at:
            segment = self._reader.segment_at(offset)
            if segment is None:
                later = [s.start_offset for s in self._reader.segments if s.start_offset > offset]
                if not later or later[0] > self._known_end:
                    return end
                offset = later[0]
                continue
            length, room = self._read(offset, self._end_of(segment) - offset)
            length = min(length, stop_at - offset)
            place, why = visit(address_of(self._buffer), length, offset, room)
            offset += place
            end = offset if place else end
            if why == FILE_ENDS:
                offset = self._end_of(segment)
            elif why == NO_RECORD or (place == 0 and length in (room, stop_at - offset)):
                # With all bytes there are, or up to where a record begins, it is no whole one.
                if offset >= self._known_end:
                    return end
                offset = self._next_record(offset, segment)
            elif place == 0 or len(self._buffer) < _WINDOW_BYTES:
                # A small beginning, because most walks are short; and then a large record.
                self._buffer = np.zeros(2 * len(self._buffer), np.uint8)
        return end

    def _end_of(self, segment: Segment) -> int:
        """Where a file ends; one that is too long ends where the next begins."""
        end = segment.start_offset + segment.length_bytes
        starts = [one.start_offset for one in self._reader.segments]
        return min([end, *(start for start in starts if start > segment.start_offset)])

    def _read(self, offset: int, room: int) -> tuple[int, int]:
        """Fill the buffer; returns how much that is, and how much of the file there is to come."""
        wanted = min(room, len(self._buffer))
        count = self._reader.read_into(offset, self._buffer[:wanted].data)
        self.bytes_scanned += count
        return count, room if count == wanted else count

    def _next_record(self, offset: int, segment: Segment) -> int:
        """Where the walk goes on behind damage: a head that names its place, or the next file."""
        self.damaged_places.append(offset)
        file_end = self._end_of(segment)
        offset = record_offset(self._reader, offset) + 1
        while offset < min(file_end, self._known_end):
            length, room = self._read(offset, file_end - offset)
            place = find_record_head(address_of(self._buffer), length, offset)
            if place >= 0:
                return offset + place
            if length == room or length <= SMALLEST_RECORD_BYTES:
                break
            offset += length - SMALLEST_RECORD_BYTES + 1
        return file_end


def start_of_last_used_file(reader: SegmentReader) -> int:
    """Where the newest file that holds a record begins; the log's start when none does."""
    for segment in reversed(reader.segments):
        if read_store_times(reader, _first_records(reader, [segment]))[0] != NO_TIME:
            return segment.start_offset
    return reader.min_offset


def end_of_entries(reader: SegmentReader, last_used: int, *, known_end: int = 0) -> int | None:
    """Where the entries of a DLedger log end, of which the file that begins at ``last_used`` is the
    last one with a record; None where that is a file of ordinary records.
    """
    if last_used < reader.entries_from:
        return None
    return find_last_entry(reader, last_used, known_end=known_end).end_offset


def _first_records(reader: SegmentReader, segments: Sequence[Segment]) -> Int64Array:
    """Where the first record of each of these files begins, if one does."""
    starts = np.array([segment.start_offset for segment in segments], np.int64)
    first: Int64Array = starts + ENTRY_HEAD.size * (starts >= reader.entries_from)
    return first


def find_log_end(
    reader: SegmentReader, *, from_offset: int | None = None, known_end: int = 0
) -> LogBounds:
    """Where the log ends: behind the last record of the newest used file.

    ``from_offset`` is another place to begin at, the end of a record or the beginning of a file.
    Below ``known_end`` damage is stepped over (``LogWalk``).
    """
    walk = LogWalk(reader, known_end=max(from_offset or 0, known_end))
    start = start_of_last_used_file(reader) if from_offset is None else from_offset
    found = np.zeros(WALKED, np.int64)
    newest_ms, oldest_ms = NO_TIME, LONG_MAX

    def visit(address: int, length: int, base: int, room: int) -> tuple[int, int]:
        nonlocal newest_ms, oldest_ms
        walk_window(address, length, base, room, found)
        if found[0]:
            newest_ms, oldest_ms = max(newest_ms, int(found[3])), min(oldest_ms, int(found[4]))
        return int(found[1]), int(found[2])

    end = walk.run(start, visit)
    places = tuple(walk.damaged_places)
    oldest_ms = NO_TIME if newest_ms == NO_TIME else oldest_ms
    return LogBounds(reader.min_offset, end, newest_ms, walk.bytes_scanned, oldest_ms, places)


def first_store_times(reader: SegmentReader) -> list[tuple[int, int]]:
    """Where the first record of each log file begins and when it was stored, where it has one."""
    starts = _first_records(reader, reader.segments)
    times = read_store_times(reader, starts)
    return [(int(s), int(t)) for s, t in zip(starts, times, strict=True) if t != NO_TIME]


# --- heads by offset ------------------------------------------------------------------------------


def read_store_times(
    reader: SegmentReader,
    offsets: Int64Array,
    size_bytes: Int32Array | Int64Array | None = None,
) -> Int64Array:
    """The store time of the record at each offset; NO_TIME where none of that size begins.

    Only heads are looked at. Offsets may come in any order and lie anywhere; those near each other
    are read together. Without ``size_bytes`` a record of any size is one.
    """
    return _from_heads(reader, offsets, size_bytes, times_of_heads, NO_TIME, SMALLEST_RECORD_BYTES)


def read_prepared_offsets(
    reader: SegmentReader, offsets: Int64Array, size_bytes: Int32Array | Int64Array
) -> Int64Array:
    """The prepared transaction offset of the record at each offset; 0 where none of that size
    begins, or one that is shorter than the longest head. As ``read_store_times``.
    """
    return _from_heads(reader, offsets, size_bytes, prepared_of_heads, 0, LONGEST_HEAD_BYTES)


def _from_heads(
    reader: SegmentReader,
    offsets: Int64Array,
    size_bytes: Int32Array | Int64Array | None,
    tell: Callable[..., None],
    untold: int,
    head_bytes: int,
) -> Int64Array:
    """What a kernel tells of the heads at these offsets, which gets so many bytes of each."""
    order = np.argsort(offsets, kind="stable")
    ranked = np.asarray(offsets[order], np.int64)
    wanted = np.zeros(len(offsets), np.int64)
    if size_bytes is not None:
        wanted[:] = np.where(size_bytes == 0, -1, size_bytes)[order]
    told = np.full(len(offsets), untold, np.int64)
    window = np.empty(_WINDOW_BYTES, np.uint8)
    heads = np.zeros((min(len(ranked), _HEADS_AT_ONCE), head_bytes), np.uint8)
    addresses = address_of(heads) + head_bytes * np.arange(len(heads))
    for start in range(0, len(ranked), _HEADS_AT_ONCE):
        part = slice(start, min(start + _HEADS_AT_ONCE, len(ranked)))
        here, count = ranked[part], part.stop - start
        heads[:count] = 0
        for first, last in _near_each_other(here):
            _read_heads(reader, here[first:last], heads[first:last], window)
        rooms, found = np.full(count, head_bytes), np.full(count, untold)
        tell(addresses[:count], rooms, here, wanted[part], found)
        told[order[part]] = found
    return told


def _read_heads(
    reader: SegmentReader, offsets: Int64Array, rows: ByteRows, window: ByteArray
) -> None:
    """Fill a row from each of these sorted offsets near each other; one without room stays 0."""
    head_bytes = rows.shape[1]
    if len(offsets) == 1:
        if reader.read_into(int(offsets[0]), rows[0].data) < head_bytes:
            rows[0] = 0
        return
    done = 0
    while done < len(offsets):
        base = int(offsets[done])
        wanted = min(int(offsets[-1]) - base + head_bytes, _WINDOW_BYTES)
        count = reader.read_into(base, window[:wanted].data)
        if count < head_bytes:  # no head fits behind this place either
            later = [one.start_offset for one in reader.segments if one.start_offset > base]
            done = int(np.searchsorted(offsets, later[0])) if later else len(offsets)
            continue
        stop = int(np.searchsorted(offsets, base + count - head_bytes, "right"))
        rows[done:stop] = window[(offsets[done:stop] - base)[:, None] + np.arange(head_bytes)]
        done = stop


def _near_each_other(offsets: Int64Array) -> Iterator[tuple[int, int]]:
    """Runs of sorted offsets without a wide gap, as (first, one past the last) indexes."""
    if len(offsets):
        breaks = (np.flatnonzero(np.diff(offsets) > _GAP_BYTES) + 1).tolist()
        yield from zip([0, *breaks], [*breaks, len(offsets)], strict=True)
