# SPDX-License-Identifier: Apache-2.0
"""Converts a store in place: timer records are appended to its log, and its level offsets move.

The store's own broker puts the records on its wheel. The order makes a stop harmless:

- copies of the small files, and a note of the change;
- all records, or none; all entries of the timer queue, or none; both are synced;
- the delivery offsets, of which the file that a broker reads comes last.

Before the offsets move, a message is pending in both places; a broker started then would deliver a
duplicate. At no moment is it pending in neither.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.clock import SystemClock, stopwatch_s
from message_store.base.errors import BadRecordsError, DelayStoreError, OptionsError, PlanError
from message_store.files.log_row import open_log
from message_store.files.segments import list_segments
from message_store.files.small_files import read_small_file, replace_file
from message_store.files.store_lock import StoreLock
from message_store.files.store_root import StoreRoot
from message_store.format.dialect import Dialect
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC
from message_store.intake.rescheduling import refuse_unfinished
from message_store.reading.unfinished_change import (
    DONE,
    UNDOING,
    describe_unfinished_change,
    telling_of_half_a_change,
)
from message_store.writing.store import LiveStore
from migrate.changes.note import (
    IN_PLACE,
    Change,
    all_changes_of,
    begin_change,
    moved_offsets,
    put_offsets,
    unfinished_change,
)
from migrate.changes.undo import (
    clear_own_abort,
    drop,
    finish,
    opened_store,
    refuse_moved,
    undo,
)
from migrate.in_place.checks import (
    Conf,
    file_sizes,
    read_ends,
    refuse_damage,
    refuse_settings,
    refuse_store,
)
from migrate.in_place.plan import (
    CONTINUED,
    NOTHING,
    PLANNED,
    UNFINISHED,
    InPlacePlan,
    InPlaceReport,
    TimerRecords,
    plan_in_place,
)
from migrate.progress import Progress, no_progress
from migrate.quarantine.keep import keep_bad_records, list_bad_records
from migrate.report.report import BadRecord, Seconds
from migrate.settings import WHEEL, ConvertOptions, TargetSettings
from migrate.write.owner import give_away, require_owner

_NO_SECONDS = Seconds(spark_start=0.0, plan=0.0, write=0.0, seal=0.0, total=0.0)
_ANY_FILE = "FILE"


def convert_in_place(
    options: ConvertOptions,
    *,
    confs: Iterable[Conf] = (),
    execute: bool = False,
    progress: Progress = no_progress,
) -> InPlaceReport:
    """Plan, and with ``execute`` do, the conversion of ``options.source`` within itself.

    ``confs`` are the configurations of its brokers, old and new, as far as they are known. A run
    that was stopped is continued by the next with the same options. Raises SourceError for a store
    with which this would be unsafe (the sentence says why), OptionsError, BadRecordsError,
    PlanError where an unfinished run stands in the way, and TargetError; see docs/MIGRATING.md.
    """
    run = _InPlace(options, progress)
    run.check(confs)
    if not execute:
        with run.root.shared_lock():
            return run.plan_only()
    require_owner(run.root)
    lock = run.root.take_lock()
    try:
        with telling_of_half_a_change(run.root):
            return run.execute(lock)
    finally:
        lock.release()


class _InPlace:
    """One run."""

    def __init__(self, options: ConvertOptions, progress: Progress) -> None:
        self.options = attrs.evolve(options, target=options.source)
        self.root = StoreRoot(options.source)
        self.progress = progress
        self.clock_ms = SystemClock().now_ms()
        self.started_s = stopwatch_s()

    def check(self, confs: Iterable[Conf]) -> None:
        """Refuse what a glance can tell."""
        options = self.options
        if options.only_topics:
            raise OptionsError(
                "--only-topic cannot be done in place: a level has one delivery offset, so other"
                " messages would be duplicates or lost; convert into a fresh store"
            )
        if options.whole_log:
            raise OptionsError(
                "--whole-log cannot be done in place: messages that no queue knows have no offset"
                " to move past; convert into a fresh store"
            )
        if options.to != WHEEL:
            raise OptionsError(
                "--to says nothing in place, leave it out: a store stays its own broker's"
            )
        if options.levels_only:
            raise OptionsError(
                "--levels-only says nothing in place, leave it out: the store keeps its own wheel"
            )
        if options.now_ms is not None and options.now_ms > self.clock_ms:
            raise OptionsError(
                "--now is later than this machine's clock: a broker would skip slots"
            )
        refuse_store(self.root)
        for conf in confs:
            refuse_settings(conf, self.root)

    def plan_only(self) -> InPlaceReport:
        """What ``execute`` would do."""
        if change := unfinished_change(self.root):
            self._require_same(change)
            refuse_moved(self.root, change)
            return InPlaceReport.from_json(change.report, UNFINISHED)
        planned = self._plan()
        return planned.report(NOTHING if planned.is_empty else PLANNED, self._seconds(0.0))

    def execute(self, lock: StoreLock) -> InPlaceReport:
        """Do it, or continue it; releases ``lock``, which is the store's."""
        clear_own_abort(self.root, all_changes_of(self.root))
        if change := unfinished_change(self.root):
            self._require_same(change)
            refuse_moved(self.root, change)
            if report := self._continue(change, lock):
                return report
            lock = self.root.take_lock()
        try:
            is_after_crash = not self.root.was_stopped_cleanly and self.options.after_crash
            planned = self._plan_of_crashed() if is_after_crash else self._plan()
            if planned is None or (is_after_crash and not planned.is_empty):
                lock = self._recover(lock)
                planned = self._plan()
            if planned.is_empty:
                return planned.report(NOTHING, self._seconds(0.0))
            return self._convert(planned, lock)
        finally:
            lock.release()

    # --- beginning and going on -------------------------------------------------------------------

    def _plan(self) -> InPlacePlan:
        return plan_in_place(
            self.root, self.options, clock_ms=self.clock_ms, progress=self.progress
        )

    def _plan_of_crashed(self) -> InPlacePlan | None:
        """The plan before recovery, so that what is refused was not recovered; None where entries
        lead behind the log's end, which recovery takes away.
        """
        try:
            return self._plan()
        except BadRecordsError as error:
            end = read_ends(self.root).log_end
            bad = [each for each in error.records if isinstance(each, BadRecord)]
            if any(each.commit_log_offset < end for each in bad):
                raise
            return None

    def _seconds(self, planned_s: float) -> Seconds:
        total = stopwatch_s() - self.started_s
        plan = planned_s or total
        return Seconds(spark_start=0.0, plan=plan, write=total - plan, seal=0.0, total=total)

    def _asked(self) -> dict[str, Any]:
        options = self.options
        table = options.level_table
        return {
            "settings": attrs.asdict(options.settings),
            "only_levels": sorted(options.only_levels),
            "on_bad_record": options.on_bad_record,
            "offsets": options.offsets,
            "given_level_table": None if table is None else table.text(),
        }

    def _require_same(self, change: Change) -> None:
        """Raise PlanError unless an unfinished change is of this very kind."""
        if change.kind != IN_PLACE or change.state == UNDOING:
            raise PlanError(
                f"{self.root.path}: {change.kind} was stopped while it was {change.state}."
                f" {describe_unfinished_change(self.root)}"
            )
        asked = self._asked()
        if differs := [name for name, value in asked.items() if change.asked[name] != value]:
            raise PlanError(
                f"{self.root.path}: an unfinished run was asked for something else (differs in:"
                f" {', '.join(differs)}); repeat that command, or roll it back"
            )

    def _continue(self, change: Change, lock: StoreLock) -> InPlaceReport | None:
        """Finish a change whose records are all in the log; else undo it, and return None."""
        self.progress("continue", 0, 1)
        with opened_store(self.root, lock, change) as store:
            if store.log.end != change.after.log_end:
                undo(store, self.root, change)
                return None
            # Opening the store has appended the queue entries that were missing.
            self._move_offsets(store, change)
        self.progress("continue", 1, 1)
        return InPlaceReport.from_json(change.report, CONTINUED)

    def _recover(self, lock: StoreLock) -> StoreLock:
        """Truncate log and queues after a crash as a broker would; the store still counts as
        crashed. Returns the lock, taken anew.
        """
        self.progress("recover", 0, 1)
        refuse_damage(self.root)  # which recovery would make the log's end
        backlog = read_backlog(
            self.root.path,
            offsets_choice=self.options.offsets,
            level_table=self.options.level_table,
            after_crash=True,
        )
        abort, checkpoint = (read_small_file(p) for p in (self.root.abort, self.root.checkpoint))
        LiveStore(
            self.root,
            lock,
            clock=SystemClock(),
            dialect=_dialect(backlog.offsets.dialect),
            settings=file_sizes(self.root),
            levels=backlog.level_table,
            before_recovery=refuse_unfinished,
            is_for_a_change=True,
        ).abandon()
        for path, content in ((self.root.checkpoint, checkpoint), (self.root.abort, abort)):
            if content is not None:
                replace_file(path, content)
        give_away([self.root.abort, self.root.checkpoint], like=self.root.commit_log)
        self.progress("recover", 1, 1)
        return self.root.take_lock()

    # --- doing it ---------------------------------------------------------------------------------

    def _convert(self, planned: InPlacePlan, lock: StoreLock) -> InPlaceReport:
        planned_s = stopwatch_s() - self.started_s
        change = self._begin(planned)
        report = planned.report(DONE, _NO_SECONDS, change.directory)
        with self._opened(change, lock) as store:
            self._check_ends(store, planned, change)
            try:
                self._append(store, planned, change)
            except DelayStoreError:
                with suppress(DelayStoreError):  # what could not be undone is undone next time
                    undo(store, self.root, change)
                raise
            self._move_offsets(store, change)
        seconds = self._seconds(planned_s)
        return attrs.evolve(report, conversion=attrs.evolve(report.conversion, seconds=seconds))

    @contextmanager
    def _opened(self, change: Change, lock: StoreLock) -> Iterator[LiveStore]:
        """The store, open for appending; where it does not open, the change is dropped."""
        with ExitStack() as stack:
            try:
                store = stack.enter_context(opened_store(self.root, lock, change))
            except DelayStoreError:
                with suppress(DelayStoreError):
                    drop(self.root, change)
                raise
            yield store

    def _begin(self, planned: InPlacePlan) -> Change:
        backlog, queue = planned.backlog, self.root.timer_queue()

        def keep(directory: Path) -> None:
            quarantine, bad = StoreRoot(directory), planned.corrections.bad
            list_bad_records(quarantine, keep_bad_records(self.root, quarantine, backlog, bad))

        return begin_change(
            self.root,
            kind=IN_PLACE,
            now_ms=planned.plan.now_ms,
            before=planned.before,
            after=planned.after,
            offsets_after=moved_offsets(backlog.offsets, planned.offsets, planned.plan.now_ms),
            asked={
                **self._asked(),
                "flags": options_as_flags(self.options),
                "level_table": backlog.level_table.text(),
                "dialect": _dialect(backlog.offsets.dialect).value,
                "timer_queue_files": [segment.path.name for segment in list_segments(queue)],
                "level_queue_ends": planned.offsets,
            },
            report=planned.report(DONE, self._seconds(0.0)).as_json(),
            prepare=keep,
        )

    def _check_ends(self, store: LiveStore, planned: InPlacePlan, change: Change) -> None:
        """Raise PlanError where the open store ends elsewhere than the one that was read."""
        ends = store.log.end, store.queue(TIMER_TOPIC, 0).max_offset
        queue_ends = {
            level: store.queue(LEVEL_TOPIC, level - 1).max_offset for level in planned.offsets
        }
        if ends == (change.before.log_end, change.before.timer_queue_end) and (
            queue_ends == planned.offsets
        ):
            return
        drop(self.root, change)
        raise PlanError(
            f"{self.root.path}: messages are in its log that their queues did not know; start its"
            " broker once more, stop it, and begin anew"
        )

    def _append(self, store: LiveStore, planned: InPlacePlan, change: Change) -> None:
        """Put records and entries in their places, durably. Raises PlanError, TargetError."""
        queue = store.queue(TIMER_TOPIC, 0)
        plan, count = planned.plan, len(planned.plan)
        with open_log(self.root) as log:
            records = TimerRecords(
                log, plan, planned.outs_ms, planned.sizes, change.before.timer_queue_end
            )

            def fill(rows: slice, positions: Any, target: int) -> None:
                records.fill(rows, positions, target)
                self.progress("write", rows.stop, count)

            positions = store.log.append_rows(planned.sizes, fill)
        store.sync_log()
        queue.append(records.units(positions))
        store.sync_queues()
        if store.log.end != change.after.log_end:
            raise PlanError(f"{self.root.path}: the log ends at {store.log.end}, not as planned")
        directory, segments = self.root.timer_queue(), store.log.segments
        made = [
            *(segments.path_of(start) for start in segments.starts),
            *(segment.path for segment in list_segments(directory)),
            *(path for path in (directory, directory.parent, self.root.lock) if path.exists()),
        ]
        give_away(made, like=self.root.commit_log)

    def _move_offsets(self, store: LiveStore, change: Change) -> None:
        """The point of no return: afterwards the wheel alone delivers."""
        store.sync_log()
        store.sync_queues()
        self.progress("offsets", 0, 1)
        put_offsets(self.root, change)
        finish(self.root, change)
        self.progress("offsets", 1, 1)


def _dialect(handwriting: Any) -> Dialect:
    return Dialect.ROCKETMQ_5_5 if handwriting is None else Dialect(handwriting.value)


def options_as_flags(options: ConvertOptions) -> list[str]:
    """The flags beside STORE and ``--execute``, of what is not as it is unless told.

    A broker's configuration is known by what it says, and not by where it lies: its flag says FILE.
    """
    settings, table = options.settings, options.level_table
    flags = [f"--only-level={level}" for level in options.only_levels]
    if settings != TargetSettings(precision_ms=settings.precision_ms):
        flags.append(f"--target-conf={_ANY_FILE}")
    elif settings != TargetSettings():
        flags.append(f"--precision-ms={settings.precision_ms}")
    if table is not None:
        flags.append(f"--level-table={table.text()}")
    if options.on_bad_record != "fail":
        flags.append(f"--on-bad-record={options.on_bad_record}")
    if options.offsets != "auto":
        flags.append(f"--offsets={options.offsets}")
    if options.after_crash:
        flags.append("--after-crash")
    return flags
