# SPDX-License-Identifier: Apache-2.0
"""Writes down all that a process changes below one directory, and when it waits for the disk.

What is written through Python's own files is seen when they are synced or renamed: whole, as small
files are written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest


@attrs.frozen
class Write:
    """Bytes at a place of a file; files are known by a number, whatever they are called."""

    file: int
    offset: int
    data: bytes


@attrs.frozen
class Resize:
    """A file's length."""

    file: int
    size_bytes: int


@attrs.frozen
class Sync:
    """All that was written to the file is on the disk: what came before the event at ``until``, or
    before this one.
    """

    file: int
    until: int | None = None


@attrs.frozen
class Name:
    """A name for a file: made, or moved there. ``file`` None: the name is gone, or a directory."""

    path: str
    file: int | None
    is_directory: bool = False
    moved_from: str | None = None


@attrs.frozen
class SyncNames:
    """All names in the directory are on the disk, those that came before ``until``."""

    directory: str
    until: int | None = None


@attrs.frozen
class Note:
    """Something that the test wants to find again."""

    facts: dict[str, Any]


Event = Write | Resize | Sync | Name | SyncNames | Note


class Recorder:
    """The events so far, and which open descriptor and which path is which file."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.events: list[Event] = []
        self._by_inode: dict[tuple[int, int], int] = {}
        self._held: list[int] = []
        self._whole: dict[int, bytes] = {}

    def note(self, **facts: Any) -> None:
        """Put something between the events."""
        self.events.append(Note(facts))

    def take_over(self) -> None:
        """What is there before the first event: all of it is on the disk."""
        for parent, directories, files in sorted(os.walk(self.root)):
            name = self._relative(parent)
            assert name is not None
            self.events += [
                Name(os.path.normpath(os.path.join(name, each)), None, is_directory=True)
                for each in sorted(directories)
            ]
            for each in sorted(files):
                with open(os.path.join(parent, each), "rb") as content:
                    file, data = self._made(content.fileno()), content.read()
                self.events.append(Name(os.path.normpath(os.path.join(name, each)), file))
                self.events.append(Write(file, 0, data))
                self.events.append(Sync(file))
            self.events.append(SyncNames(name))

    def _relative(self, path: object) -> str | None:
        text = os.path.abspath(os.fspath(path))  # type: ignore[call-overload]
        if text == self.root:
            return "."
        return os.path.relpath(text, self.root) if text.startswith(self.root + os.sep) else None

    def _file(self, descriptor: int) -> int | None:
        facts = os.fstat(descriptor)
        return self._by_inode.get((facts.st_dev, facts.st_ino))

    def _made(self, descriptor: int) -> int:
        """A number for a new file, and a handle of our own, so that its inode is not used again."""
        facts = os.fstat(descriptor)
        self._held.append(os.dup(descriptor))
        number = len(self._by_inode)
        self._by_inode[facts.st_dev, facts.st_ino] = number
        return number

    def finish(self) -> None:
        """Give the handles back."""
        while self._held:
            os.close(self._held.pop())

    # --- what os is asked for ---------------------------------------------------------------------

    def open(
        self, real: Callable[..., int], path: Any, flags: int, *more: Any, **named: Any
    ) -> int:
        was_there = os.path.lexists(path)
        descriptor = real(path, flags, *more, **named)
        name = self._relative(path)
        if name is not None and flags & os.O_CREAT:
            if not was_there:
                self.events.append(Name(name, self._made(descriptor)))
            elif flags & os.O_TRUNC and (file := self._file(descriptor)) is not None:
                self.events.append(Resize(file, 0))
        return descriptor

    def pwrite(self, real: Callable[..., int], descriptor: int, data: Any, offset: int) -> int:
        count = real(descriptor, data, offset)
        file = self._file(descriptor)
        if file is not None:
            self.events.append(Write(file, offset, bytes(memoryview(data).cast("B")[:count])))
        return count

    def ftruncate(self, real: Callable[..., None], descriptor: int, size_bytes: int) -> None:
        real(descriptor, size_bytes)
        file = self._file(descriptor)
        if file is not None:
            self.events.append(Resize(file, size_bytes))

    def sync(self, real: Callable[..., None], descriptor: int) -> None:
        real(descriptor)
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(place):
            name = self._relative(place)
            if name is not None:
                self.events.append(SyncNames(name))
        elif (file := self._file(descriptor)) is not None:
            self._look_at(file, place)
            self.events.append(Sync(file))

    def replace(self, real: Callable[..., None], one: Any, other: Any) -> None:
        source, target = self._relative(one), self._relative(other)
        if source is not None and target is not None:
            facts = os.stat(one)
            file = self._by_inode[facts.st_dev, facts.st_ino]
            self._look_at(file, one)
            self.events.append(Name(target, file, moved_from=source))
        real(one, other)

    def unlink(self, real: Callable[..., None], path: Any, **named: Any) -> None:
        real(path, **named)
        name = self._relative(path)
        if name is not None:
            self.events.append(Name(name, None))

    def mkdir(self, real: Callable[..., None], path: Any, *more: Any, **named: Any) -> None:
        real(path, *more, **named)
        name = self._relative(path)
        if name is not None:
            self.events.append(Name(name, None, is_directory=True))

    def _look_at(self, file: int, path: Any) -> None:
        """Whether a small file was written behind our back."""
        if any(isinstance(each, Write) and each.file == file for each in self.events):
            return
        with open(path, "rb") as content:
            data = content.read(1 << 20)
        if data.strip(b"\0") and self._whole.get(file) != data:
            self._whole[file] = data
            self.events.append(Write(file, 0, data))


@contextlib.contextmanager
def recording(root: Path) -> Iterator[Recorder]:
    """Record what changes below ``root``; what is there already is taken to be on the disk."""
    recorder = Recorder(root)
    recorder.take_over()
    ways: dict[str, Callable[..., Any]] = {
        "open": recorder.open,
        "pwrite": recorder.pwrite,
        "ftruncate": recorder.ftruncate,
        "fsync": recorder.sync,
        "fdatasync": recorder.sync,
        "replace": recorder.replace,
        "unlink": recorder.unlink,
        "rmdir": recorder.unlink,
        "mkdir": recorder.mkdir,
    }

    def watched(name: str) -> Callable[..., Any]:
        real, way = getattr(os, name), ways[name]
        return lambda *given, **named: way(real, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        for name in ways:
            patch.setattr(os, name, watched(name))
        try:
            yield recorder
        finally:
            patch.undo()
            recorder.finish()
