# SPDX-License-Identifier: Apache-2.0
"""Where recovery would let the log of a store end that was not stopped cleanly.

After a loss of power the log may have a hole, and whole records behind it. A broker that starts
ends the log at the hole, and so does an engine: what was delivered behind it is in no topic then.
So such a delivery must not tell a reader that its message is done.
"""

from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.java_numbers import LONG_MAX
from message_store.reading.commit_log import find_log_end, first_store_times


def recovered_end(root: StoreRoot, log: SegmentReader) -> int:
    """The commit log offset from which recovery takes records away, though some behind it are
    whole; ``LONG_MAX`` where that does not come about. Raises SourceError.

    Nothing that was known to be on the disk is taken away: damage there is no tear.
    RocketMQ: CommitLog#recoverAbnormally (4.9.7).
    """
    if root.was_stopped_cleanly:
        return LONG_MAX
    checkpoint = StoreCheckpoint.decode(read_small_file(root.checkpoint) or b"")
    begun = first_store_times(log)
    on_disk = [begin for begin, ms in begun if ms <= checkpoint.recover_from_ms]
    start = max(on_disk, default=log.min_offset)
    if _is_of_our_making(checkpoint, begun, log.file_bytes):
        start = max(start, checkpoint.queue_commit_log_offset)
    places = find_log_end(log, from_offset=start).damaged_places
    return min(places, default=LONG_MAX)


def _is_of_our_making(
    checkpoint: StoreCheckpoint, begun: list[tuple[int, int]], file_bytes: int
) -> bool:
    """Whether an open store of ours wrote this: then a record was synced that begins where it says.
    A broker's offset only says what was put into queues.
    """
    place = checkpoint.queue_commit_log_offset
    begun_ms = dict(begun).get(place - place % max(1, file_bytes), 0)
    return 0 < begun_ms == checkpoint.commit_log_timestamp_ms == checkpoint.queue_timestamp_ms
