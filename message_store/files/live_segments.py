# SPDX-License-Identifier: Apache-2.0
"""A row of segment files that is open for writing: written by ``pwrite``, read by ``pread`` or by
mappings that cannot be written to.

Files are made at their full length, sparse. Nothing is written through a mapping, so a full disk
is an OSError and no SIGBUS. Reading through one is safe: the process holds the store's lock, so
nobody truncates the files. Limitation: where the disk cannot read a page of a mapping, the kernel
ends the process with SIGBUS. Nothing here locks; the owner of the row does.
"""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import (
    SourceError,
    TargetError,
    TruncatedRecordError,
    disk_errors,
    reason_of,
)
from message_store.files.segments import (
    list_segments,
    require_appendable,
    segment_name,
    write_whole,
)
from message_store.files.small_files import identity_of, require_same_directory, sync_directory
from message_store.files.unsynced import Unsynced, handles_of_its_own

Int64s = NDArray[np.int64]

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_ZEROING_BYTES = 1 << 20
_ZEROS = bytes(_ZEROING_BYTES)


@attrs.frozen(eq=False)
class _Mapping:
    """One file in memory, for reading. The memory goes when the last view of ``array`` does."""

    memory: mmap.mmap
    array: NDArray[np.uint8]
    address: int


class LiveSegments:
    """A row of files of one size. An offset counts bytes from the row's beginning.

    Existing files decide the size; ``file_bytes`` is that of a row without files, and
    ``noted_bytes``, if known, the least that the files of a row with one file have. ``root`` is the
    directory down to which new directories are synced, and ``root_identity`` which one stood
    there when the store was opened; ``on_open`` is called before a file is
    opened, and may ``close`` the row: what it needs, it opens again. Raises SourceError for a row
    that nobody can append to; a last file that is too short is lengthened. ``found_end`` is where
    the files ended before that.
    """

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        *,
        noted_bytes: int | None = None,
        root: Path | None = None,
        root_identity: tuple[int, int] | None = None,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = directory
        self.starts: list[int] = []
        self.file_bytes = file_bytes
        self._root = root or directory
        self._root_identity = root_identity or identity_of(self._root)
        self._on_open = on_open
        self._descriptors: dict[int, int] = {}
        self._mappings: dict[int, _Mapping] = {}
        self._dirty: set[int] = set()
        self._unsynced_names: set[Path] = set()
        self._being_synced: list[tuple[set[int], set[Path]]] = []
        self._short_bytes: int | None = None
        self.found_end = 0
        self._load(noted_bytes)

    def _load(self, noted_bytes: int | None) -> None:
        segments = list_segments(self.directory)
        self.file_bytes = require_appendable(segments, self.file_bytes, noted_bytes)
        self.starts = [segment.start_offset for segment in segments]
        self.found_end = self.starts[-1] + segments[-1].length_bytes if segments else 0
        if segments and segments[-1].length_bytes < self.file_bytes:
            self._short_bytes = segments[-1].length_bytes
            self._lengthen(self.starts[-1])

    def restore_length(self) -> None:
        """Cut a last file that was lengthened back: the store is refused. Raises TargetError."""
        if self._short_bytes is not None:
            with disk_errors(TargetError, self.path_of(self.starts[-1]), "shortened"):
                os.ftruncate(self.descriptor(self.starts[-1]), self._short_bytes)
            self._short_bytes = None

    # --- where it begins and ends -----------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Where the row begins; 0 when it has no file."""
        return self.starts[0] if self.starts else 0

    @property
    def end_offset(self) -> int:
        """One past the last byte that there is a file for."""
        return self.starts[-1] + self.file_bytes if self.starts else 0

    def path_of(self, start: int) -> Path:
        """The file that begins at ``start``."""
        return self.directory / segment_name(start)

    def descriptor(self, start: int) -> int:
        """The handle of the file that begins at ``start``, for a caller that writes itself and has
        said so by ``mark_dirty``. Raises TargetError.
        """
        if start not in self._descriptors:
            self._on_open()
            try:
                self._descriptors[start] = os.open(self.path_of(start), _FLAGS)
            except OSError as error:
                raise self.error("opened", start, error) from error
        return self._descriptors[start]

    def mark_dirty(self, start: int) -> None:
        """Say that the file that begins at ``start`` is being written to."""
        self._dirty.add(start)

    def sync_all(self) -> None:
        """Sync every file, whoever wrote it. Raises TargetError."""
        for start in self.starts:
            self.doubt(start)
        self.sync()

    def doubt(self, start: int) -> None:
        """Say that the file that begins at ``start``, and the names that lead to it, may be in
        memory alone: a process wrote them that did not live to sync them.
        """
        self._dirty.add(start)
        names = self.directory.relative_to(self._root).parents
        self._unsynced_names.update([self.directory, *(self._root / each for each in names)])

    def make_file(self, start: int) -> None:
        """Make the file that begins at ``start``, and the files between the row's end and it.

        A row without files begins with it. Nothing happens when it is there. Raises TargetError.
        """
        first = self.starts[-1] + self.file_bytes if self.starts else start
        for file_start in range(first, start + 1, self.file_bytes):
            self._on_open()
            try:
                require_same_directory(self._root, self._root_identity)
                self._make_directory(self.directory)
                flags = _FLAGS | os.O_CREAT
                self._descriptors[file_start] = os.open(self.path_of(file_start), flags, 0o644)
                os.ftruncate(self._descriptors[file_start], self.file_bytes)
            except OSError as error:
                self._unmake(file_start)
                raise self.error("made", file_start, error) from error
            except BaseException:  # an interrupt too may leave an empty file
                self._unmake(file_start)
                raise
            self.starts.append(file_start)
            self._dirty.add(file_start)
            self._unsynced_names.add(self.directory)

    def _unmake(self, file_start: int) -> None:
        """Leave no empty file behind: those before it may be taken away, and then it is a gap."""
        if file_start in self._descriptors:
            os.close(self._descriptors.pop(file_start))
            with suppress(OSError):
                os.unlink(self.path_of(file_start))

    def _make_directory(self, directory: Path) -> None:
        if directory.is_dir():
            return
        if directory != self._root:
            self._make_directory(directory.parent)
        directory.mkdir(parents=True, exist_ok=True)
        self._unsynced_names.add(directory.parent)

    def _lengthen(self, start: int) -> None:
        with disk_errors(TargetError, self.path_of(start), "lengthened"):
            os.ftruncate(self.descriptor(start), self.file_bytes)
        self._dirty.add(start)

    def error(self, what: str, start: int, error: OSError) -> TargetError:
        """The TargetError for a file about which the disk has refused something."""
        return TargetError(f"{self.path_of(start)}: cannot be {what}: {reason_of(error)}")

    # --- writing ----------------------------------------------------------------------------------

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Put these bytes at ``offset``, across files where need be; missing files are made.

        Raises TargetError when the disk refuses; a part may be written then.
        """
        view = memoryview(data).cast("B")
        while view.nbytes:
            start = offset - offset % self.file_bytes
            self.make_file(start)
            self._dirty.add(start)
            here = view[: start + self.file_bytes - offset]
            try:
                count = os.pwrite(self.descriptor(start), here, offset - start)
            except OSError as error:
                raise self.error("written", start, error) from error
            offset += count
            view = view[count:]

    def zero_from(self, offset: int) -> int:
        """Zero everything from ``offset`` on, and remove the files that begin behind it.

        It works from the back to the front: valid bytes behind ``offset`` never follow zeroed ones.
        Holes stay holes. Returns how many bytes were not zero. Raises TargetError.
        """
        while self.starts and self.starts[-1] > offset:
            self._remove(self.starts[-1])
        nonzero_bytes = 0
        pieces = list(self._data_pieces(self.starts[-1], offset)) if self.starts else []
        for position, size_bytes in reversed(pieces):
            used = np.flatnonzero(np.frombuffer(self.read_at(position, size_bytes), np.uint8))
            if len(used):
                first, last = int(used[0]), int(used[-1]) + 1
                self.write_at(position + first, memoryview(_ZEROS)[: last - first])
                nonzero_bytes += len(used)
        return nonzero_bytes

    def has_data_from(self, offset: int) -> bool:
        """Whether any file holds any byte but zero from ``offset`` on."""
        starts = [start for start in self.starts if start + self.file_bytes > offset]
        pieces = (piece for start in starts for piece in self._data_pieces(start, offset))
        return any(any(self.read_at(*piece)) for piece in pieces)

    def save_from(self, offset: int, path: Path) -> None:
        """Copy what lies from ``offset`` on to a file, durably, with holes. Raises TargetError."""
        temporary = path.with_name(f".{path.name}.new")
        with disk_errors(TargetError, path, "written"):
            path.parent.mkdir(exist_ok=True)
            descriptor = os.open(temporary, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                os.ftruncate(descriptor, self.end_offset - offset)
                for start in [start for start in self.starts if start + self.file_bytes > offset]:
                    for position, size_bytes in self._data_pieces(start, offset):
                        data = memoryview(self.read_at(position, size_bytes))
                        write_whole(descriptor, data, position - offset)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
            sync_directory(path.parent)
            sync_directory(path.parent.parent)

    def holes(self) -> list[int]:
        """Where the files begin that hold no data at all, as far as the file system tells. Raises
        SourceError.
        """
        try:
            return [each for each in self.starts if not self.path_of(each).stat().st_blocks]
        except OSError as error:
            raise SourceError(f"{self.directory}: cannot be read: {reason_of(error)}") from error

    def find(self, wanted: bytes, offset: int) -> int:
        """Where these bytes are next, from ``offset`` on and within one file; -1 for nowhere."""
        for start in [start for start in self.starts if start + self.file_bytes > offset]:
            # Not through a mapping: to look at a hole makes pages of it on a file system in memory.
            for position, size_bytes in self._data_pieces(start, offset):
                stop = min(position + size_bytes + len(wanted) - 1, start + self.file_bytes)
                if (found := self.read_at(position, stop - position).find(wanted)) >= 0:
                    return position + found
        return -1

    def _data_pieces(self, start: int, offset: int) -> Iterator[tuple[int, int]]:
        """The parts of one file from ``offset`` on that are no holes, in pieces of bounded size."""
        if offset >= start + self.file_bytes:
            return
        descriptor, position = self.descriptor(start), max(offset - start, 0)
        while position < self.file_bytes:
            try:
                position = os.lseek(descriptor, position, os.SEEK_DATA)
                hole = os.lseek(descriptor, position, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # no data behind this place
                    return
                path = self.path_of(start)
                raise SourceError(f"{path}: cannot be read: {reason_of(error)}") from error
            while position < hole:
                size_bytes = min(hole - position, _ZEROING_BYTES)
                yield start + position, size_bytes
                position += size_bytes

    def delete_before(self, offset: int) -> list[Path]:
        """Take away the files that end at or before ``offset``, but never the last one.

        Oldest first, so that a stop at any point leaves a row without gaps. What was mapped of them
        stays readable. Raises TargetError.
        """
        gone = []
        while len(self.starts) > 1 and self.starts[0] + self.file_bytes <= offset:
            gone.append(self._remove(self.starts[0]))
        return gone

    def remove_all(self) -> None:
        """Take away all files, the last one first. Raises TargetError."""
        while self.starts:
            self._remove(self.starts[-1])

    def _remove(self, start: int) -> Path:
        path = self.path_of(start)
        with disk_errors(TargetError, self.path_of(start), "removed"):
            os.unlink(path)
        self._unsynced_names.add(self.directory)
        self.starts.remove(start)
        self._dirty.discard(start)
        if start in self._descriptors:
            os.close(self._descriptors.pop(start))
        self._mappings.pop(start, None)
        return path

    # --- reading ----------------------------------------------------------------------------------

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Exactly these bytes, of one file. Raises TruncatedRecordError when they are not there."""
        start = offset - offset % self.file_bytes
        if not self._holds(offset, size_bytes):
            raise self._missing(offset, size_bytes)
        try:
            data = os.pread(self.descriptor(start), size_bytes, offset - start)
        except OSError as error:
            raise SourceError(
                f"{self.path_of(start)}: cannot be read: {reason_of(error)}"
            ) from error
        if len(data) != size_bytes:
            raise self._missing(offset, size_bytes)
        return data

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """These bytes of one file, as they are in memory and as they change.

        Valid also after the row was closed. Raises TruncatedRecordError when they are not there.
        """
        if not self._holds(offset, size_bytes):
            raise self._missing(offset, size_bytes)
        start = offset - offset % self.file_bytes
        return self._mapping(start).array.data[offset - start :][:size_bytes]

    def _holds(self, offset: int, size_bytes: int) -> bool:
        is_inside = self.min_offset <= offset < self.end_offset
        return is_inside and 0 <= size_bytes <= self.file_bytes - offset % self.file_bytes

    def _missing(self, offset: int, size_bytes: int) -> TruncatedRecordError:
        return TruncatedRecordError(
            "the files do not hold these bytes",
            path=self.directory,
            offset=offset,
            expected=size_bytes,
        )

    def addresses(self, offsets: Int64s) -> Int64s:
        """The memory address of each offset (int64), for kernels; -1 outside the row.

        From an address to the end of its file all bytes can be read, until the file is deleted or
        the row closed. A file is mapped when one of its offsets is first requested.
        """
        addresses = np.full(len(offsets), -1, np.int64)
        indexes = (offsets - self.min_offset) // self.file_bytes
        if len(indexes) and int(indexes.min()) == int(indexes.max()) and indexes[0] >= 0:
            present = [int(indexes[0])]  # the most frequent case, and it needs no sorting
        else:
            present = np.unique(indexes).tolist()
        for index in present:
            if 0 <= index < len(self.starts):
                start = self.starts[index]
                here = indexes == index
                addresses[here] = offsets[here] + (self._mapping(start).address - start)
        return addresses

    def address_of_file(self, start: int) -> int:
        """Where in memory the file that begins at ``start`` is."""
        return self._mapping(start).address

    def _mapping(self, start: int) -> _Mapping:
        if start not in self._mappings:
            try:
                memory = mmap.mmap(self.descriptor(start), self.file_bytes, prot=mmap.PROT_READ)
            except (OSError, ValueError) as error:
                path = self.path_of(start)
                raise SourceError(f"{path}: cannot be mapped: {reason_of(error)}") from error
            array = np.frombuffer(memory, np.uint8)
            self._mappings[start] = _Mapping(memory, array, int(array.ctypes.data))
        return self._mappings[start]

    # --- syncing and closing ----------------------------------------------------------------------

    def begin_sync(self) -> Unsynced:
        """Note all that was written and not synced; ``finish`` may run without a lock.

        Data that another thread is still syncing counts as not synced. Raises TargetError when a
        file cannot be opened.
        """
        starts, names = note = self._dirty, self._unsynced_names
        self._dirty, self._unsynced_names = set(), set()
        if self._being_synced:
            for others, other_names in tuple(self._being_synced):  # who is done leaves unlocked
                starts.update(others)
                names.update(other_names)
        self._being_synced.append(note)
        files = list(starts)
        if files and files != self.starts[-1:]:  # most often the last alone, of maybe thousands
            files = sorted(starts.intersection(self.starts))
        try:
            descriptors = handles_of_its_own(map(self.descriptor, files))
        except OSError as error:
            raise self.error("synced", files[0], error) from error
        directories = tuple(sorted(names, key=lambda path: -len(path.parts))) if names else ()
        return Unsynced(descriptors, directories, partial(self._being_synced.remove, note))

    def sync(self) -> None:
        """Come back when all that was written is on disk. Raises TargetError."""
        self.begin_sync().finish()

    @property
    def is_dirty(self) -> bool:
        """Whether anything was written that nobody synced."""
        return bool(self._dirty or self._unsynced_names or self._being_synced)

    def close(self) -> None:
        """Give the files back, as they are; closing twice is fine."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
        self._mappings.clear()
