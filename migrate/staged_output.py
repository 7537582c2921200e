# SPDX-License-Identifier: Apache-2.0
"""A target while it is being made: a staging place within it, and how that becomes a store.

While a conversion runs, everything lies under ``TARGET/delaywheel/staging``, and where the wheel
belongs stands a stub of the wrong length, on which a broker refuses to start: an unfinished target
cannot be booted by mistake. Publishing renames the finished parts to where a broker looks for
them; the wheel file comes last, over the stub.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.errors import PlanError, TargetError
from message_store.side_by_side import side_by_side
from message_store.small_files import read_small_file, replace_file, sync_directory
from message_store.store_root import StoreRoot

UNFINISHED_WHEEL = b"delaywheel: this conversion is not finished; run the same command again\n"
_PUBLISHED_FIRST = ("config", "consumequeue", "timerlog", "delaywheel/hierarchy", "commitlog")
WRITE_FLAGS = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def target_errors(path: Path) -> Iterator[None]:
    """Turn the disk's refusal into a TargetError that names the place."""
    try:
        yield
    except OSError as error:
        is_temporary = os.path.basename(str(error.filename)).startswith(f".{path.name}.")
        where = path if is_temporary else error.filename or path
        raise TargetError(f"{where}: cannot be written: {error.strerror}") from error


@attrs.frozen
class Staging:
    """The places of an unfinished conversion within its target directory."""

    target: StoreRoot

    @property
    def path(self) -> Path:
        """Everything unfinished."""
        return self.target.staging

    @property
    def store(self) -> StoreRoot:
        """The broker's files as they are being made."""
        return StoreRoot(self.path / "store")

    @property
    def plan_file(self) -> Path:
        """The plan's facts, JSON."""
        return self.path / "plan.json"

    @property
    def plan_arrays(self) -> Path:
        """Where the plan's arrays are."""
        return self.path / "plan"

    def plan_array(self, name: str) -> Path:
        """One array of the plan."""
        return self.plan_arrays / f"{name}.npy"

    def index_table(self, part: int, family: str) -> Path:
        """A part's table for one column family of a hierarchical wheel's index."""
        return self.path / "parts" / f"{part:06d}.{family}.sst"

    def receipt(self, part: int) -> Path:
        """What the writer of a part has to say about it, JSON; there once the part is written."""
        return self.path / "parts" / f"{part:06d}.json"


def make_directory(path: Path) -> list[Path]:
    """Make a directory and those above it, durably; gives those that were not there, the innermost
    first. Raises TargetError, and leaves nothing then.
    """
    with target_errors(path):
        missing = [each for each in (path, *path.parents) if not each.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            for each in missing:
                sync_directory(each.parent)
        except OSError:
            remove_empty(missing)
            raise
    return missing


def remove_empty(directories: list[Path]) -> None:
    """Take away those of these directories that hold nothing; the innermost comes first."""
    for directory in directories:
        with suppress(OSError):  # it holds something, or was not made
            directory.rmdir()


@contextmanager
def sole_writer(target: StoreRoot) -> Iterator[None]:
    """Keep every other conversion out of a target directory for the length of a ``with`` block.

    A lock on the directory itself: it leaves nothing behind and ends with the process. A disk that
    knows no such locks is used without. Raises TargetError when another conversion holds it.
    """
    with target_errors(target.path):
        descriptor = os.open(target.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TargetError(f"{target.path}: another conversion is writing here") from error
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array for the executors. Raises TargetError."""
    with target_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, array)


def load_array(path: Path) -> NDArray[Any]:
    """The array, mapped: take copies of slices. Raises TargetError when it is not there, PlanError
    when it is torn.
    """
    try:
        with target_errors(path):
            mapped: NDArray[Any] = np.load(path, mmap_mode="r")
            return mapped
    except (ValueError, EOFError, SyntaxError) as error:  # a torn header is parsed as Python
        raise PlanError(f"{path}: a torn array of the plan; run the same command again") from error


def write_note(path: Path, content: bytes) -> None:
    """A small file that appears whole or not at all, without waiting for the disk: it can be made
    again.
    """
    with target_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(path) as temporary:
            temporary.write_bytes(content)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A name for a file that takes the place of ``path`` at the end, whole; where nothing was
    written, nothing is there. Does not wait for the disk. Raises TargetError.
    """
    with target_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.new")
        yield temporary
        if temporary.exists():
            os.replace(temporary, path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A name of one's own beside ``path``, renamed over it at the end: two attempts of one task may
    write the same file at the same time.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.new")
    yield temporary
    os.replace(temporary, path)


def sync_tree(directory: Path, *, but: Path | None = None) -> None:
    """Wait until every file and name below is on the disk, but for what one directory holds.

    Files are waited for side by side, which the disk's journal takes as few writes: a fifth of the
    time of one after another. Raises TargetError.
    """
    with target_errors(directory):
        tree = [entry for entry in os.walk(directory) if but is None or Path(entry[0]) != but]
        side_by_side(
            _sync_file, [os.path.join(parent, name) for parent, _, files in tree for name in files]
        )
        for parent, _, _ in tree:
            sync_directory(Path(parent))


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        if not store.timer_wheel.exists():  # an earlier call came to its last rename
            sync_directory(target.path)
            return
        forbid_start(target)
        sync_directory(target.own)
        for name in _PUBLISHED_FIRST:
            if (store.path / name).exists():
                clear(target.path / name)  # from a call that was stopped; the stub still stands
                os.replace(store.path / name, target.path / name)
        sync_directory(target.own)
        sync_directory(target.path)
        os.replace(store.timer_wheel, target.timer_wheel)
        sync_directory(target.path)


def is_publishing(staging: Staging) -> bool:
    """Whether the first renames are done: from then on nothing may be made anew in the staging
    place, because what is renamed from there takes the place of what was published.
    """
    return any((staging.target.path / name).exists() for name in _PUBLISHED_FIRST)


def is_published(staging: Staging) -> bool:
    """Whether the wheel, which comes last, is in its place; for a hierarchical wheel what keeps
    brokers from starting.
    """
    path = staging.target.timer_wheel
    is_there = path.is_file() and not is_stub(path)
    return is_there and is_publishing(staging) and not staging.store.timer_wheel.exists()


def names_in_the_way(staging: Staging) -> list[str]:
    """What a target directory holds that is not ours: it must be empty but for an unfinished
    conversion.

    Raises TargetError when it cannot be listed.
    """
    target = staging.target
    with target_errors(target.path):
        names = {entry.name for entry in target.path.iterdir()}
    stub = {target.timer_wheel.name} if is_stub(target.timer_wheel) else set()
    ours = {target.own.name, "lost+found", *stub}
    return [] if staging.path.exists() else sorted(names - ours)


def is_stub(path: Path) -> bool:
    """Whether this is what ``forbid_start`` puts in the place of a wheel."""
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


def refuse_links(staging: Staging) -> None:
    """Raise TargetError when something in a target leads elsewhere: what is written must stay in
    it.
    """
    target = staging.target
    names = (*_PUBLISHED_FIRST, target.own.name, target.timer_wheel.name)
    with target_errors(target.path):
        for path in (*(target.path / name for name in names), staging.path):
            if path.is_symlink():
                raise TargetError(f"{path}: a link; a target holds its files itself")


def remove_unfinished(staging: Staging) -> None:
    """Leave nothing of a conversion that is given up; a directory that held nothing else stays,
    empty.

    Raises TargetError.
    """
    target = staging.target
    with target_errors(target.path):
        staging.plan_file.unlink(missing_ok=True)
        if is_stub(target.timer_wheel):
            target.timer_wheel.unlink()
        clear(staging.path)
        if target.own.is_dir() and not any(target.own.iterdir()):
            target.own.rmdir()


def remove_file(path: Path) -> None:
    """Take a file away, durably; that it is not there is fine. Raises TargetError."""
    with target_errors(path):
        path.unlink(missing_ok=True)
        sync_directory(path.parent)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears whole, on the disk, when the ``with`` block ends, or not at all.

    Never replaces another: raises TargetError when there is one, before and after.
    """
    if path.exists():
        raise TargetError(f"{path}: is already there")
    with target_errors(path):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.new")
        with temporary.open("xb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.link(temporary, path)
            finally:
                temporary.unlink()
        sync_directory(path.parent)
