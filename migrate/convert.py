# SPDX-License-Identifier: Apache-2.0
"""The conversion of one stopped store into a fresh target: plan, write, seal, in an order that any
stop survives.

``convert`` is what the command line calls. Nothing is visible as a finished store before the last
rename, and the report ``delaywheel/conversion.json`` that marks a target as complete comes after
it.
"""

import json
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from legacy_levels.level_backlog import LevelBacklog, read_backlog
from message_store.clock import SystemClock, stopwatch_s
from message_store.errors import (
    BadRecordsError,
    OptionsError,
    PlanError,
    TargetError,
    UncleanStoreError,
)
from message_store.small_files import replace_file
from message_store.store_root import StoreRoot
from migrate.books import bad_records, conversion_report
from migrate.disk_room import disk_warnings
from migrate.make_room import make_room, take_up
from migrate.plan import Amendments, Plan, implausible_due, make_plan
from migrate.quarantine import keep_bad_records
from migrate.report import ConversionReport, Seconds
from migrate.run_request import known_amendments, mismatch, request_of
from migrate.seal import seal, topic_demands
from migrate.settings import ConvertOptions
from migrate.source_warnings import source_warnings
from migrate.source_wheel import require_empty_wheel, waiting_in_wheel
from migrate.staged_output import (
    Staging,
    clear_staging,
    is_published,
    names_in_the_way,
    refuse_links,
    remove_unfinished,
    sole_writer,
    target_errors,
)
from migrate.stored_plan import read_plan_facts
from migrate.target_config import broker_conf, broker_settings
from migrate.topic_choice import choose_topics
from migrate.write import Receipt
from migrate.write_job import Progress, write_all

MARKER_NAME = "conversion.json"
CONF_NAME = "broker.conf"


def _silent(_stage: str, _done: int, _total: int) -> None:
    """No progress wanted."""


def convert(
    options: ConvertOptions,
    *,
    spark: SparkSession | None = None,
    spark_start_s: float = 0.0,
    progress: Progress = _silent,
) -> ConversionReport:
    """Convert ``options.source`` into ``options.target``; without ``spark`` in this process.

    The source is only read. The target directory is missing or empty, or holds the unfinished
    conversion of the same source with the same options, which is then continued. Raises SourceError
    (unreadable, locked, not stopped cleanly), PlanError (a target begun from something else),
    BadRecordsError under ``on_bad_record="fail"``, and TargetError; see docs/MIGRATING.md.
    """
    return _Conversion(options, spark, progress).run(spark_start_s)


def check_request(options: ConvertOptions) -> None:
    """Raise what ``convert`` would raise for what a glance can tell, before Spark is started.

    Makes the target directory, as ``convert`` does, and leaves nothing else.
    """
    conversion = _Conversion(options, None, _silent)
    conversion.check_now()
    conversion.check_places()
    with sole_writer(conversion.target), conversion.source.shared_lock():
        conversion.check_target()
        conversion.check_source()


class _Conversion:
    """One run, stage by stage."""

    def __init__(
        self, options: ConvertOptions, spark: SparkSession | None, progress: Progress
    ) -> None:
        self.options = options
        self.spark = spark
        self.progress = progress
        self.source = StoreRoot(options.source)
        self.target = StoreRoot(options.target)
        self.staging = Staging(self.target)
        self.clock_ms = SystemClock().now_ms()

    def run(self, spark_start_s: float) -> ConversionReport:
        started = stopwatch_s()
        self.check_now()
        self.check_places()
        with sole_writer(self.target), self.source.shared_lock():
            self.check_target()
            self.check_source()
            backlog = self._read_backlog()
            chosen = self._choose(backlog)
            plan, amendments = self._plan(backlog, chosen)
            planned = stopwatch_s()
            plan, amendments, receipts = self._write(backlog, chosen, plan, amendments)
            written = stopwatch_s()
            self._seal(plan, backlog, amendments, receipts)
            sealed = stopwatch_s()
            seconds = Seconds(
                spark_start=spark_start_s,
                plan=planned - started,
                write=written - planned,
                seal=sealed - written,
                total=sealed - started + spark_start_s,
            )
            report = conversion_report(
                self.options, backlog, chosen, plan, amendments, receipts, seconds, self.request
            )
            report = attrs.evolve(
                report,
                left_out_topics=self.left_out_topics,
                warnings=(*self.warnings, *report.warnings, *disk_warnings(self.target.path)),
            )
            self._finish(report)
        return report

    def check_now(self) -> None:
        """Refuse a now that has not come: a broker would skip the slots up to it."""
        if self.options.now_ms is not None and self.options.now_ms > self.clock_ms:
            raise OptionsError(
                "--now is later than this machine's clock: a broker would skip slots"
            )

    def check_places(self) -> None:
        """Refuse early: a source that is none, and one of the two within the other."""
        self.source.require_readable()
        source, target = self.source.path.resolve(), self.target.path.resolve()
        if target == source or target.is_relative_to(source) or source.is_relative_to(target):
            raise TargetError(f"{self.target.path}: must not lie in the source, or around it")
        with target_errors(self.target.path):
            self.target.path.mkdir(parents=True, exist_ok=True)

    def check_target(self) -> None:
        """Refuse a target that holds anything but the unfinished beginning of this conversion."""
        refuse_links(self.staging)
        if (self.target.own / MARKER_NAME).exists():
            clear_staging(self.staging)  # of a run that was stopped at its very end
            raise TargetError(
                f"{self.target.path}: already holds a finished conversion;"
                " verify that one, or choose another directory"
            )
        if names := names_in_the_way(self.staging):
            raise TargetError(f"{self.target.path}: is not empty: {', '.join(names[:5])}")

    def check_source(self) -> None:
        if not self.source.was_stopped_cleanly and not self.options.after_crash:
            raise UncleanStoreError(
                f"{self.source.abort}: the broker is running or has crashed; stop it cleanly, or"
                " use --after-crash, which leaves out what was already delivered"
            )
        self.warnings = source_warnings(self.source, whole_log=self.options.whole_log)
        if not self.options.levels_only:
            require_empty_wheel(self.source)
        elif waiting := waiting_in_wheel(self.source):
            self.warnings.append(
                f"{waiting:,} messages wait in the source's own timer wheel and are left behind"
            )

    def _read_backlog(self) -> LevelBacklog:
        self.progress("plan", 0, 1)
        return read_backlog(
            self.source.path,
            offsets_choice=self.options.offsets,
            level_table=self.options.level_table,
            after_crash=self.options.after_crash,
            whole_log=self.options.whole_log,
        )

    def _choose(self, backlog: LevelBacklog) -> NDArray[np.bool_]:
        """Which entries this run is about; the rest is `skipped`."""
        chosen = np.ones(len(backlog.level), np.bool_)
        self.left_out_topics: dict[str, int] = {}
        if self.options.only_levels:
            known = {counts.level for counts in backlog.counts}
            if unknown := sorted(set(self.options.only_levels) - known):
                raise OptionsError(f"the store has no queue of level {unknown[0]}")
            chosen &= np.isin(backlog.level, np.array(self.options.only_levels))
        if self.options.only_topics:
            wanted, self.left_out_topics = choose_topics(
                self.source, backlog, self.options.only_topics
            )
            chosen &= wanted
        return chosen

    def _plan(self, backlog: LevelBacklog, chosen: NDArray[np.bool_]) -> tuple[Plan, Amendments]:
        facts = read_plan_facts(self.staging)
        now_ms = self.options.now_ms
        if now_ms is None:
            now_ms = facts["now_ms"] if facts else self.clock_ms
        self.now_ms: int = now_ms
        self.request = request_of(self.options, now_ms, backlog.level_table)
        bad = np.flatnonzero(chosen & implausible_due(backlog, self.options.settings.precision_ms))
        amendments = Amendments(
            bad={int(at): f"due time {backlog.due_ms[at]} is no time" for at in bad}
        )
        if facts:
            amendments = known_amendments(facts, amendments)
        plan = self._make_plan(backlog, chosen, amendments)
        if facts and facts["identity"] != plan.identity:
            raise PlanError(mismatch(self.staging, self.request, facts))
        begin = take_up if facts else make_room
        begin(plan, self.staging, self.source.path, self.request, amendments)
        self.progress("plan", 1, 1)
        return plan, amendments

    def _make_plan(
        self, backlog: LevelBacklog, chosen: NDArray[np.bool_], amendments: Amendments
    ) -> Plan:
        return make_plan(
            backlog,
            chosen,
            now_ms=self.now_ms,
            settings=self.options.settings,
            part_bytes=self.options.part_bytes,
            request=self.request,
            amendments=amendments,
        )

    def _write(
        self,
        backlog: LevelBacklog,
        chosen: NDArray[np.bool_],
        plan: Plan,
        amendments: Amendments,
    ) -> tuple[Plan, Amendments, list[Receipt]]:
        """Write all parts; where records do not fit the plan, plan again with what was learned."""
        while True:
            write_all(self.staging, len(plan.log.parts), self.spark, self.progress)
            receipts = self._receipts(plan)
            learned = Amendments(bad=dict(amendments.bad), sizes=dict(amendments.sizes))
            for receipt in receipts:
                learned.bad.update({int(plan.chosen[at]): why for at, why in receipt.bad.items()})
                learned.sizes.update(
                    {int(plan.chosen[at]): size for at, size in receipt.odd_sizes.items()}
                )
            if learned.bad and self.options.on_bad_record == "fail":
                remove_unfinished(self.staging)
                raise BadRecordsError(bad_records(backlog, learned))
            if learned == amendments:
                return plan, amendments, receipts
            amendments = learned
            plan = self._make_plan(backlog, chosen, amendments)
            make_room(plan, self.staging, self.source.path, self.request, amendments)

    def _receipts(self, plan: Plan) -> list[Receipt]:
        """One receipt a part, of this plan, counting every message once."""
        receipts = []
        for number in range(len(plan.log.parts)):
            receipt = Receipt.read(self.staging.receipt(number))
            if receipt is None or receipt.identity != plan.identity:
                raise PlanError(f"part {number} of {len(plan.log.parts)} was not written")
            receipts.append(receipt)
        counted = sum(receipt.count for receipt in receipts)
        if counted != len(plan):
            raise PlanError(f"{counted} messages were written where the plan has {len(plan)}")
        return receipts

    def _seal(
        self,
        plan: Plan,
        backlog: LevelBacklog,
        amendments: Amendments,
        receipts: list[Receipt],
    ) -> None:
        if is_published(self.staging):
            return  # stopped between the last rename and the report
        self.progress("seal", 0, 1)
        wanted = broker_settings(
            plan.settings, max((receipt.largest_record_bytes for receipt in receipts), default=0)
        )
        replace_file(self.target.own / CONF_NAME, broker_conf(wanted))
        keep_bad_records(self.source, self.target, backlog, amendments.bad)
        seal(plan, self.staging, self.source, topic_demands(receipts))
        self.progress("seal", 1, 1)

    def _asked(self, report: ConversionReport) -> dict[str, Any]:
        """How this conversion was asked to run: all that an independent verification needs."""
        asked = {**self.request, **self.request["settings"]}
        quarantined = [attrs.asdict(record) for record in report.bad_records]
        return {**asked, "quarantined": quarantined}

    def _finish(self, report: ConversionReport) -> None:
        marker = {**report.as_json(), "conversion": self._asked(report)}
        replace_file(self.target.own / MARKER_NAME, json.dumps(marker, indent=1).encode())
        clear_staging(self.staging)
