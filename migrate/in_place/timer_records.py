# SPDX-License-Identifier: Apache-2.0
"""The timer records of a change in place: all of them are checked first, and then made where they
go.

The open log hands out the memory that they are rewritten into. Records are read twice, so that
those that cannot be converted are known before the first byte of the store changes.
"""

import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import PlanError
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.raw_memory import address_of
from migrate.plan.plan import Plan
from migrate.progress import Progress
from migrate.source.record_reader import read_chunks
from migrate.write.rewriter import RecordRewriter

Int64Array = NDArray[np.int64]


class TimerRecords:
    """The records of a plan, to be written to a log in one go.

    ``rewriter.bad`` and ``rewriter.odd_sizes`` (after ``examine``) map indexes of the plan to a
    reason and to a size.
    """

    def __init__(
        self, log: SegmentReader, root: StoreRoot, plan: Plan, outs_ms: Int64Array, first: int
    ) -> None:
        self.plan = plan
        self.bytes_read = 0
        self.rewriter = RecordRewriter(
            levels=plan.levels,
            source_offsets=plan.source_offsets,
            source_sizes=plan.source_sizes,
            outs_ms=np.ascontiguousarray(outs_ms),
            target_sizes=plan.target_sizes,
            first_queue_offset=first,
            now_ms=plan.now_ms,
            settings=plan.settings,
        )
        self._log = log
        self._root = root

    def examine(self, progress: Progress) -> None:
        """Make every record and throw it away. Raises SourceError when the disk refuses."""
        plan, count = self.plan, len(self.plan)
        ends = np.cumsum(plan.target_sizes)
        starts = ends - plan.target_sizes
        for chunk in read_chunks(self._log, plan.source_offsets, plan.source_sizes):
            origin = int(starts[chunk.first])
            scratch = np.empty(int(ends[chunk.end - 1]) - origin, np.uint8)
            self.rewriter.rewrite(chunk, 0, starts, address_of(scratch), origin)
            self.bytes_read += chunk.buffer_bytes
            progress("check", chunk.end, count)

    def fill(self, rows: slice, positions: Int64Array, target: int) -> None:
        """Make the records of some rows in memory, as the log's ``append_rows`` asks for them.

        Raises PlanError when they differ from those that ``examine`` saw.
        """
        plan, rewriter = self.plan, self.rewriter
        origin = int(positions[rows.start])
        for chunk in read_chunks(self._log, plan.source_offsets[rows], plan.source_sizes[rows]):
            first = int(positions[rows.start + chunk.first])
            rewriter.rewrite(chunk, rows.start, positions, target + first - origin, first)
        if rewriter.bad or rewriter.odd_sizes:
            raise PlanError(f"{self._root.path}: its records changed while they were read")

    def units(self, positions: Int64Array) -> NDArray[np.void]:
        """The timer queue entries of records at these offsets."""
        units = np.empty(len(self.plan), QUEUE_UNIT.dtype)
        units["commit_log_offset"] = positions
        units["size_bytes"] = self.plan.target_sizes
        units["tags_code"] = self.rewriter.tags_hashes
        return units
