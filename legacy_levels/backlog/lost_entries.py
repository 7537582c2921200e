# SPDX-License-Identifier: Apache-2.0
"""Messages that a level queue has lost: its first files are missing, or an entry leads nowhere.

The records of a level stand in the log in the order of its queue. Each record holds its own
ordinal. It differs from the queue offset by one number for all records of the level (0 unless a
broker rebuilt the queue). So the undamaged entries show which record belongs to which lost one.
This needs a log that was read as a whole.

No message is found twice. A record is matched with an entry only if no other entry leads to it, and
this entry provably leads to no record. No other record may have the ordinal.
"""

import attrs
import numpy as np

from legacy_levels.backlog.log_tail import LogTail, indexed_ends, not_in_their_queue
from legacy_levels.backlog.queues import LevelQueue
from legacy_levels.copies.kernels import OFFSET, QUEUE_OFFSET
from legacy_levels.copies.log_notes import LogNotes, are_in_order
from legacy_levels.neutral_units import is_message, is_neutral
from message_store.base.errors import FormatError
from message_store.files.segments import SegmentReader
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message_codec import decode_message_at
from message_store.format.properties import LEVEL_TOPIC
from message_store.reading.commit_log import Int64Array
from message_store.reading.consume_queue import BoolArray, UnitArray, is_filled, out_of_order

_MOST_OF_AN_ORDINAL = 100
"""So often may a level's queue have been begun anew."""


@attrs.frozen(eq=False)
class RecoveredEntries:
    """The queues with entries that lead to their records again, ``mended`` of each level; what lies
    ``before`` a queue's first entry and behind its offset, with places in the queue for queue
    offsets; and what no queue knew yet.
    """

    queues: tuple[LevelQueue, ...]
    before: LogNotes
    missing: LogNotes
    mended: dict[int, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class _Holes:
    """Stretches of the log in which nobody can tell where records begin."""

    starts: Int64Array
    stops: Int64Array

    def hold(self, places: Int64Array) -> BoolArray:
        """Which of these places lie in one."""
        at = np.searchsorted(self.starts, places, "right") - 1
        return np.asarray((at >= 0) & (places < self.stops[np.maximum(at, 0)]))

    def lie_between(self, places: Int64Array) -> BoolArray:
        """Between which neighbours of these sorted places one begins."""
        return np.diff(np.searchsorted(self.starts, places)) > 0


def lead_astray(log: SegmentReader, queues: tuple[LevelQueue, ...]) -> bool:
    """Whether entries of a queue lead to the records of others, as far as that shows."""
    return any(_leads_astray(log, queue) for queue in queues)


def _leads_astray(log: SegmentReader, queue: LevelQueue) -> bool:
    """Whether an entry that waits leads to the record of another, as far as that shows: it is not
    farther in the log than the one in front, or not as far as the one behind.
    """
    units = queue.entries.units
    seam = np.concatenate([queue.history.units[-1:], units[:1]])
    if are_in_order(seam) and are_in_order(units):
        return False
    units = np.concatenate([queue.history.units, units])
    rows = np.flatnonzero(is_message(units) & is_filled(units))
    offsets = units["commit_log_offset"][rows].astype(np.int64)
    falls = np.flatnonzero(offsets[1:] <= offsets[:-1])
    first = queue.history.first_queue_offset
    return any(
        _is_of_another(log, queue.level - 1, first + row, units[row])
        for row in rows[np.union1d(falls, falls + 1)].tolist()
    )


def _is_of_another(log: SegmentReader, queue_id: int, place: int, unit: np.void) -> bool:
    """Whether a record says that it stands elsewhere than in the entry that leads to it."""
    try:
        record = decode_message_at(
            log.read_at(int(unit["commit_log_offset"]), int(unit["size_bytes"]))
        )
    except FormatError:
        return False
    own = LEVEL_TOPIC, queue_id, place
    return (record.topic, record.queue_id, record.queue_offset) != own


def recover_entries(
    log: SegmentReader,
    queues: tuple[LevelQueue, ...],
    tail: LogTail,
    table: DelayLevels,
) -> RecoveredEntries:
    """Look for entries that the queues of ``tail`` lost, if that is the whole log."""
    damaged = tail.damaged_levels
    if not damaged:
        none = attrs.evolve(tail.missing, rows=tail.missing.rows[:0])
        return RecoveredEntries(queues=queues, before=none, missing=tail.missing)
    records = tail.notes.level_records
    levels = records.queue_id + 1
    holes = _holes_of(log, tail.notes)
    made, before, mended, pointed = [], [records.rows[:0]], {}, [np.empty(0, np.int64)]
    for queue in queues:
        if queue.level in damaged and queue.level <= table.max_level:
            own = attrs.evolve(records, rows=records.rows[levels == queue.level])
            level = _Level(log, queue, own, holes)
            queue = level.mend(table.delay_ms(queue.level))
            mended[queue.level] = level.mended
            before.append(level.before())
            pointed += [own.commit_log_offset[level.is_pointed_to], before[-1][:, OFFSET]]
        made.append(queue)
    missing = not_in_their_queue(tail.notes, indexed_ends(tuple(made), log))
    is_known = np.isin(missing.commit_log_offset, np.concatenate(pointed))
    return RecoveredEntries(
        queues=tuple(made),
        before=attrs.evolve(records, rows=np.concatenate(before)),
        missing=attrs.evolve(missing, rows=missing.rows[~is_known]),
        mended={level: count for level, count in mended.items() if count},
    )


def _holes_of(log: SegmentReader, notes: LogNotes) -> _Holes:
    """From damage, a missing file or the end of what was read to the next record that was noted."""
    gaps = [
        before.start_offset + before.length_bytes
        for before, after in zip(log.segments, log.segments[1:], strict=False)
        if before.start_offset + before.length_bytes < after.start_offset
    ]
    starts = np.unique(np.array([*notes.damaged_places, *gaps, notes.log_end], np.int64))
    noted = np.append(notes.commit_log_offset, log.end_offset)
    at = np.searchsorted(noted, starts, "right")
    return _Holes(starts, noted[np.minimum(at, len(noted) - 1)])


class _Level:
    """One level: its entries, delivered ones as far as they are known included, and its records."""

    def __init__(self, log: SegmentReader, queue: LevelQueue, own: LogNotes, holes: _Holes) -> None:
        self._log = log
        self._queue = queue
        self._own = own
        self._holes = holes
        self._units: UnitArray = np.concatenate([queue.history.units, queue.entries.units])
        self._first = queue.history.first_queue_offset
        self._places = self._units["commit_log_offset"].astype(np.int64)
        at = np.searchsorted(own.commit_log_offset, self._places)
        self._at = np.minimum(at, len(own.rows) - 1)
        self._is_at_record = own.commit_log_offset[self._at] == self._places
        self._shift = own.queue_offset[self._at] - (self._first + np.arange(len(self._places)))
        self._is_whole_record = self._is_at_record & (
            own.size_bytes[self._at] == self._units["size_bytes"]
        )
        self._is_right = self._right_entries()
        self.is_pointed_to = np.zeros(len(own.rows), np.bool_)
        self.is_pointed_to[self._at[self._is_right]] = True
        self.mended = 0

    def _right_entries(self) -> BoolArray:
        """Entries of a record; of those of the same one the entry in line with most others. One
        that is out of order has to be in line with most.
        """
        is_right = self._is_whole_record.copy()
        rows = np.flatnonzero(is_right)
        if len(rows):
            is_right[rows] = False
            away = np.abs(self._shift[rows] - int(np.median(self._shift[rows])))
            in_line = (away == 0) | ~out_of_order(self._places[rows])
            rows, away = rows[in_line], away[in_line]
            rows = rows[np.lexsort((away, self._at[rows]))]
            is_right[rows[np.unique(self._at[rows], return_index=True)[1]]] = True
        return np.asarray(is_right)

    # --- entries that lead nowhere ----------------------------------------------------------------

    def mend(self, delay_ms: int) -> LevelQueue:
        """The queue with the records' places in the entries that are proven to be theirs. One that
        leads to the record of another, and whose own nobody finds, leads nowhere.

        A due time that is not that of the record is to be computed.
        """
        lost = np.flatnonzero(self._may_be_mended())
        rows, records = self._paired(lost)
        astray = np.setdiff1d(lost[self._is_whole_record[lost]], rows) - len(self._queue.history)
        if not len(rows) + len(astray):
            return self._queue
        self.is_pointed_to[records] = True
        self._is_right[rows], self._at[rows] = True, records  # good to go back from, then
        self.mended = len(rows)
        own, queue, rows = self._own, self._queue, rows - len(self._queue.history)
        units, unknown = queue.entries.units.copy(), queue.due_is_unknown.copy()
        units["commit_log_offset"][rows] = own.commit_log_offset[records]
        units["size_bytes"][rows] = own.size_bytes[records]
        units["commit_log_offset"][astray] = -1 - units["commit_log_offset"][astray]
        unknown[rows] |= queue.due_ms[rows] != own.store_timestamp_ms[records] + delay_ms
        return attrs.evolve(
            queue, entries=attrs.evolve(queue.entries, units=units), due_is_unknown=unknown
        )

    def _may_be_mended(self) -> BoolArray:
        """Entries behind the offset of which the log shows that no record of theirs is there."""
        entries, places = self._queue.entries, self._places
        is_behind = np.arange(len(places)) >= len(self._queue.history)
        # What looks like a cancelled entry is damage where a record begins.
        looks_cancelled = is_neutral(entries.units) & ~self._is_at_record[is_behind]
        stands_for_one = is_behind.copy()
        stands_for_one[is_behind] = ~(entries.is_pre_blank | looks_cancelled)
        is_outside = (places < self._log.min_offset) | (places >= self._log.end_offset)
        leads_nowhere = self._is_at_record | is_outside | ~self._holes.hold(places)
        return np.asarray(stands_for_one & leads_nowhere & ~self._is_right)

    def _paired(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Which of these entries have a record for certain, and which that is."""
        count = len(self._units)
        numbers = np.arange(count)
        before = np.maximum.accumulate(np.where(self._is_right, numbers, -1))[rows]
        after = np.minimum.accumulate(np.where(self._is_right, numbers, count)[::-1])[::-1][rows]
        has_before, has_after = before >= 0, after < count
        shift_before = self._shift[before]
        shift_after = self._shift[np.minimum(after, count - 1)]
        shifts = np.where(has_before, shift_before, np.where(has_after, shift_after, 0))
        is_one_shift = ~(has_before & has_after) | (shift_before == shift_after)
        low = np.where(has_before, self._places[before], -1)
        high = np.where(has_after, self._places[np.minimum(after, count - 1)], LONG_MAX)
        has_record, records = self._records_of(self._first + rows + shifts, low, high)
        has_record &= is_one_shift
        rows, records = rows[has_record], records[has_record]
        _, firsts, uses = np.unique(records, return_index=True, return_counts=True)
        return rows[firsts[uses == 1]], records[firsts[uses == 1]]

    def _records_of(
        self, ordinals: Int64Array, low: Int64Array, high: Int64Array
    ) -> tuple[BoolArray, Int64Array]:
        """For each ordinal: whether one unnamed record between two offsets has it, and which."""
        own = self._own
        free = np.flatnonzero(~self.is_pointed_to)
        free = free[np.argsort(own.queue_offset[free], kind="stable")]
        first = np.searchsorted(own.queue_offset[free], ordinals, "left")
        end = np.searchsorted(own.queue_offset[free], ordinals, "right")
        counts, records = np.zeros((2, len(ordinals)), np.int64)
        counts[end - first > _MOST_OF_AN_ORDINAL] = 2  # records that tell nothing of their places
        for step in range(min(int((end - first).max(initial=0)), _MOST_OF_AN_ORDINAL)):
            is_there = first + step < end
            record = free[np.minimum(first + step, len(free) - 1)]
            place = own.commit_log_offset[record]
            is_there &= (low < place) & (place < high)
            counts += is_there
            records = np.where(is_there, record, records)
        return counts == 1, records

    # --- what lies before the first entry ---------------------------------------------------------

    def before(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Rows of the records between the stored offset and the queue's first entry, told by going
        back from the first entry that is right; where a stretch of the log cannot be read, the
        ordinals say how many were in it.
        """
        own, none = self._own.rows, self._own.rows[:0]
        right = np.flatnonzero(self._is_right)
        low, high = max(self._queue.stored_offset or 0, 0), self._first_entry()
        if not len(right) or low >= high or self._first + right[0] < high:
            return none
        anchor, place = int(self._at[right[0]]), self._first + int(right[0])
        rows = own[: anchor + 1]
        steps = np.maximum(np.diff(rows[:, QUEUE_OFFSET]), 1)
        steps = np.where(self._holes.lie_between(rows[:, OFFSET]), steps, 1)
        rows = rows[:-1].copy()
        rows[:, QUEUE_OFFSET] = place - np.cumsum(steps[::-1])[::-1]
        is_free = ~self.is_pointed_to[:anchor]
        return rows[is_free & (rows[:, QUEUE_OFFSET] >= low) & (rows[:, QUEUE_OFFSET] < high)]

    def _first_entry(self) -> int:
        """Where the queue's first message stands."""
        is_blank = self._queue.entries.is_pre_blank
        blank = len(is_blank) if is_blank.all() else int(is_blank.argmin())
        return self._queue.from_queue_offset + blank
