# SPDX-License-Identifier: Apache-2.0
"""The sources of a conversion: whether they may be converted, and what is pending in them.

In the target the messages of several sources lie one source behind the other.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.backlog import LevelBacklog, read_backlog
from message_store.base.clock import SystemClock
from message_store.base.errors import (
    DelayStoreError,
    FormatError,
    MigrationError,
    OptionsError,
    RefusedStoresError,
    SourceError,
)
from message_store.base.printable import counted
from message_store.files.array_room import joined_columns, new_array, row_blocks, rows_where
from message_store.files.log_row import open_log
from message_store.files.small_files import is_present
from message_store.files.store_root import StoreRoot, require_apart
from message_store.reading.record_reader import GONE, NO_RECORD, entry_kinds
from message_store.writing.losses import require_whole_log
from migrate.look.choices import require_queues
from migrate.plan.plan import Corrections
from migrate.plan.stored_plan import request_of
from migrate.plan.target_rows import Runs, TargetRows
from migrate.quarantine.keep import keep_bad_records, list_bad_records
from migrate.report.accounting import bad_records, conversion_report
from migrate.report.finished_target import refuse_unfinished
from migrate.report.report import BadRecord, ConversionReport, Seconds
from migrate.settings import ConvertOptions
from migrate.source.condition import require_stopped, retired_warnings, source_warnings
from migrate.source.merge import merged_report, merged_request, named_records
from migrate.source.topic_choice import choose_topics, count_topics
from migrate.write.log_file import SourceShare
from migrate.write.rewrite import RewriteLimits
from time_index.reading import pending_in_time_index
from timer_wheel.format.checkpoint import checkpoint_damage, read_timer_checkpoint
from timer_wheel.reading.wheel_reader import read_wheel_store

_COMPARED = ("size_bytes", "level", "due_ms")
_STRETCH_ROWS = 1 << 17
"""So many rows of all sources together are compared at a time, or twice as many."""


class WheelNotEmptyError(MigrationError):
    """The source's own wheel has pending messages, which a conversion of levels leaves behind."""


def waiting_in_wheel(source: StoreRoot) -> int:
    """How many messages are pending on the source's own wheel, or in its RocksDB timeline.

    Counts what the wheel had not delivered when its hand last moved. The store may be older than a
    wheel is long, and a broker that starts today would no longer reach all of it. A queue may be
    lost where the wheel is not. A unit that no link leads to counts. Raises SourceError where the
    checkpoint is damaged, the timer log has lost its end, or entries of the queue lead to no
    record: then it may not be so that nothing waits.
    """
    if not any(
        is_present(path) for path in (source.timer_queue(), source.timer_wheel, source.timer_log)
    ):
        return 0
    if (damage := checkpoint_damage(source, SystemClock().now_ms())) is not None:
        raise SourceError(damage)
    wheel = read_wheel_store(
        source,
        now_ms=read_timer_checkpoint(source).last_read_time_ms,
        whole_log=True,
        snapshots_on=None,
        topic_in_delete_key=None,
        after_crash=not source.was_stopped_cleanly,
    )
    if wheel.lost_log_bytes or wheel.cut_slot_count or wheel.astray_count:
        wheel.require_sound(source.path)
    return len(wheel.pending) + wheel.unlinked_count


def left_behind(source: StoreRoot) -> Iterator[tuple[str, str]]:
    """The engines of a source beside its levels in which messages wait, with how many."""
    for place, waiting in (
        ("timer wheel or timeline", waiting_in_wheel),
        ("time index", lambda store: len(pending_in_time_index(store))),
    ):
        if count := waiting(source):
            yield place, counted(count, "message waits", "messages wait")


def require_nothing_left_behind(source: StoreRoot) -> None:
    """Raise WheelNotEmptyError if messages are pending in another engine of the source."""
    for place, messages in left_behind(source):
        raise WheelNotEmptyError(
            f"{source.path}: {messages} in its {place} and would be left behind;"
            " --levels-only converts the levels alone"
        )


class ConversionSource:
    """One source, stage by stage; ``read`` sets ``backlog`` and ``chosen``, a mask of it."""

    backlog: LevelBacklog
    chosen: NDArray[np.bool_]

    def __init__(self, options: ConvertOptions) -> None:
        self.options = options
        self.root = StoreRoot(options.source)
        self.warnings: list[str] = []
        self.left_out_topics: dict[str, int] = {}

    def check_places(self, target: Path) -> None:
        """Refuse a source that is no store, and one that lies in the target or around it."""
        self.root.require_readable()
        self.root.require_log()
        require_whole_log(self.root)
        require_apart(self.root, target)

    def check(self) -> None:
        """Refuse a store that was not stopped, whose own wheel is not empty (unless the options
        allow it), or of which an in-place change or a retirement is unfinished.
        """
        refuse_unfinished(self.root)
        require_stopped(self.root, after_crash=self.options.after_crash)
        self.warnings = [
            *retired_warnings(self.root, self.options.only_levels),
            *source_warnings(self.root, whole_log=self.options.whole_log),
        ]
        if not self.options.levels_only:
            require_nothing_left_behind(self.root)
        for place, messages in left_behind(self.root) if self.options.levels_only else ():
            self.warnings.append(f"left behind: {messages} in the source's own {place}")

    def read(self) -> None:
        """Find what is pending, and choose from it; the rest is ``skipped``."""
        options = self.options
        self.backlog = read_backlog(
            self.root.path,
            offsets_choice=options.offsets,
            level_table=options.level_table,
            after_crash=options.after_crash,
            whole_log=options.whole_log,
        )
        self.chosen = chosen_by_level(options, self.backlog)
        if options.only_topics:
            wanted, self.left_out_topics = choose_topics(
                self.root, self.backlog, options.only_topics
            )
            self.chosen &= wanted

    def lost_rows(self) -> NDArray[np.int64]:
        """The chosen entries that lead out of the files of the log."""
        backlog, chosen = self.backlog, self.chosen
        with open_log(self.root) as log:
            kinds = entry_kinds(log, backlog.commit_log_offset, backlog.size_bytes)
        return rows_where(len(kinds), lambda rows: chosen[rows] & (kinds[rows] == GONE))

    def request(self, now_ms: int) -> dict[str, Any]:
        """What a continued run of this source must have in common with this one."""
        return request_of(self.options, now_ms, self.backlog.level_table)

    def with_warnings(self, report: ConversionReport) -> ConversionReport:
        """The source's report with its warnings."""
        return attrs.evolve(
            report,
            left_out_topics=self.left_out_topics,
            warnings=(*self.warnings, *report.warnings),
        )


class SameMessageError(OptionsError):
    """One message is pending in two sources: one target would deliver it from both."""


def refuse_same_messages(sources: Sequence[ConversionSource]) -> None:
    """Raise SameMessageError if two sources have one pending record, byte for byte at one offset:
    copies of one broker's store that share no file of the log.
    """
    for group in _alike([source.backlog for source in sources]):
        held: dict[bytes | int, tuple[int, int]] = {}
        for number, row in group:
            first, first_row = held.setdefault(_record(sources[number], row), (number, row))
            if first == number:
                continue
            one, two = sources[first], sources[number]
            level = one.backlog.level[first_row]
            queue_offset = one.backlog.queue_offset[first_row]
            raise SameMessageError(
                f"{one.root.path} and {two.root.path} hold the same message: level {level},"
                f" queue offset {queue_offset}; it would be delivered from both. Convert the"
                " master's store only"
            )


def _alike(backlogs: Sequence[LevelBacklog]) -> Iterator[list[tuple[int, int]]]:
    """Rows of several backlogs, each with the number of its own, that agree in offset, size, level
    and due time: few, if brokers differ.

    All logs are read side by side, in stretches of bounded length: two at a time took time
    with the square of their number.
    """
    count = len(backlogs)
    if count < 2:
        return
    offsets = [backlog.commit_log_offset for backlog in backlogs]
    step = max(1, _STRETCH_ROWS // count)
    marks = np.sort(np.concatenate([column[::step] for column in offsets]))
    starts = np.unique(marks[::count])
    cuts = [[*np.searchsorted(column, starts).tolist(), len(column)] for column in offsets]
    for stretch in range(len(starts)):
        rows = [np.arange(*cut[stretch : stretch + 2]) for cut in cuts]
        numbers = np.repeat(np.arange(count), list(map(len, rows)))
        yield from _alike_among(backlogs, numbers, np.concatenate(rows))


def _alike_among(
    backlogs: Sequence[LevelBacklog], numbers: NDArray[np.int64], rows: NDArray[np.int64]
) -> Iterator[list[tuple[int, int]]]:
    """The same among some rows, source by source; ``numbers`` says of which backlog each is."""
    bounds = np.searchsorted(numbers, np.arange(len(backlogs) + 1)).tolist()

    def of_all(name: str) -> NDArray[Any]:
        parts = zip(backlogs, pairwise(bounds), strict=True)
        return np.concatenate([getattr(each, name)[rows[a:b]] for each, (a, b) in parts])

    offsets = of_all("commit_log_offset")
    order = np.argsort(offsets, kind="stable")
    if not (np.diff(offsets[order]) == 0).any():
        return
    columns = [offsets, *map(of_all, _COMPARED)]
    order = np.lexsort(columns[::-1])
    differs = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    edges = np.concatenate([[0], np.flatnonzero(differs) + 1, [len(order)]])
    firsts, lasts = edges[:-1], edges[1:] - 1
    is_shared = numbers[order[firsts]] != numbers[order[lasts]]
    for first, last in zip(firsts[is_shared].tolist(), lasts[is_shared].tolist(), strict=True):
        group = order[first : last + 1]
        yield list(zip(numbers[group].tolist(), rows[group].tolist(), strict=True))


def _record(source: ConversionSource, at: int) -> bytes | int:
    """The bytes of an entry; if it cannot be read, a number that no other source returns."""
    offset, size = source.backlog.commit_log_offset[at], source.backlog.size_bytes[at]
    try:
        with open_log(source.root) as log:
            return log.read_at(int(offset), int(size))
    except FormatError:
        return id(source)


def chosen_by_level(options: ConvertOptions, backlog: LevelBacklog) -> NDArray[np.bool_]:
    """Which pending messages are of a chosen level, as a mask. Raises OptionsError."""
    chosen = new_array(len(backlog), np.bool_)
    chosen[:] = True
    if not options.only_levels:
        return chosen
    known_levels = {counts.level for counts in backlog.counts}
    require_queues(StoreRoot(options.source), options.only_levels, known_levels)
    for rows in row_blocks(len(backlog)):
        chosen[rows] = np.isin(backlog.level[rows], np.array(options.only_levels))
    return chosen


@attrs.frozen(eq=False)
class Entries:
    """The pending messages of all sources, one source behind the other, a row each.

    ``starts`` has the first row of each source, and last the number of rows. A plan is made of it.
    """

    level: NDArray[Any]
    due_ms: NDArray[np.int64]
    commit_log_offset: NDArray[np.int64]
    size_bytes: NDArray[Any]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, backlogs: Sequence[LevelBacklog]) -> "Entries":
        """The rows of these backlogs; of a single one its own arrays, not copies."""
        ends = np.cumsum([len(backlog) for backlog in backlogs]).tolist()

        def joined(name: str) -> NDArray[Any]:
            return joined_columns([getattr(backlog, name) for backlog in backlogs])

        return cls(
            level=joined("level"),
            due_ms=joined("due_ms"),
            commit_log_offset=joined("commit_log_offset"),
            size_bytes=joined("size_bytes"),
            starts=(0, *ends),
        )

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First and end row of each source."""
        return list(pairwise(self.starts))


def own_corrections(corrections: Corrections, span: tuple[int, int]) -> Corrections:
    """The corrections of one source's rows, counted from its first."""
    first, end = span
    return Corrections(
        {at - first: why for at, why in corrections.bad.items() if first <= at < end}
    )


def _refusals(
    sources: Sequence[ConversionSource], step: Callable[[ConversionSource], None]
) -> dict[ConversionSource, DelayStoreError]:
    """Take a step with each source; the errors of those that are refused."""
    refused: dict[ConversionSource, DelayStoreError] = {}
    for source in sources:
        try:
            step(source)
        except DelayStoreError as error:
            refused[source] = error
    return refused


def _raise_all(errors: Sequence[DelayStoreError]) -> None:
    """Raise a single error as it is, several in one; nothing for none."""
    if len(errors) > 1:
        raise RefusedStoresError(errors)
    for error in errors:
        raise error


class SourceSet:
    """All sources, stage by stage, as ``ConversionSource`` is one.

    ``entries`` and ``chosen`` are there after ``read``, ``request`` after ``fix_request``.
    """

    entries: Entries
    chosen: NDArray[np.bool_]
    request: dict[str, Any]

    def __init__(self, members: Sequence[ConvertOptions]) -> None:
        self._each = [ConversionSource(options) for options in members]
        self.roots = [source.root for source in self._each]

    @property
    def paths(self) -> list[Path]:
        """Where they lie."""
        return [root.path for root in self.roots]

    def check_places(self, target: Path) -> None:
        """Refuse a source that is no store, and one that lies in the target or around it. Where
        there is one, the others are looked at closer, so that all that are refused are named.
        """
        refused = _refusals(self._each, lambda source: source.check_places(target))
        if refused:
            others = [source for source in self._each if source not in refused]
            refused |= _refusals(others, ConversionSource.check)
        _raise_all([refused[source] for source in self._each if source in refused])

    def check(self) -> None:
        """Refuse sources that were not stopped, or whose own wheels are not empty."""
        _raise_all([*_refusals(self._each, ConversionSource.check).values()])

    def hold(self, stack: ExitStack) -> None:
        """No broker starts on one of them until the stack is closed."""
        refused = _refusals(
            self._each, lambda source: stack.enter_context(source.root.shared_lock())
        )
        _raise_all([*refused.values()])

    def read(self) -> None:
        """Find what is pending in all of them. Raises SameMessageError as well."""
        _raise_all([*_refusals(self._each, ConversionSource.read).values()])
        self.entries = Entries.of([source.backlog for source in self._each])
        self.chosen = joined_columns([source.chosen for source in self._each])
        refuse_same_messages(self._each)

    def fix_request(self, now_ms: int) -> None:
        """Fix what a continued run must have in common with this one."""
        self._requests = [source.request(now_ms) for source in self._each]
        self.request = merged_request(self._requests)

    def lost_entries(self) -> dict[int, str]:
        """The entries of all that lead out of the files of their log, by row, and why they are bad:
        a missing log file leaves millions.
        """
        return {
            first + row: NO_RECORD
            for source, (first, _) in zip(self._each, self.entries.spans, strict=True)
            for row in source.lost_rows().tolist()
        }

    def bad_records(self, corrections: Corrections) -> list[BadRecord]:
        """All of them; where there are several sources, each with its own."""
        return [
            record
            for source, span in zip(self._each, self.entries.spans, strict=True)
            for record in named_records(
                bad_records(source.backlog, own_corrections(corrections, span)),
                source.root.path,
                len(self._each),
            )
        ]

    def topics(self, without: Sequence[int]) -> tuple[list[dict[str, int]], NDArray[np.int64]]:
        """What is chosen of each source by real topic, but for some rows of all; and the rows whose
        records cannot be converted. Reads every record.
        """
        counts, unknown = [], []
        settings = self._each[0].options.settings
        limits = RewriteLimits(settings.record_max_bytes, settings.commit_log_file_bytes)
        chosen = self.chosen.copy()
        chosen[np.array(without, np.int64)] = False
        for source, (first, end) in zip(self._each, self.entries.spans, strict=True):
            named, rows = count_topics(source.root, source.backlog, chosen[first:end], limits)
            counts.append(named)
            unknown.append(first + rows)
        return counts, np.concatenate(unknown)

    def quarantine(self, target: StoreRoot, corrections: Corrections) -> None:
        """Quarantine the bad records beside the target. Raises TargetError."""
        lines: list[str] = []
        spans = enumerate(zip(self._each, self.entries.spans, strict=True), 1)
        for number, (source, span) in spans:
            bad = own_corrections(corrections, span).bad
            prefix = f"source-{number:02d}-" if len(self._each) > 1 else ""
            lines += keep_bad_records(source.root, target, source.backlog, bad, prefix=prefix)
        list_bad_records(target, lines)

    def report(
        self,
        rows: TargetRows,
        runs: Sequence[Runs],
        corrections: Corrections,
        shares: Sequence[SourceShare],
        seconds: Seconds,
    ) -> ConversionReport:
        """The report of the one source, or the sum of all with each in it. ``runs`` are the rows of
        each source in the target.
        """
        each = []
        for number, (source, span) in enumerate(zip(self._each, self.entries.spans, strict=True)):
            report = conversion_report(
                source.options,
                source.backlog,
                source.chosen,
                rows,
                own_corrections(corrections, span),
                [share for share in shares if share.source == number],
                seconds,
                self._requests[number],
                runs[number],
            )
            each.append(source.with_warnings(report))
        return each[0] if len(each) == 1 else merged_report(each, self.request)
