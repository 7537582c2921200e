# SPDX-License-Identifier: Apache-2.0
"""What is done to a wheel before it is left to somebody else: everything that waits gets its unit,
and the units of what was dealt with go to a slot that is over, where a broker does not find them.
"""

from collections.abc import Iterator

import numpy as np

from message_store.byte_column import Int64s
from timer_wheel.live_timers import LiveTimers
from timer_wheel.put_away import PutAway, put_away_since
from timer_wheel.timer_rows import TimerRows
from timer_wheel.unplaced import EVERYTHING
from timer_wheel.wheel_math import floor_ms

_SLOTS_AT_ONCE = 4096
_NOTHING: Int64s = np.empty(0, np.int64)


def place_all(timers: LiveTimers, now_ms: int) -> None:
    """Place everything, also what is due: a broker that takes over finds it on the wheel."""
    timers.settle(now_ms)
    rest = timers.unplaced(EVERYTHING)
    is_done = np.isin(rest.rows.commit_log_offset, timers.done)
    timers.place_rest(rest, is_done, np.zeros(len(rest), bool), now_ms)
    if timers.is_repeating:
        _name_what_goes(timers)
    _take_done_off(timers)
    _put_passed_away(timers)
    timers.repeating_until_ms = 0
    timers.save()


def _name_what_goes(timers: LiveTimers) -> None:
    """Write down what is about to be put away, as far as it would be looked at after a kill."""
    own, units = timers.files.own, timers.log.all_units() if len(timers.done) else ()
    done = [rows.rows(np.isin(rows.commit_log_offset, timers.done)) for rows in units]
    rows = TimerRows.together([*_passed(timers), *done])
    first_ms = min(own.flushed_hand_ms, own.copies_hand_ms)
    rows = rows.rows(rows.slot_time_ms >= first_ms)
    # One who was killed while leaving had put away as well, since the same flush.
    rows = TimerRows.together([rows, put_away_since(timers.store.root, own.copies_from)])
    rows = rows.rows(np.unique(rows.commit_log_offset, return_index=True)[1])
    PutAway(own.copies_from, rows).write(timers.store.root)


def _put_passed_away(timers: LiveTimers) -> None:
    """Take what the hand had passed before it moved back out of its slots in the log."""
    past_ms = timers.wheel.hand_ms - timers.precision_ms
    for rows in _passed(timers):
        timers.log.put_away(rows, past_ms)


def _passed(timers: LiveTimers) -> Iterator[TimerRows]:
    """What the hand had passed before it moved back."""
    hand_ms, until_ms = timers.wheel.hand_ms, timers.repeating_until_ms
    if hand_ms >= until_ms:
        return
    waiting, _ = timers.log.walk(timers.wheel, timers.wheel.used_slots(until_ms))
    for rows in timers.log.all_units():
        is_passed = (rows.slot_time_ms >= hand_ms) & (rows.slot_time_ms < until_ms)
        is_passed &= ~np.isin(rows.position, waiting.position)
        yield rows.rows(is_passed)


def _take_done_off(timers: LiveTimers) -> None:
    """Take what was dealt with out of its slots: a broker would do it again."""
    log, wheel, done = timers.log, timers.wheel, timers.done
    slots = wheel.used_slots() if len(done) else _NOTHING
    for begin in range(0, len(slots), _SLOTS_AT_ONCE):
        rows, _ = log.walk(wheel, slots[begin : begin + _SLOTS_AT_ONCE])
        is_done = np.isin(rows.commit_log_offset, done)
        times = floor_ms(rows.slot_time_ms, timers.precision_ms)
        for slot_ms in np.unique(times[is_done]).tolist():
            in_slot = times == slot_ms
            kept, taken = rows.rows(in_slot & ~is_done), rows.rows(in_slot & is_done)
            log.rehang(kept, taken, wheel)
    for rows in log.all_units() if len(done) else ():  # what no chain leads to
        is_done = np.isin(rows.commit_log_offset, done) & (rows.slot_time_ms >= wheel.hand_ms)
        log.put_away(rows.rows(is_done), wheel.hand_ms - timers.precision_ms)
    timers.done = _NOTHING
