# SPDX-License-Identifier: Apache-2.0
"""Delete markers: damaged ones, ones that cancel nothing; and entries that need no unit."""

from collections.abc import Iterator

import numpy as np

from message_store.base.errors import DelayStoreError
from message_store.base.printable import printable
from message_store.format.message import StoredMessage
from message_store.format.properties import TIMER_DELETE_UNIQUE_KEY, TIMER_OUT_MS
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, warning
from migrate.check.snapshot import StoreSnapshot, whole_number
from timer_wheel.format.timer_log import FLAG_DELETE, TimerUnits
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.reading.delete_markers import (
    SlotWidths,
    is_of_cancel,
    marker_problem,
    recalled_pairs,
)
from timer_wheel.reading.lost_messages import LostMessages
from timer_wheel.reading.pending_timers import pending_records, record_at
from timer_wheel.reading.state import WheelState
from timer_wheel.reading.timeline import read_timeline

MARKER_DAMAGED = error(
    "delete-marker-damaged",
    "the message that was cancelled is delivered",
    "cancel that message again; look at the disk",
)
MARKER_IDLE = warning(
    "delete-marker-idle",
    "it cancels nothing; if it is damaged, the message that it cancelled is delivered",
    "look for that message among the pending ones, and cancel it again",
)
CANCEL_LOST = error(
    "cancel-lost",
    "a wheel of delaywheel found the delete marker damaged: the message is delivered",
    "cancel that message again; look at the disk. Then close the store, and remove the file in"
    " delaywheel/ that notes it",
)
LOOKED_AT = 100_000
"""Delete markers that are read, newest first."""


def check_delete_markers(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """The newest delete markers that are yet to be read: each names its own key and cancels a
    pending message. And the markers that a wheel of ours found damaged.
    """
    cancels = LostMessages(snapshot.root).cancels
    if cancels.is_damaged:
        problem = "the file is damaged: which cancels were lost is not known"
        yield CANCEL_LOST.at(snapshot.relative(cancels.path), problem)
    for lost in cancels.all():
        problem = f"a delete marker is damaged: {lost.reason}"
        yield CANCEL_LOST.at(f"commit log {lost.commit_log_offset}", problem)
    state = snapshot.wheel
    if state is None:
        return
    markers = state.markers.rows(state.markers.slot_time_ms >= state.read_time_ms)
    markers = markers.rows(np.arange(len(markers))[-LOOKED_AT:])
    whole = []
    for offset, record in zip(
        markers.commit_log_offset.tolist(), pending_records(snapshot.log, markers), strict=True
    ):
        damage = marker_problem(record)
        if damage is not None:
            yield MARKER_DAMAGED.at(f"commit log {offset}", damage)
        elif record is not None and is_of_cancel(record):
            whole.append(record)
    for marker in _idle(snapshot, state, whole):
        key = printable(marker.unique_key or "")
        problem = (
            f"the delete marker of {key!r} in {marker.real_topic!r} cancels no pending message"
        )
        yield MARKER_IDLE.at(f"commit log {marker.commit_log_offset}", problem)


def _idle(
    snapshot: StoreSnapshot, state: WheelState, markers: list[StoredMessage]
) -> list[StoredMessage]:
    """The delete markers of these that cancel no pending message."""
    if snapshot.is_running or _had_timeline(snapshot):
        return []  # their messages may come and go meanwhile, or may have been in the timeline
    widths = SlotWidths(state.precision_ms)
    if not snapshot.is_hierarchical:
        widths = SlotWidths.of(snapshot.root, state.precision_ms)
    for rows in (state.cancelled, state.pending):
        if markers:
            ends_ms = [widths.slot_end_ms(marker) or 0 for marker in markers]
            slots_ms = [end_ms - state.precision_ms for end_ms in ends_ms]
            near = rows.rows(np.isin(rows.slot_time_ms, slots_ms) | rows.is_roll)
            targets = filter(None, pending_records(snapshot.log, near))
            used = {mark.commit_log_offset for _, mark in recalled_pairs(targets, markers, widths)}
            markers = [marker for marker in markers if marker.commit_log_offset not in used]
    return markers


def _had_timeline(snapshot: StoreSnapshot) -> bool:
    """Whether messages of this store are, or were, in RocketMQ's RocksDB timeline."""
    try:
        return read_timeline(snapshot.root) is not None
    except DelayStoreError:  # one that cannot be read is one
        return True


def needless_entries(
    snapshot: StoreSnapshot, state: WheelState, units: TimerUnits, entries: list[StoredMessage]
) -> set[int]:
    """Of some records without units the commit log offsets of those that need none: cancelled
    messages, and markers that cancel nothing on the wheel.
    """
    widths = SlotWidths.of(snapshot.root, state.precision_ms)
    of_markers = units.units[units.units["magic"] & FLAG_DELETE != 0][-LOOKED_AT:]
    offsets, sizes = of_markers["commit_log_offset"], of_markers["record_size_bytes"]
    placed = [
        record_at(snapshot.log, offset, size)
        for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)
    ]
    markers = [entry for entry in entries if TIMER_DELETE_UNIQUE_KEY in entry.properties]
    messages = [entry for entry in entries if TIMER_DELETE_UNIQUE_KEY not in entry.properties]
    pairs = recalled_pairs(messages, [*filter(None, placed), *markers], widths)
    needless = {message.commit_log_offset for message, _ in pairs}
    if not markers:
        return needless
    slots_ms = [floor_ms(out_ms_of(marker) or 0, state.precision_ms) for marker in markers]
    near = state.pending.rows(np.isin(state.pending.slot_time_ms, slots_ms) | state.pending.is_roll)
    targets = filter(None, pending_records(snapshot.log, near))
    needed = {marker.commit_log_offset for _, marker in recalled_pairs(targets, markers, widths)}
    return needless | ({marker.commit_log_offset for marker in markers} - needed)


def out_ms_of(record: StoredMessage) -> int | None:
    """The TIMER_OUT_MS of a record; None if it is none."""
    return whole_number(record.properties.get(TIMER_OUT_MS))
