# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an open level store: findings for an operator, worst first."""

from collections.abc import Callable, Iterator

import numpy as np

from legacy_levels.engine.async_delivery import AsyncDelivery
from legacy_levels.engine.cursor import LevelCursor
from legacy_levels.engine.delivery import LevelDelivery
from legacy_levels.engine.state import LevelState
from legacy_levels.engine.waiting_records import (
    WaitingRecords,
    are_plain_numbers,
    destination_problem,
    equals,
    read_waiting,
)
from message_store.base.errors import DelayStoreError, FormatError
from message_store.base.printable import counted
from message_store.format import properties as names
from message_store.format.delay_levels import format_delay
from message_store.format.dialect import Dialect
from message_store.format.record_layout import TOPIC_MAX_CHARS_V1
from message_store.interface.delay_store import Finding, Severity
from message_store.interface.finding_rules import (
    found_error,
    found_info,
    found_warning,
    worst_first,
)
from message_store.reading.consume_queue import Int64Array
from message_store.writing.findings import floor_findings, log_finding

_MOST_NAMED = 20
_ARE = "message is", "messages are"
_DELIVERIES = "delivery before the last kill is", "deliveries before the last kill are"
_ENTRIES = "entry", "entries"
_TIMES = "due time", "due times"
_HELD = "a topic too long for brokers of 4.9, in a store that is written for them"


def check_levels(state: LevelState, delivery: LevelDelivery) -> list[Finding]:
    """Everything that is noticed about queues, offsets, and the records that wait."""
    findings: list[Finding] = []
    parts: list[Callable[[], Iterator[Finding]]] = [
        lambda: of_opening(state),
        lambda: floor_findings(state.live),
        lambda: undelivered(state),
        lambda: _of_delivery(state, delivery),
        *((lambda cursor=cursor: _of_level(state, cursor)) for cursor in state.cursors.values()),
    ]
    for part in parts:
        try:
            findings += part()
        except (DelayStoreError, OSError) as error:
            findings.append(
                found_error(
                    str(state.live.root.path),
                    f"it cannot be looked at: {error}",
                    "a broker may refuse to start, or stop there",
                    "look at the file that is named",
                )
            )
    return worst_first(findings)


def of_opening(state: LevelState) -> Iterator[Finding]:
    """What was lost, or not as it should be, when the store was opened."""
    losses = state.losses
    if losses.log_bytes:
        yield log_finding(losses.log_bytes)
    for level, count in losses.entries.items():
        yield found_error(
            state.table.describe(level),
            f"its queue had lost {counted(count, *_ENTRIES)} when the store was opened",
            "a broker does not deliver such messages; this store has made"
            f" {counted(losses.brought_back.get(level, 0), *_ENTRIES)} anew, among them those of"
            " cancelled messages",
            "find out what was removed",
        )
    yield from _of_offsets(state)


def _of_offsets(state: LevelState) -> Iterator[Finding]:
    if state.distrust is not None:
        yield found_warning(
            str(state.found.main.path),
            f"it was not believed when the store was opened: {state.distrust}",
            "a broker would have repeated or passed over messages; this store went on from its own"
            " marks, and has written the file anew",
            "find out who changed it; offsets='main' or --offsets main believes it",
        )
    for file in (state.found.main, state.found.backup):
        if file.damage is not None and file.problem is not None:
            yield found_warning(
                str(file.path),
                f"it was damaged when the store was opened: {file.damage}",
                f"{state.found.taken}; a broker repeats what that table does not know of",
                "compare what was delivered since with the topics",
            )
    for correction in state.corrections:
        yield found_warning(
            f"level {correction.level}",
            f"its offset {correction.stored_offset} lay outside its queue",
            f"delivery went on at {correction.corrected_offset}, as a broker's does",
            "where it lay before the queue, messages that waited are gone: retention or somebody"
            " removed the first files of queue or log; only a queue without any is made anew",
        )
    for level, count in state.corrected_due_times.items():
        yield found_warning(
            f"level {level}",
            f"its queue had {counted(count, *_TIMES)} that cannot be those of their records",
            "a broker delivers such messages too early or too late; this store has put into its"
            " queue what their records say",
            "look for damage to the disk",
        )
    for level, count in state.mended_entries.items():
        yield found_warning(
            f"level {level}",
            f"its queue had {counted(count, *_ENTRIES)} that did not lead to their records",
            "a broker skips such a message, or delivers another twice; here the entries were made"
            " anew from the log",
            "look for damage to the disk",
        )
    if state.already_delivered:
        yield found_info(
            "config/delayOffset.json",
            f"{counted(state.already_delivered, *_DELIVERIES)} not in its offsets",
            "a broker would have delivered them again; this store does not",
            "nothing",
        )


def undelivered(state: LevelState) -> Iterator[Finding]:
    """What was due and could not be delivered: so many by name, and how many more."""
    skipped = state.skipped.all()
    for message in skipped[:_MOST_NAMED]:
        is_lost = message.commit_log_offset < state.live.log.min_offset
        place = f"{message.size_bytes} bytes at {message.commit_log_offset} of the commit log"
        yield found_error(
            f"level {message.level}, queue offset {message.queue_offset}",
            f"a message could not be delivered: {message.reason}",
            "it was passed over when it was due; 4.9 would have stopped its level there",
            "take the commit log's first files from a backup" if is_lost else f"look at {place}",
        )
    if len(skipped) > _MOST_NAMED:
        yield found_error(
            "delaywheel/levels-skipped.json",
            f"{counted(len(skipped) - _MOST_NAMED, 'more message')} could not be delivered",
            "they were passed over when they were due",
            "look at the list in that file",
        )


def _of_delivery(state: LevelState, delivery: LevelDelivery) -> Iterator[Finding]:
    if delivery.discarded:
        yield found_info(
            names.HALF_TOPIC,
            counted(
                delivery.discarded,
                "half message of a transaction was due",
                "half messages of transactions were due",
            ),
            "they were dropped, as a broker does",
            "nothing",
        )
    if isinstance(delivery, AsyncDelivery):
        for level, resends in delivery.failing.items():
            yield found_warning(
                f"level {level}",
                f"a delivery fails; it was sent again {resends} times",
                "the level's offset does not move, and after a few times nothing new is started",
                "make room on the disk",
            )
    if not state.rules.spare_waiting:
        for level in range(1, state.table.max_level + 1):
            delay_ms = state.table.delay_ms(level)
            if delay_ms > state.live.settings.retention_ms:
                yield found_warning(
                    state.table.describe(level),
                    "its delay is longer than log files are kept",
                    "messages are deleted before they are due",
                    f"keep log files longer than {format_delay(delay_ms)}",
                )


def _of_level(state: LevelState, cursor: LevelCursor) -> Iterator[Finding]:
    beyond, early = 0, 0
    now_ms = state.live.clock.now_ms()
    is_known = cursor.level <= state.table.max_level
    delay_ms = state.table.delay_ms(cursor.level) if is_known else 0
    named = 0
    newest_ms = -1
    for first, units, waits in cursor.waiting():
        rows = np.flatnonzero(waits)
        due_ms = units["tags_code"][rows].astype(np.int64)
        beyond += int((due_ms > now_ms + delay_ms).sum())
        if len(due_ms):
            rising = np.maximum.accumulate(np.append(newest_ms, due_ms))
            early += int((due_ms < rising[:-1]).sum())
            newest_ms = int(rising[-1])
        offsets = units["commit_log_offset"][rows].astype(np.int64)
        sizes = units["size_bytes"][rows].astype(np.int64)
        for finding in _of_records(state, cursor.level, first + rows, offsets, sizes):
            if named < _MOST_NAMED:
                named += 1
                yield finding
    where = state.table.describe(cursor.level)
    if not is_known and len(cursor):
        yield found_warning(
            where,
            "messages wait in a level that the level table does not have",
            "a broker with this table never delivers them",
            "give the broker the table that they were stored under",
        )
    elif beyond:
        yield found_warning(
            where,
            f"{counted(beyond, *_ARE)} due later than the level's delay from now",
            "a broker delivers them at once, too early",
            "see whether the clock was set back or the level table changed",
        )
    if early:
        yield found_info(
            where,
            f"{counted(early, *_ARE)} due before one in front",
            "a broker delivers them late, when that one is due; this store does not",
            "nothing",
        )


def _of_records(
    state: LevelState, level: int, queue_offsets: Int64Array, offsets: Int64Array, sizes: Int64Array
) -> Iterator[Finding]:
    """Records that are none, and those that can go nowhere."""
    bad: list[tuple[int, FormatError]] = []
    for part in read_waiting(state.live.log, offsets, sizes, bad):
        for row, problem in _undeliverable(part, state.live.dialect):
            place = int(part.rows[row])
            is_half = problem is None
            yield Finding(
                Severity.WARNING if is_half else Severity.ERROR,
                f"level {level}, queue offset {queue_offsets[place]}",
                problem or "a half message of a transaction",
                "it is dropped when it is due"
                if is_half
                else "it waits until the store is opened for 5.x; 4.9 stops its level there"
                if problem is _HELD
                else "it cannot be delivered: 4.9 stops its level there, 5.x passes over it",
                f"look at {sizes[place]} bytes at {offsets[place]} of the commit log",
            )
    for row, error in bad:
        yield found_error(
            f"level {level}, queue offset {queue_offsets[row]}",
            f"no record is where the queue says: {error}",
            "a broker passes over it: the message is lost",
            f"look at {sizes[row]} bytes at {offsets[row]} of the commit log",
        )


def _undeliverable(part: WaitingRecords, dialect: Dialect) -> Iterator[tuple[int, str | None]]:
    """Rows that do not say where they go, with the reason; without one for half messages."""
    topics = part.real_topic
    doubtful = (topics.lengths == 0) | ~equals(part.batch.topic, names.LEVEL_TOPIC.encode())
    doubtful |= equals(topics, names.HALF_TOPIC.encode()) | ~are_plain_numbers(part.real_queue_id)
    is_long = (topics.lengths > TOPIC_MAX_CHARS_V1) & (not dialect.knows_long_topics)
    for row in np.flatnonzero(doubtful | is_long).tolist():
        message = part.batch.message(row)
        if message.topic != names.LEVEL_TOPIC:
            yield row, f"a record of topic {message.topic!r} and not of a level"
        elif message.properties.get(names.REAL_TOPIC) == names.HALF_TOPIC:
            yield row, None
        elif is_long[row]:
            yield row, _HELD
        elif (problem := destination_problem(message)) is not None:
            yield row, problem
