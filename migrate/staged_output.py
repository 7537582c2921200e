# SPDX-License-Identifier: Apache-2.0
"""A target while it is being made: a staging place within it, and how that becomes a store.

While a conversion runs, everything lies under ``TARGET/delaywheel/staging``, and where the wheel
belongs stands a stub of the wrong length, on which a broker refuses to start: an unfinished target
cannot be booted by mistake. Publishing renames the finished parts to where a broker looks for
them; the wheel file comes last, over the stub.

A stub can be taken away by hand, and a broker started. Therefore the files of a store count as ours
only while a durable note says that they are being published, and never once anybody was started on
the store: such a target is refused, and stays as it is.

What is written belongs to one plan and lies in a directory named after it. A writer of an earlier
plan that is still alive cannot reach the files of a later one.
"""

import errno
import fcntl
import json
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

from message_store.errors import PlanError, SourceError, TargetError
from message_store.side_by_side import side_by_side
from message_store.small_files import read_small_file, replace_file, sync_directory
from message_store.store_root import StoreRoot

UNFINISHED_WHEEL = b"delaywheel: this conversion is not finished; run the same command again\n"
_PUBLISHED_FIRST = ("config", "consumequeue", "timerlog", "delaywheel/hierarchy", "commitlog")
_HOLD_MESSAGES = tuple(name for name in _PUBLISHED_FIRST if name != "config")

_IDENTITY_CHARACTERS = 16
_REMOVAL_TRIES = 20
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
    again. Its directory has to be there: a stale writer must not bring back one that was removed.
    """
    with target_errors(path), _replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A name for a file that takes the place of ``path`` at the end, whole; where nothing was
    written, nothing is there. Does not wait for the disk. Raises TargetError, also where its
    directory is not there.
    """
    with target_errors(path):
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


def forbid_start(staging: Staging) -> None:
    """Put the stub where the wheel belongs: no broker starts here until ``publish`` is done.

    Raises TargetError.
    """
    require_unused(staging)
    replace_file(staging.target.timer_wheel, UNFINISHED_WHEEL)


@attrs.frozen
class PublishingNote:
    """Which plan is being published, whether it takes the place of a store that was whole, and the
    length of the wheel that comes last, once that is made.
    """

    identity: str
    replaces: bool
    wheel_bytes: int

    @classmethod
    def read(cls, staging: Staging) -> "PublishingNote | None":
        """The note of a target; None where nothing was published yet. Raises TargetError."""
        try:
            content = read_small_file(staging.publishing_note)
            if content is None:
                return None
            facts = json.loads(content)
            return cls(str(facts["identity"]), bool(facts["replaces"]), int(facts["wheel_bytes"]))
        except SourceError as error:
            raise TargetError(str(error)) from error
        except (ValueError, KeyError, TypeError) as error:
            raise TargetError(
                f"{staging.publishing_note}: damaged; look after {staging.target.path} yourself"
            ) from error


def _has_moved_wheel(staging: Staging, note: PublishingNote) -> bool:
    """Whether the wheel in the target is the one that was staged, as far as its length tells."""
    wheel, staged = staging.target.timer_wheel, attrs.evolve(staging, identity=note.identity).store
    if staged.timer_wheel.exists() or not wheel.is_file() or is_stub(wheel):
        return False
    return wheel.stat().st_size == note.wheel_bytes


def require_own_publishing(staging: Staging, identity: str) -> None:
    """Raise PlanError where something else than this plan is being published: it can only be
    finished by the command that began it.
    """
    note = PublishingNote.read(staging)
    if note is not None and note.identity != identity:
        raise PlanError(
            f"{staging.target.path}: something else was being published here; repeat the first"
            f" command, or empty {staging.target.path} and begin anew"
        )


def begin_publishing(staging: Staging, *, replaces: bool = False) -> None:
    """Note durably that from here on files of a store in the target are ours; ``replaces`` when
    those of a store that was whole are there already. Raises TargetError.
    """
    require_unused(staging, may_hold_store=replaces)
    wheel = staging.store.timer_wheel
    wheel_bytes = wheel.stat().st_size if wheel.exists() else 0
    note = PublishingNote(staging.identity, replaces, wheel_bytes)
    replace_file(staging.publishing_note, json.dumps(attrs.asdict(note)).encode())


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
        forbid_start(staging)
        note = PublishingNote.read(staging)
        begin_publishing(staging, replaces=note is not None and note.replaces)
        sync_directory(target.own)
        for name in _PUBLISHED_FIRST:
            if (store.path / name).exists():
                clear(target.path / name)  # of the store that is replaced; the stub stands
                os.replace(store.path / name, target.path / name)
        sync_directory(target.own)
        sync_directory(target.path)
        require_unused(staging)
        os.replace(store.timer_wheel, target.timer_wheel)
        sync_directory(target.path)


def is_publishing(staging: Staging) -> bool:
    """Whether the renames have begun: from then on nothing may be made anew in the staging place,
    because what is renamed from there takes the place of what was published.
    """
    return PublishingNote.read(staging) is not None


def is_published(staging: Staging) -> bool:
    """Whether the wheel, which comes last, is in its place; for a hierarchical wheel what keeps
    brokers from starting.
    """
    note = PublishingNote.read(staging)
    return note is not None and _has_moved_wheel(staging, note)


def names_in_the_way(staging: Staging) -> list[str]:
    """What a target directory holds that is not ours.

    It must be empty but for an unfinished conversion. A broker that refused to start on that may
    have left configuration and empty directories, but files of a store are ours only while it is
    being published. Raises TargetError when it cannot be listed.
    """
    target, wheel = staging.target, staging.target.timer_wheel
    with target_errors(target.path):
        if not staging.path.exists():
            stub = {wheel.name} if is_stub(wheel) else set()
            ours = {target.own.name, "lost+found", *stub}
            return sorted({entry.name for entry in target.path.iterdir()} - ours)
        note = PublishingNote.read(staging)
        if note is None:
            found = [name for name in _HOLD_MESSAGES if _holds_files(target.path / name)]
            is_ours = is_stub(wheel)
        else:
            is_ours = is_stub(wheel) or note.replaces or _has_moved_wheel(staging, note)
            found = []
        return found if is_ours or not os.path.lexists(wheel) else [*found, wheel.name]


def _holds_files(path: Path) -> bool:
    """Whether a directory, or one within it, holds any; whatever is no directory counts as one."""
    is_file = os.path.lexists(path) and not path.is_dir()
    return is_file or any(files for _, _, files in os.walk(path))


def signs_of_use(target: StoreRoot) -> list[str]:
    """What says that a broker or an engine was started on a store. A broker that refuses to start
    leaves a lock file as well, but an empty one. Raises TargetError.
    """
    with target_errors(target.path):
        signs = [path for path in (target.abort, target.checkpoint) if os.path.lexists(path)]
        if os.path.lexists(target.lock) and target.lock.lstat().st_size:
            signs.append(target.lock)
    return [path.name for path in signs]


def require_unused(staging: Staging, *, may_hold_store: bool = False) -> None:
    """Raise TargetError for a target that holds anything but ours: what waits in a store that
    somebody works with would be lost. ``may_hold_store``: all but the signs of use may be there.
    """
    path = staging.target.path
    if used := signs_of_use(staging.target):
        raise TargetError(
            f"{path}: a broker or an engine was started here ({', '.join(used)} left); its messages"
            " would be lost, so nothing is written; choose another directory"
        )
    if not may_hold_store and (names := names_in_the_way(staging)):
        raise TargetError(f"{path}: is not empty: {', '.join(names[:5])}")


def is_stub(path: Path) -> bool:
    """Whether this is what ``forbid_start`` puts in the place of a wheel."""
    is_short = path.is_file() and path.stat().st_size == len(UNFINISHED_WHEEL)
    return is_short and read_small_file(path) == UNFINISHED_WHEEL


def clear(directory: Path) -> None:
    """Remove what an earlier try left. Raises TargetError.

    Tried again when a stale writer has put a file there meanwhile; it makes no directories, so that
    this comes to an end.
    """
    with target_errors(directory):
        for tries_left in reversed(range(_REMOVAL_TRIES)):
            try:
                if directory.exists():
                    shutil.rmtree(directory)
                return
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
