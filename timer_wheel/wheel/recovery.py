# SPDX-License-Identifier: Apache-2.0
"""After a crash: which messages on the wheel were dealt with, by what the log holds.

A killed store's checkpoint is older than its last deliveries. Copies in the newest part of the log
are matched with the messages that a starting broker would find and repeat.
"""

from typing import TypeGuard

import attrs
import numpy as np

from message_store.base.errors import FormatError
from message_store.columns.byte_column import int64s
from message_store.format.properties import TIMER_TOPIC
from message_store.writing.queue import LiveQueue
from message_store.writing.store import LiveStore
from timer_wheel.format.checkpoint import UNKNOWN, OwnCheckpoint
from timer_wheel.format.timer_due import FINEST_MS, is_overdue
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.reading.copy_kernels import (
    OFFSET,
    STORE_MS,
)
from timer_wheel.timers.copies_in_log import copies_in_log, which_are_done
from timer_wheel.timers.recall import RecallMarks
from timer_wheel.timers.rows import Bools, TimerRows, read_facts
from timer_wheel.wheel.files import WheelFiles
from timer_wheel.wheel.leaving import put_away_since
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.log import LiveTimerLog
from timer_wheel.wheel.recall_search import OlderMarks, find_markers


def has_torn_end(log: LiveTimerLog, store: LiveStore) -> bool:
    """Whether the last unit leads to no record that could be there."""
    last = log.last_unit()
    facts = read_facts(store.log, last.commit_log_offset, last.size_bytes, FINEST_MS)
    return not facts.is_there.all()


def goes_back(own: OwnCheckpoint | None, store: LiveStore) -> TypeGuard[OwnCheckpoint]:
    """Whether to begin where the last flush was, and find out from there what was done since. After
    an orderly end, which is one, that is where the wheel stands.
    """
    is_asked_for = not store.settings.repeat_after_kill
    return is_asked_for and own is not None and own.is_known


def was_left(own: OwnCheckpoint | None, log: LiveTimerLog, files: WheelFiles) -> bool:
    """Whether the last of us here did not end with a flush: it was killed, or lost power, and
    another engine then closed the store in order.
    """
    if own is None or not own.is_known:
        return False
    is_at_flush = own.flushed_hand_ms == files.found.last_read_time_ms
    return not is_at_flush or own.flushed_position != log.end


def has_lost_files(own: OwnCheckpoint | None, log: LiveTimerLog, store: LiveStore) -> bool:
    """Whether first files of the timer log are gone that retention did not take: the checkpoint
    says where the log begins, and the log still has records of messages before its first unit.
    """
    if own is None or not own.is_known or log.segments.min_offset <= own.log_begins:
        return False
    first = log.unit_at(log.segments.min_offset).commit_log_offset
    queue = store.queue(TIMER_TOPIC, 0)
    return bool(len(first)) and _first_behind(queue, int(first[0]) - 1) > queue.min_offset


def take_back_all(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """Take away every unit: all that the queue has is placed again, and copies in the log tell what
    was dealt with.
    """
    begin = log.segments.min_offset
    files.will_end_at(begin, place_from=store.queue(TIMER_TOPIC, 0).min_offset)
    log.cut(begin)


def take_back(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """After a crash: take away what cannot be relied on.

    Of what was written since the last flush a loss of power may leave any part: units that tell of
    deliveries, and not the deliveries. The queue has the messages, and they are placed again.
    """
    own = files.found_own
    files.forget_snapshots_beyond(log.end)
    if goes_back(own, store):
        _cut(log, store, files, max(own.flushed_position, log.segments.min_offset))
    _cut_what_the_log_lacks(log, store, files)


def _cut(log: LiveTimerLog, store: LiveStore, files: WheelFiles, position: int) -> None:
    """Let the log end here, having said so. A broker looks for the last unit from the beginning of
    a file on; without one it resumes at the checkpoint's queue offset.
    """
    if position >= log.end:
        return
    place_from = None
    if position % log.file_bytes == 0:
        first = int(log.unit_at(position).commit_log_offset.min())
        place_from = _first_behind(store.queue(TIMER_TOPIC, 0), first - 1)
        for start in log.segments.starts:  # what is kept is on the disk before that says so
            log.segments.doubt(start)
        log.segments.sync()
    files.will_end_at(position, place_from=place_from)
    log.cut(position)


def _cut_what_the_log_lacks(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """Truncate units at the end that are torn or whose records are not in the log."""
    begin = min(files.found.flush_position, log.end) // log.file_bytes * log.file_bytes
    for rows in log.all_units(begin):
        facts = read_facts(store.log, rows.commit_log_offset, rows.size_bytes, FINEST_MS)
        is_old = (rows.commit_log_offset < store.log.min_offset) & (rows.size_bytes > 0)
        bad = np.flatnonzero(~facts.is_there & ~is_old)
        if len(bad):
            _cut(log, store, files, int(rows.position[bad[0]]))
            return


def take_back_to_gap(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """Of a store that a broker left: take away the units behind the first message that has none,
    from the queue offset on that its checkpoint notes and from which it would place again.

    Such a message was in the broker's hands to be delivered at once, or is a timeline's, which
    leaves only delete markers to the wheel. The last unit alone would say that it was dealt with.
    """
    last, queue = log.last_unit(), store.queue(TIMER_TOPIC, 0)
    noted = max(files.found.master_queue_offset, queue.min_offset)
    entries = queue.units(noted, queue.max_offset)
    entries = entries[entries["commit_log_offset"] < last.commit_log_offset.max(initial=0)]
    for rows in log.all_units() if len(entries) else ():
        entries = entries[~np.isin(entries["commit_log_offset"], rows.commit_log_offset)]
    offsets = int64s(entries["commit_log_offset"])
    facts = read_facts(store.log, offsets, int64s(entries["size_bytes"]), FINEST_MS)
    passed_over = offsets[facts.is_fine]
    for rows in log.all_units() if len(passed_over) else ():
        behind = np.flatnonzero(rows.commit_log_offset > passed_over.min())
        if len(behind):
            _cut(log, store, files, int(rows.position[behind[0]]))
            return


def resume(queue: LiveQueue, log: LiveTimerLog, store: LiveStore) -> int:
    """The queue offset from which messages have no units: behind that of the last unit.

    Without any unit it is the beginning of the queue: a broker would go on where the checkpoint
    says, and lose with the timer log all that was on the wheel.
    """
    last = log.last_unit()
    if not len(last):
        return queue.min_offset
    offset = int(last.commit_log_offset[0])
    try:
        claimed = store.log.record(offset, int(last.size_bytes[0])).queue_offset
    except FormatError:  # damaged, or taken by retention
        return _first_behind(queue, offset)
    is_there = (queue.units(claimed, claimed + 1)["commit_log_offset"] == offset).any()
    return claimed + 1 if is_there else _first_behind(queue, offset)


def _first_behind(queue: LiveQueue, commit_log_offset: int) -> int:
    """The first queue entry whose record lies behind this offset. A record's own queue offset is
    off after a rebuild.
    """
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        if int(queue.units(middle, middle + 1)["commit_log_offset"][0]) > commit_log_offset:
            high = middle
        else:
            low = middle + 1
    return low


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
    timers.know_copies(attrs.evolve(timers.base, copies_from=copies_from))
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
    """Rows that the hand has passed since copies began: their copies must not go to equal pending
    messages.
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
    """Which rows may have rolled: marked ones were put behind a hand that has moved back since."""
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
