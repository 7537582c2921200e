# SPDX-License-Identifier: Apache-2.0
"""Runs a list of tasks as one Spark job, or in this process; and the jobs of a conversion.

Tasks and results travel through the JVM, so they are numbers and counts, never messages. An empty
task costs 20 to 30 ms: a task of the write stage is a log file, usually a gibibyte.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from message_store.base.errors import DelayStoreError, TargetError
from message_store.base.parallel import parallel_map
from migrate.plan.stored_plan import StoredPlan
from migrate.plan.target_rows import TargetRows
from migrate.progress import Progress
from migrate.report.report import ConversionReport
from migrate.settings import ConvertOptions
from migrate.spark.cluster import sees_this_machine
from migrate.spark.jobs import run_each
from migrate.write.index_files import IndexStage
from migrate.write.log_file import FileNote, write_file
from migrate.write.publishing import is_publishing
from migrate.write.reserve import drop_losers, usable_attempts
from migrate.write.staging import Staging, take_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

_MANY_ROWS = 8 << 20
"""From so many on index files are tasks; a choice: four million take 0.2 s of two cores here."""
_WRITE = "the write stage"
SMALL_STORES = "small stores"
VERIFICATION = "the verification"


def write_logs(
    plan: StoredPlan, spark: "SparkSession | None", progress: Progress
) -> list[FileNote]:
    """Write every log file of a plan that was not written yet, a task each, in the order of their
    numbers; ``spark`` None does it in this process.

    Raises SourceError or TargetError as the writers did, MigrationError when Spark gave up.
    """
    count = plan.cut.file_count
    notes = usable_attempts(plan, lambda right: progress("write", min(right, count), count))
    missing = [number for number in range(count) if number not in notes]
    target = plan.staging.target.path.absolute()
    if missing and is_publishing(plan.staging):
        raise TargetError(
            f"{target}: log file {missing[0]} was damaged after it was published; empty the target"
            " and begin anew"
        )
    write = partial(write_file, target, plan.identity, _must_sync(spark))
    before = len(notes)

    def done(tasks: int) -> None:
        progress("write", before + tasks, count)

    done(0)
    for note in run_tasks(spark, missing, write, done, name=_WRITE):
        notes[note.number] = note
    done(len(missing))
    written = [notes[number] for number in range(count)]
    drop_losers(plan, written)
    return written


def write_index(rows: TargetRows, staging: Staging, spark: "SparkSession | None") -> None:
    """Write queue and timer log. A few million rows are written here, sooner than Spark
    begins a job; more are a task a file. Raises as ``write_logs``.
    """
    stage = IndexStage.of(rows, staging)
    if spark is None or len(rows) < _MANY_ROWS:
        written = parallel_map(stage.write, stage.files())
    else:
        write = partial(stage.stored().write, durably=_must_sync(spark))
        written = run_tasks(spark, stage.files(), write, lambda _: None, name="the index stage")
    for path, place in written:
        take_place(path, place)


def _must_sync(spark: "SparkSession | None") -> bool:
    """Whether tasks sync what they write: only the machine that wrote can."""
    return spark is not None and not sees_this_machine(spark)


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
    results: list[Result] = []
    if spark is not None and tasks:
        for outcome in run_each(spark, tasks, function, done, name):
            if isinstance(outcome, DelayStoreError):
                raise outcome
            results.append(outcome)
        return results
    for number, task in enumerate(tasks):
        results.append(function(task))
        done(number + 1)
    return results


def convert_stores(
    spark: "SparkSession",
    stores: Sequence[ConvertOptions],
    convert: Callable[[ConvertOptions], ConversionReport],
    progress: Progress,
) -> list[ConversionReport | DelayStoreError]:
    """Convert whole stores, a task each, in this order; an error of one is its result, and ends no
    other.

    Raises MigrationError when Spark gave up: then some of them may be converted.
    """

    def done(tasks: int) -> None:
        progress(SMALL_STORES, tasks, len(stores))

    done(0)
    name = f"the {SMALL_STORES}"
    results = run_each(spark, stores, convert, done, name, is_shuffled=False)
    done(len(stores))
    return results
