# SPDX-License-Identifier: Apache-2.0
"""Which engine may go on with a store that a broker of 5.4 or newer ran with its RocksDB timeline.

Ours deliver from the wheel: what waits in a timeline they would place again from the timer queue,
and with it what the timeline has already delivered. So such a store is refused, until its timeline
is empty and a wheel has taken the queue over.
"""

from message_store.base.errors import UnsupportedStoreError
from message_store.base.printable import counted
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from timer_wheel.format.checkpoint import read_timer_checkpoint
from timer_wheel.format.timer_log import read_units
from timer_wheel.reading.timeline import read_timeline
from timer_wheel.reading.timer_queue import resume_queue_offset


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
    with SegmentReader(root.timer_log) as log, SegmentReader(root.commit_log) as commit_log:
        units, checkpoint = read_units(log), read_timer_checkpoint(root)
        resume = resume_queue_offset(root, commit_log, units, checkpoint)
    if timeline.scan_offset > resume:
        raise UnsupportedStoreError(
            f"{root.path}: a RocksDB timeline has read its timer queue up to"
            f" {timeline.scan_offset:,}, and the wheel only up to {resume:,}: it would deliver what"
            f" is between them again; {advice}"
        )
