# SPDX-License-Identifier: Apache-2.0
"""Messages of a hierarchical wheel: all pending ones, those of a unique key, and what became of
them.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s, int64s
from message_store.format.java_numbers import string_hash
from message_store.format.message import StoredMessage
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation, Pending
from message_store.interface.waiting_messages import WaitingFilter, pending_of
from message_store.redelivery.deliveries import LogDeliveries
from timer_wheel.format.index_layouts import Rows
from timer_wheel.format.older_slots import EXACT_MS
from timer_wheel.format.timer_due import may_be_promised
from timer_wheel.hierarchy.timer_index import TimerIndex
from timer_wheel.hierarchy.waiting_rows import is_marker, rows_of
from timer_wheel.timers.fates import fate
from timer_wheel.timers.recall import RecallKey, RecallMarks, Target, marker_offsets
from timer_wheel.timers.rows import TimerFacts


@attrs.frozen(eq=False)
class Entry:
    """An entry of the timer queue with the key that is looked for: a message or a marker."""

    row: Rows
    facts: TimerFacts
    message: StoredMessage

    @property
    def due_ms(self) -> int:
        """When it was promised for."""
        return int(self.row["due_ms"][0])

    @property
    def is_marker(self) -> bool:
        """Whether it cancels another."""
        return bool(is_marker(self.row)[0])

    @property
    def commit_log_offset(self) -> Int64s:
        """Where its record is, as a column."""
        return int64s(self.row["commit_log_offset"])

    @property
    def first_offset(self) -> int:
        """Where its first record was; -1 where a broker has rolled it."""
        return int(self.facts.first_offsets(self.commit_log_offset)[0])

    @property
    def recall_key(self) -> RecallKey:
        """What a message and its marker have in common."""
        return self.facts.recall_keys()[0]

    def is_taken(self, marks: RecallMarks) -> bool:
        """Whether one of these markers takes it away."""
        return marks.takes(self.recall_key, self.first_offset)

    def is_named_by(
        self,
        handle: RecallHandle,
        first_offset: int | None,
        widths_ms: Int64s,
        *,
        is_exact: bool = False,
    ) -> bool:
        """Whether a handle, or a receipt, names it: by time, topic and key, and by first record.

        A handle that a broker gave says the millisecond after the out time, ours the promise, as
        that was for slots of the width when it was given (``widths_ms``, one element), or of one
        that this is a multiple of.
        """
        out_ms = self.facts.stored_out_ms
        time_fits = handle.due_ms in (self.due_ms, int(out_ms[0]) + 1)
        if is_exact:
            time_fits |= bool(out_ms[0] + widths_ms[0] == handle.due_ms)
        else:
            time_fits |= bool(may_be_promised(out_ms, handle.due_ms, widths_ms)[0])
        is_it = time_fits and self.message.real_topic == handle.topic
        if first_offset is None:
            return is_it
        if self.is_marker:
            place = marker_offsets(self.commit_log_offset, self.facts)
            is_for_it = int(self.facts.cancels[0]) in (-1, first_offset)
            return is_it and is_for_it and int(place[0]) > first_offset
        return is_it and self.first_offset in (-1, first_offset)


def entries(index: TimerIndex, unique_key: str) -> Iterator[Entry]:
    """Every entry that the queue still has of messages and markers with this key, in order."""
    for queue_offset in index.ids.find(unique_key).tolist():
        if not index.queue.min_offset <= queue_offset < index.queue.max_offset:
            continue
        units = index.queue.units(queue_offset, queue_offset + 1)
        offsets, sizes = int64s(units["commit_log_offset"]), int64s(units["size_bytes"])
        facts = index.facts(offsets, sizes, keys=True)
        if not facts.is_fine[0]:
            continue
        message = index.store.log.readable_record(int(offsets[0]), int(sizes[0]))
        if message is not None and message.unique_key == unique_key:
            place = int64s([queue_offset])
            row = rows_of(place, offsets, sizes, facts, index.slot_precision_ms)
            yield Entry(row, facts, message)


def waits(index: TimerIndex, entry: Entry) -> bool:
    """Whether an entry is a message that waits, recalled or not."""
    if entry.is_marker:
        return False
    found = index.waiting.due_at(entry.due_ms)["queue_offset"]
    return bool((found == entry.row["queue_offset"][0]).any())


def _widths_ms(index: TimerIndex, entry: Entry) -> Int64s:
    """How wide the slots were that it was stored for, as far as that was written down."""
    first_offsets = entry.facts.first_offsets(entry.commit_log_offset)
    return index.older.widths_of(first_offsets, index.slot_precision_ms)


_ANY_MS = np.array([EXACT_MS])


@attrs.frozen
class Named:
    """The messages of one handle or receipt: some are pending, others met a fate."""

    _targets: tuple[Target, ...]
    _fate: Cancellation
    _live_keys: tuple[RecallKey, ...]

    @classmethod
    def by(cls, index: TimerIndex, handle: RecallHandle, first_offset: int | None) -> "Named":
        """Look for them by their unique key."""
        known = list(entries(index, handle.unique_key))
        live = [each for each in known if not each.is_taken(index.marks) and waits(index, each)]
        named: list[Entry] = []
        for is_exact in (True, False):
            named = [
                each
                for each in known
                if each.is_named_by(
                    handle, first_offset, _widths_ms(index, each), is_exact=is_exact
                )
            ]
            if any(each in named for each in live):
                break  # else what is known of a width may be a multiple of it
        if not named:
            # While one waits for its slot's end the width is not changed; of what is over nobody
            # wrote it down.
            over = [each for each in known if not waits(index, each)]
            named = [each for each in over if each.is_named_by(handle, first_offset, _ANY_MS)]
        is_receipt = first_offset is not None
        targets = {
            each.recall_key: Target(
                each.message,
                int(each.facts.out_ms[0]),
                each.recall_key,
                each.first_offset if is_receipt else -1,
            )
            for each in live
            if each in named
        }
        keys = tuple(each.recall_key for each in live)
        return cls(tuple(targets.values()), _fate(index, known, named), keys)

    def waiting(self) -> list[Target]:
        """The messages that are pending, one for each marker that is needed to take all of them."""
        return list(self._targets)

    def past(self) -> Cancellation:
        """What became of a message that is not pending."""
        return self._fate

    def count_alike(self, target: Target) -> int:
        """How many pending messages a delete marker of this one would cancel."""
        return self._live_keys.count(target.recall_key)


def _fate(index: TimerIndex, known: list[Entry], named: list[Entry]) -> Cancellation:
    """What became of the named entries, by all entries with their key."""
    if not named:
        return Cancellation.NEVER_EXISTED
    offsets = np.concatenate([entry.commit_log_offset for entry in known])
    sizes = np.concatenate([int64s(entry.row["size_bytes"]) for entry in known])
    facts = TimerFacts.together([entry.facts for entry in known])
    is_named = np.isin(offsets, np.concatenate([entry.commit_log_offset for entry in named]))
    return fate(index.store.log, offsets, sizes, facts, is_named, index.older)


def waiting_with_key(index: TimerIndex, wanted: WaitingFilter) -> Iterator[Pending]:
    """The messages with a unique key that wait, and pass."""
    for entry in entries(index, wanted.unique_key or ""):
        is_live = waits(index, entry) and not entry.is_taken(index.marks)
        if is_live and wanted.in_time(entry.due_ms) and wanted.passes(entry.message):
            yield pending_of(entry.message, entry.due_ms, int(entry.row["size_bytes"][0]))


_FIRST_LOOK = 64


def waiting_in_parts(index: TimerIndex, wanted: WaitingFilter) -> Iterator[Pending]:
    """Every message that waits now and passes. Raises StoreClosedError when the store is closed.

    Rows and markers are of one moment: an advance takes both away.
    """
    return _pending_in(index, wanted, index.waiting.parts(), index.marks.as_of_now())


def _pending_in(
    index: TimerIndex, wanted: WaitingFilter, parts: Iterator[Rows], marks: RecallMarks
) -> Iterator[Pending]:
    while True:
        with index.store.reading():
            rows = next(parts, None)
            if rows is None:
                return
            rows = _live(index, _may_pass(rows, wanted), marks)
        for due_ms, offset, size_bytes in zip(
            rows["due_ms"].tolist(),
            rows["commit_log_offset"].tolist(),
            rows["size_bytes"].tolist(),
            strict=True,
        ):
            with index.store.reading():
                # What is gone retention took meanwhile, and it was stored again.
                message = index.store.log.readable_record(offset, size_bytes)
            if message is not None and wanted.passes(message):
                yield pending_of(message, due_ms, size_bytes)


def waiting_records(index: TimerIndex) -> Iterator[LogDeliveries]:
    """The record and the promise of every message that waits now, in pieces."""
    parts, marks = index.waiting.parts(), index.marks.as_of_now()
    for rows in parts:
        live = _live(index, rows, marks)
        yield LogDeliveries(
            index.store, live["commit_log_offset"], live["size_bytes"], live["due_ms"]
        )


def _may_pass(rows: Rows, wanted: WaitingFilter) -> Rows:
    chosen = wanted.in_time(int64s(rows["due_ms"]))
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
