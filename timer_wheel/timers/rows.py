# SPDX-License-Identifier: Apache-2.0
"""Units of the timer log as columns, and what their records say."""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError, FormatError
from message_store.columns.byte_column import Int64s, TableColumn, int64s
from message_store.format.java_numbers import LONG_MAX, parse_long, string_hash
from message_store.format.properties import REAL_TOPIC, TIMER_OUT_MS
from message_store.redelivery.lineage import first_offsets
from message_store.writing.log import LiveLog
from timer_wheel.format.older_slots import EXACT_MS, NO_OLDER_SLOTS, OlderSlots
from timer_wheel.format.timer_due import promised_times, was_due_when_stored
from timer_wheel.format.timer_log import FLAG_DELETE, FLAG_ROLL
from timer_wheel.reading.record_kernel import (
    BORN_MS,
    CANCELS,
    FACT_COLUMNS,
    FINE,
    IS_MARKER,
    KEY_ONE,
    KEY_TWO,
    MARKER,
    MESSAGE,
    MISSING,
    OUT_MS,
    PREPARED_OFFSET,
    ROLL_TIMES,
    STATUS,
    STORE_MS,
    STORED_OUT_MS,
    TOPIC_HASH,
    read_timer_records,
)
from timer_wheel.timers.unit_kernels import (
    FLAGS,
    LOG_OFFSET,
    POSITION,
    ROW_COLUMNS,
    SIZE,
    SLOT_TIME,
    WRITE_TIME,
)

Bools = NDArray[np.bool_]


@attrs.frozen(eq=False)
class TimerRows:
    """Messages and delete markers on the wheel, a row each, in the columns of ``unit_kernels``."""

    table: Int64s

    position = TableColumn(POSITION)
    """Where in the timer log the unit is."""
    slot_time_ms = TableColumn(SLOT_TIME)
    """The time of the unit's slot."""
    write_time_ms = TableColumn(WRITE_TIME)
    """When the unit was placed."""
    commit_log_offset = TableColumn(LOG_OFFSET)
    """Where the record is."""
    size_bytes = TableColumn(SIZE)
    """How long the record is."""

    def __len__(self) -> int:
        return len(self.table[0])

    @classmethod
    def empty(cls, count: int = 0) -> "TimerRows":
        """Rows of zeros."""
        return cls(np.zeros((ROW_COLUMNS, count), np.int64))

    @classmethod
    def together(cls, parts: Sequence["TimerRows"]) -> "TimerRows":
        """The rows of all of these, in order; not copied where only one part has any."""
        parts = [part for part in parts if len(part)] or [cls.empty()]
        if len(parts) == 1:
            return parts[0]
        return cls(np.ascontiguousarray(np.concatenate([part.table for part in parts], axis=1)))

    def rows(self, chosen: Bools | Int64s | slice) -> "TimerRows":
        """The chosen rows, by a mask, by their places, or a part."""
        return TimerRows(np.ascontiguousarray(self.table[:, chosen]))

    @property
    def enqueued_ms(self) -> Int64s:
        """When the unit was placed; the latest time for what never was, as with brokers."""
        return np.where(self.write_time_ms > 0, self.write_time_ms, LONG_MAX)

    @property
    def is_marker(self) -> Bools:
        """Which rows are delete markers."""
        return np.asarray(self.table[FLAGS] & FLAG_DELETE != 0)

    @property
    def is_roll(self) -> Bools:
        """Which rows roll when their slot is taken."""
        return np.asarray(self.table[FLAGS] & FLAG_ROLL != 0)


@attrs.frozen(eq=False)
class TimerFacts:
    """What the records of some rows say, in the columns of ``record_kernel``.

    ``problems`` has for a row that cannot be a timed message what is wrong with its record.
    """

    table: Int64s
    problems: dict[int, FormatError]
    precision_ms: int

    out_ms = TableColumn(OUT_MS)
    """The slot that keeps the promise: TIMER_OUT_MS or, of what was stored for slots of another
    width, the slot of today that ends when that does or next.
    """
    stored_out_ms = TableColumn(STORED_OUT_MS)
    """TIMER_OUT_MS."""
    store_ms = TableColumn(STORE_MS)
    """When the record was stored."""
    born_ms = TableColumn(BORN_MS)
    """When the message was made; rolling does not change it."""
    topic_hash = TableColumn(TOPIC_HASH)
    """Java's hash of REAL_TOPIC; 0 where there is none."""
    cancels = TableColumn(CANCELS)
    """Where in the log the first record of the one message is that a marker takes away; -1 where it
    takes all of its key.
    """
    roll_times = TableColumn(ROLL_TIMES)
    """How often a message has rolled."""

    def __len__(self) -> int:
        return len(self.table[0])

    @classmethod
    def assumed(cls, rows: TimerRows, precision_ms: int) -> "TimerFacts":
        """Facts of rows that are as their units say, where nothing else matters."""
        table = np.zeros((FACT_COLUMNS, len(rows)), np.int64)
        table[STATUS], table[CANCELS] = FINE, -1
        table[OUT_MS] = table[STORED_OUT_MS] = rows.slot_time_ms
        return cls(table, {}, precision_ms)

    def rows(self, chosen: Bools | Int64s) -> "TimerFacts":
        """The facts of the chosen rows, whose problems are no longer told."""
        return TimerFacts(np.ascontiguousarray(self.table[:, chosen]), {}, self.precision_ms)

    @property
    def is_there(self) -> Bools:
        """Which records can be read, fine or not."""
        return np.asarray(self.table[STATUS] != MISSING)

    @property
    def is_fine(self) -> Bools:
        """Which rows are messages or markers with an out time."""
        return np.asarray(self.table[STATUS] == FINE)

    @property
    def is_marker(self) -> Bools:
        """Which records are delete markers, damaged ones too."""
        return np.asarray(self.table[IS_MARKER] != MESSAGE)

    @property
    def is_odd_marker(self) -> Bools:
        """Which records look like delete markers of which one property was damaged: what they name
        is not what was cancelled.
        """
        return np.asarray(self.table[IS_MARKER] > MARKER)

    def first_offsets(self, offsets: Int64s) -> Int64s:
        """Where in the log the first record was of each of these messages, which lie at
        ``offsets``: the order in which they were scheduled. -1 where a broker has rolled it.

        A copy that rolls has the complement for its prepared transaction offset, which
        is negative and so no half message's; a broker writes 0, the complement of -1.
        """
        told = ~self.table[PREPARED_OFFSET]
        told = np.where(told < offsets, np.maximum(told, -1), -1)
        return np.where(self.roll_times > 0, told, offsets)

    def lineages(self, offsets: Int64s) -> Int64s:
        """Where the first record lies of each of these messages, as far as their records tell."""
        return first_offsets(self.table[PREPARED_OFFSET], offsets)

    @property
    def promised_ms(self) -> Int64s:
        """When each message was promised for."""
        return promised_times(self.out_ms, self.store_ms, self.precision_ms)

    def recall_keys(self) -> list[tuple[int, int]]:
        """What a message and its delete marker have in common; (0, 0) where nothing can recall."""
        return list(zip(self.table[KEY_ONE].tolist(), self.table[KEY_TWO].tolist(), strict=True))


def read_facts(
    log: LiveLog,
    offsets: Int64s,
    sizes: Int64s,
    precision_ms: int,
    *,
    keys: bool = False,
    older: OlderSlots = NO_OLDER_SLOTS,
) -> TimerFacts:
    """What the records at these places of the log say; recall keys only if they are asked for."""
    offsets, sizes = int64s(offsets), int64s(sizes)
    table = np.zeros((FACT_COLUMNS, len(offsets)), np.int64)
    addresses = log.addresses(offsets)
    addresses[sizes > log.rooms(offsets)] = -1
    read_timer_records(addresses, sizes, offsets, precision_ms, keys, *older.columns(), table)
    problems: dict[int, FormatError] = {}
    for row in np.flatnonzero(table[STATUS] != FINE).tolist():
        try:
            _read_unusual(log, int(offsets[row]), int(sizes[row]), table[:, row])
        except FormatError as error:
            problems[row] = error
    return TimerFacts(table, problems, precision_ms)


def _read_unusual(log: LiveLog, offset: int, size_bytes: int, facts: Int64s) -> None:
    """Let the scalar code judge a record; raises FormatError with what is wrong."""
    message = log.record(offset, size_bytes)
    if facts[STATUS] == MISSING:
        raise BadFieldError("a record of another size", offset=offset, expected=size_bytes)
    text = message.properties.get(TIMER_OUT_MS)
    if text is None:
        raise BadFieldError("no TIMER_OUT_MS: nobody knows when", offset=offset)
    facts[OUT_MS] = facts[STORED_OUT_MS] = parse_long(text)
    if facts[OUT_MS] < 0:
        raise BadFieldError("a TIMER_OUT_MS before all time", offset=offset, found=text)
    topic = message.properties.get(REAL_TOPIC)
    facts[TOPIC_HASH] = 0 if topic is None else string_hash(topic)
    facts[STATUS] = FINE


def delivery_order(promised_ms: Int64s, offsets: Int64s, facts: TimerFacts) -> Int64s:
    """The order of messages that are due: by promise, equal ones as they were scheduled.

    Which is the order of their first records. What a broker has rolled does not tell its own: it
    was stored before any of the same slot that has not rolled; among its like the time of birth
    tells, and within a millisecond how often each has rolled: which was placed earlier did so more.
    """
    first_offsets = facts.first_offsets(offsets)
    born_ms = np.where(first_offsets < 0, facts.born_ms, 0)
    return np.lexsort((offsets, -facts.roll_times, born_ms, first_offsets, promised_ms))


def store_times_of_copies(
    facts: TimerFacts, chosen: Int64s, stamp_ms: int
) -> Iterator[tuple[Int64s, int]]:
    """These rows in runs, with the store time of each run's copies: now, or the old one of overdue
    messages, which is their promise.
    """
    overdue = was_due_when_stored(facts.out_ms[chosen])
    times = np.where(overdue, facts.store_ms[chosen], stamp_ms)
    cuts = np.flatnonzero(np.diff(times)) + 1
    for run, its_times in zip(np.split(chosen, cuts), np.split(times, cuts), strict=True):
        yield run, int(its_times[0])


def facts_then(
    log: LiveLog, offsets: Int64s, sizes: Int64s, older: OlderSlots, number: int
) -> TimerFacts:
    """What records meant, with recall keys, when the wheel had the slots of this number. A
    hierarchical wheel goes by what the records say, whatever slots there were before.
    """
    width_ms = older.widths_ms[number]
    before = NO_OLDER_SLOTS if width_ms == EXACT_MS else older.first(number)
    return read_facts(log, offsets, sizes, width_ms, keys=True, older=before)


@attrs.frozen(eq=False)
class Unplaced:
    """Entries of the timer queue that have no unit: their rows, without positions, and facts.

    ``queue_offset`` is the first one's, ``end`` is behind the last. Entries that cannot be timed
    messages have the slot time 0.
    """

    rows: TimerRows
    facts: TimerFacts
    queue_offset: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> int:
        """The queue offset behind the last."""
        return self.queue_offset + len(self.rows)

    def first(self, count: int) -> "Unplaced":
        """Only the first of them."""
        if count >= len(self.rows):
            return self
        part = slice(0, count)
        table = np.ascontiguousarray(self.facts.table[:, part])
        problems = {row: why for row, why in self.facts.problems.items() if row < count}
        facts = TimerFacts(table, problems, self.facts.precision_ms)
        return Unplaced(self.rows.rows(part), facts, self.queue_offset)
