# SPDX-License-Identifier: Apache-2.0
"""One job in the caller's own session: what comes home, and what it leaves behind, which is
nothing.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from message_store.base.errors import (
    DelayStoreError,
    MigrationError,
    SourceError,
    TargetError,
)
from migrate.spark import jobs
from migrate.spark.tasks import run_tasks
from tests.migrate.standalone_cluster import wait_for

THREAD_PROPERTIES = (
    "spark.jobGroup.id",
    "spark.job.description",
    "spark.job.interruptOnCancel",
    "spark.job.tags",
    "spark.scheduler.pool",
)
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def silent(_done: int) -> None:
    pass


def where(task: int) -> tuple[int, int, int]:
    """The task, Spark's partition, and how many tasks this attempt has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return task, context.partitionId(), context.taskAttemptId()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def fail(_task: int) -> None:
    raise ZeroDivisionError


def wait_until_idle(spark: SparkSession) -> None:
    """Spark's tracker hears of the end of a job a moment later than its caller."""
    tracker = spark.sparkContext.statusTracker()
    wait_for("the end of the job", lambda: not tracker.getActiveJobsIds())


@contextmanager
def configured(spark: SparkSession, **values: str) -> Iterator[None]:
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(name)


@pytest.mark.spark
def test_each_task_is_one_of_spark_s_and_results_are_in_the_order_asked(
    spark: SparkSession,
) -> None:
    results = run_tasks(spark, range(40, 60), where, silent)
    assert [task for task, _, _ in results] == [*range(40, 60)]
    partitions = [partition for _, partition, _ in results]
    assert sorted(partitions) == [*range(20)]
    assert len({attempt for _, _, attempt in results}) == 20
    assert partitions != sorted(partitions), "the last stretch of a log is the last task"
    assert partitions == [
        partition for _, partition, _ in run_tasks(spark, range(40, 60), where, silent)
    ]


@pytest.mark.check
@pytest.mark.spark
@pytest.mark.parametrize(
    "conf",
    [
        {LARGE: "true"},
        {ROWS: "1"},
        {"spark.sql.execution.arrow.pyspark.enabled": "true"},
        {"spark.sql.adaptive.enabled": "false"},
        {"spark.sql.adaptive.coalescePartitions.parallelismFirst": "false"},
        {"spark.sql.leafNodeDefaultParallelism": "1"},
        {"spark.sql.ansi.enabled": "false"},
    ],
)
def test_the_caller_s_configuration_changes_no_result(
    spark: SparkSession, conf: dict[str, str]
) -> None:
    with configured(spark, **conf):
        results = run_tasks(spark, range(5), where, silent)
        assert {name: spark.conf.get(name) for name in conf} == conf
    assert [task for task, _, _ in results] == [*range(5)]
    assert sorted(partition for _, partition, _ in results) == [*range(5)]


@contextmanager
def as_a_caller_left_it(spark: SparkSession) -> Iterator[None]:
    """The caller has a group, a tag and a pool, and has them afterwards, as all the session's
    configuration.
    """
    context = spark.sparkContext
    context.setJobGroup("the caller's", "what the caller does", interruptOnCancel=False)
    context.setLocalProperty("spark.scheduler.pool", "slow")
    spark.addTag("of-the-caller")
    before = [context.getLocalProperty(name) for name in THREAD_PROPERTIES]
    conf = spark.conf.getAll
    try:
        yield
        assert [context.getLocalProperty(name) for name in THREAD_PROPERTIES] == before
        assert spark.getTags() == {"of-the-caller"}
        assert spark.conf.getAll == conf
        wait_until_idle(spark)
    finally:
        spark.removeTag("of-the-caller")
        for name in THREAD_PROPERTIES:
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None clears


@pytest.mark.spark
def test_the_caller_s_thread_is_left_as_it_was(spark: SparkSession) -> None:
    with as_a_caller_left_it(spark):
        assert run_tasks(spark, [0.0], sleep, silent) == [None]


@pytest.mark.spark
def test_it_is_left_as_it_was_after_a_failure(spark: SparkSession) -> None:
    with (
        as_a_caller_left_it(spark),
        pytest.raises(MigrationError, match="could not finish the verification: ZeroDivisionError"),
    ):
        run_tasks(spark, [1], fail, silent)


@pytest.mark.check
@pytest.mark.spark
def test_ctrl_c_ends_the_job_and_leaves_all_as_it_was(spark: SparkSession) -> None:
    def press(_done: int) -> None:
        if spark.sparkContext.statusTracker().getActiveJobsIds():
            raise KeyboardInterrupt

    with as_a_caller_left_it(spark), pytest.raises(KeyboardInterrupt):
        run_tasks(spark, [600.0, 600.0], sleep, press)
    assert run_tasks(spark, [1, 2], partial(max, 0), silent) == [1, 2]


@pytest.mark.check
@pytest.mark.spark
def test_ctrl_c_before_the_job_has_begun_ends_it_too(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def press(_done: int) -> None:
        raise KeyboardInterrupt

    def work(path: Path) -> None:
        time.sleep(600)
        path.touch()

    monkeypatch.setattr(jobs, "_POLL_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run_tasks(spark, [tmp_path / "worked"], work, press)
    wait_until_idle(spark)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.check
@pytest.mark.spark
def test_who_cancels_the_caller_s_group_cancels_its_job(spark: SparkSession) -> None:
    context = spark.sparkContext

    def cancel(_done: int) -> None:
        if context.statusTracker().getJobIdsForGroup("of-a-notebook"):
            context.cancelJobGroup("of-a-notebook")

    context.setJobGroup("of-a-notebook", "a cell", interruptOnCancel=True)
    try:
        with pytest.raises(MigrationError, match="could not finish"):
            run_tasks(spark, [600.0], sleep, cancel)
    finally:
        for name in THREAD_PROPERTIES:
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None clears


@pytest.mark.check
@pytest.mark.spark
def test_progress_counts_finished_tasks(spark: SparkSession) -> None:
    seen: list[int] = []
    run_tasks(spark, [0.3] * 8, sleep, seen.append)
    assert seen == sorted(seen)
    assert 0 < max(seen) <= 8


# --- whose fault an error is ----------------------------------------------------------------------


def error_of(kind: type[DelayStoreError], number: int | None) -> DelayStoreError:
    """As the product raises it, with the disk's error as its cause, or without."""
    try:
        try:
            if number is not None:
                raise OSError(number, "of the disk")
        except OSError as error:
            raise kind("/logs/0: cannot be used") from error
        raise kind("/logs/0: cannot be used")
    except DelayStoreError as error:
        return error


@pytest.mark.parametrize("kind", [SourceError, TargetError, MigrationError])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE, None])
@pytest.mark.parametrize(
    ("attempt", "max_attempts"), [(0, 4), (2, 4), (3, 4), (9, 4), (0, 1), (0, None)]
)
def test_an_error_of_the_disk_is_raised_on_a_cluster_but_the_last_time(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[DelayStoreError],
    number: int | None,
    attempt: int,
    max_attempts: int | None,
) -> None:
    context = SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: context)

    def refuse(_task: int) -> None:
        raise error_of(kind, number)

    if number is not None and max_attempts is not None and attempt + 1 < max_attempts:
        with pytest.raises(kind, match=r"^/logs/0: cannot be used$"):
            jobs._attempt(refuse, 0, max_attempts)
    else:
        outcome = jobs._attempt(refuse, 0, max_attempts)
        assert (type(outcome), str(outcome)) == (kind, "/logs/0: cannot be used")


@pytest.mark.check
@pytest.mark.spark
@pytest.mark.parametrize("number", [errno.EIO, None])
def test_on_this_machine_an_error_of_the_disk_is_tried_once(
    spark: SparkSession, number: int | None
) -> None:
    def refuse(_task: int) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        assert context.attemptNumber() == 0
        raise error_of(TargetError, number)

    with pytest.raises(TargetError, match=r"^/logs/0: cannot be used$"):
        run_tasks(spark, [1], refuse, silent)
