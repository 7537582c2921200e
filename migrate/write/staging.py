# SPDX-License-Identifier: Apache-2.0
"""A target while it is being made: the staging place within it, and how files are written there.

While a conversion runs, everything lies under ``TARGET/delaywheel/staging``, of which
``publishing.py`` makes a store. What is written belongs to one plan and lies in a directory named
after it. A writer of an earlier plan that is still alive cannot reach the files of a later one.
"""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import PlanError, SourceError, StoreLockedError, TargetError
from message_store.base.parallel import parallel_map
from message_store.files.small_files import (
    identity_of,
    refuse_dangling_link,
    sync_directory,
    sync_file,
)
from message_store.files.store_root import StoreRoot

_IDENTITY_CHARACTERS = 16
_REMOVAL_TRIES = 20
LOCK_NAME = ".delaywheel.lock"
"""In a target on a disk that locks no directories."""

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
    """The places of an unfinished conversion within its target directory.

    ``identity`` is that of the plan; what is written from it has a directory of its own.
    """

    target: StoreRoot
    identity: str = ""

    @property
    def path(self) -> Path:
        """Everything unfinished."""
        return self.target.staging

    @property
    def plan_file(self) -> Path:
        """The plan's facts, JSON: of the one plan that counts."""
        return self.path / "plan.json"

    @property
    def publishing_note(self) -> Path:
        """There from the first rename on, durably."""
        return self.path / "publishing.json"

    @property
    def plan_directory(self) -> Path:
        """What belongs to this plan and to no other."""
        return self.path / self.identity[:_IDENTITY_CHARACTERS]

    @property
    def store(self) -> StoreRoot:
        """The broker's files as they are being made."""
        return StoreRoot(self.plan_directory / "store")

    @property
    def plan_arrays(self) -> Path:
        """Where the plan's arrays are."""
        return self.plan_directory / "plan"

    @property
    def parts(self) -> Path:
        """Where the receipts of the parts are, and their tables for an index."""
        return self.plan_directory / "parts"

    def plan_array(self, name: str) -> Path:
        """One array of the plan."""
        return self.plan_arrays / f"{name}.npy"

    def index_table(self, part: int, family: str) -> Path:
        """A part's table for one column family of a hierarchical wheel's index."""
        return self.parts / f"{part:06d}.{family}.sst"

    def receipt(self, part: int) -> Path:
        """What the writer of a part has to say about it, JSON; there once the part is written."""
        return self.parts / f"{part:06d}.json"


def make_directory(path: Path) -> list[Path]:
    """Make a directory and those above it, durably; gives those that were not there, the innermost
    first. Raises TargetError, and leaves nothing then.
    """
    with target_errors(path):
        refuse_dangling_link(path)
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
def no_broker(target: StoreRoot) -> Iterator[None]:
    """Hold a target's lock for reading: no broker starts on it for the length of a ``with`` block.

    Raises StoreLockedError when one runs, TargetError when nobody can tell.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(target.shared_lock())
        except StoreLockedError:
            raise
        except SourceError as error:
            raise TargetError(str(error)) from error
        yield


@contextmanager
def sole_writer(target: StoreRoot) -> Iterator[str | None]:
    """Keep every other conversion out of a target directory for the length of a ``with`` block;
    gives a warning where the disk lets nobody do so, and None elsewhere.

    A lock on the directory itself leaves nothing behind and ends with the process. NFS locks no
    directories: there it is a file in it, which goes at the end. Raises TargetError when another
    conversion holds the lock.
    """
    with target_errors(target.path):
        descriptor = os.open(target.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    lock_file = target.path / LOCK_NAME
    try:
        warning = None
        if not _has_locked(descriptor, target):
            with target_errors(lock_file):
                file = _open_lock_file(lock_file, target)
            if file is None:
                warning = (
                    f"{target.path}: this disk knows no locks; nothing keeps a second conversion"
                    " from writing here at the same time"
                )
            else:
                os.close(descriptor)
                descriptor = file
        try:
            yield warning
        finally:
            if warning is None:
                _remove_lock_file(lock_file, descriptor)
    finally:
        os.close(descriptor)


def _has_locked(descriptor: int, target: StoreRoot) -> bool:
    """Lock what is open; False where the disk refuses. Raises TargetError where it is locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise TargetError(f"{target.path}: another conversion is writing here") from error
    except OSError:
        return False
    return True


def _open_lock_file(path: Path, target: StoreRoot) -> int | None:
    """The lock file, open and locked; None where the disk locks no files either.

    It may be removed between opening and locking, by who held it before: then it is made anew.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            is_locked = _has_locked(descriptor, target)
        except TargetError:
            os.close(descriptor)
            raise
        if is_locked and not _is_at(path, descriptor):
            os.close(descriptor)
            continue
        if not is_locked:
            path.unlink(missing_ok=True)
            os.close(descriptor)
        return descriptor if is_locked else None


def _is_at(path: Path, descriptor: int) -> bool:
    facts = os.fstat(descriptor)
    return identity_of(path) == (facts.st_dev, facts.st_ino)


def _remove_lock_file(path: Path, descriptor: int) -> None:
    with suppress(OSError):  # one that stays locks nobody out
        if _is_at(path, descriptor):
            path.unlink()


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


def write_note(path: Path, content: bytes, *, durably: bool = False) -> None:
    """A small file that appears whole or not at all; without waiting for the disk unless
    ``durably``: it can be made again. Its directory has to be there: a stale writer must not bring
    back one that was removed.
    """
    with target_errors(path), _replacing(path) as temporary:
        temporary.write_bytes(content)
        if durably:
            sync_file(temporary)


@contextmanager
def replaced(path: Path, *, durably: bool = False) -> Iterator[Path]:
    """A name for a file that takes the place of ``path`` at the end, whole; where nothing was
    written, nothing is there. Waits for the disk if ``durably``. Raises TargetError, also where its
    directory is not there.
    """
    with target_errors(path):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.new")
        yield temporary
        if temporary.exists():
            if durably:
                sync_file(temporary)
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
        parallel_map(
            sync_file, [os.path.join(parent, name) for parent, _, files in tree for name in files]
        )
        for parent, _, _ in tree:
            sync_directory(Path(parent))


def clear(directory: Path) -> None:
    """Remove what an earlier try left. Raises TargetError."""
    with target_errors(directory):
        if directory.exists():
            _remove_tree(directory)


def _remove_tree(directory: Path | str, parent: int | None = None) -> None:
    """Remove a directory, found in an open one if that is given, without following links.

    Tried again when a stale writer has put a file there meanwhile; it makes no directories, so that
    this comes to an end.
    """
    for tries_left in reversed(range(_REMOVAL_TRIES)):
        try:
            os.stat(directory, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        try:
            shutil.rmtree(directory, dir_fd=parent)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or not tries_left:
                raise


def count_receipts(staging: Staging) -> int:
    """How many parts are written, as far as this directory shows."""
    try:
        return sum(name.endswith(".json") for name in os.listdir(staging.parts))
    except OSError:
        return 0


def clear_staging(staging: Staging) -> None:
    """Remove everything unfinished, the plan first: what has no plan is not continued.

    The directory around it may be somebody else's by now, who may put a link anywhere: none is
    followed. Raises TargetError.
    """
    if not os.path.lexists(staging.path):
        return
    with target_errors(staging.path):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        own = os.open(staging.target.own, flags)
        try:
            unfinished = os.open(staging.path.name, flags, dir_fd=own)
            try:
                with suppress(FileNotFoundError):
                    os.unlink(staging.plan_file.name, dir_fd=unfinished)
            finally:
                os.close(unfinished)
            _remove_tree(staging.path.name, own)
        finally:
            os.close(own)


def remove_file(path: Path) -> None:
    """Take a file away, durably; that it is not there is fine. Raises TargetError."""
    with target_errors(path):
        path.unlink(missing_ok=True)
        sync_directory(path.parent)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears whole, on the disk, when the ``with`` block ends, or not at all.

    On a disk without hard links a kill at that very moment may leave an empty one.
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
                _rename_to_nothing(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        sync_directory(path.parent)


def _rename_to_nothing(temporary: Path, path: Path) -> None:
    """Give a file the name ``path``, where nothing may be. Raises OSError, also where something is.

    A link does it at once. Where the disk refuses links (exFAT, gcsfuse, s3fs), an empty file takes
    the name first.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        os.close(os.open(path, WRITE_FLAGS | os.O_CREAT | os.O_EXCL, 0o644))
        os.replace(temporary, path)
