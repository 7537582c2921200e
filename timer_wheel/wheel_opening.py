# SPDX-License-Identifier: Apache-2.0
"""Opens the wheel of a store for writing: from the timer log, which is the truth, and from what the
checkpoint says.

The wheel file is not needed for it: units of the timer log are hung on an empty wheel in their
order, and the file is put right where it says otherwise. So a lost or torn wheel costs nothing, and
a snapshot adds nothing.
"""

import numpy as np

from message_store.errors import FormatError
from message_store.live_segments import LiveSegments
from message_store.live_store import LiveStore
from timer_wheel.live_timer_log import LiveTimerLog
from timer_wheel.live_timers import LiveTimers
from timer_wheel.live_wheel import LiveWheel
from timer_wheel.timer_due import is_overdue
from timer_wheel.timer_queue import SEARCHED_ENTRIES
from timer_wheel.wheel_files import WheelFiles
from timer_wheel.wheel_kernels import OVERDUE
from timer_wheel.wheel_math import DEFAULT_PRECISION_MS, floor_ms
from timer_wheel.wheel_settings import WheelSettings

_NO_SLOT = -1


def open_timers(store: LiveStore, settings: WheelSettings) -> LiveTimers:
    """The wheel of a store whose log and queues are whole. Raises SourceError and TargetError."""
    precision_ms = settings.precision_ms
    files = WheelFiles(store.root, store.clock, snapshots=settings.snapshots)
    segments = LiveSegments(
        store.root.timer_log, store.settings.timer_log_file_bytes, root=store.root.path
    )
    log = LiveTimerLog(segments)
    log.find_end()
    if not store.was_clean:
        _cut_what_the_log_lacks(log, store)
    hand_ms = floor_ms(files.found.last_read_time_ms, precision_ms)
    if hand_ms == 0:
        hand_ms = _first_hand_ms(log, store, precision_ms)
    wheel = LiveWheel(precision_ms, hand_ms)
    timers = LiveTimers(store, log, wheel, files, settings.window_slots)
    counts = log.revise(wheel)
    files.compare(wheel)
    timers.placed_end = _resume(timers)
    if counts[OVERDUE]:
        rows = log.find(None, _NO_SLOT, 0)
        is_early = is_overdue(rows.slot_time_ms) & (rows.slot_time_ms >= hand_ms)
        timers.early = rows.rows(is_early)
    return timers


def _first_hand_ms(log: LiveTimerLog, store: LiveStore, precision_ms: int) -> int:
    """Where the hand begins when no checkpoint says so: before every slot that is used."""
    now_ms = floor_ms(store.clock.now_ms(), precision_ms)
    times = [int(rows.slot_time_ms.min()) for rows in log.all_units()]
    return floor_ms(min([now_ms, *times]), precision_ms)


def _cut_what_the_log_lacks(log: LiveTimerLog, store: LiveStore) -> None:
    """After a crash: take away the units at the end whose records are not in the log, or whose
    second half was never written.
    """
    checked_from = 0
    for rows in log.all_units(checked_from):
        ends = rows.commit_log_offset + rows.size_bytes
        bad = np.flatnonzero((ends > store.log.end) | (rows.size_bytes <= 0))
        if len(bad):
            log.cut(int(rows.position[bad[0]]))
            return


def _resume(timers: LiveTimers) -> int:
    """The queue offset from which messages have no units: behind that of the last unit."""
    queue, found = timers.queue, timers.files.found
    last = timers.log.last_unit()
    placed = None
    if len(last):
        offset, size_bytes = int(last.commit_log_offset[0]), int(last.size_bytes[0])
        try:
            claimed = timers.store.log.record(offset, size_bytes).queue_offset
            placed = _entry_of(timers, claimed, offset)
        except FormatError:
            placed = None
    resume = found.last_queue_offset if placed is None else placed + 1
    resume = min(resume, max(found.master_queue_offset, 0)) if _has_checkpoint(timers) else resume
    return min(max(resume, queue.min_offset), queue.max_offset)


def _has_checkpoint(timers: LiveTimers) -> bool:
    """Whether the checkpoint says anything; a lost one must not have everything placed again."""
    return timers.files.found.master_queue_offset > 0 or timers.files.found.last_read_time_ms > 0


def _entry_of(timers: LiveTimers, claimed: int, offset: int) -> int:
    """Where in the queue a record stands; its own word is off where a broker rebuilt the queue."""
    lowest = max(0, claimed + 1 - SEARCHED_ENTRIES)
    units = timers.queue.units(lowest, claimed + 1)
    first = max(lowest, timers.queue.segments.min_offset // 20)
    found = np.flatnonzero(units["commit_log_offset"] == offset)
    return first + int(found[-1]) if len(found) else claimed


def precision_of(store: LiveStore, precision_ms: int | None) -> int:
    """The precision to use."""
    return precision_ms or DEFAULT_PRECISION_MS
