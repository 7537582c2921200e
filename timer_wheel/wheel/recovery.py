# SPDX-License-Identifier: Apache-2.0
"""After a crash: which messages on the wheel were dealt with, by what the log holds.

A killed store's checkpoint is older than its last deliveries. Copies in the newest part of the log
are matched with the messages that a starting broker would find and repeat.
"""

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.writing.log import LiveLog
from timer_wheel.format.own_checkpoint import UNKNOWN
from timer_wheel.format.timer_due import is_overdue
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.reading.copies import Copies
from timer_wheel.reading.copy_kernels import (
    COPY_COLUMNS,
    FIRST_OFFSET,
    IS_ROLL,
    OFFSET,
    ONE,
    STORE_MS,
    TWO,
    find_copies,
    identify_rows,
)
from timer_wheel.timers.rows import Bools, TimerRows
from timer_wheel.wheel.live_timers import LiveTimers
from timer_wheel.wheel.older_marks import OlderMarks
from timer_wheel.wheel.put_away import put_away_since
from timer_wheel.wheel.recall import RecallMarks, find_markers
from timer_wheel.wheel.unplaced import EVERYTHING


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


def copies_in_log(log: LiveLog, begin: int) -> Int64s:
    """All copies in the log from a place on where a record begins, in its order."""
    parts = [np.empty((COPY_COLUMNS, 0), np.int64)]
    for start in log.segments.starts:
        place = max(start, begin)
        length = min(start + log.file_bytes, log.end) - place
        if length <= 0:
            continue
        address = log.segments.address_of_file(start) + place - start
        count = find_copies(address, length, place, parts[0])
        if count:
            found = np.zeros((COPY_COLUMNS, count), np.int64)
            find_copies(address, length, place, found)
            parts.append(found)
    return np.concatenate(parts, axis=1)


def which_are_done(
    log: LiveLog,
    offsets: Int64s,
    sizes: Int64s,
    may_have_rolled: Bools,
    copies: Int64s,
    cancelled_at: Int64s,
) -> Bools:
    """Which of these records have a copy, by the rule of ``copies``; ``cancelled_at`` tells where
    in the log the delete marker of each is, ``LONG_MAX`` for none.
    """
    addresses = log.addresses(offsets)
    addresses[sizes > log.rooms(offsets)] = -1
    found = np.zeros((COPY_COLUMNS, len(offsets)), np.int64)
    identify_rows(addresses, sizes, offsets, found)
    may_be = np.flatnonzero(np.isin(found[ONE], copies[ONE]) & (addresses >= 0))
    may_be = may_be[np.argsort(offsets[may_be], kind="stable")]
    wanted = copies[:, np.isin(copies[ONE], found[ONE])]
    keys = zip(wanted[ONE].tolist(), wanted[TWO].tolist(), strict=True)
    is_roll = wanted[IS_ROLL] != 0
    places_and_kinds = wanted[OFFSET].tolist(), is_roll.tolist(), wanted[FIRST_OFFSET].tolist()
    known = Copies(zip(keys, *places_and_kinds, strict=True))
    done = np.zeros(len(offsets), bool)
    columns = zip(
        may_be.tolist(),
        offsets[may_be].tolist(),
        found[ONE, may_be].tolist(),
        found[TWO, may_be].tolist(),
        found[FIRST_OFFSET, may_be].tolist(),
        may_have_rolled[may_be].tolist(),
        cancelled_at[may_be].tolist(),
        strict=True,
    )
    for row, offset, one, two, first_offset, rolls, marker in columns:
        place = offset, first_offset
        done[row] = known.take((one, two), *place, may_have_rolled=rolls, cancelled_at=marker)
    return done
