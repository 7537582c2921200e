# SPDX-License-Identifier: Apache-2.0
"""What a stored offset does not show: records that no queue has yet, and delivered messages.

After a crash the offsets are up to ten seconds old, so a broker would deliver again what it
delivered since. The newest records may not be in their queue yet. The log shows both: the second in
its tail, the first by delivered copies. Copies are matched as a multiset of everything that
survives delivery. The client's message id does not suffice: retries share it, and some records have
none.

Limitations: of two pending messages with equal fields, the earlier due counts as delivered first. A
message that a broker delivered early, because the clock was set back or the level was shortened, is
only recognised if the log's own times show it.
"""

from pathlib import Path
from typing import TypeAlias

import attrs
import numpy as np

from legacy_levels.backlog.queues import LevelQueue
from legacy_levels.copies.kernels import pair_up
from legacy_levels.copies.log_notes import LogNotes, digest_level_records, take_notes
from message_store.files.segments import SegmentReader, list_directories
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.checkpoint import StoreCheckpoint
from message_store.reading.commit_log import (
    NO_TIME,
    Int32Array,
    Int64Array,
    first_store_times,
    read_store_times,
)
from message_store.reading.consume_queue import BoolArray, is_filled, read_last_unit

_STARTS_A_ROUND = 512
_NEWEST_ENTRIES = 1_024
_CLOCK_SLACK_MS = 1_000


@attrs.frozen
class IndexedEnd:
    """Up to where the log stands in consume queues, and when the last such record was stored."""

    log_offset: int
    store_timestamp_ms: int = NO_TIME


def find_indexed_end(
    root: Path, log: SegmentReader, *, queue_file_bytes: int | None = None
) -> IndexedEnd:
    """The end of the newest record that any consume queue of the store points to.

    Entries whose record is not where they say are passed over.
    """
    queues = StoreRoot(root).consume_queues
    directories = [queue for topic in list_directories(queues) for queue in list_directories(topic)]
    units = [read_last_unit(directory, file_bytes=queue_file_bytes) for directory in directories]
    if not any(map(len, units)):
        return IndexedEnd(log.min_offset)
    last = np.concatenate(units)
    offsets, sizes = (last[name].astype(np.int64) for name in ("commit_log_offset", "size_bytes"))
    times = read_store_times(log, offsets, sizes)
    ends = np.where(times == NO_TIME, log.min_offset, offsets + sizes)
    newest = int(ends.argmax())
    return IndexedEnd(int(ends[newest]), int(times[newest]))


def indexed_ends(queues: tuple[LevelQueue, ...], log: SegmentReader) -> dict[int, int]:
    """For each level one past the last log byte that its own queue covers; 0 for an empty one."""
    found = {}
    for queue in queues:
        newest = [part.units[-_NEWEST_ENTRIES:] for part in (queue.history, queue.entries)]
        units = np.concatenate(newest)
        real = units[is_filled(units)]
        ends = real["commit_log_offset"].astype(np.int64) + real["size_bytes"]
        inside = ends[(ends > 0) & (ends <= log.end_offset)]
        found[queue.level] = int(inside.max(initial=0))
    return found


def start_of_tail(
    log: SegmentReader,
    level_ends: dict[int, int],
    indexed: IndexedEnd,
    *,
    damaged_levels: set[int],
    is_clean: bool,
    checkpoint_ms: int,
) -> int:
    """Where records may begin that the level queues do not know.

    After a clean stop that is the end of what any queue knows, because a broker fills all queues in
    one go. After a crash each level's queue is believed only up to its own end, but nothing stored
    before the checkpoint needs a look: the queues were on disk then. A damaged queue is believed up
    to the damage only.
    """
    known = [end for level, end in level_ends.items() if end and level not in damaged_levels]
    start = indexed.log_offset
    if not is_clean:
        before = [begin for begin, stored in first_store_times(log) if stored <= checkpoint_ms]
        safe = max([log.min_offset, *before])
        start = min(start, max(safe, min(known, default=log.min_offset)))
    damaged_ends = [level_ends[level] for level in damaged_levels]
    return max(min([start, *damaged_ends]), log.min_offset)


def not_in_their_queue(notes: LogNotes, level_ends: dict[int, int]) -> LogNotes:
    """The level records that lie behind what their own level's queue covers."""
    records = notes.level_records
    is_missing = records.queue_id >= 0
    for level, end in level_ends.items():
        is_missing &= (records.queue_id != level - 1) | (records.commit_log_offset >= end)
    return attrs.evolve(records, rows=records.rows[is_missing])


@attrs.frozen(eq=False)
class LogTail:
    """The newest part of the log, of which the level queues may not know everything.

    ``missing`` are the level records that their queue does not know; ``newest_ms`` is when the
    log's last record was stored.
    """

    start: int
    notes: LogNotes
    missing: LogNotes
    newest_ms: int


def read_tail(
    store: StoreRoot,
    log: SegmentReader,
    queues: tuple[LevelQueue, ...],
    *,
    queue_file_bytes: int | None = None,
    whole_log: bool = False,
) -> LogTail:
    """Read the log from where the level queues may not know it; with ``whole_log`` from its start,
    which also finds what a lost or shortened queue once knew.
    """
    indexed = find_indexed_end(store.path, log, queue_file_bytes=queue_file_bytes)
    level_ends = indexed_ends(queues, log)
    content = read_small_file(store.checkpoint)
    checkpoint = StoreCheckpoint() if content is None else StoreCheckpoint.decode(content)
    start = start_of_tail(
        log,
        level_ends,
        indexed,
        damaged_levels={queue.level for queue in queues if queue.is_damaged},
        is_clean=store.was_stopped_cleanly,
        checkpoint_ms=checkpoint.recover_from_ms,
    )
    if whole_log:
        start = log.min_offset
    notes = take_notes(log, start, known_end=indexed.log_offset)
    return LogTail(
        start=start,
        notes=notes,
        missing=not_in_their_queue(notes, level_ends),
        newest_ms=max(notes.newest_store_ms, indexed.store_timestamp_ms),
    )


# --- already delivered ----------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Waiting:
    """Messages that may have been delivered: where they are and when that could have been at the
    earliest.
    """

    commit_log_offset: Int64Array
    size_bytes: Int32Array
    earliest_ms: Int64Array

    def __len__(self) -> int:
        return len(self.commit_log_offset)


DigestRows: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int64]]


def find_delivered(
    log: SegmentReader, waiting: Waiting, record_starts: Int64Array, tail: LogNotes, tail_start: int
) -> tuple[BoolArray, int]:
    """Which of the waiting messages the log already holds a delivered copy of, and bytes read.

    ``waiting`` is in log order; ``record_starts`` are sorted offsets of records, for a search by
    time; ``tail`` are the notes from ``tail_start`` on, so that this part is not read again.
    """
    delivered = np.zeros(len(waiting), np.bool_)
    if not len(waiting):
        return delivered, 0
    start, times_go_back = _first_stored_since(
        log, int(waiting.earliest_ms.min()), int(waiting.commit_log_offset.min()), record_starts
    )
    before = take_notes(log, start, known_end=tail_start, stop_at=tail_start)
    found = [before.delivered_copies, tail.delivered_copies]
    copies = np.concatenate([notes.digests for notes in found])
    copied_ms = np.concatenate([notes.store_timestamp_ms for notes in found])
    if len(copies):
        digests, is_record = digest_level_records(
            log, waiting.commit_log_offset, waiting.size_bytes
        )
        rows = np.flatnonzero(is_record)
        earliest_ms = waiting.earliest_ms[rows]
        if times_go_back:
            earliest_ms = np.zeros_like(earliest_ms)
        delivered[rows] = match_copies(digests[rows], earliest_ms, copies, copied_ms)
    return delivered, before.bytes_scanned


def have_copies(log: SegmentReader, offsets: Int64Array, size_bytes: Int64Array) -> BoolArray:
    """Which of these records, in log order, the log holds a delivered copy of, whenever that was
    stored.
    """
    has_copy = np.zeros(len(offsets), np.bool_)
    digests, is_record = digest_level_records(log, offsets, size_bytes)
    rows = np.flatnonzero(is_record)
    if len(rows):
        first = int(offsets[rows[0]])
        copies = take_notes(log, first, known_end=log.end_offset).delivered_copies
        has_copy[rows] = match_copies(
            digests[rows], offsets[rows], copies.digests, copies.commit_log_offset
        )
    return has_copy


def _first_stored_since(
    log: SegmentReader, since_ms: int, oldest_offset: int, record_starts: Int64Array
) -> tuple[int, bool]:
    """An offset before which nothing was stored at or after ``since_ms``, at least
    ``oldest_offset``; and whether store times decrease somewhere. Copies then only have to lie
    behind their record.
    """
    starts = [begin for begin, _stored in first_store_times(log) if begin > oldest_offset]
    low, high = oldest_offset, log.end_offset
    places = np.array([low, *starts], np.int64)
    is_first_round = True
    while True:
        times = read_store_times(log, places)
        places, times = places[times != NO_TIME], times[times != NO_TIME]
        if np.any(np.diff(times) < -_CLOCK_SLACK_MS):
            return oldest_offset, True
        before = int(np.searchsorted(np.maximum.accumulate(times), since_ms, "left"))
        bounds = low, high
        low = int(places[before - 1]) if before else low
        high = int(places[before]) if before < len(places) else high
        first = np.searchsorted(record_starts, low, "right")
        between = record_starts[first : np.searchsorted(record_starts, high, "left")]
        if not len(between) or not (is_first_round or bounds != (low, high)):
            return low, False
        is_first_round = False
        chosen = np.linspace(0, len(between) - 1, min(_STARTS_A_ROUND, len(between)))
        places = between[chosen.astype(np.int64)]


def match_copies(
    digests: DigestRows,
    earliest_ms: Int64Array,
    copies: DigestRows,
    copied_ms: Int64Array,
) -> BoolArray:
    """Which messages have a copy, each copy counting once, none before its message's time.

    Among messages with equal digests the earliest due takes the earliest copy.
    """
    delivered = np.zeros(len(digests), np.bool_)
    both = np.concatenate([digests, copies])
    order = np.lexsort((both[:, 1], both[:, 0]))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any(both[order[1:]] != both[order[:-1]], axis=1)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(is_new) - 1
    message_group, copy_group = group[: len(digests)], group[len(digests) :]
    rows = np.lexsort((earliest_ms, message_group))
    ranked = np.lexsort((copied_ms, copy_group))
    found = np.zeros(len(rows), np.bool_)
    pair_up(message_group[rows], earliest_ms[rows], copy_group[ranked], copied_ms[ranked], found)
    delivered[rows] = found
    return delivered
