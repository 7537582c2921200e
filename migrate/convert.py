# SPDX-License-Identifier: Apache-2.0
"""The conversion of one stopped store into a fresh target: plan, write, seal, in an order that any
stop survives.

``convert`` is what the command line calls. Nothing is visible as a finished store before the last
rename, and the report ``delaywheel/conversion.json`` that marks a target as complete comes after
it.
"""

import json
from contextlib import ExitStack
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from legacy_levels.level_backlog import LevelBacklog, read_backlog
from message_store.clock import SystemClock, stopwatch_s
from message_store.delay_levels import DelayLevels
from message_store.errors import (
    BadRecordsError,
    OptionsError,
    PlanError,
    TargetError,
    UncleanStoreError,
)
from message_store.segment_files import list_segments
from message_store.small_files import replace_file
from message_store.store_root import StoreRoot
from migrate.books import bad_records, conversion_report
from migrate.plan import Amendments, Plan, implausible_due, make_plan
from migrate.quarantine import keep_bad_records
from migrate.report import ConversionReport, Seconds
from migrate.seal import seal, topic_demands
from migrate.settings import ConvertOptions
from migrate.source_wheel import require_empty_wheel
from migrate.staged_output import (
    Staging,
    clear_staging,
    create_row,
    forbid_start,
    free_bytes,
    is_published,
    names_in_the_way,
    remove_unfinished,
    target_errors,
)
from migrate.stored_plan import read_plan_facts, store_plan
from migrate.target_config import broker_conf, broker_settings
from migrate.topic_choice import choose_topics
from migrate.write import Receipt
from migrate.write_job import Progress, write_all
from timer_wheel.timer_log import units_per_file
from timer_wheel.wheel_file import WHEEL_FILE_BYTES

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
        self._check_places()
        with ExitStack() as held:
            held.enter_context(self.source.shared_lock())
            self._check_source()
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
        self._finish(report)
        return report

    def _check_places(self) -> None:
        """Refuse early: a source that is none, a target in use, one of them within the other."""
        self.source.require_readable()
        source, target = self.source.path.resolve(), self.target.path.resolve()
        if target == source or target.is_relative_to(source) or source.is_relative_to(target):
            raise TargetError(f"{self.target.path}: must not lie in the source, or around it")
        with target_errors(self.target.path):
            self.target.path.mkdir(parents=True, exist_ok=True)
        if (self.target.own / MARKER_NAME).exists():
            raise TargetError(f"{self.target.path}: already holds a finished conversion")
        if names := names_in_the_way(self.staging):
            raise TargetError(f"{self.target.path}: is not empty: {', '.join(names[:5])}")

    def _check_source(self) -> None:
        if not self.source.was_stopped_cleanly and not self.options.after_crash:
            raise UncleanStoreError(
                f"{self.source.abort}: the broker is running or has crashed; stop it cleanly, or"
                " use --after-crash, which leaves out what was already delivered"
            )
        if not self.options.levels_only:
            require_empty_wheel(self.source, self.clock_ms)

    def _read_backlog(self) -> LevelBacklog:
        self.progress("plan", 0, 1)
        return read_backlog(
            self.source.path,
            offsets_choice=self.options.offsets,
            level_table=self.options.level_table,
            after_crash=self.options.after_crash,
        )

    def _choose(self, backlog: LevelBacklog) -> NDArray[np.bool_]:
        """Which entries this run is about; the rest is `skipped`."""
        chosen = np.ones(len(backlog.level), np.bool_)
        if self.options.only_levels:
            chosen &= np.isin(backlog.level, np.array(self.options.only_levels))
        if self.options.only_topics:
            chosen &= choose_topics(self.source, backlog, self.options.only_topics)
        return chosen

    def _plan(self, backlog: LevelBacklog, chosen: NDArray[np.bool_]) -> tuple[Plan, Amendments]:
        facts = read_plan_facts(self.staging)
        now_ms = self.options.now_ms
        if now_ms is None:
            now_ms = facts["now_ms"] if facts else self.clock_ms
        elif now_ms > self.clock_ms:
            raise OptionsError(
                "--now is later than this machine's clock: a broker would skip slots"
            )
        self.now_ms: int = now_ms
        self.request = self._request(backlog.level_table)
        bad = np.flatnonzero(chosen & implausible_due(backlog, self.options.settings.precision_ms))
        amendments = Amendments(
            bad={int(at): f"due time {backlog.due_ms[at]} is no time" for at in bad}
        )
        if facts:
            amendments = _known_amendments(facts, amendments)
        plan = self._make_plan(backlog, chosen, amendments)
        if facts and facts["identity"] != plan.identity:
            raise PlanError(self._mismatch(facts))
        if not facts:
            self._begin(plan, amendments)
        self.progress("plan", 1, 1)
        return plan, amendments

    def _request(self, table: DelayLevels) -> dict[str, Any]:
        """What makes this run this run; the number of tasks or cores is not part of it."""
        options = self.options
        logs = [
            [segment.path.name, segment.length_bytes, segment.modified_ns]
            for segment in list_segments(self.source.commit_log)
        ]
        return {
            "now_ms": self.now_ms,
            "settings": attrs.asdict(options.settings),
            "level_table": table.text(),
            "on_bad_record": options.on_bad_record,
            "after_crash": options.after_crash,
            "offsets": options.offsets,
            "only_levels": list(options.only_levels),
            "only_topics": list(options.only_topics),
            "levels_only": options.levels_only,
            "part_bytes": options.part_bytes,
            "source": str(self.source.path.absolute()),
            "source_log": logs,
        }

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

    def _mismatch(self, facts: dict[str, Any]) -> str:
        changed = [
            name
            for name, value in self.request.items()
            if facts.get("request", {}).get(name) != value
        ]
        what = ", ".join(changed) or "the level queues"
        return (
            f"{self.target.path}: was begun from something else (differs in: {what});"
            f" repeat the first command, or remove {self.staging.path} and begin anew"
        )

    def _begin(self, plan: Plan, amendments: Amendments) -> None:
        """Make room: check the disk, create the sparse files, store the plan, which comes last."""
        settings, store = plan.settings, self.staging.store
        clear_staging(self.staging)
        needed = _bytes_needed(plan)
        if needed > free_bytes(self.target.path):
            raise TargetError(
                f"{self.target.path}: {needed:,} bytes are needed, "
                f"{free_bytes(self.target.path):,} are free"
            )
        with target_errors(self.staging.path):
            self.staging.path.mkdir(parents=True)
        forbid_start(self.target)
        log_files = -(-plan.log.end_offset // settings.commit_log_file_bytes)
        queue_units = settings.queue_file_bytes // 20
        timer_units = units_per_file(settings.timer_log_file_bytes)
        create_row(store.commit_log, count=log_files, file_bytes=settings.commit_log_file_bytes)
        create_row(
            store.timer_queue(),
            count=-(-len(plan) // queue_units),
            file_bytes=settings.queue_file_bytes,
        )
        create_row(
            store.timer_log,
            count=-(-len(plan) // timer_units),
            file_bytes=settings.timer_log_file_bytes,
        )
        store_plan(
            plan,
            self.staging,
            source=self.source.path,
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
            self._begin(plan, amendments)

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


def _bytes_needed(plan: Plan) -> int:
    """Log, queue, timer log and the touched pages of the wheel, as the disk counts them."""
    units = len(plan) * (20 + 53)
    return plan.log.end_offset + units + WHEEL_FILE_BYTES + (len(plan) * 48)


def _known_amendments(facts: dict[str, Any], first: Amendments) -> Amendments:
    """What the unfinished run had learned, so that continuing it makes the same plan."""
    known = facts.get("amendments", {})
    return Amendments(
        bad={**first.bad, **{int(at): why for at, why in known.get("bad", {}).items()}},
        sizes={int(at): size for at, size in known.get("sizes", {}).items()},
    )
