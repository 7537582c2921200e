# SPDX-License-Identifier: Apache-2.0
"""Pending messages of the levels: unreadable queues, entries without records, due times, and what
another level table does to them.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.lost_queues import cut_queues
from legacy_levels.backlog.queues import LevelQueue
from legacy_levels.engine.waiting_records import are_plain_numbers, equals
from legacy_levels.neutral_units import is_message
from message_store.base.errors import FormatError
from message_store.base.printable import counted, span
from message_store.columns.byte_column import ByteColumn
from message_store.columns.message_batch import StoredBatch
from message_store.format import properties as names
from message_store.format.delay_levels import DelayLevels, format_delay
from message_store.format.java_numbers import INT_MAX
from message_store.format.message import StoredMessage
from message_store.format.timer_record_rules import queue_problem
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import FindingRule, error, info, warning
from message_store.reading.consume_queue import is_filled
from message_store.reading.shown_delays import PLAUSIBLE_DUE_MS
from migrate.check.record_walk import (
    RecordWalk,
    Tally,
    encoded,
    largest_record_bytes,
    undeliverable,
)
from migrate.check.snapshot import StoreSnapshot, whole_number
from migrate.settings import DEFAULT_MAX_MESSAGE_BYTES
from migrate.write.rewrite import growth_bytes, is_deliverable_topic

QUEUE_UNREADABLE = error(
    "level-queue-unreadable",
    "a broker starts, and delivers nothing of what the missing part names",
    "take the file from a backup; `delaywheel convert --whole-log` finds the messages in the log",
)
QUEUE_GONE = error(
    "level-queue-gone",
    "a broker begins an empty one with the next message: the level's messages are not delivered",
    "take the queue's directory from a backup; `delaywheel convert --whole-log` finds the messages"
    " in the log",
)
QUEUE_CUT = error(
    "level-queue-cut",
    "a broker skips them: these messages are not delivered",
    "take the queue's files from a backup; without one, `delaywheel` recovers from the log what it"
    " has, including cancelled messages",
)
QUEUE_HOLE = error(
    "level-queue-hole",
    "a broker takes the hole for the queue's end, or skips it: messages are not delivered",
    "`delaywheel convert --whole-log` finds the messages in the log",
)
OF_OTHERS = error(
    "entries-of-others",
    "a broker delivers another message twice or nothing: these messages are not delivered",
    "convert the store: what was meant is found in the log",
)
BEYOND_LOG = error(
    "entries-beyond-log",
    "a broker cuts them off when it starts: those messages are lost",
    "take the commit log from a backup",
)
EXPIRED = warning(
    "entries-expired",
    "a broker skips them: retention has deleted their records before they were delivered",
    "nothing restores them; keep log files (fileReservedTime) longer than messages wait",
)
NO_DUE_TIME = warning(
    "level-due-bogus",
    "a broker reads a time in 1970 and delivers them at once. 4.9 writes such entries when it"
    " recovers from a crash",
    "convert the store: due times are computed from store time and level",
)
LEVELS_UNTOLD = warning(
    "pending-untold",
    "what a broker does depends on which messages these are",
    "a conversion refuses the store for the same reason; see what the sentence names",
)
TABLE_DIFFERS = warning(
    "level-table-differs",
    "pending messages keep their due times. Where a queue is rebuilt from the log, due times are"
    " computed with the broker's table",
    "give the broker the messageDelayLevel with which the messages were stored",
)
TABLE_EARLY = error(
    "level-table-early",
    "a broker whose level is shorter than a message still has to wait delivers it at once",
    "let the broker run with the longest of the delays until these are delivered",
)
TABLE_NEVER = error(
    "level-table-never",
    "a broker whose table has no such level never delivers them",
    "give the broker a messageDelayLevel that has the level",
)
TABLE_LATE = warning(
    "level-table-late",
    "a level is delivered in the order of its queue, so they are delivered after the one in front",
    "convert the store: a wheel delivers each at its own time",
)


_SLACK_MS = 1_000


def check_level_queues(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Queues that are missing or damaged, or whose entries lead nowhere."""
    for level, gone in snapshot.gone_queues.items():
        where = snapshot.relative(gone.directory)
        yield QUEUE_GONE.at(where, f"the queue of level {level} {gone.evidence}")
    for cut in cut_queues(snapshot.root, snapshot.queues, snapshot.flushed_mark):
        yield QUEUE_CUT.at(snapshot.relative(cut.directory), cut.problem)
    for level, queue in snapshot.level_queues.items():
        name = snapshot.level_name(level)
        if isinstance(queue, FormatError):
            yield QUEUE_UNREADABLE.at(name, str(queue.problem))
            continue
        if queue.is_damaged and not snapshot.is_running:
            where = snapshot.relative(snapshot.root.level_queue(level))
            yield QUEUE_HOLE.at(where, "entries in the middle of the queue hold nothing")
        beyond, expired = _outside(snapshot, queue)
        if beyond and not snapshot.is_running:
            problem = counted(beyond, "entry leads", "entries lead")
            yield BEYOND_LOG.at(name, f"{problem} behind the end of the commit log")
        if expired:
            problem = counted(expired, "entry leads to a record", "entries lead to records")
            yield EXPIRED.at(name, f"{problem} before the log's beginning")
    backlog = snapshot.backlog
    for counts in () if backlog is None else backlog.counts:
        if counts.mended:
            problem = counted(counts.mended, "entry does", "entries do")
            problem += " not lead to a record of the message that is meant"
            yield OF_OTHERS.at(snapshot.level_name(counts.level), problem)
    if backlog is None and snapshot.levels_problem is not None and snapshot.log.segments:
        reason = snapshot.levels_problem.splitlines()[0]
        yield LEVELS_UNTOLD.at("levels", f"what is pending cannot be told: {reason}")


def _outside(snapshot: StoreSnapshot, queue: LevelQueue) -> tuple[int, int]:
    """Entries that still wait and lie behind the log, or before it."""
    units = queue.entries.units
    real = is_message(units) & is_filled(units)
    begins = units["commit_log_offset"].astype(np.int64)
    backlog = snapshot.backlog
    end = snapshot.log.end_offset if backlog is None else backlog.log_end
    beyond = real & (begins >= end)
    return int(beyond.sum()), int((real & (begins < snapshot.log.min_offset)).sum())


def check_due_times(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Entries without a due time, and those that are delivered early, late or never."""
    never: dict[int, int] = {}
    for queue in snapshot.queues:
        waits = ~queue.is_expired(snapshot.log.min_offset)
        is_time = (queue.due_ms > PLAUSIBLE_DUE_MS) & ~queue.due_is_unknown
        bogus = int((waits & ~is_time & ~queue.due_is_unknown).sum())
        name = snapshot.level_name(queue.level)
        if bogus:
            problem = counted(bogus, "entry holds", "entries hold")
            yield NO_DUE_TIME.at(name, f"{problem} no due time")
        if _is_beyond(snapshot.options.level_table, queue.level):
            never[queue.level] = int((waits & is_time).sum())
        else:
            yield from _by_table(snapshot, queue, queue.due_ms[waits & is_time])
    yield from _never(snapshot, {level: count for level, count in never.items() if count})
    yield from _table_differs(snapshot)


def _is_beyond(table: DelayLevels | None, level: int) -> bool:
    return table is not None and level > table.max_level


def _never(snapshot: StoreSnapshot, counts: Mapping[int, int]) -> Iterator[Finding]:
    """The levels with pending messages that a table lacks, at once: a short table lacks many."""
    table = snapshot.options.level_table
    if table is None or not counts:
        return
    waiting = counted(sum(counts.values()), "message waits", "messages wait")
    levels = "such levels" if len(counts) > 1 else f"level {min(counts)}"
    where = f"levels {min(counts)} to {max(counts)}"
    if len(counts) == 1:
        where = snapshot.level_name(min(counts))
    yield TABLE_NEVER.at(where, f"{waiting}, and {table.text()!r} has no {levels}")


def _by_table(
    snapshot: StoreSnapshot, queue: LevelQueue, due_ms: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Iterator[Finding]:
    if not len(due_ms):
        return
    name, now_ms = snapshot.level_name(queue.level), snapshot.now_ms
    delay_ms = snapshot.delay_ms(queue.level)
    if delay_ms is not None:
        newest_ms = -1 if snapshot.backlog is None else snapshot.backlog.newest_store_ms
        early = due_ms[due_ms > max(now_ms, newest_ms) + delay_ms + _SLACK_MS]
        if len(early):
            most_ms = int(early.max()) - now_ms
            problem = counted(len(early), "message is", "messages are")
            problem += f" due later than {format_delay(delay_ms)} from now"
            yield TABLE_EARLY.at(name, problem, more=f"up to {span(most_ms)} early")
    before_ms = np.maximum.accumulate(due_ms)
    late_ms = before_ms - due_ms
    late = int((late_ms > _SLACK_MS).sum())
    if late:
        problem = f"{counted(late, 'message is', 'messages are')} due before one in front"
        yield TABLE_LATE.at(name, problem, more=f"up to {span(int(late_ms.max()))} late")


def _table_differs(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """The table given, against what the messages show."""
    table: DelayLevels | None = snapshot.options.level_table
    if table is None:
        return
    shown = snapshot.delays
    for queue in snapshot.queues:
        seen_ms = shown.delay_ms(queue.level)
        if not len(queue) or seen_ms is None or queue.level > table.max_level:
            continue
        if seen_ms != table.delay_ms(queue.level):
            problem = (
                f"its messages were stored under a delay of {format_delay(seen_ms)}, and the table"
                f" says {format_delay(table.delay_ms(queue.level))}"
            )
            yield TABLE_DIFFERS.at(f"level {queue.level}", problem)


# --- the records ----------------------------------------------------------------------------------

_ASIDE = (
    "`delaywheel convert --on-bad-record quarantine` converts the others; see `delaywheel"
    " quarantine`"
)
UNREADABLE = error("record-unreadable", "a broker silently skips them: they are lost", _ASIDE)
STRANGE = error(
    "record-of-another",
    "a broker delivers what it finds there, or skips it",
    "look at the record; a queue that is rebuilt from the log has the right entries",
)
NO_DESTINATION = error(
    "record-no-destination",
    "4.9 tries the first of them for ever, and its level stands still, also after a restart; 5.x"
    " silently skips them",
    _ASIDE,
)
HALF = error(
    "record-half",
    "a broker drops half messages of transactions when they are due",
    "see who sends them with a delay; they are not delivered anywhere",
)
LOOPS = error(
    "record-loops",
    "a broker stores them in its own topic again: they are queued endlessly, or break its engines",
    _ASIDE,
)
BAD_TOPIC = error(
    "record-bad-topic",
    "a broker refuses to store them when they are due, and its level stands still; or it stores"
    " them where no client finds them",
    _ASIDE,
)
NO_BODY = warning(
    "record-no-body",
    "4.9 delivers them, and its push consumer never gets past them. 5.x refuses to store them when"
    " they are due and tries again for ever: its level stands still",
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
    "the queue entry counts. Where the queue is rebuilt from the log, they get the longest delay:"
    " somebody gave seconds where a level belongs",
    "see who sends them: DELAY is a level, 1 to 18",
)
DELAY_DIFFERS = warning(
    "delay-disagrees",
    "a broker delivers by the queue, and by DELAY where that is rebuilt from the log",
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
    "they go to the retry topics of consumer groups, and share the levels with the delayed"
    " messages of users",
    "nothing; they can be converted alone or left out with --only-topic",
)
RETRY_STORM = warning(
    "retry-storm",
    "consumers that fail fill the levels: messages that users delay are late",
    "look at the consumer groups that are named",
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


def check_level_records(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Every record that is pending in a level.

    RocketMQ: ScheduleMessageService.DeliverDelayedMessageTimerTask#executeOnTimeup (4.9.7).
    """
    walk = _LevelRecords(snapshot)
    walk.walk()
    for (rule, level), tally in walk.tallies.items():
        yield rule.at(snapshot.level_name(level), tally.text())
    retries = walk.retries
    if retries.count:
        share = retries.count / len(walk.rows)
        is_storm = share >= 0.5 and retries.count >= STORM_MESSAGES
        pending = counted(len(walk.rows), "pending message")
        text = f"retries of consumers are {retries.count:,} of {pending} ({share:.0%})"
        rule = RETRY_STORM if is_storm else RETRIES
        yield rule.at("levels", f"{text}: {', '.join(retries.examples)}")


class _LevelRecords(RecordWalk):
    no_record, other_size, other_body = UNREADABLE, STRANGE, UNREADABLE

    def __init__(self, snapshot: StoreSnapshot) -> None:
        self.rows = snapshot.level_rows
        super().__init__(snapshot, self.rows.commit_log_offset, self.rows.size_bytes)
        self.tallies: dict[tuple[FindingRule, int], Tally] = {}
        self.retries = Tally()
        self.max_bytes = snapshot.broker.max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES
        target = snapshot.options.target
        self.wheel_bytes = (
            None if target is None else largest_record_bytes(target.max_message_bytes)
        )

    def note(self, rule: FindingRule, row: int, what: str) -> None:
        rows = self.rows
        position = (
            f"queue offset {rows.queue_offset[row]}, log offset {rows.commit_log_offset[row]}"
        )
        key = rule, int(rows.level[row])
        self.tallies.setdefault(key, Tally()).add(f"{position} ({what})")

    def count_topics(self, topics: ByteColumn) -> None:
        values, codes = encoded(topics)
        counts = np.bincount(codes, minlength=len(values))
        for topic, count in zip(values, counts.tolist(), strict=True):
            if topic.startswith(names.RETRY_PREFIX.encode()):
                self.retries.add(topic.decode("utf-8", "replace"), count)

    def unusual(self, batch: StoredBatch, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        table = self.rows
        unusual = ~equals(batch.topic, names.LEVEL_TOPIC.encode())
        unusual |= batch.queue_id != table.level[rows] - 1
        unusual |= batch.commit_log_offset != table.commit_log_offset[rows]
        delay = batch.property(names.DELAY)
        for level in np.unique(table.level[rows]).tolist():
            unusual |= (table.level[rows] == level) & ~equals(delay, str(level).encode())
        unusual |= ~are_plain_numbers(batch.property(names.REAL_QUEUE_ID))
        for name in TIMER_NAMES:
            unusual |= batch.property(name).lengths > 0
        unusual |= batch.body.lengths == 0
        unusual |= table.size_bytes[rows] > min(self.max_bytes, self.wheel_bytes or INT_MAX) - 256
        unusual |= undeliverable(batch.property(names.REAL_TOPIC))
        return np.asarray(unusual)

    def broken_rules(self, message: StoredMessage, row: int) -> Iterator[tuple[FindingRule, str]]:
        level, size = int(self.rows.level[row]), int(self.rows.size_bytes[row])
        if message.topic != names.LEVEL_TOPIC:
            yield STRANGE, f"a record of topic {message.topic!r}"
        elif message.commit_log_offset != self.rows.commit_log_offset[row]:
            yield STRANGE, f"the record says that it lies at {message.commit_log_offset}"
        elif message.queue_id != level - 1:
            yield STRANGE, f"a record of queue {message.queue_id}"
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
        if not message.body:
            yield NO_BODY, "no body"
        yield from self._of_size(message, size, level, topic or "")
        yield from _of_delay(values.get(names.DELAY), level)
        timers = [name for name in TIMER_NAMES if name in values]
        if timers:
            yield DELAY_AND_TIMER, ", ".join(f"{name}={values[name][:32]}" for name in timers)

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
            on_wheel = size + growth_bytes(level, self.snapshot.now_ms)
            if on_wheel > self.wheel_bytes:
                yield LARGE_FOR_WHEEL, f"{on_wheel:,} bytes, {self.wheel_bytes:,} are read"


def _of_delay(text: str | None, level: int) -> Iterator[tuple[FindingRule, str]]:
    number = whole_number(text)
    if text is None:
        yield DELAY_DIFFERS, f"no {names.DELAY}"
    elif number is None:
        yield DELAY_DIFFERS, f"{names.DELAY}={text[:32]!r}"
    elif number > max(LONGEST_LEVEL, level):
        yield DELAY_RANGE, f"{names.DELAY}={number}"
    elif number != level:
        yield DELAY_DIFFERS, f"{names.DELAY}={number}"
