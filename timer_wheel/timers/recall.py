# SPDX-License-Identifier: Apache-2.0
"""Cancelled messages: the delete markers that are waiting, and the messages that they name.

A marker takes away every message of its slot, real topic and unique key that was scheduled before
it. One that a receipt asked for names its message by its first record, and takes no other. A broker
takes all of them, also those behind it, and from 5.4 on looks at slot and key alone. Whatever
form the text of a marker has, it counts: that is what whoever recalled wanted. One that a cancel
made names its own key; if it names another, one of the two is damaged, and it takes nothing.
"""

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.files.notes import LostMessage
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message import Message, StoredMessage
from message_store.format.properties import (
    CANCELLED_OFFSET,
    TIMER_DELETE_UNIQUE_KEY,
    offset_text,
)
from message_store.interface.waiting_messages import real_queue_id
from message_store.writing.log import LiveLog
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.reading.delete_markers import MARKER_BODY, MARKER_FLAG, MARKER_TAGS, is_of_cancel
from timer_wheel.reading.record_kernel import (
    IS_MARKER,
    KEY_ONE,
    MARKER_WITHOUT_KEY,
    MESSAGE,
    ODD_MARKER,
)
from timer_wheel.timers.rows import Bools, TimerFacts

RecallKey = tuple[int, int]


NO_KEY: RecallKey = (0, 0)


@attrs.frozen
class _Mark:
    """The markers of one recall key: when their slot is, where the first record of the last one was
    that takes all, and of each that takes one message, by where that one's first record is.
    """

    slot_ms: int
    commit_log_offset: int
    of_one: dict[int, int] = attrs.field(factory=dict)

    def taken_at(self, first_offset: int) -> int:
        """Where the marker is that takes the message with this first record; ``LONG_MAX`` for none.
        A message that a broker rolled does not tell, and may be any of the named.
        """
        if first_offset < self.commit_log_offset:
            return self.commit_log_offset
        if first_offset < 0 and self.of_one:
            return max(self.of_one.values())
        return self.of_one.get(first_offset, LONG_MAX)

    def takes(self, first_offset: int) -> bool:
        """Whether one of them takes the message with this first record."""
        return self.taken_at(first_offset) < LONG_MAX


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
        self._remember_all(offsets, facts, slots)

    def _remember_all(self, offsets: Int64s, facts: TimerFacts, times_ms: list[int]) -> None:
        places, named = marker_offsets(offsets, facts).tolist(), facts.cancels.tolist()
        for key, time_ms, place, cancels in zip(
            facts.recall_keys(), times_ms, places, named, strict=True
        ):
            self.remember(key, time_ms, place, cancels)

    def remember(
        self, key: RecallKey, slot_ms: int, commit_log_offset: int, cancels: int = -1
    ) -> None:
        """Remember one marker, by where its first record is; ``cancels`` is where the first record
        of the one message is that it takes, -1 where it takes all.
        """
        if key == NO_KEY:
            return
        known = self._marks.get(key, _Mark(slot_ms, -1))
        slot_ms, last = max(slot_ms, known.slot_ms), known.commit_log_offset
        if cancels < 0:
            last = max(commit_log_offset, last)
        else:
            known.of_one[cancels] = commit_log_offset
        self._marks[key] = _Mark(slot_ms, last, known.of_one)
        self._first_words = None

    def as_of_now(self) -> "RecallMarks":
        """A copy for a listing: markers are forgotten while somebody still reads their targets."""
        kept = RecallMarks()
        kept._marks = {
            key: attrs.evolve(mark, of_one=dict(mark.of_one)) if mark.of_one else mark
            for key, mark in self._marks.items()
        }
        kept._first_words = self._first_words
        return kept

    def forget_before(self, hand_ms: int) -> None:
        """Drop the markers whose slots are over."""
        if any(mark.slot_ms < hand_ms for mark in self._marks.values()):
            self._marks = {k: mark for k, mark in self._marks.items() if mark.slot_ms >= hand_ms}
            self._first_words = None

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
            if key in self._marks:
                found[row] = self._marks[key].taken_at(first)
        return found


NAMES_NOTHING = "its record names no message"
NAMES_ANOTHER = "its record names another key than its own, or a damaged offset"
TAKES_NOTHING = "its record names no pending message"
_ODD = {MESSAGE: NAMES_NOTHING, MARKER_WITHOUT_KEY: NAMES_NOTHING, ODD_MARKER: NAMES_ANOTHER}


def odd_markers(offsets: Int64s, facts: TimerFacts) -> list[LostMessage]:
    """The entries of a queue that look like delete markers of which a property was damaged."""
    return [
        LostMessage(int(offsets[row]), _ODD[int(facts.table[IS_MARKER, row])])
        for row in np.flatnonzero(facts.is_odd_marker).tolist()
    ]


def are_of_cancel(log: LiveLog, offsets: Int64s, sizes: Int64s, asked: Bools) -> Bools:
    """Which of the asked records are as a cancel makes a delete marker. One that cannot be decoded
    is damaged elsewhere: what it names was found.
    """
    found = np.zeros(len(asked), bool)
    for row in np.flatnonzero(asked).tolist():
        record = log.readable_record(int(offsets[row]), int(sizes[row]))
        found[row] = record is not None and is_of_cancel(record)
    return found


def without_target(
    offsets: Int64s, markers: TimerFacts, first_offsets: Int64s, waiting: TimerFacts
) -> list[LostMessage]:
    """The markers, with records at these offsets, that cancel no pending message. The first records
    of those are at ``first_offsets``.
    """
    marks: dict[RecallKey, list[tuple[int, _Mark]]] = {}
    places, named = marker_offsets(offsets, markers).tolist(), markers.cancels.tolist()
    for row, key in enumerate(markers.recall_keys()):
        is_named = named[row] >= 0
        mark = _Mark(0, -1, {named[row]: places[row]}) if is_named else _Mark(0, places[row])
        marks.setdefault(key, []).append((row, mark))
    marks.pop(NO_KEY, None)
    takes: set[int] = set()
    for key, first_offset in zip(waiting.recall_keys(), first_offsets.tolist(), strict=True):
        takes.update(row for row, mark in marks.get(key, ()) if mark.takes(first_offset))
    return [
        LostMessage(offset, TAKES_NOTHING)
        for row, offset in enumerate(offsets.tolist())
        if row not in takes
    ]


def why_damaged(facts: TimerFacts, row: int, *, is_in_place: bool) -> str | None:
    """What is wrong with the record of a delete marker; None for nothing. ``is_in_place`` says
    whether the record has the topic and the time that the marker was placed with.
    """
    if not facts.is_fine[row]:
        return str(facts.problems.get(row, "no record can be read"))
    kind = int(facts.table[IS_MARKER, row])
    if kind in _ODD:
        return _ODD[kind]
    return None if is_in_place else "its record has another topic or time than it was placed with"


def marker_offsets(offsets: Int64s, facts: TimerFacts) -> Int64s:
    """Where the first records of these markers are; of one that a broker rolled, where it is."""
    first_offsets = facts.first_offsets(offsets)
    return np.where(first_offsets < 0, offsets, first_offsets)


@attrs.frozen
class Target:
    """A message that a handle names: its record, its out time, for when it is promised today, and
    what recalls it; of one that a receipt names also where its first record is, or -1.
    """

    message: StoredMessage
    out_ms: int
    promised_ms: int
    recall_key: RecallKey
    first_offset: int = -1


def marker_for(
    target: Target, *, topic_in_delete_key: bool
) -> tuple[Message, tuple[tuple[str, str], ...]]:
    """The delete marker of a message, and the properties that say whom it takes away."""
    message = target.message
    key = message.unique_key or ""
    text = f"{message.real_topic}+{key}" if topic_in_delete_key else key
    marker = Message(
        topic=message.real_topic,
        body=MARKER_BODY,
        tags=MARKER_TAGS,
        queue_id=real_queue_id(message),
        unique_key=key,
        flag=MARKER_FLAG,
    )
    properties = [(TIMER_DELETE_UNIQUE_KEY, text)]
    if target.first_offset >= 0:
        properties.append((CANCELLED_OFFSET, offset_text(target.first_offset)))
    return marker, tuple(properties)
