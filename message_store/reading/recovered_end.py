# SPDX-License-Identifier: Apache-2.0
"""Where recovery begins to read the log of a store that was not stopped cleanly, and where it would
let the log end.

After a loss of power the log may have a hole, and whole records behind it. A broker that starts
ends the log at the hole, and so does an engine: what was delivered behind it is in no topic then.
So such a delivery must not tell a reader that its message is done.
"""

from collections.abc import Callable, Sequence
from zlib import crc32

import attrs
import numpy as np

from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.java_numbers import LONG_MAX
from message_store.format.record_layout import BLANK_RECORD, SMALLEST_RECORD_BYTES
from message_store.kernels.dispatch import find_torn
from message_store.kernels.log import NO_RECORD, PARTS, WALKED, walk_window
from message_store.reading.commit_log import (
    NO_TIME,
    LogWalk,
    first_store_times,
    read_store_times,
)
from message_store.reading.indexed_end import find_indexed_end


def on_disk_until(root: StoreRoot, log: SegmentReader) -> int:
    """The commit log offset before which log and queues were on the disk, as ``recovery_start`` has
    it; ``LONG_MAX`` of a store that was stopped cleanly. Raises SourceError.
    """
    return LONG_MAX if root.was_stopped_cleanly else _start(_checkpoint(root)[0], log)


def recovered_end(root: StoreRoot, log: SegmentReader) -> int:
    """The commit log offset where recovery would end the log; ``LONG_MAX`` of a store that was
    stopped cleanly. Behind it may be whole records. Raises SourceError.

    Records that were not synced end it also where they lost a sector that no checksum covers. In a
    DLedger log the heads of entries alone say where it ends.
    RocketMQ: CommitLog#recoverAbnormally (4.9.7).
    """
    if root.was_stopped_cleanly:
        return LONG_MAX
    checkpoint, nothing_was_synced = _checkpoint(root)
    start, offset = _start(checkpoint, log), checkpoint.queue_commit_log_offset
    synced = -1 if offset == 0 or nothing_was_synced else offset
    walk, file_bytes = LogWalk(log, known_end=start), log.file_bytes
    walked, parts = np.zeros(WALKED, np.int64), np.zeros(PARTS, np.int64)

    def visit(address: int, length: int, base: int, room: int) -> tuple[int, int]:
        walk_window(address, length, base, room, walked)
        place, why, file_start = int(walked[1]), int(walked[2]), base - base % file_bytes
        if base >= log.entries_from:
            return place, why
        torn = find_torn(address, place, base, file_start, synced, parts)
        return (place, why) if torn < 0 else (torn, NO_RECORD)

    end = walk.run(start, visit)
    if end > log.entries_from:
        return end
    last_synced = None if synced < 0 and not nothing_was_synced else synced
    places = [each for each in walk.damaged_places if not _was_lost(root, log, each, last_synced)]
    return min(places, default=end)


@attrs.frozen(eq=False)
class RecoveredLog:
    """A log as recovery would leave it, for those who only read: it ends at ``end``."""

    reader: SegmentReader
    end: int

    @property
    def min_offset(self) -> int:
        """Where the log begins."""
        return self.reader.min_offset

    def head_checksum(self, offset: int) -> int:
        """CRC-32 of the record's first 91 bytes, as ``LiveLog.head_checksum`` has it."""
        if not self.min_offset <= offset <= self.end - SMALLEST_RECORD_BYTES:
            return 0
        return crc32(self.reader.read_at(offset, SMALLEST_RECORD_BYTES))


def _was_lost(root: StoreRoot, log: SegmentReader, place: int, last_synced: int | None) -> bool:
    """Whether a file that holds nothing begins here which was on the disk: recovery steps over it.
    Brokers before 5.5 do not note what was; the newest record that a queue leads to tells.
    """
    if place % log.file_bytes or any(log.read_at(place, BLANK_RECORD.size)):
        return False
    if last_synced is None:
        last_synced = find_indexed_end(root.path, log).log_offset
    return place < last_synced


def _checkpoint(root: StoreRoot) -> tuple[StoreCheckpoint, bool]:
    """The checkpoint, and whether it says that nothing was ever synced."""
    content = read_small_file(root.checkpoint)
    checkpoint = StoreCheckpoint.decode(content or b"")
    return checkpoint, content is not None and checkpoint.commit_log_timestamp_ms == 0


def _start(checkpoint: StoreCheckpoint, log: SegmentReader) -> int:
    def is_record(offset: int) -> bool:
        return bool(read_store_times(log, np.array([offset], np.int64))[0] != NO_TIME)

    begun = first_store_times(log)
    return recovery_start(checkpoint, begun, is_record, log.min_offset, log.file_bytes)


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
