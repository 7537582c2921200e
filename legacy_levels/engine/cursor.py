# SPDX-License-Identifier: Apache-2.0
"""The bulk form of DeliverDelayedMessageTimerTask#executeOnTimeup: which entries are due.

``LevelCursor`` says how far a level is delivered. RocketMQ: offsetTable.get(level). All delays of a
level are equal, so due times rise along its queue and due entries stand at its head. Some entries
are out of turn, due earlier than one in front of them. They were due when they were stored, or were
stored after a clock was set back. A broker delivers them when the one in front is due; here they
are delivered at their own time. No I/O besides the queue that is given.
"""

import bisect
from collections.abc import Collection, Iterator
from typing import Protocol

import attrs
import numpy as np

from legacy_levels.neutral_units import is_message
from message_store.format.java_numbers import LONG_MAX, LONG_MIN
from message_store.reading.consume_queue import BoolArray, Int64Array, UnitArray
from message_store.writing.queue import NATIVE_UNIT

NEVER_MS = LONG_MAX
"""When nothing is due."""

_FIRST_LOOK = 256
_LONGEST_LOOK = 1 << 18
_NONE = np.zeros(0, np.int64)
_ENTRY_COLUMNS = ("queue_offset", "commit_log_offset", "size_bytes", "due_ms")


class UnitQueue(Protocol):
    """What is asked of a queue."""

    @property
    def min_offset(self) -> int:
        """The oldest entry's queue offset."""

    @property
    def max_offset(self) -> int:
        """One past the newest entry's."""

    def units(self, from_offset: int, to_offset: int) -> UnitArray:
        """The entries from one queue offset up to another."""


@attrs.frozen(eq=False)
class DueEntries:
    """Due entries of one level, by queue offset; those from ``stop`` on are out of turn.

    ``stop`` is the level's next offset once these are delivered.
    """

    level: int
    queue_offset: Int64Array
    commit_log_offset: Int64Array
    size_bytes: Int64Array
    due_ms: Int64Array
    stop: int

    def __len__(self) -> int:
        return len(self.queue_offset)

    @property
    def units(self) -> UnitArray:
        """The same as the units of a queue."""
        units = np.empty(len(self), NATIVE_UNIT)
        units["commit_log_offset"] = self.commit_log_offset
        units["size_bytes"] = self.size_bytes
        units["tags_code"] = self.due_ms
        return units

    def before(self, row: int) -> "DueEntries":
        """The entries in front of a row; delivery of the level goes on at that one."""
        in_front = self.queue_offset < self.queue_offset[row]
        kept = {name: getattr(self, name)[in_front] for name in _ENTRY_COLUMNS}
        return attrs.evolve(self, stop=min(self.stop, int(self.queue_offset[row])), **kept)

    def without(self, queue_offsets: Collection[int]) -> "DueEntries":
        """All but these, which wait on: none is delivered, and the head stays in front of them."""
        is_kept = ~np.isin(self.queue_offset, np.array([*queue_offsets], np.int64))
        left_out = self.queue_offset[~is_kept]
        kept = {name: getattr(self, name)[is_kept] for name in _ENTRY_COLUMNS}
        return attrs.evolve(self, stop=min([self.stop, *left_out.tolist()]), **kept)


@attrs.define(eq=False)
class _Early:
    """Entries out of turn: due time and queue offset, as they came."""

    due_ms: Int64Array = attrs.field(factory=lambda: _NONE)
    queue_offset: Int64Array = attrs.field(factory=lambda: _NONE)
    fresh: list[tuple[int, int]] = attrs.field(factory=list)
    first_ms: int = NEVER_MS

    def add(self, due_ms: Int64Array, queue_offset: Int64Array) -> None:
        if len(due_ms):
            self.due_ms = np.concatenate([self.due_ms, due_ms])
            self.queue_offset = np.concatenate([self.queue_offset, queue_offset])
            self.first_ms = min(self.first_ms, int(due_ms.min()))

    def merge_new(self) -> None:
        """Take the single ones in among the many."""
        if self.fresh:
            due_ms, queue_offset = np.array(self.fresh, np.int64).T
            self.fresh = []
            self.add(due_ms, queue_offset)

    def keep(self, which: BoolArray) -> None:
        self.due_ms, self.queue_offset = self.due_ms[which], self.queue_offset[which]
        self.first_ms = int(self.due_ms.min(initial=NEVER_MS))


class LevelCursor:
    """Where delivery of a level stands.

    ``head`` is the first entry that still waits, ``head_due_ms`` when it is due. ``done`` are queue
    offsets, sorted, of entries behind the head that were delivered out of turn and whose units do
    not say so yet. With ``waits_in_line`` none is delivered out of turn.
    """

    def __init__(
        self, level: int, queue: UnitQueue, head: int = 0, *, waits_in_line: bool = False
    ) -> None:
        self._waits_in_line = waits_in_line
        self.level = level
        self.queue = queue
        self.done: Int64Array = _NONE
        self.head = head
        self.head_due_ms = NEVER_MS
        self._newest_ms = LONG_MIN
        self._early = _Early()
        self.rescan()

    @property
    def next_due_ms(self) -> int:
        """When the next message is due."""
        return min(self.head_due_ms, self._early.first_ms)

    @property
    def newest_ms(self) -> int:
        """The latest time at which an entry is due."""
        return max(self.head_due_ms if self.head_due_ms != NEVER_MS else LONG_MIN, self._newest_ms)

    @property
    def is_in_order(self) -> bool:
        """Whether no entry is due earlier than one in front of it."""
        return self._early.first_ms == NEVER_MS

    def __len__(self) -> int:
        """How many entries there are from the head on, those that nobody delivers among them."""
        return self.queue.max_offset - self.head

    def rescan(self) -> None:
        """Look at everything from the head on, as after opening."""
        self._newest_ms, self._early = LONG_MIN, _Early()
        self._move_head(max(self.head, self.queue.min_offset))
        for first, units, waits in self.waiting():
            due_ms = units["tags_code"].astype(np.int64)
            self._note(due_ms[waits], (first + np.flatnonzero(waits)).astype(np.int64))

    def waiting(self, from_offset: int | None = None) -> Iterator[tuple[int, UnitArray, BoolArray]]:
        """The entries from the head on in pieces: first queue offset, units, which are pending."""
        first = self.head if from_offset is None else max(from_offset, self.head)
        while first < self.queue.max_offset:
            units = self.queue.units(first, min(first + _LONGEST_LOOK, self.queue.max_offset))
            yield first, units, self._waits(units, first)
            first += len(units)

    def _waits(self, units: UnitArray, first: int) -> BoolArray:
        waits = is_message(units)
        if len(self.done):
            low, high = np.searchsorted(self.done, [first, first + len(units)])
            waits[self.done[low:high] - first] = False
        return waits

    def last_unit(self) -> UnitArray:
        """The last entry that waits, or none."""
        stop, look = self.queue.max_offset, _FIRST_LOOK
        while stop > self.head:
            first = max(self.head, stop - look)
            units = self.queue.units(first, stop)
            rows = np.flatnonzero(self._waits(units, first))
            if len(rows):
                return units[rows[-1:]]
            stop, look = first, min(4 * look, _LONGEST_LOOK)
        return self.queue.units(self.head, self.head)

    def still_waits(self, queue_offset: int) -> bool:
        """Whether the entry at a queue offset is to be delivered."""
        if not self.head <= queue_offset < self.queue.max_offset:
            return False
        units = self.queue.units(queue_offset, queue_offset + 1)
        return bool(self._waits(units, queue_offset)[0])

    # --- what comes in ----------------------------------------------------------------------------

    def appended(self, queue_offset: int, due_ms: int) -> None:
        """A message was put at the end."""
        if due_ms < self._newest_ms and not self._waits_in_line:
            self._early.fresh.append((due_ms, queue_offset))
            self._early.first_ms = min(self._early.first_ms, due_ms)
            return
        self._newest_ms = max(due_ms, self._newest_ms)
        if self.head_due_ms == NEVER_MS:
            self.head, self.head_due_ms = queue_offset, due_ms

    def appended_many(self, first_queue_offset: int, due_ms: Int64Array) -> None:
        """Messages were put at the end, in this order."""
        if len(due_ms):
            if self.head_due_ms == NEVER_MS:
                self.head, self.head_due_ms = first_queue_offset, int(due_ms[0])
            count = len(due_ms)
            self._note(due_ms, np.arange(first_queue_offset, first_queue_offset + count))

    def _note(self, due_ms: Int64Array, queue_offset: Int64Array) -> None:
        if len(due_ms):
            before = np.empty_like(due_ms)
            before[0] = self._newest_ms
            before[1:] = due_ms[:-1]
            np.maximum.accumulate(before, out=before)
            early = (due_ms < before) & (not self._waits_in_line)
            self._early.add(due_ms[early], queue_offset[early])
            self._newest_ms = max(int(before[-1]), int(due_ms[-1]))

    # --- what goes out ----------------------------------------------------------------------------

    def due_entries(
        self, now_ms: int, *, latest_due_ms: int = NEVER_MS, most: int = NEVER_MS
    ) -> DueEntries:
        """Everything that is due at ``now_ms``, in the order of the queue; of what is in turn at
        most so many.

        An entry due later than ``latest_due_ms`` counts as due now. RocketMQ:
        ScheduleMessageService#correctDeliverTimestamp, with now + the level's delay. By default no
        entry does.
        """
        offsets, units, stop = self._in_turn(now_ms, latest_due_ms, most)
        early = self._out_of_turn(now_ms, stop)
        if len(early):
            for first, run in self._runs(early):
                chosen = early[slice(*np.searchsorted(early, [first, first + len(run)]))]
                chosen = chosen[self._waits(run, first)[chosen - first]]
                offsets.append(chosen)
                units.append(run[chosen - first])
        due_units = np.concatenate(units) if units else self.queue.units(self.head, self.head)
        return DueEntries(
            level=self.level,
            queue_offset=np.concatenate(offsets) if offsets else _NONE,
            commit_log_offset=due_units["commit_log_offset"].astype(np.int64),
            size_bytes=due_units["size_bytes"].astype(np.int64),
            due_ms=due_units["tags_code"].astype(np.int64),
            stop=stop,
        )

    def _in_turn(
        self, now_ms: int, latest_due_ms: int, most: int
    ) -> tuple[list[Int64Array], list[UnitArray], int]:
        """What is due from the head on up to the first entry that is not."""
        offsets: list[Int64Array] = []
        due_units: list[UnitArray] = []
        place, look = self.head, _FIRST_LOOK
        while place < self.queue.max_offset and not now_ms < self.head_due_ms <= latest_due_ms:
            units = self.queue.units(place, min(place + look, self.queue.max_offset))
            waits = self._waits(units, place)
            due_ms = units["tags_code"].astype(np.int64)
            not_due = np.flatnonzero(waits & (due_ms > now_ms) & (due_ms <= latest_due_ms))
            count = int(not_due[0]) if len(not_due) else len(units)
            chosen = np.flatnonzero(waits[:count])
            is_enough = len(chosen) > most
            if is_enough:
                count = int(chosen[most])
                chosen = chosen[:most]
            offsets.append(place + chosen)
            due_units.append(units[chosen])
            place += count
            if len(not_due) or is_enough:
                break
            most -= len(chosen)
            look = min(4 * look, _LONGEST_LOOK)
        return offsets, due_units, place

    def _runs(self, queue_offsets: Int64Array) -> Iterator[tuple[int, UnitArray]]:
        """The units around these, in runs: those near each other are read together."""
        far = np.flatnonzero(np.diff(queue_offsets) > _FIRST_LOOK) + 1
        for run in np.split(queue_offsets, far):
            first, stop = int(run[0]), int(run[-1]) + 1
            for place in range(first, stop, _LONGEST_LOOK):
                yield place, self.queue.units(place, min(place + _LONGEST_LOOK, stop))

    def _out_of_turn(self, now_ms: int, stop: int) -> Int64Array:
        """The queue offsets behind ``stop`` of what is due before its turn."""
        if self._early.first_ms > now_ms:
            return _NONE
        self._early.merge_new()
        is_due = (self._early.due_ms <= now_ms) & (self._early.queue_offset >= stop)
        return np.unique(self._early.queue_offset[is_due])

    def delivered(self, entries: DueEntries) -> None:
        """All of these were delivered."""
        out_of_turn = entries.queue_offset[entries.queue_offset >= entries.stop]
        if len(out_of_turn):
            self.done = np.union1d(self.done, out_of_turn)
        self._move_head(entries.stop)

    def delivered_some(self, entries: DueEntries, which: BoolArray) -> None:
        """Some of these were delivered; the others wait on."""
        in_turn = entries.queue_offset < entries.stop
        left = np.flatnonzero(~which & in_turn)
        stop = int(entries.queue_offset[left[0]]) if len(left) else entries.stop
        done = entries.queue_offset[which]
        self.done = np.union1d(self.done, done[done >= stop])
        # Those left behind one that is due later have lost their turn.
        if not self._waits_in_line:
            self._early.add(entries.due_ms[left], entries.queue_offset[left])
        self._move_head(stop)

    def mark_delivered(self, queue_offsets: Int64Array) -> None:
        """Note entries that were delivered although their units do not show it."""
        if len(queue_offsets):
            self.done = np.union1d(self.done, queue_offsets)
            self.rescan()

    def forget(self, queue_offset: int) -> None:
        """Drop a cancelled entry; its unit is neutral already."""
        self._early.merge_new()
        if len(self._early.queue_offset):
            self._early.keep(self._early.queue_offset != queue_offset)
        if queue_offset == self.head:
            self._move_head(queue_offset + 1)

    def queue_was_cut(self) -> None:
        """The oldest entries were deleted."""
        if self.head < self.queue.min_offset:
            self._move_head(self.queue.min_offset)

    def _move_head(self, place: int) -> None:
        """To the first entry from ``place`` on that waits."""
        self.head, self.head_due_ms = place, NEVER_MS
        while self.head < self.queue.max_offset:
            units = self.queue.units(self.head, min(self.head + _FIRST_LOOK, self.queue.max_offset))
            waits = np.flatnonzero(self._waits(units, self.head))
            if len(waits):
                self.head += int(waits[0])
                self.head_due_ms = int(units["tags_code"][waits[0]])
                break
            self.head += len(units)
        self._drop_passed()

    def _drop_passed(self) -> None:
        """Nothing before the head is early or done any more."""
        if self.head_due_ms == NEVER_MS:
            self._newest_ms = LONG_MIN
            self._early, self.done = _Early(), _NONE
            return
        if len(self.done) and self.done[0] < self.head:
            self.done = self.done[np.searchsorted(self.done, self.head) :]
        if self._early.first_ms != NEVER_MS:
            self._early.merge_new()
            is_done = np.isin(self._early.queue_offset, self.done)
            self._early.keep((self._early.queue_offset >= self.head) & ~is_done)


_ENTRIES_AT_ONCE = 1 << 18
_WORTH_A_BISECTION = 2_000


class DueRuns:
    """The runs of rising due times in a queue, looked for when they are first needed.

    Due times rise in a few long runs; a new one begins at each entry that is due earlier than the
    one before it. If there are so many that bisecting each costs more than reading all entries, all
    are compared.
    """

    def __init__(self, queue: UnitQueue) -> None:
        self._queue = queue
        self._starts: list[int] = []
        self._known_end = queue.min_offset
        self._last_ms = 0

    def _read_on(self) -> None:
        """Take note of what was appended since the last time."""
        queue = self._queue
        self._known_end = max(self._known_end, queue.min_offset)
        while self._known_end < queue.max_offset:
            first = self._known_end
            units = queue.units(first, min(first + _ENTRIES_AT_ONCE, queue.max_offset))
            due_ms = units["tags_code"].astype(np.int64)
            falls = np.flatnonzero(np.diff(due_ms, prepend=self._last_ms) < 0) + first
            if not self._starts and (not len(falls) or falls[0] != first):
                self._starts.append(first)
            self._starts += falls.tolist()
            self._last_ms = int(due_ms[-1])
            self._known_end += len(units)

    def find(self, due_ms: int) -> Int64Array:
        """The queue offsets of all entries due at exactly this time, in order."""
        self._read_on()
        queue = self._queue
        if not self._starts or queue.min_offset >= queue.max_offset:
            return np.zeros(0, np.int64)
        cut = max(bisect.bisect_right(self._starts, queue.min_offset) - 1, 0)
        starts = [max(start, queue.min_offset) for start in self._starts[cut:]]
        ends = [*starts[1:], queue.max_offset]
        pieces = []
        if len(starts) * _WORTH_A_BISECTION > queue.max_offset - queue.min_offset:
            for first in range(queue.min_offset, queue.max_offset, _ENTRIES_AT_ONCE):
                units = queue.units(first, min(first + _ENTRIES_AT_ONCE, queue.max_offset))
                pieces.append(first + np.flatnonzero(units["tags_code"] == due_ms))
        else:
            for first, last in zip(starts, ends, strict=True):
                low = bisect.bisect_left(range(last), due_ms, first, key=self._due_ms_at)
                high = bisect.bisect_right(range(last), due_ms, low, key=self._due_ms_at)
                pieces.append(np.arange(low, high))
        return np.concatenate(pieces)

    def _due_ms_at(self, queue_offset: int) -> int:
        return int(self._queue.units(queue_offset, queue_offset + 1)["tags_code"][0])


def find_record_end(queue: UnitQueue, record_end: int) -> int | None:
    """The queue offset of the entry whose record ends at this place of the log; None for none. Log
    offsets rise along a queue without exception.

    A record's end is asked for and not its beginning, because that is what a neutral unit keeps.
    """

    def end_at(queue_offset: int) -> int:
        [unit] = queue.units(queue_offset, queue_offset + 1)
        return int(unit["commit_log_offset"]) + int(unit["size_bytes"])

    at = bisect.bisect_left(range(queue.max_offset), record_end, queue.min_offset, key=end_at)
    return at if at < queue.max_offset and end_at(at) == record_end else None
