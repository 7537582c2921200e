# SPDX-License-Identifier: Apache-2.0
"""The one writer of a target's large files: made sparse in a staging place, filled in any order,
published last.

While a conversion runs, everything lies under ``TARGET/delaywheel/staging``, and where the wheel
belongs stands a stub of the wrong length, on which a broker refuses to start: an unfinished target
cannot be booted by mistake. Publishing renames the finished parts to where a broker looks for
them; the wheel file comes last, over the stub.
"""

import errno
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.errors import PlanError, TargetError
from message_store.layout import Buffer
from message_store.segment_files import segment_name
from message_store.small_files import read_small_file, replace_file, sync_directory
from message_store.store_root import StoreRoot
from timer_wheel.wheel_file import WHEEL_FILE_BYTES

UNFINISHED_WHEEL = b"delaywheel: this conversion is not finished; run the same command again\n"
_PUBLISHED_FIRST = ("config", "consumequeue", "timerlog", "commitlog")
_PAGE_BYTES = 4096
_STREAM_BYTES = 1 << 20
"""Stays in the cache of a core between the making and the writing."""

_WRITE_FLAGS = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def target_errors(path: Path) -> Iterator[None]:
    """Turn the disk's refusal into a TargetError that names the place."""
    try:
        yield
    except OSError as error:
        raise TargetError(
            f"{error.filename or path}: cannot be written: {error.strerror}"
        ) from error


@attrs.frozen
class Staging:
    """The places of an unfinished conversion within its target directory."""

    target: StoreRoot

    @property
    def path(self) -> Path:
        """Everything unfinished."""
        return self.target.own / "staging"

    @property
    def store(self) -> StoreRoot:
        """The broker's files as they are being made."""
        return StoreRoot(self.path / "store")

    @property
    def plan_file(self) -> Path:
        """The plan's facts, JSON."""
        return self.path / "plan.json"

    def plan_array(self, name: str) -> Path:
        """One array of the plan."""
        return self.path / "plan" / f"{name}.npy"

    def receipt(self, part: int) -> Path:
        """What the writer of a part has to say about it, JSON; there once the part is written."""
        return self.path / "parts" / f"{part:06d}.json"


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array for the executors. Raises TargetError."""
    with target_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)


def load_array(path: Path) -> NDArray[Any]:
    """The array, mapped: take copies of slices. Raises TargetError when it is not there, PlanError
    when it is torn.
    """
    try:
        with target_errors(path):
            mapped: NDArray[Any] = np.load(path, mmap_mode="r")
            return mapped
    except (ValueError, EOFError) as error:
        raise PlanError(f"{path}: a torn array of the plan; remove it and convert anew") from error


def write_note(path: Path, content: bytes) -> None:
    """A small file that appears whole or not at all, without waiting for the disk: it can be made
    again.
    """
    with target_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(content)
        os.replace(temporary, path)


def create_row(directory: Path, *, count: int, file_bytes: int) -> None:
    """Make ``count`` files of a row, sparse and of full length; files that are there keep their
    contents.
    """
    with target_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            path = directory / segment_name(number * file_bytes)
            descriptor = os.open(path, _WRITE_FLAGS | os.O_CREAT, 0o644)
            try:
                os.ftruncate(descriptor, file_bytes)
            finally:
                os.close(descriptor)


class RowWriter:
    """Writes at any place of a row of files that ``create_row`` made; parts never overlap. A
    context manager.
    """

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._descriptors: dict[int, int] = {}

    def write_at(self, offset: int, data: Buffer) -> None:
        """Put all of ``data`` at ``offset`` of the row, across files. Raises TargetError."""
        view = memoryview(data).cast("B")
        with target_errors(self._directory):
            while view.nbytes:
                start = offset // self._file_bytes * self._file_bytes
                piece = view[: start + self._file_bytes - offset]
                count = os.pwrite(self._descriptor(start), piece, offset - start)
                offset += count
                view = view[count:]

    def _descriptor(self, start: int) -> int:
        if start not in self._descriptors:
            path = self._directory / segment_name(start)
            self._descriptors[start] = os.open(path, _WRITE_FLAGS)
        return self._descriptors[start]

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(self, *_exception: object) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


class PartStream:
    """The bytes of one part of one file, front to back, past the page cache where the disk allows.

    Whole pages go out with O_DIRECT: a target larger than memory then neither pushes the source out
    of the cache nor waits for memory (measured: buffered output falls to a third there). The pages
    at both ends, which neighbouring parts share, are written through the cache, so that parts may
    be written at the same time. Disks that know no direct writing get all of it through the cache.

    ``room`` gives the place for the next bytes, ``advance`` says that they are there. A context
    manager; leaving it writes the rest.
    """

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self._buffer = mmap.mmap(-1, 2 * _STREAM_BYTES)
        self._page_start = offset // _PAGE_BYTES * _PAGE_BYTES
        self._begin = self._filled = offset - self._page_start
        with target_errors(path):
            self._cached = os.open(path, _WRITE_FLAGS)
            try:
                self._direct = os.open(path, _WRITE_FLAGS | os.O_DIRECT)
            except OSError:
                self._direct = self._cached

    def room(self, count: int) -> NDArray[np.uint8]:
        """The place of the next ``count`` bytes; to be filled before the next call."""
        needed = self._filled + count
        if needed > len(self._buffer):
            larger = mmap.mmap(-1, needed + _STREAM_BYTES)
            larger[: self._filled] = self._buffer[: self._filled]
            self._buffer = larger
        return np.frombuffer(self._buffer, np.uint8, count, self._filled)

    def advance(self, count: int) -> None:
        """The bytes of the last ``room`` are there. Raises TargetError."""
        self._filled += count
        if self._filled >= _STREAM_BYTES:
            self._write(self._filled // _PAGE_BYTES * _PAGE_BYTES)

    def _write(self, end: int) -> None:
        """Write what is there up to ``end``, a page border, and keep the rest."""
        view = memoryview(self._buffer)
        with target_errors(self._path):
            if self._begin:  # the first page belongs to the part before as well
                self._put(self._cached, view[self._begin : _PAGE_BYTES], self._begin)
                self._begin = _PAGE_BYTES
            self._put(self._direct, view[self._begin : end], self._begin)
        rest = self._filled - end
        self._buffer[:rest] = self._buffer[end : self._filled]
        self._page_start += end
        self._begin, self._filled = 0, rest

    def _put(self, descriptor: int, data: memoryview, place: int) -> None:
        while data.nbytes:
            try:
                count = os.pwrite(descriptor, data, self._page_start + place)
            except OSError as error:
                if error.errno != errno.EINVAL or descriptor == self._cached:
                    raise
                descriptor = self._direct = self._cached  # opens direct, but does not write so
                continue
            place += count
            data = data[count:]

    def __enter__(self) -> "PartStream":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                whole = self._filled // _PAGE_BYTES * _PAGE_BYTES
                if whole > self._begin:
                    self._write(whole)
                with target_errors(self._path):
                    rest = memoryview(self._buffer)[self._begin : self._filled]
                    self._put(self._cached, rest, self._begin)
        finally:
            for descriptor in {self._cached, self._direct}:
                os.close(descriptor)


def write_sparse(path: Path, size_bytes: int, pieces: Iterable[tuple[int, bytes]]) -> None:
    """A file of this length, holes but for the pieces; made anew. Raises TargetError."""
    with target_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, _WRITE_FLAGS | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.ftruncate(descriptor, size_bytes)
            for offset, data in pieces:
                os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Wait until every file and name below is on the disk. Raises TargetError."""
    with target_errors(directory):
        for parent, _directories, files in os.walk(directory):
            for name in sorted(files):
                descriptor = os.open(os.path.join(parent, name), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            sync_directory(Path(parent))


def forbid_start(target: StoreRoot) -> None:
    """Put the stub where the wheel belongs: no broker starts here until ``publish`` is done.

    Raises TargetError.
    """
    replace_file(target.timer_wheel, UNFINISHED_WHEEL)


def publish(staging: Staging) -> None:
    """Move the finished store to where a broker looks for it; the wheel, which makes it bootable,
    last.

    Can be stopped anywhere and called again. Raises TargetError.
    """
    target, store = staging.target, staging.store
    with target_errors(target.path):
        if not store.timer_wheel.exists():
            return  # an earlier call came to its end
        forbid_start(target)
        for name in _PUBLISHED_FIRST:
            if (store.path / name).exists():
                clear(target.path / name)  # from a call that was stopped; the stub still stands
                os.replace(store.path / name, target.path / name)
        sync_directory(target.path)
        os.replace(store.timer_wheel, target.timer_wheel)
        sync_directory(target.path)


def is_published(staging: Staging) -> bool:
    """Whether the wheel, which comes last, is in its place."""
    path = staging.target.timer_wheel
    return (
        path.is_file()
        and path.stat().st_size == WHEEL_FILE_BYTES
        and not staging.store.timer_wheel.exists()
    )


def names_in_the_way(staging: Staging) -> list[str]:
    """What a target directory holds that is not ours: it must be empty but for an unfinished
    conversion.

    Raises TargetError when it cannot be listed.
    """
    target = staging.target
    with target_errors(target.path):
        names = {entry.name for entry in target.path.iterdir()}
    ours = {target.own.name, "lost+found"}
    if _is_stub(target.timer_wheel):
        ours.add(target.timer_wheel.name)
    return [] if staging.path.exists() else sorted(names - ours)


def _is_stub(path: Path) -> bool:
    is_short = path.is_file() and path.stat().st_size == len(UNFINISHED_WHEEL)
    return is_short and read_small_file(path) == UNFINISHED_WHEEL


def clear(directory: Path) -> None:
    """Remove what an earlier try left. Raises TargetError."""
    with target_errors(directory):
        if directory.exists():
            shutil.rmtree(directory)


def count_receipts(staging: Staging) -> int:
    """How many parts are written, as far as this directory shows."""
    try:
        return sum(name.endswith(".json") for name in os.listdir(staging.path / "parts"))
    except OSError:
        return 0


def clear_staging(staging: Staging) -> None:
    """Remove everything unfinished, the plan first: what has no plan is not continued.

    Raises TargetError.
    """
    with target_errors(staging.path):
        staging.plan_file.unlink(missing_ok=True)
    clear(staging.path)


def remove_unfinished(staging: Staging) -> None:
    """Leave nothing of a conversion that is given up; a directory that held nothing else stays,
    empty.

    Raises TargetError.
    """
    target = staging.target
    with target_errors(target.path):
        staging.plan_file.unlink(missing_ok=True)
        if _is_stub(target.timer_wheel):
            target.timer_wheel.unlink()
        clear(staging.path)
        if target.own.is_dir() and not any(target.own.iterdir()):
            target.own.rmdir()
