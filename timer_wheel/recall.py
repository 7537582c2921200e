# SPDX-License-Identifier: Apache-2.0
"""Taking messages back: the delete markers that are waiting, and where a message of a handle is.

A marker takes away every message of its slot, real topic and unique key that was scheduled before
it. A broker takes those behind it as well, and from 5.4 on looks at slot and key alone. Whatever
form the text of a marker has, it counts: that is what whoever recalled wanted.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from message_store.byte_column import Int64s
from message_store.delay_store import Cancellation
from message_store.java_numbers import INT_MAX, LONG_MAX, string_hash
from message_store.message import Message, StoredMessage
from message_store.properties import REAL_QUEUE_ID, TIMER_DELETE_UNIQUE_KEY
from message_store.recall_handle import RecallHandle
from timer_wheel.live_timers import LiveTimers
from timer_wheel.timer_due import may_be_promised
from timer_wheel.timer_log import FLAG_DELETE, FLAG_ROLL
from timer_wheel.timer_record_kernel import KEY_ONE
from timer_wheel.timer_rows import EXACT_MS, Bools, TimerFacts, TimerRows, read_facts
from timer_wheel.unplaced import EVERYTHING
from timer_wheel.wheel_kernels import TOPIC_HASH
from timer_wheel.wheel_math import PRECISIONS_MS, floor_ms, out_ms

MARKER_BODY = b"0"
MARKER_TAGS = "_RECALL_TAG_"
RecallKey = tuple[int, int]
NO_KEY: RecallKey = (0, 0)
_NO_SLOT = -1
_LONGEST_INT = 10
_PIECE = 1 << 16


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


def real_queue_id(message: StoredMessage) -> int:
    """The queue that a message goes to; 0 where its record names none that can be."""
    text = message.properties.get(REAL_QUEUE_ID, "")
    queue_id = int(text) if text.isdecimal() and len(text) <= _LONGEST_INT else 0
    return queue_id if queue_id <= INT_MAX else 0


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


class Search:
    """Looks for the messages of one handle, wherever they are or were.

    A receipt also tells where the first record of its message is, and names no other.
    """

    def __init__(
        self,
        timers: LiveTimers,
        marks: RecallMarks,
        handle: RecallHandle,
        first_offset: int | None = None,
    ) -> None:
        self._timers = timers
        self._marks = marks
        self._handle = handle
        self._first_offset = first_offset
        self._topic_hash = string_hash(handle.topic)
        self.slot_ms = out_ms(handle.due_ms, timers.precision_ms)

    def waiting(self) -> list[Target]:
        """The messages that are pending, one for each marker that is needed to take all of them."""
        found: dict[RecallKey, Target] = {}
        for rows in self._pending():
            found |= {target.recall_key: target for target in self._among(rows)}
        return list(found.values())

    def _pending(self) -> Iterator[TimerRows]:
        """Everything that is pending where a message of the handle may be."""
        timers = self._timers
        unplaced = timers.unplaced(EVERYTHING).rows
        yield unplaced.rows(~np.isin(unplaced.commit_log_offset, timers.done))
        yield timers.early
        slot = self.slot_ms // timers.precision_ms
        held = timers.wheel.used_slots(self.slot_ms + timers.precision_ms)
        if len(held) and held[-1] == slot:
            rows = timers.in_slots(held[-1:])
            yield rows.rows(~rows.is_roll)
        if timers.has_rolled:  # what will roll may be in any slot
            rows = timers.log.find(self._topic_hash, _NO_SLOT, 0, flags=FLAG_ROLL)
            rows = rows.rows(rows.is_roll)
            yield rows.rows(timers.are_waiting(rows))

    def past(self) -> Cancellation:
        """What became of a message that is not pending."""
        timers, widest_ms = self._timers, max(PRECISIONS_MS)
        first_ms = self._handle.due_ms - widest_ms
        rows = timers.log.find(
            self._topic_hash, first_ms, widest_ms + timers.precision_ms, flags=FLAG_ROLL
        )
        rows = TimerRows.together([rows, *self._queued()])
        facts = timers.facts(rows, keys=True)
        is_named = self._is_named(rows, facts)
        if not is_named.any():
            return Cancellation.NEVER_EXISTED
        named = is_named & ~facts.is_marker
        if not named.any():
            return Cancellation.CANCELLED  # its marker is all that is left
        applied = rows.commit_log_offset < timers.older.applied_until
        taken = _taken(rows, facts, ~applied)
        if applied.any():
            places = rows.commit_log_offset, rows.size_bytes
            exact = read_facts(timers.store.log, *places, EXACT_MS, keys=True)
            taken |= _taken(rows, exact, applied)
        return Cancellation.CANCELLED if taken[named].all() else Cancellation.ALREADY_DELIVERED

    def _queued(self) -> Iterator[TimerRows]:
        """What may be of the topic and has no unit: it is new, or was dealt with before the wheel
        was made anew, for slots of another width or of a hierarchical wheel.
        """
        timers = self._timers
        yield timers.unplaced(EVERYTHING).rows
        first, older_until = timers.queue.min_offset, timers.older.until
        while first < timers.placed_end and older_until > timers.store.log.min_offset:
            rows = timers.queued(first, _PIECE).rows
            is_older = rows.commit_log_offset < older_until
            yield rows.rows(is_older & (rows.table[TOPIC_HASH] == self._topic_hash))
            if not is_older.all():
                break
            first += len(rows)

    def _among(self, rows: TimerRows) -> Iterator[Target]:
        """The messages of the handle among these rows that no marker takes yet."""
        rows = rows.rows((rows.table[TOPIC_HASH] == self._topic_hash) & ~rows.is_marker)
        if not len(rows):
            return
        facts = self._timers.facts(rows, keys=True)
        is_live = self._is_named(rows, facts)
        is_live &= ~self._marks.take_away(rows.commit_log_offset, facts)
        for row in np.flatnonzero(is_live).tolist():
            record = self._record(rows, row)
            yield Target(record, int(facts.out_ms[row]), facts.recall_keys()[row])

    def _record(self, rows: TimerRows, row: int) -> StoredMessage:
        return self._timers.store.log.record(
            int(rows.commit_log_offset[row]), int(rows.size_bytes[row])
        )

    def _is_named(self, rows: TimerRows, facts: TimerFacts) -> Bools:
        """Which rows the handle or the receipt names: by time, topic, key and first record.

        A handle that a broker gave says the millisecond after the out time, ours the promise, as
        that was for slots of the width when it was given.
        """
        handle = self._handle
        is_named = np.zeros(len(rows), bool)
        may_be = (facts.promised_ms == handle.due_ms) | (facts.stored_out_ms + 1 == handle.due_ms)
        may_be |= may_be_promised(facts.stored_out_ms, handle.due_ms)
        may_be &= facts.is_fine
        if self._first_offset is not None:
            first_offsets = facts.first_offsets(rows.commit_log_offset)
            is_it = (first_offsets == self._first_offset) | (first_offsets < 0)
            is_later = marker_offsets(rows.commit_log_offset, facts) > self._first_offset
            may_be &= np.where(facts.is_marker, is_later, is_it)
        for row in np.flatnonzero(may_be).tolist():
            properties = self._record(rows, row).properties
            key = properties.get("UNIQ_KEY")
            is_named[row] = (properties.get("REAL_TOPIC"), key) == (handle.topic, handle.unique_key)
        return is_named


def _taken(rows: TimerRows, facts: TimerFacts, counts: Bools) -> Bools:
    """Which rows one of those markers among them takes away that count."""
    marks, is_marker = RecallMarks(), facts.is_marker & facts.is_fine & counts
    marks.add(rows.commit_log_offset[is_marker], facts.rows(is_marker))
    return marks.take_away(rows.commit_log_offset, facts)


def find_markers(timers: LiveTimers, from_ms: int) -> RecallMarks:
    """Every delete marker in slots from a time on, or in the queue."""
    marks = RecallMarks()
    placed = timers.log.find(None, _NO_SLOT, 0, flags=FLAG_DELETE)
    counts = placed.commit_log_offset >= timers.older.applied_until
    placed = placed.rows(placed.is_marker & counts & (placed.slot_time_ms >= from_ms))
    marks.add(placed.commit_log_offset, timers.facts(placed, keys=True))
    rest = timers.unplaced(EVERYTHING, keys=True)
    is_marker = rest.facts.is_marker & rest.facts.is_fine
    marks.add(rest.rows.commit_log_offset[is_marker], rest.facts.rows(is_marker))
    return marks
