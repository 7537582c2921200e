# SPDX-License-Identifier: Apache-2.0
"""Takes a store over from a wheel in files: its pending messages, and how wide its slots are.

Before recovery such a store is looked at as a wheel looks at it: ``refuse_before_recovery``.
"""

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.files.segments import list_segments
from message_store.files.small_files import remove_file
from message_store.files.store_root import StoreRoot
from message_store.format.properties import TIMER_TOPIC
from message_store.writing.store import LiveStore
from timer_wheel.format.checkpoint import TIMER_CHECKPOINT_NAME
from timer_wheel.format.metrics import TIMER_METRICS_NAME
from timer_wheel.format.older_slots import NO_OLDER_SLOTS, OlderSlots
from timer_wheel.format.timer_due import due_times
from timer_wheel.format.wheel_file import snapshots
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS, PRECISIONS_MS
from timer_wheel.hierarchy.recall_marks import are_slot_ends
from timer_wheel.reading.ownership import is_guarded
from timer_wheel.timers.rows import TimerRows
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.opening import open_timers
from timer_wheel.wheel.opening import refuse_before_recovery as refuse_before_recovery
from timer_wheel.wheel.recall_search import find_markers
from timer_wheel.wheel.settings import WheelSettings
from timer_wheel.wheel.unit_repair import with_right_flags


@attrs.frozen(eq=False)
class OnWheel:
    """What is pending on a wheel, or on its way there: where the records are, in order.

    ``waits_for_slot_ends`` says whether one of them was promised for the end of a slot; ``older``
    are the wheel's slots, all of them by now.
    """

    commit_log_offsets: Int64s
    slot_precision_ms: int
    hand_ms: int
    waits_for_slot_ends: bool
    older: OlderSlots = NO_OLDER_SLOTS


def take_over(store: LiveStore, default_ms: int) -> OnWheel:
    """What the wheel of a store tells, after what a crash may have left was put right.

    Raises SourceError and TargetError.
    """
    is_new = not store.queue(TIMER_TOPIC, 0).max_offset and not list_segments(store.root.timer_log)
    if is_new:
        return OnWheel(np.empty(0, np.int64), default_ms, 0, waits_for_slot_ends=False)
    settings = WheelSettings(precision_ms=DEFAULT_PRECISION_MS)
    # A guard without a mark: that was lost, and counts again where somebody puts it back.
    timers, _ = open_timers(store, None, settings, keeps_guard=is_guarded(store.root))
    try:
        rest = timers.unplaced(EVERYTHING)
        rest_rows = rest.rows.rows(rest.facts.is_fine)
        rest_rows = rest_rows.rows(~np.isin(rest_rows.commit_log_offset, timers.done))
        placed = timers.in_slots(timers.wheel.used_slots())
        mended = with_right_flags(placed, timers.facts(placed))
        all_rows = TimerRows.together([placed, rest_rows])
        rows = _waiting(timers, all_rows, mended)
        slot_ms = _slot_precision(timers, all_rows)
        return OnWheel(
            np.unique(rows.commit_log_offset),
            slot_ms,
            timers.wheel.hand_ms,
            waits_for_slot_ends=bool(are_slot_ends(timers.facts(rows)).any()),
            older=_slots_by_now(timers, rows),
        )
    finally:
        timers.log.segments.close()
        timers.files.close()


def _slots_by_now(timers: LiveTimers, waiting: TimerRows) -> OlderSlots:
    """All slots that the wheel had, those of today too."""
    older, offsets = timers.older, waiting.commit_log_offset
    if older.until_next_change:
        older = older.with_room_for(timers.facts(waiting).first_offsets(offsets))
    return older.followed_by(timers.store.log.end, timers.precision_ms)


def _slot_precision(timers: LiveTimers, rows: TimerRows) -> int:
    """What out times mean: the wheel's width, or a wider one of records, so that none is early."""
    facts = timers.facts(rows)
    promised_ms = timers.promised_ms(rows, facts)
    by_record = due_times(facts.stored_out_ms, facts.store_ms, timers.precision_ms)
    is_early = are_slot_ends(facts) & (by_record < promised_ms)
    return max(PRECISIONS_MS) if is_early.any() else timers.precision_ms


def _waiting(timers: LiveTimers, rows: TimerRows, mended: TimerRows) -> TimerRows:
    """Pending messages of these rows, by slot. ``mended`` are rows whose units have wrong flags."""
    marks = find_markers(timers, timers.wheel.hand_ms, mended=mended)
    facts = timers.facts(rows, keys=len(marks) > 0)
    is_taken = marks.take_away(rows.commit_log_offset, facts)
    return rows.rows(~is_taken & ~rows.is_marker)


def clear_wheel(root: StoreRoot) -> None:
    """Remove, durably, what was a wheel in files: nobody may believe it. Raises TargetError."""
    small = [root.config_file(name) for name in (TIMER_CHECKPOINT_NAME, TIMER_METRICS_NAME)]
    for path in (
        *(segment.path for segment in reversed(list_segments(root.timer_log))),
        *(path.with_name(f"{path.name}{ending}") for path in small for ending in ("", ".bak")),
        *(path for _, path in snapshots(root)),
    ):
        if path.exists():
            remove_file(path, is_durable=True)
