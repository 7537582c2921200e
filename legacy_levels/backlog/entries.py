# SPDX-License-Identifier: Apache-2.0
"""Columns of all pending entries: from the level queues, and from the log's tail."""

from bisect import bisect_left
from itertools import pairwise
from typing import Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.level_table import WHAT_TO_DO_WITH_MIXED_DELAYS
from legacy_levels.backlog.queues import LevelQueue
from legacy_levels.copies.log_notes import LogNotes
from legacy_levels.neutral_units import is_neutral_size
from message_store.base.errors import OptionsError
from message_store.base.parallel import core_count, parallel_map
from message_store.files.array_room import marked_rows, new_array, rows_at, rows_where
from message_store.files.segments import SegmentReader
from message_store.format.delay_levels import DelayLevels, format_delay
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.cache import kernel
from message_store.kernels.raw_memory import address_of, load_i32, load_i64, load_native, load_u8
from message_store.reading.commit_log import NO_TIME, Int32Array, Int64Array, read_store_times
from message_store.reading.consume_queue import BoolArray
from message_store.reading.shown_delays import PLAUSIBLE_DUE_MS, WHOLE_DELAY_MS

UNITS, DUE, UNKNOWN, EXPIRED, COUNT, LEVEL, FIRST_OFFSET, LATEST_DUE = range(8)
QUEUE_FACTS = 8
"""A row a queue: addresses of its units, due times, and of a byte each for those that are unknown
and expired; how many there are, the level, the first one's queue offset, the latest due time that
is believed.
"""

_UNIT_BYTES = QUEUE_UNIT.size
_AT_OFFSET = QUEUE_UNIT.offset_of("commit_log_offset")
_AT_SIZE = QUEUE_UNIT.offset_of("size_bytes")
_END = 2**63 - 1


@kernel(
    "boolean(int64[:, ::1], int64, int64[::1], int64[::1], int64[::1], int32[::1], int16[::1],"
    " int64[::1], int64[::1], uint8[::1], uint8[::1])"
)
def merge_queues(
    queues: Any, plausible_ms: int, heads: Any, done: Any, offsets: Any, sizes: Any, levels: Any,
    queue_offsets: Any, due_ms: Any, is_known: Any, is_expired: Any,
) -> bool:  # fmt: skip
    """Fill the columns, from ``offsets`` on, with the entries of all queues by log offset; of equal
    ones that of the first queue comes first.

    False when a queue is not in order, or has an offset that no log reaches; the columns then hold
    nothing of use. A due time is known when it is above ``plausible_ms``, not beyond the latest,
    and not marked unknown. ``heads`` and ``done`` are scratch, an element a queue.
    """
    for queue in range(len(queues)):
        done[queue] = 0
        heads[queue] = load_i64(queues[queue, UNITS] + _AT_OFFSET) if queues[queue, COUNT] else _END
    for row in range(len(offsets)):
        lowest, head = 0, heads[0]
        for queue in range(1, len(queues)):
            if heads[queue] < head:
                lowest, head = queue, heads[queue]
        at = done[lowest]
        if at == queues[lowest, COUNT]:
            return False
        unit = queues[lowest, UNITS] + at * _UNIT_BYTES
        due = load_native(queues[lowest, DUE] + 8 * at)
        offsets[row] = head
        sizes[row] = load_i32(unit + _AT_SIZE)
        levels[row] = queues[lowest, LEVEL]
        queue_offsets[row] = queues[lowest, FIRST_OFFSET] + at
        due_ms[row] = due
        is_known[row] = (
            due > plausible_ms
            and due <= queues[lowest, LATEST_DUE]
            and load_u8(queues[lowest, UNKNOWN] + at) == 0
        )
        is_expired[row] = load_u8(queues[lowest, EXPIRED] + at)
        done[lowest] = at + 1
        heads[lowest] = _END
        if at + 1 < queues[lowest, COUNT]:
            heads[lowest] = load_i64(unit + _UNIT_BYTES + _AT_OFFSET)
            if heads[lowest] < head:
                return False
    return True


Int16Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int16]]

_LATE_SLACK_MS = 86_400_000
"""A due time may lie this far beyond newest store time + delay: clocks have gone back by less."""
_LONGEST_DELAY_MS = 10 * 366 * 86_400_000
"""Nobody has a level of more than ten years."""


@attrs.frozen(eq=False)
class Entries:
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

    def __len__(self) -> int:
        return len(self.commit_log_offset)

    def lead_to_records(self, rows: slice) -> BoolArray:
        """Which of these may lead to a record of the log. An entry that holds nothing does not,
        though a record may lie at 0.
        """
        return np.asarray(~self.is_expired[rows] & (self.size_bytes[rows] > 0))

    def pick(self, which: BoolArray | Int64Array) -> "Entries":
        """The chosen ones; these themselves when all are."""
        if which.dtype == np.bool_ and which.all():
            return self
        chosen: Any = marked_rows if which.dtype == np.bool_ else rows_at
        columns = [getattr(self, field.name) for field in attrs.fields(Entries)]
        return Entries(*parallel_map(lambda column: chosen(column, which), columns))


def gather_entries(
    queues: tuple[LevelQueue, ...],
    missing: LogNotes,
    table: DelayLevels,
    *,
    newest_ms: int,
    log_min: int,
    before: LogNotes | None = None,
) -> Entries:
    """The queues' entries and the records that no queue knows, in log order; those ``before`` a
    queue have their places in it.

    Raises OptionsError for records of a level that the table does not have.
    """
    filled = [queue for queue in queues if len(queue)]
    if filled and not len(missing.rows) and (before is None or not len(before.rows)):
        merged = merged_entries(filled, table, newest_ms, log_min)
        if merged is not None:
            return merged
    return sorted_entries(
        queues, missing, table, newest_ms=newest_ms, log_min=log_min, before=before
    )


def merged_entries(
    queues: list[LevelQueue], table: DelayLevels, newest_ms: int, log_min: int
) -> Entries | None:
    """The entries of these queues, none empty, in log order; None if a queue is not in order."""
    expired = parallel_map(lambda queue: queue.is_expired(log_min), queues)
    columns = [
        (np.ascontiguousarray(queue.entries.units), queue.due_ms, queue.due_is_unknown, is_expired)
        for queue, is_expired in zip(queues, expired, strict=True)
    ]
    facts = np.zeros((len(queues), QUEUE_FACTS), np.int64)
    for row, queue, addressed in zip(facts, queues, columns, strict=True):
        row[[UNITS, DUE, UNKNOWN, EXPIRED]] = [address_of(column) for column in addressed]
        row[[COUNT, LEVEL, FIRST_OFFSET]] = len(queue), queue.level, queue.from_queue_offset
        row[LATEST_DUE] = _latest_due_ms(queue, table, newest_ms)
    count = int(facts[:, COUNT].sum())
    entries = Entries(
        commit_log_offset=new_array(count, np.int64),
        size_bytes=new_array(count, np.int32),
        level=new_array(count, np.int16),
        queue_offset=new_array(count, np.int64),
        due_ms=new_array(count, np.int64),
        is_known=new_array(count, np.bool_),
        is_expired=new_array(count, np.bool_),
        in_queue=new_array(count, np.bool_),
    )
    entries.in_queue[:] = True

    def merge(piece: tuple[NDArray[np.int64], slice]) -> bool:
        own, rows = piece
        return merge_queues(
            own, PLAUSIBLE_DUE_MS, np.empty(len(own), np.int64), np.empty(len(own), np.int64),
            entries.commit_log_offset[rows], entries.size_bytes[rows], entries.level[rows],
            entries.queue_offset[rows], entries.due_ms[rows], entries.is_known[rows].view(np.uint8),
            entries.is_expired[rows].view(np.uint8),
        )  # fmt: skip

    return entries if all(parallel_map(merge, _pieces(queues, facts))) else None


def _pieces(
    queues: list[LevelQueue], facts: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], slice]]:
    """The queues of ``facts`` cut at the same places of the log, for as many kernels at a time: the
    facts of each piece, and which rows of the columns it fills.

    Each cut of a queue lies between two entries of which the one is before the place and the other
    is not; so a row that is in order piece by piece is in order.
    """
    offsets = [queue.entries.units["commit_log_offset"] for queue in queues]
    first, last = min(int(each[0]) for each in offsets), max(int(each[-1]) for each in offsets)
    piece_count = core_count()
    places = [first + (last - first) * part // piece_count for part in range(1, piece_count)]
    cuts = [
        np.zeros(len(queues), np.int64),
        *(np.array([bisect_left(each, place) for each in offsets], np.int64) for place in places),
        facts[:, COUNT],
    ]
    if any((end < begin).any() for begin, end in pairwise(cuts)):  # not in order anyhow
        cuts = [cuts[0], cuts[-1]]
    pieces, row = [], 0
    for begin, end in pairwise(cuts):
        own = facts.copy()
        own[:, UNITS] += begin * QUEUE_UNIT.size
        own[:, DUE] += begin * np.dtype(np.int64).itemsize
        own[:, [UNKNOWN, EXPIRED]] += begin[:, np.newaxis]
        own[:, FIRST_OFFSET] += begin
        own[:, COUNT] = end - begin
        count = int(own[:, COUNT].sum())
        pieces.append((own, slice(row, row + count)))
        row += count
    return pieces


def sorted_entries(
    queues: tuple[LevelQueue, ...],
    missing: LogNotes,
    table: DelayLevels,
    *,
    newest_ms: int,
    log_min: int,
    before: LogNotes | None = None,
) -> Entries:
    """The same, whatever order the queues are in, and with records that no queue knows."""
    parts = parallel_map(
        lambda queue: _of_queue(queue, table, newest_ms, log_min), list(filter(len, queues))
    )
    queue_ends = {queue.level: queue.queue_max for queue in queues}
    parts += _of_tail(missing, table, queue_ends)
    if before is not None:
        parts += _of_lost(before, table)
    if not parts:
        parts = [_of_notes(missing, 1, 0, 0)]
    order = np.argsort(np.concatenate([part.commit_log_offset for part in parts]), kind="stable")

    def in_order(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    names = [field.name for field in attrs.fields(Entries)]
    return Entries(*parallel_map(in_order, names))


def _latest_due_ms(queue: LevelQueue, table: DelayLevels, newest_ms: int) -> int:
    return newest_ms + table.delay_ms(queue.level) + _LATE_SLACK_MS


def _of_queue(queue: LevelQueue, table: DelayLevels, newest_ms: int, log_min: int) -> Entries:
    """A queue's entries. A due time is believed when it is one by size: above any tag hash, and not
    beyond what the newest record of the level could have.

    Comparing each with its own store time would mean reading every record's head.
    """
    latest_ms = _latest_due_ms(queue, table, newest_ms)
    is_plausible = (queue.due_ms > PLAUSIBLE_DUE_MS) & (queue.due_ms <= latest_ms)
    return Entries(
        commit_log_offset=queue.entries.commit_log_offset,
        size_bytes=queue.entries.size_bytes.astype(np.int32),
        level=np.full(len(queue), queue.level, np.int16),
        queue_offset=queue.queue_offset,
        due_ms=queue.due_ms,
        is_known=is_plausible & ~queue.due_is_unknown,
        is_expired=queue.is_expired(log_min),
        in_queue=np.ones(len(queue), np.bool_),
    )


def _of_tail(missing: LogNotes, table: DelayLevels, queue_ends: dict[int, int]) -> list[Entries]:
    """Records that their queue does not know, where a broker would put them: behind its end."""
    parts = []
    for queue_id in np.unique(missing.queue_id).tolist():
        level = queue_id + 1
        if level > table.max_level:
            raise OptionsError(
                f"the log holds messages of level {level}, which {table.text()!r} has not; give the"
                " broker's messageDelayLevel with --level-table"
            )
        own = attrs.evolve(missing, rows=missing.rows[missing.queue_id == queue_id])
        parts.append(_of_notes(own, level, table.delay_ms(level), queue_ends.get(level, 0)))
    return parts


def _of_lost(before: LogNotes, table: DelayLevels) -> list[Entries]:
    """Records that lie before their queue, where its lost entries had them."""
    parts = []
    for queue_id in np.unique(before.queue_id).tolist():
        own = attrs.evolve(before, rows=before.rows[before.queue_id == queue_id])
        entries = _of_notes(own, queue_id + 1, table.delay_ms(queue_id + 1), 0)
        parts.append(attrs.evolve(entries, queue_offset=own.queue_offset))
    return parts


def _of_notes(notes: LogNotes, level: int, delay_ms: int, first_queue_offset: int) -> Entries:
    count = len(notes.rows)
    return Entries(
        commit_log_offset=notes.commit_log_offset,
        size_bytes=notes.size_bytes.astype(np.int32),
        level=np.full(count, level, np.int16),
        queue_offset=np.arange(first_queue_offset, first_queue_offset + count, dtype=np.int64),
        due_ms=notes.store_timestamp_ms + delay_ms,
        is_known=np.ones(count, np.bool_),
        is_expired=np.zeros(count, np.bool_),
        in_queue=np.zeros(count, np.bool_),
    )


def doubt_neutral_entries(log: SegmentReader, entries: Entries) -> Entries:
    """The same, but an entry that begins where a record does is damaged and not neutral."""
    sizes = entries.size_bytes
    rows = rows_where(len(entries), lambda at: entries.is_expired[at] & is_neutral_size(sizes[at]))
    is_damaged = read_store_times(log, entries.commit_log_offset[rows]) != NO_TIME
    if not is_damaged.any():
        return entries
    is_expired = entries.is_expired.copy()
    is_expired[rows[is_damaged]] = False
    return attrs.evolve(entries, is_expired=is_expired)


def repair_due_times(
    log: SegmentReader, entries: Entries, table: DelayLevels
) -> tuple[Entries, Int64Array]:
    """Make the due times anew that no queue tells: store time + the level's delay.

    Also returns when each message could have been delivered at the earliest: when due, and one
    whose queue tells nonsense as soon as it was stored, because that is what a broker does. A
    message whose record cannot be read is due at NO_TIME. Raises OptionsError where a due time that
    is too late for the table is what another delay would have made of the store time.
    """
    known, expired = entries.is_known, entries.is_expired
    rows = rows_where(len(entries), lambda at: ~known[at] & ~expired[at])
    if not len(rows):
        return entries, entries.due_ms
    stored_ms = read_store_times(
        log, entries.commit_log_offset[rows], entries.size_bytes[rows].astype(np.int64)
    )
    delays_ms = np.array([0, *table.delays_ms], np.int64)[entries.level[rows]]
    _refuse_another_table(entries.pick(rows), stored_ms, delays_ms, table)
    due_ms = entries.due_ms.copy()
    due_ms[rows] = np.where(stored_ms == NO_TIME, NO_TIME, stored_ms + delays_ms)
    earliest_ms = due_ms.copy()
    earliest_ms[rows] = stored_ms
    return attrs.evolve(entries, due_ms=due_ms), earliest_ms


def _refuse_another_table(
    doubted: Entries, stored_ms: Int64Array, delays_ms: Int64Array, table: DelayLevels
) -> None:
    """A due time that lies whole seconds after its store time is one, of a table that was longer:
    computed once more it would be early.
    """
    shown_ms = doubted.due_ms - stored_ms
    is_due_time = (doubted.due_ms > PLAUSIBLE_DUE_MS) & (stored_ms != NO_TIME)
    is_due_time &= (shown_ms >= WHOLE_DELAY_MS) & (shown_ms <= _LONGEST_DELAY_MS)
    is_due_time &= (shown_ms % WHOLE_DELAY_MS == 0) & (shown_ms != delays_ms)
    groups, counts = np.unique(
        np.stack([doubted.level[is_due_time], shown_ms[is_due_time]]), axis=1, return_counts=True
    )
    if len(counts):
        shown = "; ".join(
            f"{table.describe(level)} holds {count} that are due after {format_delay(shown)}"
            for level, shown, count in zip(*groups.tolist(), counts.tolist(), strict=True)
        )
        raise OptionsError(
            f"messages wait that were stored under another level table than {table.text()!r}:"
            f" {shown}; {WHAT_TO_DO_WITH_MIXED_DELAYS}"
        )
