# SPDX-License-Identifier: Apache-2.0
"""The note of a change of a store: its beginning, its end, its state, and copies of the small
files.

Each change has a private directory of its own, ``delaywheel/backup-<time>``. Its ``change.json``
exists before the first byte of the store changes, and says ``done`` after the last. From it a
change can be finished or undone.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from legacy_levels.delay_offsets import FILE_NAME as OFFSETS_NAME
from legacy_levels.delay_offsets import DelayOffsets, encode_delay_offsets
from legacy_levels.delivery_marks import FLUSHED_NAME, LATEST_NAME, DeliveryMark
from message_store.base.errors import SourceError, TargetError
from message_store.base.printable import iso_time
from message_store.files.segments import list_directories
from message_store.files.small_files import (
    PRIVATE_MODE,
    read_small_file,
    remove_file,
    replace_file,
    sync_directory,
)
from message_store.files.store_root import StoreRoot
from message_store.format.broker_json import ConfigDialect
from message_store.reading.unfinished_change import BACKUP_PREFIX, DONE, NOTE_NAME, UNDONE
from migrate.write.owner import file_mode, give_away, owned_part
from migrate.write.staging import target_errors

NOTE_VERSION = 1

IN_PLACE, RETIRE = "in-place", "retire"
BEGUN = "begun"

OFFSETS = f"config/{OFFSETS_NAME}"
OFFSETS_BACKUP = f"{OFFSETS}.bak"
_NO_SIGNS = {ord(sign): None for sign in "-:Z"}

MARKS = (f"delaywheel/{FLUSHED_NAME}", f"delaywheel/{LATEST_NAME}")
"""Files that ``LevelStore`` believes before the offset files."""

OFFSET_FILES = (*MARKS, OFFSETS_BACKUP, OFFSETS)
"""In the order in which they are written: the file that a broker reads comes last."""

SMALL_FILES = (*OFFSET_FILES, "checkpoint", "abort")
"""Every file that a change replaces; besides it appends to log and queue."""


@attrs.frozen
class KeptFile:
    """A file as it was before: the digest of its content (None: it was not there) and its mode."""

    name: str
    sha256: str | None
    mode: int


@attrs.frozen(kw_only=True)
class Ends:
    """The ends of log and timer queue, and a digest of what the store's own wheel has placed.

    A broker that ran at all has moved one of these, or the offsets.
    """

    log_end: int
    timer_queue_end: int
    wheel: str


@attrs.frozen(kw_only=True)
class Change:
    """One change of a store: its kind, its state, and the store's ends before and after.

    ``offsets_after`` is the new text of both offset files, ``asked`` the request, ``report`` the
    answer.
    """

    directory: Path
    kind: str
    state: str
    now_ms: int
    files: tuple[KeptFile, ...]
    before: Ends
    after: Ends
    offsets_after: str
    asked: dict[str, Any] = attrs.field(factory=dict)
    report: dict[str, Any] = attrs.field(factory=dict)

    @property
    def was_clean(self) -> bool:
        """Whether the store had been stopped cleanly."""
        return self.kept("abort").sha256 is None

    def kept(self, name: str) -> KeptFile:
        """The file as it was before; older notes do not name the marks."""
        unnamed = KeptFile(name, None, 0o644)
        return next((each for each in self.files if each.name == name), unnamed)

    def content(self, name: str) -> bytes | None:
        """A file's content as it was before, None when there was none.

        Raises SourceError when the copy is not what was written down.
        """
        kept = self.kept(name)
        if kept.sha256 is None:
            return None
        path = self.directory / name
        content = read_small_file(path)
        if content is None or _digest(content) != kept.sha256:
            raise SourceError(f"{path}: is not the copy that was made; nothing was changed")
        return content

    def is_before(self, name: str, content: bytes | None) -> bool:
        """Whether this is what the file held before the change."""
        return self.kept(name).sha256 == (None if content is None else _digest(content))

    def write(self, state: str) -> "Change":
        """Say durably how far the change came. Raises TargetError."""
        changed = attrs.evolve(self, state=state)
        facts = attrs.asdict(changed, filter=lambda field, _value: field.name != "directory")
        text = json.dumps({"version": NOTE_VERSION, **facts}, indent=1)
        replace_file(self.directory / NOTE_NAME, text.encode(), mode=PRIVATE_MODE)
        return changed

    def restore_file(self, root: StoreRoot, name: str) -> None:
        """Restore a file as it was before. Raises SourceError or TargetError."""
        content = self.content(name)
        path = root.path / name
        remove_file(path.with_name(f".{path.name}.new"))  # left by a stopped run
        if content is None:
            if path.exists():
                remove_file(path, is_durable=True)
        elif read_small_file(path) != content:
            put_small_file(root, name, content, mode=self.kept(name).mode)


def _nothing(_directory: Path) -> None:
    """There is nothing to prepare."""


def begin_change(
    root: StoreRoot,
    *,
    kind: str,
    now_ms: int,
    before: Ends,
    after: Ends,
    offsets_after: bytes,
    asked: Mapping[str, Any],
    report: Mapping[str, Any],
    prepare: Callable[[Path], None] = _nothing,
) -> Change:
    """Copy every small file and write the note; nothing of the store has changed yet. ``prepare``
    puts what the change needs into its directory, before the note says that it is begun.

    Raises TargetError, also where a file could not be replaced later.
    """
    _require_replaceable(root)
    directory = _new_directory(root, now_ms)
    kept = []
    for name in SMALL_FILES:
        path = root.path / name
        content = read_small_file(path)
        if content is not None:
            replace_file(directory / name, content, mode=PRIVATE_MODE)
        digest = None if content is None else _digest(content)
        kept.append(KeptFile(name, digest, 0o644 if content is None else file_mode(path)))
    prepare(directory)
    change = Change(
        directory=directory,
        kind=kind,
        state=BEGUN,
        now_ms=now_ms,
        files=tuple(kept),
        before=before,
        after=after,
        offsets_after=offsets_after.decode(),
        asked=dict(asked),
        report={**report, "backup": str(directory)},
    ).write(BEGUN)
    with target_errors(directory):
        for parent in (directory, root.own, root.path):
            sync_directory(parent)
    return change


def _require_replaceable(root: StoreRoot) -> None:
    """Raise TargetError where a small file cannot be replaced: the change would stop half-way."""
    directories = {(root.path / name).parent for name in SMALL_FILES}
    for directory in sorted(each for each in directories if each.exists()):
        if not os.access(directory, os.W_OK | os.X_OK):
            raise TargetError(f"{directory}: cannot be written; nothing was changed")


def _new_directory(root: StoreRoot, now_ms: int) -> Path:
    """A directory that no earlier change has, named by the time to the millisecond, and behind all
    of them in the order of names: the clock may have been set back, or the time given.
    """
    second = iso_time(now_ms // 1000 * 1000).translate(_NO_SIGNS)
    name = f"{BACKUP_PREFIX}{second}{now_ms % 1000:03d}Z"
    newest = max((path.name for path in _directories(root)), default="")
    return root.own / (name if name > newest else f"{newest}1")


def _directories(root: StoreRoot) -> list[Path]:
    """Those of all changes, in order."""
    return [path for path in list_directories(root.own) if path.name.startswith(BACKUP_PREFIX)]


def all_changes_of(root: StoreRoot) -> list[Change]:
    """The changes of a store, the oldest first, also those that are undone.

    A directory without a note is of a run that was stopped before anything changed. Raises
    SourceError for a note that cannot be read.
    """
    return [change for path in _directories(root) if (change := read_change(path)) is not None]


def changes_of(root: StoreRoot) -> list[Change]:
    """The changes of a store that are not undone, the oldest first. Raises SourceError."""
    return [change for change in all_changes_of(root) if change.state != UNDONE]


def unfinished_change(root: StoreRoot) -> Change | None:
    """The change that was stopped before its end, if there is one."""
    unfinished = [change for change in changes_of(root) if change.state != DONE]
    return unfinished[-1] if unfinished else None


def read_change(directory: Path) -> Change | None:
    """The change whose directory this is, None for one that has no note of any.

    Raises SourceError for a note that cannot be read.
    """
    path = directory / NOTE_NAME
    content = read_small_file(path)
    if content is None:
        return None
    try:
        facts = json.loads(content)
        if facts.pop("version") != NOTE_VERSION:
            raise ValueError("a version that is not known")
        facts["files"] = tuple(KeptFile(**each) for each in facts["files"])
        facts["before"], facts["after"] = Ends(**facts["before"]), Ends(**facts["after"])
        return Change(directory=directory, **facts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{path}: is not the note of a change: {error}") from error


def put_small_file(root: StoreRoot, name: str, content: bytes, *, mode: int) -> None:
    """Put a small file in its place, durably and at once, for the owner of the store.

    Raises TargetError.
    """
    path = root.path / name
    replace_file(path, content, mode=mode)
    give_away([path], like=owned_part(root))


def put_offsets(root: StoreRoot, change: Change) -> None:
    """Move the offsets in every file that has them. Raises SourceError and TargetError."""
    for name in OFFSET_FILES:
        current = read_small_file(root.path / name)
        content = _moved_mark(current, change) if name in MARKS else change.offsets_after.encode()
        if content not in (None, current):
            put_small_file(root, name, content, mode=change.kept(name).mode)


def restore_offsets(root: StoreRoot, change: Change) -> None:
    """Restore the offset files as they were. Raises SourceError and TargetError."""
    for name in reversed(OFFSET_FILES):
        change.restore_file(root, name)


def _moved_mark(content: bytes | None, change: Change) -> bytes | None:
    """The mark with the levels of a change moved; None for no mark.

    After a kill our engine believes its marks, and would deliver duplicates from their offsets.
    """
    mark = None if content is None else DeliveryMark.decode(content)
    if mark is None:
        return None
    offsets = dict(mark.offsets)
    for level, offset in change.report["offsets"].items():
        offsets[int(level)] = max(int(offset), offsets.get(int(level), 0))
    return content if offsets == mark.offsets else attrs.evolve(mark, offsets=offsets).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def moved_offsets(offsets: DelayOffsets, to: Mapping[int, int], now_ms: int) -> bytes:
    """delayOffset.json with the offsets of ``to``, in the dialect of the broker that wrote it.

    RocketMQ: ScheduleMessageService#encode.
    Other levels keep the offset that a broker would take, also if another file was chosen for the
    levels that move.
    """
    choices = offsets.by_choice()
    taken = offsets.broker_choice
    table = {**(offsets.offsets if taken is None else choices[taken]), **to}
    version = offsets.main.data_version or offsets.backup.data_version
    dialect = offsets.dialect
    if dialect is None:
        dialect = ConfigDialect.ROCKETMQ_5_5 if version else ConfigDialect.ROCKETMQ_4_9
    if version is not None:
        version = attrs.evolve(version, counter=version.counter + 1, timestamp_ms=now_ms)
    return encode_delay_offsets(table, dialect, version)
