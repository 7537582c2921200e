# SPDX-License-Identifier: Apache-2.0
"""The disk below a directory, as this process changes it. Each change is counted and recorded, and
fails where it is told to. What a loss of power leaves of the changes is put together again.

A kill leaves every change that was made. A loss of power leaves what was synced, and any part of
the rest: data in any order and torn between sectors, names and lengths up to somewhere, as a file
system's journal has them.

What native code writes is not seen here, except for files that are synced or renamed by Python. The
database of a hierarchical wheel is taken as it is at each write that waits for the disk.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs
import pytest

from tests.faults.damage import data_ranges

KILLED = 9
"""What a process answers that ended itself at a change, as a kill would have it."""

PAGE_BYTES = 4096
SECTOR_BYTES = 512
_REFUSED = ("pwrite", "pwritev", "ftruncate", "replace", "rename", "mkdir", "link", "fsync")
_REMOVING = ("unlink", "rmdir")
_SYNCS = ("fsync", "fdatasync")
"""After one that failed the kernel takes what it could not write for written: the next one says
nothing of that.
"""
_ODD = frozenset(("", ".", ".."))
"""Parts of a path that is not yet as short as it can be."""
CHANGES = (*_REFUSED, "fdatasync", *_REMOVING)
"""What ``os`` is asked for; making a file and writing through Python's own are changes too."""


# --- what happened --------------------------------------------------------------------------------


def _told(data: bytes) -> str:
    return f"{len(data)} bytes {crc32(data):08x}"


@attrs.frozen
class Write:
    """Bytes at a place of a file; files are known by a number, whatever they are called."""

    file: int
    offset: int
    data: bytes = attrs.field(repr=_told)


@attrs.frozen
class Resize:
    """A file's length."""

    file: int
    size_bytes: int


@attrs.frozen
class Sync:
    """All that was written to the file is on the disk: what came before the event at ``until``, or
    before this one; but nothing of before ``since``, where an earlier sync failed.
    """

    file: int
    until: int | None = None
    since: int = 0


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
class Foreign:
    """A directory that native code writes, as it is on the disk now. No two databases that were
    told the same have the same bytes.
    """

    directory: str
    files: dict[str, bytes] = attrs.field(repr=False, eq=False)


@attrs.frozen
class Note:
    """Something that the test wants to find again."""

    facts: dict[str, Any]


Event = Write | Resize | Sync | Name | SyncNames | Foreign | Note


# --- what fails -----------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL in a process that lives on: nothing changes any more."""


@attrs.define
class Failing:
    """Changes are counted from 0; those from ``at`` on fail, ``times`` of them.

    ``how``: "full" refuses for want of room, "error" because the device fails; "kill" raises
    Killed, there and at every later change; "interrupt" raises KeyboardInterrupt before the change;
    "exit" ends this process. A torn write still leaves whole pages of what it was given, if any: a
    full disk lacks room for pages, and refuses nothing within one.
    """

    at: int
    how: str = "full"
    times: int = 10**9
    is_torn: bool = False
    done: int = 0
    failed: int = 0
    changes: list[tuple[str, int | None]] = attrs.field(factory=list)
    """Each change that was made, and how much of it a kill would leave in part, if anything."""
    torn: tuple[int, int, bytes] | None = None
    """What was written of the change that a kill tore: descriptor, offset, data."""

    @property
    def is_now(self) -> bool:
        """Whether the next change fails."""
        return self.done >= self.at and self.failed < self.times

    @property
    def is_death(self) -> bool:
        """Whether the process does not live on."""
        return self.how in ("kill", "exit")

    def attempt(self, name: str, real: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Make the change, or fail."""
        if name in _REMOVING and not self.is_death and self.how != "interrupt":
            return real(*given, **options)  # what needs no room is not refused
        part = _part_of_a_write(name, given)
        if not self.is_now:
            self.done += 1
            self.changes.append((name, part))
            return real(*given, **options)
        self.failed += 1
        if self.is_torn and self.failed == 1 and name == "pwrite" and len(given[1]) > 1:
            descriptor, data, offset = given
            size_bytes = part or 0
            count = real(descriptor, memoryview(data).cast("B")[:size_bytes], offset)
            if not self.is_death and count:
                self.done += 1
                return count
            self.torn = descriptor, offset, bytes(memoryview(data).cast("B")[:size_bytes])
        raise self._error()

    def _error(self) -> BaseException:
        if self.how == "exit":
            os._exit(KILLED)
        if self.how == "kill":
            return Killed()
        if self.how == "interrupt":
            return KeyboardInterrupt()
        number = errno.EIO if self.how == "error" else errno.ENOSPC
        return OSError(number, os.strerror(number))


def _part_of_a_write(name: str, given: Sequence[Any]) -> int | None:
    """How much of a write is in the pages before its last one; None where it has no more."""
    if name != "pwrite":
        return None
    _, data, offset = given
    size_bytes = memoryview(data).nbytes
    part = (offset + size_bytes - 1) // PAGE_BYTES * PAGE_BYTES - offset
    return part if 0 < part < size_bytes else None


# --- the disk -------------------------------------------------------------------------------------


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


class SimulatedDisk:
    """The events so far, and which descriptor and which path is which file."""

    def __init__(self, root: Path, failing: Failing | None = None, *, records: bool = True) -> None:
        self.root = os.path.abspath(root)
        self.failing = failing
        self.before_change: Callable[[], None] = lambda: None
        """Called before each change, when another thread may make one."""
        self.before_reading: Callable[[], None] | None = None
        """The same before a file is opened to be read, where somebody looks beside."""
        self.events: list[Event] = []
        self._records = records
        self._files: dict[tuple[int, int], int] = {}
        self._held: list[int] = []
        weakref.finalize(self, _close, self._held)  # also of a disk that nobody has watched
        self._failed_since: dict[int | None, int] = {}
        self._count = -1
        self._is_paused = False

    @property
    def refused(self) -> int:
        """How many changes failed."""
        return self.failing.failed if self.failing else 0

    @property
    def is_full(self) -> bool:
        """Whether the next change fails."""
        return self.failing is not None and self.failing.is_now

    def note(self, **facts: Any) -> None:
        """Put something between the events."""
        self.events.append(Note(facts))

    def pause(self) -> None:
        """What changes until ``go_on`` is the test's own work and no part of the run."""
        self._is_paused = True

    def go_on(self) -> None:
        """Watch again."""
        self._is_paused = False

    def opened_again(self) -> None:
        """Whoever opens a store syncs what it relies on, and hears of what fails then."""
        self._failed_since.clear()

    def rebind(self) -> None:
        """The directory was put there anew: its files are still those of before."""
        names, _ = _names_after(self.events, Cut(len(self.events), frozenset()))
        for name, file in names.items():
            path = os.path.join(self.root, name)
            if file is not None and os.path.exists(path):
                self._held.append(os.open(path, os.O_RDONLY))
                facts = os.fstat(self._held[-1])
                self._files[facts.st_dev, facts.st_ino] = file

    def take_over(self) -> None:
        """What is there before the first event: all of it is on the disk."""
        for parent, directories, files in sorted(os.walk(self.root)):
            name = self.below(parent)
            assert name is not None
            for each in sorted(directories):
                path = os.path.normpath(os.path.join(name, each))
                self.events.append(Name(path, None, is_directory=True))
            for each in sorted(files):
                path = os.path.join(parent, each)
                descriptor = os.open(path, os.O_RDONLY)
                self._take_file(descriptor, os.path.relpath(path, self.root))
                os.close(descriptor)
            self.events.append(SyncNames(name))

    def _take_file(self, descriptor: int, name: str) -> int:
        """A file whose writes were not seen: everything in it, on the disk."""
        file, size_bytes = self._made(descriptor), os.fstat(descriptor).st_size
        self.events += [Name(name, file), Resize(file, size_bytes)]
        for first, last in data_ranges(descriptor):
            self.events.append(Write(file, first, os.pread(descriptor, last - first, first)))
        self.events.append(Sync(file))
        return file

    def foreign(self, directory: Path) -> None:
        """Native code has waited for what it wrote into a directory."""
        name = self.below(directory)
        if name is None:
            return
        while True:
            try:
                files = {path.name: path.read_bytes() for path in sorted(directory.glob("*"))}
                sizes = {path.name: path.stat().st_size for path in directory.glob("*")}
            except FileNotFoundError:  # one that is not needed any more went in between
                continue
            if sizes != {name: len(data) for name, data in files.items()}:
                continue  # the database works in the background
            self.events.append(Foreign(name, files))
            return

    def below(self, given: object, directory: int | None = None) -> str | None:
        """The path of a file, or of what a descriptor is open on, if it is the root or in it."""
        if self._is_paused:
            return None
        if isinstance(given, int):
            given = os.readlink(f"/proc/self/fd/{given}")
        text = os.fspath(given)  # type: ignore[call-overload]
        if directory is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{directory}"), text)
        if not text.startswith(os.sep) or not _ODD.isdisjoint(text[1:].split(os.sep)):
            text = os.path.abspath(text)
        if text == self.root:
            return "."
        below = self.root + os.sep
        return text[len(below) :] if text.startswith(below) else None

    def _file(self, descriptor: int) -> int | None:
        facts = os.fstat(descriptor)
        return self._files.get((facts.st_dev, facts.st_ino))

    def _made(self, descriptor: int) -> int:
        """A number for a new file, and a handle of our own, so that its inode is not used again."""
        facts = os.fstat(descriptor)
        self._held.append(os.dup(descriptor))
        number = self._count = self._count + 1
        self._files[facts.st_dev, facts.st_ino] = number
        return number

    def finish(self) -> None:
        """Give the handles back."""
        _close(self._held)

    # --- what os is asked for ---------------------------------------------------------------------

    def change(
        self, name: str, real: Callable[..., Any], where: Any, *given: Any, **options: Any
    ) -> Any:
        """A change of the file or name at ``where``."""
        place = self.below(where, options.get("dir_fd"))
        if place is None:
            return real(where, *given, **options)
        begun = len(self.events)
        self.before_change()
        before = self._moved(name, where, place) if self._records else None
        try:
            answer = self._attempt(name, real, where, *given, **options)
        except BaseException as error:
            self._record_torn()
            has_failed = isinstance(error, OSError)  # a kill is none: the kernel goes on
            if has_failed and self._records and name in _SYNCS and isinstance(where, int):
                self._failed_since[self._file(where)] = begun
            raise
        if self._records:
            # A sync tells nothing of what was written after it had begun.
            until = begun if begun < len(self.events) else None
            self._record(name, place, before, where, given, answer, until)
        return answer

    def _attempt(self, name: str, real: Callable[..., Any], *given: Any, **options: Any) -> Any:
        if self.failing is None:
            return real(*given, **options)
        return self.failing.attempt(name, real, *given, **options)

    def _record_torn(self) -> None:
        if self._records and self.failing is not None and self.failing.torn is not None:
            descriptor, offset, data = self.failing.torn
            self.failing.torn = None
            file = self._file(descriptor)
            if file is not None and data:
                self.events.append(Write(file, offset, data))

    def _moved(self, name: str, where: Any, place: str) -> int | None:
        """Which file gets another name."""
        if name not in ("replace", "rename", "link") or os.path.isdir(where):
            return None
        facts = os.stat(where)
        file = self._files.get((facts.st_dev, facts.st_ino))
        if file is None:
            descriptor = os.open(where, os.O_RDONLY)
            file = self._take_file(descriptor, place)
            os.close(descriptor)
        return file

    def _record(
        self,
        name: str,
        place: str,
        moved: int | None,
        where: Any,
        given: Any,
        answer: Any,
        until: int | None,
    ) -> None:
        if name in _REMOVING:
            self.events.append(Name(place, None))
        elif name == "mkdir":
            self.events.append(Name(place, None, is_directory=True))
        elif name in ("replace", "rename", "link"):
            target = self.below(given[0])
            if target is not None:
                is_kept = name == "link"
                self.events.append(Name(target, moved, moved is None, None if is_kept else place))
        elif name in ("fsync", "fdatasync") and os.path.isdir(os.path.join(self.root, place)):
            self.events.append(SyncNames(place, until))
        else:
            self._record_data(name, place, where, given, answer, until)

    def _record_data(
        self,
        name: str,
        place: str,
        descriptor: int,
        given: Any,
        answer: Any,
        until: int | None,
    ) -> None:
        file = self._file(descriptor)
        if file is None:
            self._take_file(descriptor, place)
        elif name == "pwrite":
            data, offset = given
            self.events.append(Write(file, offset, bytes(memoryview(data).cast("B")[:answer])))
        elif name == "pwritev":
            data = b"".join(bytes(memoryview(each).cast("B")) for each in given[0])
            self.events.append(Write(file, given[1], data[:answer]))
        elif name == "ftruncate":
            self.events.append(Resize(file, given[0]))
        else:
            self.events.append(Sync(file, until, self._failed_since.get(file, 0)))

    def open(self, real: Callable[..., int], path: Any, flags: int, *more: Any, **how: Any) -> int:
        """Open a file; to make it is a change."""
        place = self.below(path, how.get("dir_fd")) if flags & os.O_CREAT else None
        if place is None:
            if self.before_reading is not None and self.below(path, how.get("dir_fd")):
                self.before_reading()
            return real(path, flags, *more, **how)
        self.before_change()
        if os.path.lexists(os.path.join(self.root, place)):
            descriptor = real(path, flags, *more, **how)
            self._emptied(descriptor, bool(flags & os.O_TRUNC))
            return descriptor
        descriptor = int(self._attempt("open", real, path, flags, *more, **how))
        if self._records:
            self.events.append(Name(place, self._made(descriptor)))
        return descriptor

    def _emptied(self, descriptor: int, is_truncated: bool) -> None:
        file = self._file(descriptor) if self._records and is_truncated else None
        if file is not None:
            self.events.append(Resize(file, 0))

    def python_open(
        self, real: Callable[..., Any], file: Any, mode: str = "r", *more: Any, **how: Any
    ) -> Any:
        """What ``open`` and ``os.fdopen`` are asked for."""
        is_written = any(letter in mode for letter in "wax+")
        place = self.below(file) if is_written else None
        if place is None:
            return real(file, mode, *more, **how)
        if isinstance(file, int):
            return _SeenFile(real(file, mode, *more, **how), self)
        was_there = os.path.lexists(file)
        opened = self._attempt("open", real, file, mode, *more, **how)
        if self._records and not was_there:
            self.events.append(Name(place, self._made(opened.fileno())))
        else:
            self._emptied(opened.fileno(), "w" in mode)
        return _SeenFile(opened, self)

    def wrote(self, descriptor: int, first: int, last: int, data: Any) -> None:
        """Something went through one of Python's own files."""
        file = self._file(descriptor) if self._records and last > first else None
        if file is None:
            return
        if not isinstance(data, str) and memoryview(data).nbytes == last - first:
            self.events.append(Write(file, first, bytes(data)))
            return
        with open(f"/proc/self/fd/{descriptor}", "rb") as again:
            again.seek(first)
            self.events.append(Write(file, first, again.read(last - first)))


class _SeenFile:
    """A file that Python opened itself: of ``Path.write_bytes``, and of ``numpy.save``, which takes
    it for no real file and so writes through it.
    """

    def __init__(self, file: Any, disk: SimulatedDisk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        """A change, which reaches the disk at once: a buffer would hide which one was refused."""
        descriptor = self._file.fileno()

        self._disk.before_change()

        def write_through(data: Any) -> int:
            first = os.lseek(descriptor, 0, os.SEEK_CUR)
            count = self._file.write(data)
            self._file.flush()
            self._disk.wrote(descriptor, first, os.lseek(descriptor, 0, os.SEEK_CUR), data)
            return int(count)

        return int(self._disk._attempt("write", write_through, data))

    def __enter__(self) -> _SeenFile:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextlib.contextmanager
def simulated(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """Put the disk under everything that this process changes meanwhile."""
    real_open, real_python_open = os.open, io.open

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(os, name)
        return lambda where, *given, **how: disk.change(name, real, where, *given, **how)

    def open_one(path: Any, flags: int, *more: Any, **how: Any) -> int:
        return disk.open(real_open, path, flags, *more, **how)

    def python_open(file: Any, mode: str = "r", *more: Any, **how: Any) -> Any:
        return disk.python_open(real_python_open, file, mode, *more, **how)

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, watched(name))
        patch.setattr(os, "open", open_one)
        patch.setattr(io, "open", python_open)
        patch.setattr(builtins, "open", python_open)
        try:
            yield disk
        finally:
            patch.undo()
            disk.finish()


@contextlib.contextmanager
def recording(root: Path) -> Iterator[SimulatedDisk]:
    """Record what changes below ``root``; what is there already is taken to be on the disk."""
    disk = SimulatedDisk(root)
    disk.take_over()
    with simulated(disk):
        yield disk


@contextlib.contextmanager
def full_disk(
    root: Path,
    full_at: int,
    refusals: int = 10**9,
    *,
    is_torn: bool = False,
    is_fatal: bool = False,
    is_kill: bool = False,
) -> Iterator[SimulatedDisk]:
    """A full disk for everything that this process changes below ``root`` meanwhile; or one before
    whose change the process ends (``is_fatal``), or Killed is raised (``is_kill``).
    """
    how = "exit" if is_fatal else "kill" if is_kill else "full"
    failing = Failing(full_at, how, refusals, is_torn)
    with simulated(SimulatedDisk(root, failing, records=False)) as disk:
        yield disk


# --- what a loss of power leaves ------------------------------------------------------------------


@attrs.frozen
class Loose:
    """Indexes of events that nobody waited for, up to some moment."""

    data: tuple[int, ...]
    names: tuple[int, ...]


def loose(events: Sequence[Event], moment: int) -> Loose:
    """What may be missing when the power goes before the event at ``moment``."""
    data: list[int] = []
    names: list[int] = []
    for index, event in enumerate(events[:moment]):
        if isinstance(event, Write):
            data.append(index)
        elif isinstance(event, Name | Resize):
            names.append(index)
        elif isinstance(event, Sync):
            until = index if event.until is None else event.until
            told = range(event.since, until)
            data = [
                each for each in data if each not in told or not _is_of(events[each], event.file)
            ]
            names = [
                each for each in names if each not in told or not _is_of(events[each], event.file)
            ]
        elif isinstance(event, SyncNames):
            until = index if event.until is None else event.until
            before = [each for each in names if each < until]
            gone = _gone(events, before, event.directory)
            kept = {
                each
                for each in before
                if not _lies_in(events[each], event.directory)
                and not _lies_below(events[each], gone)
            }
            names = [each for each in names if each >= until or each in kept]
    return Loose(tuple(data), tuple(names))


def unsynced_files(events: Sequence[Event], moment: int) -> set[str]:
    """The files that a loss of power at this moment may leave otherwise than they are: their data,
    their lengths, or that they are there at all.
    """
    names, _ = _names_after(events, Cut(moment, frozenset()))
    paths = {file: path for path, file in names.items() if file is not None}
    found = loose(events, moment)
    left: set[str | None] = set()
    for event in (events[index] for index in found.data + found.names):
        if isinstance(event, Write | Resize):
            left.add(paths.get(event.file))  # None: it has no name any more
        elif isinstance(event, Name) and names.get(event.path) == event.file:
            left.add(event.path)
    return {path for path in left if path is not None}


def _is_of(event: Event, file: int) -> bool:
    return isinstance(event, Write | Resize) and event.file == file


def _lies_in(event: Event, directory: str) -> bool:
    return isinstance(event, Name) and (os.path.dirname(event.path) or ".") == directory


def _gone(events: Sequence[Event], names: Sequence[int], directory: str) -> tuple[str, ...]:
    """The names that were taken out of a directory: what lay below them is gone with them."""
    found = (events[index] for index in names)
    return tuple(
        f"{event.path}{os.sep}"
        for event in found
        if isinstance(event, Name)
        and event.file is None
        and not event.is_directory
        and _lies_in(event, directory)
    )


def _lies_below(event: Event, places: tuple[str, ...]) -> bool:
    return isinstance(event, Name) and event.path.startswith(places)


@attrs.frozen
class Cut:
    """One way in which the power may go: before ``moment``, without the events in ``missing``, and
    only the first bytes of the one at ``torn``.
    """

    moment: int
    missing: frozenset[int]
    torn: int | None = None
    torn_bytes: int = 0


def nothing_unsynced(events: Sequence[Event], moment: int, *, names_too: bool) -> Cut:
    """All data is missing that nobody waited for; and, if so wanted, all such names and lengths."""
    found = loose(events, moment)
    return Cut(moment, frozenset(found.data + (found.names if names_too else ())))


def every_choice(events: Sequence[Event], moment: int, last: int) -> Iterator[Cut]:
    """Each choice among the last so many writes that nobody waited for; all else is there."""
    candidates = loose(events, moment).data[-last:]
    for choice in range(1 << len(candidates)):
        missing = (index for bit, index in enumerate(candidates) if choice >> bit & 1)
        yield Cut(moment, frozenset(missing))


def any_choice(events: Sequence[Event], moment: int, rng: random.Random) -> Cut:
    """Some choice among all writes that nobody waited for, and the names up to somewhere."""
    found = loose(events, moment)
    share = rng.choice([0.02, 0.2, 0.5, 0.9])
    missing = {index for index in found.data if rng.random() < share}
    if found.names and rng.random() < 0.5:
        missing |= set(found.names[rng.randrange(len(found.names)) :])
        missing |= _beyond_the_length(events, found, missing)
    writes = [index for index in found.data if index not in missing]
    if writes and rng.random() < 0.5:
        torn = rng.choice(writes[-10:])
        event = events[torn]
        assert isinstance(event, Write)
        sectors = len(event.data) // SECTOR_BYTES
        size_bytes = SECTOR_BYTES * rng.randint(0, sectors) - event.offset % SECTOR_BYTES
        return Cut(moment, frozenset(missing), torn, max(0, size_bytes))
    return Cut(moment, frozenset(missing))


def any_files(events: Sequence[Event], moment: int, rng: random.Random) -> Cut:
    """All writes to some files are there that nobody waited for, and none to the others."""
    found = loose(events, moment)
    files = sorted({_file_of(events[index]) for index in found.data})
    gone = {file for file in files if rng.random() < 0.5}
    return Cut(moment, frozenset(i for i in found.data if _file_of(events[i]) in gone))


def _file_of(event: Event) -> int:
    assert isinstance(event, Write | Resize)
    return event.file


def _beyond_the_length(events: Sequence[Event], found: Loose, missing: set[int]) -> set[int]:
    """Writes to files whose length is not there: what lies behind a file's end is not its."""
    short = {event.file for index in missing if isinstance(event := events[index], Resize)}
    return {
        index
        for index in found.data
        if isinstance(event := events[index], Write) and event.file in short
    }


def make_disk(events: Sequence[Event], cut: Cut, root: Path) -> None:
    """Put there what the disk holds after this cut."""
    names, foreign = _names_after(events, cut)
    root.mkdir(parents=True)
    descriptors: dict[int, int] = {}
    paths: dict[int, Path] = {}
    for name, file in sorted(names.items()):
        path = root / name
        (path if file is None else path.parent).mkdir(parents=True, exist_ok=True)
        if file in paths:
            os.link(paths[file], path)
        elif file is not None:
            paths[file] = path
            descriptors[file] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _write_contents(events, cut, descriptors)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    for directory, files in foreign.items():
        (root / directory).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (root / directory / name).write_bytes(content)


def _names_after(
    events: Sequence[Event], cut: Cut
) -> tuple[dict[str, int | None], dict[str, dict[str, bytes]]]:
    names: dict[str, int | None] = {}
    foreign: dict[str, dict[str, bytes]] = {}
    for index, event in enumerate(events[: cut.moment]):
        if isinstance(event, Foreign):
            foreign[event.directory] = event.files
        if not isinstance(event, Name) or index in cut.missing:
            continue
        if event.moved_from is not None:
            _move(names, event.moved_from, event.path)
        if event.file is None and not event.is_directory:
            for path in [each for each in names if each.startswith(event.path + os.sep)]:
                names.pop(path)  # native code took it away, unseen
            names.pop(event.path, None)
            foreign.pop(event.path, None)
        elif event.file is not None or event.moved_from is None:
            names[event.path] = event.file
    # What native code wrote is there as it was found, and no more.
    natively = tuple(each + os.sep for each in foreign)
    left = (each for each in names.items() if not each[0].startswith(natively))
    return {path: file for path, file in left if path != "."}, foreign


def _move(names: dict[str, int | None], source: str, target: str) -> None:
    """A name, and where it is a directory's all that lie below it."""
    for path in [each for each in names if each == source or each.startswith(source + os.sep)]:
        names[target + path.removeprefix(source)] = names.pop(path)


def _write_contents(events: Sequence[Event], cut: Cut, descriptors: dict[int, int]) -> None:
    for index, event in enumerate(events[: cut.moment]):
        if index in cut.missing or not isinstance(event, Write | Resize):
            continue
        descriptor = descriptors.get(event.file)
        if descriptor is None:
            continue
        if isinstance(event, Resize):
            os.ftruncate(descriptor, event.size_bytes)
        else:
            data = event.data[: cut.torn_bytes] if index == cut.torn else event.data
            os.pwrite(descriptor, data, event.offset)
