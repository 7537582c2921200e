# SPDX-License-Identifier: Apache-2.0
"""The staging directory of an unfinished target, and how files are written to it.

Everything lies under ``TARGET/delaywheel/staging`` until ``publishing`` makes a store of it. What
is written for a plan lies in a directory named after the plan. A writer of an earlier plan that is
still alive cannot reach the files of a later one.
"""

import errno
import fcntl
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import (
    PlanError,
    SourceError,
    StoreLockedError,
    TargetError,
    reason_of,
)
from message_store.base.parallel import parallel_map
from message_store.files.small_files import (
    identity_of,
    refuse_dangling_link,
    sync_directory,
    sync_file,
)
from message_store.files.store_root import Below, StoreRoot

_IDENTITY_CHARACTERS = 16
_REMOVAL_TRIES = 500
"""A writer that adds files without a pause once outlived twenty."""
_READ_BYTES = 4 << 20
_SYNCED_AT_ONCE = 16
LOCK_NAME = ".delaywheel.lock"
"""In a target on a disk that locks no directories."""

WRITE_FLAGS = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def target_errors(path: Path) -> Iterator[None]:
    """Raises a TargetError that names the file in place of an OSError."""
    try:
        yield
    except OSError as error:
        is_temporary = os.path.basename(str(error.filename)).startswith(f".{path.name}.")
        where = path if is_temporary else error.filename or path
        raise TargetError(f"{where}: cannot be written: {reason_of(error)}") from error


class TargetBusyError(TargetError):
    """Another conversion holds the lock of a target directory."""


@attrs.frozen
class Attempt:
    """The directory of one attempt at one log file, and what lies in it."""

    path: Path

    log = Below("log")
    """The log file, until it gets its place."""
    numbers = Below("numbers.npy")
    """Sizes and hashes of the messages, an array."""
    bad = Below("bad.jsonl")
    """The messages that cannot be converted, a line each."""
    note = Below("note.json")
    """JSON; exists once all else is written."""

    @property
    def name(self) -> str:
        """Its name, which no other attempt has."""
        return self.path.name


@attrs.frozen
class Staging:
    """The paths of an unfinished conversion within its target directory.

    ``identity`` is that of the plan, whose output has a directory of its own.
    """

    target: StoreRoot
    identity: str = ""

    plan_file = Below("plan.json")
    """The JSON file of the one plan that counts."""
    publishing_note = Below("publishing.json")
    """Exists, durably, from the first rename on."""
    plan_arrays = Below("plan", "plan_directory")
    """The directory of the plan's arrays."""
    attempts = Below("attempts", "plan_directory")
    """The directory of all attempts, and of files that have no place yet."""

    @property
    def path(self) -> Path:
        """The directory of everything unfinished."""
        return self.target.staging

    @property
    def plan_directory(self) -> Path:
        """The directory of this plan alone."""
        return self.path / self.identity[:_IDENTITY_CHARACTERS]

    @property
    def store(self) -> StoreRoot:
        """The broker's files as they are being made."""
        return StoreRoot(self.plan_directory / "store")

    def plan_array(self, name: str) -> Path:
        """One array of the plan."""
        return self.plan_arrays / f"{name}.npy"

    def attempt(self, name: str) -> Attempt:
        """An attempt of this name."""
        return Attempt(self.attempts / name)

    def unplaced(self, place: Path) -> Path:
        """A name among the attempts that nobody has, for a file that is to take a place."""
        return self.attempts / f"{place.name}-{secrets.token_hex(6)}"


def make_directory(path: Path) -> list[Path]:
    """Make a directory and its parents, durably; returns the new ones, the innermost first.

    Raises TargetError, and leaves nothing then.
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
    """Remove the empty ones of these directories; the innermost comes first."""
    for directory in directories:
        with suppress(OSError):  # it holds something, or was not made
            directory.rmdir()


@contextmanager
def no_broker(target: StoreRoot) -> Iterator[None]:
    """Hold a target's lock shared: no broker starts on it while the ``with`` block runs.

    Raises StoreLockedError when one runs, TargetError when the lock cannot be read.
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
    """Keep other conversions out of a target directory while the ``with`` block runs; yields a
    warning where the disk supports no locks, else None.

    A lock on the directory itself leaves nothing behind and ends with the process. NFS locks no
    directories; there a file in it is locked, and removed at the end. Raises TargetBusyError when
    another conversion holds the lock.
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


def knows_locks(target: StoreRoot) -> bool:
    """Whether the disk of a target locks anything; leaves nothing. Raises as ``sole_writer``."""
    made = make_directory(target.path)
    try:
        with sole_writer(target) as warning:
            return warning is None
    finally:
        remove_empty(made)


def _has_locked(descriptor: int, target: StoreRoot) -> bool:
    """Lock what is open; False where the disk refuses. Raises TargetBusyError where it is
    locked.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise TargetBusyError(f"{target.path}: another conversion is writing here") from error
    except OSError:
        return False
    return True


def _open_lock_file(path: Path, target: StoreRoot) -> int | None:
    """The lock file, open and locked; None where the disk locks no files either."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            is_locked = _has_locked(descriptor, target)
        except TargetError:
            os.close(descriptor)
            raise
        if is_locked and not _is_at(path, descriptor):  # its earlier holder has just removed it
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


def save_array(path: Path, array: NDArray[Any], *, durably: bool = False) -> None:
    """Write an array, which appears whole or not at all. Its directory must exist. Raises
    TargetError.
    """
    with replaced(path, durably=durably) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def load_array(path: Path) -> NDArray[Any]:
    """The array, mapped: take copies of slices. Raises TargetError when it is missing, PlanError
    when it is torn.
    """
    try:
        with target_errors(path):
            mapped: NDArray[Any] = np.load(path, mmap_mode="r")
            return mapped
    except (ValueError, EOFError, SyntaxError) as error:  # a torn header is parsed as Python
        raise PlanError(f"{path}: a torn array of the plan; run the same command again") from error


def write_note(path: Path, content: bytes, *, durably: bool = False) -> None:
    """Write a small file that appears whole or not at all; synced only if ``durably``.

    Its directory must exist: a stale writer must not bring back one that was removed.
    """
    with replaced(path, durably=durably) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replaced(path: Path, *, durably: bool = False) -> Iterator[Path]:
    """A temporary name beside ``path``, renamed over it when the ``with`` block ends; where nothing
    was written, ``path`` is removed. Two attempts of one task may replace one file at a time.

    Waits for the disk if ``durably``. Raises TargetError, also where the directory is missing.
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


def require_renames(directory: Path) -> None:
    """Raise TargetError on a disk that renames no directories: a store could not be published."""
    one, other = directory / "old-name", directory / "new-name"
    with target_errors(directory):
        one.mkdir()
        try:
            os.replace(one, other)
        except OSError as error:
            one.rmdir()
            raise TargetError(
                f"{directory}: this disk renames no directories ({error.strerror}); convert to"
                " another disk, and copy the finished target here"
            ) from error
        other.rmdir()


def take_place(path: Path, place: Path) -> None:
    """Rename a file to where it belongs. Raises TargetError."""
    with target_errors(place):
        os.replace(path, place)


def read_whole(path: Path) -> bytes:
    """A file of any length, nothing where there is none. Raises TargetError."""
    with target_errors(path):
        return path.read_bytes() if path.exists() else b""


def look_at_file(path: Path, size_bytes: int, more_bytes: int) -> tuple[int, int, bytes]:
    """The length of a file, the CRC-32 of its first ``size_bytes``, and the bytes behind those.

    Raises TargetError.
    """
    with target_errors(path), path.open("rb") as file:
        crc = 0
        for begin in range(0, size_bytes, _READ_BYTES):
            crc = zlib.crc32(file.read(min(_READ_BYTES, size_bytes - begin)), crc)
        return os.fstat(file.fileno()).st_size, crc, file.read(more_bytes)


def sync_tree(directory: Path, *, exclude: Path | None = None) -> None:
    """Sync every file and directory below, except for the contents of one directory.

    Many are synced at once, which the disk's journal combines: it takes a third of the time also
    where one core is to do the work. Raises TargetError.
    """
    with target_errors(directory):
        tree = [
            entry for entry in os.walk(directory) if exclude is None or Path(entry[0]) != exclude
        ]
        files = [os.path.join(parent, name) for parent, _, names in tree for name in names]
        parallel_map(sync_file, files, _SYNCED_AT_ONCE)
        parallel_map(sync_directory, [Path(parent) for parent, *_ in tree], _SYNCED_AT_ONCE)


def clear(directory: Path) -> None:
    """Remove a directory, or a file, that an earlier try left. Raises TargetError."""
    with target_errors(directory):
        if directory.is_dir():
            _remove_tree(directory)
        else:
            directory.unlink(missing_ok=True)


def _remove_tree(directory: Path | str, parent: int | None = None) -> None:
    """Remove a directory without following links; repeat if a stale writer adds files meanwhile."""
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


def clear_staging(staging: Staging) -> None:
    """Remove everything unfinished, the plan first: without a plan nothing is continued.

    The directory around it may belong to another user by now, so no link is followed. Raises
    TargetError.
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


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears whole and synced when the ``with`` block ends, or not at all.

    On a disk without hard links a kill at that moment may leave an empty file. Never replaces a
    file: raises TargetError when there is one, before and after.
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
    """Rename a file to ``path``, which must not exist. Raises OSError, also where it does."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links (exFAT, gcsfuse, s3fs): an empty file takes the name first
        os.close(os.open(path, WRITE_FLAGS | os.O_CREAT | os.O_EXCL, 0o644))
        os.replace(temporary, path)
