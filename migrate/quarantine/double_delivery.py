# SPDX-License-Identifier: Apache-2.0
"""A quarantined record must never be pending twice.

Refuses a rollback after its records were restored, and a restore while its level still holds the
record. Both sides write down what they are about to do before they do it (``put-back.json``,
``change.json``), and lock each other out meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from legacy_levels.backlog.queues import LevelQueue, open_level_queue
from legacy_levels.delay_offsets import read_delay_offsets
from message_store.base.errors import PlanError
from message_store.files.log_row import open_log
from message_store.files.small_files import is_directory, is_ordinary_file
from message_store.files.store_root import StoreRoot
from message_store.reading.unfinished_change import UNDOING
from migrate.changes.note import IN_PLACE, Change
from migrate.quarantine.keep import REASONS_NAME, quarantine_directory
from migrate.quarantine.kept import NOTES_NAME, Quarantine, QuarantinedRecord
from migrate.write.staging import sole_writer

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
    own = {record.file for record in _own_records(root, quarantine)}
    stores = {file: store for file, store in stores.items() if file in own}
    if change.kind == IN_PLACE:
        return stores
    target = Path(change.asked["target"])
    return {file: store for file, store in stores.items() if not _is_same(store, target)}


def _own_records(root: StoreRoot, quarantine: Quarantine) -> tuple[QuarantinedRecord, ...]:
    """The records of this source of several; all where none names it."""
    own = tuple(
        record
        for record in quarantine.records
        if record.source is not None and _is_same(record.source, root.path)
    )
    is_told = any(record.source is not None for record in quarantine.records)
    return own if is_told else quarantine.records


def _quarantine_of(change: Change) -> Path:
    """The quarantine of a change, or of the conversion that it followed."""
    is_in_place = change.kind == IN_PLACE
    directory = change.directory if is_in_place else Path(change.asked["target"])
    return quarantine_directory(StoreRoot(directory))


def _is_same(path: str | Path, store: Path) -> bool:
    return Path(path).resolve() == store.resolve()
