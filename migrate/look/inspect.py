# SPDX-License-Identifier: Apache-2.0
"""What a directory is: which broker's, clean or crashed, with how many pending messages.

Only reads, without Spark, also damaged stores. A number that cannot be told is None with a sentence
in ``problems``, and never 0.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.backlog import LevelBacklog, read_backlog
from legacy_levels.backlog.queues import (
    LevelQueue,
    levels_with_queue,
    open_level_queue,
    queued_by_choice,
)
from legacy_levels.delay_offsets import DelayOffsets, OffsetsChoice, read_delay_offsets
from message_store.base.errors import FormatError, PlanError, SourceError
from message_store.base.printable import counted
from message_store.files.config_files import (
    CONSUMER_OFFSETS,
    GROUPS,
    TOPICS,
    read_config,
    read_topics,
)
from message_store.files.small_files import is_directory
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import LONG_MAX
from message_store.reading.commit_log import NO_TIME
from message_store.reading.engine_choice import EngineName, engines_in
from message_store.reading.looking import looking_at
from message_store.reading.unfinished_change import describe_unfinished_change
from migrate.changes.note import IN_PLACE, unfinished_change
from migrate.look.files import count_files, guess_format
from migrate.look.inspection import (
    LevelState,
    StoreInspection,
    TimeIndexSummary,
    TimelineSummary,
    TopicQueues,
    WheelSummary,
)
from migrate.look.timers import inspect_time_index, inspect_timers, told_as_cut_off
from migrate.report.finished_target import unfinished_reason
from migrate.source.condition import loss_warnings
from migrate.source.level_delays import infer_delays
from migrate.source.members import member_state
from timer_wheel.reading.state import WheelState

_LISTED_PLACES = 10
_COUNT_SENTENCES = {
    "already_delivered": (
        "message behind the offsets was",
        "messages behind the offsets were",
        "already delivered: left out here, repeated by a broker",
    ),
    "neutral": (
        "message behind the offsets was",
        "messages behind the offsets were",
        "cancelled, or delivered before others: left out here and by every broker",
    ),
    "expired": (
        "message behind the offsets is",
        "messages behind the offsets are",
        "no longer in the log: a broker skips them",
    ),
    "not_in_queue": (
        "message is",
        "messages are",
        "in the log and not yet in a queue",
    ),
    "repaired": (
        "pending message has",
        "pending messages have",
        "no due time in the queue: level and store time say",
    ),
}
"""One, several, and what is said of them."""

_BROKER_REPEATS = "a broker started on it repeats what the log shows as already delivered"
_OURS_RECOVERS = "the next opening recovers what was flushed, and repeats nothing"
_OURS: tuple[tuple[EngineName, ...], ...] = (("hierarchy",), ("time-index",))
"""No broker delivers from these."""


def inspect_store(
    path: Path, *, now_ms: int, offsets: OffsetsChoice | str = OffsetsChoice.AUTO
) -> StoreInspection:
    """Look at the store under ``path`` as of ``now_ms``, with the offsets of ``offsets``.

    Raises SourceError for a directory that is no store, has lost its log, is of a kind that we do
    not read (here: a RocksDB timeline where rocksdict is not installed), or is in use by a broker.
    """
    store = StoreRoot(path)
    if not is_directory(store.commit_log) and (reason := unfinished_reason(store)):
        raise SourceError(f"{path}: {reason}")
    store.require_readable()
    with looking_at(store) as is_open:
        return _Inspection(store, now_ms, OffsetsChoice(offsets), is_open=is_open).result()


class _Inspection:
    """Collects facts and problems, part by part."""

    def __init__(
        self, store: StoreRoot, now_ms: int, choice: OffsetsChoice, *, is_open: bool
    ) -> None:
        self.store = store
        self.is_open = is_open
        self.now_ms = now_ms
        self.choice = choice
        self.problems: list[str] = []
        self.backlog: LevelBacklog | None = None

    def result(self) -> StoreInspection:
        files = count_files(self.store)
        self._note_state()
        offsets = self._offsets()
        everything = read_delay_offsets(self.store.path, OffsetsChoice.NONE)
        guess = guess_format(self.store, (everything.main, everything.backup))
        levels = self._levels(offsets)
        wheel, timeline, state = inspect_timers(self.store, self.now_ms, self.problems)
        time_index = inspect_time_index(self.store, self.now_ms, self.problems)
        twice = counted_twice(self.store, self.backlog, state, self.now_ms)
        if twice.pending:
            are = "message stands", "messages stand"
            messages = counted(twice.pending, *are)
            self.problems.append(f"{messages} in a level and on the wheel: counted once in the sum")
        self.problems += loss_warnings(self.store, is_open=self.is_open)
        for name in (TOPICS, GROUPS, CONSUMER_OFFSETS):
            self.problems += read_config(self.store.path, name).problems
        timers = [part for part in (wheel, timeline, time_index) if part is not None]
        parts: list[LevelState | WheelSummary | TimelineSummary | TimeIndexSummary]
        parts = [*levels, *timers]
        return StoreInspection(
            path=str(self.store.path),
            now_ms=self.now_ms,
            format=guess.format,
            evidence=guess.evidence,
            clean=self.store.was_stopped_cleanly,
            offsets_source=offsets.source.value if offsets else None,
            pending=_sum_if_known([part.pending for part in parts], less=twice.pending),
            overdue=_sum_if_known([part.overdue for part in parts], less=twice.overdue),
            levels=levels,
            wheel=wheel,
            timeline=timeline,
            time_index=time_index,
            topics=tuple(
                TopicQueues(topic.name, topic.read_queues, topic.write_queues)
                for _name, topic in sorted(read_topics(self.store.path).items())
            ),
            files=files,
            problems=tuple(self.problems),
            beyond_log=0 if self.backlog is None else _beyond_log(self.backlog),
            member=member_state(self.store),
        )

    def _note_state(self) -> None:
        change = describe_unfinished_change(self.store)
        if change is not None:
            self.problems.append(change)
        elif not self.store.was_stopped_cleanly and not self.is_open:
            self.problems.append(
                f"{self.store.abort}: a broker or a program ended without closing the store;"
                f" {_OURS_RECOVERS if engines_in(self.store) in _OURS else _BROKER_REPEATS}"
            )
        if reason := unfinished_reason(self.store):
            self.problems.append(f"{self.store.path}: {reason}")

    # --- levels -----------------------------------------------------------------------------------

    def _offsets(self) -> DelayOffsets | None:
        """The offsets in force; None, with what each choice would replay, when there are none."""
        try:
            offsets = read_delay_offsets(self.store.path, self.choice)
        except SourceError as error:
            self.problems.append(str(error))
            return None
        if levels_with_queue(self.store.path):
            self.problems += offsets.problems
        if offsets.moved:
            self.problems.append(
                f"{offsets.main.path}: a change has moved messages of levels, and this file is not"
                " taken: a broker that takes none delivers them again"
            )
        return offsets

    def _levels(self, offsets: DelayOffsets | None) -> tuple[LevelState, ...]:
        numbers = levels_with_queue(self.store.path)
        queues = {level: self._queue(level, offsets) for level in numbers}
        readable = tuple(queue for queue in queues.values() if queue is not None)
        delays = infer_delays(self.store.path, readable)
        self.problems += delays.notes
        is_whole = len(readable) == len(queues)
        if is_whole and (offsets is None or offsets.problems or _is_chosen(offsets)):
            self.problems += _replays(self.store.path)
        if offsets is not None and _is_chosen(offsets):
            self.problems.append(offsets.taken)
        backlog = self._backlog(delays.table) if offsets is not None and is_whole else None
        self.backlog = backlog
        states = []
        for level in sorted({*numbers, *_levels_of(backlog)}):
            stored = offsets.offsets.get(level) if offsets else None
            delay_ms = delays.delay_ms(level)
            states.append(
                _level_state(level, delay_ms, stored, queues.get(level), backlog, self.now_ms)
            )
        if offsets is not None:
            self.problems += _naming_problems(offsets, states, delays.table)
        return tuple(states)

    def _queue(self, level: int, offsets: DelayOffsets | None) -> LevelQueue | None:
        stored = offsets.offsets.get(level) if offsets else None
        try:
            queue = open_level_queue(self.store.path, level, stored)
        except FormatError as error:
            self.problems.append(f"level {level} cannot be read: {error}")
            return None
        if queue.is_damaged:
            self.problems.append(
                f"{self.store.level_queue(level)}: entries in the middle of the queue hold nothing"
            )
        last = LONG_MAX if self.store.lacks_newest_entries else queue.queue_max
        if stored is None and queue.queue_min:
            self.problems.append(
                f"level {level}: no offset is known, and its queue begins at {queue.queue_min}; a"
                " broker goes on there"
            )
        elif stored is not None and not queue.queue_min <= stored <= last:
            self.problems.append(
                f"level {level}: offset {stored} lies outside its queue ({queue.queue_min} to"
                f" {queue.queue_max}); a broker goes on at {queue.from_queue_offset}"
            )
        return queue

    def _backlog(self, table: DelayLevels) -> LevelBacklog | None:
        try:
            backlog = read_backlog(
                self.store.path,
                offsets_choice=self.choice,
                level_table=table,
                after_crash=not self.store.was_stopped_cleanly,
            )
        except (FormatError, SourceError, PlanError) as error:
            self.problems.append(f"what is pending cannot be told: {error}")
            return None
        self.problems += _backlog_problems(backlog)
        return backlog


def _sum_if_known(numbers: list[int | None], *, less: int) -> int | None:
    known_numbers = [number for number in numbers if number is not None]
    return sum(known_numbers) - less if len(known_numbers) == len(numbers) else None


def _is_chosen(offsets: DelayOffsets) -> bool:
    """Whether these are others than a broker would take."""
    return offsets.source is not offsets.broker_choice


def _replays(root: Path) -> Iterator[str]:
    counts = queued_by_choice(root, read_delay_offsets(root, OffsetsChoice.NONE))
    if any(counts.values()):
        by_choice = [f"--offsets {choice} delivers {count:,}" for choice, count in counts.items()]
        yield f"of the messages in the level queues, {', '.join(by_choice)}"


def _naming_problems(
    offsets: DelayOffsets, states: Sequence[LevelState], table: DelayLevels
) -> Iterator[str]:
    """Levels that the offsets should or should not name; 4.x names only delivered levels."""
    problems = []
    if left_out := [
        each.level for each in states if each.offset is None and each.already_delivered
    ]:
        problems.append(f"does not name {_levels_text(left_out)}: a broker begins anew there")
    levels = {*range(1, table.max_level + 1), *(each.level for each in states)}
    if strange := sorted(offsets.offsets.keys() - levels):
        problems.append(f"names {_levels_text(strange)}, which the level table does not have")
    if offsets.offsets and problems:
        file = offsets.backup if offsets.source is OffsetsChoice.BACKUP else offsets.main
        yield f"{file.path}: {'; '.join(problems)}"


def _levels_text(levels: Sequence[int]) -> str:
    return f"level{'s' * (len(levels) > 1)} {', '.join(map(str, levels))}"


def _levels_of(backlog: LevelBacklog | None) -> list[int]:
    return [] if backlog is None else [counts.level for counts in backlog.counts]


def _known_times(backlog: LevelBacklog, level: int) -> NDArray[np.int64]:
    """When the level's messages are due, those left out of which nothing tells it."""
    is_known = (backlog.level == level) & (backlog.due_ms != NO_TIME)
    due_ms: NDArray[np.int64] = backlog.due_ms[is_known]
    return due_ms


def _level_state(
    level: int,
    delay_ms: int | None,
    stored: int | None,
    queue: LevelQueue | None,
    backlog: LevelBacklog | None,
    now_ms: int,
) -> LevelState:
    counts, due_ms = None, None
    if backlog is not None:
        counts = next((each for each in backlog.counts if each.level == level), None)
        due_ms = _known_times(backlog, level)
    return LevelState(
        level=level,
        delay_ms=delay_ms,
        offset=stored,
        queue_min=None if queue is None else queue.queue_min,
        queue_max=None if queue is None else queue.queue_max,
        pending=None if counts is None else counts.pending,
        overdue=None if due_ms is None else int(np.count_nonzero(due_ms <= now_ms)),
        next_due_ms=int(due_ms.min()) if due_ms is not None and len(due_ms) else None,
        already_delivered=None if counts is None else counts.already_delivered,
        neutral=None if counts is None else counts.neutral,
        expired=None if counts is None else counts.expired,
    )


def _beyond_log(backlog: LevelBacklog) -> int:
    ends = backlog.commit_log_offset + backlog.size_bytes
    return int(np.count_nonzero(ends > backlog.log_end))


def _backlog_problems(backlog: LevelBacklog) -> Iterator[str]:
    for offset in backlog.damaged_places[:_LISTED_PLACES]:
        yield f"commitlog: no record begins at {offset}, where one should"
    if (more := len(backlog.damaged_places) - _LISTED_PLACES) > 0:
        yield f"commitlog: and {counted(more, 'more such offset')}"
    if beyond := _beyond_log(backlog):
        messages = counted(beyond, "pending message lies", "pending messages lie")
        yield f"{messages} beyond the end of the log, where nothing can be read"
    ends = backlog.commit_log_offset + backlog.size_bytes
    is_cut = (ends > backlog.recovered_end) & (ends <= backlog.log_end)
    if cut := int(np.count_nonzero(is_cut)):
        yield told_as_cut_off(cut, backlog.recovered_end)
    for name, (singular, plural, what) in _COUNT_SENTENCES.items():
        if count := backlog.total(name):
            yield f"{counted(count, singular, plural)} {what}"


@attrs.frozen
class CountedTwice:
    """How many messages stand in both, and how many of them are due."""

    pending: int = 0
    overdue: int = 0


def counted_twice(
    store: StoreRoot, backlog: LevelBacklog | None, state: WheelState | None, now_ms: int
) -> CountedTwice:
    """What of a level is on the wheel too: as many as there are of both, the messages that the
    change is about and the records that it has appended.

    Once its offsets have moved, nothing of the former waits; before, each of the latter is one of
    them.
    """
    try:
        change = unfinished_change(store)
    except SourceError:
        return CountedTwice()  # a note that nobody can read, which is said
    if change is None or change.kind != IN_PLACE or backlog is None or state is None:
        return CountedTwice()
    is_ours = state.pending.commit_log_offset >= change.before.log_end
    out_ms = state.pending.slot_time_ms[is_ours] + state.precision_ms
    ends = {int(level): end for level, end in change.asked["level_queue_ends"].items()}
    levels = backlog.level.astype(np.int64)
    limits = np.zeros(int(levels.max(initial=0)) + 1, np.int64)
    for level, end in ends.items():
        if level < len(limits):
            limits[level] = end
    is_asked = backlog.queue_offset < limits[levels]
    due_ms = backlog.due_ms[is_asked]
    return CountedTwice(
        pending=min(len(due_ms), len(out_ms)),
        overdue=min(int((due_ms <= now_ms).sum()), int((out_ms <= now_ms).sum())),
    )
