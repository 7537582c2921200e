# SPDX-License-Identifier: Apache-2.0
"""Prepares a wheel for its next owner. Every pending message gets its unit. Units of messages that
are done go to a slot that is over, where a broker does not find them.
"""

from collections.abc import Callable

import numpy as np

from timer_wheel.format.timer_due import OVERDUE_MARK_MS
from timer_wheel.format.timer_log import NO_POSITION
from timer_wheel.format.wheel_math import effective_read_time_ms, floor_ms
from timer_wheel.timers.recall import RecallMarks
from timer_wheel.timers.rows import Bools, TimerFacts, TimerRows, Unplaced
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.log import LiveTimerLog
from timer_wheel.wheel.recovery import move_to
from timer_wheel.wheel.slots import LiveWheel

_SLOTS_AT_ONCE = 4096


Marks = Callable[[], RecallMarks]
"""The delete markers of a wheel; looking for them takes a walk of its units."""


def place_all(timers: LiveTimers, now_ms: int, marks: Marks) -> None:
    """Place everything, also what is due: a broker that takes over finds it on the wheel.

    Where old messages keep the hand so far back that such a broker does not read their slots, what
    is in the queue stays there: it would lie within a round of the hand, and be lost with them.
    """
    if timers.placed_end < timers.queue.max_offset:
        move_to_first_read(timers, now_ms, marks())
    hand_ms = timers.wheel.hand_ms
    if hand_ms >= effective_read_time_ms(hand_ms, now_ms, timers.precision_ms):
        timers.place_queued(now_ms)
        _place_rest(timers, timers.unplaced(EVERYTHING, keys=True), now_ms, marks)
    if len(timers.done):
        _leave_only_what_waits(timers)
    timers.save()


def place_markers(timers: LiveTimers, rest: Unplaced, now_ms: int, marks: Marks) -> None:
    """Place the whole rest of the queue if a delete marker is in it: a broker that starts late
    skips a marker in the queue, and delivers what it took.
    """
    if rest.facts.is_marker.any() and _place_rest(timers, rest, now_ms, marks):
        _leave_only_what_waits(timers)


def _place_rest(timers: LiveTimers, rest: Unplaced, now_ms: int, marks: Marks) -> bool:
    """Place the rest of the queue; returns whether the wheel still holds cancelled messages whose
    slots are over. A broker would roll such, and their markers, and then obey none.
    """
    if not len(rest) and not len(timers.early):
        return False
    known = marks()
    move_to_first_read(timers, now_ms, known)
    is_over = _are_over(timers, rest.rows, rest.facts, known)
    early = timers.early
    on_wheel = early.rows(_are_over(timers, early, timers.facts(early, keys=True), known))
    timers.mark_done(on_wheel)
    is_done = is_over | np.isin(rest.rows.commit_log_offset, timers.done)
    timers.place_rest(rest, is_done, is_over, now_ms)
    return len(on_wheel) > 0


def move_to_first_read(timers: LiveTimers, now_ms: int, marks: RecallMarks) -> None:
    """Move the hand to where a broker begins to read that starts now: what would be parked within a
    round of a hand before that it would not read. No farther: the clock may be wrong.
    """
    hand_ms = timers.wheel.hand_ms
    first_read_ms = effective_read_time_ms(hand_ms, now_ms, timers.precision_ms)
    if first_read_ms > hand_ms:
        move_to(timers, first_read_ms, marks)


def _are_over(timers: LiveTimers, rows: TimerRows, facts: TimerFacts, marks: RecallMarks) -> Bools:
    """Which are cancelled messages and delete markers that the hand has passed."""
    is_over: Bools = facts.is_marker | marks.take_away(rows.commit_log_offset, facts)
    is_over &= facts.is_fine & (facts.out_ms < timers.wheel.hand_ms)
    return is_over


def _leave_only_what_waits(timers: LiveTimers) -> None:
    """Put away units that a reader of slots and timer log would find again. They leave their chains
    first, durably: a chain through one of them would end there.
    """
    goes = _what_goes(timers)
    if len(goes):
        timers.store.sync_log()  # what tells that they are done must outlive them
        _unhang_done(timers, int(goes.slot_time_ms.max()) + timers.precision_ms)
        timers.store.sync_or_break(timers.log.segments.sync)
        timers.files.write_wheel(timers.wheel, timers.log.end)
        timers.store.sync_or_break(timers.files.sync_wheel)
        timers.save_durably()  # a hand before it would find again what is put behind it
        past_ms = timers.wheel.hand_ms - timers.precision_ms
        put_away(
            timers.log, goes, past_ms, lambda: timers.store.sync_or_break(timers.log.segments.sync)
        )
    timers.all_on_wheel_waits()


def _what_goes(timers: LiveTimers) -> TimerRows:
    """Units in slots to come whose messages are done."""
    parts = [TimerRows.empty()]
    for rows in timers.log.all_units():
        is_there = rows.slot_time_ms >= timers.wheel.hand_ms
        parts.append(rows.rows(is_there & np.isin(rows.commit_log_offset, timers.done)))
    return TimerRows.together(parts)


def _unhang_done(timers: LiveTimers, until_ms: int) -> None:
    """Take what is done off its chains."""
    log, wheel = timers.log, timers.wheel
    slots = wheel.used_slots(until_ms)
    for begin in range(0, len(slots), _SLOTS_AT_ONCE):
        rows, _ = log.walk(wheel, slots[begin : begin + _SLOTS_AT_ONCE])
        is_done = np.isin(rows.commit_log_offset, timers.done)
        times = floor_ms(rows.slot_time_ms, timers.precision_ms)
        for slot_ms in np.unique(times[is_done]).tolist():
            in_slot = times == slot_ms
            unhang(log, wheel, rows.rows(in_slot), is_done[in_slot])


def unhang(log: LiveTimerLog, wheel: LiveWheel, chain: TimerRows, is_taken: Bools) -> None:
    """Take units off the chain of one slot: every unit of it, taken or not, comes to lead to the
    next below that is not.

    So whatever of this is on the disk, and whichever units are put away next, all that is kept is
    found from the slot, and from any unit above it. Raises TargetError.
    """
    slot = int(chain.slot_time_ms[0]) // wheel.precision_ms
    below, kept_below = None, NO_POSITION
    for position, taken in zip(chain.position.tolist(), is_taken.tolist(), strict=True):
        if below != kept_below:
            log.overwrite(position, previous_position=kept_below)
        below = position
        kept_below = kept_below if taken else position
    kept = chain.rows(~is_taken)
    count = len(kept) - 2 * int(kept.is_marker.sum())
    wheel.set_slot(slot, kept.position, count)


def put_away(log: LiveTimerLog, rows: TimerRows, past_ms: int, sync: Callable[[], None]) -> None:
    """Put units into a slot that is over, so that no reader takes them for pending; by the mark
    of what was overdue a search of the log still comes upon them.

    Nothing leads on from them, since what they were hung on is of another slot; nor may anything
    that waits hang on them by then, on the disk too. ``sync`` syncs the log. Raises TargetError.

    Whatever of it is on the disk, a unit is in its old slot with its old link, which leads to all
    that is kept below it, or in the slot that is over: the delay alone moves it, four bytes that no
    sector's edge divides, and only when that is on the disk does the link go.
    """
    out_ms = past_ms + OVERDUE_MARK_MS
    for position, write_ms in zip(rows.position.tolist(), rows.write_time_ms.tolist(), strict=True):
        if abs(out_ms - write_ms) < 2**31:
            log.overwrite(position, delay_ms=out_ms - write_ms)
        else:  # placed so long ago, or by such a clock, that a delay cannot say it
            log.overwrite(position, delay_ms=OVERDUE_MARK_MS)
            log.overwrite(position, write_time_ms=past_ms)
    if len(rows):
        sync()
    for position in rows.position.tolist():
        log.overwrite(position, previous_position=NO_POSITION)
