# SPDX-License-Identifier: Apache-2.0
"""The bulk form of ScheduleMessageService#load: the state of a level store, found at opening.

RocketMQ: ScheduleMessageService#load, #correctDelayOffset (4.9.7).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import attrs
import numpy as np

from legacy_levels.backlog.queues import levels_with_queue
from legacy_levels.delay_offsets import DelayOffsets, OffsetsChoice
from legacy_levels.delivery_marks import (
    FLUSHED_NAME,
    from_runs,
    level_ends,
    mark_to_trust,
    read_mark,
)
from legacy_levels.engine.cursor import DueRuns, LevelCursor
from legacy_levels.engine.recovery import (
    Start,
    delivered_already,
    refuse_lost_first_files,
    where_to_start,
)
from legacy_levels.engine.repair import (
    finish_half_neutral,
    refuse_another_table,
    repair_due_times,
    with_right_sizes,
)
from legacy_levels.engine.rules import LevelRules
from legacy_levels.neutral_units import is_message
from message_store.base.printable import counted
from message_store.files.notes import NoteFile
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.intake.rescheduling import unfinished
from message_store.reading.consume_queue import Int64Array, UnitArray
from message_store.writing.dispatch import Dispatcher, mend_astray
from message_store.writing.queue import LiveQueue
from message_store.writing.recovery import Extent
from message_store.writing.store import LiveStore

FILE_NAME = "levels-skipped.json"

_MOST_NOTED = 1_000
_BEHIND_IT = "message behind it", "messages behind it"


@attrs.frozen
class SkippedMessage:
    """Which entry it was, and what is wrong with its record."""

    level: int
    queue_offset: int
    commit_log_offset: int
    size_bytes: int
    due_ms: int
    reason: str


class SkippedMessages(NoteFile[SkippedMessage]):
    """The notes of one store, in order of level and queue offset."""

    def __init__(self, root: Path) -> None:
        path = StoreRoot(root).own / FILE_NAME
        super().__init__(path, SkippedMessage, lambda one: (one.level, one.queue_offset))


@attrs.frozen
class Losses:
    """``log_bytes`` of the log's end are lost; ``entries`` are how many each level's queue lacked,
    ``brought_back`` how many of those were rebuilt from the log.
    """

    log_bytes: int = 0
    entries: Mapping[int, int] = attrs.field(factory=dict)
    brought_back: Mapping[int, int] = attrs.field(factory=dict)


def bring_back(live: LiveStore, lacked: Mapping[int, int]) -> Losses:
    """Find out what is lost, and make the level queues whole again as far as the log goes.

    ``lacked`` is how many synced entries each level lacked before the store was recovered, which
    has made some of them. What was cancelled in such a queue is not known any more, and will be
    delivered.
    """
    mark = read_mark(live.root.path, FLUSHED_NAME)
    log_bytes = 0 if mark is None else max(0, mark.log_end - live.log.end)
    missing = missing_entries(live)
    if missing:
        Dispatcher(live.log, live.queues, live.levels).run(live.log.min_offset, live.log.end)
    both = {*lacked, *missing}
    entries = {level: max(lacked.get(level, 0), missing.get(level, 0)) for level in both}
    left = missing_entries(live) if entries else {}
    return Losses(
        log_bytes, entries, {level: count - left.get(level, 0) for level, count in entries.items()}
    )


def synced_entries_missing(live: LiveStore) -> dict[int, int]:
    """How many entries each level's queue lacks that a flush had synced."""
    mark = read_mark(live.root.path, FLUSHED_NAME)
    return {} if mark is None else _lacking(live, mark.ends)


def missing_entries(live: LiveStore) -> dict[int, int]:
    """How many entries each level's queue lacks that it had when the marks were written."""
    return _lacking(live, level_ends(live.root.path, live.log))


def _lacking(live: LiveStore, ends: Mapping[int, int]) -> dict[int, int]:
    short = {level: end - _end(live, level) for level, end in ends.items()}
    return {level: count for level, count in short.items() if count > 0}


def _end(live: LiveStore, level: int) -> int:
    queue = live.queues.find(LEVEL_TOPIC, level - 1)
    return 0 if queue is None else queue.max_offset


@attrs.frozen
class Correction:
    """A stored offset that lay outside its queue."""

    level: int
    stored_offset: int
    corrected_offset: int


@attrs.define(eq=False)
class LevelState:
    """The levels of one open store.

    ``found`` is what delayOffset.json said, ``distrust`` why the marks are believed instead;
    ``corrections`` are offsets that lay outside their queues, ``losses`` what files lacked.
    ``already_delivered`` is how much of what the offsets say waits was delivered before a kill,
    ``to_repeat`` the queue offsets of that where it will be delivered again. ``left_alone`` are
    levels that the table does not have, ``corrected_due_times`` how many of each level were not
    those of their records, ``mended_entries`` how many entries did not lead to their records.
    """

    live: LiveStore
    table: DelayLevels
    rules: LevelRules
    found: DelayOffsets
    cursors: dict[int, LevelCursor]
    skipped: SkippedMessages
    losses: Losses = attrs.field(factory=Losses)
    distrust: str | None = None
    corrections: list[Correction] = attrs.field(factory=list)
    already_delivered: int = 0
    to_repeat: dict[int, Int64Array] = attrs.field(factory=dict)
    left_alone: dict[int, LevelCursor] = attrs.field(factory=dict)
    corrected_due_times: dict[int, int] = attrs.field(factory=dict)
    mended_entries: dict[int, int] = attrs.field(factory=dict)
    _runs: dict[int, DueRuns] = attrs.field(factory=dict)

    @property
    def all_cursors(self) -> dict[int, LevelCursor]:
        """Those of every level with a queue, also of those that nothing is delivered from."""
        return self.cursors | self.left_alone

    @property
    def has_new_entries(self) -> bool:
        """Whether the opening made entries of queues from the log, where others may have been."""
        recovery = self.live.recovery
        return bool(
            recovery.dispatched
            or recovery.repaired
            or self.losses.brought_back
            or self.mended_entries
        )

    def queue(self, level: int) -> LiveQueue:
        """The queue of a level."""
        return self.live.queue(LEVEL_TOPIC, level - 1)

    @property
    def believes_records(self) -> bool:
        """Whether an entry of another length than its record is mended; brokers skip it."""
        return self.rules.saved_offsets != "broker"

    def right_units(self, level: int, queue_offsets: Int64Array, units: UnitArray) -> UnitArray:
        """These units of a level with the lengths of their records, where those are believed.
        Raises TargetError.
        """
        if not self.believes_records:
            return units
        return with_right_sizes(self.live, level, queue_offsets, units)

    def runs(self, level: int) -> DueRuns:
        """What finds entries of a level by their due time."""
        if level not in self._runs:
            self._runs[level] = DueRuns(self.queue(level))
        return self._runs[level]

    def latest_due_ms(self, level: int, now_ms: int) -> int | None:
        """The latest time for which a level can hold a message, where one due later than that is
        delivered at once; None where it is waited for.
        """
        if self.rules.beyond_level == "wait" or level > self.table.max_level:
            return None
        return now_ms + self.table.delay_ms(level)

    def first_waiting_log_offset(self) -> int:
        """Where in the log the oldest message that waits lies; the log's end for none."""
        log_offsets = [self.live.log.end]
        for cursor in self.all_cursors.values():
            [*units] = cursor.queue.units(cursor.head, cursor.head + 1)
            log_offsets += [int(unit["commit_log_offset"]) for unit in units]
        return min(log_offsets)


def refuse_before_recovery(
    live: LiveStore, extent: Extent, rules: LevelRules, offsets_choice: OffsetsChoice
) -> None:
    """Look whether the levels can be opened, and change nothing.

    Recovery gives entries that are missing due times by the level table, and so does the repair of
    due times: both would leave those of a wrong table on disk. Raises SourceError where the offsets
    cannot be read, a queue has lost its first files or another engine has to finish a reschedule,
    and OptionsError where messages wait that the level table does not fit.
    """
    unfinished(live, LEVEL_TOPIC)
    start = where_to_start(live, offsets_choice)
    refuse_lost_first_files(live, start)
    if rules.on_table_change != "refuse":
        return
    ids = Dispatcher(live.log, live.queues, live.levels).queue_ids(
        LEVEL_TOPIC, extent.dispatch_from, extent.end
    )
    rebuilt = {queue_id + 1 for queue_id in ids} | missing_entries(live).keys()
    heads = {
        level: max(start.offsets.get(level, 0), live.queue(LEVEL_TOPIC, level - 1).min_offset)
        for level in {*levels_with_queue(live.root.path), *rebuilt}
    }
    mark = mark_to_trust(live.root.path, live.log)
    last_table = DelayLevels.parse(mark.table) if mark and mark.table else None
    refuse_another_table(live, heads, rebuilt, last_table)


def open_levels(
    live: LiveStore, rules: LevelRules, offsets_choice: OffsetsChoice, lacked: Mapping[int, int]
) -> LevelState:
    """Find where the levels of an open store stand; ``lacked`` are the ``synced_entries_missing``
    of before its recovery.

    What can be refused was refused by ``refuse_before_recovery``.
    """
    losses = bring_back(live, lacked)
    start = where_to_start(live, offsets_choice)
    levels = set(range(1, live.levels.max_level + 1))
    beyond = set(levels_with_queue(live.root.path)) - levels
    if rules.on_table_change != "broker":
        levels |= beyond
        beyond = set()
    skipped = SkippedMessages(live.root.path)
    state = LevelState(
        live, live.levels, rules, start.found, {}, skipped, losses=losses, distrust=start.distrust
    )
    cursor_of = partial(
        _cursor,
        state,
        start=start,
        may_tell_losses=offsets_choice is OffsetsChoice.AUTO
        and bool(start.offsets)
        and (start.since is not None or start.found.source is not OffsetsChoice.NONE),
    )
    for level in sorted(levels):
        state.cursors[level] = cursor_of(level)
        if not live.was_clean:
            finish_half_neutral(live, state.cursors[level])
        cursor, queues = state.cursors[level], live.queues
        if made := mend_astray(live.log, queues, live.levels, state.queue(level), cursor.head):
            state.mended_entries[level] = made
            cursor.rescan()
        if corrected := repair_due_times(live, state.cursors[level]):
            state.corrected_due_times[level] = corrected
    for level in sorted(beyond):
        state.left_alone[level] = cursor_of(level)
    if start.since is not None:
        is_known = start.since >= live.log.end and not state.has_new_entries
    else:  # of a clean store without its newest offsets the log alone tells what was delivered
        is_newest = start.found.source is OffsetsChoice.MAIN and bool(start.offsets)
        is_chosen = is_newest or offsets_choice is not OffsetsChoice.AUTO
        waits = any(len(cursor) for cursor in state.cursors.values())
        is_known = live.was_clean and (is_chosen or not waits)
    if not is_known:
        _recover_after_kill(state, start)
    return state


def _cursor(state: LevelState, level: int, start: Start, *, may_tell_losses: bool) -> LevelCursor:
    """A level from its offset on, moved into the queue as a broker corrects it.

    RocketMQ: ScheduleMessageService#correctDelayOffset. Without ``may_tell_losses`` the offset does
    not say what was delivered, and what lies in front of the head may have been.
    """
    queue = state.queue(level)
    stored = start.offsets.get(level, 0)
    head = min(max(stored, queue.min_offset), queue.max_offset)
    first = queue.segments.min_offset // QUEUE_UNIT.size
    done = from_runs(start.done.get(level, ()), queue.max_offset)
    is_told = level in start.offsets and head != stored
    lost, units = _lost_messages(queue, stored, head, done)
    if is_told or stored < first or len(lost):
        state.corrections.append(Correction(level, stored, head))
    if may_tell_losses and len(lost):
        state.skipped.add(_notes_of_lost(level, lost, units))
    waits_in_line = state.rules.out_of_turn == "wait"
    cursor = LevelCursor(level, queue, head, waits_in_line=waits_in_line)
    cursor.mark_delivered(done)
    return cursor


def _lost_messages(
    queue: LiveQueue, stored_offset: int, head: int, delivered: Int64Array
) -> tuple[Int64Array, UnitArray]:
    """Queue offsets and units of pending messages in front of the head: retention or somebody took
    the log files with their records.
    """
    units = queue.units(stored_offset, head)
    first = head - len(units)
    lost = np.setdiff1d(first + np.flatnonzero(is_message(units)), delivered)
    return lost, units[lost - first]


def _notes_of_lost(
    level: int, queue_offsets: Int64Array, units: UnitArray
) -> Iterator[SkippedMessage]:
    """A note of each lost message; of very many, the last note says how many follow."""
    more = len(queue_offsets) - _MOST_NOTED
    for row in range(min(len(queue_offsets), _MOST_NOTED)):
        says_rest = row + 1 == _MOST_NOTED and more > 0
        yield SkippedMessage(
            level=level,
            queue_offset=int(queue_offsets[row]),
            commit_log_offset=int(units["commit_log_offset"][row]),
            size_bytes=int(units["size_bytes"][row]),
            due_ms=int(units["tags_code"][row]),
            reason="the commit log has lost the file that held its record"
            + (f", and those of {counted(more, *_BEHIND_IT)}" if says_rest else ""),
        )


def _recover_after_kill(state: LevelState, start: Start) -> None:
    """Pass over what was delivered already; or only know it, to be as forgetful as a broker."""
    log = state.live.log
    newest_ms = log.store_time_ms(log.last_start)
    cursors = list(state.cursors.values())
    found = delivered_already(
        cursors,
        log,
        since=start.since,
        # Entries that were rebuilt do not say any more that they were delivered out of turn.
        names_since=state.first_waiting_log_offset() if state.has_new_entries else log.end,
        counted=start.counted,
        newest_ms=newest_ms,
    )
    delivered = found.by_level
    state.already_delivered = sum(map(len, delivered.values())) - len(found.astray)
    if found.astray and not state.live.repeats:
        reason = "its entry is damaged, and leads to the record of another message or to none"
        state.skipped.add(
            SkippedMessage(level, queue_offset, commit_log_offset, size_bytes, due_ms, reason)
            for level, queue_offset, commit_log_offset, size_bytes, due_ms in found.astray
        )
    if state.live.repeats:
        state.to_repeat = delivered
    else:
        for cursor in cursors:
            cursor.mark_delivered(delivered[cursor.level])
