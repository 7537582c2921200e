# SPDX-License-Identifier: Apache-2.0
"""The RocksDB timeline of RocketMQ 5.4 and newer (`timerRocksDBEnable`), read and never written.

Each message has an entry in the column family ``timer`` of ``rocksdbstore/``, ordered by time. Two
more keys say how far the timer queue was read, and up to when all was delivered (docs/FORMAT.md,
timeline). Entries stay for a while when they are delivered.
"""

from pathlib import Path

import attrs
import numpy as np

from message_store.base.errors import BadFieldError, UnsupportedStoreError
from message_store.base.printable import counted
from message_store.files.log_row import open_log
from message_store.files.rocksdb.view import FamilyView, has_database, holds_data, open_families
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.layout import Field, Layout
from timer_wheel.format.checkpoint import read_timer_checkpoint
from timer_wheel.format.timer_log import FLAG_DEFAULT, NO_POSITION, read_units
from timer_wheel.format.wheel_math import Int64Array
from timer_wheel.reading.pending_timers import NOT_IN_QUEUE, PendingTimers
from timer_wheel.reading.timer_queue import resume_queue_offset

TIMELINE_KEY = Layout(
    "timeline key, its head",
    (Field("out_ms", "i64", "TIMER_OUT_MS, not rounded; the UNIQ_KEY in UTF-8 follows"),),
)
TIMELINE_PLACE = Layout(
    "timeline entry",
    (
        Field("size_bytes", "i32", "the whole length of the record"),
        Field("commit_log_offset", "i64", "where the record begins in the commit log"),
    ),
)
TIMELINE_CHECKPOINT = Layout(
    "timeline checkpoint",
    (Field("checkpoint", "i64", "the next queue offset to read; the next second to deliver"),),
)

FAMILY = "timer"
SCAN_OFFSET_KEY = b"sys_topic_scan_offset_checkpoint"
DELIVERED_UNTIL_KEY = b"timeline_checkpoint"


@attrs.frozen(eq=False)
class Timeline:
    """What a timeline still has to deliver, one element a message, in order of time.

    ``scan_offset`` is the next offset of the timer queue that it will read, ``delivered_until_ms``
    the time before which all is delivered; None where it never delivered anything, and a broker
    then begins ten seconds before it starts.
    """

    scan_offset: int
    delivered_until_ms: int | None
    out_ms: Int64Array
    size_bytes: Int64Array
    commit_log_offset: Int64Array

    def __len__(self) -> int:
        return len(self.out_ms)

    @property
    def timers(self) -> PendingTimers:
        """The same as rows that are neither on the wheel nor in the queue."""
        nowhere = np.full(len(self), NO_POSITION, np.int64)
        return PendingTimers(
            position=nowhere,
            queue_offset=np.full(len(self), NOT_IN_QUEUE, np.int64),
            slot_time_ms=self.out_ms,
            flags=np.full(len(self), FLAG_DEFAULT, np.int64),
            commit_log_offset=self.commit_log_offset,
            size_bytes=self.size_bytes,
        )


def timeline_directory(root: StoreRoot) -> Path:
    """Where a broker of 5.4 or newer has its database: of the timeline, the index, transactions."""
    return root.path / "rocksdbstore"


def read_timeline(root: StoreRoot) -> Timeline | None:
    """The timeline of a store; None where none was ever used, or all of it was lost in a crash.

    Raises SourceError for a database that cannot be read, BadFieldError for an entry that is none,
    UnsupportedStoreError where rocksdict is not installed.
    """
    directory = timeline_directory(root)
    if not has_database(directory):
        return None
    try:
        with open_families(directory, FAMILY) as [family]:
            return _read(family, directory)
    except UnsupportedStoreError:
        if holds_data(directory):
            raise
        return None  # every broker of 5.4 makes a database, and most put nothing into it


def _read(family: FamilyView, directory: Path) -> Timeline | None:
    scan_offset = _checkpoint(family, SCAN_OFFSET_KEY, directory)
    delivered_until_ms = _checkpoint(family, DELIVERED_UNTIL_KEY, directory)
    times, places = bytearray(), bytearray()
    for key, value in family.entries(TIMELINE_KEY.encode(out_ms=delivered_until_ms or 0)):
        if key in (SCAN_OFFSET_KEY, DELIVERED_UNTIL_KEY):
            continue
        if len(key) <= TIMELINE_KEY.size or len(value) != TIMELINE_PLACE.size:
            raise BadFieldError("an entry that is none", path=directory, found=key.hex())
        times += key[: TIMELINE_KEY.size]
        places += value
    if scan_offset is None and delivered_until_ms is None and not times:
        return None
    place = np.frombuffer(places, TIMELINE_PLACE.dtype)
    return Timeline(
        scan_offset=scan_offset or 0,
        delivered_until_ms=delivered_until_ms,
        out_ms=np.frombuffer(times, TIMELINE_KEY.dtype)["out_ms"].astype(np.int64),
        size_bytes=place["size_bytes"].astype(np.int64),
        commit_log_offset=place["commit_log_offset"].astype(np.int64),
    )


def _checkpoint(family: FamilyView, key: bytes, directory: Path) -> int | None:
    value = family.get(key)
    if value is None:
        return None
    if len(value) != TIMELINE_CHECKPOINT.size:
        raise BadFieldError("a checkpoint that is none", path=directory, found=value.hex())
    return TIMELINE_CHECKPOINT.decode_at(value, 0)["checkpoint"]


def refuse_waiting_timeline(root: StoreRoot) -> None:
    """Raise UnsupportedStoreError for a store whose timers are a timeline's; SourceError and
    FormatError for one whose database cannot be read.
    """
    timeline = read_timeline(root)
    if timeline is None:
        return
    advice = (
        "let a broker with timerRocksDBEnable=true and timerRocksDBStopScan=true deliver them first"
    )
    if len(timeline):
        waiting = counted(len(timeline), "message waits", "messages wait")
        raise UnsupportedStoreError(
            f"{root.path}: {waiting} in its RocksDB timeline, which no engine here goes on with:"
            f" {advice}"
        )
    with SegmentReader(root.timer_log) as log, open_log(root) as commit_log:
        units, checkpoint = read_units(log), read_timer_checkpoint(root)
        resume = resume_queue_offset(root, commit_log, units, checkpoint)
    if timeline.scan_offset > resume:
        raise UnsupportedStoreError(
            f"{root.path}: a RocksDB timeline has read its timer queue up to"
            f" {timeline.scan_offset:,}, and the wheel only up to {resume:,}. The wheel would"
            f" deliver the messages between a second time; {advice}"
        )
