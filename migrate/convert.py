# SPDX-License-Identifier: Apache-2.0
"""Converts a stopped store, or several, into a fresh target: plan, write, seal.

``convert`` and ``convert_merged`` are what the command line calls. A run may be stopped anywhere;
the same command continues it. The target becomes a store with the last rename. The report
``delaywheel/conversion.json``, which marks it as complete, is written after that.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy as np

from message_store.base.clock import SystemClock, stopwatch_s
from message_store.base.errors import (
    BadRecordsError,
    DelayStoreError,
    OptionsError,
    PlanError,
    TargetError,
)
from message_store.base.parallel import on_one_core
from message_store.files.array_room import arrays_on_disk
from message_store.files.small_files import replace_file
from message_store.files.store_root import StoreRoot
from migrate.plan.plan import Corrections, Plan, implausible_entries, make_plan
from migrate.plan.stored_plan import (
    is_of,
    load_plan,
    mismatch,
    read_plan_facts,
    store_plan,
    stored_corrections,
)
from migrate.plan.target_rows import Runs, TargetRows
from migrate.progress import Progress, no_progress
from migrate.report.finished_target import finished_before
from migrate.report.marker import CONVERSION_NAME, marker_of, write_bad_records
from migrate.report.report import ConversionPlan, ConversionReport, DueTimes, Seconds
from migrate.settings import ConvertOptions
from migrate.source.merge import require_mergeable
from migrate.source.sources import SourceSet
from migrate.spark.tasks import write_index, write_logs
from migrate.write.log_file import SourceShare
from migrate.write.owner import tidy_up
from migrate.write.publishing import (
    is_published,
    is_publishing,
    publish,
    refuse_links,
    remove_unfinished,
    require_own_publishing,
    require_unused,
)
from migrate.write.reserve import finish_logs, place_logs
from migrate.write.room import (
    create_directories,
    create_staging,
    disk_warnings,
    free_bytes,
    planned_bytes,
)
from migrate.write.seal import seal, topic_demands
from migrate.write.staging import (
    Staging,
    TargetBusyError,
    make_directory,
    no_broker,
    remove_empty,
    sole_writer,
    target_errors,
)
from migrate.write.target_config import CONF_NAME, broker_conf, broker_settings, config_clashes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCK_POLL_MS = 200.0


class FinishedTargetError(TargetError):
    """The target is a finished conversion already."""


def convert(
    options: ConvertOptions,
    *,
    spark: "SparkSession | None" = None,
    spark_start_s: float = 0.0,
    progress: Progress = no_progress,
) -> ConversionReport:
    """Convert ``options.source`` into ``options.target``; without ``spark`` in this process.

    The source is only read. The target directory is missing or empty, or holds the unfinished
    conversion of the same source with the same options, which is then continued. Raises SourceError
    (unreadable, locked, not stopped cleanly), PlanError (a target begun from something else),
    BadRecordsError under ``on_bad_record="fail"``, and TargetError; see docs/MIGRATING.md.
    """
    return _Conversion([options], spark, progress).run(spark_start_s)


def convert_patiently(
    options: ConvertOptions,
    *,
    patience_s: float,
    spark: "SparkSession | None" = None,
    progress: Progress = no_progress,
) -> ConversionReport:
    """``convert``, beside other attempts at the same: waits for a target that one of them holds,
    and takes the report of one that has finished. Raises what ``convert`` raises.
    """
    started_s = stopwatch_s()
    while True:
        try:
            return convert(options, spark=spark, progress=progress)
        except TargetBusyError:
            if stopwatch_s() - started_s >= patience_s:
                raise
        except FinishedTargetError:
            report = finished_before(options)
            if report is None:
                raise
            return report
        SystemClock().sleep_ms(_LOCK_POLL_MS)


def convert_on_one_core(options: ConvertOptions, *, patience_s: float) -> ConversionReport:
    """``convert_patiently`` as one of many tasks, which have the other cores."""
    with on_one_core():
        return convert_patiently(options, patience_s=patience_s)


def convert_merged(
    members: Sequence[ConvertOptions],
    *,
    spark: "SparkSession | None" = None,
    spark_start_s: float = 0.0,
    progress: Progress = no_progress,
) -> ConversionReport:
    """Convert all these sources, or one, into one target, which each of them names.

    As ``convert``; what is said of one source is in the report's ``sources``. Raises OptionsError
    besides for sources that cannot be in one target: see ``require_mergeable``.
    """
    if len(members) > 1:
        require_mergeable(members)
    return _Conversion(members, spark, progress).run(spark_start_s)


def check_request(*members: ConvertOptions) -> None:
    """Raise what a conversion would for what a glance can tell, before Spark; leaves nothing."""
    if len(members) > 1:
        require_mergeable(members)
    conversion = _Conversion(members, None, no_progress)
    conversion.check_now()
    conversion.check_places()
    with conversion.held():
        conversion.check_target()
        conversion.sources.check()


def plan_conversion(*members: ConvertOptions, progress: Progress = no_progress) -> ConversionPlan:
    """What a conversion of these sources would do; leaves nothing. Every record is read once, to
    count topics and find bad records. Raises what ``convert`` raises before it writes.
    """
    if len(members) > 1:
        require_mergeable(members)
    return _Conversion(members, None, progress).preview()


class _Conversion:
    """One run, stage by stage. ``runs`` are the rows of each source in the target."""

    plan: Plan
    corrections: Corrections
    shares: list[SourceShare]
    rows: TargetRows
    runs: Sequence[Runs]

    def __init__(
        self, members: Sequence[ConvertOptions], spark: "SparkSession | None", progress: Progress
    ) -> None:
        self.options = members[0]  # all sources share what is not of a source
        self.spark = spark
        self.progress = progress
        self.sources = SourceSet(members)
        self.target = StoreRoot(self.options.target)
        self.staging = Staging(self.target)
        self.clock_ms = SystemClock().now_ms()
        self.lock_warning: str | None = None

    def run(self, spark_start_s: float) -> ConversionReport:
        started = stopwatch_s()
        self.check_now()
        self.check_places()
        with self.held():
            self.check_target()
            self.sources.check()
            # The target's disk has room, and it is this run's. It takes no more time than memory.
            with arrays_on_disk(self.target.path):
                report = self._convert(started, spark_start_s)
            self._finish(report)
        return report

    def _convert(self, started: float, spark_start_s: float) -> ConversionReport:
        """The stages, and what they found."""
        self.progress("plan", 0, 1)
        self.sources.read()
        self._plan()
        planned = stopwatch_s()
        self._write()
        written = stopwatch_s()
        self._seal()
        sealed = stopwatch_s()
        seconds = Seconds(
            spark_start=spark_start_s,
            plan=planned - started,
            write=written - planned,
            seal=sealed - written,
            total=sealed - started + spark_start_s,
        )
        return self._report(seconds)

    def preview(self) -> ConversionPlan:
        """The first stage, and what would follow from it."""
        self.check_now()
        self.check_places()
        with self._held_if_there():
            self.sources.check()
            self.progress("plan", 0, 2)
            self.sources.read()
            is_begun = self._fix_plan()
            self.progress("plan", 1, 2)
            most_bytes = self.options.settings.record_max_bytes
            rows = np.flatnonzero(self.plan.most_bytes > most_bytes).tolist()
            too_large = [int(self.plan.chosen[row]) for row in rows]
            bad = {
                **dict.fromkeys(too_large, f"more than the {most_bytes:,} bytes that are read"),
                **self.corrections.bad,
            }
            topics, nameless = self.sources.topics([*bad])
            bad |= dict.fromkeys(nameless.tolist(), "the conversion would say why")
            self._make_plan(attrs.evolve(self.corrections, bad=bad))
            self.shares = _unwritten(self.plan, topics)
            self.rows = TargetRows.expected(self.plan)
            self.runs = [[slice(*bounds)] for bounds in pairwise(self.plan.cut.sources)]
            report = self._report(Seconds(0.0, 0.0, 0.0, 0.0, 0.0))
            place = self._place()
            needed, free = planned_bytes(self.plan), free_bytes(place)
            self.progress("plan", 2, 2)
        refusals: list[DelayStoreError] = []
        if report.bad_records and self.options.on_bad_record == "fail":
            refusals.append(BadRecordsError(report.bad_records))
        if not os.access(place, os.W_OK | os.X_OK):
            refusals.append(TargetError(f"{place}: cannot be written: Permission denied"))
        elif needed > free and not is_begun:
            refusals.append(TargetError(f"{place}: {needed:,} bytes are needed, {free:,} are free"))
        return ConversionPlan(report, needed, free, is_begun, tuple(refusals))

    def _place(self) -> Path:
        """The target's directory or, where it is missing, the one that it would be made in."""
        path = self.target.path.absolute()
        return next(each for each in (path, *path.parents) if each.exists())

    @contextmanager
    def _held_if_there(self) -> Iterator[None]:
        """As ``held``, the target checked; one that is missing stays so."""
        with ExitStack() as stack:
            if self.target.path.exists():
                stack.enter_context(self.held())
                self.check_target(tidies=False)
            else:
                self.sources.hold(stack)
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other conversions out of the target and brokers off the sources. A target directory
        that is made here and stays empty is removed again.
        """
        with ExitStack() as stack:
            made = make_directory(self.target.path)
            self.lock_warning = stack.enter_context(sole_writer(self.target))
            stack.enter_context(no_broker(self.target))
            stack.callback(remove_empty, made)
            self.sources.hold(stack)
            yield

    def check_now(self) -> None:
        """Refuse a reference time in the future: a broker would skip the slots up to it."""
        if self.options.now_ms is not None and self.options.now_ms > self.clock_ms:
            raise OptionsError(
                "--now is later than this machine's clock: a broker would skip slots"
            )

    def check_places(self) -> None:
        """Refuse a source that is no store or overlaps the target, and an impossible owner."""
        self.options.access.require_possible()
        self.sources.check_places(self.target.path)

    def check_target(self, *, tidies: bool = True) -> None:
        """Refuse a target that holds anything but the unfinished beginning of this conversion;
        where it ``tidies``, what a run left that was stopped at its very end is taken away.
        """
        refuse_links(self.staging)
        with target_errors(self.target.path):
            is_finished = (self.target.own / CONVERSION_NAME).exists()
        if is_finished:
            if tidies:
                tidy_up(self.staging, self.options.access)
            raise FinishedTargetError(
                f"{self.target.path}: already holds a finished conversion;"
                " verify that one, or choose another directory"
            )
        require_unused(self.staging)

    def _plan(self) -> None:
        is_begun = self._fix_plan()
        require_own_publishing(self.staging, self.plan.identity)
        self._begin(is_begun=is_begun)
        self.progress("plan", 1, 1)

    def _fix_plan(self) -> bool:
        """Make the plan; whether a run that was stopped has stored it."""
        facts = read_plan_facts(self.staging)
        now_ms = self.options.now_ms
        if now_ms is None:
            now_ms = facts["now_ms"] if facts else self.clock_ms
        self.now_ms: int = now_ms
        self.sources.fix_request(now_ms)
        sources, precision_ms = self.sources, self.options.settings.precision_ms
        corrections = implausible_entries(sources.entries, sources.chosen, precision_ms)
        corrections = Corrections({**sources.lost_entries(), **corrections.bad})
        if facts:
            corrections = stored_corrections(facts, corrections)
        self._make_plan(corrections)
        if facts and not is_of(facts, self.plan):
            raise PlanError(mismatch(self.staging, self.sources.request, facts))
        return facts is not None

    def _make_plan(self, corrections: Corrections) -> None:
        self.corrections = corrections
        self.plan = make_plan(
            self.sources.entries,
            self.sources.chosen,
            now_ms=self.now_ms,
            settings=self.options.settings,
            request=self.sources.request,
            corrections=corrections,
            source_starts=self.sources.entries.starts[:-1],
        )

    def _begin(self, *, is_begun: bool) -> None:
        self.staging = Staging(self.target, self.plan.identity)
        if not is_begun:
            create_staging(self.plan, self.staging)
        store_plan(
            self.plan,
            self.staging,
            sources=self.sources.paths,
            request=self.sources.request,
            corrections=self.corrections,
        )

    def _write(self) -> None:
        """Write all files; where more records are bad than the reserve holds, plan without them."""
        while True:
            stored = load_plan(self.target.path, self.plan.identity)
            notes = write_logs(stored, self.spark, self.progress)
            written = finish_logs(self.plan, stored, notes)
            learned = self.corrections.learn(self.plan.chosen, written.bad)
            if learned.bad and self.options.on_bad_record == "fail":
                remove_unfinished(self.staging)
                raise BadRecordsError(self.sources.bad_records(learned))
            if written.rows is not None:
                break
            if learned == self.corrections:
                raise PlanError(f"{self.target.path}: what was written is not what was planned")
            self._make_plan(learned)
            self._begin(is_begun=False)
        self.corrections, self.shares, self.rows = learned, written.shares, written.rows
        self.runs = written.runs
        if not is_publishing(self.staging):
            create_directories(self.rows, self.staging)
            place_logs(stored, notes)
            write_index(self.rows, self.staging, self.spark)

    def _seal(self) -> None:
        require_unused(self.staging)
        if is_published(self.staging):  # stopped between the last rename and the report
            publish(self.staging)
            return
        self.progress("seal", 0, 1)
        largest = max((share.largest_record_bytes for share in self.shares), default=0)
        conf = broker_conf(broker_settings(self.plan.settings, largest), self.plan.engine)
        replace_file(self.target.own / CONF_NAME, conf)
        self.sources.quarantine(self.target, self.corrections)
        seal(self.rows, self.staging, self.sources.roots, topic_demands(self.shares))
        self.progress("seal", 1, 1)

    def _report(self, seconds: Seconds) -> ConversionReport:
        clashes = config_clashes(self.sources.roots, topic_demands(self.shares))
        facts = self.rows, self.runs, self.corrections, self.shares, seconds
        report = self.sources.report(*facts)
        if len(self.sources.roots) > 1:  # the report of one source has them
            report = attrs.evolve(report, due=DueTimes.of(self.rows.due_ms))
        unlocked = () if self.lock_warning is None else (self.lock_warning,)
        warnings = (*report.warnings, *unlocked, *clashes, *disk_warnings(self._place()))
        return attrs.evolve(report, warnings=warnings)

    def _finish(self, report: ConversionReport) -> None:
        """Write the marker, then give everything away: nothing is written where the new owner may
        write. A run that stops in between is continued while the staging directory is there.
        """
        write_bad_records(self.target, report)
        marker = json.dumps(marker_of(report), indent=1)
        replace_file(self.target.own / CONVERSION_NAME, marker.encode())
        tidy_up(self.staging, self.options.access)


def _unwritten(plan: Plan, topics: Sequence[dict[str, int]]) -> list[SourceShare]:
    """Shares of what nobody wrote, with the messages of each source by topic."""
    shares = []
    for source, counts in enumerate(topics):
        first, end = plan.cut.sources[source : source + 2]
        shares.append(
            SourceShare(
                source=source,
                log_bytes=int(plan.most_bytes[first:end].sum()),
                bytes_read=0,
                largest_record_bytes=0,
                topics=[(name.encode().decode("latin-1"), n, 0) for name, n in counts.items()],
            )
        )
    return shares
