# SPDX-License-Identifier: Apache-2.0
"""A wheel of another precision: refused while messages wait on it, or made anew.

A slot holds its time divided by the precision, so that a broker which is given another one finds
nothing where it looks: what waits is lost. Rebuilt, every message that waits gets the slot that
ends at or after its promise. What was taken back stays behind, and so does what took it back: in a
wider slot that would take away what lies beside its target. The new units begin a new file that
nothing leads to until the checkpoint says that the log begins there; then the old files go.
"""

import numpy as np

from message_store.base.errors import PrecisionError, UnsupportedStoreError
from timer_wheel.format.older_slots import MOST_WIDTHS
from timer_wheel.format.timer_due import OVERDUE_MARK_MS, is_overdue, write_times
from timer_wheel.format.wheel_math import floor_ms, needs_roll
from timer_wheel.timers.recall import marker_offsets
from timer_wheel.timers.rows import TimerRows
from timer_wheel.timers.unit_kernels import SLOT_TIME, WRITE_TIME
from timer_wheel.wheel.leaving import place_all
from timer_wheel.wheel.live_timers import LiveTimers
from timer_wheel.wheel.recall_search import find_markers
from timer_wheel.wheel.settings import WheelSettings
from timer_wheel.wheel.slots import LiveWheel
from timer_wheel.wheel.unit_repair import with_right_flags, write_flags


def has_units(timers: LiveTimers) -> bool:
    """Whether anything is on the wheel or on its way there, also what was dealt with."""
    on_its_way = timers.placed_end < timers.queue.max_offset
    return on_its_way or len(timers.wheel.used_slots()) > 0


def refuse(timers: LiveTimers, precision_ms: int) -> PrecisionError:
    """What to raise for a wheel with another precision."""
    kept_ms = timers.precision_ms
    way_out = f"Open it with precision_ms={kept_ms}, or with on_precision_change='rebuild'"
    return PrecisionError(timers.store.root.path, kept_ms, precision_ms, way_out)


def rebuilt(timers: LiveTimers, settings: WheelSettings) -> LiveTimers:
    """The same messages on a wheel of another precision.

    Raises UnsupportedStoreError for a finer one when messages are to roll: those would be placed
    again by their records, which know the old precision, and come too early. And where messages
    wait from before more changes than are remembered. What is refused has changed no unit.

    Raises TargetError when the disk refuses.
    """
    now_ms = timers.store.clock.now_ms()
    place_all(timers, now_ms)
    rows, mended = _waiting(timers)
    _refuse_too_many_widths(timers, rows)
    rows = rows.rows(np.argsort(rows.commit_log_offset, kind="stable"))
    wheel = LiveWheel(settings.precision_ms, floor_ms(timers.wheel.hand_ms, settings.precision_ms))
    _give_slots(rows, timers, wheel, now_ms)
    far = needs_roll(rows.slot_time_ms, now_ms, wheel.precision_ms, settings.roll_window_slots)
    if settings.precision_ms < timers.precision_ms and (rows.is_roll | far).any():
        raise UnsupportedStoreError(
            f"{timers.store.root.path}: messages that are to roll would come early on a wheel with"
            f" finer slots; deliver them first with precision_ms={timers.precision_ms}"
        )
    write_flags(timers, mended)
    return _moved(timers, _with_last_unit(rows, timers, wheel), wheel, settings)


def _refuse_too_many_widths(timers: LiveTimers, rows: TimerRows) -> None:
    until = timers.older.until_next_change
    if until and (marker_offsets(rows.commit_log_offset, timers.facts(rows)) < until).any():
        raise UnsupportedStoreError(
            f"{timers.store.root.path}: messages wait from before the last"
            f" {MOST_WIDTHS - 1} changes of precision; deliver them first"
            f" with precision_ms={timers.precision_ms}"
        )


def _waiting(timers: LiveTimers) -> tuple[TimerRows, TimerRows]:
    """What is on the wheel, but for what takes back and what was taken back; and the units whose
    flags contradict their records, with the right ones.
    """
    rows = timers.in_slots(timers.wheel.used_slots())
    mended = with_right_flags(rows, timers.facts(rows))
    marks = find_markers(timers, timers.wheel.hand_ms, mended=mended)
    if len(marks):
        facts = timers.facts(rows, keys=True)
        rows = rows.rows(~marks.take_away(rows.commit_log_offset, facts))
    return rows.rows(~rows.is_marker), mended


def _give_slots(rows: TimerRows, timers: LiveTimers, wheel: LiveWheel, now_ms: int) -> None:
    """The slots whose ends are the first at or after the promises."""
    ends = floor_ms(rows.slot_time_ms, timers.precision_ms) + timers.precision_ms
    slots = floor_ms(ends - 1, wheel.precision_ms)
    overdue = np.maximum(floor_ms(rows.slot_time_ms, wheel.precision_ms), wheel.hand_ms)
    is_late = is_overdue(rows.slot_time_ms)
    rows.table[SLOT_TIME] = np.where(is_late, overdue + OVERDUE_MARK_MS, slots)
    rows.table[WRITE_TIME] = write_times(rows.slot_time_ms, now_ms, wheel.precision_ms)


def _with_last_unit(rows: TimerRows, timers: LiveTimers, wheel: LiveWheel) -> TimerRows:
    """The rows and, where the newest queue entry is not among them, a unit for it before the hand:
    the last unit tells where placing goes on.
    """
    last = timers.log.last_unit()
    if len(rows) and last.commit_log_offset[0] <= rows.commit_log_offset[-1]:
        return rows
    last.table[WRITE_TIME] = wheel.hand_ms - wheel.precision_ms
    last.table[SLOT_TIME] = last.table[WRITE_TIME] + OVERDUE_MARK_MS  # a search comes upon it
    return TimerRows.together([rows, last])


def _moved(
    timers: LiveTimers, rows: TimerRows, wheel: LiveWheel, settings: WheelSettings
) -> LiveTimers:
    log, files = timers.log, timers.files
    begin = -(-log.end // log.file_bytes) * log.file_bytes
    log.end = begin
    log.append(rows, wheel)
    log.segments.sync()
    made = LiveTimers(
        timers.store,
        log,
        wheel,
        files,
        settings.roll_window_slots,
        log_begins=begin,
        older=timers.older.followed_by(timers.store.log.end, timers.precision_ms),
    )
    made.placed_end, made.has_rolled = timers.placed_end, timers.has_rolled
    made.metrics.is_known = False
    made.early = rows.rows(is_overdue(rows.slot_time_ms) & (rows.slot_time_ms >= wheel.hand_ms))
    files.own = made.state_to_flush()
    made.save()
    files.sync_checkpoint(0, files.own, made.placed_end)
    log.segments.delete_before(begin)
    files.forget_wheel()
    return made
