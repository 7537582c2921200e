# SPDX-License-Identifier: Apache-2.0
"""The fast form of ``revise_queue_offset``, and which messages are done after a crash.

A killed store's checkpoint is older than its last deliveries. A pending record is done if
and only if a later record of the log names the first record of its message (``lineage``). Whoever
is not us names nothing: its copies are matched, once, when the store is taken over from it. What
was found then is written down before the store counts as ours.
"""

from contextlib import suppress
from typing import TypeGuard

import numpy as np

from message_store.base.errors import FormatError
from message_store.columns.byte_column import Int64s, int64s
from message_store.format.properties import TIMER_TOPIC
from message_store.redelivery.lineage import Names
from message_store.writing.queue import LiveQueue
from message_store.writing.store import LiveStore
from timer_wheel.format.checkpoint import OwnCheckpoint
from timer_wheel.format.older_slots import NO_OLDER_SLOTS
from timer_wheel.format.timer_due import FINEST_MS
from timer_wheel.format.wheel_file import SLOT
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS, floor_ms
from timer_wheel.reading.before_us import done_before_us, has_note
from timer_wheel.reading.copies import Copies
from timer_wheel.timers.copies_in_log import copies_in_log
from timer_wheel.timers.recall import RecallKey, RecallMarks
from timer_wheel.timers.rows import Bools, TimerRows, read_facts
from timer_wheel.timers.unit_kernels import TOPIC_HASH
from timer_wheel.wheel.files import WheelFiles
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.log import LiveTimerLog
from timer_wheel.wheel.recall_search import OlderMarks, find_markers
from timer_wheel.wheel.slots import LiveWheel

_MARKS = 20_000


def has_torn_end(log: LiveTimerLog, store: LiveStore) -> bool:
    """Whether the last unit leads to no record that could be there."""
    last = log.last_unit()
    facts = read_facts(store.log, last.commit_log_offset, last.size_bytes, FINEST_MS)
    return not facts.is_there.all()


def begins_at_flush(own: OwnCheckpoint | None, store: LiveStore) -> TypeGuard[OwnCheckpoint]:
    """Whether to begin at the last flush and find what was done since. An orderly end is one."""
    return not store.repeats and own is not None and own.is_known


def was_left(own: OwnCheckpoint | None, log: LiveTimerLog, files: WheelFiles) -> bool:
    """Whether the last of us was killed or lost power, before another engine closed the store."""
    if own is None or not own.is_known:
        return False
    is_at_flush = own.flushed_hand_ms == files.found.last_read_time_ms
    return not is_at_flush or own.flushed_position != log.end


def has_lost_files(
    own: OwnCheckpoint | None,
    log: LiveTimerLog,
    store: LiveStore,
    files: WheelFiles,
    precision_ms: int | None,
) -> bool:
    """Whether first files of the timer log are missing that retention did not take: the log still
    has records of messages before its first unit. Where it began our checkpoint says; of a
    broker's, slots to come that begin before that.
    """
    begin, queue = log.segments.min_offset, store.queue(TIMER_TOPIC, 0)
    began = own.log_begins if own is not None and own.is_known else 0
    first = log.unit_at(begin).commit_log_offset
    if begin <= began or not len(first):
        return False
    if queue.first_behind(int(first[0]) - 1) <= queue.min_offset:
        return False
    if own is not None and own.is_known:
        return True
    file = files.slots_on_disk()
    slots = np.empty(0, SLOT.dtype) if file is None else file.slots
    hand_ms, width_ms = files.found.last_read_time_ms, precision_ms or DEFAULT_PRECISION_MS
    is_to_come = slots["time_units"] >= max(hand_ms // width_ms, 1)
    return bool((is_to_come & (slots["first_position"] < begin)).any())


def log_has_losses(own: OwnCheckpoint | None, store: LiveStore) -> bool:
    """Whether the commit log lacks what it had at the last flush. Then a unit may lead to where
    another record comes to lie, and the hand is behind messages whose rolled records are lost.
    """
    if own is None or not own.is_known:
        return False
    return store.has_lost_records or own.names_from > store.log.end


def truncate_all(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """Take away every unit: the queue's messages are placed, and the log tells what is done."""
    begin = log.segments.min_offset
    files.will_end_at(begin, place_from=store.queue(TIMER_TOPIC, 0).min_offset)
    log.cut(begin)


def truncate_to_flush(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """After a crash: take away what cannot be relied on.

    Of what was written since the last flush a loss of power may leave any part: units that tell of
    deliveries, and not the deliveries. The queue has the messages, and they are placed from there.
    """
    own = files.found_own
    files.forget_snapshots_beyond(log.end)
    if begins_at_flush(own, store):
        _cut(log, store, files, max(own.flushed_position, log.segments.min_offset))
    _cut_what_the_log_lacks(log, store, files)


def truncate_behind_flush(
    own: OwnCheckpoint, log: LiveTimerLog, store: LiveStore, files: WheelFiles
) -> None:
    """Of a store that repeats, where the hand goes back: take away what was placed since the last
    flush, by a hand that is not there any more. All of it is placed anew.
    """
    _cut(log, store, files, max(own.flushed_position, log.segments.min_offset))


def _cut(log: LiveTimerLog, store: LiveStore, files: WheelFiles, position: int) -> None:
    """Let the log end here, having said so. A broker looks for the last unit from the beginning of
    a file on; without one it resumes at the checkpoint's queue offset.
    """
    if position >= log.end:
        return
    place_from = None
    if position % log.file_bytes == 0:
        first = min(int(rows.commit_log_offset.min()) for rows in log.all_units(position))
        place_from = store.queue(TIMER_TOPIC, 0).first_behind(first - 1)
        log.segments.sync_all()  # what is kept is on the disk before that says so
    files.will_end_at(position, place_from=place_from)
    log.cut(position)


def _cut_what_the_log_lacks(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """Truncate units at the end that are torn or whose records are not in the log."""
    begin = min(files.found.flush_position, log.end) // log.file_bytes * log.file_bytes
    firsts = [(log.unit_at(each.start).commit_log_offset, each.start) for each in log.files()]
    known = [start for offset, start in firsts if (offset < store.log.end).any()]
    begin = min(begin, max(known, default=log.segments.min_offset))
    for rows in log.all_units(begin):
        facts = read_facts(store.log, rows.commit_log_offset, rows.size_bytes, FINEST_MS)
        is_old = (rows.commit_log_offset < store.log.min_offset) & (rows.size_bytes > 0)
        bad = np.flatnonzero(~facts.is_there & ~is_old)
        if len(bad):
            _cut(log, store, files, int(rows.position[bad[0]]))
            return


def truncate_at_gap(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """Of a store that a broker left: take away the units behind the first message that has none,
    from the queue offset on that its checkpoint notes and from which it would place again.

    Such a message was in the broker's hands to be delivered at once, or is a timeline's, which
    leaves only delete markers to the wheel. The last unit alone would say that it is done.
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


def truncate_astray(
    log: LiveTimerLog, store: LiveStore, files: WheelFiles, wheel: LiveWheel, *, has_falls: bool
) -> int:
    """Take away the units from the first on that may lead to another record than its own; returns
    how many such there were, one or none. What they were for is placed from the queue.

    Units lie in the order of the queue, which is the log's. Where that falls, one of two leads to
    another record, or a broker that was killed has placed some again. Behind the last unit nothing
    is that tells, and it says up to where the queue was placed.
    """
    position = _first_fall(log) if has_falls else None
    if position is None and _leads_too_far(log, store, files, wheel):
        position = log.last_position
    if position is None:
        return 0
    _cut(log, store, files, position)
    return 1


def _first_fall(log: LiveTimerLog) -> int | None:
    """The first unit whose record is not before the next one's, without those of older wheels."""
    before = TimerRows.empty()
    for rows in log.all_units():
        joined = TimerRows.together([before, rows])
        falls = np.flatnonzero(np.diff(joined.commit_log_offset) <= 0)
        if len(falls):
            return int(joined.position[falls[0]])
        before = joined.rows(slice(-1, None))
    return None


def _leads_too_far(
    log: LiveTimerLog, store: LiveStore, files: WheelFiles, wheel: LiveWheel
) -> bool:
    """Whether the last unit says another topic or slot than its record, and an entry of the queue
    says the same that lies between this and the record of the unit before.
    """
    two = log.last_units(2)
    last, before = two.rows(slice(-1, None)), two.rows(slice(0, -1))
    if not len(last) or int(last.slot_time_ms[0]) < wheel.hand_ms:
        return False  # a slot that is over says no more than that something is done
    older = NO_OLDER_SLOTS if files.found_own is None else files.found_own.older
    queue = store.queue(TIMER_TOPIC, 0)

    def fits(offsets: Int64s, sizes: Int64s) -> Bools:
        facts = read_facts(store.log, offsets, sizes, wheel.precision_ms, older=older)
        slots = facts.out_ms // wheel.precision_ms == last.slot_time_ms // wheel.precision_ms
        is_it = np.where(last.is_roll, facts.out_ms >= last.slot_time_ms, slots)
        is_it &= facts.is_fine & (facts.topic_hash == last.table[TOPIC_HASH])
        return np.asarray(is_it)

    if fits(last.commit_log_offset, last.size_bytes).any():
        return False
    first = queue.first_behind(int(before.commit_log_offset.max(initial=-1)))
    end = queue.first_behind(int(last.commit_log_offset[0]) - 1)
    entries = queue.units(first, min(end, first + _LOOKED_AT))
    places = int64s(entries["commit_log_offset"]), int64s(entries["size_bytes"])
    return bool(fits(*places).any())


_LOOKED_AT = 1 << 16
"""More entries between two others have no unit only where nothing was placed."""


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
        return queue.first_behind(offset)
    is_there = (queue.units(claimed, claimed + 1)["commit_log_offset"] == offset).any()
    return claimed + 1 if is_there else queue.first_behind(offset)


# --- what is done ---------------------------------------------------------------------------------


def find_done(timers: LiveTimers, *, are_units_lost: bool) -> Int64s | None:
    """Find out what is done already; ``timers.done`` gets it. ``are_units_lost`` says that units
    from before the last flush are placed once more. Returns the commit log offsets that
    ``note_dealt_with`` has to write down before the store counts as ours, None where the log tells
    of all. Raises SourceError.
    """
    store, own = timers.store, timers.files.found_own
    log, root = store.log, store.root
    if own is None or not own.is_known:
        first = int(timers.unplaced(EVERYTHING).rows.commit_log_offset.min(initial=log.end))
        names_from, copies_from = (min(each, first) for each in _begin_of_copies(timers))
    else:
        # What of lost units is done, and when, the log tells alone.
        is_lost = are_units_lost or timers.log.end < own.flushed_position
        is_lost |= log_has_losses(own, store)
        names_from = log.min_offset if is_lost else max(own.names_from, log.min_offset)
        copies_from = log.min_offset if is_lost else log.end
    timers.set_names_from(min(names_from, log.end))
    found = _done(timers, timers.names_from, copies_from)
    timers.mark_done(found)
    if copies_from < timers.foreign_until and (len(timers.done) or has_note(root)):
        return timers.done
    return None


def mark_done_before_us(timers: LiveTimers) -> None:
    """What a broker had done counts as done, also for an engine that repeats what it did itself."""
    own = timers.files.found_own
    if own is None or not own.is_known:
        return
    before = done_before_us(timers.store.root)
    timers.mark_records_done(before[before < timers.store.log.end])  # others will lie behind that


def first_undone_ms(timers: LiveTimers) -> int:
    """Of a store that repeats: the first slot before the hand with a message of which the log does
    not tell that it is done; where the hand is if there is none. A loss of power may leave the hand
    of an advance, and not what that delivered or rolled.
    """
    own, hand_ms, log = timers.files.found_own, timers.wheel.hand_ms, timers.store.log
    if own is None or not own.is_known:
        return hand_ms
    names = Names.since(log, max(own.names_from, log.min_offset))
    marks = find_markers(timers, 0)
    first_ms = hand_ms
    for rows in timers.log.all_units():
        # What was due when it was stored has its unit behind the hand of then.
        is_since = (rows.slot_time_ms >= own.flushed_hand_ms) | (
            rows.position >= own.flushed_position
        )
        is_asked = ~rows.is_marker | rows.is_roll
        rows = rows.rows(is_since & is_asked & (rows.slot_time_ms < hand_ms))
        facts, offsets = timers.facts(rows, keys=True), rows.commit_log_offset
        is_done = names.are_done(offsets, facts.lineages(offsets)) | marks.take_away(offsets, facts)
        undone = rows.slot_time_ms[facts.is_fine & ~is_done]
        first_ms = int(undone.min(initial=first_ms))
    return floor_ms(first_ms, timers.precision_ms)


def _begin_of_copies(timers: LiveTimers) -> tuple[int, int]:
    """Where in the log a file begins before which nothing was stored from the hand's time on; and
    a record, by the newest entries of the queue, which is nearer.
    """
    log, queue, hand_ms = timers.store.log, timers.queue, timers.wheel.hand_ms
    units = queue.units(max(queue.min_offset, queue.max_offset - _MARKS), queue.max_offset)
    begins = int64s([log.min_offset, *log.segments.starts])
    places = np.concatenate([begins, int64s(units["commit_log_offset"])])
    places = np.unique(places[(places >= log.min_offset) & (places < log.end)])
    times = log.store_times_ms(places)
    late = np.flatnonzero(times >= hand_ms)
    before = places[: int(late[0]) if len(late) else len(places)]
    before = before[times[: len(before)] > 0]
    begin = int(before.max(initial=log.min_offset))
    return int(begins[begins <= begin].max(initial=log.min_offset)), begin


def _done(timers: LiveTimers, names_from: int, copies_from: int) -> TimerRows:
    """The rows, on the wheel and in the queue, that records since tell to be done."""
    names = Names.since(timers.store.log, names_from)
    copies = Copies(copies_in_log(timers.store.log, copies_from, timers.foreign_until))
    if not len(names) and not copies:
        return TimerRows.empty()
    newest_ms = max(names.newest_ms, copies.newest_ms)
    until_ms = floor_ms(newest_ms, timers.precision_ms) + timers.precision_ms
    passed = timers.in_slots(timers.wheel.held_slots(until_ms))
    is_new = ~np.isin(timers.early.commit_log_offset, passed.commit_log_offset)
    placed = TimerRows.together([passed, timers.early.rows(is_new)])
    rest = timers.unplaced(EVERYTHING)
    waiting = rest.rows.rows(rest.facts.is_fine)
    rows = TimerRows.together([placed, waiting])
    may_have_rolled = np.concatenate([placed.is_roll, np.ones(len(waiting), bool)])
    is_done = were_dealt_with(timers, rows, names, copies, may_have_rolled)
    return TimerRows.together([rows.rows(is_done), _named(timers.unhung, timers, names)])


def _named(rows: TimerRows, timers: LiveTimers, names: Names) -> TimerRows:
    """Those of these rows that a later record of ours names."""
    offsets = rows.commit_log_offset
    return rows.rows(names.are_done(offsets, timers.facts(rows).lineages(offsets)))


def were_dealt_with(
    timers: LiveTimers, rows: TimerRows, names: Names, copies: Copies, may_have_rolled: Bools
) -> Bools:
    """Which of these rows a later record names, or a copy of somebody else's tells of, each copy of
    one. What was to roll, or has no unit, may have rolled.
    """
    log, offsets = timers.store.log, rows.commit_log_offset
    marks = find_markers(timers, 0)
    facts = timers.facts(rows, keys=len(marks) > 0)
    is_done = names.are_done(offsets, facts.lineages(offsets))
    if not copies:
        return is_done
    cancelled_at = np.minimum(
        marks.taken_at(offsets, facts), OlderMarks.of(timers).taken_at(rows)
    ).tolist()
    asked = np.flatnonzero(~is_done & facts.is_there)
    for row in asked[np.argsort(offsets[asked], kind="stable")].tolist():
        with suppress(FormatError):  # a damaged record waits, and is told of when it is due
            message = log.record(int(offsets[row]), int(rows.size_bytes[row]))
            rolls, marker = bool(may_have_rolled[row]), cancelled_at[row]
            is_done[row] = copies.take(message, may_have_rolled=rolls, cancelled_at=marker)
    return is_done


def move_to(timers: LiveTimers, hand_ms: int, marks: RecallMarks) -> None:
    """Move the hand to where it was last said to be, or to the first slot before it that holds a
    message which is not done.
    """
    hand_ms = floor_ms(hand_ms, timers.precision_ms)
    rows = timers.in_slots(timers.wheel.used_slots(hand_ms))
    facts = timers.facts(rows, keys=len(marks) > 0)
    is_taken = marks.take_away(rows.commit_log_offset, facts)
    left = rows.slot_time_ms[facts.is_fine & ~is_taken & ~rows.is_marker]
    to_ms = min(hand_ms, floor_ms(int(left.min(initial=hand_ms)), timers.precision_ms))
    is_to_roll = rows.is_marker & rows.is_roll & facts.is_fine
    if is_to_roll.any():
        to_ms = _held_by_markers(timers, rows.rows(is_to_roll), to_ms)
    if to_ms > timers.wheel.hand_ms:
        timers.pass_slots(to_ms)


def _held_by_markers(timers: LiveTimers, markers: TimerRows, to_ms: int) -> int:
    """No farther than a delete marker that is to roll while its message lies in a slot to come:
    one that was placed later may be parked earlier.
    """
    rows = timers.in_slots(timers.wheel.used_slots())
    is_asked = np.isin(rows.table[TOPIC_HASH], markers.table[TOPIC_HASH])
    rows = rows.rows(is_asked & ~rows.is_marker)
    last_ms: dict[RecallKey, int] = {}
    keys = timers.facts(rows, keys=True).recall_keys()
    for key, slot_ms in zip(keys, rows.slot_time_ms.tolist(), strict=True):
        last_ms[key] = max(slot_ms, last_ms.get(key, -1))
    keys = timers.facts(markers, keys=True).recall_keys()
    held = list(
        zip(markers.slot_time_ms.tolist(), (last_ms.get(key, -1) for key in keys), strict=True)
    )
    while needed := [slot_ms for slot_ms, its_ms in held if slot_ms < to_ms <= its_ms]:
        to_ms = floor_ms(min(needed), timers.precision_ms)
    return to_ms
