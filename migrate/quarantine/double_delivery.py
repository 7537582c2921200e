# SPDX-License-Identifier: Apache-2.0
"""A quarantined record must never be pending twice.

Refuses a rollback after its records were restored, and a restore while its level still holds the
record, or has it again. Both sides write down what they are about to do before they do it
(``put-back.json``, ``change.json``), and lock each other out meanwhile. The store that gets a
record notes it as well (``restored.json``): another conversion may have quarantined the same.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from legacy_levels.backlog.queues import LevelQueue, open_level_queue
from legacy_levels.delay_offsets import read_delay_offsets
from message_store.base.errors import BadFieldError, DelayStoreError, PlanError
from message_store.files.log_row import open_log
from message_store.files.small_files import (
    PRIVATE_MODE,
    is_directory,
    is_ordinary_file,
    read_small_file,
    replace_file,
)
from message_store.files.store_root import StoreRoot
from message_store.reading.unfinished_change import UNDOING, UNDONE
from migrate.changes.note import IN_PLACE, RETIRE, Change, all_changes_of
from migrate.quarantine.keep import REASONS_NAME, quarantine_directory
from migrate.quarantine.kept import NOTES_NAME, Quarantine, QuarantinedRecord
from migrate.report.marker import CONVERSION_NAME, read_marker, share_of
from migrate.write.staging import sole_writer

RESTORED_NAME = "restored.json"
_LISTED = 5


# --- before a restore -----------------------------------------------------------------------------


class SourceLevels:
    """The levels of the store into which records are restored."""

    def __init__(self, root: StoreRoot) -> None:
        self._root = root
        self._queues: dict[int, LevelQueue] = {}

    def refusal(self, record: QuarantinedRecord) -> str | None:
        """Why a record is not restored: it is pending in the store's own level; None otherwise."""
        if not self._holds(record):
            return None
        return (
            f"it waits in level {record.level} of {self._root.path} itself: retire that store first"
            " (delaywheel retire), or it would be a duplicate"
        )

    def _holds(self, record: QuarantinedRecord) -> bool:
        if record.level < 1 or not is_directory(self._root.level_queue(record.level)):
            return False
        queue = self._queue(record.level)
        row = record.queue_offset - queue.from_queue_offset
        if not 0 <= row < len(queue):
            return False
        if int(queue.entries.commit_log_offset[row]) != record.commit_log_offset:
            return False
        is_named = record.source is not None and _is_same(record.source, self._root.path)
        return is_named or self._has_bytes(record)

    def _queue(self, level: int) -> LevelQueue:
        if level not in self._queues:
            root = self._root.path
            stored = read_delay_offsets(root).offsets.get(level)
            self._queues[level] = open_level_queue(root, level, stored)
        return self._queues[level]

    def _has_bytes(self, record: QuarantinedRecord) -> bool:
        """Whether the log has the record's bytes at its offset: the store may have been renamed."""
        content = bytearray(len(record.raw))
        with open_log(self._root) as log:
            count = log.read_into(record.commit_log_offset, memoryview(content))
        return count == len(record.raw) and content == record.raw


class RestoredHere:
    """Which records a store got from which quarantine: two conversions may quarantine the same.

    Written down before the first record is stored. Raises BadFieldError for a damaged note.
    """

    def __init__(self, store: StoreRoot, quarantine: Path) -> None:
        self._path, self._quarantine = store.own / RESTORED_NAME, str(quarantine.resolve())
        self._others: dict[str, set[str] | None] = {}
        content = read_small_file(self._path)
        try:
            noted = json.loads(content) if content else {}
            self._noted = {str(key): str(place) for key, place in noted.items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise BadFieldError(f"no notes of ours: {error}", path=self._path) from error

    def refusal(self, record: QuarantinedRecord) -> str | None:
        """Why a record is not restored: another quarantine had it; None otherwise."""
        identity = _identity(record)
        place = self._noted.get(identity, self._quarantine)
        if place == self._quarantine:
            return None
        if place not in self._others:
            self._others[place] = _restored_from(Path(place))
        others = self._others[place]
        if others is not None and identity not in others:
            return None
        return f"{place} has it too, and it was restored from there, or is about to be"

    def note(self, records: Iterable[QuarantinedRecord]) -> None:
        """Note durably that these are about to be restored. Raises TargetError."""
        self._noted |= {_identity(record): self._quarantine for record in records}
        text = json.dumps(self._noted, indent=1, sort_keys=True)
        replace_file(self._path, text.encode(), mode=PRIVATE_MODE)


class RolledBackSources:
    """The sources of a target whose retirement was rolled back: all of theirs waits there again."""

    def __init__(self, quarantine: Path) -> None:
        self._target = quarantine.resolve().parent.parent
        self._are_back: dict[str, bool] = {}

    def refusal(self, record: QuarantinedRecord) -> str | None:
        """Why a record is not restored: its level has it again; None otherwise, and where its
        source is not there. Raises SourceError, FormatError for notes that cannot be read.
        """
        source = record.source
        if source is None or not is_directory(Path(source)):
            return None
        if source not in self._are_back:
            self._are_back[source] = self._is_back(StoreRoot(Path(source)))
        if not self._are_back[source]:
            return None
        return (
            f"it waits in level {record.level} of {source} again, whose retirement was rolled back"
        )

    def _is_back(self, source: StoreRoot) -> bool:
        retirements = [
            change.state
            for change in all_changes_of(source)
            if change.kind == RETIRE and _is_same(change.asked.get("target", ""), self._target)
        ]
        return retirements[-1:] == [UNDONE]


def _restored_from(place: Path) -> set[str] | None:
    """Which records that quarantine says were restored, or are about to be; None where it cannot be
    asked.
    """
    try:
        other = Quarantine(place)
    except DelayStoreError:
        return None
    files = {str(row["file"]) for row in (other.begun or {"rows": ()})["rows"]} | other.done.keys()
    return {_identity(each) for each in other.records if each.file in files}


def _identity(record: QuarantinedRecord) -> str:
    """The same for one entry of one store's level, whichever conversion met it."""
    place = f"{record.level} {record.queue_offset} {record.commit_log_offset}"
    return f"{place} {record.digest}"


# --- before a rollback ----------------------------------------------------------------------------


@contextmanager
def nothing_restored(root: StoreRoot, change: Change) -> Iterator[None]:
    """Keep ``put-back`` off the quarantine of a change while a ``with`` block undoes the change.

    Raises PlanError where records of the change's levels were restored, or are about to be;
    TargetError while somebody restores records.
    """
    quarantine = _quarantine_of(change)
    is_there = is_ordinary_file(quarantine / REASONS_NAME)
    with sole_writer(StoreRoot(quarantine)) if is_there else nullcontext():
        if is_there:
            refuse_restored(root, change)
        yield


def refuse_restored(root: StoreRoot, change: Change) -> None:
    """Raise PlanError where records that a change quarantined are pending elsewhere by now.

    A rollback that has begun is continued: since it began nothing could be restored.
    """
    quarantine = _quarantine_of(change)
    if change.state == UNDOING or not is_ordinary_file(quarantine / REASONS_NAME):
        return
    restored = _restored(root, change, Quarantine(quarantine))
    if not restored:
        return
    named = ", ".join(f"{file} into {store}" for file, store in sorted(restored.items())[:_LISTED])
    more = f" and {len(restored) - _LISTED:,} more" if len(restored) > _LISTED else ""
    raise PlanError(
        f"{root.path}: quarantined records were restored, or are about to be ({named}{more}); a"
        " rollback would make them duplicates. Nothing was changed. Remove them from there first,"
        f" and then their entries from {quarantine / NOTES_NAME}"
    )


def _restored(root: StoreRoot, change: Change, quarantine: Quarantine) -> dict[str, str]:
    """The records of a change's levels that were restored, or are about to be, with the stores.

    Records in the conversion's own target do not count: all other messages are there too.
    """
    stores = {file: note.store for file, note in quarantine.done.items()}
    if begun := quarantine.begun:
        stores |= {str(row["file"]): str(begun["store"]) for row in begun["rows"]}
    if change.kind == IN_PLACE:
        return stores
    target = Path(change.asked["target"])
    own = {record.file for record in _own_records(root, StoreRoot(target), quarantine)}
    return {
        file: store for file, store in stores.items() if file in own and not _is_same(store, target)
    }


def _own_records(
    root: StoreRoot, target: StoreRoot, quarantine: Quarantine
) -> tuple[QuarantinedRecord, ...]:
    """The records of this source of several that one target was made from; all where it was made
    from one, whatever that is called by now, and where nothing tells which source this is.
    """
    try:
        part = share_of(read_marker(target), root, target.own / CONVERSION_NAME)
        path = part["request"]["source"] if part.get("is_share") else None
    except (DelayStoreError, KeyError, TypeError):
        path = None
    return tuple(
        record
        for record in quarantine.records
        if path is None or not _is_of_another(record, Path(path))
    )


def _is_of_another(record: QuarantinedRecord, source: Path) -> bool:
    """Whether a record is known to be another source's; a path as it was typed tells nothing."""
    named = record.source
    return named is not None and Path(named).is_absolute() and not _is_same(named, source)


def _quarantine_of(change: Change) -> Path:
    """The quarantine of a change, or of the conversion that it followed."""
    is_in_place = change.kind == IN_PLACE
    directory = change.directory if is_in_place else Path(change.asked["target"])
    return quarantine_directory(StoreRoot(directory))


def _is_same(path: str | Path, store: Path) -> bool:
    return Path(path).resolve() == store.resolve()
