# SPDX-License-Identifier: Apache-2.0
"""Converts many stores in one run: a target and a report for each, in one Spark application.

A small store is one Spark task, which plans, writes and seals it and holds its locks meanwhile. So
many are converted at once, on all machines of a cluster. A large store has a task for each log
file; one after the other has all cores. A store that cannot be converted does not stop the others.
The same run again skips finished stores and continues with the rest.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from legacy_levels.backlog.queues import estimate_backlog, waiting_bytes
from legacy_levels.delay_offsets import read_delay_offsets
from message_store.base.errors import DelayStoreError, MigrationError, OptionsError
from message_store.files.store_root import StoreRoot
from migrate.convert import check_request, convert_on_one_core, convert_patiently
from migrate.progress import Progress
from migrate.report.finished_target import finished_before, refuse_file
from migrate.report.html import write_html_report
from migrate.report.report import ConversionReport
from migrate.settings import ConvertOptions
from migrate.source.replicas import find_replicas, same_broker
from migrate.spark.cluster import attempts_elsewhere, has_ended
from migrate.spark.tasks import convert_stores
from migrate.write.staging import TargetBusyError, knows_locks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONVERTED, FINISHED_BEFORE, FAILED = "converted", "finished before", "failed"
SMALL_MESSAGES, SMALL_BYTES = 1 << 20, 1 << 30
"""So much waits in a small store, at most. It is a task as long as those of a large store, which
write a log file. The plan of so many messages takes 145 MB of a worker, 138 bytes each; a choice.
"""
_LOCK_WAIT_S = 600.0
"""A cluster may try a task again while the first attempt still holds its target."""
USUAL_STORE_NAME = "store"
"""The usual name of a store's directory; its parent's name says more."""


@attrs.frozen
class FleetEntry:
    """The outcome of one store: a report unless it failed, an error if something went wrong."""

    options: ConvertOptions
    state: str
    report: ConversionReport | None = None
    error: DelayStoreError | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that ``convert --json`` prints, with the state; of a failed store its paths
        and the error.
        """
        paths = {"source": str(self.options.source), "target": str(self.options.target)}
        facts = {} if self.report is None else self.report.as_json()
        why = None if self.error is None else str(self.error)
        records = getattr(self.error, "records", ())
        listed = {"bad_records": [attrs.asdict(record) for record in records]} if records else {}
        return {**facts, **paths, **listed, "state": self.state, "error": why}


class Fleet:
    """The stores of one run, and their outcomes.

    Call ``examine`` first: it finds out whether anything is left to do, before Spark starts. Raises
    OptionsError for paths that are in each other's way.
    """

    def __init__(self, members: Sequence[ConvertOptions], reports: Path | None = None) -> None:
        """``reports``: the directory for a page a store, named after its target."""
        _require_apart(members)
        if reports is not None:
            _require_own_pages(members)
        self._members = list(members)
        self._reports = reports
        self._entries: dict[int, FleetEntry] = {}

    @property
    def entries(self) -> list[FleetEntry]:
        """The outcomes so far, in the order of the members."""
        return [self._entries[index] for index in sorted(self._entries)]

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to convert."""
        return len(self._entries) == len(self._members)

    def examine(self) -> None:
        """Settle the stores that are finished, or are copies of one broker's store; and those that
        cannot be converted, up to the first that can: the others are found out by their conversion.
        """
        for index, options in enumerate(self._members):
            self._settle(index, partial(_finished, options))
        sources = [options.source for options in self._members]
        for group in find_replicas(sources):
            refusal = same_broker(sources, group)
            for index in group.indexes:
                if index not in self._entries:
                    self._entries[index] = FleetEntry(self._members[index], FAILED, error=refusal)
        for index, options in enumerate(self._members):
            if index not in self._entries:
                self._settle(index, partial(_check, options))
                if index not in self._entries:
                    break

    def convert(self, spark: "SparkSession | None", progress: Progress) -> None:
        """Convert the stores that are not settled: the small ones all at once where there is a
        session, the others one after the other.

        ``progress`` hears how many small stores are done, and of each other one under its number
        and name.
        """
        patience_s = 0.0
        if spark is not None and not self._convert_small(spark, progress):
            patience_s = _LOCK_WAIT_S  # tasks may still be at work
        for index, options in enumerate(self._members):
            label = f"{index + 1} of {len(self._members)}, {options.target.name}"
            step = partial(_convert, options, spark, _labelled(progress, label), patience_s)
            self._settle(index, step)

    def _convert_small(self, spark: "SparkSession", progress: Progress) -> bool:
        """Convert the small stores, a task each. False where Spark gave up, as when one of them
        kills its worker again and again: then some of them are not settled.
        """
        is_cluster = attempts_elsewhere(spark) is not None
        chosen = self._small(is_cluster=is_cluster)
        if not chosen:
            return True
        work = partial(convert_on_one_core, patience_s=_LOCK_WAIT_S if is_cluster else 0.0)
        try:
            stores = [_absolute(self._members[index]) for index in chosen]
            results = convert_stores(spark, stores, work, progress)
        except MigrationError:
            for index in chosen:
                self._settle(index, partial(_finished, self._members[index], CONVERTED))
            return False
        for index, result in zip(chosen, results, strict=True):
            self._settle(index, partial(_outcome, self._members[index], result))
        return True

    def _small(self, *, is_cluster: bool) -> list[int]:
        """The small ones of the stores that are not settled. On a cluster, where tasks wait for a
        lock, a target that is in use already is refused here.
        """
        small = []
        for index, options in enumerate(self._members):
            if index in self._entries:
                continue
            try:
                if _is_small(options, is_cluster=is_cluster):
                    small.append(index)
            except TargetBusyError as error:
                self._entries[index] = FleetEntry(options, FAILED, error=error)
        return small

    def _settle(self, index: int, step: Callable[[], FleetEntry | None]) -> None:
        """Take a step with a store that is not settled; an error of it settles that store alone."""
        if index in self._entries:
            return
        try:
            entry = step()
        except DelayStoreError as error:
            entry = FleetEntry(self._members[index], FAILED, error=error)
        if entry is not None:
            self._entries[index] = self._with_page(entry)

    def _with_page(self, entry: FleetEntry) -> FleetEntry:
        """Write the page of a store; an error becomes that of a store which is converted all the
        same.
        """
        if self._reports is None or entry.report is None:
            return entry
        page = self._reports / f"{entry.options.target.name}.html"
        try:
            if entry.state == CONVERTED or not page.exists():
                write_html_report(entry.report, page)
        except DelayStoreError as error:
            return attrs.evolve(entry, error=error)
        return entry


def target_name(source: Path) -> str:
    """What the target of a store is called: as its directory, or the one around a ``store``.

    >>> target_name(Path("/data/broker-a/store")), target_name(Path("/data/broker-b"))
    ('broker-a', 'broker-b')
    """
    path = source.absolute()
    return path.parent.name if path.name == USUAL_STORE_NAME else path.name


def _convert(
    options: ConvertOptions, spark: "SparkSession | None", progress: Progress, patience_s: float
) -> FleetEntry:
    if spark is not None and has_ended(spark):
        raise MigrationError(f"{options.source}: not tried, because Spark has ended")
    report = convert_patiently(options, patience_s=patience_s, spark=spark, progress=progress)
    return FleetEntry(options, CONVERTED, report)


def _is_small(options: ConvertOptions, *, is_cluster: bool) -> bool:
    """Whether one task converts the whole store. On a cluster two attempts may work at once, which
    only a lock keeps apart. A store that cannot be looked at is small: its task says why.

    Raises TargetBusyError.
    """
    try:
        if is_cluster and not knows_locks(StoreRoot(options.target)):
            return False
        offsets = read_delay_offsets(options.source, options.offsets)
        if estimate_backlog(options.source, offsets) > SMALL_MESSAGES:
            return False
        return waiting_bytes(options.source, offsets) <= SMALL_BYTES
    except TargetBusyError:
        raise
    except DelayStoreError:
        return True


def _absolute(options: ConvertOptions) -> ConvertOptions:
    """The same for a worker, which has another working directory."""
    source, target = options.source.absolute(), options.target.absolute()
    return attrs.evolve(options, source=source, target=target)


def _outcome(options: ConvertOptions, result: ConversionReport | DelayStoreError) -> FleetEntry:
    if isinstance(result, DelayStoreError):
        return FleetEntry(options, FAILED, error=result)
    report = attrs.evolve(result, source=str(options.source), target=str(options.target))
    return FleetEntry(options, CONVERTED, report)


def _labelled(progress: Progress, label: str) -> Progress:
    return lambda stage, done, total: progress(f"{label}: {stage}", done, total)


def _require_apart(members: Sequence[ConvertOptions]) -> None:
    """Raise OptionsError for a path that is named twice, or a target within another path."""
    taken: dict[Path, Path] = {}
    for path in (each for options in members for each in (options.source, options.target)):
        end = path.resolve()
        if end in taken:
            raise OptionsError(f"{path}: named twice (also as {taken[end]})")
        taken[end] = path
    for options in members:
        end = options.target.resolve()
        for taken_end, path in taken.items():
            if taken_end != end and (
                end.is_relative_to(taken_end) or taken_end.is_relative_to(end)
            ):
                raise OptionsError(f"{options.target} and {path}: one lies in the other")


def _require_own_pages(members: Sequence[ConvertOptions]) -> None:
    """Raise OptionsError where the pages of two stores would have one name."""
    named: dict[str, Path] = {}
    for options in members:
        name = options.target.name.casefold()  # some disks take these for one name
        if name in named:
            raise OptionsError(
                f"{options.target} and {named[name]}: their pages would have one name,"
                f" {options.target.name}.html; give the targets names of their own"
            )
        named[name] = options.target


def _check(options: ConvertOptions) -> None:
    refuse_file(options.target)
    check_request(options)


def _finished(options: ConvertOptions, state: str = FINISHED_BEFORE) -> FleetEntry | None:
    report = finished_before(options)
    return None if report is None else FleetEntry(options, state, report)
