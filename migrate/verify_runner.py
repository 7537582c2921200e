# SPDX-License-Identifier: Apache-2.0
"""Runs a list of tasks as one Spark job, or in this process, and tells how far it is."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

_POLL_SECONDS = 0.1


def run_tasks(
    spark: SparkSession | None,
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    done: Callable[[int], None],
) -> list[Result]:
    """``function`` of every task, in order: one Spark task each, or, without a session, right here.

    ``done`` is called with the number of finished tasks as it grows. Tasks and results travel
    through the JVM, so both are numbers and never messages.
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
    results: list[Result] = []
    errors: list[BaseException] = []

    def job() -> None:
        try:
            context.setJobGroup(group, "verify", interruptOnCancel=True)
            results.extend(context.parallelize(tasks, len(tasks)).map(function).collect())
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
        raise errors[0]
    return results


def _finished_tasks(spark: SparkSession, group: str) -> int:
    tracker = spark.sparkContext.statusTracker()
    finished = 0
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job else ():
            stage = tracker.getStageInfo(stage_id)
            finished += stage.numCompletedTasks if stage else 0
    return finished
