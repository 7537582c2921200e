# SPDX-License-Identifier: Apache-2.0
"""The records that wait in the levels: those that no broker can read, deliver, or put again.

Records are looked at in bulk; only what looks odd is looked at one by one. Limitations: an odd
record is counted under the first thing that is odd about it.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from legacy_levels.engine.waiting_records import are_plain_numbers, equals
from message_store.base.errors import BadFieldError, FormatError
from message_store.base.printable import counted
from message_store.columns.batch_codec import decode_batch
from message_store.columns.byte_column import ByteColumn
from message_store.columns.message_batch import StoredBatch
from message_store.columns.property_column import find_property_column
from message_store.format import properties as names
from message_store.format.java_numbers import INT_MAX, parse_long
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.timer_record_rules import queue_problem
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import FindingRule, error, info, warning
from migrate.check.record_facts import (
    NAMED,
    Tally,
    encoded,
    told_sizes,
    undeliverable,
    wheel_limit,
)
from migrate.check.snapshot import LevelRows, Picture
from migrate.settings import DEFAULT_MAX_MESSAGE_BYTES
from migrate.source.record_reader import NOT_THERE, Chunk, read_chunks
from migrate.write.rewrite import growth_bytes, is_deliverable_topic

_ASIDE = (
    "`delaywheel convert --on-bad-record quarantine` keeps them aside; see `delaywheel quarantine`"
)
UNREADABLE = error(
    "record-unreadable", "a broker passes over them without a word: they are lost", _ASIDE
)
STRANGE = error(
    "record-of-another",
    "a broker delivers what it finds there, or passes over it",
    "look at the record; a queue that was made anew from the log has what it should",
)
NO_DESTINATION = error(
    "record-no-destination",
    "4.9 tries the first of them for ever, and its level stands still, also after a restart; 5.x"
    " passes over them without a word",
    _ASIDE,
)
HALF = error(
    "record-half",
    "a broker drops half messages of transactions when they are due",
    "see who sends them with a delay; they are not delivered anywhere",
)
LOOPS = error(
    "record-loops",
    "a broker puts them into its own topic again: they go round, or confuse its engines",
    _ASIDE,
)
BAD_TOPIC = error(
    "record-bad-topic",
    "a broker refuses to store them when they are due, and its level stands still; or it stores"
    " them where no client finds them",
    _ASIDE,
)
TOO_LARGE = error(
    "record-too-large",
    "a broker refuses to store them when they are due, tries again for ever, and its level stands"
    " still, also after a restart",
    "raise maxMessageSize above them until they are delivered",
)
LARGE = warning(
    "record-large",
    "older 4.x brokers count the whole record, not the body alone, and refuse it when it is due:"
    " its level stands still",
    "raise maxMessageSize above the size of the whole record, or use a newer broker",
)
LARGE_FOR_WHEEL = warning(
    "record-large-for-wheel",
    "on a wheel of this broker, 5.3 and older stop placing at them for ever, newer ones lose them",
    "give the target's broker a larger maxMessageSize (a conversion advises one)",
)
DELAY_RANGE = warning(
    "delay-beyond-table",
    "what is in the queue counts; where it is made anew from the log, they get the longest delay"
    " there is. Somebody gave seconds where a level belongs",
    "see who sends them: DELAY is a level, 1 to 18",
)
DELAY_DIFFERS = warning(
    "delay-disagrees",
    "a broker delivers by the queue; where that is made anew from the log, by DELAY",
    f"look at who wrote them. {_ASIDE}",
)
DELAY_AND_TIMER = warning(
    "delay-and-timer",
    "5.x delivers them from the level, and with TIMER_DELAY_MS puts them on its wheel once more;"
    " TIMER_DEL_UNIQKEY would make a delete marker of them",
    "convert the store, which keeps one of the two, or see who sends both",
)
RETRIES = info(
    "retry-share",
    "they go to the retry topics of consumer groups, and share the levels with what users delay",
    "nothing; they can be converted alone or left out with --only-topic",
)
RETRY_STORM = warning(
    "retry-storm",
    "consumers that fail fill the levels: what users delay comes late",
    "look at the consumer groups that are named",
)

RULES = (
    UNREADABLE,
    STRANGE,
    NO_DESTINATION,
    HALF,
    LOOPS,
    BAD_TOPIC,
    TOO_LARGE,
    LARGE,
    LARGE_FOR_WHEEL,
    DELAY_RANGE,
    DELAY_DIFFERS,
    DELAY_AND_TIMER,
    RETRIES,
    RETRY_STORM,
)

TIMER_NAMES = (
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_DELIVER_MS,
    names.TIMER_OUT_MS,
    names.TIMER_DELETE_UNIQUE_KEY,
)
ENCODING_RESERVE_BYTES = 64 << 10
"""A record may be this much longer than the body that `maxMessageSize` allows."""

LONGEST_LEVEL = 18
STORM_MESSAGES = 1_000
_SYSTEM = frozenset({names.LEVEL_TOPIC, names.TIMER_TOPIC, names.OP_HALF_TOPIC})


def check_level_records(picture: Picture) -> Iterator[Finding]:
    """Every record that waits in a level."""
    yield from _LevelRecords(picture).findings()


class _LevelRecords:
    """Goes through the records once and counts."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.rows: LevelRows = picture.level_rows
        self.tallies: dict[tuple[FindingRule, int], Tally] = {}
        self.retries = Tally()
        self.max_bytes = picture.broker.max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES
        target = picture.options.target
        self.wheel_bytes = None if target is None else wheel_limit(target.max_message_bytes)

    def findings(self) -> Iterator[Finding]:
        rows = self.rows
        for chunk in read_chunks(
            self.picture.log, rows.commit_log_offset, rows.size_bytes.astype(np.int32)
        ):
            self._look_at(chunk)
        for (rule, level), tally in self.tallies.items():
            yield rule.at(self.picture.level_name(level), tally.told())
        if self.retries.count:
            yield self._retry_finding()

    def _retry_finding(self) -> Finding:
        share = self.retries.count / len(self.rows)
        is_storm = share >= 0.5 and self.retries.count >= STORM_MESSAGES
        waiting = counted(len(self.rows), "waiting message")
        told = f"retries of consumers are {self.retries.count:,} of {waiting} ({share:.0%})"
        groups = ", ".join(self.retries.examples)
        rule = RETRY_STORM if is_storm else RETRIES
        return rule.at("levels", f"{told}: {groups}")

    def _look_at(self, chunk: Chunk) -> None:
        places = chunk.places
        there = np.flatnonzero(places != NOT_THERE)
        for row in np.flatnonzero(places == NOT_THERE).tolist():
            self._note(UNREADABLE, chunk.first + row, "no record there")
        if not len(there):
            return
        data = chunk.buffer[: chunk.buffer_bytes]
        try:
            batch = decode_batch(data, places[there])
        except FormatError:
            for row in there.tolist():
                self._look_at_one(chunk, row)
            return
        rows = chunk.first + there
        told = told_sizes(data, places[there])
        odd = self._is_odd(batch, rows) | (told != self.rows.size_bytes[rows])
        for index in np.flatnonzero(odd).tolist():
            self._look_at_message(batch.message(index), int(rows[index]), int(told[index]))
        self._count_retries(find_property_column(batch.properties_text, names.REAL_TOPIC))

    def _look_at_one(self, chunk: Chunk, row: int) -> None:
        place = chunk.places[row : row + 1]
        data = chunk.buffer[: chunk.buffer_bytes]
        try:
            message = decode_message_at(data.data, int(place[0]))
        except FormatError as problem:
            self._note(UNREADABLE, chunk.first + row, problem.problem)
            return
        self._look_at_message(message, chunk.first + row, int(told_sizes(data, place)[0]))
        topic = message.properties.get(names.REAL_TOPIC, "")
        self._count_retries(ByteColumn.of([topic]))

    def _count_retries(self, topics: ByteColumn) -> None:
        values, codes = encoded(topics)
        counts = np.bincount(codes, minlength=len(values))
        for topic, count in zip(values, counts.tolist(), strict=True):
            if topic.startswith(names.RETRY_PREFIX.encode()):
                self.retries.count += count
                name = topic.decode("utf-8", "replace")
                if len(self.retries.examples) < NAMED and name not in self.retries.examples:
                    self.retries.examples.append(name)

    def _note(self, rule: FindingRule, row: int, what: str) -> None:
        rows = self.rows
        place = f"queue offset {rows.queue_offset[row]}, log offset {rows.commit_log_offset[row]}"
        key = rule, int(rows.level[row])
        self.tallies.setdefault(key, Tally()).add(f"{place} ({what})")

    def _is_odd(self, batch: StoredBatch, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which records need a second look; no false negatives."""
        table = self.rows
        text = batch.properties_text
        odd = ~equals(batch.topic, names.LEVEL_TOPIC.encode())
        odd |= batch.queue_id != table.level[rows] - 1
        odd |= batch.commit_log_offset != table.commit_log_offset[rows]
        delay = find_property_column(text, names.DELAY)
        for level in np.unique(table.level[rows]).tolist():
            odd |= (table.level[rows] == level) & ~equals(delay, str(level).encode())
        odd |= ~are_plain_numbers(find_property_column(text, names.REAL_QUEUE_ID))
        for name in TIMER_NAMES:
            odd |= find_property_column(text, name).lengths > 0
        odd |= table.size_bytes[rows] > min(self.max_bytes, self.wheel_bytes or INT_MAX) - 256
        odd |= undeliverable(find_property_column(text, names.REAL_TOPIC))
        return np.asarray(odd)

    def _look_at_message(self, message: StoredMessage, row: int, told_bytes: int) -> None:
        for rule, what in self._oddities(message, row, told_bytes):
            self._note(rule, row, what)
            return

    def _oddities(
        self, message: StoredMessage, row: int, told_bytes: int
    ) -> Iterator[tuple[FindingRule, str]]:
        level, size = int(self.rows.level[row]), int(self.rows.size_bytes[row])
        if told_bytes != size:
            yield STRANGE, f"a record of {told_bytes:,} bytes, its entry says {size:,}"
        yield from self._of_place(message, row, level)
        values = message.properties
        topic = values.get(names.REAL_TOPIC)
        if topic is None:
            yield NO_DESTINATION, f"no {names.REAL_TOPIC}"
        elif topic == names.HALF_TOPIC:
            yield HALF, names.HALF_TOPIC
        elif topic in _SYSTEM:
            yield LOOPS, topic
        elif not is_deliverable_topic(topic.encode("utf-8", "surrogatepass")):
            yield BAD_TOPIC, repr(topic[:64])
        if (problem := queue_problem(values.get(names.REAL_QUEUE_ID))) is not None:
            yield NO_DESTINATION, problem
        yield from self._of_size(message, size, level, topic or "")
        yield from _of_delay(values.get(names.DELAY), level)
        timers = [name for name in TIMER_NAMES if name in values]
        if timers:
            yield DELAY_AND_TIMER, ", ".join(f"{name}={values[name][:32]}" for name in timers)

    def _of_place(
        self, message: StoredMessage, row: int, level: int
    ) -> Iterator[tuple[FindingRule, str]]:
        if message.topic != names.LEVEL_TOPIC:
            yield STRANGE, f"a record of topic {message.topic!r}"
        elif message.commit_log_offset != self.rows.commit_log_offset[row]:
            yield STRANGE, f"the record says that it lies at {message.commit_log_offset}"
        elif message.queue_id != level - 1:
            yield STRANGE, f"a record of queue {message.queue_id}"

    def _of_size(
        self, message: StoredMessage, size: int, level: int, topic: str
    ) -> Iterator[tuple[FindingRule, str]]:
        put_again = size - len(names.LEVEL_TOPIC) + len(topic.encode("utf-8", "surrogatepass"))
        if (
            len(message.body) > self.max_bytes
            or put_again > self.max_bytes + ENCODING_RESERVE_BYTES
        ):
            yield TOO_LARGE, f"{put_again:,} bytes, maxMessageSize {self.max_bytes:,}"
        elif put_again > self.max_bytes:
            yield LARGE, f"{put_again:,} bytes, maxMessageSize {self.max_bytes:,}"
        if self.wheel_bytes is not None:
            on_wheel = size + growth_bytes(level, self.picture.now_ms)
            if on_wheel > self.wheel_bytes:
                yield LARGE_FOR_WHEEL, f"{on_wheel:,} bytes, {self.wheel_bytes:,} are read"


def _of_delay(text: str | None, level: int) -> Iterator[tuple[FindingRule, str]]:
    if text is None:
        yield DELAY_DIFFERS, f"no {names.DELAY}"
        return
    try:
        number = parse_long(text)
    except BadFieldError:
        yield DELAY_DIFFERS, f"{names.DELAY}={text[:32]!r}"
        return
    if number > max(LONGEST_LEVEL, level):
        yield DELAY_RANGE, f"{names.DELAY}={number}"
    elif number != level:
        yield DELAY_DIFFERS, f"{names.DELAY}={number}"
