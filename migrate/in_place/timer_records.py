# SPDX-License-Identifier: Apache-2.0
"""The timer records of a change in place: checked first, all of them, and then made where they go.

The same rewriting as that of a fresh target, into memory that the open log hands out. Records are
read twice: what cannot be converted is known before the first byte of the store changes.
"""

import ctypes

import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import PlanError
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import END_OF_FILE_MIN_BYTES
from message_store.kernels.raw_memory import address_of
from migrate.plan.plan import Plan
from migrate.source.reader import NOT_THERE, Chunk, read_chunks
from migrate.source.topic_table import TopicTable
from migrate.spark.write_job import Progress
from migrate.write.rewrite import BadRecordError, Placement, RewriteLimits, rewrite_record
from migrate.write.rewrite_kernel import USUAL, rewrite_records

Int64Array = NDArray[np.int64]


class TimerRecords:
    """The records of a plan, to be written to a log in one go.

    ``bad`` and ``odd_sizes`` (after ``examine``) map indexes of the plan to a reason and to a size.
    ``tags_hashes`` are what the queue entries need.
    """

    def __init__(
        self, log: SegmentReader, root: StoreRoot, plan: Plan, outs_ms: Int64Array, first: int
    ) -> None:
        self.plan = plan
        self.bad: dict[int, str] = {}
        self.odd_sizes: dict[int, int] = {}
        self.bytes_read = 0
        self.tags_hashes = np.zeros(len(plan), np.int32)
        self._log = log
        self._root = root
        self._outs_ms = np.ascontiguousarray(outs_ms)
        self._first_queue_offset = first
        self._status = np.zeros(len(plan), np.uint8)
        self._topic_hashes = np.zeros(len(plan), np.int32)
        self._topics = TopicTable()
        settings = plan.settings
        self._limits = RewriteLimits(settings.record_max_bytes, settings.commit_log_file_bytes)

    def examine(self, progress: Progress) -> None:
        """Make every record and throw it away. Raises SourceError when the disk refuses."""
        plan, count = self.plan, len(self.plan)
        ends = np.cumsum(plan.target_sizes)
        starts = ends - plan.target_sizes
        for chunk in read_chunks(self._log, plan.source_offsets, plan.source_sizes):
            origin = int(starts[chunk.first])
            scratch = np.empty(int(ends[chunk.end - 1]) - origin, np.uint8)
            self._rewrite(chunk, 0, starts, address_of(scratch), origin)
            self.bytes_read += chunk.buffer_bytes
            progress("check", chunk.end, count)

    def fill(self, rows: slice, positions: Int64Array, target: int) -> None:
        """Make the records of some rows in memory, as ``LiveLog.append_rows`` wants it.

        Raises PlanError when they are not what ``examine`` saw.
        """
        plan = self.plan
        origin = int(positions[rows.start])
        for chunk in read_chunks(self._log, plan.source_offsets[rows], plan.source_sizes[rows]):
            place = target + int(positions[rows.start + chunk.first]) - origin
            first = int(positions[rows.start + chunk.first])
            self._rewrite(chunk, rows.start, positions, place, first)
        if self.bad or self.odd_sizes:
            raise PlanError(f"{self._root.path}: its records changed while they were read")

    def _rewrite(
        self, chunk: Chunk, shift: int, positions: Int64Array, target: int, origin: int
    ) -> None:
        """Make a chunk's records; ``shift`` is the row of the first record that chunks count from,
        ``target`` the address of the log byte ``origin``.
        """
        plan = self.plan
        first = shift + chunk.first
        span = slice(first, shift + chunk.end)
        limit = min(
            self._limits.record_max_bytes,
            self._limits.commit_log_file_bytes - END_OF_FILE_MIN_BYTES,
        )
        done = 0
        while True:
            done = rewrite_records(
                address_of(chunk.buffer), chunk.buffer_bytes, chunk.places,
                plan.source_sizes[span], plan.levels[span], plan.source_offsets[span],
                self._outs_ms[span], target, origin, positions[span], plan.target_sizes[span],
                self._first_queue_offset + first, plan.now_ms, limit,
                self._topics.address, self._status[span], self.tags_hashes[span],
                self._topic_hashes[span], done,
            )  # fmt: skip
            if done == chunk.end - chunk.first:
                break
            self._topics.grow()
        for at in np.flatnonzero(self._status[span] != USUAL).tolist():
            self._rewrite_unusual(chunk, at, first + at, positions, target, origin)

    def _rewrite_unusual(
        self, chunk: Chunk, at: int, row: int, positions: Int64Array, target: int, origin: int
    ) -> None:
        """Let the scalar code decide about a record that the kernel left out."""
        plan = self.plan
        placement = Placement(
            level=int(plan.levels[row]),
            source_offset=int(plan.source_offsets[row]),
            source_size_bytes=int(plan.source_sizes[row]),
            out_ms=int(self._outs_ms[row]),
            target_offset=int(positions[row]),
            target_queue_offset=self._first_queue_offset + row,
            now_ms=plan.now_ms,
        )
        place = int(chunk.places[at])
        try:
            if place == NOT_THERE:
                raise BadRecordError("the log ends before the record does, or has no such place")
            record = chunk.buffer[place : place + placement.source_size_bytes].tobytes()
            rewritten = rewrite_record(record, placement, self._limits)
        except BadRecordError as error:
            self.bad[row] = str(error)
            return
        if len(rewritten.record) != plan.target_sizes[row]:
            self.odd_sizes[row] = len(rewritten.record)
            return
        address = target + int(positions[row]) - origin
        ctypes.memmove(address, rewritten.record, len(rewritten.record))
        self.tags_hashes[row] = rewritten.tags_hash

    def units(self, positions: Int64Array) -> NDArray[np.void]:
        """The entries of the timer queue for records at these places."""
        units = np.empty(len(self.plan), QUEUE_UNIT.dtype)
        units["commit_log_offset"] = positions
        units["size_bytes"] = self.plan.target_sizes
        units["tags_code"] = self.tags_hashes
        return units
