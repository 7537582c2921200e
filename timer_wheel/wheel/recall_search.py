# SPDX-License-Identifier: Apache-2.0
"""Where the messages of a handle are on a wheel, and what became of those that wait no more."""

from collections.abc import Iterator

import numpy as np

from message_store.format.java_numbers import LONG_MAX, string_hash
from message_store.format.message import StoredMessage
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation
from timer_wheel.format.timer_due import may_be_promised
from timer_wheel.format.timer_log import FLAG_ROLL
from timer_wheel.format.wheel_math import PRECISIONS_MS, out_ms
from timer_wheel.timers.recall import RecallKey, RecallMarks, Target, marker_offsets
from timer_wheel.timers.rows import Bools, TimerFacts, TimerRows
from timer_wheel.timers.unit_kernels import TOPIC_HASH
from timer_wheel.wheel.live_timers import LiveTimers
from timer_wheel.wheel.log import NO_SLOT
from timer_wheel.wheel.older_marks import OlderMarks, are_older
from timer_wheel.wheel.unplaced import EVERYTHING

_PIECE = 1 << 16


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
        self.slots_ms = sorted(
            {out_ms(each, timers.precision_ms) for each in timers.older.moved(handle.due_ms)}
        )

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
        held = timers.wheel.used_slots(self.slots_ms[-1] + timers.precision_ms)
        held = held[np.isin(held, [each // timers.precision_ms for each in self.slots_ms])]
        rows = timers.in_slots(held)
        yield rows.rows(~rows.is_roll)
        if timers.has_rolled:  # what will roll may be in any slot
            rows = timers.log.find(self._topic_hash, NO_SLOT, 0, flags=FLAG_ROLL)
            rows = rows.rows(rows.is_roll)
            yield rows.rows(timers.are_waiting(rows))

    def past(self) -> Cancellation:
        """What became of a message that is not pending."""
        timers = self._timers
        first_ms = self._handle.due_ms - max(PRECISIONS_MS)
        end_ms = self.slots_ms[-1] + 2 * timers.precision_ms
        rows = timers.log.find(self._topic_hash, first_ms, end_ms - first_ms, flags=FLAG_ROLL)
        rows = TimerRows.together([rows, *self._queued()])
        facts = timers.facts(rows, keys=True)
        is_named = self._is_named(rows, facts)
        if not is_named.any():
            return Cancellation.NEVER_EXISTED
        named = is_named & ~facts.is_marker
        if not named.any():
            return Cancellation.CANCELLED  # its marker is all that is left
        marks, offsets = RecallMarks(), rows.commit_log_offset
        counts = facts.is_marker & facts.is_fine & ~are_older(timers, offsets, facts)
        marks.add(offsets[counts], facts.rows(counts))
        taken = marks.take_away(offsets, facts)
        taken |= OlderMarks.among(timers, rows).taken_at(rows) < LONG_MAX
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
