# SPDX-License-Identifier: Apache-2.0
"""Rewrites a run of records in memory: usual ones by the kernel, others by the scalar code."""

import ctypes

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.format.record_layout import END_OF_FILE_MIN_BYTES
from message_store.kernels.raw_memory import address_of
from migrate.settings import TargetSettings
from migrate.source.record_reader import NO_RECORD, NOT_THERE, Chunk
from migrate.source.topic_table import TopicTable
from migrate.write.rewrite import BadRecordError, Placement, RewriteLimits, rewrite_record
from migrate.write.rewrite_kernel import USUAL, rewrite_records


@attrs.frozen(eq=False)
class RecordRewriter:
    """The messages, a row each: level (int16), source offset and size (int64, int32),
    ``TIMER_OUT_MS`` and target size (int64).

    The message of row 0 gets ``first_queue_offset`` in the timer queue. ``rewrite`` fills
    ``tags_hashes`` and ``topic_hashes``, a row each; ``topics`` counts real topics; ``bad`` maps
    rows to reasons, ``odd_sizes`` to sizes that the plan did not expect. Such records become zeros.
    """

    levels: NDArray[np.int16]
    source_offsets: NDArray[np.int64]
    source_sizes: NDArray[np.int32]
    outs_ms: NDArray[np.int64]
    target_sizes: NDArray[np.int64]
    first_queue_offset: int
    now_ms: int
    settings: TargetSettings
    topics: TopicTable = attrs.field(factory=TopicTable, init=False)
    bad: dict[int, str] = attrs.field(factory=dict, init=False)
    odd_sizes: dict[int, int] = attrs.field(factory=dict, init=False)
    tags_hashes: NDArray[np.int32] = attrs.field(init=False)
    topic_hashes: NDArray[np.int32] = attrs.field(init=False)
    _status: NDArray[np.uint8] = attrs.field(init=False)

    @tags_hashes.default
    @topic_hashes.default
    def _no_hashes(self) -> NDArray[np.int32]:
        return np.zeros(len(self.levels), np.int32)

    @_status.default
    def _no_status(self) -> NDArray[np.uint8]:
        return np.zeros(len(self.levels), np.uint8)

    def rewrite(
        self, chunk: Chunk, shift: int, positions: NDArray[np.int64], target: int, origin: int
    ) -> None:
        """Rewrite a chunk's records; ``shift`` is the row that the chunk counts from.

        ``positions`` are the target log offsets of all rows; ``target`` is the address of the log
        byte ``origin``, with room for the chunk's target sizes.
        """
        first = shift + chunk.first
        span = slice(first, shift + chunk.end)
        limits = self._limits
        longest = min(limits.record_max_bytes, limits.commit_log_file_bytes - END_OF_FILE_MIN_BYTES)
        done = 0
        while True:
            done = rewrite_records(
                address_of(chunk.buffer), chunk.buffer_bytes, chunk.buffer_offsets,
                self.source_sizes[span], self.levels[span], self.source_offsets[span],
                self.outs_ms[span], target, origin, positions[span], self.target_sizes[span],
                self.first_queue_offset + first, self.now_ms, longest,
                self.topics.address, self._status[span], self.tags_hashes[span],
                self.topic_hashes[span], done,
            )  # fmt: skip
            if done == chunk.end - chunk.first:
                break
            self.topics.grow()
        for index in np.flatnonzero(self._status[span] != USUAL).tolist():
            position = int(positions[first + index])
            self._rewrite_unusual(chunk, index, first + index, position, target + position - origin)

    @property
    def _limits(self) -> RewriteLimits:
        return RewriteLimits(self.settings.record_max_bytes, self.settings.commit_log_file_bytes)

    def _rewrite_unusual(
        self, chunk: Chunk, index: int, row: int, position: int, address: int
    ) -> None:
        """Let the scalar code decide about a record that the kernel left out."""
        planned_bytes = int(self.target_sizes[row])
        ctypes.memset(address, 0, planned_bytes)
        placement = Placement(
            level=int(self.levels[row]),
            source_offset=int(self.source_offsets[row]),
            source_size_bytes=int(self.source_sizes[row]),
            out_ms=int(self.outs_ms[row]),
            target_offset=position,
            target_queue_offset=self.first_queue_offset + row,
            now_ms=self.now_ms,
        )
        start = int(chunk.buffer_offsets[index])
        try:
            if start == NOT_THERE:
                raise BadRecordError(NO_RECORD)
            record = chunk.buffer[start : start + placement.source_size_bytes].tobytes()
            rewritten = rewrite_record(record, placement, self._limits)
        except BadRecordError as error:
            self.bad[row] = str(error)
            return
        if len(rewritten.record) != planned_bytes:
            self.odd_sizes[row] = len(rewritten.record)
            return
        ctypes.memmove(address, rewritten.record, planned_bytes)
        self.tags_hashes[row] = rewritten.tags_hash
        self.topic_hashes[row] = rewritten.topic_hash
        self.topics.add(rewritten.real_topic, rewritten.real_queue_id)
