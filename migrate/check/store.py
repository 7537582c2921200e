# SPDX-License-Identifier: Apache-2.0
"""Looks a store over and says what will go wrong: what a broker would do, and what to do about it.

Only reads, also beside a running broker, and never fails because of damage: what cannot be looked
at is a finding too. Every record that waits is read.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from message_store.base.errors import DelayStoreError
from message_store.files.small_files import is_directory
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Finding, Severity
from message_store.interface.finding_rules import FindingRule, error, worst_first
from migrate.check import broker as check_broker
from migrate.check import delete_markers, timer_records
from migrate.check import files as check_files
from migrate.check import levels as check_levels
from migrate.check import offsets as check_offsets
from migrate.check import target as check_target
from migrate.check import time as check_time
from migrate.check import wheel as check_wheel
from migrate.check.snapshot import CheckOptions, StoreSnapshot
from migrate.check.time import Load, load_of
from migrate.progress import Progress, no_progress

UNREADABLE = error(
    "unreadable",
    "a broker may refuse to start, or stop there",
    "see what the sentence names; take it from a backup",
)


_MODULES = (
    check_broker,
    check_files,
    check_target,
    check_offsets,
    check_levels,
    check_time,
    check_wheel,
    timer_records,
    delete_markers,
)
RULES = tuple(
    {
        rule.code: rule
        for module in (*_MODULES, sys.modules[__name__])
        for rule in vars(module).values()
        if isinstance(rule, FindingRule)
    }.values()
)
"""Every kind of finding: a rule counts where its module defines it."""

Family = Callable[[StoreSnapshot], Iterator[Finding]]
_FAMILIES: tuple[tuple[str, Family], ...] = (
    ("state", check_broker.check_state),
    ("disk", check_broker.check_disk),
    ("files", check_files.check_rows),
    ("configuration", check_files.check_configs),
    ("offsets", check_offsets.check_offset_files),
    ("level queues", check_levels.check_level_queues),
    ("offsets", check_offsets.check_offsets),
    ("due times", check_levels.check_due_times),
    ("recovery", check_files.check_recovery),
    ("wheel", check_wheel.check_wheel),
    ("wheel", check_wheel.check_hierarchy),
    ("time index", check_wheel.check_time_index),
    ("switches", check_broker.check_switches),
    ("timeline", check_broker.check_timeline),
    ("metrics", check_broker.check_metrics),
    ("conversion", check_target.check_change),
    ("conversion", check_target.check_target),
    ("topics", check_files.check_topic_types),
    ("retention", check_time.check_retention),
    ("load", check_time.check_load),
    ("records", check_levels.check_level_records),
    ("records", timer_records.check_timer_records),
    ("records", delete_markers.check_delete_markers),
    ("deliveries", check_target.check_undelivered),
)


@attrs.frozen(kw_only=True)
class CheckReport:
    """What was found, worst first, and how much is due when."""

    path: str
    now_ms: int
    is_running: bool
    findings: tuple[Finding, ...]
    load: Load | None

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is worse than worth knowing."""
        return all(finding.severity is Severity.INFO for finding in self.findings)

    def count(self, severity: Severity) -> int:
        """How many findings of a severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The JSON object that ``check --json`` prints; keys and codes are a promise."""
        findings = [
            {"code": each.code, **attrs.asdict(each), "severity": each.severity.value}
            for each in self.findings
        ]
        counts = {f"{severity.value}s": self.count(severity) for severity in Severity}
        load = None if self.load is None else attrs.asdict(self.load)
        head = {"path": self.path, "now_ms": self.now_ms, "is_running": self.is_running}
        return {**head, **counts, "findings": findings, "load": load}


def check_store(path: Path, options: CheckOptions, progress: Progress = no_progress) -> CheckReport:
    """Look the store under ``path`` over.

    Raises SourceError for a directory that is no store, or of a kind that is not read, and
    BadFieldError or SourceError for a configuration that no broker starts with.
    """
    root = StoreRoot(path)
    unfinished = check_target.unfinished_target(root) if is_directory(root.path) else None
    if unfinished is not None:
        return _report(root, options, [unfinished], None, is_running=False)
    root.require_readable()
    is_running = root.is_in_use()
    with StoreSnapshot(root, options, is_running=is_running) as snapshot:
        findings: list[Finding] = []
        for number, (name, family) in enumerate(_FAMILIES):
            progress(f"check {name}", number, len(_FAMILIES))
            findings += _guarded(name, family, snapshot)
        try:
            load = load_of(snapshot)
        except (DelayStoreError, OSError):
            load = None  # why is a finding by now
        return _report(root, options, findings, load, is_running=is_running)


def _report(
    root: StoreRoot,
    options: CheckOptions,
    findings: list[Finding],
    load: Load | None,
    *,
    is_running: bool,
) -> CheckReport:
    return CheckReport(
        path=str(root.path),
        now_ms=options.now_ms,
        is_running=is_running,
        findings=tuple(worst_first(findings)),
        load=load,
    )


def _guarded(name: str, family: Family, snapshot: StoreSnapshot) -> list[Finding]:
    """What a family finds until something cannot be read."""
    findings: list[Finding] = []
    try:
        findings.extend(family(snapshot))
    except (DelayStoreError, OSError) as problem:
        findings.append(UNREADABLE.at(name, f"it cannot be looked at: {problem}"))
    return findings
