# SPDX-License-Identifier: Apache-2.0
"""The fast form of ``TimerMessageStore.load``: opens the wheel of a store for writing.

The timer log is the truth, and the checkpoint says where the hand is.

Slots are not read from the wheel file. Units of the timer log are hung on an empty wheel in their
order, and the file is corrected where it differs. A file or a snapshot that a broker wrote tells
how wide slots are.

A wheel of another precision is refused while messages are pending on it, or made for the new one. A
slot holds its time divided by the precision: a broker with another one finds nothing where it
looks. In the new wheel every pending message gets the slot that ends at or after its promise.
Cancelled messages are left out, and so are their delete markers: in a wider slot a marker would
cancel its neighbours too. The new units begin a new file, to which nothing leads until the
checkpoint says that the log begins there. Then the old files are removed.
"""

import attrs
import numpy as np

from message_store.base.errors import PrecisionError, SourceError, UnsupportedStoreError
from message_store.columns.byte_column import Int64s, int64s
from message_store.engine.other_levels import refuse_another_level_table
from message_store.files.live_segments import LiveSegments
from message_store.files.segments import SegmentReader, list_segments, require_appendable
from message_store.format.properties import TIMER_TOPIC
from message_store.intake.rescheduling import unfinished
from message_store.writing.dispatch import mend_astray
from message_store.writing.recovery import Extent
from message_store.writing.store import LiveStore
from timer_wheel.format.older_slots import MOST_WIDTHS, NO_OLDER_SLOTS
from timer_wheel.format.timer_due import (
    FINEST_MS,
    OVERDUE_MARK_MS,
    was_due_when_stored,
    write_times,
)
from timer_wheel.format.timer_log import read_units, units_per_file
from timer_wheel.format.wheel_file import all_slots
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS, floor_ms, needs_roll
from timer_wheel.reading.before_us import done_before_us, note_dealt_with
from timer_wheel.reading.ownership import read_active
from timer_wheel.reading.precision import precision_of_slots, precision_of_times, precision_of_units
from timer_wheel.timers.recall import RecallMarks, marker_offsets
from timer_wheel.timers.rows import TimerRows, read_facts
from timer_wheel.timers.unit_kernels import FALLS, LINKS, OVERDUE, ROLLS, SLOT_TIME, WRITE_TIME
from timer_wheel.wheel.files import WheelFiles
from timer_wheel.wheel.leaving import move_to_first_read, place_all, place_markers
from timer_wheel.wheel.live_timers import EVERYTHING, ROUND_SLOTS, LiveTimers
from timer_wheel.wheel.log import NO_SLOT, LiveTimerLog
from timer_wheel.wheel.recall_search import apply_older_markers, find_markers, note_what_is_damaged
from timer_wheel.wheel.recovery import (
    begins_at_flush,
    find_done,
    first_undone_ms,
    has_lost_files,
    has_torn_end,
    log_has_losses,
    mark_done_before_us,
    move_to,
    resume,
    truncate_all,
    truncate_astray,
    truncate_at_gap,
    truncate_behind_flush,
    truncate_to_flush,
    was_left,
)
from timer_wheel.wheel.settings import WheelSettings
from timer_wheel.wheel.slots import LiveWheel
from timer_wheel.wheel.unit_repair import mend_links, mend_units, with_right_flags, write_flags
from timer_wheel.wheel.waiting import next_due_ms


def refuse_before_recovery(store: LiveStore, extent: Extent) -> None:
    """Look whether a wheel can be opened, and change nothing: recovery would change log and queues
    of a store that is refused then. Raises SourceError for a timer log that nothing can be appended
    to, where nobody knows any more what a broker had delivered, and for a reschedule that another
    engine has to finish. What a hierarchical wheel left of a wheel in files does not count.
    """
    unfinished(store, TIMER_TOPIC)
    refuse_another_level_table(store, extent)
    if read_active(store.root) is not None:
        return
    segments = list_segments(store.root.timer_log)
    file_bytes = require_appendable(segments, store.settings.timer_log_file_bytes)
    if segments and not units_per_file(file_bytes):
        raise SourceError(
            f"{segments[0].path}: {file_bytes} bytes hold no unit of a timer log. Put the whole"
            " file back, or remove it: units are then made from the timer queue"
        )
    own = WheelFiles(store.root, store.clock, snapshots=False).found_own
    if begins_at_flush(own, store):
        done_before_us(store.root)


def open_timers(
    store: LiveStore,
    precision_ms: int | None,
    wheel: WheelSettings,
    *,
    waiting: Int64s | None = None,
    keeps_guard: bool = False,
) -> tuple[LiveTimers, WheelSettings]:
    """The wheel of a store whose log and queues are whole, and its settings: those of ``wheel``,
    with the precision that is asked for, or with the known one where it is None.

    Where there is no wheel yet, ``waiting`` may tell where in the log the records of all are that
    still wait; otherwise the log has to tell. The guard against brokers stays then, and with
    ``keeps_guard``, until ``WheelFiles.replace_guard``. Raises SourceError and TargetError.
    """
    segments = LiveSegments(
        store.root.timer_log, store.settings.timer_log_file_bytes, root=store.root.path
    )
    files = WheelFiles(
        store.root,
        store.clock,
        snapshots=wheel.snapshots,
        keeps_guard=keeps_guard or waiting is not None,
    )
    try:
        return _open(store, LiveTimerLog(segments), files, precision_ms, wheel, waiting)
    except BaseException:
        segments.close()
        files.close()
        raise


def _open(
    store: LiveStore,
    log: LiveTimerLog,
    files: WheelFiles,
    precision_ms: int | None,
    wheel: WheelSettings,
    waiting: Int64s | None,
) -> tuple[LiveTimers, WheelSettings]:
    own = files.found_own
    log.segments.delete_before(0 if own is None else own.log_begins)
    log.find_end()
    end = log.end
    found_ms = _known_precision(store, log, files) if waiting is None else None
    makes_again = log_has_losses(own, store) or has_lost_files(own, log, store, files, found_ms)
    if makes_again:
        truncate_all(log, store, files)
    is_in_doubt = not store.was_clean or has_torn_end(log, store) or was_left(own, log, files)
    if is_in_doubt:
        truncate_to_flush(log, store, files)
    is_bare = log.last_position is None and (own is None or not own.is_known)
    if own is None or not own.is_known:
        truncate_at_gap(log, store, files)
    was_cut = log.end < end
    known_ms = (was_cut and waiting is None and _known_precision(store, log, files)) or found_ms
    if known_ms is None and precision_ms is None:
        _refuse_unknown(log, store, files)
    asked_ms = precision_ms or known_ms or DEFAULT_PRECISION_MS
    settings = attrs.evolve(wheel, precision_ms=asked_ms)
    known = attrs.evolve(settings, precision_ms=known_ms or asked_ms)
    timers = _from_timer_log(store, log, files, known)
    went_back, dealt_with, has_markers = False, None, False
    if store.repeats and own and (undone_ms := first_undone_ms(timers)) < timers.wheel.hand_ms:
        truncate_behind_flush(own, log, store, files)
        was_cut, undone_ms = log.end < end, max(undone_ms, own.flushed_hand_ms)
        first, timers = timers, _from_timer_log(store, log, files, known, hand_ms=undone_ms)
        timers.count_mended(first.mended_units)
        went_back = True
    if is_in_doubt:
        timers.metrics.forget()
    apply_older_markers(timers)
    if waiting is not None:
        timers.mark_done_all_but(waiting)
    elif makes_again or went_back or is_bare or not store.repeats:
        dealt_with = _catch_up(timers, are_units_lost=makes_again)
    if is_in_doubt and waiting is None:  # else the hierarchical wheel has noted it
        rest = timers.unplaced(EVERYTHING, keys=True)
        note_what_is_damaged(timers, rest)
        has_markers = bool(rest.facts.is_marker.any())
    if is_other := timers.precision_ms != asked_ms:
        _refuse_precision(timers, settings)
    if dealt_with is not None:
        note_dealt_with(store.root, dealt_with)
    if is_other:
        timers = _with_precision(timers, settings)
    _begin(timers, is_in_doubt=is_in_doubt or was_cut)
    if has_markers:  # the checkpoint says durably where the timer log ends, before more is appended
        rest = timers.unplaced(EVERYTHING, keys=True)
        place_markers(timers, rest, store.clock.now_ms(), lambda: _markers(timers))
    timers.opened()
    return timers, settings


def _begin(timers: LiveTimers, *, is_in_doubt: bool) -> None:
    """Write down where the wheel stands; the next crash truncates the timer log to here. The width
    of slots is on the disk before anything is stored for it.
    """
    segments, files, own = timers.log.segments, timers.files, timers.state_to_flush()
    known, flush_position = files.found_own, files.checkpoint.flush_position
    is_at_flush = known is not None and (known.flushed_position, known.precision_ms) == (
        own.flushed_position,
        own.precision_ms,
    )
    if not is_in_doubt and is_at_flush and not files.is_stale:
        timers.save(own)
        return
    segments.sync_all()
    if is_in_doubt:
        flush_position = timers.log.end
        files.doubt_wheel()
        files.write_wheel(timers.wheel, flush_position)
        files.sync_wheel()
    timers.save(own)
    files.sync_checkpoint(flush_position, own, timers.placed_end)


def _refuse_precision(timers: LiveTimers, settings: WheelSettings) -> None:
    """Raise PrecisionError where another precision is not to be, and UnsupportedStoreError where it
    cannot be. Nothing is written.
    """
    if not has_units(timers):
        return
    has_pending = next_due_ms(timers, _markers(timers)) is not None
    if settings.on_precision_change == "refuse" and has_pending:
        raise precision_error(timers, settings.precision_ms)
    _refuse_rebuild(timers, settings)


def _with_precision(timers: LiveTimers, settings: WheelSettings) -> LiveTimers:
    """The wheel with the precision that is asked for, which nothing refuses."""
    precision_ms = settings.precision_ms
    if has_units(timers):
        return rebuilt(timers, settings)
    hand_ms = -(-timers.wheel.hand_ms // precision_ms) * precision_ms
    wheel, window_slots = LiveWheel(precision_ms, hand_ms), settings.roll_window_slots
    timers.files.forget_wheel()
    return timers.with_wheel(wheel, window_slots, older=timers.older, log_begins=timers.log_begins)


def _markers(timers: LiveTimers) -> RecallMarks:
    """The delete markers that the hand has not passed."""
    return find_markers(timers, timers.wheel.hand_ms)


def _from_timer_log(
    store: LiveStore,
    log: LiveTimerLog,
    files: WheelFiles,
    settings: WheelSettings,
    hand_ms: int | None = None,
) -> LiveTimers:
    """The wheel rebuilt from the timer log, with the hand there, or where the checkpoint says."""
    hand_ms = _hand_ms(store, log, files, settings) if hand_ms is None else hand_ms
    wheel = LiveWheel(settings.precision_ms, hand_ms)
    own = files.found_own
    counts = log.revise(wheel)
    if mended := truncate_astray(log, store, files, wheel, has_falls=counts[FALLS] > 0):
        wheel = LiveWheel(wheel.precision_ms, wheel.hand_ms)
        counts = log.revise(wheel)
    log_end = store.log.end
    timers = LiveTimers(
        store,
        log,
        wheel,
        files,
        settings.roll_window_slots,
        log_begins=log.segments.min_offset,
        foreign_until=min(own.foreign_until, log_end) if own and own.is_known else log_end,
        older=NO_OLDER_SLOTS if own is None else own.older.cut_to(log_end),
    )
    file = files.slots_on_disk()
    if flipped := mend_units(timers, counts, file):
        wheel = LiveWheel(wheel.precision_ms, wheel.hand_ms)
        counts = log.revise(wheel)
    early = log.find(None, NO_SLOT, 0) if counts[OVERDUE] else TimerRows.empty()
    if counts[LINKS]:
        flipped += mend_links(timers, int(counts[LINKS]))
    unhung = log.unhung(wheel) if counts[LINKS] else TimerRows.empty()
    is_early = was_due_when_stored(early.slot_time_ms) & (early.slot_time_ms >= wheel.hand_ms)
    timers.count_mended(mended + flipped)
    timers.begin(wheel, has_rolled=bool(counts[ROLLS]), early=early.rows(is_early), unhung=unhung)
    files.compare(wheel, file, log.end)
    timers.resume_at(resume(timers.queue, log, store))
    timers.count_mended(
        mend_astray(store.log, store.queues, store.levels, timers.queue, timers.placed_end)
    )
    mark_done_before_us(timers)
    return timers


def _hand_ms(
    store: LiveStore, log: LiveTimerLog, files: WheelFiles, settings: WheelSettings
) -> int:
    """Where the hand begins: after a crash where it durably was, unless later than any clock."""
    hand_ms, own = files.found.last_read_time_ms, files.found_own
    if begins_at_flush(own, store):
        hand_ms = own.flushed_hand_ms
    elif own is None or not own.is_known:
        hand_ms = min(hand_ms, _latest_ms(store, files))
    if hand_ms == 0:
        return _first_hand_ms(log, store, settings.precision_ms)
    return max(floor_ms(hand_ms, settings.precision_ms), settings.precision_ms)


def _latest_ms(store: LiveStore, files: WheelFiles) -> int:
    """The latest time that a clock is known to have shown: behind it no slot can be over."""
    return max(store.clock.now_ms(), files.found.timestamp_ms)


def _catch_up(timers: LiveTimers, *, are_units_lost: bool) -> Int64s | None:
    """Find out what is done already, and move the hand to where the checkpoint has it. Returns what
    is to be noted of it (``find_done``).
    """
    dealt_with = find_done(timers, are_units_lost=are_units_lost)
    files, own, hand_ms = timers.files, timers.files.found_own, timers.files.claimed_hand_ms
    if hand_ms != files.found.last_read_time_ms or own is None or not own.is_known:
        hand_ms = min(hand_ms, _latest_ms(timers.store, files))
    if hand_ms > timers.wheel.hand_ms:
        move_to(timers, hand_ms, _markers(timers))
    return dealt_with


def _first_hand_ms(log: LiveTimerLog, store: LiveStore, precision_ms: int) -> int:
    """Where the hand begins without a checkpoint: before every used slot, and not at time 0."""
    now_ms = floor_ms(store.clock.now_ms(), precision_ms)
    times = [int(rows.slot_time_ms.min()) for rows in log.all_units()]
    return max(floor_ms(min([now_ms, *times]), precision_ms), precision_ms)


def _known_precision(store: LiveStore, log: LiveTimerLog, files: WheelFiles) -> int | None:
    """The wheel's precision, which only we write down (``precision``); None if nothing tells."""
    if files.found_own is not None:
        return files.found_own.precision_ms
    hand_ms = files.found.last_read_time_ms
    slots = all_slots(store.root).slots
    told = precision_of_slots(slots, log.slot_times_at(int64s(slots["last_position"])), hand_ms)
    if told is not None:
        return told
    if log.last_position is not None:
        with SegmentReader(store.root.timer_log) as reader:
            return precision_of_units(read_units(reader), hand_ms)
    entries = store.queue(TIMER_TOPIC, 0).units(0, EVERYTHING)
    places = int64s(entries["commit_log_offset"]), int64s(entries["size_bytes"])
    facts = read_facts(store.log, *places, FINEST_MS)
    return precision_of_times(facts.out_ms[facts.is_fine])


def _refuse_unknown(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """Raise UnsupportedStoreError where messages are on a wheel and nothing tells its precision."""
    hand_ms = files.found.last_read_time_ms
    if any((rows.slot_time_ms >= hand_ms).any() for rows in log.all_units()):
        raise UnsupportedStoreError(
            f"{store.root.path}: nothing tells how wide the slots of its wheel are; say it with"
            " precision_ms (timerPrecisionMs of its broker)"
        )


def has_units(timers: LiveTimers) -> bool:
    """Whether anything is on the wheel or on its way there, also what is done."""
    on_its_way = timers.placed_end < timers.queue.max_offset
    return on_its_way or len(timers.wheel.used_slots()) > 0


def precision_error(timers: LiveTimers, precision_ms: int) -> PrecisionError:
    """What to raise for a wheel with another precision."""
    kept_ms = timers.precision_ms
    way_out = f"Open it with precision_ms={kept_ms}, or with on_precision_change='rebuild'"
    return PrecisionError(timers.store.root.path, kept_ms, precision_ms, way_out)


def rebuilt(timers: LiveTimers, settings: WheelSettings) -> LiveTimers:
    """The same messages on a wheel of another precision. Raises TargetError."""
    now_ms = timers.store.clock.now_ms()
    place_all(timers, now_ms, lambda: _markers(timers))
    rows, mended = _waiting(timers)
    rows = rows.rows(np.argsort(rows.commit_log_offset, kind="stable"))
    wheel = _new_wheel(timers, settings)
    _give_slots(rows, timers, wheel, now_ms)
    write_flags(timers, mended)
    return _write_rebuilt(timers, _with_last_unit(rows, timers, wheel), wheel, settings)


def _refuse_rebuild(timers: LiveTimers, settings: WheelSettings) -> None:
    """Raise UnsupportedStoreError for a wheel that cannot be rebuilt. The rest of the queue counts
    with the slots that placing would give.

    That is a finer one when messages are to roll: those would roll by their records, which know
    the old precision, and would be early. And where messages wait from before more changes than are
    remembered, or beyond a round of the new wheel.
    """
    now_ms = timers.store.clock.now_ms()
    rows, _ = _waiting(timers)
    rows = TimerRows.together([rows, _rest_waiting(timers, now_ms)])
    _refuse_too_many_widths(timers, rows)
    wheel = _new_wheel(timers, settings)
    _give_slots(rows, timers, wheel, now_ms)
    _refuse_beyond_a_round(timers, rows, wheel)
    far = needs_roll(rows.slot_time_ms, now_ms, wheel.precision_ms, settings.roll_window_slots)
    if settings.precision_ms < timers.precision_ms and (rows.is_roll | far).any():
        raise UnsupportedStoreError(
            f"{timers.store.root.path}: messages that are to roll would be delivered early on a"
            f" wheel with finer slots; deliver them first with precision_ms={timers.precision_ms}"
        )


def _rest_waiting(timers: LiveTimers, now_ms: int) -> TimerRows:
    """Pending messages without units, in the slots that placing gives them."""
    rest = timers.unplaced(EVERYTHING, keys=True)
    marks = _markers(timers)
    if len(rest) or len(timers.early):
        move_to_first_read(timers, now_ms, marks)
    offsets = rest.rows.commit_log_offset
    waits = rest.facts.is_fine & ~rest.facts.is_marker & ~np.isin(offsets, timers.done)
    waits &= ~marks.take_away(offsets, rest.facts)
    rows = rest.rows.rows(waits)
    timers.plan(rows, np.ones(len(rows), bool), now_ms)
    return rows


def _new_wheel(timers: LiveTimers, settings: WheelSettings) -> LiveWheel:
    return LiveWheel(settings.precision_ms, floor_ms(timers.wheel.hand_ms, settings.precision_ms))


def _refuse_too_many_widths(timers: LiveTimers, rows: TimerRows) -> None:
    until = timers.older.until_next_change
    if until and (marker_offsets(rows.commit_log_offset, timers.facts(rows)) < until).any():
        raise UnsupportedStoreError(
            f"{timers.store.root.path}: messages wait from before the last"
            f" {MOST_WIDTHS - 1} changes of precision; deliver them first"
            f" with precision_ms={timers.precision_ms}"
        )


def _refuse_beyond_a_round(timers: LiveTimers, rows: TimerRows, wheel: LiveWheel) -> None:
    """A round of finer slots is shorter, and the hand is where the last advance left it: nobody
    would find what is pending a round or more behind that.
    """
    if (rows.slot_time_ms - wheel.hand_ms >= ROUND_SLOTS * wheel.precision_ms).any():
        raise UnsupportedStoreError(
            f"{timers.store.root.path}: messages wait farther from the last advance than a wheel"
            f" with slots of {wheel.precision_ms} ms reaches; advance it first with"
            f" precision_ms={timers.precision_ms}"
        )


def _waiting(timers: LiveTimers) -> tuple[TimerRows, TimerRows]:
    """The pending rows on the wheel, and units that contradict their records, corrected."""
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
    is_late = was_due_when_stored(rows.slot_time_ms)
    rows.table[SLOT_TIME] = np.where(is_late, overdue + OVERDUE_MARK_MS, slots)
    rows.table[WRITE_TIME] = write_times(rows.slot_time_ms, now_ms, wheel.precision_ms)


def _with_last_unit(rows: TimerRows, timers: LiveTimers, wheel: LiveWheel) -> TimerRows:
    """The rows, and a unit before the hand for the newest entry: there placing resumes."""
    last = timers.log.last_unit()
    if len(rows) and last.commit_log_offset[0] <= rows.commit_log_offset[-1]:
        return rows
    last.table[WRITE_TIME] = wheel.hand_ms - wheel.precision_ms
    last.table[SLOT_TIME] = last.table[WRITE_TIME] + OVERDUE_MARK_MS  # a search comes upon it
    return TimerRows.together([rows, last])


def _write_rebuilt(
    timers: LiveTimers, rows: TimerRows, wheel: LiveWheel, settings: WheelSettings
) -> LiveTimers:
    log, files = timers.log, timers.files
    begin = log.begin_file()
    log.append(rows, wheel)
    log.segments.sync()
    is_early = was_due_when_stored(rows.slot_time_ms) & (rows.slot_time_ms >= wheel.hand_ms)
    made = timers.with_wheel(
        wheel,
        settings.roll_window_slots,
        log_begins=begin,
        older=timers.older.followed_by(timers.store.log.end, timers.precision_ms),
        early=rows.rows(is_early),
    )
    made.mark_records_done(timers.done)  # of what is in the queue without units
    made.all_on_wheel_waits()
    made.set_names_from(timers.names_from)
    apply_older_markers(made)
    own = made.state_to_flush()
    made.save(own)
    files.sync_checkpoint(0, own, made.placed_end)
    log.segments.delete_before(begin)
    files.forget_wheel()
    return made
