# SPDX-License-Identifier: Apache-2.0
"""Pending timed messages: on the wheel, and in the RocksDB timeline of 5.4 and newer."""

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import FormatError, SourceError, UnsupportedStoreError
from message_store.base.printable import counted, shell_word
from message_store.files.log_row import open_log
from message_store.files.rocksdb.view import has_database
from message_store.files.store_root import StoreRoot
from message_store.reading.engine_choice import is_hierarchical
from message_store.reading.recovered_end import recovered_end
from migrate.look.inspection import TimeIndexSummary, TimelineSummary, WheelSummary
from migrate.report.accounting import told_as_gone
from migrate.settings import HIERARCHY, WHEEL
from migrate.write.publishing import is_stub
from time_index.reading import (
    UNREAD_MS,
    gone_from_time_index,
    has_time_index,
    pending_in_time_index,
)
from timer_wheel.reading.ownership import has_timers, index_path
from timer_wheel.reading.state import WheelState
from timer_wheel.reading.timeline import Timeline, timeline_directory
from timer_wheel.reading.wheel_reader import read_wheel_store

_UNTOLD: dict[str, Any] = dict.fromkeys(("pending", "overdue", "next_due_ms", "last_due_ms"))


def inspect_timers(
    store: StoreRoot, now_ms: int, problems: list[str]
) -> tuple[WheelSummary | None, TimelineSummary | None, WheelState | None]:
    """The wheel of a store and its timeline, None for what was never used, and what was read of
    them; what is to be said of them is added to ``problems``.

    Raises UnsupportedStoreError where a timeline cannot be read for want of rocksdict.
    """
    if not has_timers(store):
        return None, None, None
    if is_stub(store.timer_wheel):
        problems.append(f"{store.timer_wheel}: an unfinished conversion; no broker starts on it")
        return WheelSummary(), None, None
    engine = HIERARCHY if is_hierarchical(store) else WHEEL
    try:
        state = read_wheel_store(
            store,
            now_ms=now_ms,
            snapshots_on=None,
            topic_in_delete_key=None,
            after_crash=not store.was_stopped_cleanly,
        )
    except UnsupportedStoreError:
        raise  # nothing is wrong with the store
    except (FormatError, SourceError) as error:
        problems.append(f"the wheel cannot be read: {error}{_remedy(store, error)}")
        is_there = has_database(timeline_directory(store))
        return WheelSummary(engine=engine), TimelineSummary() if is_there else None, None
    problems += [*_wheel_problems(state), *_cut_off(store, state.pending.commit_log_offset)]
    timeline = state.timeline
    summary = None if timeline is None else _timeline_summary(state, timeline, now_ms)
    wheel = attrs.evolve(_summary(state, now_ms), engine=engine)
    if state.is_miscounted:
        wheel = attrs.evolve(wheel, **_UNTOLD, rolled=None, cancelled=None)
        summary = summary and attrs.evolve(summary, **_UNTOLD)
    return wheel, summary, state


def inspect_time_index(
    store: StoreRoot, now_ms: int, problems: list[str]
) -> TimeIndexSummary | None:
    """The time index of a store, None for an unused one; adds to ``problems`` what to say of it."""
    if not has_time_index(store):
        return None
    try:
        rows = pending_in_time_index(store)
        problems += _cut_off(store, rows.offsets)
    except (FormatError, SourceError) as error:
        problems.append(f"the time index cannot be read: {error}")
        return TimeIndexSummary()
    due_ms = rows.due_ms
    if gone := gone_from_time_index(store):
        problems.append(f"the time index: {told_as_gone(gone)}")
    if unread := int(np.count_nonzero(due_ms == UNREAD_MS)):
        messages = counted(unread, "message", "messages")
        problems.append(f"the time index: {messages} cannot be read; `delaywheel pending` says why")
        due_ms = due_ms[due_ms != UNREAD_MS]
    return TimeIndexSummary(
        pending=len(due_ms),
        overdue=int(np.count_nonzero(due_ms <= now_ms)),
        next_due_ms=int(due_ms[0]) if len(due_ms) else None,
        last_due_ms=int(due_ms[-1]) if len(due_ms) else None,
    )


def _remedy(store: StoreRoot, error: FormatError | SourceError) -> str:
    """What to do about a wheel file that has a wrong length, which the timer log makes up for, and
    about an index, which the timer queue makes up for.
    """
    run = f"delaywheel run {shell_word(str(store.path))} --engine"
    if str(index_path(store)) in str(error):
        return f"; `{run} hierarchy` makes the index anew from the timer queue"
    if not isinstance(error, FormatError) or error.path != store.timer_wheel:
        return ""
    return f"; a broker does not start on it, `{run} wheel` makes it anew from the timer log"


def _summary(state: WheelState, now_ms: int) -> WheelSummary:
    """A slot is delivered when it is over: its messages are due one precision after its time."""
    pending = state.pending.rows(~state.pending.is_in_timeline)
    is_final = ~pending.is_roll
    due_ms = pending.slot_time_ms[is_final] + state.precision_ms
    return WheelSummary(
        precision_ms=state.precision_ms,
        units=state.unit_count,
        slots_used=state.slots_used,
        pending=len(pending),
        overdue=int(np.count_nonzero(due_ms <= now_ms)),
        rolled=int(np.count_nonzero(~is_final)),
        cancelled=len(state.cancelled),
        expired=state.expired_count,
        next_due_ms=int(due_ms.min()) if len(due_ms) else None,
        last_due_ms=int(due_ms.max()) if len(due_ms) and is_final.all() else None,
    )


def _timeline_summary(state: WheelState, timeline: Timeline, now_ms: int) -> TimelineSummary:
    """Due is what was asked for, as on a wheel, although a timeline delivers a second before."""
    pending = state.pending.rows(state.pending.is_in_timeline)
    due_ms = pending.slot_time_ms + state.precision_ms
    return TimelineSummary(
        entries=len(timeline),
        pending=len(pending),
        overdue=int(np.count_nonzero(due_ms <= now_ms)),
        delivered_until_ms=timeline.delivered_until_ms,
        scan_offset=timeline.scan_offset,
        next_due_ms=int(due_ms.min()) if len(due_ms) else None,
        last_due_ms=int(due_ms.max()) if len(due_ms) else None,
    )


def _cut_off(store: StoreRoot, offsets: NDArray[np.int64]) -> Iterator[str]:
    """What is pending at these log offsets, and behind the end that the next opening finds."""
    if store.was_stopped_cleanly or not len(offsets):
        return
    with open_log(store) as log:
        log_end = recovered_end(store, log)
    if count := int(np.count_nonzero(offsets >= log_end)):
        yield told_as_cut_off(count, log_end)


def told_as_cut_off(count: int, log_end: int) -> str:
    """What is said of pending messages that recovery takes away."""
    messages = counted(count, "pending message lies", "pending messages lie")
    return (
        f"{messages} behind offset {log_end}, where a broker that starts ends the log: it loses"
        " them"
    )


def _wheel_problems(state: WheelState) -> Iterator[str]:
    yield from state.doubts
    if state.expired_count:
        yield f"the wheel: {told_as_gone(state.expired_count)}"
    if state.done_already_count:
        units = counted(state.done_already_count, "entry", "entries")
        yield (
            f"{units} of the wheel, its queue and its timeline, delivered and not written down:"
            " left out here, repeated by a broker"
        )
    if state.recalled_by_topic_count:
        were = "message of the wheel was", "messages of the wheel were"
        yield (
            f"{counted(state.recalled_by_topic_count, *were)} recalled in the form of 5.3.2 and"
            " 5.3.3, which a broker of 5.4 or newer heeds only with"
            " appendTopicForTimerDeleteKey=true"
        )
    if state.blocking:
        first, _ = state.blocking[0]
        yield f"the wheel stops at offset {first} of its queue: that record has no due time"
    if len(state.shared_positions):
        units = counted(len(state.shared_positions), "unit")
        yield f"{units} of the wheel would be delivered as duplicates"
