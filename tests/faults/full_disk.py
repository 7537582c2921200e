# SPDX-License-Identifier: Apache-2.0
"""A disk that is full from some change on, until room is made; or before which a process dies."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

KILLED = 9
"""What a process answers that ended itself at a change, as a kill would have it."""

_PAGE_BYTES = 4096
CHANGES = ("pwrite", "pwritev", "ftruncate", "replace", "mkdir", "link", "fsync", "fdatasync")


class Killed(BaseException):
    """Stands for SIGKILL in a process that lives on: nothing changes any more."""


@attrs.define
class FullDisk:
    """Changes are counted from 0; those from ``full_at`` on are refused, so many times.

    The first write that is refused may still write the beginning of what it was given, as disks do
    that are nearly full. ``is_fatal`` ends the process there, which leaves the pages before it.
    ``is_kill`` raises Killed instead, there and at every later change.
    """

    full_at: int
    refusals: int = 10**9
    done: int = 0
    refused: int = 0
    is_torn: bool = False
    is_fatal: bool = False
    is_kill: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the next change is refused."""
        return self.done >= self.full_at and self.refused < self.refusals

    def change(self, name: str, real: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Do it, or refuse."""
        if not self.is_full:
            self.done += 1
            return real(*given, **options)
        self.refused += 1
        if self.is_torn and self.refused == 1 and name == "pwrite" and len(given[1]) > 1:
            self.done += 1
            descriptor, data, place = given
            size_bytes = len(data) // 2
            if self.is_fatal:  # a kill leaves whole pages
                size_bytes = _PAGE_BYTES - place % _PAGE_BYTES
                size_bytes = size_bytes if size_bytes < len(data) else 0
            count = real(descriptor, memoryview(data).cast("B")[:size_bytes], place)
            if not self.is_fatal:
                return count
        if self.is_fatal:
            os._exit(KILLED)
        if self.is_kill:
            raise Killed
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _CountedFile:
    """A file that Python opened itself: of ``Path.write_bytes``, and of ``numpy.save``, which takes
    it for no real file and so writes through it.
    """

    def __init__(self, file: Any, disk: FullDisk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        """A change, which reaches the disk at once: a buffer would hide which one was refused."""

        def write_through(data: Any) -> int:
            count = self._file.write(data)
            self._file.flush()
            return int(count)

        return int(self._disk.change("write", write_through, data))

    def __enter__(self) -> _CountedFile:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _lies_below(root: Path, given: object) -> bool:
    """Whether a path, or what a descriptor is open on, is the root or lies in it."""
    if isinstance(given, int):
        given = os.readlink(f"/proc/self/fd/{given}")
    return Path(os.fspath(given)).is_relative_to(root)  # type: ignore[call-overload]


@contextlib.contextmanager
def full_disk(
    root: Path,
    full_at: int,
    refusals: int = 10**9,
    *,
    is_torn: bool = False,
    is_fatal: bool = False,
    is_kill: bool = False,
) -> Iterator[FullDisk]:
    """A full disk for everything that this process changes below ``root`` meanwhile."""
    disk = FullDisk(full_at, refusals, is_torn=is_torn, is_fatal=is_fatal, is_kill=is_kill)
    real_open = os.open

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(where: Any, *given: Any, **options: Any) -> Any:
            if _lies_below(root, where):
                return disk.change(name, real, where, *given, **options)
            return real(where, *given, **options)

        return change

    real_python_open = io.open

    def python_open(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        is_written = any(letter in mode for letter in "wax+")
        if isinstance(file, int) or not is_written or not _lies_below(root, file):
            return real_python_open(file, mode, *more, **options)
        opened = disk.change("open", real_python_open, file, mode, *more, **options)
        return _CountedFile(opened, disk)

    def make_or_open(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_CREAT and not os.path.lexists(path) and _lies_below(root, path):
            return int(disk.change("open", real_open, path, flags, *more, **options))
        return real_open(path, flags, *more, **options)

    with pytest.MonkeyPatch.context() as patch:
        for name in (*CHANGES, "unlink") if is_fatal or is_kill else CHANGES:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        patch.setattr(os, "open", make_or_open)
        patch.setattr(io, "open", python_open)
        patch.setattr(builtins, "open", python_open)
        yield disk
