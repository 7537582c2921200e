# SPDX-License-Identifier: Apache-2.0
"""What waits in the levels: queues that cannot be told, entries without records, due times, and
what another level table makes of them.
"""

from collections.abc import Iterator

import numpy as np

from legacy_levels.backlog.cut_queues import cut_queues
from legacy_levels.backlog.level_table import PLAUSIBLE_DUE_MS
from legacy_levels.backlog.queues import LevelQueue
from legacy_levels.neutral_units import is_message
from message_store.base.errors import FormatError
from message_store.base.printable import counted, span
from message_store.format.delay_levels import DelayLevels, format_delay
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, warning
from message_store.reading.consume_queue import is_filled
from migrate.check.snapshot import Picture

QUEUE_UNREADABLE = error(
    "level-queue-unreadable",
    "a broker starts, and delivers nothing of what the missing part names",
    "take the file from a backup; `delaywheel convert --whole-log` finds the messages in the log",
)
QUEUE_GONE = error(
    "level-queue-gone",
    "a broker begins an empty one with the next message: what waits in the level is not delivered",
    "take the queue's directory from a backup; `delaywheel convert --whole-log` finds the messages"
    " in the log",
)
QUEUE_CUT = error(
    "level-queue-cut",
    "a broker passes over them: these messages are not delivered",
    "take the queue's files from a backup; without one, `delaywheel` takes from the log what it has"
    " of them, also what was cancelled",
)
QUEUE_HOLE = error(
    "level-queue-hole",
    "a broker takes the hole for the queue's end, or passes over it: messages are not delivered",
    "`delaywheel convert --whole-log` finds the messages in the log",
)
BEYOND_LOG = error(
    "entries-beyond-log",
    "a broker cuts them off when it starts: those messages are lost",
    "take the commit log from a backup",
)
EXPIRED = warning(
    "entries-expired",
    "a broker passes over them: retention has deleted their records before they were delivered",
    "nothing brings them back; keep log files (fileReservedTime) longer than messages wait",
)
NO_DUE_TIME = warning(
    "level-due-bogus",
    "a broker takes what it finds for a time in 1970 and delivers them at once; 4.9 makes such"
    " entries when it recovers from a crash",
    "convert the store: due times are made anew from store time and level",
)
LEVELS_UNTOLD = warning(
    "pending-untold",
    "what a broker does depends on which messages these are",
    "a conversion refuses the store for the same reason; see what the sentence names",
)
TABLE_DIFFERS = warning(
    "level-table-differs",
    "what waits keeps its due time; where a queue is rebuilt from the log, due times are made anew"
    " with the broker's table",
    "give the broker the messageDelayLevel that the messages were stored under",
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
    "a level is delivered in the order of its queue, so that they wait for the one before them",
    "convert the store: on a wheel each comes at its own time",
)

RULES = (
    QUEUE_UNREADABLE,
    QUEUE_GONE,
    QUEUE_CUT,
    QUEUE_HOLE,
    BEYOND_LOG,
    EXPIRED,
    NO_DUE_TIME,
    LEVELS_UNTOLD,
    TABLE_DIFFERS,
    TABLE_EARLY,
    TABLE_NEVER,
    TABLE_LATE,
)

_SLACK_MS = 1_000


def check_level_queues(picture: Picture) -> Iterator[Finding]:
    """Queues that are gone or damaged, or that name what the log does not have."""
    for level, gone in picture.gone_queues.items():
        where = picture.place(gone.directory)
        yield QUEUE_GONE.at(where, f"the queue of level {level} {gone.evidence}")
    for cut in cut_queues(picture.root, picture.queues):
        yield QUEUE_CUT.at(picture.place(cut.directory), cut.problem)
    for level, queue in picture.level_queues.items():
        name = picture.level_name(level)
        if isinstance(queue, FormatError):
            yield QUEUE_UNREADABLE.at(name, str(queue.problem))
            continue
        if queue.is_damaged and not picture.is_running:
            where = picture.place(picture.root.level_queue(level))
            yield QUEUE_HOLE.at(where, "entries in the middle of the queue hold nothing")
        beyond, expired = _outside(picture, queue)
        if beyond and not picture.is_running:
            told = counted(beyond, "entry leads", "entries lead")
            yield BEYOND_LOG.at(name, f"{told} behind the end of the commit log")
        if expired:
            told = counted(expired, "entry leads to a record", "entries lead to records")
            yield EXPIRED.at(name, f"{told} before the log's beginning")
    backlog = picture.backlog
    if backlog is None and picture.levels_problem is not None and picture.log.segments:
        reason = picture.levels_problem.splitlines()[0]
        yield LEVELS_UNTOLD.at("levels", f"what is pending cannot be told: {reason}")


def _outside(picture: Picture, queue: LevelQueue) -> tuple[int, int]:
    """Entries that still wait and lie behind the log, or before it."""
    units = queue.entries.units
    real = is_message(units) & is_filled(units)
    begins = units["commit_log_offset"].astype(np.int64)
    backlog = picture.backlog
    end = picture.log.end_offset if backlog is None else backlog.log_end
    beyond = real & (begins >= end)
    return int(beyond.sum()), int((real & (begins < picture.log.min_offset)).sum())


def check_due_times(picture: Picture) -> Iterator[Finding]:
    """Entries without a due time, and those that come early, late or never."""
    for queue in picture.queues:
        waits = ~queue.is_expired(picture.log.min_offset)
        is_time = (queue.due_ms > PLAUSIBLE_DUE_MS) & ~queue.due_is_unknown
        bogus = int((waits & ~is_time & ~queue.due_is_unknown).sum())
        name = picture.level_name(queue.level)
        if bogus:
            told = counted(bogus, "entry holds", "entries hold")
            yield NO_DUE_TIME.at(name, f"{told} no due time")
        yield from _by_table(picture, queue, queue.due_ms[waits & is_time])
    yield from _table_differs(picture)


def _by_table(
    picture: Picture, queue: LevelQueue, due_ms: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Iterator[Finding]:
    if not len(due_ms):
        return
    name, now_ms = picture.level_name(queue.level), picture.now_ms
    delay_ms = picture.delay_ms(queue.level)
    table = picture.options.level_table
    if table is not None and queue.level > table.max_level:
        waiting = counted(len(due_ms), "message waits", "messages wait")
        told = f"{waiting}, and {table.text()!r} has no level {queue.level}"
        yield TABLE_NEVER.at(name, told)
        return
    if delay_ms is not None:
        early = due_ms[due_ms > now_ms + delay_ms + _SLACK_MS]
        if len(early):
            most_ms = int(early.max()) - now_ms
            told = counted(len(early), "message is", "messages are")
            told += f" due later than {format_delay(delay_ms)} from now"
            yield TABLE_EARLY.at(name, told, more=f"up to {span(most_ms)} early")
    before_ms = np.maximum.accumulate(due_ms)
    late_ms = before_ms - due_ms
    late = int((late_ms > _SLACK_MS).sum())
    if late:
        told = f"{counted(late, 'message is', 'messages are')} due before one in front"
        yield TABLE_LATE.at(name, told, more=f"up to {span(int(late_ms.max()))} late")


def _table_differs(picture: Picture) -> Iterator[Finding]:
    """The table given, against what the messages show."""
    table: DelayLevels | None = picture.options.level_table
    if table is None:
        return
    shown = picture.delays
    for queue in picture.queues:
        seen_ms = shown.delay_ms(queue.level)
        if not len(queue) or seen_ms is None or queue.level > table.max_level:
            continue
        if seen_ms != table.delay_ms(queue.level):
            told = (
                f"its messages were stored under a delay of {format_delay(seen_ms)}, and the table"
                f" says {format_delay(table.delay_ms(queue.level))}"
            )
            yield TABLE_DIFFERS.at(f"level {queue.level}", told)
