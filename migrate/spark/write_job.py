# SPDX-License-Identifier: Apache-2.0
"""The Spark job of the write stage: few tasks, each a run of parts; numbers come back, never
payload.

A task costs 12 to 30 ms of nothing in Spark and in its worker, so there are two a core, not one a
part; but never more than 16 parts a task, because cores may come later than the job begins. A part
is the unit of resuming, a task the unit of scheduling.
"""

import gc
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from message_store.base.errors import DelayStoreError, MigrationError, SourceError, TargetError
from migrate.spark.master import is_one_machine
from migrate.spark.session import reason_of
from migrate.write.part import write_parts
from migrate.write.staging import Staging, count_receipts

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, how much is done, and of how much."""

TASKS_PER_CORE = 2
PARTS_PER_TASK = 16
_POLL_SECONDS = 0.2
_GROUP_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
_ERRORS = {"SourceError": SourceError, "TargetError": TargetError}


def write_all(
    staging: Staging, part_count: int, spark: SparkSession | None, progress: Progress
) -> None:
    """Write every part that has no receipt yet; ``spark`` None does it in this process.

    Raises SourceError or TargetError as the writers did, MigrationError when Spark gave up.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_SECONDS):
            progress("write", count_receipts(staging), part_count)

    watcher = threading.Thread(target=watch, name="write-progress", daemon=True)
    watcher.start()
    try:
        if spark is None:
            outcomes = list(
                _write_task(str(staging.target.path), staging.identity, [(0, part_count)])
            )
        else:
            outcomes = _run_on_spark(spark, staging, part_count)
    finally:
        done.set()
        watcher.join()
    progress("write", count_receipts(staging), part_count)
    for kind, sentence in outcomes:
        if kind:
            raise _ERRORS.get(kind, MigrationError)(sentence)


def _run_on_spark(spark: SparkSession, staging: Staging, part_count: int) -> list[tuple[str, str]]:
    context = spark.sparkContext
    target = str(staging.target.path.absolute())
    durably = not is_one_machine(context.master)
    write = partial(_write_on_executor, target, staging.identity, durably)
    group = f"delaywheel-{secrets.token_hex(6)}"
    try:
        task_count = count_tasks(part_count, context.defaultParallelism)
        bounds = [part_count * task // task_count for task in range(task_count + 1)]
        with _job_group(context, group):
            runs = context.parallelize(list(pairwise(bounds)), task_count)
            return list(runs.mapPartitions(write).collect())
    except KeyboardInterrupt:
        context.cancelJobGroup(group)  # a session of the caller's own lives on
        raise
    except Exception as error:  # whatever Py4J makes of a failed task, or of a JVM that is gone
        raise MigrationError(
            f"Spark could not finish the write stage: {reason_of(str(error))}"
        ) from error


def count_tasks(part_count: int, core_count: int) -> int:
    """How many tasks write so many parts, with so many cores there by now.

    >>> count_tasks(160_000, 2), count_tasks(160_000, 20_000), count_tasks(20, 8), count_tasks(0, 8)
    (10000, 40000, 16, 1)
    """
    wanted = max(TASKS_PER_CORE * core_count, -(-part_count // PARTS_PER_TASK))
    return max(1, min(part_count, wanted))


@contextmanager
def _job_group(context: SparkContext, group: str) -> Iterator[None]:
    """Jobs of the ``with`` block are of this group; later ones of the caller's are what they were
    before.
    """
    before = {name: context.getLocalProperty(name) for name in _GROUP_PROPERTIES}
    context.setJobGroup(group, "delaywheel: write", interruptOnCancel=True)
    try:
        yield
    finally:
        with suppress(Exception):  # a JVM that is gone has no later jobs
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None clears


@cache
def _settle() -> None:
    """Take what is imported by now out of the garbage collector's sight, once a worker: Spark lets
    it look through everything after each task, and compiled kernels are a great many objects.
    """
    gc.freeze()


def _write_on_executor(
    target: str, identity: str, durably: bool, runs: Iterable[tuple[int, int]]
) -> Iterator[tuple[str, str]]:
    _settle()
    return _write_task(target, identity, runs, durably=durably)


def _write_task(
    target: str, identity: str, runs: Iterable[tuple[int, int]], *, durably: bool = False
) -> Iterator[tuple[str, str]]:
    """On an executor: write the parts of each run; yields ("", "") or the kind and sentence of an
    error.

    An error of the store or the disk comes back as a value: raising it would make Spark try four
    times more.
    """
    for first, end in runs:
        try:
            for _number in write_parts(Path(target), range(first, end), identity, durably=durably):
                pass
        except DelayStoreError as error:
            kind = next(
                (name for name, known in _ERRORS.items() if isinstance(error, known)), "other"
            )
            yield kind, str(error)
        else:
            yield "", ""
