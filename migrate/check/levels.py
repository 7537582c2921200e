# SPDX-License-Identifier: Apache-2.0
"""Pending messages of the levels: unreadable queues, entries without records, due times, and what
another level table does to them.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from legacy_levels.backlog.level_table import PLAUSIBLE_DUE_MS
from legacy_levels.backlog.lost_queues import cut_queues
from legacy_levels.backlog.queues import LevelQueue
from legacy_levels.neutral_units import is_message
from message_store.base.errors import FormatError
from message_store.base.printable import counted, span
from message_store.format.delay_levels import DelayLevels, format_delay
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, warning
from message_store.reading.consume_queue import is_filled
from migrate.check.snapshot import StoreSnapshot

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
