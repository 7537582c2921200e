# SPDX-License-Identifier: Apache-2.0
"""Opens the wheel of a store for writing: from the timer log, which is the truth, and from what the
checkpoint says.

Slots are not read from the wheel file: units of the timer log are hung on an empty wheel in their
order, and the file is put right where it says otherwise. A file or a snapshot that a broker wrote
tells how wide slots are.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from message_store.base.errors import UnsupportedStoreError
from message_store.columns.byte_column import Int64s, int64s
from message_store.files.live_segments import LiveSegments
from message_store.files.segments import SegmentReader
from message_store.format.properties import TIMER_TOPIC
from message_store.writing.store import LiveStore
from timer_wheel.format.older_slots import NO_OLDER_SLOTS
from timer_wheel.format.timer_due import FINEST_MS, is_overdue
from timer_wheel.format.timer_log import read_units
from timer_wheel.format.wheel_file import all_slots
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS, floor_ms
from timer_wheel.reading.precision import precision_of_slots, precision_of_times, precision_of_units
from timer_wheel.timers.rows import read_facts
from timer_wheel.timers.unit_kernels import OVERDUE, ROLLS
from timer_wheel.wheel.files import WheelFiles
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.log import NO_SLOT, LiveTimerLog
from timer_wheel.wheel.rebuild import has_units, rebuilt, refuse
from timer_wheel.wheel.recall_search import find_markers, note_what_is_damaged, settle_older
from timer_wheel.wheel.recovery import (
    begin_of_copies,
    begin_where_units_are_lost,
    goes_back,
    has_lost_files,
    has_torn_end,
    move_to,
    resume,
    settle_accounts,
    take_back,
    take_back_all,
    take_back_to_gap,
    was_left,
)
from timer_wheel.wheel.settings import WheelSettings
from timer_wheel.wheel.slots import LiveWheel
from timer_wheel.wheel.unit_repair import mend_units
from timer_wheel.wheel.waiting import next_due_ms


def open_timers(
    store: LiveStore,
    precision_ms: int | None,
    wheel: Mapping[str, Any],
    *,
    waiting: Int64s | None = None,
) -> tuple[LiveTimers, WheelSettings]:
    """The wheel of a store whose log and queues are whole, and its settings.

    Where there is no wheel yet, ``waiting`` may tell where in the log the records of all are that
    still wait; otherwise the log has to tell. The guard against brokers stays then, until the
    wheel is whole (``WheelFiles.replace_guard``). Raises SourceError and TargetError.
    """
    segments = LiveSegments(
        store.root.timer_log, store.settings.timer_log_file_bytes, root=store.root.path
    )
    files = WheelFiles(
        store.root,
        store.clock,
        snapshots=bool(wheel.get("snapshots")),
        keeps_guard=waiting is not None,
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
    wheel: Mapping[str, Any],
    waiting: Int64s | None,
) -> tuple[LiveTimers, WheelSettings]:
    own = files.found_own
    if own is not None:
        log.segments.delete_before(own.log_begins)
    log.find_end()
    end = log.end
    if has_lost_files(own, log, store):
        take_back_all(log, store, files)
    is_in_doubt = not store.was_clean or has_torn_end(log, store) or was_left(own, log, files)
    if is_in_doubt:
        take_back(log, store, files)
    if own is None or not own.is_known:
        take_back_to_gap(log, store, files)
    was_cut = log.end < end
    known_ms = _known_precision(store, log, files) if waiting is None else None
    if known_ms is None and precision_ms is None:
        _refuse_unknown(log, store, files)
    asked_ms = precision_ms or known_ms or DEFAULT_PRECISION_MS
    settings = WheelSettings(precision_ms=asked_ms, **wheel)
    timers = _hung(store, log, files, attrs.evolve(settings, precision_ms=known_ms or asked_ms))
    timers.metrics.is_known &= not is_in_doubt
    settle_older(timers)
    if waiting is not None:
        _believe(timers, waiting)
    elif not store.settings.repeat_after_kill:
        _account(timers)
    if is_in_doubt:
        note_what_is_damaged(timers)
    if timers.precision_ms != asked_ms:
        timers = _with_precision(timers, settings)
    _begin(timers, is_in_doubt=is_in_doubt or was_cut)
    timers.placed_again.known_from = timers.log.end
    return timers, settings


def _begin(timers: LiveTimers, *, is_in_doubt: bool) -> None:
    """Write down where the wheel stands, and let the next crash take the timer log back to here.

    Of a wheel in doubt the file too: units may come to lie where others were that it leads to. How
    wide slots are is on the disk before anything is stored for them: nothing else tells.
    """
    segments, files, own = timers.log.segments, timers.files, timers.state_to_flush()
    known, flush_position = files.found_own, files.checkpoint.flush_position
    is_at_flush = known is not None and (known.flushed_position, known.precision_ms) == (
        own.flushed_position,
        own.precision_ms,
    )
    if not is_in_doubt and is_at_flush and not files.is_stale:
        files.own = own
        timers.save()
        return
    for start in segments.starts:
        segments.doubt(start)
    segments.sync()
    if is_in_doubt:
        flush_position = timers.log.end
        files.doubt_wheel()
        files.write_wheel(timers.wheel, flush_position)
        files.sync_wheel()
    files.own = own
    timers.save()
    files.sync_checkpoint(flush_position, own, timers.placed_end)


def _with_precision(timers: LiveTimers, settings: WheelSettings) -> LiveTimers:
    """The wheel with the precision that is asked for, where that can be."""
    precision_ms = settings.precision_ms
    if has_units(timers):
        if settings.on_precision_change == "refuse" and _waits(timers):
            raise refuse(timers, precision_ms)
        return rebuilt(timers, settings)
    store, log, files = timers.store, timers.log, timers.files
    hand_ms = -(-timers.wheel.hand_ms // precision_ms) * precision_ms
    made = LiveTimers(
        store,
        log,
        LiveWheel(precision_ms, hand_ms),
        files,
        settings.roll_window_slots,
        log_begins=timers.log_begins,
        older=timers.older,
    )
    made.placed_end, made.has_rolled = timers.placed_end, timers.has_rolled
    files.forget_wheel()
    return made


def _waits(timers: LiveTimers) -> bool:
    """Whether there is anything to deliver."""
    return next_due_ms(timers, find_markers(timers, timers.wheel.hand_ms)) is not None


def _hung(
    store: LiveStore, log: LiveTimerLog, files: WheelFiles, settings: WheelSettings
) -> LiveTimers:
    """The wheel made from the timer log, with the hand where the checkpoint says."""
    wheel = LiveWheel(settings.precision_ms, _hand_ms(store, log, files, settings))
    own, older = files.found_own, NO_OLDER_SLOTS
    if own is not None:
        older = own.older
    timers = LiveTimers(
        store,
        log,
        wheel,
        files,
        settings.roll_window_slots,
        log_begins=log.segments.min_offset,
        older=older,
    )
    counts = log.revise(wheel)
    file = files.slots_on_disk()
    timers.mended_units = mend_units(timers, counts, file)
    if timers.mended_units:
        wheel = timers.wheel = LiveWheel(wheel.precision_ms, wheel.hand_ms)
        counts = log.revise(wheel)
    timers.has_rolled = bool(counts[ROLLS])
    files.compare(wheel, file, log.end)
    timers.placed_end = resume(timers.queue, log, store)
    if counts[OVERDUE]:
        rows = log.find(None, NO_SLOT, 0)
        is_early = is_overdue(rows.slot_time_ms) & (rows.slot_time_ms >= wheel.hand_ms)
        timers.early = rows.rows(is_early)
    return timers


def _hand_ms(
    store: LiveStore, log: LiveTimerLog, files: WheelFiles, settings: WheelSettings
) -> int:
    """Where the hand begins: after a crash, where it was known to be on disk. Where we did not
    write it, it is damaged if it is later than any clock was.
    """
    hand_ms, own = files.found.last_read_time_ms, files.found_own
    if goes_back(own, store):
        hand_ms = own.flushed_hand_ms
    elif own is None or not own.is_known:
        hand_ms = min(hand_ms, _latest_ms(store, files))
    if hand_ms == 0:
        return _first_hand_ms(log, store, settings.precision_ms)
    return max(floor_ms(hand_ms, settings.precision_ms), settings.precision_ms)


def _latest_ms(store: LiveStore, files: WheelFiles) -> int:
    """The latest time that a clock is known to have shown: behind it no slot can be over."""
    return max(store.clock.now_ms(), files.found.timestamp_ms)


def _believe(timers: LiveTimers, waiting: Int64s) -> None:
    """Take for dealt with whatever is in the queue and is not said to wait."""
    rest = timers.unplaced(EVERYTHING)
    waits = np.isin(rest.rows.commit_log_offset, waiting)
    timers.done = np.unique(rest.rows.commit_log_offset[~waits])
    first_ms = int(rest.rows.slot_time_ms[waits].min(initial=timers.wheel.hand_ms))
    timers.wheel.move_hand(max(floor_ms(first_ms, timers.precision_ms), timers.precision_ms))


def _account(timers: LiveTimers) -> None:
    """Find out what was dealt with already, where the checkpoint cannot tell."""
    store, own = timers.store, timers.files.found_own
    if own is None or not own.is_known:
        copies_from = begin_of_copies(timers, timers.wheel.hand_ms)
        copies_from = begin_where_units_are_lost(timers, copies_from)
    elif timers.log.end < own.flushed_position:
        # Lost units get others where they lay: neither a place nor the hand tells old from new.
        copies_from = store.log.min_offset
        timers.base = attrs.evolve(timers.base, copies_hand_ms=0, copies_position=0)
    else:
        copies_from = min(max(own.copies_from, store.log.min_offset), store.log.end)
        timers.base = attrs.evolve(
            timers.base,
            copies_hand_ms=own.copies_hand_ms,
            copies_position=own.copies_position,
        )
    settle_accounts(timers, copies_from)
    files, hand_ms = timers.files, timers.files.claimed_hand_ms
    if hand_ms != files.found.last_read_time_ms or own is None or not own.is_known:
        hand_ms = min(hand_ms, _latest_ms(store, files))
    if hand_ms > timers.wheel.hand_ms:
        move_to(timers, hand_ms, find_markers(timers, timers.wheel.hand_ms))


def _first_hand_ms(log: LiveTimerLog, store: LiveStore, precision_ms: int) -> int:
    """Where the hand begins when no checkpoint says so: before every slot that is used, but never
    at the slot of time 0, which looks like one that holds nothing.
    """
    now_ms = floor_ms(store.clock.now_ms(), precision_ms)
    times = [int(rows.slot_time_ms.min()) for rows in log.all_units()]
    return max(floor_ms(min([now_ms, *times]), precision_ms), precision_ms)


def _known_precision(store: LiveStore, log: LiveTimerLog, files: WheelFiles) -> int | None:
    """The precision that a wheel was written with; None when nothing tells. We write it down, a
    broker does not (``precision``).
    """
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
