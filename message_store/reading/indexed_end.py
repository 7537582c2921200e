# SPDX-License-Identifier: Apache-2.0
"""Where the log at least reaches: the newest record that a consume queue points to."""

from pathlib import Path

import attrs
import numpy as np

from message_store.files.segments import SegmentReader, list_directories
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.reading.commit_log import NO_TIME, Int64Array, read_store_times
from message_store.reading.consume_queue import read_last_entry


@attrs.frozen
class IndexedEnd:
    """Up to where the log stands in consume queues, and when the last such record was stored."""

    log_offset: int
    store_timestamp_ms: int = NO_TIME


def find_indexed_end(
    root: Path, log: SegmentReader, *, queue_file_bytes: int | None = None
) -> IndexedEnd:
    """The end of the newest record that any consume queue of the store points to.

    Entries whose record is not where they say are skipped.
    """
    offsets, sizes = _newest_entries(root, queue_file_bytes)
    if not len(offsets):
        return IndexedEnd(log.min_offset)
    times = read_store_times(log, offsets, sizes)
    ends = np.where(times == NO_TIME, log.min_offset, offsets + sizes)
    newest = int(ends.argmax())
    return IndexedEnd(int(ends[newest]), int(times[newest]))


def find_claimed_end(root: Path, log: SegmentReader) -> int:
    """Up to where the newest entries of the consume queues say that records are, whether one can be
    read there or not: who only looks steps over damage up to there. 0 without entries.
    """
    offsets, sizes = _newest_entries(root, None)
    ends = offsets + sizes
    return int(ends[ends <= log.end_offset].max(initial=0))


def _newest_entries(root: Path, queue_file_bytes: int | None) -> tuple[Int64Array, Int64Array]:
    """Log offset and size of the newest entry of each consume queue of the store."""
    queues = StoreRoot(root).consume_queues
    directories = [queue for topic in list_directories(queues) for queue in list_directories(topic)]
    units = [
        read_last_entry(directory, file_bytes=queue_file_bytes).units for directory in directories
    ]
    last = np.concatenate(units) if units else np.empty(0, QUEUE_UNIT.dtype)
    return last["commit_log_offset"].astype(np.int64), last["size_bytes"].astype(np.int64)
