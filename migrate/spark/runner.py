# SPDX-License-Identifier: Apache-2.0
"""Runs a list of tasks as one Spark job, or in this process, and tells how far it is."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import attrs
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from message_store.base.errors import (
    DelayStoreError,
    FormatError,
    MigrationError,
    SourceError,
    TargetError,
)
from migrate.spark.session import reason_of

Task = TypeVar("Task")
Result = TypeVar("Result")

_POLL_SECONDS = 0.1
_ERRORS: tuple[type[DelayStoreError], ...] = (SourceError, TargetError, FormatError)


@attrs.frozen
class _Refusal:
    """An error of the store or the disk on its way back from a worker, as a value: raising it would
    make Spark try four times more.
    """

    kind: type[DelayStoreError]
    sentence: str


def _attempt(function: Callable[[Task], Result], task: Task) -> Result | _Refusal:
    """On a worker."""
    try:
        return function(task)
    except DelayStoreError as error:
        kind = next((known for known in _ERRORS if isinstance(error, known)), MigrationError)
        return _Refusal(kind, str(error))


def run_tasks(
    spark: SparkSession | None,
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    done: Callable[[int], None],
) -> list[Result]:
    """``function`` of every task, in order: one Spark task each, or, without a session, right here.

    ``done`` is called with the number of finished tasks as it grows. Tasks and results travel
    through the JVM, so both are numbers and never messages. Raises what ``function`` raises of the
    project's own errors, MigrationError when Spark gave up.
    """
    if spark is not None and tasks:
        return _run_job(spark, tasks, function, done)
    results = []
    for number, task in enumerate(tasks):
        results.append(function(task))
        done(number + 1)
    return results


def _run_job(
    spark: SparkSession,
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    done: Callable[[int], None],
) -> list[Result]:
    """The job runs in a thread of its own, so that this one can watch it."""
    context = spark.sparkContext
    group = f"verify-{id(tasks)}"
    outcomes: list[Result | _Refusal] = []
    errors: list[BaseException] = []

    def job() -> None:
        try:
            context.setJobGroup(group, "verify", interruptOnCancel=True)
            attempt = partial(_attempt, function)
            outcomes.extend(context.parallelize(tasks, len(tasks)).map(attempt).collect())
        except BaseException as error:
            errors.append(error)

    thread = InheritableThread(target=job, session=spark)
    thread.start()
    told = 0
    try:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            if (finished := _finished_tasks(spark, group)) > told:
                told = finished
                done(told)
    except BaseException:
        context.cancelJobGroup(group)
        raise
    if errors:
        raise _given_up(errors[0]) from errors[0]
    results: list[Result] = []
    for outcome in outcomes:
        if isinstance(outcome, _Refusal):
            raise outcome.kind(outcome.sentence)
        results.append(outcome)
    return results


def _given_up(error: BaseException) -> BaseException:
    """Whatever Py4J makes of a lost executor or a failed task, in one sentence."""
    if not isinstance(error, Exception):
        return error
    return MigrationError(f"Spark could not finish the verification: {reason_of(str(error))}")


def _finished_tasks(spark: SparkSession, group: str) -> int:
    tracker = spark.sparkContext.statusTracker()
    finished = 0
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job else ():
            stage = tracker.getStageInfo(stage_id)
            finished += stage.numCompletedTasks if stage else 0
    return finished
