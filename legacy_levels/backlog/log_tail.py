# SPDX-License-Identifier: Apache-2.0
"""The newest part of the log, whose records may not be in their level queue yet.

After a crash the queues may lag behind the log. A broker dispatches the log's tail again when it
starts; here its level records are noted instead, and count as pending.
"""

import attrs
import numpy as np

from legacy_levels.backlog.queues import LevelQueue
from legacy_levels.copies.log_notes import ExpectedUnits, LogNotes, take_notes
from message_store.files.array_room import new_array
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.reading.consume_queue import UnitArray, is_filled
from message_store.reading.indexed_end import RECENT_BYTES, IndexedEnd, find_indexed_end
from message_store.reading.recovered_end import on_disk_until

_NEWEST_ENTRIES = 1_024


def indexed_ends(queues: tuple[LevelQueue, ...], log: SegmentReader) -> dict[int, int]:
    """For each level one past the last log byte that its own queue covers; 0 for an empty one."""
    ends_of_levels = {}
    for queue in queues:
        newest = [part.units[-_NEWEST_ENTRIES:] for part in (queue.history, queue.entries)]
        units = np.concatenate(newest)
        real = units[is_filled(units)]
        ends = real["commit_log_offset"].astype(np.int64) + real["size_bytes"]
        inside = ends[(ends > 0) & (ends <= log.end_offset)]
        ends_of_levels[queue.level] = int(inside.max(initial=0))
    return ends_of_levels


@attrs.frozen
class Known:
    """What was in the queues at a moment: the end of what any of them led to, ``indexed``, and up
    to where all of them were on the disk, a commit log offset.

    Taken before queues are read beside a writer. So what these lack lies behind it.
    """

    indexed: IndexedEnd
    on_disk: int

    @classmethod
    def now(
        cls, store: StoreRoot, log: SegmentReader, *, queue_file_bytes: int | None = None
    ) -> "Known":
        """As the store has it. Raises SourceError."""
        on_disk = on_disk_until(store, log)
        indexed = find_indexed_end(store.path, log, queue_file_bytes=queue_file_bytes)
        return cls(indexed, on_disk)


def start_of_tail(
    log: SegmentReader, level_ends: dict[int, int], known: Known, *, damaged_levels: set[int]
) -> int:
    """Where records may begin that the level queues do not know.

    After a clean stop that is the end of what any queue knows, because all queues are filled in one
    go. After a crash any queue may lack what was not on the disk, and that of a level may not be
    there at all. A damaged queue is believed up to the damage only.
    """
    damaged_ends = [level_ends[level] for level in damaged_levels]
    return max(min([known.indexed.log_offset, known.on_disk, *damaged_ends]), log.min_offset)


def start_of_doubt(
    log: SegmentReader, level_ends: dict[int, int], queues: tuple[LevelQueue, ...], known: Known
) -> int:
    """Where records may begin that a queue knew and has lost: its last file, after one that is
    full, or its last entries. Zeros in place of those look as if nothing had been there. So the
    log's last 8 MiB are asked for every level that ends there.
    """
    recent = known.indexed.log_offset - RECENT_BYTES
    full = {queue.level for queue in queues if queue.ends_with_file}
    doubted = (at for level, at in level_ends.items() if at and (at >= recent or level in full))
    return max(min(doubted, default=known.indexed.log_offset), log.min_offset)


def not_in_their_queue(
    notes: LogNotes, level_ends: dict[int, int], others_from: int = 0
) -> LogNotes:
    """The level records that lie behind what their own level's queue covers; those of levels
    without entries from a place on.
    """
    records = notes.level_records
    covered = {level: end for level, end in level_ends.items() if end}
    is_missing = (records.queue_id >= 0) & (records.commit_log_offset >= others_from)
    for level, end in covered.items():
        is_of_it = records.queue_id == level - 1
        is_missing = np.where(is_of_it, records.commit_log_offset >= end, is_missing)
    return attrs.evolve(records, rows=records.rows[is_missing])


@attrs.frozen(eq=False)
class LogTail:
    """The newest part of the log, of which the level queues may not know everything.

    ``missing`` are the level records that their queue does not know; ``newest_ms`` is when the
    log's last record was stored. ``damaged_levels``: where it is the whole log, those whose queue
    is not that of its newest records; if there are none, ``notes`` lack what a queue leads to.
    """

    start: int
    notes: LogNotes
    missing: LogNotes
    newest_ms: int
    damaged_levels: frozenset[int] = frozenset()


def read_tail(
    log: SegmentReader, queues: tuple[LevelQueue, ...], known: Known, *, whole_log: bool = False
) -> LogTail:
    """Read the log from where the level queues may not know it; with ``whole_log`` from its start,
    which also finds what a lost or shortened queue once knew. Where a queue proves damaged, the
    log is read a second time, for all level records. ``known`` is of before the queues were read.
    """
    log.grow()  # the queues were read since it was opened
    indexed, level_ends = known.indexed, indexed_ends(queues, log)
    damaged_queues = {queue.level for queue in queues if queue.is_damaged}
    others_from = start_of_tail(log, level_ends, known, damaged_levels=damaged_queues)
    start = min(others_from, start_of_doubt(log, level_ends, queues, known))
    damaged: frozenset[int] = frozenset()
    if whole_log:
        start = others_from = log.min_offset
        expected = ExpectedUnits.of({queue.level - 1: _units_of(queue) for queue in queues})
        notes = take_notes(log, start, known_end=indexed.log_offset, expected=expected)
        damaged = frozenset(each.level for each in queues if not _is_whole(each, notes))
    if damaged or not whole_log:
        notes = take_notes(log, start, known_end=indexed.log_offset)
    return LogTail(
        start=start,
        notes=notes,
        missing=not_in_their_queue(notes, level_ends, others_from),
        newest_ms=max(notes.newest_store_ms, indexed.store_timestamp_ms),
        damaged_levels=damaged,
    )


def lacks_beginning(tail: LogTail, queues: tuple[LevelQueue, ...]) -> bool:
    """Whether records of a level say that others stood before them that its queue lacks."""
    ends = {queue.level - 1: queue.queue_max for queue in queues}
    queue_ids, firsts = np.unique(tail.missing.queue_id, return_index=True)
    ordinals = tail.missing.queue_offset[firsts].tolist()
    ids = queue_ids.tolist()
    return any(at > ends.get(each, 0) for each, at in zip(ids, ordinals, strict=True))


def _units_of(queue: LevelQueue) -> UnitArray:
    both = queue.history.units, queue.entries.units
    if not len(queue.history):
        return queue.entries.units
    units: UnitArray = new_array(sum(map(len, both)), QUEUE_UNIT.dtype)
    return np.concatenate(both, out=units)


def _is_whole(queue: LevelQueue, notes: LogNotes) -> bool:
    """Whether the units of a queue are those of its newest records, and none lies before them; or
    there are no records. ``notes`` are of the whole log, without those that a queue leads to.
    """
    units = _units_of(queue)
    confirmed = int(notes.confirmed[queue.level - 1 : queue.level].sum())
    records = notes.level_records
    others = records.commit_log_offset[records.queue_id == queue.level - 1]
    if not confirmed and not len(others):
        return True
    if confirmed < len(units) or max(queue.stored_offset or 0, 0) < queue.queue_min:
        return False
    return not len(units) or bool((others < units["commit_log_offset"][0]).all())
