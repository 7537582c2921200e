# SPDX-License-Identifier: Apache-2.0
"""Publishes a staged store: what may be in a target, the stub that stops brokers, and the renames.

Until the end a stub of the wrong length stands in the place of the wheel. Brokers refuse to start
on it, so an unfinished target is not booted by mistake. Publishing renames the finished parts to
their final names. The wheel file comes last and replaces the stub.

Somebody may remove the stub by hand and start a broker. So files of a store count as ours only
while a durable note says that they are being published. A target on which anybody was started is
refused and stays as it is.
"""

import json
import os
from pathlib import Path

import attrs

from message_store.base.errors import PlanError, SourceError, TargetError
from message_store.files.small_files import read_small_file, replace_file, sync_directory
from message_store.files.store_root import StoreRoot
from migrate.write.staging import LOCK_NAME, Staging, clear, target_errors

UNFINISHED_WHEEL = b"delaywheel: this conversion is not finished; run the same command again\n"
_PUBLISHED_FIRST = ("config", "consumequeue", "timerlog", "delaywheel/hierarchy", "commitlog")
_HOLD_MESSAGES = tuple(name for name in _PUBLISHED_FIRST if name != "config")


def forbid_start(staging: Staging) -> None:
    """Write the stub in the place of the wheel: no broker starts here until ``publish`` is done.

    Raises TargetError.
    """
    require_unused(staging)
    replace_file(staging.target.timer_wheel, UNFINISHED_WHEEL)


@attrs.frozen
class PublishingNote:
    """The plan that is being published, whether it replaces a whole store, and the length of the
    wheel, which is renamed last.
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
    """Raise PlanError if another plan is being published: only its own command can finish it."""
    note = PublishingNote.read(staging)
    if note is not None and note.identity != identity:
        raise PlanError(
            f"{staging.target.path}: something else was being published here; repeat the first"
            f" command, or empty {staging.target.path} and begin anew"
        )


def begin_publishing(staging: Staging, *, replaces: bool = False) -> None:
    """Note durably that from now on files of a store in the target are ours. ``replaces``: files of
    a whole store are there already. Raises TargetError.
    """
    require_unused(staging, may_hold_store=replaces)
    wheel = staging.store.timer_wheel
    wheel_bytes = wheel.stat().st_size if wheel.exists() else 0
    note = PublishingNote(staging.identity, replaces, wheel_bytes)
    replace_file(staging.publishing_note, json.dumps(attrs.asdict(note)).encode())


def publish(staging: Staging) -> None:
    """Rename the finished store into its place; the wheel, which makes it bootable, comes last.

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
    """Whether the renames have begun: a file that is staged after that would replace a published
    one.
    """
    return PublishingNote.read(staging) is not None


def is_published(staging: Staging) -> bool:
    """Whether the wheel, which comes last, is in its place; for a hierarchy the guard file."""
    note = PublishingNote.read(staging)
    return note is not None and _has_moved_wheel(staging, note)


def names_in_the_way(staging: Staging) -> list[str]:
    """The names in a target directory that are not ours.

    It may hold an unfinished conversion, and what a broker leaves that refused to start on it:
    configuration and empty directories. Files of a store are ours only while it is being published.
    Raises TargetError when it cannot be listed.
    """
    target, wheel = staging.target, staging.target.timer_wheel
    with target_errors(target.path):
        if not staging.path.exists():
            stub = {wheel.name} if is_stub(wheel) else set()
            ours = {target.own.name, "lost+found", LOCK_NAME, *stub}
            return sorted({entry.name for entry in target.path.iterdir()} - ours)
        note = PublishingNote.read(staging)
        if note is None:
            names = [name for name in _HOLD_MESSAGES if _holds_files(target.path / name)]
            is_ours = is_stub(wheel)
        else:
            is_ours = is_stub(wheel) or note.replaces or _has_moved_wheel(staging, note)
            names = []
        return names if is_ours or not os.path.lexists(wheel) else [*names, wheel.name]


def _holds_files(path: Path) -> bool:
    """Whether a directory holds a file at any depth; a path that is no directory counts as one."""
    is_file = os.path.lexists(path) and not path.is_dir()
    return is_file or any(files for _, _, files in os.walk(path))


def signs_of_use(target: StoreRoot) -> list[str]:
    """The names of files that show that a broker or an engine was started on a store. A broker that
    refuses to start leaves a lock file too, but an empty one. Raises TargetError.
    """
    with target_errors(target.path):
        signs = [path for path in (target.abort, target.checkpoint) if os.path.lexists(path)]
        if os.path.lexists(target.lock) and target.lock.lstat().st_size:
            signs.append(target.lock)
    return [path.name for path in signs]


def require_unused(staging: Staging, *, may_hold_store: bool = False) -> None:
    """Raise TargetError for a target with anything that is not ours: pending messages of a store in
    use would be lost. ``may_hold_store``: only signs of use are refused.
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


def refuse_links(staging: Staging) -> None:
    """Raise TargetError for a link in a target: all that is written must stay in it."""
    target = staging.target
    names = (*_PUBLISHED_FIRST, target.own.name, target.timer_wheel.name)
    with target_errors(target.path):
        for path in (*(target.path / name for name in names), staging.path):
            if path.is_symlink():
                raise TargetError(f"{path}: a link; a target holds its files itself")


def remove_unfinished(staging: Staging) -> None:
    """Remove all our files from the target; keep the directory itself. Raises TargetError."""
    target = staging.target
    with target_errors(target.path):
        staging.plan_file.unlink(missing_ok=True)
        if is_stub(target.timer_wheel):
            target.timer_wheel.unlink()
        clear(staging.path)
        if target.own.is_dir() and not any(target.own.iterdir()):
            target.own.rmdir()
