# SPDX-License-Identifier: Apache-2.0
"""One pass over a part of the log that notes level records and delivered copies."""

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

import attrs
import numpy as np

from legacy_levels.copies.kernels import (
    CONFIRMED,
    DELIVERED_COPY,
    DIGEST_1,
    DIGEST_2,
    EXPECTED_COLUMNS,
    KIND,
    LEVEL_RECORD,
    NAMED,
    NAMES_NONE,
    NEWEST_MS,
    NEXT_UNIT,
    NOTE_COLUMNS,
    NOTES,
    OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    REPLACEMENT,
    SCRATCH_SLOTS,
    SIZE,
    STOPPED_AT,
    STORE_MS,
    UNITS_AT,
    UNITS_END,
    WHY,
    digest_records,
    note_window,
)
from message_store.base.parallel import parallel_map
from message_store.files.array_room import row_blocks
from message_store.files.segments import SegmentReader
from message_store.format.java_numbers import LONG_MAX
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import SMALLEST_RECORD_BYTES
from message_store.kernels.raw_memory import address_of
from message_store.reading.commit_log import (
    NO_TIME,
    Int32Array,
    Int64Array,
    LogWalk,
    start_of_last_used_file,
)
from message_store.reading.consume_queue import BoolArray, UnitArray
from message_store.reading.spans import read_spans
from message_store.redelivery.lineage import Names

NoteArray = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_QUEUE_IDS = 1_024
"""Nothing is expected of queues from this id on: a stray directory may have any number for a name,
and the kernel has a row for each id.
"""


@attrs.frozen(eq=False)
class LogNotes:
    """What one pass found: rows of ``copies.kernels`` columns in log order.

    ``log_end`` is where the last whole record ends, ``damaged_places`` where the pass had to look
    for the next one. ``confirmed``: of each queue id, how many level records were not noted,
    because the queue leads to them.
    """

    rows: NoteArray
    log_end: int
    newest_store_ms: int = NO_TIME
    bytes_scanned: int = 0
    damaged_places: tuple[int, ...] = ()
    confirmed: Int64Array = attrs.field(factory=lambda: np.empty(0, np.int64))

    def of_kind(self, kind: int) -> "LogNotes":
        """The notes of level records, or of delivered copies."""
        return attrs.evolve(self, rows=self.rows[self.rows[:, KIND] == kind])

    def before(self, log_end: int) -> "LogNotes":
        """The notes of records that begin before this place."""
        return attrs.evolve(self, rows=self.rows[self.rows[:, OFFSET] < log_end])

    @property
    def level_records(self) -> "LogNotes":
        """Records that wait in a level."""
        return self.of_kind(LEVEL_RECORD)

    @property
    def delivered_copies(self) -> "LogNotes":
        """Copies of others: those that a broker delivered from a level, and all that name one."""
        return self.of_kind(DELIVERED_COPY)

    def replaced_behind(self, commit_log_offset: int) -> Int64Array:
        """Where the records lie that others replace, which end there or behind it."""
        kind, ends = self.rows[:, KIND], self.rows[:, OFFSET] + self.rows[:, SIZE]
        replaces = ((kind == LEVEL_RECORD) | (kind == REPLACEMENT)) & ~self.names_none
        replaced: Int64Array = self.rows[replaces & (ends >= commit_log_offset), NAMED]
        return replaced

    @property
    def commit_log_offset(self) -> Int64Array:
        """Where each record begins."""
        return self.rows[:, OFFSET]

    @property
    def size_bytes(self) -> Int64Array:
        """How long each record is."""
        return self.rows[:, SIZE]

    @property
    def queue_id(self) -> Int64Array:
        """The queue of each record."""
        return self.rows[:, QUEUE_ID]

    @property
    def queue_offset(self) -> Int64Array:
        """The ordinal that each record says it has in its queue."""
        return self.rows[:, QUEUE_OFFSET]

    @property
    def store_timestamp_ms(self) -> Int64Array:
        """When each record was stored."""
        return self.rows[:, STORE_MS]

    @property
    def names_none(self) -> BoolArray:
        """Which of the copies do not say what they are copies of."""
        names_none: BoolArray = self.rows[:, NAMED] == NAMES_NONE
        return names_none

    @property
    def digests(self) -> NoteArray:
        """Two 64-bit digests of each copy that names no record."""
        return self.rows[:, DIGEST_1 : DIGEST_2 + 1]

    @cached_property
    def _names(self) -> Names:
        rows = self.rows[~self.names_none]
        return Names(rows[:, OFFSET], rows[:, NAMED], rows[:, STORE_MS])

    def name(self, offsets: Int64Array) -> BoolArray:
        """Which of the records at these places are named by a copy."""
        return self._names.are_done(offsets, offsets)


@attrs.frozen(eq=False)
class ExpectedUnits:
    """What level queues say about the log: the units of each queue id.

    Nothing is expected of a queue whose units do not lie in the order of the log.
    """

    units: tuple[UnitArray, ...]

    @classmethod
    def of(cls, units_of_queues: Mapping[int, UnitArray]) -> "ExpectedUnits":
        """From the units of each queue, by queue id."""
        none = np.empty(0, QUEUE_UNIT.dtype)
        named = {each: units for each, units in units_of_queues.items() if each < _QUEUE_IDS}
        found = [none] * (max(named, default=-1) + 1)
        for queue_id, units in named.items():
            if are_in_order(units):
                found[queue_id] = np.ascontiguousarray(units, QUEUE_UNIT.dtype)  # big-endian again
        return cls(tuple(found))

    def rows_from(self, offset: int) -> NoteArray:
        """Rows for the kernel that begins to walk at this place of the log."""
        rows = np.zeros((len(self.units), EXPECTED_COLUMNS), np.int64)
        for row, units in zip(rows, self.units, strict=True):
            begin = int(np.searchsorted(units["commit_log_offset"], offset))
            row[[UNITS_AT, UNITS_END, NEXT_UNIT]] = address_of(units), len(units), begin
        return rows


def are_in_order(units: UnitArray) -> bool:
    """Whether these units lie in the order of the log."""
    offsets = units["commit_log_offset"]
    return all(
        bool((offsets[rows.start + 1 : rows.stop + 1] > offsets[rows]).all())
        for rows in row_blocks(len(offsets) - 1)
    )


NOTHING_EXPECTED = ExpectedUnits(())


def take_notes(
    reader: SegmentReader,
    from_offset: int,
    *,
    known_end: int = 0,
    stop_at: int = LONG_MAX,
    expected: ExpectedUnits = NOTHING_EXPECTED,
) -> LogNotes:
    """Note the level records and delivered copies of the log from one record's start to another's.

    Below ``known_end`` damage is stepped over (``commit_log.LogWalk``). A level record that a unit
    in ``expected`` leads to is only counted. Files are walked through at once, a thread a core;
    but where somebody may be writing, behind the last used one, there is one walk. Raises
    SourceError.
    """
    reader.grow()
    used = max(known_end, start_of_last_used_file(reader))
    starts = [each.start_offset for each in reader.segments if each.start_offset <= used]
    borders = [from_offset, *(each for each in starts if from_offset < each < stop_at), stop_at]
    if len(borders) == 2:
        return _notes_of_file(reader, from_offset, known_end, stop_at, expected)

    def note_one(stretch: tuple[int, int]) -> LogNotes:
        with reader.again() as own:
            return _notes_of_file(own, stretch[0], known_end, stretch[1], expected)

    stretches = list(pairwise(borders))
    parts = parallel_map(note_one, stretches)
    # A walk ends for good in the last file that has records, so that none is noted behind it.
    ends = [
        part.log_end
        for part, (start, _) in zip(parts, stretches, strict=True)
        if part.log_end > start
    ]
    return LogNotes(
        np.concatenate([part.rows for part in parts]),
        max(ends, default=from_offset),
        max(part.newest_store_ms for part in parts),
        sum(part.bytes_scanned for part in parts),
        tuple(place for part in parts for place in part.damaged_places),
        np.sum([part.confirmed for part in parts], axis=0),
    )


def _notes_of_file(
    reader: SegmentReader, from_offset: int, known_end: int, stop_at: int, expected: ExpectedUnits
) -> LogNotes:
    walk = LogWalk(reader, known_end=known_end)
    scratch = np.zeros((4, SCRATCH_SLOTS), np.uint64)
    notes = np.zeros((0, NOTE_COLUMNS), np.int64)
    results = np.zeros(4, np.int64)
    queues = expected.rows_from(from_offset)
    kept: list[NoteArray] = []
    newest_ms = NO_TIME

    def visit(address: int, length: int, base: int, room: int) -> tuple[int, int]:
        nonlocal newest_ms, notes
        capacity = length // SMALLEST_RECORD_BYTES + 1
        if len(notes) < capacity:
            notes = np.zeros((capacity, NOTE_COLUMNS), np.int64)
        note_window(address, length, base, room, queues, notes, scratch, results)
        kept.append(notes[: results[NOTES]].copy())
        if results[STOPPED_AT]:
            newest_ms = max(newest_ms, int(results[NEWEST_MS]))
        return int(results[STOPPED_AT]), int(results[WHY])

    log_end = walk.run(from_offset, visit, stop_at=stop_at)
    rows = np.concatenate(kept) if kept else notes
    damaged = tuple(walk.damaged_places)
    confirmed = queues[:, CONFIRMED]
    return LogNotes(rows, log_end, newest_ms, walk.bytes_scanned, damaged, confirmed)


def digest_level_records(
    reader: SegmentReader, offsets: Int64Array, size_bytes: Int32Array | Int64Array
) -> tuple[NoteArray, BoolArray]:
    """The two digests of the records at these places (in order), and which of them are records."""
    sizes = size_bytes.astype(np.int64)
    notes = np.zeros((len(offsets), NOTE_COLUMNS), np.int64)
    scratch = np.zeros((4, SCRATCH_SLOTS), np.uint64)
    for span in read_spans(reader, offsets, sizes):
        rows = slice(span.first, span.last)
        digest_records(
            address_of(span.buffer),
            span.available,
            span.offset,
            offsets[rows],
            sizes[rows],
            notes[rows],
            scratch,
        )
    return notes[:, DIGEST_1 : DIGEST_2 + 1], notes[:, KIND] == LEVEL_RECORD
