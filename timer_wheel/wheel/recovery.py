# SPDX-License-Identifier: Apache-2.0
"""After a crash: which messages on the wheel were dealt with, by what the log holds.

A killed store's checkpoint is older than its last deliveries. Copies in the newest part of the log
are matched with the messages that a starting broker would find and repeat.
"""

import attrs
import numpy as np

from timer_wheel.format.own_checkpoint import UNKNOWN
from timer_wheel.format.timer_due import is_overdue
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.reading.copy_kernels import (
    OFFSET,
    STORE_MS,
)
from timer_wheel.timers.copies_in_log import copies_in_log, which_are_done
from timer_wheel.timers.recall import RecallMarks
from timer_wheel.timers.rows import Bools, TimerRows
from timer_wheel.wheel.leaving import put_away_since
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.recall_search import OlderMarks, find_markers


def begin_of_copies(timers: LiveTimers, hand_ms: int) -> int:
    """Where in the log a file begins before which nothing was stored from the hand's time on, and
    which lies before all that is overdue and has no unit.
    """
    log = timers.store.log
    begins = [start for start in log.segments.starts if 0 < log.store_time_ms(start) < hand_ms]
    return max(begins, default=log.min_offset)


def begin_where_units_are_lost(timers: LiveTimers, copies_from: int) -> int:
    """The same where nothing tells up to where the timer log had units: copies of what lies in the
    queue without one cannot lie before it, but right behind it.
    """
    offsets = timers.unplaced(EVERYTHING).rows.commit_log_offset
    return min(copies_from, int(offsets.min(initial=copies_from)))


def settle_accounts(timers: LiveTimers, copies_from: int) -> None:
    """Find out what was dealt with already; ``timers.done`` gets it."""
    rest = timers.unplaced(EVERYTHING)
    copies_from = max(copies_from, timers.store.log.min_offset)
    timers.base = attrs.evolve(timers.base, copies_from=copies_from)
    copies = copies_in_log(timers.store.log, copies_from)
    if not len(copies[OFFSET]):
        return
    newest_ms = int(copies[STORE_MS].max())
    until_ms = floor_ms(newest_ms, timers.precision_ms) + timers.precision_ms
    passed = timers.in_slots(timers.wheel.held_slots(until_ms))
    is_new = ~np.isin(timers.early.commit_log_offset, passed.commit_log_offset)
    placed = TimerRows.together([passed, timers.early.rows(is_new)])
    waiting = rest.rows.rows(rest.facts.is_fine)
    rows = TimerRows.together([placed, waiting])
    own = timers.files.found_own
    gone = put_away_since(timers.store.root, own.copies_from if own is not None else UNKNOWN)
    gone = gone.rows(~np.isin(gone.commit_log_offset, rows.commit_log_offset))
    over = _over_since(timers)
    over = over.rows(~np.isin(over.commit_log_offset, rows.commit_log_offset))
    gone = gone.rows(~np.isin(gone.commit_log_offset, over.commit_log_offset))
    looked_at = TimerRows.together([rows, over, gone])
    may_have_rolled = [
        _may_have_rolled(placed),
        np.ones(len(waiting), bool),
        _may_have_rolled(over),
        gone.is_roll,
    ]
    places = looked_at.commit_log_offset.copy(), looked_at.size_bytes.copy()
    marks = find_markers(timers, 0)
    facts = timers.facts(looked_at, keys=len(marks) > 0)
    cancelled_at = marks.taken_at(places[0], facts)
    cancelled_at = np.minimum(cancelled_at, OlderMarks.of(timers).taken_at(looked_at))
    done = which_are_done(
        timers.store.log, *places, np.concatenate(may_have_rolled), copies, cancelled_at
    )
    timers.mark_done(rows.rows(done[: len(rows)]))


def _over_since(timers: LiveTimers) -> TimerRows:
    """What the hand has passed since copies began: their copies are of this as well, and would be
    given to equal messages that wait.
    """
    base, hand_ms = timers.base, timers.wheel.hand_ms
    if base.copies_hand_ms >= hand_ms and base.copies_position >= timers.log.end:
        return TimerRows.empty()
    parts = []
    for rows in timers.log.all_units():
        is_since = rows.slot_time_ms >= base.copies_hand_ms
        is_since |= rows.position >= base.copies_position
        parts.append(rows.rows(is_since & (rows.slot_time_ms < hand_ms) & ~rows.is_marker))
    over = TimerRows.together([TimerRows.empty(), *parts])
    return over.rows(np.unique(over.commit_log_offset, return_index=True)[1])


def _may_have_rolled(rows: TimerRows) -> Bools:
    """What has no unit, or has lost it, may have rolled as well; so may what got the mark when it
    was put behind a hand that has moved back since.
    """
    may: Bools = rows.is_roll | is_overdue(rows.slot_time_ms)
    return may


def move_to(timers: LiveTimers, hand_ms: int, marks: RecallMarks) -> None:
    """Move the hand to where it was last said to be, or to the first slot before it that holds a
    message which was not dealt with.
    """
    hand_ms = floor_ms(hand_ms, timers.precision_ms)
    rows = timers.in_slots(timers.wheel.used_slots(hand_ms))
    rows = rows.rows(~rows.is_marker)
    facts = timers.facts(rows, keys=len(marks) > 0)
    is_taken = marks.take_away(rows.commit_log_offset, facts)
    left = rows.slot_time_ms[facts.is_fine & ~is_taken]
    to_ms = min(hand_ms, floor_ms(int(left.min(initial=hand_ms)), timers.precision_ms))
    if to_ms > timers.wheel.hand_ms:
        timers.pass_slots(to_ms)
