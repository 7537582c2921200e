# SPDX-License-Identifier: Apache-2.0
"""Every pending message of every level, in log order: what a conversion reads.

Queues are read from their delivery offsets on. Records that no queue knows yet come from the log's
tail. Due times that cannot be right are computed again, and delivered messages are left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np

from legacy_levels.backlog.entries import (
    Entries,
    Int16Array,
    doubt_neutral_entries,
    gather_entries,
    repair_due_times,
)
from legacy_levels.backlog.level_table import (
    ObservedDelays,
    observe_delays,
    reconcile_level_table,
    refuse_mixed_delays,
)
from legacy_levels.backlog.log_tail import Known, LogTail, lacks_beginning, read_tail
from legacy_levels.backlog.lost_entries import RecoveredEntries, lead_astray, recover_entries
from legacy_levels.backlog.lost_queues import cut_queues
from legacy_levels.backlog.queues import LevelQueue, open_level_queues
from legacy_levels.copies.log_notes import LogNotes
from legacy_levels.copies.matching import Waiting, find_delivered
from legacy_levels.delay_offsets import FILE_NAME, DelayOffsets, OffsetsChoice, read_delay_offsets
from legacy_levels.delivery_marks import (
    FLUSHED_NAME,
    DeliveryMark,
    checksum,
    is_of_a_lost_log,
    level_ends,
    mark_to_trust,
    read_mark,
)
from legacy_levels.neutral_units import is_neutral_size
from message_store.base.errors import UncleanStoreError
from message_store.base.parallel import parallel_map
from message_store.files.array_room import marked_rows, new_array, row_blocks, rows_at, rows_where
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import LONG_MAX
from message_store.reading.commit_log import NO_TIME, Int32Array, Int64Array
from message_store.reading.consume_queue import BoolArray
from message_store.reading.recovered_end import RecoveredLog, recovered_end
from message_store.redelivery.lineage import Names


@attrs.frozen
class LevelCounts:
    """One level in numbers; ``queued = pending + already_delivered + neutral + expired``.

    ``queued`` runs from ``from_queue_offset`` to ``to_queue_offset``, of which the last
    ``not_in_queue`` are only in the log; in front of them stand the ``before_queue`` that lie
    between the stored offset and a queue that has lost its first files. ``repaired`` are the due
    times that were computed, ``mended`` the entries that led nowhere and whose record was found.
    ``neutral`` were cancelled, or delivered out of turn; of the ``expired`` the log has no record.
    """

    level: int
    delay_ms: int
    stored_offset: int | None
    queue_min: int
    queue_max: int
    from_queue_offset: int
    queued: int = 0
    already_delivered: int = 0
    neutral: int = 0
    expired: int = 0
    pending: int = 0
    not_in_queue: int = 0
    before_queue: int = 0
    repaired: int = 0
    mended: int = 0

    @property
    def to_queue_offset(self) -> int:
        """Where the level's offset stands when all this is done."""
        return self.from_queue_offset + self.queued - self.before_queue


@attrs.frozen(eq=False)
class LevelBacklog:
    """Every pending message, sorted by its place in the log, and the account of the rest.

    The arrays have one element a pending message. ``bytes_scanned`` is how much of the log was
    walked through, ``log_end`` where its last whole record ends, ``recovered_end`` where recovery
    would let it end. ``damaged_places`` are log offsets behind which no record began.
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
    recovered_end: int = LONG_MAX

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
    whole_log: bool = False,
    commit_log_file_bytes: int | None = None,
    queue_file_bytes: int | None = None,
) -> LevelBacklog:
    """Find what is pending in the levels of the store at ``root``, which nobody writes to.

    The queues are believed as brokers do, and the log is read from their end on. ``whole_log``, a
    cut queue or an entry that leads to another's record has all of it read, to find the message.

    Raises SourceError for what is no store, UncleanStoreError for one that was not stopped cleanly
    unless ``after_crash``, OptionsError when ``level_table`` (or the default) is not the store's or
    messages wait with several delays in one level, and FormatError when a queue cannot be told.
    """
    store = _readable(root, after_crash=after_crash)
    with open_log(store, commit_log_file_bytes) as log:
        start = _where_to_start(store, log, offsets_choice)
        known = Known.now(store, log, queue_file_bytes=queue_file_bytes)
        queues = open_level_queues(root, start.offsets, queue_file_bytes=queue_file_bytes)
        whole_log |= start.lacks_entries(store, queues) or lead_astray(log, queues)
        tail = start.read_tail(log, queues, known, whole_log=whole_log)
        table = _level_table(store, queues, tail, log, start, level_table)
        recovered = recover_entries(log, queues, tail, table)
        missing = start.without_passed_levels(recovered.missing)
        entries = gather_entries(
            recovered.queues,
            missing,
            table,
            newest_ms=tail.newest_ms,
            log_min=log.min_offset,
            before=recovered.before,
        )
        entries = _without_hidden_cancels(doubt_neutral_entries(log, entries), queues)
        entries, earliest_ms = repair_due_times(log, entries, table)
        end = recovered_end(store, log)  # once more, because a writer may have gone on
        names_from = _names_from(store, start, entries)
        delivered, bytes_scanned = _delivered(log, entries, earliest_ms, tail, names_from, end)
        passed = missing.commit_log_offset[start.have_passed(missing)]
        delivered |= _are_done(entries, passed, tail, start, known)
        pending = entries.pick(_are_pending(entries, delivered))
        return LevelBacklog(
            **{name: getattr(pending, name) for name in _COLUMNS},
            counts=_count(recovered, entries, delivered, table),
            level_table=table,
            offsets=start.offsets,
            log_min=log.min_offset,
            log_end=tail.notes.log_end,
            newest_store_ms=tail.newest_ms,
            bytes_scanned=bytes_scanned,
            damaged_places=tail.notes.damaged_places,
            queue_misfits=tuple(each.path for queue in queues for each in queue.misfits),
            recovered_end=end,
        )


def _readable(root: Path, *, after_crash: bool) -> StoreRoot:
    store = StoreRoot(root)
    store.require_readable()
    store.require_log()
    if not store.was_stopped_cleanly and not after_crash:
        raise UncleanStoreError(f"{store.abort}: the store was not stopped cleanly")
    return store


@attrs.frozen
class _Start:
    """The offsets from which the levels are read; the mark of the last flush; ``ends``, where each
    queue ended at least, as the marks know it; and after a crash the newest mark that the log bears
    out, which says more than delayOffset.json.
    """

    offsets: DelayOffsets
    flushed: DeliveryMark | None
    ends: Mapping[int, int]
    trusted: DeliveryMark | None = None
    was_killed: bool = False

    def _passed(self, level: int) -> int:
        """The queue offset of a level before which nothing waits."""
        marked = {} if self.trusted is None else self.trusted.offsets
        passed = marked.get(level, self.offsets.offset_of(level))
        return max(passed, self.offsets.moved.get(level, 0))

    def lacks_entries(self, store: StoreRoot, queues: Sequence[LevelQueue]) -> bool:
        """Whether a queue has lost entries that wait, as far as marks or offsets tell."""
        there = {queue.level: queue.queue_max for queue in queues}
        is_short = any(
            end > max(there.get(level, 0), self._passed(level)) for level, end in self.ends.items()
        )
        return is_short or len(cut_queues(store, queues, self.flushed)) > 0

    def read_tail(
        self, log: SegmentReader, queues: tuple[LevelQueue, ...], known: Known, *, whole_log: bool
    ) -> LogTail:
        """The tail of the log; all of it where records say that others of their level stood before
        them, which the queue lacks.
        """
        tail = read_tail(log, queues, known, whole_log=whole_log)
        if self.was_killed and not whole_log and lacks_beginning(tail, queues):
            tail = read_tail(log, queues, known, whole_log=True)
        return attrs.evolve(tail, missing=self.without_passed_levels(tail.missing))

    def have_passed(self, missing: LogNotes) -> BoolArray:
        """Which of these records stand before the offset of their level, though no queue is there
        to show it: they were delivered or cancelled.
        """
        ids, row_ids = np.unique(missing.queue_id, return_inverse=True)
        levels = [each + 1 for each in ids.tolist()]
        passed = np.array([self._passed(level) for level in levels], np.int64)
        have_passed = missing.queue_offset < passed[row_ids]
        if self.trusted is not None:
            have_passed &= missing.commit_log_offset < self.trusted.log_end
        moved = np.array([self.offsets.moved.get(level, 0) for level in levels], np.int64)
        return np.asarray(have_passed | (missing.queue_offset < moved[row_ids]))

    def without_passed_levels(self, missing: LogNotes) -> LogNotes:
        """The records of levels in which any of them waits; the others have their places."""
        waiting = np.unique(missing.queue_id[~self.have_passed(missing)])
        rows = missing.rows[np.isin(missing.queue_id, waiting)]
        return attrs.evolve(missing, rows=rows)


def _where_to_start(store: StoreRoot, log: SegmentReader, choice: OffsetsChoice | str) -> _Start:
    """The offsets of the chosen file, and the marks. After a loss of power both may be ahead of the
    log, which the latest mark tells: then those of the last flush count, as for an engine.
    """
    flushed, offsets = read_mark(store.path, FLUSHED_NAME), read_delay_offsets(store.path, choice)
    recovered = RecoveredLog(log, min(recovered_end(store, log), log.end_offset))
    ends = level_ends(store.path, recovered)
    was_killed = not store.was_stopped_cleanly
    if choice != OffsetsChoice.AUTO or not was_killed:
        return _Start(offsets, flushed, ends, was_killed=was_killed)
    table = checksum(read_small_file(store.config_file(FILE_NAME)))
    if flushed is not None and is_of_a_lost_log(store.path, table, recovered):
        offsets = attrs.evolve(offsets, offsets=flushed.offsets).at_least(offsets.moved)
    if (mark := mark_to_trust(store.path, recovered)) is not None:
        offsets = offsets.at_least(mark.offsets)  # the table may be older, as after a kill between
    return _Start(offsets, flushed, ends, mark, was_killed)


def _without_hidden_cancels(entries: Entries, queues: tuple[LevelQueue, ...]) -> Entries:
    """The same, but expired where a record came from the log and its cancelled or delivered entry
    stands behind a hole in the queue.
    """
    neutral_ends = np.concatenate([np.empty(0, np.int64), *(each.neutral_ends for each in queues)])
    if not len(neutral_ends):
        return entries
    is_neutral = ~entries.in_queue & np.isin(
        entries.commit_log_offset + entries.size_bytes, neutral_ends
    )
    return attrs.evolve(entries, is_expired=entries.is_expired | is_neutral)


def _level_table(
    store: StoreRoot,
    queues: tuple[LevelQueue, ...],
    tail: LogTail,
    log: SegmentReader,
    start: _Start,
    chosen: DelayLevels | None,
) -> DelayLevels:
    """The level table, by the delays that the messages of each level in use show. Of a level whose
    queue is lost the mark has the table.
    """
    in_tail = {queue_id + 1 for queue_id in np.unique(tail.missing.queue_id).tolist()}
    in_use = [queue for queue in queues if len(queue) or queue.level in in_tail]

    def see_one(queue: LevelQueue) -> ObservedDelays:
        with log.again() as own:
            return observe_delays(store.path, own, queue)

    seen = parallel_map(see_one, in_use)
    refuse_mixed_delays(seen)
    shown = {one.level: one.newest_ms for one in seen}
    mark = start.trusted or start.flushed
    if mark is not None and mark.table:
        of_mark = DelayLevels.parse(mark.table)
        untold = {level for level in in_tail if shown.get(level) is None}
        shown |= {each: of_mark.delay_ms(each) for each in untold if each <= of_mark.max_level}
    return reconcile_level_table(chosen, shown)


def _already_delivered(
    log: SegmentReader, entries: Entries, earliest_ms: Int64Array, tail: LogTail, log_end: int
) -> tuple[BoolArray, int]:
    """The same by copies alone, that lie before ``log_end``."""

    def may_be(rows: slice) -> BoolArray:
        earliest = earliest_ms[rows]
        is_time = (earliest != NO_TIME) & (earliest <= tail.newest_ms)
        return np.asarray(is_time & ~entries.is_expired[rows])

    rows = rows_where(len(entries), may_be)
    columns = entries.commit_log_offset, entries.size_bytes, earliest_ms
    waiting = Waiting(*(rows_at(column, rows) for column in columns))
    marks = _trusted_offsets(entries) if len(rows) else entries.commit_log_offset[:0]
    has_copy, copies = find_delivered(log, waiting, marks, tail.notes, tail.start, log_end=log_end)
    delivered = new_array(len(entries), np.bool_)
    for block in row_blocks(len(entries)):
        is_named = copies.name(entries.commit_log_offset[block])
        delivered[block] = is_named & entries.lead_to_records(block)
    delivered[rows] = has_copy
    return delivered, copies.bytes_scanned


def _names_from(store: StoreRoot, start: _Start, entries: Entries) -> int:
    """From where on names of ours tell what is done, whatever the clock showed: after a crash from
    the last flush on, or from the first entry if the offsets are older than that.
    """
    mark, offsets = start.flushed, start.offsets.offsets
    if mark is None or store.was_stopped_cleanly:
        return LONG_MAX
    begin = int(entries.commit_log_offset.min(initial=mark.log_end))
    is_as_new = all(offsets.get(level, 0) >= at for level, at in mark.offsets.items())
    return max(begin, mark.log_end) if is_as_new and not mark.done else begin


def _delivered(
    log: SegmentReader,
    entries: Entries,
    earliest_ms: Int64Array,
    tail: LogTail,
    names_from: int,
    log_end: int,
) -> tuple[BoolArray, int]:
    """Which entries were delivered or rescheduled, by copies and by names, and how many bytes of
    the log the search for copies has read. What lies behind ``log_end`` counts for nothing.
    """
    delivered, bytes_scanned = _already_delivered(log, entries, earliest_ms, tail, log_end)
    names = Names.read(log, names_from, min(tail.start, log_end), known_end=tail.start)
    for rows in row_blocks(len(entries) if len(names) else 0):
        offsets = entries.commit_log_offset[rows]
        delivered[rows] |= names.are_done(offsets, offsets) & entries.lead_to_records(rows)
    return delivered, bytes_scanned


def _are_done(
    entries: Entries, passed: Int64Array, tail: LogTail, start: _Start, known: Known
) -> BoolArray:
    """Which entries have ``passed``, or a newer record replaces, which waits for another time.
    Where the queue shows cancels, that is told by the records alone that it may not know of: those
    that a writer stored since, and the last one of a store that was killed.
    """
    offsets, from_log = entries.commit_log_offset, ~entries.in_queue
    is_done = from_log & np.isin(offsets, passed)
    is_done |= from_log & np.isin(offsets, tail.notes.replaced_behind(0))
    if start.was_killed:
        is_done |= np.isin(offsets, tail.notes.replaced_behind(known.indexed.log_offset))
    return np.asarray(is_done & entries.lead_to_records(slice(None)))


def _trusted_offsets(entries: Entries) -> Int64Array:
    """Where records begin, as far as queues tell."""
    is_trusted = new_array(len(entries), np.bool_)
    for rows in row_blocks(len(entries)):
        is_trusted[rows] = entries.in_queue[rows] & ~entries.is_expired[rows]
    offsets = entries.commit_log_offset
    return offsets if is_trusted.all() else marked_rows(offsets, is_trusted)


def _are_pending(entries: Entries, delivered: BoolArray) -> BoolArray:
    is_pending = new_array(len(entries), np.bool_)
    for rows in row_blocks(len(entries)):
        is_pending[rows] = ~entries.is_expired[rows] & ~delivered[rows]
    return is_pending


def _picked(levels: Int16Array, mask: BoolArray) -> Int16Array:
    """The chosen ones; mostly that is all or none."""
    if mask.all():
        return levels
    return levels[mask] if mask.any() else levels[:0]


_COLUMNS = "commit_log_offset", "size_bytes", "level", "queue_offset", "due_ms"
_COUNTED = (
    *("queued", "already_delivered", "neutral", "expired", "pending"),
    *("not_in_queue", "before_queue", "repaired"),
)


def _masks(
    recovered: RecoveredEntries, entries: Entries, delivered: BoolArray, rows: slice
) -> tuple[BoolArray, ...]:
    """Which of some entries are in each of the counts ``_COUNTED``."""
    is_before = ~entries.in_queue[rows]
    if is_before.any():
        is_before &= np.isin(entries.commit_log_offset[rows], recovered.before.commit_log_offset)
    is_expired, is_delivered = entries.is_expired[rows], delivered[rows]
    is_pending = ~is_expired & ~is_delivered
    is_neutral = is_expired & (is_neutral_size(entries.size_bytes[rows]) | ~entries.in_queue[rows])
    is_expired = is_expired & ~is_neutral
    is_repaired = is_pending & ~entries.is_known[rows] & (entries.due_ms[rows] > 0)
    not_in_queue = ~entries.in_queue[rows] & ~is_before
    is_queued = np.ones(len(is_pending), np.bool_)
    fates = is_delivered, is_neutral, is_expired, is_pending
    return is_queued, *fates, not_in_queue, is_before, is_repaired


def _count(
    recovered: RecoveredEntries, entries: Entries, delivered: BoolArray, table: DelayLevels
) -> tuple[LevelCounts, ...]:
    by_level = {queue.level: queue for queue in recovered.queues}
    highest = int(entries.level.max(initial=0))
    sums = np.zeros((len(_COUNTED), highest + 1), np.int64)
    for rows in row_blocks(len(entries)):
        masks = _masks(recovered, entries, delivered, rows)
        for sum_of_levels, mask in zip(sums, masks, strict=True):
            sum_of_levels += np.bincount(_picked(entries.level[rows], mask), minlength=highest + 1)
    number_of = dict(zip(_COUNTED, sums.tolist(), strict=True))
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
                mended=recovered.mended.get(level, 0),
                **{
                    name: counts_of_levels[level]
                    for name, counts_of_levels in number_of.items()
                    if level <= highest
                },
            )
        )
    return tuple(counts)
