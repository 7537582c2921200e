# SPDX-License-Identifier: Apache-2.0
"""Recall: which messages the delete markers on a wheel take away.

A marker is itself a timed message, due with its target, and names the target's key. It works in the
slot where both lie in the end: a message that rolls ends in the slot of its TIMER_OUT_MS, and so
does a marker that rolls. What the marker's text must be differs: the plain UNIQ_KEY up to 5.3.1 and
again from 5.4 on, topic + ``+`` + UNIQ_KEY in 5.3.2 and 5.3.3 and with 5.4's
`appendTopicForTimerDeleteKey`.
"""

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError
from message_store.files.segments import SegmentReader
from message_store.format.java_numbers import LONG_MAX, parse_long
from message_store.format.message import StoredMessage
from message_store.format.properties import (
    TIMER_DELETE_UNIQUE_KEY,
    TIMER_OUT_MS,
    TIMER_ROLL_LABEL,
    TIMER_ROLL_TIMES,
)
from timer_wheel.format.wheel_math import Int64Array, floor_ms
from timer_wheel.reading.copies import first_offset
from timer_wheel.reading.pending_timers import PendingTimers, pending_records


@attrs.frozen(eq=False)
class Cancelled:
    """Which rows are messages that a marker takes away: by the plain key, by topic and key; and
    ``recalled_at``, where in the log a marker in either form is that was stored behind them, or
    ``LONG_MAX``.
    """

    by_key: NDArray[np.bool_]
    by_topic_and_key: NDArray[np.bool_]
    recalled_at: Int64Array

    @property
    def recalled(self) -> NDArray[np.bool_]:
        """Which of them a marker takes away that was stored behind them."""
        is_it: NDArray[np.bool_] = self.recalled_at < LONG_MAX
        return is_it

    def for_broker(self, topic_in_delete_key: bool | None) -> NDArray[np.bool_]:
        """What a broker with that setting does not deliver; None: what somebody recalled."""
        if topic_in_delete_key is None:
            return self.recalled
        return self.by_topic_and_key if topic_in_delete_key else self.by_key


def delete_key(message: StoredMessage, *, with_topic: bool) -> str | None:
    """What a marker must say to take this message away; None when nothing can."""
    key = message.unique_key
    return f"{message.real_topic}+{key}" if key and with_topic else key


def cancelled(
    timers: PendingTimers,
    commit_log: SegmentReader,
    *,
    now_ms: int,
    precision_ms: int,
) -> Cancelled:
    """Which rows are messages that a marker among the rows takes away, in either form.

    What waits in the queue and is due before the slot of ``now_ms`` is never placed: such a marker
    has no effect, and such a message is delivered. Records are read only where a marker makes it
    necessary; with rolling markers that is every rolling message.
    """
    count = len(timers)
    found = Cancelled(np.zeros(count, bool), np.zeros(count, bool), np.full(count, LONG_MAX))
    is_placed = (timers.position >= 0) | timers.is_in_timeline
    is_placed |= timers.slot_time_ms >= floor_ms(now_ms, precision_ms)
    markers = timers.rows(timers.is_marker & is_placed)
    marks: dict[tuple[int | None, str | None], int] = {}
    for end_ms, message in _with_end_slots(markers, commit_log, precision_ms):
        if message is not None:
            mark = end_ms, message.properties.get(TIMER_DELETE_UNIQUE_KEY)
            marks[mark] = max(first_offset(message), marks.get(mark, -1))
    if not marks:
        return found
    slots = np.array([end_ms for end_ms, _ in marks if end_ms is not None], np.int64)
    may_meet = np.isin(floor_ms(timers.slot_time_ms, precision_ms), slots) | timers.is_roll
    candidates = np.flatnonzero(may_meet & is_placed & ~timers.is_marker)
    ends = _with_end_slots(timers.rows(candidates), commit_log, precision_ms)
    for row, (end_ms, message) in zip(candidates.tolist(), ends, strict=True):
        for is_cancelled, with_topic in ((found.by_key, False), (found.by_topic_and_key, True)):
            key = None if message is None else delete_key(message, with_topic=with_topic)
            if message is None or None in (key, end_ms) or (end_ms, key) not in marks:
                continue
            is_cancelled[row] = True
            if _scheduled_at(message) < marks[end_ms, key]:
                found.recalled_at[row] = marks[end_ms, key]
    return found


def _scheduled_at(message: StoredMessage) -> int:
    """Where in the log a message was scheduled; -1 where a broker rolled it, and nothing tells."""
    offset = first_offset(message)
    has_rolled = not message.properties.keys().isdisjoint({TIMER_ROLL_TIMES, TIMER_ROLL_LABEL})
    return -1 if has_rolled and offset == message.commit_log_offset else offset


def _with_end_slots(
    timers: PendingTimers, commit_log: SegmentReader, precision_ms: int
) -> Iterator[tuple[int | None, StoredMessage | None]]:
    """The record of each row with the slot where it ends up; None for what is not told."""
    records = pending_records(commit_log, timers)
    for slot_time_ms, is_roll, message in zip(
        timers.slot_time_ms.tolist(), timers.is_roll.tolist(), records, strict=True
    ):
        end_ms: int | None = slot_time_ms
        if is_roll and message is not None:
            end_ms = _out_ms(message)
        yield (None if end_ms is None else floor_ms(end_ms, precision_ms)), message


def _out_ms(message: StoredMessage) -> int | None:
    try:
        return parse_long(message.properties.get(TIMER_OUT_MS, ""))
    except BadFieldError:
        return None
