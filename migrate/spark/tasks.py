# SPDX-License-Identifier: Apache-2.0
"""Runs a list of tasks as one Spark job, or in this process; and the job of the write stage.

Tasks and results travel through the JVM, so they are numbers, never messages. An empty task costs
12 to 30 ms. So the write stage asks for two tasks a core, not one a part. It asks for at least one
per 16 parts, because cores may join later. A part is the unit of resuming, a task that of
scheduling.
"""

import gc
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs

from message_store.base.errors import (
    DelayStoreError,
    FormatError,
    MigrationError,
    SourceError,
    TargetError,
)
from migrate.progress import Progress
from migrate.spark.master import is_one_machine
from migrate.spark.reasons import reason_of
from migrate.write.part import write_parts
from migrate.write.staging import Staging, count_receipts

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_PER_CORE = 2
PARTS_PER_TASK = 16
_POLL_SECONDS = 0.1
_WRITE = "the write stage"
VERIFICATION = "the verification"
_GROUP_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
_ERRORS: tuple[type[DelayStoreError], ...] = (SourceError, TargetError, FormatError)


def write_all(
    staging: Staging, part_count: int, spark: "SparkSession | None", progress: Progress
) -> None:
    """Write every part that has no receipt yet; ``spark`` None does it in this process.

    Raises SourceError or TargetError as the writers did, MigrationError when Spark gave up.
    """
    context = None if spark is None else spark.sparkContext
    task_count = count_tasks(part_count, core_count(spark, _WRITE))
    durably = context is not None and not is_one_machine(context.master)
    bounds = [part_count * task // task_count for task in range(task_count + 1)]
    write = partial(_write_run, str(staging.target.path.absolute()), staging.identity, durably)

    def done(_tasks: int) -> None:
        progress("write", count_receipts(staging), part_count)

    run_tasks(spark, list(pairwise(bounds)), write, done, name=_WRITE)
    done(task_count)


def core_count(spark: "SparkSession | None", name: str) -> int:
    """The cores that Spark has by now, 1 without Spark. Raises MigrationError where it is gone."""
    try:
        return 1 if spark is None else spark.sparkContext.defaultParallelism
    except Exception as error:  # an AttributeError of a session that was stopped, or of Py4J
        raise MigrationError(f"Spark could not begin {name}: {reason_of(str(error))}") from error


def count_tasks(part_count: int, core_count: int) -> int:
    """How many tasks write so many parts, with so many cores there by now.

    >>> count_tasks(160_000, 2), count_tasks(160_000, 20_000), count_tasks(20, 8), count_tasks(0, 8)
    (10000, 40000, 16, 1)
    """
    wanted = max(TASKS_PER_CORE * core_count, -(-part_count // PARTS_PER_TASK))
    return max(1, min(part_count, wanted))


def _write_run(target: str, identity: str, durably: bool, run: tuple[int, int]) -> None:
    for _number in write_parts(Path(target), range(*run), identity, durably=durably):
        pass


def run_tasks(
    spark: "SparkSession | None",
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    done: Callable[[int], None],
    *,
    name: str = VERIFICATION,
) -> list[Result]:
    """``function`` of every task, in order: one Spark task each, or, without a session, right here.

    ``done`` is called again and again with the number of finished tasks. Raises what ``function``
    raises of the project's own errors, MigrationError when Spark gave up on the work of this name.
    """
    if spark is not None and tasks:
        return _run_job(spark.sparkContext, tasks, function, done, name)
    results = []
    for number, task in enumerate(tasks):
        results.append(function(task))
        done(number + 1)
    return results


def _run_job(
    context: "SparkContext",
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    done: Callable[[int], None],
    name: str,
) -> list[Result]:
    group = f"delaywheel-{secrets.token_hex(6)}"
    try:
        with _job_group(context, group, f"delaywheel: {name}"), _watched(context, group, done):
            job = context.parallelize(tasks, len(tasks)).mapPartitions(partial(_attempts, function))
            outcomes: list[Result | _Refusal] = job.collect()
    except KeyboardInterrupt:
        context.cancelJobGroup(group)  # the caller's session lives on
        raise
    except Exception as error:  # Py4J raises many kinds for a failed task or a JVM that is gone
        raise MigrationError(f"Spark could not finish {name}: {reason_of(str(error))}") from error
    results: list[Result] = []
    for outcome in outcomes:
        if isinstance(outcome, _Refusal):
            raise outcome.kind(outcome.sentence)
        results.append(outcome)
    return results


@attrs.frozen
class _Refusal:
    """An error of the store or the disk on its way back from a worker, as a value: Spark would
    repeat a task that raises it three times.
    """

    kind: type[DelayStoreError]
    sentence: str


def _attempts(
    function: Callable[[Task], Result], tasks: Iterable[Task]
) -> Iterator[Result | _Refusal]:
    """Runs on a worker."""
    _freeze_imports()
    for task in tasks:
        try:
            yield function(task)
        except DelayStoreError as error:
            kind = next((kind for kind in _ERRORS if isinstance(error, kind)), MigrationError)
            yield _Refusal(kind, str(error))


@cache
def _freeze_imports() -> None:
    """Hide what is imported from the garbage collector, once a worker: Spark runs a full collection
    after each task, and compiled kernels are a great many objects.
    """
    gc.freeze()


@contextmanager
def _job_group(context: "SparkContext", group: str, description: str) -> Iterator[None]:
    """Jobs of the ``with`` block are of this group; the caller's own group comes back after it."""
    before = {name: context.getLocalProperty(name) for name in _GROUP_PROPERTIES}
    context.setJobGroup(group, description, interruptOnCancel=True)
    try:
        yield
    finally:
        with suppress(Exception):  # a JVM that is gone has no later jobs
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None clears


@contextmanager
def _watched(context: "SparkContext", group: str, done: Callable[[int], None]) -> Iterator[None]:
    """Call ``done`` from another thread for as long as the ``with`` block runs."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_POLL_SECONDS):
            with suppress(Exception):  # the job itself says what is wrong with the JVM
                done(_finished_tasks(context, group))

    watcher = threading.Thread(target=watch, name="task-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _finished_tasks(context: "SparkContext", group: str) -> int:
    tracker = context.statusTracker()
    finished = 0
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job else ():
            stage = tracker.getStageInfo(stage_id)
            finished += stage.numCompletedTasks if stage else 0
    return finished
