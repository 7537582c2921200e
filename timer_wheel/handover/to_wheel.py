# SPDX-License-Identifier: Apache-2.0
"""Makes a hierarchical wheel's store that of a wheel in files again, which a broker goes on with.

Every pending message gets its unit. So does the newest entry of the timer queue, before the hand if
it is done. Cancelled messages get none, and neither do their delete markers: a wheel reads a
marker by slot and would cancel its target's neighbours. The index counts until the wheel is on
disk, and so long brokers are kept from starting: whoever is stopped before begins again.
"""

import numpy as np

from message_store.base.errors import UnsupportedStoreError
from message_store.columns.byte_column import Int64s, int64s
from message_store.writing.store import LiveStore
from timer_wheel.format.older_slots import EXACT_MS, NO_OLDER_SLOTS, OlderSlots
from timer_wheel.hierarchy.index_db import DamagedIndexError, remove_index
from timer_wheel.hierarchy.opening import (
    HierarchySettings,
    open_index,
    surely_waits_for_slot_ends,
)
from timer_wheel.hierarchy.taken_over import forget_taken_over
from timer_wheel.hierarchy.timer_index import TimerIndex
from timer_wheel.reading.ownership import index_path, read_active, release
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.opening import open_timers
from timer_wheel.wheel.settings import WheelSettings


def hand_over(
    store: LiveStore, precision_ms: int | None, wheel: WheelSettings
) -> tuple[LiveTimers, WheelSettings]:
    """The wheel of a store that was a hierarchical wheel's, and its settings. Where a stopped
    handover left the mark beside a wheel in files, that is whole, and only the other goes.

    Raises UnsupportedStoreError for slots in which messages would be delivered early, SourceError
    and TargetError.
    """
    active = read_active(store.root)
    asked_ms, waiting, older = precision_ms, None, NO_OLDER_SLOTS
    if active is not None:
        if _is_early(precision_ms, active.slot_precision_ms) and surely_waits_for_slot_ends(store):
            raise _too_fine(store, precision_ms, active.slot_precision_ms)
        try:
            asked_ms, waiting, older = _all_that_waits(store, precision_ms)
        except DamagedIndexError:  # it is void by now, and rebuilt
            asked_ms, waiting, older = _all_that_waits(store, precision_ms)
    timers, settings = open_timers(store, asked_ms, wheel, waiting=waiting)
    try:
        if waiting is not None:
            _place(timers, waiting, older)
            _make_durable(store, timers)
        release(store.root)
        remove_index(index_path(store.root))
        forget_taken_over(store.root)
    except BaseException:
        timers.log.segments.close()
        timers.files.close()
        raise
    return timers, settings


def _all_that_waits(store: LiveStore, precision_ms: int | None) -> tuple[int, Int64s, OlderSlots]:
    """The asked width of slots, the commit log offsets of pending records, and the older slots."""
    index, _ = open_index(store, None, HierarchySettings())
    try:
        slot_ms = index.slot_precision_ms
        is_refused = _is_early(precision_ms, slot_ms) and index.waits_for_slot_ends()
        offsets = index.pending_offsets()
        older = _older(index)
    finally:
        index.db.close()
    if is_refused:
        raise _too_fine(store, precision_ms, slot_ms)
    return precision_ms or slot_ms, offsets, older


def _is_early(asked_ms: int | None, slot_ms: int) -> bool:
    """Whether slots of this width end before promised slots: 500 too, if those end every 200 ms."""
    return asked_ms is not None and asked_ms % slot_ms > 0


def _too_fine(store: LiveStore, asked_ms: int | None, slot_ms: int) -> UnsupportedStoreError:
    return UnsupportedStoreError(
        f"{store.root.path}: messages wait that were promised for slots of {slot_ms} ms; with"
        f" {asked_ms} they would come early. Open it with precision_ms={slot_ms}"
    )


def _older(index: TimerIndex) -> OlderSlots:
    """The slots of the wheel before, and then the hierarchical wheel's."""
    older = index.older
    if older.until_next_change:
        first_offsets = [
            index.facts_of(rows).first_offsets(int64s(rows["commit_log_offset"]))
            for rows in index.waiting.parts()
        ]
        older = older.with_room_for(np.concatenate([int64s([]), *first_offsets]))
    return older.followed_by(index.store.log.end, EXACT_MS)


def _place(timers: LiveTimers, waiting: Int64s, older: OlderSlots) -> None:
    """Place what is pending; all else is done, delete markers too."""
    timers.remember_older(older)
    found = timers.unplaced(EVERYTHING)
    if len(found):
        waits = np.isin(found.rows.commit_log_offset, waiting)
        timers.place_waiting(found, waits, timers.store.clock.now_ms())
    timers.save()


def _make_durable(store: LiveStore, timers: LiveTimers) -> None:
    own = timers.state_to_flush()
    store.sync_log()
    store.sync_queues()
    timers.files.write_wheel(timers.wheel, timers.log.end)
    timers.log.segments.sync()
    timers.files.sync_wheel()
    timers.files.sync_checkpoint(timers.log.end, own, timers.placed_end)
    timers.write_metrics(durably=True)
    timers.files.replace_guard(timers.wheel)  # last: a broker that starts finds everything
