# SPDX-License-Identifier: Apache-2.0
"""Converts many stores in one run: a target and a report for each, in one Spark application.

A small store is one Spark task, which plans, writes and seals it and holds its locks meanwhile. So
many are converted at once, on all machines of a cluster. A store is large where one core would
still be at work on it when all others have nothing left to do. It has a task for each log file, and
several share the cores: while one is planned or sealed, files of others are written. A store that
cannot be converted does not stop the others. The same run again skips finished stores and continues
with the rest.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from legacy_levels.backlog.queues import estimate_backlog
from legacy_levels.delay_offsets import read_delay_offsets
from message_store.base.errors import DelayStoreError, MigrationError, OptionsError
from message_store.base.parallel import core_count as own_core_count
from message_store.base.parallel import parallel_map
from message_store.files.array_room import has_room
from message_store.files.store_root import COMMIT_LOG_FILE_BYTES, StoreRoot
from migrate.convert import check_request, convert_on_one_core, convert_patiently
from migrate.progress import Progress
from migrate.report.finished_target import finished_before, refuse_file
from migrate.report.html import write_html_report
from migrate.report.report import ConversionReport
from migrate.settings import ConvertOptions
from migrate.source.members import find_replicas, same_broker
from migrate.spark.cluster import attempts_elsewhere, core_count, has_ended
from migrate.spark.tasks import SMALL_STORES, convert_stores
from migrate.write.staging import TargetBusyError, knows_locks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE_STORES = "large stores"
CONVERTED, FINISHED_BEFORE, FAILED = "converted", "finished before", "failed"
MOST_IN_MEMORY = 1 << 20
"""So many messages wait in a small store, at most, where its columns have no room on the disk: they
take 145 MB of a worker, 138 bytes a message; a choice.
"""
_DRIVER_SHARE = 0.25
"""The plan of a store takes so much of the time in which a core writes its log files (measured:
0.36 s and 1.33 s for four million messages, docs/PERFORMANCE.md).
"""
_JOB_BYTES = 16 << 20
"""A job of its own costs a store as much as so many bytes: some hundredths of a second."""
_TWO_FILES_BYTES = 64 << 20
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
        """The object of ``convert --json``, with the state; of a failed store paths and error."""
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
        """Convert the stores that are not settled: where there is a session the small ones all at
        once and then the large ones side by side, else one after the other.

        ``progress`` hears how many small stores are done, how much of the large ones is written in
        percent, and of a single one under its number and name.
        """
        patience_s = 0.0
        if spark is not None:
            if not self._convert_small(spark, progress):
                patience_s = _LOCK_WAIT_S  # tasks may still be at work
            elif len(self._members) - len(self._entries) > 1:
                self._convert_large(spark, progress)
        for index, options in enumerate(self._members):
            label = f"{index + 1} of {len(self._members)}, {options.target.name}"
            step = partial(_convert, options, spark, _labelled(progress, label), patience_s)
            self._settle(index, step)

    def _convert_large(self, spark: "SparkSession", progress: Progress) -> None:
        """Convert what is left, in as many threads as this machine has cores, each with jobs of its
        own. What ends this ends them, when they next say how far they are.
        """
        from pyspark.util import InheritableThread

        left = [index for index in range(len(self._members)) if index not in self._entries]
        shares, context, turns = _Shares(progress, len(left)), copy_context(), iter(left)
        ended: list[Future[None]] = [Future() for _ in left[: own_core_count()]]

        def work(end: "Future[None]") -> None:
            try:
                for index in turns:  # all threads take from it
                    options, told = self._members[index], shares.next()
                    self._settle(index, partial(_convert, options, spark, told, 0.0))
                    told("write", 1, 1)
                end.set_result(None)
            except BaseException as error:
                end.set_exception(error)

        threads = [
            InheritableThread(partial(context.copy().run, work, end), session=spark, daemon=True)
            for end in ended
        ]
        begun = []
        try:
            for thread in threads:
                thread.start()  # refuses where the session was stopped
                begun.append(thread)
            wait(ended, return_when=FIRST_EXCEPTION)
        finally:
            shares.end()
            for thread in begun:
                thread.join()
        for error in (end.exception() for end in ended):
            if error is not None and not isinstance(error, _OverError):
                raise error

    def _convert_small(self, spark: "SparkSession", progress: Progress) -> bool:
        """Convert the small stores, a task each. False where Spark gave up, as when one of them
        kills its worker again and again: then some of them are not settled.
        """
        is_cluster = attempts_elsewhere(spark) is not None
        work = partial(convert_on_one_core, patience_s=_LOCK_WAIT_S if is_cluster else 0.0)
        sizes = self._sizes(is_cluster=is_cluster)
        chosen: list[int] = []
        try:
            if sizes:
                chosen = small_stores(sizes, core_count(spark, SMALL_STORES))
            if not chosen:
                return True
            stores = [_absolute(self._members[index]) for index in chosen]
            results = convert_stores(spark, stores, work, progress)
        except MigrationError:
            for index in chosen:
                self._settle(index, partial(_finished, self._members[index], CONVERTED))
            return False
        for index, result in zip(chosen, results, strict=True):
            self._settle(index, partial(_outcome, self._members[index], result))
        return True

    def _sizes(self, *, is_cluster: bool) -> dict[int, int]:
        """How many bytes wait in each store that is not settled and that one task may convert. On a
        cluster two attempts may work at once, which only a lock keeps apart; and because tasks wait
        for it, a target that is in use already is refused here.
        """
        asked: list[int] = []
        for index, options in enumerate(self._members):
            if index in self._entries:
                continue
            try:
                if not is_cluster or knows_locks(StoreRoot(options.target)):
                    asked.append(index)
            except TargetBusyError as error:
                self._entries[index] = FleetEntry(options, FAILED, error=error)
            except DelayStoreError:
                asked.append(index)  # its task says what is wrong
        sizes = parallel_map(_task_bytes, [self._members[index] for index in asked])
        return {index: size for index, size in zip(asked, sizes, strict=True) if size is not None}

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
        """Write the page of a store; an error is that of a store which was converted."""
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


def small_stores(sizes: Mapping[int, int], cores: int) -> list[int]:
    """Which stores are a task each, the largest first, so that all are finished soonest; ``sizes``
    are the bytes that wait in each. The largest may be better off with all cores, one after the
    other: each of these costs its plan, and the time in which all wait for its last file.

    >>> small_stores({4: 1 << 30, 5: 1 << 30, 6: 2 << 30}, 2)
    [6, 4, 5]
    >>> small_stores({4: 8 << 30, 5: 1 << 20, 6: 2 << 20}, 2)
    [6, 5]
    """
    largest_first = sorted(sizes, key=lambda store: (-sizes[store], store))
    ends: list[float] = []
    alone, rest = 0.0, sum(sizes.values())
    for store in largest_first:
        ends.append(alone + (1 + _DRIVER_SHARE) * max(sizes[store], rest / cores))
        alone += _JOB_BYTES + sizes[store] * (_DRIVER_SHARE + _rounds_share(sizes[store], cores))
        rest -= sizes[store]
    ends.append(alone)
    return largest_first[ends.index(min(ends)) :]


def _rounds_share(size_bytes: int, cores: int) -> float:
    """How long all cores take to write a store's log files, in the time that one core takes."""
    least = 2 if size_bytes > _TWO_FILES_BYTES else 1
    files = max(least, math.ceil(size_bytes / COMMIT_LOG_FILE_BYTES))
    return math.ceil(files / cores) / files


def _task_bytes(options: ConvertOptions) -> int | None:
    """How many bytes wait in a store that has room for its columns in one task, else None. A store
    that cannot be looked at has none: its task says why.
    """
    try:
        offsets = read_delay_offsets(options.source, options.offsets)
        messages, size_bytes = estimate_backlog(options.source, offsets)
    except DelayStoreError:
        return 0
    has_columns = messages <= MOST_IN_MEMORY or _keeps_columns(options.target)
    return size_bytes if has_columns else None


def _keeps_columns(target: Path) -> bool:
    """Whether the columns of a conversion have room on the disk of a target."""
    path = target.absolute()
    return has_room(next(each for each in (path, *path.parents) if each.exists()))


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


class _OverError(BaseException):
    """Somebody ended the run while a thread of it was at work."""


class _Shares:
    """How far several stores are, as one stage."""

    def __init__(self, progress: Progress, count: int) -> None:
        self._progress, self._count = progress, count
        self._percents: list[int] = []
        self._one_by_one = threading.Lock()
        self._is_over = False

    def next(self) -> Progress:
        """What the next store is to call."""
        with self._one_by_one:
            number = len(self._percents)
            self._percents.append(0)

        def hear(stage: str, done: int, total: int) -> None:
            with self._one_by_one:
                if self._is_over:
                    raise _OverError
                if stage == "write" and total:
                    self._percents[number] = 100 * done // total
                self._progress(LARGE_STORES, sum(self._percents) // self._count, 100)

        return hear

    def end(self) -> None:
        """Whoever calls from now on is ended by it."""
        with self._one_by_one:
            self._is_over = True


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
