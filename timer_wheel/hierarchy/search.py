# SPDX-License-Identifier: Apache-2.0
"""Messages of a hierarchical wheel: pending ones, those of a unique key, and their fate."""

from collections.abc import Iterator

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s, int64s
from message_store.format.java_numbers import string_hash
from message_store.format.message import StoredMessage
from message_store.format.properties import TIMER_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.deliveries import LogDeliveries
from timer_wheel.format.index_layouts import Rows
from timer_wheel.format.older_slots import EXACT_MS
from timer_wheel.hierarchy.timer_index import TimerIndex
from timer_wheel.hierarchy.waiting_rows import is_marker, rows_of
from timer_wheel.timers.fates import are_named, fate
from timer_wheel.timers.recall import RecallKey, RecallMarks, Target
from timer_wheel.timers.rows import Bools, TimerFacts


@attrs.frozen(eq=False)
class Entries:
    """The queue's messages and markers with one unique key, pending or not, in order."""

    rows: Rows
    facts: TimerFacts
    messages: list[StoredMessage]

    @classmethod
    def of(cls, index: TimerIndex, unique_key: str) -> "Entries":
        """Those that lead to a record with this key."""
        queue, places = index.queue, index.ids.find(unique_key)
        places = places[(places >= queue.min_offset) & (places < queue.max_offset)]
        units = [queue.units(place, place + 1) for place in places.tolist()]
        found = np.concatenate([queue.units(queue.max_offset, queue.max_offset), *units])
        offsets, sizes = int64s(found["commit_log_offset"]), int64s(found["size_bytes"])
        facts = index.facts(offsets, sizes, keys=True)
        for row in np.flatnonzero(~facts.is_fine).tolist():
            place = int(places[row]), int(offsets[row])
            if (whole := index.store.log.record_of_entry(TIMER_TOPIC, 0, *place)) is not None:
                sizes[row] = whole[1]
                facts = index.facts(offsets, sizes, keys=True)
        rows = rows_of(places, offsets, sizes, facts, index.slot_precision_ms)
        chosen, messages = [], []
        for row in np.flatnonzero(facts.is_fine).tolist():
            message = index.store.log.readable_record(int(offsets[row]), int(sizes[row]))
            if message is not None and message.unique_key == unique_key:
                chosen.append(row)
                messages.append(message)
        return cls(rows[chosen], facts.rows(int64s(chosen)), messages)

    @property
    def commit_log_offset(self) -> Int64s:
        """Where the records are."""
        return int64s(self.rows["commit_log_offset"])

    def are_pending(self, index: TimerIndex) -> Bools:
        """Which of them are messages that wait, cancelled or not."""
        places = zip(self.rows["due_ms"].tolist(), self.rows["queue_offset"].tolist(), strict=True)
        wait = [place in index.waiting.due_at(due_ms)["queue_offset"] for due_ms, place in places]
        return np.array(wait, bool) & ~is_marker(self.rows)

    def are_cancelled(self, index: TimerIndex) -> Bools:
        """Which of them a marker takes away."""
        return index.marks.take_away(self.commit_log_offset, self.facts)


@attrs.frozen
class Named:
    """The messages of one handle or receipt: some are pending, others met a fate."""

    _targets: tuple[Target, ...]
    _fate: Cancellation
    _live_keys: tuple[RecallKey, ...]

    @classmethod
    def by(cls, index: TimerIndex, handle: RecallHandle, first_offset: int | None) -> "Named":
        """Look for them by their unique key."""
        known = Entries.of(index, handle.unique_key)
        offsets, facts, messages = known.commit_log_offset, known.facts, known.messages
        first_offsets, keys = facts.first_offsets(offsets), facts.recall_keys()
        is_of_topic = np.array([each.real_topic == handle.topic for each in messages], bool)
        is_pending = known.are_pending(index)
        is_live = is_pending & ~known.are_cancelled(index)

        foreign_until = index.older.until

        def named(widths_ms: Int64s, is_sure: Bools) -> Bools:
            asked = widths_ms, handle, first_offset, foreign_until, is_sure
            due_ms = int64s(known.rows["due_ms"])
            return np.asarray(are_named(facts, offsets, due_ms, *asked) & is_of_topic)

        widths_ms = index.older.widths_of(first_offsets, index.slot_precision_ms)
        is_named = named(widths_ms, np.ones(len(offsets), bool))
        if not is_named.any():
            is_named = named(widths_ms, index.older.are_sure(first_offsets))
        if not is_named.any():
            # While one waits for its slot's end the width is not changed; of what is over nobody
            # wrote it down.
            is_named = named(np.full_like(widths_ms, EXACT_MS), is_pending) & ~is_pending
        targets = {
            keys[row]: Target(
                messages[row],
                int(facts.out_ms[row]),
                int(known.rows["due_ms"][row]),
                keys[row],
                -1 if first_offset is None else int(first_offsets[row]),
            )
            for row in np.flatnonzero(is_live & is_named).tolist()
        }
        sizes = int64s(known.rows["size_bytes"])
        log = index.store.log
        past = fate(log, offsets, sizes, facts, is_named, index.older, foreign_until)
        live_keys = tuple(keys[row] for row in np.flatnonzero(is_live).tolist())
        return cls(tuple(targets.values()), past, live_keys)

    def waiting(self) -> list[Target]:
        """The messages that are pending, one for each marker that is needed to take all of them."""
        return list(self._targets)

    def past(self) -> Cancellation:
        """What became of a message that is not pending."""
        return self._fate

    def count_alike(self, target: Target) -> int:
        """How many pending messages a delete marker of this one would cancel."""
        return self._live_keys.count(target.recall_key)


def waiting_with_key(index: TimerIndex, wanted: WaitingFilter) -> LogDeliveries:
    """The messages with a unique key that wait, and are due when it is asked for."""
    known = Entries.of(index, wanted.unique_key or "")
    is_live = known.are_pending(index) & ~known.are_cancelled(index)
    return _places(index, known.rows[is_live & wanted.in_time(int64s(known.rows["due_ms"]))])


def _places(index: TimerIndex, rows: Rows) -> LogDeliveries:
    places = rows["commit_log_offset"], rows["size_bytes"]
    return LogDeliveries(index.store, *places, rows["due_ms"])


_FIRST_LOOK = 64


def waiting_in_parts(index: TimerIndex, wanted: WaitingFilter) -> Iterator[LogDeliveries]:
    """The record and the promise of every message that waits now, is due when it is asked for and
    may be of the topic, in pieces. Raises StoreClosedError when the store is closed.

    Rows and markers are of one moment: an advance takes both away.
    """
    parts, marks = index.waiting.parts(), index.marks.as_of_now()
    return (_places(index, _live(index, _may_pass(rows, wanted), marks)) for rows in parts)


def _may_pass(rows: Rows, wanted: WaitingFilter) -> Rows:
    chosen: Bools = wanted.in_time(int64s(rows["due_ms"]))
    if wanted.topic is not None:
        chosen &= rows["topic_hash"] == string_hash(wanted.topic)
    return rows[chosen]


def _live(index: TimerIndex, rows: Rows, marks: RecallMarks) -> Rows:
    """The messages whose records can be read and that none of these markers cancels."""
    facts = index.facts_of(rows, keys=len(marks) > 0)
    is_taken = marks.take_away(int64s(rows["commit_log_offset"]), facts)
    return rows[facts.is_fine & ~is_taken]


def first_due_ms(index: TimerIndex) -> int | None:
    """When the first message that waits is due, or its slot begins; None when nothing waits."""
    if not len(index.marks):
        return index.waiting.first_ms()
    return min(_first_of_each_part(index), default=None)


def _first_of_each_part(index: TimerIndex) -> Iterator[int]:
    """When the first message is due that was not cancelled, in each part that has one."""
    found: int | None = None
    for rows in index.waiting.parts():
        rows = rows[np.argsort(rows["due_ms"], kind="stable")]
        if found is not None:
            rows = rows[rows["due_ms"] < found]
        begin, count = 0, _FIRST_LOOK
        while begin < len(rows):
            live = _live(index, rows[begin : begin + count], index.marks)
            if len(live):
                found = int(live["due_ms"][0])
                yield found
                break
            begin, count = begin + count, 2 * count
