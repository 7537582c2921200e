# SPDX-License-Identifier: Apache-2.0
"""What was set aside must wait in one place: what was put back is not rolled back as well, and what
was rolled back, or waits in its level still, is not put back.

Both sides say what they are about to do before they do it (``put-back.json``, ``change.json``), and
keep each other out meanwhile: whoever comes second reads it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from legacy_levels.backlog.queues import LevelQueue, open_level_queue
from legacy_levels.delay_offsets import read_delay_offsets
from message_store.base.errors import PlanError
from message_store.base.printable import shell_word
from message_store.files.segments import SegmentReader
from message_store.files.small_files import is_directory, is_ordinary_file
from message_store.files.store_root import StoreRoot
from message_store.reading.unfinished_change import DONE, UNDOING, UNDONE
from migrate.changes.note import IN_PLACE, Change, read_change
from migrate.quarantine.keep import REASONS_NAME, quarantine_directory
from migrate.quarantine.kept import NOTES_NAME, Quarantine, Quarantined, directory_of_change
from migrate.write.staging import sole_writer

_LISTED = 5


# --- putting back ---------------------------------------------------------------------------------


def told_not_aside(quarantine: Path) -> str | None:
    """Why nothing of a quarantine can go anywhere: the change that made it is not, or no longer,
    what holds its levels back.
    """
    change = read_change(directory_of_change(quarantine))
    if change is None or change.state == DONE:
        return None
    if change.state == UNDONE:
        return (
            f"{change.directory}: this change was rolled back, so that what it set aside waits in"
            " its levels again; put back, it would be delivered twice"
        )
    store = shell_word(str(change.directory.parent.parent))
    return (
        f"{change.directory}: this change was stopped while it was {change.state}, so that what it"
        " set aside may wait in its levels; finish it, or undo it with `delaywheel rollback"
        f" {store} --execute`"
    )


class OwnLevels:
    """The levels of the store that records are put into: whether one of them waits there still."""

    def __init__(self, root: StoreRoot) -> None:
        self._root = root
        self._queues: dict[int, LevelQueue] = {}

    def told(self, record: Quarantined) -> str | None:
        """What to say of a record that the store's own level holds, in front of its offset."""
        if not self._holds(record):
            return None
        return (
            f"it waits in level {record.level} of {self._root.path} itself: retire that store first"
            " (delaywheel retire), or it would be there twice"
        )

    def _holds(self, record: Quarantined) -> bool:
        if record.level < 1 or not is_directory(self._root.level_queue(record.level)):
            return False
        queue = self._queue(record.level)
        row = record.queue_offset - queue.from_queue_offset
        if not 0 <= row < len(queue):
            return False
        if int(queue.entries.commit_log_offset[row]) != record.commit_log_offset:
            return False
        return self._is_source(record) or self._has_bytes(record)

    def _queue(self, level: int) -> LevelQueue:
        if level not in self._queues:
            root = self._root.path
            stored = read_delay_offsets(root).offsets.get(level)
            self._queues[level] = open_level_queue(root, level, stored)
        return self._queues[level]

    def _is_source(self, record: Quarantined) -> bool:
        return record.source is not None and _is_same(record.source, self._root.path)

    def _has_bytes(self, record: Quarantined) -> bool:
        """Whether the store's log has at this place what was kept: it may have another name now."""
        found = bytearray(len(record.raw))
        with SegmentReader(self._root.commit_log) as log:
            count = log.read_into(record.commit_log_offset, memoryview(found))
        return count == len(record.raw) and found == record.raw


# --- rolling back ---------------------------------------------------------------------------------


@contextmanager
def nothing_put_back(root: StoreRoot, change: Change) -> Iterator[None]:
    """Keep ``put-back`` from what a change set aside, while it is taken back in a ``with`` block.

    Raises PlanError where records were put back, or are about to be, that the change's levels would
    have again; TargetError while somebody puts records back.
    """
    quarantine = _aside(change)
    is_there = is_ordinary_file(quarantine / REASONS_NAME)
    with sole_writer(StoreRoot(quarantine)) if is_there else nullcontext():
        if is_there:
            refuse_put_back(root, change)
        yield


def refuse_put_back(root: StoreRoot, change: Change) -> None:
    """Raise PlanError where what a change set aside waits elsewhere by now.

    A rollback that has begun is gone on with: from then on nothing can be put back.
    """
    quarantine = _aside(change)
    if change.state == UNDOING or not is_ordinary_file(quarantine / REASONS_NAME):
        return
    found = _put_back(root, change, Quarantine(quarantine))
    if not found:
        return
    named = ", ".join(f"{file} into {store}" for file, store in sorted(found.items())[:_LISTED])
    more = f" and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
    raise PlanError(
        f"{root.path}: what it set aside was put back, or is about to be ({named}{more}): rolled"
        " back, it would wait in both, and be delivered twice; nothing was changed. It has to be"
        f" taken out of there first, and then what {quarantine / NOTES_NAME} says of it"
    )


def _put_back(root: StoreRoot, change: Change, quarantine: Quarantine) -> dict[str, str]:
    """Which records of a change's levels were put back, or are about to be, and where to.

    Those that went into the target that the store was converted to do not count: they are there
    with all else that the store has again.
    """
    found = {file: note.store for file, note in quarantine.done.items()}
    if begun := quarantine.begun:
        found |= {str(row["file"]): str(begun["store"]) for row in begun["rows"]}
    own = {record.file for record in _own_records(root, quarantine)}
    found = {file: store for file, store in found.items() if file in own}
    if change.kind == IN_PLACE:
        return found
    target = Path(change.asked["target"])
    return {file: store for file, store in found.items() if not _is_same(store, target)}


def _own_records(root: StoreRoot, quarantine: Quarantine) -> tuple[Quarantined, ...]:
    """Those of this source, where several were merged; all, where none is known by its place."""
    own = tuple(
        record
        for record in quarantine.records
        if record.source is not None and _is_same(record.source, root.path)
    )
    return own or quarantine.records


def _aside(change: Change) -> Path:
    """Where a change, or the conversion that it followed, keeps what it set aside."""
    is_in_place = change.kind == IN_PLACE
    place = change.directory if is_in_place else Path(change.asked["target"])
    return quarantine_directory(StoreRoot(place))


def _is_same(one: str | Path, other: Path) -> bool:
    return Path(one).resolve() == other.resolve()
