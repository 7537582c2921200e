# SPDX-License-Identifier: Apache-2.0
"""What a store's delay levels still owe: every pending message of every level, in log order.

The main door of this package for a conversion. Queues are read from their delivery offsets on,
what the queues do not know yet is added from the log's tail, due times that cannot be ones are made
anew, and what was already delivered is left out (``reconcile``).
"""

from pathlib import Path
from typing import TypeAlias

import attrs
import numpy as np

from legacy_levels.delay_offsets import DelayOffsets, OffsetsChoice, read_delay_offsets
from legacy_levels.level_queues import LevelQueue, open_level_queues
from legacy_levels.level_table import PLAUSIBLE_DUE_MS, infer_levels, reconcile_level_table
from legacy_levels.log_notes import LogNotes, take_notes
from legacy_levels.reconcile import (
    Waiting,
    find_delivered,
    find_indexed_end,
    indexed_ends,
    not_in_their_queue,
    start_of_tail,
)
from message_store.commit_log import NO_TIME, Int64Array, read_store_times
from message_store.consume_queue import BoolArray
from message_store.delay_levels import DelayLevels
from message_store.errors import OptionsError, UncleanStoreError
from message_store.segment_files import SegmentReader
from message_store.small_files import read_small_file
from message_store.store_checkpoint import StoreCheckpoint
from message_store.store_root import StoreRoot

Int32Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Int16Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int16]]

_LATE_SLACK_MS = 86_400_000
"""A due time may lie this far beyond newest store time + delay: clocks have gone back by less."""


@attrs.frozen
class LevelCounts:
    """One level in numbers; ``queued = pending + already_delivered + expired``.

    ``queued`` runs from ``from_queue_offset`` to ``to_queue_offset``, of which the last
    ``not_in_queue`` are only in the log. ``repaired`` are the due times that were made anew.
    """

    level: int
    delay_ms: int
    stored_offset: int | None
    queue_min: int
    queue_max: int
    from_queue_offset: int
    queued: int = 0
    already_delivered: int = 0
    expired: int = 0
    pending: int = 0
    not_in_queue: int = 0
    repaired: int = 0

    @property
    def to_queue_offset(self) -> int:
        """Where the level's offset stands when all this has been dealt with."""
        return self.from_queue_offset + self.queued


@attrs.frozen(eq=False)
class LevelBacklog:
    """Every pending message, sorted by its place in the log, and the account of the rest.

    The arrays have one element a pending message. ``bytes_scanned`` is how much of the log was
    walked through, ``log_end`` where its last whole record ends. ``damaged_places`` are log offsets
    behind which no record began.
    """

    commit_log_offset: Int64Array
    size_bytes: Int32Array
    level: Int16Array
    queue_offset: Int64Array
    due_ms: Int64Array
    counts: tuple[LevelCounts, ...]
    level_table: DelayLevels
    offsets: DelayOffsets
    log_min: int
    log_end: int
    newest_store_ms: int
    bytes_scanned: int
    damaged_places: tuple[int, ...] = ()
    queue_misfits: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.commit_log_offset)

    def total(self, name: str) -> int:
        """The sum of one of the counts over all levels, such as ``queued``."""
        return sum(getattr(counts, name) for counts in self.counts)


def read_backlog(
    root: Path,
    *,
    offsets_choice: OffsetsChoice | str = OffsetsChoice.AUTO,
    level_table: DelayLevels | None = None,
    after_crash: bool = False,
    commit_log_file_bytes: int | None = None,
    queue_file_bytes: int | None = None,
) -> LevelBacklog:
    """Find what is pending in the levels of the store at ``root``, which nobody writes to.

    Raises SourceError for what is no store, UncleanStoreError for one that was not stopped cleanly
    unless ``after_crash``, OptionsError when ``level_table`` (or the default) is not the store's,
    and FormatError when a queue cannot be told.
    """
    store = StoreRoot(root)
    store.require_readable()
    if not store.was_stopped_cleanly and not after_crash:
        raise UncleanStoreError(f"{store.abort}: the store was not stopped cleanly")
    offsets = read_delay_offsets(root, offsets_choice)
    queues = open_level_queues(root, offsets, queue_file_bytes=queue_file_bytes)
    with SegmentReader(store.commit_log, commit_log_file_bytes) as log:
        inferred = infer_levels(root, log, queues)
        in_use = {queue.level for queue in queues if len(queue)}
        table = reconcile_level_table(
            level_table, {level: inferred[level] for level in inferred if level in in_use}
        )
        indexed = find_indexed_end(root, log, queue_file_bytes=queue_file_bytes)
        level_ends = indexed_ends(queues, log)
        tail_start = start_of_tail(
            log,
            level_ends,
            indexed,
            damaged_levels={queue.level for queue in queues if queue.is_damaged},
            is_clean=store.was_stopped_cleanly,
            checkpoint_ms=_checkpoint_ms(store),
        )
        tail = take_notes(log, tail_start, known_end=indexed.log_offset)
        newest_ms = max(tail.newest_store_ms, indexed.store_timestamp_ms)
        missing = not_in_their_queue(tail, level_ends)
        entries = _gather(queues, missing, table, newest_ms=newest_ms, log_min=log.min_offset)
        entries, earliest_ms = _repair_due_times(log, entries, table)
        delivered, bytes_scanned = _already_delivered(
            log, entries, earliest_ms, newest_ms, tail, tail_start
        )
        pending = entries.pick(~entries.is_expired & ~delivered)
        return LevelBacklog(
            commit_log_offset=pending.commit_log_offset,
            size_bytes=pending.size_bytes,
            level=pending.level,
            queue_offset=pending.queue_offset,
            due_ms=pending.due_ms,
            counts=_count(queues, entries, delivered, table),
            level_table=table,
            offsets=offsets,
            log_min=log.min_offset,
            log_end=tail.log_end,
            newest_store_ms=newest_ms,
            bytes_scanned=bytes_scanned,
            damaged_places=tail.damaged_places,
            queue_misfits=tuple(misfit.path for queue in queues for misfit in queue.misfits),
        )


def _checkpoint_ms(store: StoreRoot) -> int:
    content = read_small_file(store.checkpoint)
    return StoreCheckpoint.decode(content).recover_from_ms if content is not None else 0


# --- entries as columns ---------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _Entries:
    """Everything from the offsets on in log order, one element a message.

    ``is_known`` marks those whose due time is told by the queue, or by the record itself.
    """

    commit_log_offset: Int64Array
    size_bytes: Int32Array
    level: Int16Array
    queue_offset: Int64Array
    due_ms: Int64Array
    is_known: BoolArray
    is_expired: BoolArray
    in_queue: BoolArray

    def pick(self, which: BoolArray | Int64Array) -> "_Entries":
        if which.dtype == np.bool_ and which.all():
            return self
        columns = [getattr(self, field.name)[which] for field in attrs.fields(_Entries)]
        return _Entries(*columns)


def _gather(
    queues: tuple[LevelQueue, ...],
    missing: LogNotes,
    table: DelayLevels,
    *,
    newest_ms: int,
    log_min: int,
) -> _Entries:
    parts = [_of_queue(queue, table, newest_ms, log_min) for queue in queues if len(queue)]
    queue_ends = {queue.level: queue.queue_max for queue in queues}
    parts += _of_tail(missing, table, queue_ends)
    if not parts:
        parts = [_of_notes(missing, 1, 0, 0)]
    columns = zip(*(attrs.astuple(part, recurse=False) for part in parts), strict=True)
    entries = _Entries(*map(np.concatenate, columns))
    return entries.pick(np.argsort(entries.commit_log_offset, kind="stable"))


def _of_queue(queue: LevelQueue, table: DelayLevels, newest_ms: int, log_min: int) -> _Entries:
    """A queue's entries. A due time is believed when it is one by size: above any tag hash, and not
    beyond what the newest record of the level could have.

    Comparing each with its own store time would mean reading every record's head.
    """
    latest_ms = newest_ms + table.delay_ms(queue.level) + _LATE_SLACK_MS
    is_plausible = (queue.due_ms > PLAUSIBLE_DUE_MS) & (queue.due_ms <= latest_ms)
    return _Entries(
        commit_log_offset=queue.entries.commit_log_offset,
        size_bytes=queue.entries.size_bytes.astype(np.int32),
        level=np.full(len(queue), queue.level, np.int16),
        queue_offset=queue.queue_offset,
        due_ms=queue.due_ms,
        is_known=is_plausible & ~queue.due_is_unknown,
        is_expired=queue.is_expired(log_min),
        in_queue=np.ones(len(queue), np.bool_),
    )


def _of_tail(missing: LogNotes, table: DelayLevels, queue_ends: dict[int, int]) -> list[_Entries]:
    """Records that their queue does not know, where a broker would put them: behind its end."""
    parts = []
    for queue_id in np.unique(missing.queue_id).tolist():
        level = queue_id + 1
        if level > table.max_level:
            raise OptionsError(
                f"the log holds messages of level {level}: {table.text()!r} has none"
            )
        own = attrs.evolve(missing, rows=missing.rows[missing.queue_id == queue_id])
        parts.append(_of_notes(own, level, table.delay_ms(level), queue_ends.get(level, 0)))
    return parts


def _of_notes(notes: LogNotes, level: int, delay_ms: int, first_queue_offset: int) -> _Entries:
    count = len(notes.rows)
    return _Entries(
        commit_log_offset=notes.commit_log_offset,
        size_bytes=notes.size_bytes.astype(np.int32),
        level=np.full(count, level, np.int16),
        queue_offset=np.arange(first_queue_offset, first_queue_offset + count, dtype=np.int64),
        due_ms=notes.store_timestamp_ms + delay_ms,
        is_known=np.ones(count, np.bool_),
        is_expired=np.zeros(count, np.bool_),
        in_queue=np.zeros(count, np.bool_),
    )


def _repair_due_times(
    log: SegmentReader, entries: _Entries, table: DelayLevels
) -> tuple[_Entries, Int64Array]:
    """Make the due times anew that no queue tells: store time + the level's delay.

    Also returns when each message could have been delivered at the earliest: when due, and one
    whose queue tells nonsense as soon as it was stored, because that is what a broker does. A
    message whose record cannot be read is due at NO_TIME.
    """
    rows = np.flatnonzero(~entries.is_known & ~entries.is_expired)
    stored_ms = read_store_times(
        log, entries.commit_log_offset[rows], entries.size_bytes[rows].astype(np.int64)
    )
    delays_ms = np.array([0, *table.delays_ms], np.int64)[entries.level[rows]]
    due_ms = entries.due_ms.copy()
    due_ms[rows] = np.where(stored_ms == NO_TIME, NO_TIME, stored_ms + delays_ms)
    earliest_ms = due_ms.copy()
    earliest_ms[rows] = stored_ms
    return attrs.evolve(entries, due_ms=due_ms), earliest_ms


def _already_delivered(
    log: SegmentReader,
    entries: _Entries,
    earliest_ms: Int64Array,
    newest_ms: int,
    tail: LogNotes,
    tail_start: int,
) -> tuple[BoolArray, int]:
    may_be = ~entries.is_expired & (earliest_ms != NO_TIME) & (earliest_ms <= newest_ms)
    rows = np.flatnonzero(may_be)
    waiting = Waiting(entries.commit_log_offset[rows], entries.size_bytes[rows], earliest_ms[rows])
    marks = entries.commit_log_offset[entries.in_queue & ~entries.is_expired]
    found, bytes_scanned = find_delivered(log, waiting, marks, tail, tail_start)
    delivered = np.zeros(len(entries.level), np.bool_)
    delivered[rows] = found
    return delivered, bytes_scanned + tail.bytes_scanned


def _count(
    queues: tuple[LevelQueue, ...], entries: _Entries, delivered: BoolArray, table: DelayLevels
) -> tuple[LevelCounts, ...]:
    by_level = {queue.level: queue for queue in queues}
    highest = int(entries.level.max(initial=0))
    is_pending = ~entries.is_expired & ~delivered
    is_repaired = is_pending & ~entries.is_known & (entries.due_ms > 0)
    number_of = {
        name: np.bincount(entries.level[mask], minlength=highest + 1).tolist()
        for name, mask in (
            ("queued", np.ones(len(entries.level), np.bool_)),
            ("already_delivered", delivered),
            ("expired", entries.is_expired),
            ("pending", is_pending),
            ("not_in_queue", ~entries.in_queue),
            ("repaired", is_repaired),
        )
    }
    in_use = [level for level, count in enumerate(number_of["queued"]) if count]
    counts = []
    for level in sorted({*by_level, *in_use}):
        queue = by_level.get(level)
        counts.append(
            LevelCounts(
                level=level,
                delay_ms=table.delay_ms(level) if level <= table.max_level else 0,
                stored_offset=None if queue is None else queue.stored_offset,
                queue_min=0 if queue is None else queue.queue_min,
                queue_max=0 if queue is None else queue.queue_max,
                from_queue_offset=0 if queue is None else queue.from_queue_offset,
                **{name: found[level] for name, found in number_of.items() if level <= highest},
            )
        )
    return tuple(counts)
