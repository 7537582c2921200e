# SPDX-License-Identifier: Apache-2.0
"""Everything that a stopped store's timers have still to do: on the wheel, in the queue in front of
it, in a timeline; and less what the log shows as done.
"""

from collections.abc import Callable

import attrs
import numpy as np

from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.java_numbers import LONG_MAX
from message_store.format.properties import TIMER_ROLL_LABEL
from message_store.reading.consume_queue import read_queue
from timer_wheel.format.checkpoint import TimerCheckpoint
from timer_wheel.format.timer_log import TimerUnits
from timer_wheel.reading.delete_markers import Cancelled
from timer_wheel.reading.done_already import EARLY_MS, read_log_since, still_to_do
from timer_wheel.reading.pending_timers import PendingTimers, pending_records
from timer_wheel.reading.timeline import Timeline, read_timeline
from timer_wheel.reading.timer_queue import resume_queue_offset, waiting_in_queue


@attrs.frozen(eq=False)
class Outstanding:
    """Messages and delete markers that are to be dealt with, and what was left out of them.

    ``resume_queue_offset`` is where a broker reads the timer queue on.
    """

    timers: PendingTimers
    timeline: Timeline | None
    resume_queue_offset: int
    blocking_queue_offsets: tuple[int, ...] = ()
    done_already_count: int = 0
    expired_count: int = 0


def outstanding(
    root: StoreRoot,
    commit_log: SegmentReader,
    units: TimerUnits,
    placed: PendingTimers,
    checkpoint: TimerCheckpoint,
    cancelled_of: Callable[[PendingTimers], Cancelled],
    *,
    after_crash: bool,
) -> Outstanding:
    """What is on the wheel (``placed``), in the queue and in the timeline, and not yet done.

    What was done is looked for in the log after a crash, and wherever there is a timeline: one that
    delivers what is overdue at the end of the queue does not write that down. Without a checkpoint,
    with which a broker places and delivers everything again, the queue is read behind the last
    unit, and the log tells what was done.
    """
    timeline = read_timeline(root)
    resume = first_unread = resume_queue_offset(root, commit_log, units, checkpoint)
    if len(units) and checkpoint == TimerCheckpoint():
        nothing_noted = TimerCheckpoint(master_queue_offset=LONG_MAX)
        first_unread = resume_queue_offset(root, commit_log, units, nothing_noted)
        after_crash = True
    timers = placed
    if timeline is not None:
        scanned = min(timeline.scan_offset, read_queue(root.timer_queue()).queue_max)
        resume, first_unread = max(resume, scanned), max(first_unread, scanned)
        timers = timers.followed_by(timeline.timers)
    is_there = timers.commit_log_offset >= commit_log.min_offset
    expired_count = int((~is_there).sum())
    waiting, blocking = waiting_in_queue(root, commit_log, first_unread)
    in_timeline = timers.rows(is_there & timers.is_in_timeline)
    timers = timers.rows(is_there & ~timers.is_in_timeline).followed_by(waiting)
    timers = timers.followed_by(in_timeline)
    since_ms = _first_ms(timers)
    if after_crash:
        since_ms = min(checkpoint.last_read_time_ms, since_ms)
    since, done_count = None, 0
    if after_crash or (timeline is not None and since_ms <= newest_store_ms(root)):
        since = read_log_since(root, commit_log, since_ms)
    if since is not None and after_crash:
        timers = timers.followed_by(since.not_in_queue)
        blocking += since.blocking_queue_offsets
    if after_crash or timeline is not None:  # first, for what was delivered is the last of a series
        timers = _without_rolled(timers, commit_log)
    if since is not None:
        recalled_at = cancelled_of(timers).recalled_at
        timers, done_count = still_to_do(timers, units, commit_log, since, recalled_at)
    return Outstanding(timers, timeline, resume, blocking, done_count, expired_count)


def _first_ms(timers: PendingTimers) -> int:
    """Before which time nothing can have been done of what is not on the wheel."""
    times = timers.slot_time_ms[timers.position < 0]
    return int(times.min()) - EARLY_MS if len(times) else np.iinfo(np.int64).max


def newest_store_ms(root: StoreRoot) -> int:
    """When the last record of a store that was stopped cleanly was stored; the end of time where
    that is not known.
    """
    content = read_small_file(root.checkpoint)
    known_ms = StoreCheckpoint.decode(content or b"").commit_log_timestamp_ms
    return known_ms or np.iinfo(np.int64).max


def _without_rolled(timers: PendingTimers, commit_log: SegmentReader) -> PendingTimers:
    """The rows less those that a timeline has put round again: of equal time and key, where a later
    one says so of itself, only that one counts.
    """
    off_wheel = np.flatnonzero(timers.position < 0)
    times, counts = np.unique(timers.slot_time_ms[off_wheel], return_counts=True)
    is_shared = np.isin(timers.slot_time_ms[off_wheel], times[counts > 1])
    rows = off_wheel[is_shared]
    rows = rows[np.argsort(timers.commit_log_offset[rows], kind="stable")]
    is_superseded = np.zeros(len(timers), bool)
    known: dict[tuple[int, str | None], int] = {}
    chosen = timers.rows(rows)
    for row, out_ms, is_marker, message in zip(
        rows.tolist(),
        chosen.slot_time_ms.tolist(),
        chosen.is_marker.tolist(),
        pending_records(commit_log, chosen),
        strict=True,
    ):
        if message is None or is_marker:
            continue
        key = (out_ms, message.unique_key)
        if TIMER_ROLL_LABEL in message.properties and key in known:
            is_superseded[known[key]] = True
        known[key] = row
    return timers.rows(~is_superseded)
