# SPDX-License-Identifier: Apache-2.0
"""Taking messages back: the delete markers that are waiting, and the messages that they name.

A marker takes away every message of its slot, real topic and unique key that was scheduled before
it. A broker takes those behind it as well, and from 5.4 on looks at slot and key alone. Whatever
form the text of a marker has, it counts: that is what whoever recalled wanted. One that a cancel
made names its own key; if it names another, one of the two is damaged, and it takes nothing.
"""

from contextlib import suppress

import attrs
import numpy as np

from message_store.base.errors import FormatError
from message_store.columns.byte_column import Int64s
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message import Message, StoredMessage
from message_store.format.properties import TIMER_DELETE_UNIQUE_KEY
from message_store.interface.waiting_messages import real_queue_id
from message_store.writing.log import LiveLog
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.reading.delete_markers import MARKER_BODY, MARKER_TAGS, is_of_cancel
from timer_wheel.timers.lost_messages import LostMessage
from timer_wheel.timers.record_kernel import KEY_ONE
from timer_wheel.timers.rows import Bools, TimerFacts

RecallKey = tuple[int, int]


NO_KEY: RecallKey = (0, 0)


@attrs.frozen
class _Mark:
    """The last marker of one recall key: when its slot is, and where its first record was."""

    slot_ms: int
    commit_log_offset: int


class RecallMarks:
    """All delete markers whose slots are not over, by recall key.

    A marker takes away what lies before its first record. A message that a broker rolled does not
    say where it was scheduled, and counts as older than any marker; a marker that a broker rolled
    counts from its newest record.
    """

    def __init__(self) -> None:
        self._marks: dict[RecallKey, _Mark] = {}
        self._first_words: Int64s | None = None

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, offsets: Int64s, facts: TimerFacts) -> None:
        """Remember markers, whose records are at these offsets of the log."""
        slots = floor_ms(facts.out_ms, facts.precision_ms).tolist()
        places = marker_offsets(offsets, facts).tolist()
        for key, slot_ms, place in zip(facts.recall_keys(), slots, places, strict=True):
            self.remember(key, slot_ms, place)

    def remember(self, key: RecallKey, slot_ms: int, commit_log_offset: int) -> None:
        """Remember one marker, by where its first record is."""
        known = self._marks.get(key)
        if key == NO_KEY:
            return
        if known is not None:
            slot_ms = max(slot_ms, known.slot_ms)
            commit_log_offset = max(commit_log_offset, known.commit_log_offset)
        self._marks[key] = _Mark(slot_ms, commit_log_offset)
        self._first_words = None

    def as_of_now(self) -> "RecallMarks":
        """A copy for a listing: markers are forgotten while somebody still reads their targets."""
        kept = RecallMarks()
        kept._marks, kept._first_words = dict(self._marks), self._first_words
        return kept

    def forget_before(self, hand_ms: int) -> None:
        """Drop the markers whose slots are over."""
        if any(mark.slot_ms < hand_ms for mark in self._marks.values()):
            self._marks = {k: mark for k, mark in self._marks.items() if mark.slot_ms >= hand_ms}
            self._first_words = None

    def takes(self, key: RecallKey, first_offset: int) -> bool:
        """Whether a marker takes away the message with this key and first record."""
        mark = self._marks.get(key)
        return mark is not None and first_offset < mark.commit_log_offset

    def take_away(self, offsets: Int64s, facts: TimerFacts) -> Bools:
        """Which of these rows, with records at these offsets of the log, a marker takes away."""
        return self.taken_at(offsets, facts) < LONG_MAX

    def taken_at(self, offsets: Int64s, facts: TimerFacts) -> Int64s:
        """Where in the log each row was taken away: the offset of the marker, or ``LONG_MAX``."""
        found = np.full(len(facts), LONG_MAX, np.int64)
        if not self._marks or not len(facts):
            return found
        if self._first_words is None:
            self._first_words = np.array([one for one, _ in self._marks], np.int64)
        may_be = np.flatnonzero(np.isin(facts.table[KEY_ONE], self._first_words))
        chosen = facts.rows(may_be)
        first_offsets = chosen.first_offsets(offsets[may_be]).tolist()
        for row, key, first in zip(
            may_be.tolist(), chosen.recall_keys(), first_offsets, strict=True
        ):
            if self.takes(key, first):
                found[row] = self._marks[key].commit_log_offset
        return found


NAMES_NOTHING = "its record names no message"
NAMES_ANOTHER = "its record names another key than its own"
TAKES_NOTHING = "its record names no pending message"


def odd_markers(offsets: Int64s, facts: TimerFacts) -> list[LostMessage]:
    """The entries of a queue that look like delete markers of which a property was damaged."""
    return [
        LostMessage(int(offsets[row]), NAMES_ANOTHER if facts.is_marker[row] else NAMES_NOTHING)
        for row in np.flatnonzero(facts.is_odd_marker).tolist()
    ]


def are_of_cancel(log: LiveLog, offsets: Int64s, sizes: Int64s, asked: Bools) -> Bools:
    """Which of the asked records are as a cancel makes a delete marker. One that cannot be decoded
    is damaged elsewhere: what it names was found.
    """
    found = np.zeros(len(asked), bool)
    for row in np.flatnonzero(asked).tolist():
        with suppress(FormatError):
            found[row] = is_of_cancel(log.record(int(offsets[row]), int(sizes[row])))
    return found


def without_target(
    offsets: Int64s, markers: TimerFacts, first_offsets: Int64s, waiting: TimerFacts
) -> list[LostMessage]:
    """The markers, with records at these offsets, that take back nothing of what waits, with first
    records at ``first_offsets``.
    """
    firsts: dict[RecallKey, int] = {}
    for key, first_offset in zip(waiting.recall_keys(), first_offsets.tolist(), strict=True):
        firsts[key] = min(first_offset, firsts.get(key, LONG_MAX))
    firsts.pop(NO_KEY, None)
    places = marker_offsets(offsets, markers).tolist()
    return [
        LostMessage(offset, TAKES_NOTHING)
        for offset, key, place in zip(offsets.tolist(), markers.recall_keys(), places, strict=True)
        if firsts.get(key, LONG_MAX) >= place
    ]


def why_damaged(facts: TimerFacts, row: int, *, is_in_place: bool) -> str | None:
    """What is wrong with the record of a delete marker; None for nothing. ``is_in_place`` says
    whether the record has the topic and the time that the marker was placed with.
    """
    if not facts.is_fine[row]:
        return str(facts.problems.get(row, "no record can be read"))
    if not facts.is_marker[row]:
        return NAMES_NOTHING
    if facts.is_odd_marker[row]:
        return NAMES_ANOTHER
    return None if is_in_place else "its record has another topic or time than it was placed with"


def marker_offsets(offsets: Int64s, facts: TimerFacts) -> Int64s:
    """Where the first records of these markers are; of one that a broker rolled, where it is."""
    first_offsets = facts.first_offsets(offsets)
    return np.where(first_offsets < 0, offsets, first_offsets)


@attrs.frozen
class Target:
    """A message that a handle names: its record, when it is due, and what recalls it."""

    message: StoredMessage
    out_ms: int
    recall_key: RecallKey


def marker_for(target: Target, *, topic_in_delete_key: bool) -> tuple[Message, tuple[str, str]]:
    """The delete marker of a message, and the property that says whom it takes away."""
    message = target.message
    key = message.unique_key or ""
    text = f"{message.real_topic}+{key}" if topic_in_delete_key else key
    marker = Message(
        topic=message.real_topic,
        body=MARKER_BODY,
        tags=MARKER_TAGS,
        queue_id=real_queue_id(message),
        unique_key=key,
    )
    return marker, (TIMER_DELETE_UNIQUE_KEY, text)
