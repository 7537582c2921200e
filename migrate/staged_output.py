# SPDX-License-Identifier: Apache-2.0
"""The one writer of a target's large files: made sparse in a staging place, filled in any order,
published last.

While a conversion runs, everything lies under ``TARGET/delaywheel/staging``. Publishing renames the
finished parts to where a broker looks for them; the wheel file comes last, over a stub of the wrong
length on which a broker refuses to start, so that a half-published target cannot be booted by
mistake.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.errors import TargetError
from message_store.layout import Buffer
from message_store.segment_files import segment_name
from message_store.small_files import sync_directory
from message_store.store_root import StoreRoot

UNFINISHED_WHEEL = b"delaywheel: this conversion is not finished; run the same command again\n"
_PUBLISHED_FIRST = ("config", "consumequeue", "timerlog", "commitlog")
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
    """The array, mapped: take copies of slices. Raises TargetError when it is not there."""
    with target_errors(path):
        mapped: NDArray[Any] = np.load(path, mmap_mode="r")
        return mapped


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


def publish(staging: Staging) -> None:
    """Move the finished store to where a broker looks for it; the wheel, which makes it bootable,
    last.

    Can be stopped anywhere and called again. Raises TargetError.
    """
    target, store = staging.target, staging.store
    with target_errors(target.path):
        if not store.timer_wheel.exists():
            return  # an earlier call came to its end
        if not target.timer_wheel.exists():
            target.timer_wheel.write_bytes(UNFINISHED_WHEEL)
            sync_directory(target.path)
        for name in _PUBLISHED_FIRST:
            if (store.path / name).exists():
                clear(
                    target.path / name
                )  # from a call that was stopped; the wheel's stub still stands
                os.replace(store.path / name, target.path / name)
        sync_directory(target.path)
        os.replace(store.timer_wheel, target.timer_wheel)
        sync_directory(target.path)


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


def free_bytes(directory: Path) -> int:
    """What the disk of a directory has room for. Raises TargetError."""
    with target_errors(directory):
        facts = os.statvfs(directory)
        return facts.f_bavail * facts.f_frsize


def is_published(target: StoreRoot) -> bool:
    """Whether the wheel, which comes last, is in its place."""
    path = target.timer_wheel
    return path.is_file() and path.stat().st_size != len(UNFINISHED_WHEEL)


def remove_unfinished(staging: Staging) -> None:
    """Leave nothing of a conversion that is given up; a directory that held nothing else stays,
    empty.
    """
    clear(staging.path)
    with target_errors(staging.target.own):
        if staging.target.own.is_dir() and not any(staging.target.own.iterdir()):
            staging.target.own.rmdir()
