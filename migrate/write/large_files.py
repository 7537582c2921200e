# SPDX-License-Identifier: Apache-2.0
"""Writes large files front to back, each by one writer, past the page cache where possible."""

import errno
import mmap
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from migrate.write.staging import WRITE_FLAGS, target_errors

_PAGE_BYTES = 4096
_STREAM_BYTES = 4 << 20
"""Bytes per write call: a quarter of it halved throughput while the cores were busy (measured)."""

_spare_buffers: list[mmap.mmap] = []
"""Buffers of closed streams, reused: fresh ones have to be faulted in."""


def _take_buffer() -> mmap.mmap:
    """A buffer for two writes, its contents undefined; of huge pages, where there are any."""
    size_bytes = 2 * _STREAM_BYTES
    with suppress(IndexError):
        return _spare_buffers.pop()
    fresh = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        fresh.madvise(mmap.MADV_HUGEPAGE)
    return fresh


def create_file(path: Path, size_bytes: int) -> None:
    """Make a new sparse file of this length. Raises TargetError."""
    with target_errors(path):
        descriptor = os.open(path, WRITE_FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.ftruncate(descriptor, size_bytes)
        finally:
            os.close(descriptor)


class FileStream:
    """The bytes of a file from ``offset`` on, front to back.

    Whole pages are written with O_DIRECT. A target larger than memory then neither evicts the
    source from the cache nor waits for memory (measured: buffered output falls to a third). The
    pages at both ends go through the cache: what lies in front of ``offset`` stays. Disks without
    direct writing get everything through the cache.

    ``room`` returns memory for the next bytes; ``advance`` hands them over. A thread writes one
    buffer while the next is filled. A context manager: leaving it writes the rest, and syncs if
    ``durably``; on shared disks only the machine that wrote can.
    """

    def __init__(self, path: Path, offset: int, *, durably: bool = False) -> None:
        self._path = path
        self._durably = durably
        self._page_start = offset // _PAGE_BYTES * _PAGE_BYTES
        self._begin = self._filled = offset - self._page_start
        self._writer = ThreadPoolExecutor(1, "file-stream")
        self._writing: Future[None] | None = None
        with target_errors(path):
            self._cached = os.open(path, WRITE_FLAGS)
            try:
                self._direct = os.open(path, WRITE_FLAGS | os.O_DIRECT)
            except OSError:
                self._direct = self._cached
        self._buffer, self._other = _take_buffer(), _take_buffer()

    def room(self, count: int) -> NDArray[np.uint8]:
        """Memory for the next ``count`` bytes; to be filled before the next call."""
        needed = self._filled + count
        if needed > len(self._buffer):
            larger = mmap.mmap(-1, needed + _STREAM_BYTES)
            larger[: self._filled] = self._buffer[: self._filled]
            self._buffer = larger
        return np.frombuffer(self._buffer, np.uint8, count, self._filled)

    def advance(self, count: int) -> None:
        """Hand over the bytes of the last ``room``. Raises TargetError, also for earlier ones."""
        self._filled += count
        if self._filled >= _STREAM_BYTES:
            self._write(self._filled // _PAGE_BYTES * _PAGE_BYTES)

    def _write(self, end: int) -> None:
        """Write the buffer up to ``end``, a page border; the rest moves to the other buffer."""
        self._wait()
        rest = self._filled - end
        self._other[:rest] = self._buffer[end : self._filled]
        self._writing = self._writer.submit(
            self._write_pages, self._buffer, self._begin, end, self._page_start
        )
        self._buffer, self._other = self._other, self._buffer
        self._page_start += end
        self._begin, self._filled = 0, rest

    def _wait(self) -> None:
        """Until the bytes handed over are written, or the disk's refusal is raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            with target_errors(self._path):
                writing.result()

    def _write_pages(self, buffer: mmap.mmap, begin: int, end: int, page_start: int) -> None:
        view = memoryview(buffer)
        if begin:  # the first page holds what was there before as well
            self._put(self._cached, view[begin:_PAGE_BYTES], page_start + begin)
            begin = _PAGE_BYTES
        self._put(self._direct, view[begin:end], page_start + begin)

    def _put(self, descriptor: int, data: memoryview, offset: int) -> None:
        while data.nbytes:
            try:
                count = os.pwrite(descriptor, data, offset)
            except OSError as error:
                if error.errno != errno.EINVAL or descriptor == self._cached:
                    raise
                os.close(self._direct)  # opens direct, but does not write so
                descriptor = self._direct = self._cached
                continue
            offset += count
            data = data[count:]

    def __enter__(self) -> "FileStream":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                whole = self._filled // _PAGE_BYTES * _PAGE_BYTES
                if whole > self._begin:
                    self._write(whole)
                self._wait()
                with target_errors(self._path):
                    rest = memoryview(self._buffer)[self._begin : self._filled]
                    self._put(self._cached, rest, self._page_start + self._begin)
                    if self._durably:
                        os.fsync(self._cached)
        finally:
            self._writer.shutdown()
            for descriptor in {self._cached, self._direct}:
                os.close(descriptor)
            own = self._buffer, self._other  # of a record longer than both they are longer
            _spare_buffers.extend(each for each in own if len(each) <= 2 * _STREAM_BYTES)


def write_sparse(path: Path, size_bytes: int, pieces: Iterable[tuple[int, bytes]]) -> None:
    """Write a new file of this length with holes between the pieces. Raises TargetError."""
    with target_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, WRITE_FLAGS | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.ftruncate(descriptor, size_bytes)
            for offset, data in pieces:
                view = memoryview(data)
                while view.nbytes:  # a disk that is nearly full takes a part of it
                    count = os.pwrite(descriptor, view, offset)
                    offset += count
                    view = view[count:]
        finally:
            os.close(descriptor)
