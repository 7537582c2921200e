# SPDX-License-Identifier: Apache-2.0
"""Where the log at least reaches: the newest record that a consume queue points to."""

from pathlib import Path

import attrs
import numpy as np

from message_store.files.segments import SegmentReader, list_directories
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX
from message_store.format.properties import LMQ_PREFIX
from message_store.reading.commit_log import NO_TIME, read_store_times
from message_store.reading.consume_queue import read_last_entries, read_last_entry

RECENT_BYTES = 8 << 20
"""So much of the log's end is asked where queues may have lost entries: 7 to 9 ms."""

_MOST_LOST_FILES = 64
"""An entry that leads further behind the log's end is damaged."""


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
    units = [
        read_last_entry(directory, file_bytes=queue_file_bytes).units
        for directory in _queue_directories(root)
    ]
    if not any(map(len, units)):
        return IndexedEnd(log.min_offset)
    last = np.concatenate(units)
    offsets, sizes = (last[name].astype(np.int64) for name in ("commit_log_offset", "size_bytes"))
    times = read_store_times(log, offsets, sizes)
    ends = np.where(times == NO_TIME, log.min_offset, offsets + sizes)
    newest = int(ends.argmax())
    return IndexedEnd(int(ends[newest]), int(times[newest]))


def newest_places(root: Path) -> set[int]:
    """The log offsets that the newest entries of the consume queues name, whether a record can be
    read there or not: who only looks steps over damage up to the last of them.
    """
    newest = [read_last_entry(each) for each in _queue_directories(root)]
    return {int(at) for each in newest for at in each.commit_log_offset[~each.is_pre_blank]}


def places_behind(root: Path, log: SegmentReader, *, in_lost_files: bool) -> list[int]:
    """The log offsets, in order, that the last two entries of queues name, where nothing begins and
    behind which no file of the log begins with anything. A single one may be damage of the entry.

    Others may be what a broker left behind the end of a queue that it cut after a loss of power; it
    zeroes nothing there. ``in_lost_files`` are only those of files of which the log has nothing.
    """
    found = [np.empty(0, np.int64)]
    for directory in _queue_directories(root):
        if not directory.parent.name.startswith(LMQ_PREFIX):
            last = read_last_entries(directory, 2)
            found.append(last.commit_log_offset[~last.is_pre_blank].astype(np.int64))
    used = [each.start_offset for each in log.segments if log.has_data_at(each.start_offset)]
    first = max(used, default=LONG_MAX) + (log.file_bytes if in_lost_files and used else 0)
    end = log.end_offset + _MOST_LOST_FILES * log.file_bytes
    places = np.unique(np.concatenate(found))
    places = places[(places >= first) & (places < end)]
    return [at for at in places.tolist() if not log.has_data_at(at)]


def _queue_directories(root: Path) -> list[Path]:
    topics = list_directories(StoreRoot(root).consume_queues)
    return [queue for topic in topics for queue in list_directories(topic)]
