# SPDX-License-Identifier: Apache-2.0
"""One consume queue open for writing: entries go to its end, in the order of the log.

A unit that crosses a page is written from its end. What a killed process leaves of it is a unit
without its offset, or with a part of that, which recovery writes again. Nothing here locks; the
store does.
"""

import bisect
from functools import partial
from pathlib import Path

import numpy as np

from message_store.base.errors import TargetError
from message_store.files.live_segments import Int64s, LiveSegments
from message_store.files.segments import write_small
from message_store.files.unsynced import Unsynced
from message_store.format.queue_unit import PRE_BLANK, QUEUE_UNIT
from message_store.reading.consume_queue import UnitArray, is_filled, is_pre_blank, read_queue

NEUTRAL_SIZE = 1
"""Size of an entry that nobody delivers any more: it points at the last byte of its record."""

NATIVE_UNIT = QUEUE_UNIT.dtype.newbyteorder("=")

_UNIT_BYTES = QUEUE_UNIT.size
_TAGS_CODE_AT = QUEUE_UNIT.offset_of("tags_code")
_PAGE_BYTES = 4096
_NO_ROOM = -1
_FILES_AT_THE_END = 4
_pack = QUEUE_UNIT.packer.pack


class LiveQueue:
    """The queue of one topic and queue id. It has no files before its first entry.

    ``max_offset`` is the queue offset that the next entry gets, ``min_offset`` that of the oldest
    one whose record the log still has; ``end_position`` is where in the log the last entry's record
    ends, 0 when there is none. Made by ``open_queue``.
    ``rest`` are the commit log offsets of the entries that the last ``cut`` removed: neutral ones
    lead to the end of their record, whatever became of their size. RocketMQ: ConsumeQueue (4.9.7).
    """

    def __init__(self, topic: str, queue_id: int, segments: LiveSegments) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = segments
        self.min_offset = 0
        self.max_offset = 0
        self.end_position = 0
        self.needs_repair = False
        self.rest: Int64s = np.empty(0, np.int64)
        self._file_start = 0
        self._file_end = _NO_ROOM
        self._descriptor = -1

    def load(self, log_min: int) -> None:
        """Find where the entries begin and end: the first unit without a size, in the last three
        files, is the end. RocketMQ: ConsumeQueue#recover (4.9.7).

        Raises FormatError and SourceError for a queue in which that cannot be told.
        """
        segments = self.segments
        # A queue ends in one of its last three files, or before them if those are empty.
        first = min(segments.starts[-_FILES_AT_THE_END:], default=0) // _UNIT_BYTES
        entries = read_queue(
            segments.directory, file_bytes=segments.file_bytes, from_queue_offset=first
        )
        self.max_offset = entries.queue_max
        self.min_offset = entries.queue_min
        if len(entries):
            self.end_position = self._end_of(entries.units[-1:])
        self.correct_min_offset(log_min)
        ends_in_nothing = bool(len(entries)) and not bool(is_filled(entries.units[-1:])[0])
        self.needs_repair = (
            entries.is_damaged
            or ends_in_nothing
            or segments.has_data_from(self.max_offset * _UNIT_BYTES)
        )

    @staticmethod
    def _end_of(unit: UnitArray) -> int:
        if is_pre_blank(unit)[0]:
            return 0
        return int(unit["commit_log_offset"][0]) + int(unit["size_bytes"][0])

    # --- writing ----------------------------------------------------------------------------------

    def append_one(self, commit_log_offset: int, size_bytes: int, tags_code: int) -> int:
        """Put one entry at the end; returns its queue offset. Raises TargetError."""
        queue_offset = self.max_offset
        position = queue_offset * _UNIT_BYTES
        if position + _UNIT_BYTES > self._file_end:
            self._enter_file(position)
        unit = _pack(commit_log_offset, size_bytes, tags_code)
        try:  # _write_unit, but for what calling it costs
            write_small(self._descriptor, unit, position - self._file_start)
        except OSError as error:
            raise self._unwritten(error) from error
        self.max_offset = queue_offset + 1
        self.end_position = commit_log_offset + size_bytes
        return queue_offset

    def _write_unit(self, unit: bytes, place: int) -> None:
        try:
            write_small(self._descriptor, unit, place)
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> TargetError:
        self._file_end = _NO_ROOM
        return self.segments.error("written", self._file_start, error)

    def _enter_file(self, position: int) -> None:
        self._file_end = _NO_ROOM
        start = position - position % self.segments.file_bytes
        self.segments.make_file(start)
        self.segments.mark_dirty(start)
        self._descriptor = self.segments.descriptor(start)
        self._file_start, self._file_end = start, start + self.segments.file_bytes

    def append(self, units: UnitArray) -> int:
        """Put many entries at the end, in any byte order; returns the first one's queue offset.

        The first is written last, so that a killed process leaves all or none of them.
        """
        first = self.max_offset
        if not len(units):
            return first
        stored = np.ascontiguousarray(units, QUEUE_UNIT.dtype)  # copied only where it has to be
        position = first * _UNIT_BYTES
        self._enter_file(position)
        if len(stored) > 1:
            self.segments.write_at(position + _UNIT_BYTES, stored[1:].view(np.uint8).data)
        self._enter_file(position)
        self._write_unit(stored[:1].tobytes(), position - self._file_start)
        self.max_offset = first + len(units)
        self.end_position = self._end_of(stored[-1:])
        return first

    def overwrite(
        self, queue_offset: int, commit_log_offset: int, size_bytes: int, tags_code: int
    ) -> None:
        """Replace an entry by that of a record which the log has; the queue begins with it where
        nothing told of one before. Raises TargetError, and ValueError for one that is not there.
        """
        if not self.segments.min_offset <= queue_offset * _UNIT_BYTES < self._end_place:
            raise ValueError(f"queue offset {queue_offset} of {self.topic}/{self.queue_id}")
        self._enter_file(queue_offset * _UNIT_BYTES)
        unit = _pack(commit_log_offset, size_bytes, tags_code)
        self._write_unit(unit, queue_offset * _UNIT_BYTES - self._file_start)
        self._file_end = _NO_ROOM
        self.min_offset = min(self.min_offset, queue_offset)
        if queue_offset == self.max_offset - 1:
            self.end_position = commit_log_offset + size_bytes

    def neutralise(self, queue_offsets: Int64s, size_bytes: int) -> None:
        """Rewrite entries to point at the last ``size_bytes`` bytes of their records.

        Brokers find no record there and skip them. ``queue_offsets`` ascend; those that the queue
        does not have are ignored. The queue's end does not change. The size of an entry that
        crosses a page is written first: whatever a kill leaves of it is the old entry, or one that
        nobody delivers. Raises TargetError; any of the entries may be written then.
        """
        for run in self._runs(queue_offsets):
            first, last = int(run[0]), int(run[-1])
            units = self.units(first, last + 1).astype(QUEUE_UNIT.dtype)
            chosen = units[run - first]
            ends = chosen["commit_log_offset"] + chosen["size_bytes"].astype(np.int64)
            chosen["commit_log_offset"], chosen["size_bytes"] = ends - size_bytes, size_bytes
            units[run - first] = chosen
            self._enter_file(first * _UNIT_BYTES)
            # Up to the last one's tags code, which stays.
            data = units.tobytes()[: _TAGS_CODE_AT - _UNIT_BYTES]
            self._write_unit(data, first * _UNIT_BYTES - self._file_start)
        self._file_end = _NO_ROOM

    def _runs(self, queue_offsets: Int64s) -> list[Int64s]:
        """The entries that are there, those of one page together; one that crosses a page alone."""
        first = self.first_offset
        there = (queue_offsets >= first) & (queue_offsets < self.max_offset)
        offsets = np.asarray(queue_offsets[there], np.int64)
        if not len(offsets):
            return []
        places = offsets * _UNIT_BYTES % self.segments.file_bytes
        files = offsets * _UNIT_BYTES // self.segments.file_bytes
        pages = places // _PAGE_BYTES
        crosses = (places + _UNIT_BYTES - 1) // _PAGE_BYTES != pages
        begins = (np.diff(pages) != 0) | (np.diff(files) != 0) | crosses[1:] | crosses[:-1]
        return np.split(offsets, np.flatnonzero(begins) + 1)

    @property
    def _end_place(self) -> int:
        return self.max_offset * _UNIT_BYTES

    def begin_at(self, queue_offset: int) -> None:
        """Let a queue without entries begin at this queue offset; blank units fill its first file
        up to there. RocketMQ: ConsumeQueue#fillPreBlank (4.9.7).

        A queue of blank units only was left by a process that was killed here, and begins anew.
        """
        if self.end_position or queue_offset == self.max_offset:
            return
        if not is_pre_blank(self.units(0, self.max_offset)).all():
            return
        self.segments.remove_all()
        self._file_end = _NO_ROOM
        self.min_offset = self.max_offset = 0
        if queue_offset == 0:
            return
        position = queue_offset * _UNIT_BYTES
        start = position - position % self.segments.file_bytes
        blanks = (position - start) // _UNIT_BYTES
        self.segments.make_file(start)
        self.segments.write_at(start, PRE_BLANK * blanks)
        self.min_offset = self.max_offset = queue_offset

    def cut(self, log_end: int) -> int:
        """Remove the entries at the end whose records do not lie before ``log_end``, and all bytes
        behind the end; returns how many entries were removed.
        RocketMQ: ConsumeQueue#truncateDirtyLogicFiles (4.9.7).
        """
        kept = self.max_offset
        while kept > self.first_offset:
            low = max(self.first_offset, kept - 4096)
            units = self.units(low, kept)
            # The sum could be beyond what 64 bits hold.
            rooms = log_end - np.maximum(units["commit_log_offset"], 0)
            is_inside = is_filled(units) & (units["size_bytes"] <= rooms)
            inside = np.flatnonzero(is_inside | is_pre_blank(units))
            kept = low + int(inside[-1]) + 1 if len(inside) else low
            if len(inside):
                break
        taken = self.max_offset - kept
        rest = self._stored(kept, self.segments.end_offset // _UNIT_BYTES)
        self.rest = rest["commit_log_offset"][rest["commit_log_offset"] > 0].astype(np.int64)
        self.segments.zero_from(kept * _UNIT_BYTES)
        self._file_end = _NO_ROOM
        self.max_offset = kept
        last = self.units(kept - 1, kept)
        self.end_position = self._end_of(last) if len(last) else 0
        self.min_offset = min(self.min_offset, kept)
        self.needs_repair = False
        return taken

    # --- reading ----------------------------------------------------------------------------------

    def units(self, from_offset: int, to_offset: int) -> UnitArray:
        """The entries from one queue offset up to another, as far as there are files for them; a
        copy, in the machine's byte order.
        """
        first = max(from_offset, self.first_offset)
        return self._stored(first, max(first, min(to_offset, self.max_offset)))

    def _stored(self, first: int, last: int) -> UnitArray:
        stored = np.empty(last - first, QUEUE_UNIT.dtype)
        self.copy_units(first, stored.view(np.uint8).data)
        return stored.astype(NATIVE_UNIT)

    def copy_units(self, first: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes of entries from a queue offset on. Raises
        TruncatedRecordError where there are no files for them.
        """
        position, done = first * _UNIT_BYTES, 0
        while done < target.nbytes:
            room = self.segments.file_bytes - (position + done) % self.segments.file_bytes
            size_bytes = min(room, target.nbytes - done)
            target[done : done + size_bytes] = self.segments.read_at(position + done, size_bytes)
            done += size_bytes

    @property
    def ends_with_file(self) -> bool:
        """Whether its last file is full: only the log tells whether another one is lost."""
        return self.max_offset > 0 and self._end_place % self.segments.file_bytes == 0

    @property
    def first_offset(self) -> int:
        """The queue offset at which the files begin."""
        return self.segments.min_offset // _UNIT_BYTES

    def first_behind(self, commit_log_offset: int) -> int:
        """The queue offset of the first entry whose record lies behind this offset. What a record
        itself says of that is off after a rebuild.
        """
        entries = range(self.max_offset)
        key = partial(self._record_at, otherwise=commit_log_offset)
        return bisect.bisect_right(entries, commit_log_offset, self.min_offset, key=key)

    def last_record_until(self, commit_log_offset: int) -> int:
        """The commit log offset of the last entry's record that begins there or before; -1 if
        there is none.
        """
        return self._record_at(self.first_behind(commit_log_offset) - 1, -1)

    def first_record(self, otherwise: int) -> int:
        """The commit log offset of the first entry's record; ``otherwise`` without entries."""
        return self._record_at(self.min_offset, otherwise)

    def first_record_of_files(self, otherwise: int) -> int:
        """The same for the first entry that a file has, though the log may not have its record."""
        return self._record_at(self.first_offset, otherwise)

    def _record_at(self, queue_offset: int, otherwise: int) -> int:
        unit = self.units(queue_offset, queue_offset + 1)
        return int(unit["commit_log_offset"][0]) if len(unit) else otherwise

    # --- syncing and keeping ----------------------------------------------------------------------

    def begin_sync(self) -> Unsynced:
        """Take note of what was written and not synced; the next write will note itself again."""
        self._file_end = _NO_ROOM
        return self.segments.begin_sync()

    def delete_before(self, log_min: int) -> list[Path]:
        """Remove the files whose records the log does not have any more, never the last one.
        RocketMQ: ConsumeQueue#deleteExpiredFile (4.9.7).
        """
        try:
            return self.segments.delete_before(self._begin_of_needed(log_min))
        finally:  # its records are deleted, also where a file stays
            self.correct_min_offset(log_min)

    def _begin_of_needed(self, log_min: int) -> int:
        """Where the first file begins that has an entry whose record the log has, or the last.

        A file without entries, as a loss of power leaves it, may have had some: it is as needed as
        the one behind it.
        """
        begin = None
        for start in self.segments.starts[:-1]:
            begin = start if begin is None else begin
            last = (start + self.segments.file_bytes) // _UNIT_BYTES
            if last > self.max_offset:  # what is damaged has files behind its end
                return begin
            units = self.units(last - 1, last)
            if not is_filled(units).all():
                units = self.units(start // _UNIT_BYTES, last)
                units = units[is_filled(units)]
            if len(units):
                if self._end_of(units[-1:]) > log_min:
                    return begin
                begin = None
        return max(self.segments.starts, default=0) if begin is None else begin

    def correct_min_offset(self, log_min: int) -> None:
        """Let the queue begin with the first entry whose record the log still has.
        RocketMQ: ConsumeQueue#correctMinOffset (4.9.7).
        """
        first = self._begin_of_needed(log_min) // _UNIT_BYTES  # a kill may have left files before
        while True:
            units = self.units(first, first + self.segments.file_bytes // _UNIT_BYTES)
            is_there = (units["commit_log_offset"] >= log_min) & is_filled(units)
            places = np.flatnonzero(is_there & ~is_pre_blank(units))
            if len(places) or not len(units):
                break
            first += len(units)
        self.min_offset = first + (int(places[0]) if len(places) else 0)

    def close(self) -> None:
        """Give the files back; closing twice is fine."""
        self._file_end = _NO_ROOM
        self.segments.close()
