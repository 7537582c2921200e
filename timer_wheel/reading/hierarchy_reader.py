# SPDX-License-Identifier: Apache-2.0
"""Reads what waits on a stopped store's hierarchical wheel, in the words of a wheel's reader: slots
of a millisecond, each message in the one before its promise.

Limitation: the index is read whole, 36 bytes a message; what the queue has beyond it costs a look
at each record.
"""

import attrs
import numpy as np

from message_store.columns.byte_column import int64s
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from timer_wheel.format.checkpoint import TimerCheckpoint
from timer_wheel.format.hierarchy_due import due_times
from timer_wheel.format.index_layouts import Rows
from timer_wheel.format.timer_due import is_overdue
from timer_wheel.format.timer_log import FLAG_DEFAULT, FLAG_DELETE, FLAG_ROLL, read_units
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS
from timer_wheel.reading.delete_markers import Cancelled, cancelled
from timer_wheel.reading.done_already import EARLY_MS, read_log_since, still_to_do
from timer_wheel.reading.index_view import read_index
from timer_wheel.reading.ownership import read_active
from timer_wheel.reading.pending_timers import NOT_IN_QUEUE, PendingTimers
from timer_wheel.reading.state import WheelState
from timer_wheel.reading.timer_queue import waiting_in_queue

SLOT_MS = 1


def read_hierarchy(root: StoreRoot, *, after_crash: bool) -> WheelState:
    """What a hierarchical wheel holds; ``after_crash`` leaves out what the log shows as done since
    its index was written. Raises SourceError and FormatError.
    """
    content, active = read_index(root), read_active(root)
    slot_ms = DEFAULT_PRECISION_MS if active is None else active.slot_precision_ms
    placed_end = 0 if content.state is None else content.state.placed_end
    hand_ms = 0 if content.state is None else content.state.hand_ms
    with SegmentReader(root.timer_log) as log, SegmentReader(root.commit_log) as commit_log:
        in_index = _timers(content.waiting).followed_by(_timers(content.marks, FLAG_DELETE))
        is_there = in_index.commit_log_offset >= commit_log.min_offset
        in_queue, blocking = waiting_in_queue(root, commit_log, placed_end)
        timers = in_index.rows(is_there).followed_by(_by_promise(in_queue, slot_ms))
        done_count = 0
        if after_crash:
            first_ms = int(timers.slot_time_ms.min(initial=hand_ms)) - EARLY_MS
            since = read_log_since(root, commit_log, first_ms)
            timers = timers.followed_by(since.not_in_queue)
            recalled_at = _cancelled(timers, commit_log).recalled_at
            units = read_units(log, 0)
            timers, done_count = still_to_do(timers, units, commit_log, since, recalled_at)
        timers = attrs.evolve(timers, position=np.maximum(timers.position, 0))
        is_cancelled = _cancelled(timers, commit_log).recalled
    return WheelState(
        precision_ms=SLOT_MS,
        checkpoint=TimerCheckpoint(last_read_time_ms=hand_ms),
        read_time_ms=hand_ms,
        resume_queue_offset=placed_end,
        unit_count=len(in_index),
        slots_used=len(np.unique(content.slots_ms)),
        pending=timers.rows(~(is_cancelled | timers.is_marker)),
        markers=timers.rows(timers.is_marker),
        cancelled=timers.rows(is_cancelled),
        recalled_by_topic_count=0,
        done_already_count=done_count,
        expired_count=int((~is_there).sum()),
        blocking_queue_offsets=blocking,
        shared_positions=int64s([]),
        timeline=None,
    )


def _cancelled(timers: PendingTimers, commit_log: SegmentReader) -> Cancelled:
    """What was taken back, by the times in the records."""
    position, flags = np.maximum(timers.position, 0), timers.flags | FLAG_ROLL
    by_record = attrs.evolve(timers, position=position, flags=flags)
    return cancelled(by_record, commit_log, now_ms=0, precision_ms=SLOT_MS)


def _timers(rows: Rows, flags: int = 0) -> PendingTimers:
    count = len(rows)
    return PendingTimers(
        position=np.full(count, -1, np.int64),  # any of them may have been stored again
        queue_offset=np.full(count, NOT_IN_QUEUE, np.int64),
        slot_time_ms=int64s(rows["due_ms"]) - SLOT_MS,
        flags=np.full(count, FLAG_DEFAULT | flags, np.int64),
        commit_log_offset=int64s(rows["commit_log_offset"]),
        size_bytes=int64s(rows["size_bytes"]),
    )


def _by_promise(in_queue: PendingTimers, slot_ms: int) -> PendingTimers:
    """The same rows in the slots before their promises; what is due at once keeps its out time."""
    out_ms = in_queue.slot_time_ms
    slots = due_times(out_ms, out_ms, slot_ms) - SLOT_MS
    return attrs.evolve(in_queue, slot_time_ms=np.where(is_overdue(out_ms), out_ms, slots))
