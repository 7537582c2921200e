# SPDX-License-Identifier: Apache-2.0
"""The files of a time index: a state, which is replaced, and bucket files, which are appended to.

Nothing here is ever synced. All of it follows from the log and the queue, and the checksums of the
state tell what a loss of power left out. A flush costs no more syncs; the index is rebuilt then.
"""

import os
import zlib
from contextlib import suppress
from pathlib import Path

from message_store.base.errors import ChecksumError, TargetError, reason_of
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
    """The directory of one store's time index."""

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
        """The state that was saved last; None where there is none. Raises FormatError for a damaged
        one, SourceError where the disk refuses.
        """
        stored = read_small_file(self.state_path)
        return None if stored is None else IndexState.decode(stored)

    def read(self, saved: SavedBucket) -> Units:
        """The units of a bucket that count. Raises ChecksumError for a file that lacks or changed
        some of them, SourceError where the disk refuses.
        """
        size_bytes = saved.units * INDEX_UNIT.size
        stored = read_piece(self.path_of(saved.start_ms), 0, size_bytes) if size_bytes else b""
        if len(stored) != size_bytes or zlib.crc32(stored) != saved.crc:
            raise ChecksumError("a bucket is damaged", path=self.path_of(saved.start_ms))
        return Units.of(stored)

    def append(self, saved: SavedBucket, stored: bytes) -> None:
        """Put units behind those that count. Raises TargetError."""
        path = self.path_of(saved.start_ms)
        try:
            make_directories(self.directory, is_durable=False)
            descriptor = os.open(path, _FLAGS, 0o644)
            try:
                write_whole(descriptor, memoryview(stored), saved.units * INDEX_UNIT.size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise TargetError(f"{path}: cannot be written: {reason_of(error)}") from error

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
        """Take away the file of a bucket that does not count any more. Where the disk refuses, it
        stays: nobody reads it.
        """
        with suppress(TargetError):
            remove_file(self.path_of(start_ms))
