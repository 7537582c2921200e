# SPDX-License-Identifier: Apache-2.0
"""One Spark job, a Spark task for each of a list of tasks, in any session that the caller has.

The job runs in a thread of its own. What Spark keeps for a thread (tags, description) is set there,
so the caller's thread has nothing to restore, also after an error. Ctrl-C reaches the caller's
thread, which waits and holds no connection to the JVM. The thread inherits the caller's own tags,
job group and pool: who cancels those cancels this job too.
"""

import gc
import pickle
import random
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from message_store.base.errors import DelayStoreError, MigrationError
from message_store.files.places import named_places, with_places
from migrate.spark.cluster import attempts_elsewhere, context_of, reason_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

_POLL_SECONDS = 0.1
_ORDER_SEED = 20
_DESCRIPTION = "spark.job.description"


def run_each(
    spark: "SparkSession",
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    done: Callable[[int], None],
    name: str,
    *,
    is_shuffled: bool = True,
) -> list[Result | DelayStoreError]:
    """``function`` of every task, in their order; see ``run_tasks``. An error of a task is its
    result: it ends no other.

    Spark gets them in another order, the same each time: a slow stretch of a log is not the last.
    Not ``is_shuffled``: in their own. Raises MigrationError when Spark gave up.
    """
    order = list(range(len(tasks)))
    if is_shuffled:
        random.Random(_ORDER_SEED).shuffle(order)
    placed = partial(with_places, named_places(), function)
    try:
        outcomes = _collected(spark, [(n, _pickled(tasks[n])) for n in order], placed, done, name)
    except _JobError as error:
        reason = reason_of(str(error.__cause__))
        raise MigrationError(f"Spark could not finish {name}: {reason}") from error.__cause__
    return [outcomes[number] for number in range(len(tasks))]


class _JobError(Exception):
    """Its cause is what Spark raised: Py4J and gRPC have many kinds for what ended or failed."""


def _pickled(value: object) -> bytes:
    """Also of what a notebook or a test has defined, which ``pickle`` alone cannot do."""
    from pyspark import cloudpickle

    content: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return content


# --- on the driver --------------------------------------------------------------------------------


def _collected(
    spark: "SparkSession",
    packed: Sequence[tuple[int, bytes]],
    function: Callable[[Task], Result],
    done: Callable[[int], None],
    name: str,
) -> dict[int, Result | DelayStoreError]:
    """The outcome of each task, by its number. Raises _JobError, and what ``done`` raises."""
    from pyspark.util import InheritableThread

    context = context_of(spark)
    tag = f"delaywheel-{secrets.token_hex(6)}"
    handle = _ConnectJob(spark, tag) if context is None else _ClassicJob(context, tag)
    result: Future[dict[int, Result | DelayStoreError]] = Future()

    def collect() -> None:
        try:
            with_attempts = partial(_attempts, function, packed, attempts_elsewhere(spark))
            numbers = spark.range(0, len(packed), 1, len(packed))
            job = numbers.mapInArrow(with_attempts, "number long, outcome binary")
            handle.begin(f"delaywheel: {name}")
            try:
                rows = job.collect()
            finally:
                handle.end()
            result.set_result({row[0]: pickle.loads(row[1]) for row in rows})
        except BaseException as error:
            result.set_exception(error)

    try:
        InheritableThread(target=collect, session=spark, name="spark-job", daemon=True).start()
    except Exception as error:
        raise _JobError from error
    _wait(result, handle, done)
    try:
        return result.result()
    except Exception as error:
        raise _JobError from error


def _wait(
    result: "Future[Any]", handle: "_ClassicJob | _ConnectJob", done: Callable[[int], None]
) -> None:
    """Call ``done`` until there is a result; whatever ends the waiting early cancels the job."""
    try:
        finished = 0
        while not wait([result], timeout=_POLL_SECONDS).done:
            with suppress(Exception):  # the job itself says what is wrong with Spark
                finished = max(finished, handle.finished())
            done(finished)
    except BaseException:
        with suppress(Exception):
            handle.cancel()
            while not wait([result], timeout=_POLL_SECONDS).done:
                handle.cancel()  # the first came before the job
        raise


class _ClassicJob:
    """A job of a session with a context: marked in its own thread, looked at or cancelled from
    another. A tag of the session would do nothing here: only the thread that has added one can
    interrupt it, and that thread waits for the job.
    """

    def __init__(self, context: "SparkContext", tag: str) -> None:
        self._context = context
        self._tag = tag
        self._description: str | None = None

    def begin(self, description: str) -> None:
        self._description = self._context.getLocalProperty(_DESCRIPTION)
        self._context.setJobDescription(description)
        self._context.setInterruptOnCancel(True)
        self._context.addJobTag(self._tag)

    def end(self) -> None:
        """Where PYSPARK_PIN_THREAD is off, the JVM's thread is used again for others' jobs."""
        before: Any = self._description  # None clears
        with suppress(Exception):  # a JVM that has ended has no later jobs
            self._context.removeJobTag(self._tag)
            self._context.setLocalProperty(_DESCRIPTION, before)

    def finished(self) -> int:
        tracker = self._context.statusTracker()
        finished = 0
        # PySpark's own tracker finds jobs by group only; a group of ours would hide the caller's.
        for job_id in self._context._jsc.sc().statusTracker().getJobIdsForTag(self._tag):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job else ():
                stage = tracker.getStageInfo(stage_id)
                finished += stage.numCompletedTasks if stage else 0
        return finished

    def cancel(self) -> None:
        self._context.cancelJobsWithTag(self._tag)


class _ConnectJob:
    """A job through Spark Connect. Its progress comes to the thread that reads its results."""

    def __init__(self, spark: "SparkSession", tag: str) -> None:
        self._spark: Any = spark  # whose types want more of a handler than its manual does
        self._tag = tag
        self._thread: int | None = None
        self._finished = 0

    def begin(self, _description: str) -> None:
        self._thread = threading.get_ident()
        self._spark.addTag(self._tag)
        self._spark.registerProgressHandler(self._hear)

    def end(self) -> None:
        with suppress(Exception):
            self._spark.removeProgressHandler(self._hear)
            self._spark.removeTag(self._tag)

    def _hear(self, *, stages: Iterable[Any] | None, **_rest: Any) -> None:
        if threading.get_ident() == self._thread:  # handlers hear of all jobs of the session
            self._finished = sum(stage.num_completed_tasks for stage in stages or ())

    def finished(self) -> int:
        return self._finished

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)


# --- on a worker ----------------------------------------------------------------------------------


def _attempts(
    function: Callable[[Task], Result],
    packed: Sequence[tuple[int, bytes]],
    max_attempts: int | None,
    batches: "Iterable[pa.RecordBatch]",
) -> "Iterator[pa.RecordBatch]":
    """Numbers of packed tasks become numbers of tasks and their pickled outcomes."""
    import pyarrow as pa

    for batch in batches:
        for row in batch.column(0).to_pylist():
            number, task = packed[row]
            outcome = _pickled(_attempt(function, pickle.loads(task), max_attempts))
            _freeze_imports()
            columns = [pa.array([number], pa.int64()), pa.array([outcome], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["number", "outcome"])


def _attempt(
    function: Callable[[Task], Result], task: Task, max_attempts: int | None
) -> Result | DelayStoreError:
    """Damage of the data is the same on every machine, so it is a value: Spark would repeat a task
    that raises it. An error of the disk may be of this machine alone. It is raised, and Spark tries
    the task again, but for the last time.
    """
    try:
        return function(task)
    except DelayStoreError as error:
        if max_attempts is not None and _is_of_disk(error) and _may_follow(max_attempts):
            raise
        return error


def _is_of_disk(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError):
            return True
        error = error.__cause__
    return False


def _may_follow(max_attempts: int) -> bool:
    """Whether Spark would try the task of this process again."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() + 1 < max_attempts


@cache
def _freeze_imports() -> None:
    """Hide what a first task has imported from the garbage collector, once a worker: Spark runs a
    full collection after each task, and compiled kernels are a great many objects.
    """
    gc.freeze()
