# SPDX-License-Identifier: Apache-2.0
"""Runs a list of tasks as one Spark job, or in this process; and the jobs of a conversion.

Tasks and results travel through the JVM, so they are numbers and counts, never messages. An empty
task costs 12 to 30 ms: a task of the write stage is a log file, usually a gibibyte.
"""

import gc
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

import attrs

from message_store.base.errors import (
    DelayStoreError,
    FormatError,
    MigrationError,
    SourceError,
    TargetError,
)
from message_store.base.parallel import parallel_map
from migrate.plan.stored_plan import StoredPlan
from migrate.plan.target_rows import TargetRows
from migrate.progress import Progress
from migrate.spark.master import is_one_machine
from migrate.spark.reasons import reason_of
from migrate.write.index_files import IndexStage
from migrate.write.log_file import FileNote, write_file
from migrate.write.reserve import usable_attempts
from migrate.write.staging import Staging

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

_MANY_ROWS = 8 << 20
_POLL_SECONDS = 0.1
_WRITE = "the write stage"
VERIFICATION = "the verification"
_GROUP_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
_ERRORS: tuple[type[DelayStoreError], ...] = (SourceError, TargetError, FormatError)


def write_logs(
    plan: StoredPlan, spark: "SparkSession | None", progress: Progress
) -> list[FileNote]:
    """Write every log file of a plan that was not written yet, a task each, in the order of their
    numbers; ``spark`` None does it in this process.

    Raises SourceError or TargetError as the writers did, MigrationError when Spark gave up.
    """
    notes = usable_attempts(plan)
    missing = [number for number in range(plan.cut.file_count) if number not in notes]
    target = plan.staging.target.path.absolute()
    write = partial(write_file, target, plan.identity, _must_sync(spark))
    before = len(notes)

    def done(tasks: int) -> None:
        progress("write", before + tasks, plan.cut.file_count)

    done(0)
    for note in run_tasks(spark, missing, write, done, name=_WRITE):
        notes[note.number] = note
    return [notes[number] for number in range(plan.cut.file_count)]


def write_index(rows: TargetRows, staging: Staging, spark: "SparkSession | None") -> None:
    """Write queue, timer log or tables. A few million rows are written here, sooner than Spark
    begins a job; more are a task a file. Raises as ``write_logs``.
    """
    stage = IndexStage.of(rows, staging)
    if spark is None or len(rows) < _MANY_ROWS:
        parallel_map(stage.write, stage.files())
        return
    write = partial(_write_index_file, stage.stored(), _must_sync(spark))
    run_tasks(spark, stage.files(), write, lambda _: None, name="the index stage")


def _write_index_file(stage: IndexStage, durably: bool, file: tuple[str, int]) -> None:
    stage.write(file, durably=durably)


def _must_sync(spark: "SparkSession | None") -> bool:
    """Whether tasks sync what they write: only the machine that wrote can."""
    return spark is not None and not is_one_machine(spark.sparkContext.master)


def core_count(spark: "SparkSession | None", name: str) -> int:
    """The cores that Spark has by now, 1 without Spark. Raises MigrationError where it is gone."""
    try:
        return 1 if spark is None else spark.sparkContext.defaultParallelism
    except Exception as error:  # an AttributeError of a session that was stopped, or of Py4J
        raise MigrationError(f"Spark could not begin {name}: {reason_of(str(error))}") from error


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
