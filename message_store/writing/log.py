# SPDX-License-Identifier: Apache-2.0
"""The commit log open for writing: records go to its end, all of an append or none.

An append writes the first record's first eight bytes, its size and magic, last. A process that is
killed before that leaves a log that ends where it ended. Nothing here locks; the store does.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import (
    BadFieldError,
    DelayStoreError,
    FormatError,
    TargetError,
    TruncatedRecordError,
    disk_errors,
)
from message_store.files.live_segments import LiveSegments
from message_store.files.segments import next_places, prefault_by_zeroing, write_small, write_whole
from message_store.files.unsynced import Unsynced
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.record_layout import (
    BLANK_RECORD,
    END_OF_FILE_MIN_BYTES,
    HEAD_V4_V4,
    HEAD_V6_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_IPV6,
)
from message_store.kernels.batch import place_records
from message_store.kernels.dispatch import last_record_of, read_queue_ids, read_store_times
from message_store.reading.commit_log import NO_TIME

Int64s = NDArray[np.int64]
Fill = Callable[[slice, Int64s, int], None]

PUBLISHED_LAST_BYTES = BLANK_RECORD.size
"""Size and magic of the first record: as long as they are zero, no record begins there."""

_MAGIC_AT = HEAD_V4_V4.offset_of("magic")
_MAGICS_BEGIN = (MAGIC_V1 % (1 << 32)).to_bytes(4, "big")[:3]  # those of both kinds of records
_PIECES_FOR_A_THREAD = 4
_NO_ROOM = -1
PIECE_BYTES: Final = 1 << 20
"""About how much is written at once: it is still in the core's own cache then."""


class LiveLog:
    """The log's files, and where it ends.

    ``end`` is the offset of the next record, or of the blank before it; ``last_start`` that of the
    last record, 0 when there is none. Recovery finds both. ``file_bytes`` is the size of each file,
    ``append_count`` how many appends there were. RocketMQ: CommitLog (4.9.7).
    """

    def __init__(self, segments: LiveSegments, end: int, last_start: int) -> None:
        self.segments = segments
        self.file_bytes = segments.file_bytes
        self.end = end
        self.last_start = last_start
        self.is_broken = False
        self.append_count = 0
        self._file_start = 0
        self._room_end = _NO_ROOM
        self._is_noted = False
        self._ready_end = 0
        self._descriptor = -1
        self._last_times_ms: dict[int, int] = {}
        # Kept, because fresh memory costs as much as what is written into it.
        self._buffers = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

    @property
    def min_offset(self) -> int:
        """Where the log begins."""
        return self.segments.min_offset

    def end_at(self, end: int, last_start: int = 0) -> None:
        """Set the end of the log and the offset of its last record, as recovery found them."""
        self.end, self.last_start = end, last_start

    # --- writing ----------------------------------------------------------------------------------

    def append(self, size_bytes: int, make: Callable[[int], bytes]) -> int:
        """Append one record; returns its commit log offset.

        ``make`` is given the offset and returns the record, which is ``size_bytes`` long. Raises
        TargetError when the disk refuses, and BadFieldError for a record that no file can hold;
        nothing is stored then. RocketMQ: CommitLog#asyncPutMessage (4.9.7).
        """
        position = self.offset_for(size_bytes)
        record = make(position)
        if len(record) != size_bytes:
            raise ValueError(f"a record of {len(record)} bytes, where {size_bytes} were announced")
        self.put(record, position)
        return position

    def offset_for(self, size_bytes: int) -> int:
        """The commit log offset of the next record, if it has this size. Raises as ``append``."""
        position = self.end
        if position + size_bytes + END_OF_FILE_MIN_BYTES > self._room_end:
            position = self._turn_to_room(size_bytes)
        return position

    def put(self, record: bytes, position: int) -> None:
        """Store a record at the offset that ``offset_for`` gave for it. Raises TargetError."""
        if not self._is_noted:  # the first since a sync
            self.segments.mark_dirty(self._file_start)
            self._is_noted = True
        try:
            write_small(self._descriptor, record, position - self._file_start, PUBLISHED_LAST_BYTES)
        except OSError as error:
            self._undo()
            raise self.segments.error("written", self._file_start, error) from error
        except BaseException:
            self._undo()
            raise
        self.end = position + len(record)
        self.last_start = position
        self.append_count += 1

    def put_all(self, records: Sequence[bytes], position: int) -> None:
        """Store several records, one behind another, at the offset that ``offset_for`` gave for the
        size of all: a kill leaves all of them or none. Raises TargetError.
        """
        self.put(b"".join(records), position)
        self.last_start = self.end - len(records[-1])

    def _turn_to_room(self, size_bytes: int) -> int:
        """Make the file that has room for ``size_bytes`` the current one; returns their offset."""
        self.require_unbroken()
        if size_bytes + END_OF_FILE_MIN_BYTES > self.file_bytes:
            raise BadFieldError(
                "a record larger than a log file",
                expected=f"at most {self.file_bytes - END_OF_FILE_MIN_BYTES}",
                found=size_bytes,
            )
        start = self.end - self.end % self.file_bytes
        if self.end + size_bytes + END_OF_FILE_MIN_BYTES > start + self.file_bytes:
            self.segments.make_file(start + self.file_bytes)  # which a full disk refuses first
            self.write_blank(self.end)
            self.end = start + self.file_bytes
            self._enter_file(self.end)
        else:
            self._enter_file(start)
        self._make_ready(size_bytes)
        return self.end

    def _enter_file(self, start: int) -> None:
        self._room_end = _NO_ROOM
        self.segments.make_file(start)
        self._is_noted = False
        self._descriptor = self.segments.descriptor(start)
        self._file_start = start

    def _make_ready(self, size_bytes: int) -> None:
        """Allocate pages for this record and for those that follow it."""
        start = self._file_start
        wanted = self.end + size_bytes + END_OF_FILE_MIN_BYTES
        if wanted > self._ready_end:
            begin = max(self.end, self._ready_end) - start
            end = prefault_by_zeroing(self._descriptor, begin, wanted - start, self.file_bytes)
            self._ready_end = start + end
        self._room_end = self._ready_end

    def write_blank(self, position: int) -> None:
        """Write a blank from ``position`` to the end of its file. RocketMQ: BLANK_MAGIC_CODE."""
        left = self.file_bytes - position % self.file_bytes
        self.segments.write_at(position, BLANK_RECORD.encode(size_bytes=left, magic=MAGIC_BLANK))

    def append_rows(self, sizes: Int64s, fill: Fill) -> Int64s:
        """Append many records, all or none; returns the commit log offset of each.

        ``fill(rows, positions, target_address)`` is called for one run of rows after another. It
        writes the record of row ``i`` to ``target_address + positions[i] - positions[rows.start]``.
        Raises as ``append``; what ``fill`` raises goes through, and nothing is stored then.
        """
        positions = np.empty(len(sizes), np.int64)
        if not len(sizes):
            return positions
        if int(sizes.min()) < SMALLEST_RECORD_BYTES:
            raise BadFieldError("a record smaller than any can be", found=int(sizes.min()))
        self.require_unbroken()
        end = place_records(sizes, self.end, self.file_bytes, positions)
        if end < 0:
            self._turn_to_room(int(sizes[-1 - end]))
        try:
            head = self._write_pieces(positions, sizes, fill)
            self._write_blanks_between(positions, sizes)
            self.segments.write_at(int(positions[0]), head)
        except BaseException:
            self._undo()
            raise
        self.end, self.last_start = end, int(positions[-1])
        self.append_count += 1
        self._room_end = _NO_ROOM
        return positions

    def _write_pieces(self, positions: Int64s, sizes: Int64s, fill: Fill) -> bytes:
        """Write all rows; returns the first eight bytes, in whose place zeros are written.

        One piece is written while the next is filled: half of a write's time goes into allocating
        fresh pages, which another core can do.
        """
        pieces, head = pieces_of(positions, self.file_bytes), b""
        with PieceWriter(self.segments, in_a_thread=len(pieces) >= _PIECES_FOR_A_THREAD) as writer:
            for number, rows in enumerate(pieces):
                start, last = int(positions[rows.start]), rows.stop - 1
                size_bytes = int(positions[last] + sizes[last]) - start
                piece = self._piece(number % len(self._buffers), size_bytes)
                fill(rows, positions, int(piece.ctypes.data))
                if not head:
                    head = piece[:PUBLISHED_LAST_BYTES].tobytes()
                    piece[:PUBLISHED_LAST_BYTES] = 0
                writer.write(start, piece.data)
        return head

    def _piece(self, which: int, size_bytes: int) -> NDArray[np.uint8]:
        if self._buffers[which].size < size_bytes:
            self._buffers[which] = np.empty(max(size_bytes, PIECE_BYTES), np.uint8)
        return self._buffers[which][:size_bytes]

    def _write_blanks_between(self, positions: Int64s, sizes: Int64s) -> None:
        ends = np.concatenate([[self.end], positions + sizes])
        for row in np.flatnonzero(positions != ends[:-1]).tolist():
            self.write_blank(int(ends[row]))

    def _undo(self) -> None:
        """Zero what a failed append has written, lest it be valid records behind the next one."""
        self._room_end = _NO_ROOM
        was_broken, self.is_broken = self.is_broken, True  # so it stays if anything stops this
        with suppress(DelayStoreError):
            self.segments.zero_from(self.end)
            self.is_broken = was_broken

    # --- reading ----------------------------------------------------------------------------------

    def holds(self, offset: int, size_bytes: int) -> bool:
        """Whether so many bytes from ``offset`` on lie in the log and in one file."""
        is_inside = self.min_offset <= offset and 0 < size_bytes <= self.end - offset
        return is_inside and size_bytes <= self.file_bytes - offset % self.file_bytes

    def record(self, offset: int, size_bytes: int) -> StoredMessage:
        """The record that a queue names, exactly so long. Raises FormatError for none."""
        if not self.holds(offset, size_bytes):
            raise TruncatedRecordError(
                "not in the log", path=self.segments.directory, offset=offset, expected=size_bytes
            )
        view = self.segments.view(offset, size_bytes)
        message = decode_message_at(view)
        if message.commit_log_offset != offset:
            raise BadFieldError(
                "a record of another place", expected=offset, found=message.commit_log_offset
            )
        length_bytes = int.from_bytes(view[:4], "big")
        if length_bytes != size_bytes:
            raise BadFieldError(
                "a record of another length than its queue entry says",
                offset=offset,
                expected=size_bytes,
                found=length_bytes,
            )
        return message

    def readable_record(self, offset: int, size_bytes: int) -> StoredMessage | None:
        """The same record; None where it is damaged or gone, of which is told when it is due."""
        try:
            return self.record(offset, size_bytes)
        except FormatError:
            return None

    def record_of_entry(
        self, topic: str, queue_id: int, queue_offset: int, offset: int
    ) -> tuple[StoredMessage, int] | None:
        """The whole record at ``offset`` if it says that it is that entry of that queue, and its
        length: what an entry leads to of which the length is damaged. None for any other.
        """
        head = self.head(offset)
        record = None if head is None else self.readable_record(offset, head["size_bytes"])
        if head is None or record is None:
            return None
        its = record.topic, record.queue_id, record.queue_offset
        return (record, head["size_bytes"]) if its == (topic, queue_id, queue_offset) else None

    def next_record(self, offset: int) -> int:
        """Where the first whole record begins at or behind ``offset``; -1 when there is none."""
        place = offset + _MAGIC_AT
        while (place := self.segments.find(_MAGICS_BEGIN, place)) >= 0:
            start = place - _MAGIC_AT
            if start % self.file_bytes + SMALLEST_RECORD_BYTES <= self.file_bytes:
                size_bytes = int.from_bytes(self.segments.read_at(start, 4), "big", signed=True)
                with suppress(FormatError):
                    self.record(start, size_bytes)
                    return start
            place += 1
        return -1

    def record_from(self, offset: int) -> StoredMessage | None:
        """The record at ``offset``, or at the beginning of the next file where it had no room;
        None where there is none, or where the place was deleted.
        """
        for place in next_places(offset, self.file_bytes):
            if (head := self.head(place)) is not None:
                return self.readable_record(place, head["size_bytes"])
        return None

    def addresses(self, offsets: Int64s) -> Int64s:
        """Where in memory each of these offsets is, for kernels; -1 outside the log.

        ``rooms`` says how much can be read there.
        """
        is_inside = (offsets >= self.min_offset) & (offsets < self.end)
        return self.segments.addresses(np.where(is_inside, offsets, -1))

    def record_addresses(self, offsets: Int64s, sizes: Int64s) -> Int64s:
        """The memory address of each record; -1 for one that does not lie in the log and in one
        file. Valid while the store's lock is held.
        """
        addresses = self.addresses(offsets)
        addresses[(sizes <= 0) | (sizes > self.rooms(offsets))] = -1
        return addresses

    def rooms(self, offsets: Int64s) -> Int64s:
        """How many bytes each of these offsets has behind it, in its file and in the log."""
        in_file = self.file_bytes - offsets % self.file_bytes
        rooms: Int64s = np.clip(np.minimum(in_file, self.end - offsets), 0, None)
        return rooms

    # --- syncing and keeping ----------------------------------------------------------------------

    def stretches(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """What lies between two places where records begin, file by file: its address in memory,
        its length, and its offset. Valid while the store's lock is held.
        """
        for start in self.segments.starts:
            place = max(start, begin)
            length = min(start + self.file_bytes, self.end, end) - place
            if length > 0:
                yield self.segments.address_of_file(start) + place - start, length, place

    def store_time_ms(self, offset: int) -> int:
        """When the record at ``offset`` was stored; 0 where none begins."""
        head = self.head(offset)
        return 0 if head is None else head["store_timestamp_ms"]

    def head(self, offset: int) -> dict[str, int] | None:
        """The fields of fixed place of the record at ``offset``; None where none begins."""
        if not self.holds(offset, SMALLEST_RECORD_BYTES):
            return None
        head = self.segments.read_at(offset, SMALLEST_RECORD_BYTES)
        fields = HEAD_V4_V4.decode_at(head, 0)
        if fields["magic"] not in (MAGIC_V1, MAGIC_V2) or fields["commit_log_offset"] != offset:
            return None
        if fields["sys_flag"] & SYS_BORN_HOST_IPV6:
            fields = HEAD_V6_V4.decode_at(head.ljust(HEAD_V6_V4.size, b"\0"), 0)
        return fields

    def store_times_ms(self, offsets: Int64s, sizes: Int64s | None = None) -> Int64s:
        """The same for many; ``NO_TIME`` of ``commit_log`` where no record of that size begins."""
        times = np.full(len(offsets), NO_TIME, np.int64)
        offsets = np.ascontiguousarray(offsets, np.int64)
        wanted = np.zeros(len(offsets), np.int64)
        if sizes is not None:
            wanted[:] = np.where(sizes == 0, -1, sizes)
        places = self.addresses(offsets)
        read_store_times(places, self.rooms(offsets), offsets, wanted, times)
        return times

    def queue_ids(self, offsets: Int64s) -> Int64s:
        """The queue that the record at each place names; -1 where no record begins."""
        offsets, found = (
            np.ascontiguousarray(offsets, np.int64),
            np.full(len(offsets), -1, np.int64),
        )
        read_queue_ids(self.addresses(offsets), self.rooms(offsets), offsets, found)
        return found

    def head_checksum(self, offset: int) -> int:
        """CRC-32 of the record's first 91 bytes; 0 if the log is shorter. It distinguishes the
        record from another one appended at the same offset after a power loss.
        """
        if not self.holds(offset, SMALLEST_RECORD_BYTES):
            return 0
        return crc32(self.segments.read_at(offset, SMALLEST_RECORD_BYTES))

    def begin_sync(self) -> Unsynced:
        """Take note of what was written and not synced; the next write will note itself again."""
        self._is_noted = False
        return self.segments.begin_sync()

    def require_unbroken(self) -> None:
        """Raise TargetError after ``break_off``."""
        if self.is_broken:
            raise TargetError(f"{self.segments.directory}: an earlier write failed; open it again")

    def break_off(self) -> None:
        """Refuse every further append: nobody knows any more what is on disk."""
        self.is_broken = True
        self._room_end = _NO_ROOM

    def end_of_expired(self, now_ms: int, retention_ms: int, keep_from: int) -> int:
        """Where the oldest files end whose last record was stored longer than ``retention_ms`` ago;
        where the log begins when there are none.

        Never the last file, never one that ``keep_from`` lies in or before.
        """
        stop, young_ms = self.min_offset, now_ms - retention_ms
        for start in self.segments.starts[:-1]:
            file_end = start + self.file_bytes
            if file_end > min(keep_from, self.end):
                break  # before a look: records only get younger
            if self.store_time_ms(start) > young_ms or self._last_time_ms(start) > young_ms:
                break
            stop = file_end
        return stop

    def _last_time_ms(self, start: int) -> int:
        """When the last record of a full file was stored; if it begins with damage, by what
        is behind it. No file is old where nothing tells.
        """
        if start not in self._last_times_ms:
            place = last_record_of(self.segments.address_of_file(start), self.file_bytes)
            behind = [each for each in self.segments.starts if each > start]
            known = map(self.store_time_ms, [start + place] if place >= 0 else behind)
            if last_ms := next(filter(None, known), None):
                self._last_times_ms[start] = last_ms
        return self._last_times_ms.get(start, LONG_MAX)


class PieceWriter:
    """Writes pieces into a log's files, one behind another; with a thread, while its caller goes on
    to make the next one. Leaving it waits for the last.
    """

    def __init__(self, segments: LiveSegments, *, in_a_thread: bool) -> None:
        self._segments = segments
        self._thread = ThreadPoolExecutor(1) if in_a_thread else None
        self._file_start = 0
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None:
            try:
                self._thread.shutdown()
            finally:  # an interrupt stops no write, and what fails now takes away what was written
                self._thread.shutdown()
        if kind is None:
            self._wait()

    def write(self, offset: int, piece: memoryview) -> None:
        """Write a piece, which lies in one file, when the one before is written; the caller keeps
        it as it is until the next ``write`` comes back. Raises TargetError for either.
        """
        if self._thread is None:
            self._segments.write_at(offset, piece)
            return
        self._wait()
        segments = self._segments
        self._file_start = offset - offset % segments.file_bytes
        # All that changes the row is done here: its owner's lock is held by this thread.
        segments.make_file(self._file_start)
        segments.mark_dirty(self._file_start)
        descriptor, offset = segments.descriptor(self._file_start), offset - self._file_start
        try:
            self._writing = self._thread.submit(write_whole, descriptor, piece, offset)
        except RuntimeError:  # there may be no more threads, as when the main one has ended
            self._thread = None
            segments.write_at(offset, piece)

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        with disk_errors(TargetError, self._segments.path_of(self._file_start), "written"):
            if writing is not None:
                writing.result()


def pieces_of(positions: Int64s, file_bytes: int) -> list[slice]:
    """Rows that are written together: near each other, in one file."""
    pieces, first, count = [], 0, len(positions)
    while first < count:
        start = int(positions[first])
        limit = min(start + PIECE_BYTES, start - start % file_bytes + file_bytes)
        stop = int(np.searchsorted(positions, limit))
        pieces.append(slice(first, stop))
        first = stop
    return pieces
