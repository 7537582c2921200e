# SPDX-License-Identifier: Apache-2.0
"""Ten minutes of a time index: the units of its file, those to be appended, and the messages that
are pending.

The file of a bucket is read when its time comes, or when somebody asks for it. Until then memory
has only the units that are not in the file yet.
"""

import os
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

from message_store.base.errors import ChecksumError, TargetError, disk_errors
from message_store.columns.byte_column import Int64s
from message_store.files.segments import list_segments, write_whole
from message_store.files.small_files import (
    make_directories,
    read_piece,
    read_small_file,
    remove_file,
    replace_file,
)
from message_store.files.store_root import StoreRoot
from message_store.reading.engine_choice import time_index_state
from time_index.layouts import INDEX_UNIT, IndexState, SavedBucket, Units

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class IndexFiles:
    """The directory of one store's time index: a state, which is replaced, and bucket files, which
    are appended to.

    Nothing here is ever synced. All of it follows from the log and the queue, and the checksums of
    the state tell what a loss of power left out: the index is rebuilt then.
    """

    def __init__(self, root: StoreRoot) -> None:
        self.state_path = time_index_state(root)
        self.directory = self.state_path.parent

    def path_of(self, start_ms: int) -> Path:
        """The file of a bucket."""
        return self.directory / f"{start_ms:020d}"

    def starts(self) -> set[int]:
        """The buckets that have a file, whether it counts or not."""
        return {segment.start_offset for segment in list_segments(self.directory)}

    def read_state(self) -> IndexState | None:
        """The state that was saved last, or None. Raises FormatError, SourceError."""
        stored = read_small_file(self.state_path)
        return None if stored is None else IndexState.decode(stored)

    def read(self, saved: SavedBucket) -> Units:
        """The units of a bucket that count. Raises ChecksumError if some changed, SourceError."""
        size_bytes = saved.units * INDEX_UNIT.size
        stored = read_piece(self.path_of(saved.start_ms), 0, size_bytes) if size_bytes else b""
        if len(stored) != size_bytes or zlib.crc32(stored) != saved.crc:
            raise ChecksumError("a bucket is damaged", path=self.path_of(saved.start_ms))
        return Units.of(stored)

    def append(self, saved: SavedBucket, stored: bytes) -> None:
        """Put units behind those that count. Raises TargetError."""
        path = self.path_of(saved.start_ms)
        with disk_errors(TargetError, path, "written"):
            make_directories(self.directory, is_durable=False)
            descriptor = os.open(path, _FLAGS, 0o644)
            try:
                write_whole(descriptor, memoryview(stored), saved.units * INDEX_UNIT.size)
            finally:
                os.close(descriptor)

    def write_state(self, state: IndexState) -> None:
        """From here on this is what counts. Raises TargetError."""
        replace_file(self.state_path, state.encode(), is_durable=False)

    def forget_state(self) -> None:
        """What the files say counts no more. Where the disk refuses, the state stays, and tells of
        another log or of other files.
        """
        with suppress(TargetError):
            remove_file(self.state_path)

    def remove(self, start_ms: int) -> None:
        """Remove the file of a bucket that counts no more; if the disk refuses, nobody reads it."""
        with suppress(TargetError):
            remove_file(self.path_of(start_ms))


_FRESH_PART = 8
_FRESH_LEAST = 4_096


class Bucket:
    """The messages that are due in one span of time.

    ``saved`` is what the file has, ``count`` how many messages wait; ``first_offset`` is where the
    first record lies of all that ever waited here. Whoever calls holds the store's lock.
    """

    def __init__(self, files: IndexFiles, saved: SavedBucket) -> None:
        self.saved = saved
        self.count = saved.pending
        self.first_offset = saved.first_offset
        self._files = files
        self._unsaved: list[Units] = []
        self._rows: Units | None = None
        self._fresh: list[Units] = []

    def add(self, units: Units) -> None:
        """These messages wait, too; at least one, in the order of the log."""
        self._unsaved.append(units)
        self.count += len(units)
        self.first_offset = min(self.first_offset, int(units.offsets[0]))
        if self._rows is not None:
            self._fresh.append(units)

    def load(self) -> None:
        """Bring the pending units to memory. Raises ChecksumError if some changed, SourceError."""
        if self._rows is None:
            self._rows = self.look()

    def look(self) -> Units:
        """The pending units, in the order of delivery; raises as ``load``."""
        if self._rows is not None:
            self._merge()
            return self._rows
        rows = Units.together([self._files.read(self.saved), *self._unsaved]).pending()
        if len(rows) != self.count:
            raise ChecksumError("a bucket is not as it was saved", expected=self.count)
        return rows

    def _merge(self) -> None:
        if self._fresh and self._rows is not None:
            self._rows = Units.together([self._rows, *self._fresh]).in_order()
            self._fresh = []

    def first_due_ms(self) -> int | None:
        """When the first of a loaded bucket is due."""
        if self._rows is None:
            return None
        parts = [self._rows.due_ms[:1], *(units.due_ms for units in self._fresh)]
        return min((int(part.min()) for part in parts if len(part)), default=None)

    def due(self, now_ms: int) -> Units:
        """What is due of a loaded bucket, in the order of delivery. It stays: see ``drop_due``."""
        if self._rows is None:
            return Units.none()
        if sum(map(len, self._fresh)) * _FRESH_PART > len(self._rows) + _FRESH_LEAST:
            self._merge()
        due = self._rows.rows(slice(0, self._end_of_due(self._rows, now_ms)))
        fresh = Units.together(self._fresh)
        fresh = fresh.rows(fresh.due_ms <= now_ms)
        return Units.together([due, fresh]).in_order() if len(fresh) else due

    @staticmethod
    def _end_of_due(rows: Units, now_ms: int) -> int:
        return int(np.searchsorted(rows.due_ms, now_ms, side="right"))

    def drop_due(self, now_ms: int) -> None:
        """What was due waits no more: it was delivered."""
        if self._rows is None:
            return
        self._note_taken(self.due(now_ms))
        rows, fresh = self._rows, Units.together(self._fresh)
        self._rows = rows.rows(slice(self._end_of_due(rows, now_ms), None))
        fresh = fresh.rows(fresh.due_ms > now_ms)
        self._fresh = [fresh] if len(fresh) else []

    def take_out(self, offsets: Int64s) -> None:
        """Take the messages at these offsets out of a loaded bucket, as far as they wait there."""
        rows = self.look()
        is_taken = np.isin(rows.offsets, offsets)
        if is_taken.any():
            self._rows = rows.rows(~is_taken)
            self._note_taken(rows.rows(is_taken))

    def _note_taken(self, taken: Units) -> None:
        if len(taken):
            self._unsaved.append(taken.taken_out())
            self.count -= len(taken)

    def save(self) -> None:
        """Append to the file what it lacks. Raises TargetError."""
        if self._unsaved:
            stored = Units.together(self._unsaved).to_bytes()
            self._files.append(self.saved, stored)
            self.saved = self.saved.after(stored, self.count, self.first_offset)
            self._unsaved = []
