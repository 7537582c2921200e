# SPDX-License-Identifier: Apache-2.0
"""The records that wait on the wheel: those that no broker finds, delivers, or delivers in time."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from legacy_levels.engine.waiting_records import are_plain_numbers, equals
from message_store.base.errors import BadFieldError, FormatError
from message_store.base.printable import counted, printable, span
from message_store.columns.batch_codec import decode_batch
from message_store.columns.byte_column import ByteColumn
from message_store.columns.message_batch import StoredBatch
from message_store.columns.property_column import find_property_column
from message_store.files.small_files import read_small_file
from message_store.format import properties as names
from message_store.format.java_numbers import parse_long
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.record_layout import (
    IPV4_BYTES,
    PROPERTIES_MAX_BYTES,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
)
from message_store.format.timer_record_rules import TimerFault, timer_record_faults
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
from migrate.check.snapshot import Picture
from migrate.source.record_reader import NOT_THERE, Chunk, read_chunks
from migrate.write.rewrite import DELIVERY_GROWTH_BYTES
from timer_wheel.format.metrics import TIMER_METRICS_NAME, decode_timer_metrics
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.reading.pending_timers import PendingTimers

_AGAIN = "convert the source again, or take the store from a backup"
_SKIP = (
    "set timerSkipUnknownError=true, also on a broker that runs: `mqadmin updateBrokerConfig -k"
    " timerSkipUnknownError -v true`; the wheel goes on, those messages are lost"
)
ELSEWHERE = error(
    "timer-record-missing",
    "a broker drops them without a word, or reads another message in their place, again and again"
    " (5.5.0 after a replica was cut)",
    "take the commit log from a backup",
)
NO_DESTINATION = error(
    "timer-no-destination",
    "the wheel stands still at their slot for ever, also after a restart (unless"
    " timerSkipUnknownError=true)",
    _SKIP,
)
BAD_TOPIC = error(
    "timer-bad-topic",
    "a broker refuses to store them when they are due, and drops them; or it stores them where no"
    " client finds them",
    "see who sends to such a topic",
)
DELAY_LEFT = error(
    "timer-delay-left",
    "when they are due a broker delays them once more, by that level; one that rolls goes round for"
    " ever",
    _AGAIN,
)
OUT_ELSEWHERE = warning(
    "timer-out-elsewhere",
    "the slot decides: they come at another time than their records say",
    _AGAIN,
)
OUT_MISSING = error(
    "timer-out-missing",
    "on the wheel the slot decides; when a broker places them again, it stops there for ever",
    "keep config/timercheck with the rest, so that nothing is placed again",
)
DELETES = error(
    "timer-deletes",
    "a broker takes them for delete markers: it drops them when they are due, and whom they name",
    "see who writes such records; the body is in the log",
)
TRANSACTION = error(
    "timer-transaction",
    "when they are due, or roll, a broker stores them as half messages: no consumer sees them",
    "see who writes such records; the body is in the log",
)
HOSTS = error(
    "timer-hosts",
    "Java makes the address an IPv4 one: a broker that stores the record anew writes fewer bytes"
    " than its length says, and fails, or harms its log",
    _SKIP,
)
TOO_LARGE = error(
    "timer-too-large",
    "a wheel reads records into a buffer of maxMessageSize and 100 bytes: 5.3 and older stop at"
    " them for ever, 5.4 and newer lose them without a word",
    "give the broker a larger maxMessageSize before it starts",
)
PROPERTIES_FULL = error(
    "timer-properties-full",
    "delivery adds properties, and a broker drops what is longer than a record can hold",
    "see who sends messages with so many properties",
)
MISCOUNTED = info(
    "timermetrics-miscounts",
    "it shows these numbers, and goes on counting from them, below zero too; deliveries do not"
    " depend on them",
    "nothing; on a stopped broker config/timermetrics and its .bak may be removed, to count anew",
)
CLOCK_AHEAD = info(
    "producer-clock-ahead",
    "where a client reckons by its own clock when a message is due, it is due that much later",
    "set the clocks of these producers right",
)

RULES = (
    ELSEWHERE,
    NO_DESTINATION,
    BAD_TOPIC,
    DELAY_LEFT,
    OUT_ELSEWHERE,
    OUT_MISSING,
    DELETES,
    TRANSACTION,
    HOSTS,
    TOO_LARGE,
    PROPERTIES_FULL,
    MISCOUNTED,
    CLOCK_AHEAD,
)

_RULE_OF = {
    TimerFault.NO_DESTINATION: NO_DESTINATION,
    TimerFault.BAD_TOPIC: BAD_TOPIC,
    TimerFault.DELAY: DELAY_LEFT,
    TimerFault.DELETES: DELETES,
    TimerFault.TRANSACTION: TRANSACTION,
    TimerFault.HOSTS: HOSTS,
    TimerFault.TOO_LARGE: TOO_LARGE,
    TimerFault.PROPERTIES: PROPERTIES_FULL,
}

CLOCKS_DIFFER_MS = 60_000
"""What clocks that are looked after never differ by."""


def check_timer_records(picture: Picture) -> Iterator[Finding]:
    """Every record that waits on the wheel or in its queue; delete markers are left out."""
    if picture.wheel is not None:
        yield from _TimerRecords(picture, picture.wheel.pending).findings()


class _TimerRecords:
    """Goes through the records once, in the order of the log, and counts."""

    def __init__(self, picture: Picture, pending: PendingTimers) -> None:
        self.picture = picture
        self.rows = pending.rows(np.argsort(pending.commit_log_offset, kind="stable"))
        self.tallies: dict[FindingRule, Tally] = {}
        self.precision_ms = picture.wheel.precision_ms if picture.wheel else 1
        self.is_final = ~self.rows.is_roll & (self.rows.position >= 0)
        if picture.is_hierarchical:  # its index says when, and not the slot of an out time
            self.is_final[:] = False
        self.read_bytes = wheel_limit(picture.broker.max_message_bytes)
        self.topics: Counter[bytes] = Counter()
        self.counts_all = True
        self.born_ahead_ms = np.zeros(0, np.int64)

    def findings(self) -> Iterator[Finding]:
        rows = self.rows
        sizes = np.clip(rows.size_bytes, 0, 2**31 - 1).astype(np.int32)
        for chunk in read_chunks(self.picture.log, rows.commit_log_offset, sizes):
            self._look_at(chunk)
        for rule, tally in self.tallies.items():
            yield rule.at("the wheel", tally.told())
        if self.counts_all and not self.picture.is_hierarchical:
            yield from self._miscounted()
        if len(self.born_ahead_ms):
            told = counted(
                len(self.born_ahead_ms),
                "message says that it was born after it was stored",
                "messages say that they were born after they were stored",
            )
            most = span(int(self.born_ahead_ms.max()))
            yield CLOCK_AHEAD.at("the wheel", f"{told}, by up to {most}")

    def _miscounted(self) -> Iterator[Finding]:
        """What config/timermetrics counts otherwise than the wheel holds it."""
        content = read_small_file(self.picture.root.config_file(TIMER_METRICS_NAME))
        try:
            told = decode_timer_metrics(content) if content else None
        except FormatError:
            return  # which check_metrics says
        if told is None:
            return
        shown = {topic: row.count for topic, row in told.topics.items()}
        right = {topic.decode("utf-8", "replace"): n for topic, n in self.topics.items()}
        wrong = [
            f"{shown.get(topic, 0):,} of {printable(topic)!r}, there are {right.get(topic, 0):,}"
            for topic in sorted(shown.keys() | right.keys())
            if shown.get(topic, 0) != right.get(topic, 0)
        ]
        if wrong:
            left = len(wrong) - NAMED
            more = f" and {counted(left, 'other topic')}" if left > 0 else ""
            yield MISCOUNTED.at("config/timermetrics", f"{'; '.join(wrong[:NAMED])}{more}")

    def _count(self, batch: StoredBatch, rows: NDArray[np.int64]) -> None:
        """Add up what is on the wheel by topic, and whose birth lies after its storing."""
        values, codes = encoded(find_property_column(batch.properties_text, names.REAL_TOPIC))
        numbers = np.bincount(codes[self.rows.position[rows] >= 0], minlength=len(values))
        self.topics.update(
            {topic: n for topic, n in zip(values, numbers.tolist(), strict=True) if n}
        )
        ahead_ms = batch.born_timestamp_ms - batch.store_timestamp_ms
        self.born_ahead_ms = np.concatenate(
            [self.born_ahead_ms, ahead_ms[ahead_ms > CLOCKS_DIFFER_MS]]
        )

    def _note(self, rule: FindingRule, row: int, what: str) -> None:
        rows = self.rows
        position, queue_offset = int(rows.position[row]), int(rows.queue_offset[row])
        where = f"timer log {position}" if position >= 0 else f"queue offset {queue_offset}"
        place = f"{where}, log offset {rows.commit_log_offset[row]}"
        self.tallies.setdefault(rule, Tally()).add(f"{place} ({what})")

    def _look_at(self, chunk: Chunk) -> None:
        places = chunk.places
        there = np.flatnonzero(places != NOT_THERE)
        for row in np.flatnonzero(places == NOT_THERE).tolist():
            self._note(ELSEWHERE, chunk.first + row, "no record there")
        data = chunk.buffer[: chunk.buffer_bytes]
        told = told_sizes(data, places[there]) if len(there) else np.zeros(0, np.int64)
        is_same = told == self.rows.size_bytes[chunk.first + there]
        for row in there[~is_same].tolist():
            self._note(ELSEWHERE, chunk.first + row, "a record of another size")
        there = there[is_same]
        if not len(there):
            return
        try:
            batch = decode_batch(data, places[there], check_crc=False)
        except FormatError:
            self.counts_all = False
            for row in there.tolist():
                self._look_at_one(data, chunk, row)
            return
        rows = chunk.first + there
        self._count(batch, rows)
        for index in np.flatnonzero(self._is_odd(batch, rows)).tolist():
            self._look_at_message(batch.message(index), int(rows[index]))

    def _look_at_one(self, data: NDArray[np.uint8], chunk: Chunk, row: int) -> None:
        try:
            message = decode_message_at(data.data, int(chunk.places[row]), check_crc=False)
        except FormatError as problem:
            self._note(ELSEWHERE, chunk.first + row, problem.problem)
            return
        self._look_at_message(message, chunk.first + row)

    def _is_odd(self, batch: StoredBatch, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which records need a second look; no false negatives."""
        text, table = batch.properties_text, self.rows
        odd = ~equals(batch.topic, names.TIMER_TOPIC.encode())
        odd |= batch.commit_log_offset != table.commit_log_offset[rows]
        odd |= ~are_plain_numbers(find_property_column(text, names.REAL_QUEUE_ID))
        odd |= find_property_column(text, names.DELAY).lengths > 0
        odd |= text.lengths > PROPERTIES_MAX_BYTES - DELIVERY_GROWTH_BYTES
        odd |= table.size_bytes[rows] > self.read_bytes
        odd |= find_property_column(text, names.TIMER_DELETE_UNIQUE_KEY).lengths > 0
        odd |= ~np.isin(batch.sys_flag & SYS_TRANSACTION_MASK, (0, SYS_COMMIT))
        odd |= (batch.born_ip.lengths > IPV4_BYTES) | (batch.store_ip.lengths > IPV4_BYTES)
        odd |= undeliverable(find_property_column(text, names.REAL_TOPIC))
        outs_ms = _times_of(find_property_column(text, names.TIMER_OUT_MS))
        odd |= outs_ms < 0
        slots_ms = floor_ms(outs_ms, self.precision_ms)
        odd |= self.is_final[rows] & (slots_ms != table.slot_time_ms[rows])
        return np.asarray(odd)

    def _look_at_message(self, message: StoredMessage, row: int) -> None:
        for rule, what in self._oddities(message, row):
            self._note(rule, row, what)
            return

    def _oddities(self, message: StoredMessage, row: int) -> Iterator[tuple[FindingRule, str]]:
        rows = self.rows
        if message.topic != names.TIMER_TOPIC:
            yield ELSEWHERE, f"a record of topic {message.topic!r}"
        elif message.commit_log_offset != rows.commit_log_offset[row]:
            yield ELSEWHERE, f"the record says that it lies at {message.commit_log_offset}"
        size_bytes = int(rows.size_bytes[row])
        for fault, what in timer_record_faults(message, size_bytes, self.read_bytes):
            if fault is not TimerFault.NO_OUT_MS:  # a broker takes any number: see _of_time
                yield _RULE_OF[fault], what
        yield from self._of_time(message.properties.get(names.TIMER_OUT_MS), row)

    def _of_time(self, text: str | None, row: int) -> Iterator[tuple[FindingRule, str]]:
        try:
            out_ms = parse_long(text or "")
        except BadFieldError:
            yield OUT_MISSING, f"{names.TIMER_OUT_MS} {text!r}"
            return
        slot_ms, now_ms = int(self.rows.slot_time_ms[row]), self.picture.now_ms
        is_overdue = out_ms < now_ms and slot_ms < now_ms  # spread over the slots before now
        if self.is_final[row] and floor_ms(out_ms, self.precision_ms) != slot_ms and not is_overdue:
            yield OUT_ELSEWHERE, f"{names.TIMER_OUT_MS}={out_ms}, in the slot of {slot_ms}"


_TIME_DIGITS = 13


def _times_of(texts: ByteColumn) -> NDArray[np.int64]:
    """The numbers of thirteen digits, as times of our days have; -1 for every other text."""
    times = np.full(len(texts), -1, np.int64)
    rows = np.flatnonzero(texts.lengths == _TIME_DIGITS)
    digits = texts.data[texts.starts[rows][:, None] + np.arange(_TIME_DIGITS)].astype(np.int64) - 48
    powers = 10 ** np.arange(_TIME_DIGITS - 1, -1, -1, dtype=np.int64)
    is_number = ((digits >= 0) & (digits <= 9)).all(axis=1)
    times[rows[is_number]] = (digits @ powers)[is_number]
    return times
