# SPDX-License-Identifier: Apache-2.0
"""The conversion of a stopped store, or of several, into a fresh target: plan, write, seal, in an
order that any stop survives.

``convert`` and ``convert_merged`` are what the command line calls. Of several sources the messages
lie one source behind the other in the target; all else is as with one. Nothing is visible as a
finished store before the last rename, and the report ``delaywheel/conversion.json`` that marks a
target as complete comes after it.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import attrs
import numpy as np
from pyspark.sql import SparkSession

from message_store.base.clock import SystemClock, stopwatch_s
from message_store.base.errors import (
    BadRecordsError,
    OptionsError,
    PlanError,
    TargetError,
)
from message_store.files.small_files import replace_file
from message_store.files.store_root import StoreRoot
from migrate.plan.plan import Amendments, Plan, implausible_due, make_plan
from migrate.plan.stored_plan import known_amendments, mismatch, read_plan_facts
from migrate.progress import Progress, no_progress
from migrate.report.marker import write_bad_records
from migrate.report.report import ConversionReport, DueTimes, Seconds
from migrate.settings import ConvertOptions
from migrate.source.merge import marker_of, require_mergeable
from migrate.source.sources import SourceSet
from migrate.spark.tasks import write_all
from migrate.write.owner import tidy_up
from migrate.write.part import Receipt
from migrate.write.publishing import (
    is_published,
    publish,
    refuse_links,
    remove_unfinished,
    require_own_publishing,
    require_unused,
)
from migrate.write.room import disk_warnings, make_room, take_up
from migrate.write.seal import seal, topic_demands
from migrate.write.staging import (
    Staging,
    make_directory,
    no_broker,
    remove_empty,
    sole_writer,
    target_errors,
)
from migrate.write.target_config import broker_conf, broker_settings, config_clashes

MARKER_NAME = "conversion.json"
CONF_NAME = "broker.conf"


def convert(
    options: ConvertOptions,
    *,
    spark: SparkSession | None = None,
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


def convert_merged(
    members: Sequence[ConvertOptions],
    *,
    spark: SparkSession | None = None,
    spark_start_s: float = 0.0,
    progress: Progress = no_progress,
) -> ConversionReport:
    """Convert all these sources into one target, which each of them names.

    As ``convert``; what is said of one source is in the report's ``sources``. Raises OptionsError
    besides for sources that cannot be in one target: see ``require_mergeable``.
    """
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


class _Conversion:
    """One run, stage by stage."""

    def __init__(
        self, members: Sequence[ConvertOptions], spark: SparkSession | None, progress: Progress
    ) -> None:
        self.options = members[0]  # what is not of a source is the same for all
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
            self.progress("plan", 0, 1)
            self.sources.read()
            plan, amendments = self._plan()
            planned = stopwatch_s()
            plan, amendments, receipts = self._write(plan, amendments)
            written = stopwatch_s()
            self._seal(plan, amendments, receipts)
            sealed = stopwatch_s()
            seconds = Seconds(
                spark_start=spark_start_s,
                plan=planned - started,
                write=written - planned,
                seal=sealed - written,
                total=sealed - started + spark_start_s,
            )
            report = self._report(plan, amendments, receipts, seconds)
            self._finish(report)
        return report

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else writes to the target, which goes again if it is new and stays empty, and no
        broker starts on a source.
        """
        with ExitStack() as stack:
            made = make_directory(self.target.path)
            self.lock_warning = stack.enter_context(sole_writer(self.target))
            stack.enter_context(no_broker(self.target))
            stack.callback(remove_empty, made)
            self.sources.hold(stack)
            yield

    def check_now(self) -> None:
        """Refuse a now that has not come: a broker would skip the slots up to it."""
        if self.options.now_ms is not None and self.options.now_ms > self.clock_ms:
            raise OptionsError(
                "--now is later than this machine's clock: a broker would skip slots"
            )

    def check_places(self) -> None:
        """Refuse early: a source that is none, one of the two within the other, an owner to whom we
        cannot give files.
        """
        self.options.access.require_possible()
        self.sources.check_places(self.target.path)

    def check_target(self) -> None:
        """Refuse a target that holds anything but the unfinished beginning of this conversion."""
        refuse_links(self.staging)
        with target_errors(self.target.path):
            is_finished = (self.target.own / MARKER_NAME).exists()
        if is_finished:
            tidy_up(self.staging, self.options.access)  # a run that was stopped at its very end
            raise TargetError(
                f"{self.target.path}: already holds a finished conversion;"
                " verify that one, or choose another directory"
            )
        require_unused(self.staging)

    def _plan(self) -> tuple[Plan, Amendments]:
        facts = read_plan_facts(self.staging)
        now_ms = self.options.now_ms
        if now_ms is None:
            now_ms = facts["now_ms"] if facts else self.clock_ms
        self.now_ms: int = now_ms
        self.sources.ask(now_ms)
        entries, precision_ms = self.sources.entries, self.options.settings.precision_ms
        bad = np.flatnonzero(self.sources.chosen & implausible_due(entries, precision_ms))
        amendments = Amendments(
            bad={int(at): f"due time {entries.due_ms[at]} is no time" for at in bad}
        )
        if facts:
            amendments = known_amendments(facts, amendments)
        plan = self._make_plan(amendments)
        if facts and facts["identity"] != plan.identity:
            raise PlanError(mismatch(self.staging, self.sources.request, facts))
        require_own_publishing(self.staging, plan.identity)
        self._begin(plan, amendments, take_up if facts else make_room)
        self.progress("plan", 1, 1)
        return plan, amendments

    def _begin(self, plan: Plan, amendments: Amendments, begin: Callable[..., None]) -> None:
        self.staging = Staging(self.target, plan.identity)
        begin(plan, self.staging, self.sources.paths, self.sources.request, amendments)

    def _make_plan(self, amendments: Amendments) -> Plan:
        return make_plan(
            self.sources.entries,
            self.sources.chosen,
            now_ms=self.now_ms,
            settings=self.options.settings,
            part_bytes=self.options.part_bytes,
            request=self.sources.request,
            amendments=amendments,
            source_starts=self.sources.entries.starts[:-1],
        )

    def _write(self, plan: Plan, amendments: Amendments) -> tuple[Plan, Amendments, list[Receipt]]:
        """Write all parts; where records do not fit the plan, plan again with what was learned."""
        while True:
            write_all(self.staging, len(plan.log.parts), self.spark, self.progress)
            receipts = self._receipts(plan)
            bad = {row: why for receipt in receipts for row, why in receipt.bad.items()}
            sizes = {row: size for receipt in receipts for row, size in receipt.odd_sizes.items()}
            learned = amendments.learn(plan.chosen, bad, sizes)
            if learned.bad and self.options.on_bad_record == "fail":
                remove_unfinished(self.staging)
                raise BadRecordsError(self.sources.bad_records(learned))
            if learned == amendments:
                return plan, amendments, receipts
            amendments = learned
            plan = self._make_plan(amendments)
            self._begin(plan, amendments, make_room)

    def _receipts(self, plan: Plan) -> list[Receipt]:
        """One receipt a part, of this plan, counting every message once."""
        receipts = []
        for number in range(len(plan.log.parts)):
            receipt = Receipt.read(self.staging.receipt(number))
            if receipt is None or receipt.identity != plan.identity:
                raise PlanError(f"part {number} of {len(plan.log.parts)} was not written")
            receipts.append(receipt)
        counted = sum(receipt.counted for receipt in receipts)
        if counted != len(plan):
            raise PlanError(f"{counted} messages were written where the plan has {len(plan)}")
        return receipts

    def _seal(self, plan: Plan, amendments: Amendments, receipts: list[Receipt]) -> None:
        require_unused(self.staging)
        if is_published(self.staging):  # stopped between the last rename and the report
            publish(self.staging)
            return
        self.progress("seal", 0, 1)
        wanted = broker_settings(
            plan.settings, max((receipt.largest_record_bytes for receipt in receipts), default=0)
        )
        replace_file(self.target.own / CONF_NAME, broker_conf(wanted, plan.engine))
        self.sources.set_aside(self.target, amendments)
        seal(plan, self.staging, self.sources.roots, topic_demands(receipts))
        self.progress("seal", 1, 1)

    def _report(
        self, plan: Plan, amendments: Amendments, receipts: list[Receipt], seconds: Seconds
    ) -> ConversionReport:
        clashes = config_clashes(self.sources.roots, topic_demands(receipts))
        report = self.sources.report(plan, amendments, receipts, seconds)
        if len(self.sources.roots) > 1:  # of one alone they are in its own report
            report = attrs.evolve(report, due=DueTimes.of(plan.due_ms))
        unlocked = () if self.lock_warning is None else (self.lock_warning,)
        warnings = (*report.warnings, *unlocked, *clashes, *disk_warnings(self.target.path))
        return attrs.evolve(report, warnings=warnings)

    def _finish(self, report: ConversionReport) -> None:
        """Say that it is complete, then give everything away, in one walk: where the new owner may
        write, nothing is written any more. What stops here is gone on with as long as the staging
        place is there.
        """
        write_bad_records(self.target, report)
        replace_file(
            self.target.own / MARKER_NAME, json.dumps(marker_of(report), indent=1).encode()
        )
        tidy_up(self.staging, self.options.access)
