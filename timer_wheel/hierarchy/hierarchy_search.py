# SPDX-License-Identifier: Apache-2.0
"""Messages of a hierarchical wheel by unique key: whether they wait, and what became of them."""

from collections.abc import Iterator

import attrs
import numpy as np

from message_store.byte_column import int64s
from message_store.delay_store import Cancellation, Pending
from message_store.message import StoredMessage
from message_store.recall_handle import RecallHandle
from timer_wheel.hierarchy.index_layouts import Rows
from timer_wheel.hierarchy.timer_index import TimerIndex
from timer_wheel.hierarchy.waiting_rows import is_marker, rows_of
from timer_wheel.recall import Target
from timer_wheel.timer_due import is_overdue
from timer_wheel.timer_rows import TimerFacts
from timer_wheel.waiting import Filter, pending_of


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
        """Whether it takes another back."""
        return bool(is_marker(self.row)[0])

    @property
    def recall_key(self) -> tuple[int, int]:
        """What a message and its marker have in common."""
        return self.facts.recall_keys()[0]

    def is_named_by(self, handle: RecallHandle) -> bool:
        """Whether a handle names it, by its time, topic and key.

        A handle that a broker gave says the millisecond after the out time, ours the promise. A
        marker is known by its target's key.
        """
        out_ms = int(self.facts.out_ms[0])
        time_fits = handle.due_ms in (self.due_ms, out_ms + 1)
        time_fits |= self.is_marker and bool(is_overdue(out_ms))
        return time_fits and self.message.real_topic == handle.topic


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
        message = index.store.log.record(int(offsets[0]), int(sizes[0]))
        if message.unique_key == unique_key:
            place = int64s([queue_offset])
            row = rows_of(place, offsets, sizes, facts, index.slot_precision_ms)
            yield Entry(row, facts, message)


def waits(index: TimerIndex, entry: Entry) -> bool:
    """Whether an entry is a message that waits, recalled or not."""
    if entry.is_marker:
        return False
    found = index.waiting.due_at(entry.due_ms)["queue_offset"]
    return bool((found == entry.row["queue_offset"][0]).any())


def find_target(index: TimerIndex, handle: RecallHandle) -> Target | Cancellation:
    """A message that a handle names and that waits, or what became of it."""
    named = [each for each in entries(index, handle.unique_key) if each.is_named_by(handle)]
    for entry in named:
        if waits(index, entry):
            return Target(entry.message, int(entry.facts.out_ms[0]), entry.recall_key)
    if any(entry.is_marker for entry in named):
        return Cancellation.CANCELLED
    return Cancellation.ALREADY_DELIVERED if named else Cancellation.NEVER_EXISTED


def waiting_with_key(index: TimerIndex, wanted: Filter) -> Iterator[Pending]:
    """The messages with a unique key that wait, and pass."""
    for entry in entries(index, wanted.unique_key or ""):
        is_live = waits(index, entry) and entry.recall_key not in index.marks
        if is_live and wanted.in_time(np.array([entry.due_ms]))[0] and wanted.passes(entry.message):
            yield pending_of(entry.message, entry.due_ms, int(entry.row["size_bytes"][0]))
