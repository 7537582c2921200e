# SPDX-License-Identifier: Apache-2.0
"""Cuts both sides into tasks, runs them as one job, and adds up what they answer."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import TargetError, reason_of
from message_store.base.parallel import parallel_map
from message_store.files.array_room import row_blocks
from message_store.files.small_files import PRIVATE_MODE, replace_file
from message_store.files.store_root import StoreRoot
from migrate.progress import Progress
from migrate.spark.tasks import run_tasks
from migrate.verify.found import Grouping
from migrate.verify.tasks import DigestResult, DigestTask, Side, digest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

_TASK_MAX_ENTRIES = 1 << 21
"""A task takes 50 ms of processor time beside its records; a lost one is done again."""
_TASK_MIN_ENTRIES = 20_000
_INLINE_BYTES = 256 << 10
"""Entries of a task up to this size travel with it; more are laid down as a file."""


@attrs.frozen(eq=False)
class SideEntries:
    """What one side should hold, in the order of its log (rows of the side's layout)."""

    side: Side
    store: StoreRoot
    entries: NDArray[np.void]
    file_bytes: int | None = None
    topics: tuple[str, ...] = ()


@attrs.frozen(eq=False)
class DigestJobs:
    """How jobs are run: where, in how many tasks a side, with which seed and rules."""

    spark: "SparkSession | None"
    seed: int
    rules: tuple[int, int, int, int]
    progress: Progress
    parallelism: int = 1
    scratch: Path | None = None

    def run(
        self,
        stage: str,
        sides: Sequence[SideEntries],
        *,
        identities: tuple[int, ...] = (),
        buckets: NDArray[np.bool_] | None = None,
        grouping: Grouping | None = None,
    ) -> dict[Side, DigestResult]:
        """Digest all sides in one job.

        Target records with one of these ``identities``, or records of both sides in these
        ``buckets``, are returned one by one. With ``grouping`` they are returned in blocks.
        """
        wanted = None if buckets is None else buckets.tobytes()
        entries_bytes = sum(side.entries.nbytes for side in sides)
        is_needed = self.spark is not None and entries_bytes > _INLINE_BYTES
        with self.scratch_directory(is_needed=is_needed) as directory:
            tasks = [
                attrs.evolve(task, grouping=grouping)
                for side in sides
                for task in self._tasks(side, directory, identities, wanted)
            ]
            results = self.map(stage, tasks, digest)
        return {
            side.side: reduce(
                DigestResult.plus, [result for result in results if result.side == side.side]
            )
            for side in sides
        }

    def map(
        self,
        stage: str,
        tasks: Sequence[Task],
        function: Callable[[Task], Result],
        *,
        is_here: bool = False,
    ) -> list[Result]:
        """``function`` of every task, in order, in one job; or in this process, and unannounced,
        where they are small.
        """
        if is_here:
            return [function(task) for task in tasks]
        count = len(tasks)
        self.progress(stage, 0, count)
        results = run_tasks(
            self.spark, tasks, function, lambda done: self.progress(stage, done, count)
        )
        self.progress(stage, count, count)
        return results

    @contextmanager
    def scratch_directory(self, *, is_needed: bool) -> Iterator[Path | None]:
        """A directory for what is too much to travel with the tasks; None where nothing is. It is
        removed afterwards. Raises TargetError.
        """
        if not is_needed:
            yield None
            return
        with ExitStack() as stack:
            try:
                made = tempfile.TemporaryDirectory(prefix="delaywheel-verify-", dir=self.scratch)
            except OSError as error:
                path = error.filename or self.scratch
                raise TargetError(f"{path}: cannot be written: {reason_of(error)}") from error
            yield Path(stack.enter_context(made)).absolute()

    def _tasks(
        self,
        side: SideEntries,
        directory: Path | None,
        identities: tuple[int, ...],
        buckets: bytes | None,
    ) -> list[DigestTask]:
        def task(cut: tuple[int, int]) -> DigestTask:
            first, last = cut
            entries = side.entries[first:last]
            path = None
            if directory is not None and entries.nbytes > _INLINE_BYTES:
                path = directory / f"{side.side}-{first}"
                content = np.ascontiguousarray(entries).view(np.uint8).data
                replace_file(path, content, mode=PRIVATE_MODE, is_durable=False)
            return DigestTask(
                side=side.side,
                store=side.store.path.absolute(),
                entries=path or entries,
                count=last - first,
                first_number=first,
                seed=self.seed,
                rules=self.rules,
                file_bytes=side.file_bytes,
                topics=side.topics,
                identities=identities if side.side == "target" else (),
                buckets=buckets,
            )

        return parallel_map(task, pairwise(_cuts(side.entries, self.parallelism)))


def _cuts(entries: NDArray[np.void], parallelism: int) -> list[int]:
    """Where tasks begin and end: equal bytes of log, a bounded number of entries, at least one."""
    count = len(entries)
    tasks = min(max(parallelism, count // _TASK_MAX_ENTRIES + 1), count // _TASK_MIN_ENTRIES + 1)
    blocks = list(row_blocks(count))
    ends = np.cumsum([0, *(_log_bytes(entries[rows]).sum() for rows in blocks)])
    inner = []
    for wanted in np.arange(1, tasks) * int(ends[-1]) // tasks:
        block = int(np.searchsorted(ends, wanted, side="right")) - 1
        rows = blocks[min(block, len(blocks) - 1)]
        sums = int(ends[block]) + np.cumsum(_log_bytes(entries[rows]))
        inner.append(rows.start + int(np.searchsorted(sums, wanted)))
    cuts = [0, *(cut for cut in sorted(set(inner)) if 0 < cut < count), count]
    return [0, *(end for first, last in pairwise(cuts) for end in _ends(first, last))]


def _log_bytes(entries: NDArray[np.void]) -> NDArray[np.int64]:
    """How much of the log each entry takes."""
    found: NDArray[np.int64] = np.maximum(entries["size_bytes"], 0).astype(np.int64)
    return found


def _ends(first: int, last: int) -> list[int]:
    """Where the pieces of one stretch end, none with more entries than a task may have."""
    pieces = max(1, -(-(last - first) // _TASK_MAX_ENTRIES))
    return [first + (last - first) * (piece + 1) // pieces for piece in range(pieces)]
