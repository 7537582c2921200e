# SPDX-License-Identifier: Apache-2.0
"""Where recovery begins to read the log of a store that was not stopped cleanly, and where it would
let the log end.

After a loss of power the log may have a hole, and whole records behind it. A broker that starts
ends the log at the hole, and so does an engine: what was delivered behind it is in no topic then.
So such a delivery must not tell a reader that its message is done.
"""

from collections.abc import Callable, Sequence

import numpy as np

from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.java_numbers import LONG_MAX
from message_store.reading.commit_log import (
    NO_TIME,
    find_log_end,
    first_store_times,
    read_store_times,
)


def on_disk_until(root: StoreRoot, log: SegmentReader) -> int:
    """The commit log offset before which log and queues were on the disk, as ``recovery_start`` has
    it; ``LONG_MAX`` of a store that was stopped cleanly. Raises SourceError.
    """
    if root.was_stopped_cleanly:
        return LONG_MAX
    checkpoint = StoreCheckpoint.decode(read_small_file(root.checkpoint) or b"")

    def is_record(offset: int) -> bool:
        return bool(read_store_times(log, np.array([offset], np.int64))[0] != NO_TIME)

    begun = first_store_times(log)
    return recovery_start(checkpoint, begun, is_record, log.min_offset, log.file_bytes)


def recovered_end(root: StoreRoot, log: SegmentReader) -> int:
    """The commit log offset where recovery would end the log; ``LONG_MAX`` of a store that was
    stopped cleanly. Behind it may be whole records. Raises SourceError.
    RocketMQ: CommitLog#recoverAbnormally (4.9.7).
    """
    start = on_disk_until(root, log)
    if start == LONG_MAX:
        return LONG_MAX
    found = find_log_end(log, from_offset=start)
    return min(found.damaged_places, default=found.log_end)


def recovery_start(
    checkpoint: StoreCheckpoint,
    begun: Sequence[tuple[int, int]],
    is_record: Callable[[int], bool],
    log_min: int,
    file_bytes: int,
) -> int:
    """The commit log offset of a record before which all is on disk, or of the first in its file.

    ``begun`` are where files begin, and when their first records were stored: 0 where none is.
    RocketMQ: CommitLog#isMappedFileMatchedRecover (4.9.7).
    """
    place = checkpoint.queue_commit_log_offset
    is_one = place > 0 and is_record(place)
    if is_one and _is_of_our_making(checkpoint, dict(begun), file_bytes):
        return place
    if is_one or 0 < place < log_min + file_bytes:
        limit = place
    else:
        passed = [start for start, ms in begun if 0 < ms <= checkpoint.recover_from_ms]
        limit = max(passed, default=log_min)
    whole = [start for start, _ in begun if start <= limit and is_record(start)]
    return max(whole, default=log_min)


def _is_of_our_making(checkpoint: StoreCheckpoint, begun: dict[int, int], file_bytes: int) -> bool:
    """Whether an open delaywheel store wrote this checkpoint: then everything before its offset was
    synced. A broker's offset only says what was dispatched.
    """
    place = checkpoint.queue_commit_log_offset
    begun_ms = begun.get(place - place % file_bytes, 0)
    return 0 < begun_ms == checkpoint.commit_log_timestamp_ms == checkpoint.queue_timestamp_ms
