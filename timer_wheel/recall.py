# SPDX-License-Identifier: Apache-2.0
"""Taking messages back: the delete markers that are waiting, and where a message of a handle is.

A marker takes away every message of its slot, real topic and unique key; a broker of 5.4 and later
looks at slot and key alone. Whatever form the text of a marker has, it counts: that is what whoever
recalled wanted.
"""

import attrs
import numpy as np

from message_store.byte_column import Int64s
from message_store.delay_store import Cancellation
from message_store.java_numbers import string_hash
from message_store.message import Message, StoredMessage
from message_store.properties import TIMER_DELETE_UNIQUE_KEY
from message_store.recall_handle import RecallHandle
from timer_wheel.live_timers import LiveTimers
from timer_wheel.timer_due import is_overdue
from timer_wheel.timer_log import FLAG_DELETE, FLAG_ROLL
from timer_wheel.timer_record_kernel import KEY_ONE
from timer_wheel.timer_rows import Bools, TimerFacts, TimerRows
from timer_wheel.unplaced import EVERYTHING
from timer_wheel.wheel_kernels import TOPIC_HASH
from timer_wheel.wheel_math import floor_ms, out_ms

MARKER_BODY = b"0"
MARKER_TAGS = "_RECALL_TAG_"
NO_KEY = (0, 0)
_NO_SLOT = -1


class RecallMarks:
    """The recall keys of all delete markers whose slots are not over, with the times of these."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], int] = {}
        self._first_words: Int64s | None = None

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, facts: TimerFacts) -> None:
        """Remember markers."""
        slots = floor_ms(facts.out_ms, facts.precision_ms).tolist()
        for key, slot_ms in zip(facts.recall_keys(), slots, strict=True):
            if key != NO_KEY:
                self._slots[key] = slot_ms
        self._first_words = None

    def remember(self, key: tuple[int, int], slot_ms: int) -> None:
        """Remember one marker."""
        self._slots[key] = slot_ms
        self._first_words = None

    def forget_before(self, hand_ms: int) -> None:
        """Drop the markers whose slots are over."""
        if self._slots and min(self._slots.values()) < hand_ms:
            self._slots = {key: ms for key, ms in self._slots.items() if ms >= hand_ms}
            self._first_words = None

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._slots

    def take_away(self, facts: TimerFacts) -> Bools:
        """Which of these rows a marker takes away."""
        found = np.zeros(len(facts), bool)
        if not self._slots or not len(facts):
            return found
        if self._first_words is None:
            self._first_words = np.array([one for one, _ in self._slots], np.int64)
        may_be = np.flatnonzero(np.isin(facts.table[KEY_ONE], self._first_words))
        keys = facts.rows(may_be).recall_keys()
        found[may_be] = [key in self._slots for key in keys]
        return found


@attrs.frozen
class Target:
    """A message that a handle names: its record, when it is due, and what recalls it."""

    message: StoredMessage
    out_ms: int
    recall_key: tuple[int, int]


def marker_for(target: Target, *, topic_in_delete_key: bool) -> tuple[Message, tuple[str, str]]:
    """The delete marker of a message, and the property that says whom it takes away."""
    message = target.message
    key = message.unique_key or ""
    text = f"{message.real_topic}+{key}" if topic_in_delete_key else key
    marker = Message(
        topic=message.real_topic,
        body=MARKER_BODY,
        tags=MARKER_TAGS,
        queue_id=int(message.properties.get("REAL_QID", "0")),
        unique_key=key,
    )
    return marker, (TIMER_DELETE_UNIQUE_KEY, text)


class Search:
    """Looks for the messages of one handle, wherever they are or were."""

    def __init__(self, timers: LiveTimers, handle: RecallHandle) -> None:
        self._timers = timers
        self._handle = handle
        self._topic_hash = string_hash(handle.topic)
        self.slot_ms = out_ms(handle.due_ms, timers.precision_ms)

    def waiting(self) -> Target | None:
        """One of the messages that wait; None when none does."""
        timers = self._timers
        unplaced = timers.unplaced(EVERYTHING).rows
        unplaced = unplaced.rows(~np.isin(unplaced.commit_log_offset, timers.done))
        if (found := self._among(unplaced)) is not None:
            return found
        if (found := self._among(timers.early)) is not None:
            return found
        slot = self.slot_ms // timers.precision_ms
        held = timers.wheel.used_slots(self.slot_ms + timers.precision_ms)
        if len(held) and held[-1] == slot:
            rows = timers.in_slots(held[-1:])
            if (found := self._among(rows.rows(~rows.is_roll))) is not None:
                return found
        return self._parked()

    def _parked(self) -> Target | None:
        """The message among those that will roll: any slot may hold it."""
        timers = self._timers
        if not timers.has_rolled:
            return None
        rows = timers.log.find(self._topic_hash, _NO_SLOT, 0, flags=FLAG_ROLL)
        rows = rows.rows(rows.is_roll)
        return self._among(rows.rows(timers.are_waiting(rows)))

    def past(self) -> Cancellation:
        """What became of a message that does not wait."""
        timers = self._timers
        rows = timers.log.find(self._topic_hash, self.slot_ms, timers.precision_ms, flags=FLAG_ROLL)
        unplaced = timers.unplaced(EVERYTHING).rows
        unplaced = unplaced.rows(unplaced.table[TOPIC_HASH] == self._topic_hash)
        rows = TimerRows.together([rows, unplaced])
        facts = timers.facts(rows)
        is_it = self._is_it(rows, facts)
        if not is_it.any():
            return Cancellation.NEVER_EXISTED
        messages, markers = is_it & ~facts.is_marker, is_it & facts.is_marker
        if markers.any():
            return Cancellation.CANCELLED
        return Cancellation.ALREADY_DELIVERED if messages.any() else Cancellation.NEVER_EXISTED

    def _among(self, rows: TimerRows) -> Target | None:
        rows = rows.rows((rows.table[TOPIC_HASH] == self._topic_hash) & ~rows.is_marker)
        if not len(rows):
            return None
        facts = self._timers.facts(rows, keys=True)
        for row in np.flatnonzero(self._is_it(rows, facts)).tolist():
            record = self._record(rows, row)
            return Target(record, int(facts.out_ms[row]), facts.recall_keys()[row])
        return None

    def _record(self, rows: TimerRows, row: int) -> StoredMessage:
        return self._timers.store.log.record(
            int(rows.commit_log_offset[row]), int(rows.size_bytes[row])
        )

    def _is_it(self, rows: TimerRows, facts: TimerFacts) -> Bools:
        """Which rows are what the handle names, by its time, topic and key.

        A handle that a broker gave says the millisecond after the out time, ours the promise. A
        marker is known by its target's key.
        """
        handle = self._handle
        is_it = np.zeros(len(rows), bool)
        time_fits = (facts.promised_ms == handle.due_ms) | (facts.out_ms + 1 == handle.due_ms)
        time_fits |= facts.is_marker & is_overdue(facts.out_ms)
        for row in np.flatnonzero(time_fits & facts.is_fine).tolist():
            properties = self._record(rows, row).properties
            key = properties.get("UNIQ_KEY")
            is_it[row] = (properties.get("REAL_TOPIC"), key) == (handle.topic, handle.unique_key)
        return is_it


def pending_markers(timers: LiveTimers) -> list[TimerFacts]:
    """The facts of every delete marker that is on the wheel or waits in the queue."""
    rest = timers.unplaced(EVERYTHING, keys=True).facts
    rows = timers.log.find(None, _NO_SLOT, 0, flags=FLAG_DELETE)
    rows = rows.rows(rows.is_marker & (rows.slot_time_ms >= timers.wheel.hand_ms))
    return [timers.facts(rows, keys=True), rest.rows(rest.is_marker & rest.is_fine)]
