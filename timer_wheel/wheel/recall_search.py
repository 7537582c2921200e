# SPDX-License-Identifier: Apache-2.0
"""Where the messages of a handle are on a wheel, and what became of those that wait no more."""

from collections.abc import Iterator
from functools import cached_property

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.files.notes import LostMessage
from message_store.format.java_numbers import LONG_MAX, string_hash
from message_store.format.message import StoredMessage
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation
from timer_wheel.format.older_slots import EXACT_MS
from timer_wheel.format.timer_due import was_due_when_stored
from timer_wheel.format.timer_log import FLAG_DELETE, FLAG_ROLL
from timer_wheel.format.wheel_math import PRECISIONS_MS, floor_ms, out_ms
from timer_wheel.reading.record_kernel import KEY_ONE, KEY_TWO
from timer_wheel.timers.fates import are_named, fate
from timer_wheel.timers.recall import (
    TAKES_NOTHING,
    RecallKey,
    RecallMarks,
    Target,
    are_of_cancel,
    marker_offsets,
    odd_markers,
    without_target,
)
from timer_wheel.timers.rows import Bools, TimerFacts, TimerRows, Unplaced, facts_then
from timer_wheel.timers.unit_kernels import TOPIC_HASH, may_be_of_topic
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.log import NO_SLOT
from timer_wheel.wheel.unit_repair import mend_places


@attrs.frozen(eq=False)
class OlderMarks:
    """The markers of each of the older slots, by their number; ``rows`` are all of them."""

    timers: LiveTimers
    rows: TimerRows
    marks: dict[int, RecallMarks]

    @classmethod
    def of(cls, timers: LiveTimers) -> "OlderMarks":
        """All that have units, or are in the queue and have none."""
        if not timers.older.until:
            return cls(timers, TimerRows.empty(), {})
        placed = timers.log.find(None, NO_SLOT, 0, flags=FLAG_DELETE)
        rest = timers.unplaced(EVERYTHING).rows
        return cls.among(timers, TimerRows.together([placed, rest.rows(rest.is_marker)]))

    @classmethod
    def among(cls, timers: LiveTimers, rows: TimerRows) -> "OlderMarks":
        """Those among some rows."""
        if not timers.older.until or not len(rows):
            return cls(timers, TimerRows.empty(), {})
        facts = timers.facts(rows)
        chosen = facts.is_marker & facts.is_fine
        chosen &= are_older(timers, rows.commit_log_offset, facts)
        rows, facts = rows.rows(chosen), facts.rows(chosen)
        offsets = rows.commit_log_offset
        numbers = timers.older.number_of(marker_offsets(offsets, facts))
        marks = {}
        for number in np.unique(numbers).tolist():
            its = rows.rows(numbers == number)
            marks[number] = RecallMarks()
            marks[number].add(its.commit_log_offset, _facts_of(timers, its, number))
        return cls(timers, rows, marks)

    def taken_at(self, rows: TimerRows) -> Int64s:
        """Where in the log one of these took each row away; ``LONG_MAX`` for none."""
        found = np.full(len(rows), LONG_MAX, np.int64)
        for number, marks in self.marks.items():
            facts = _facts_of(self.timers, rows, number)
            found = np.minimum(found, marks.taken_at(rows.commit_log_offset, facts))
        return found


def _facts_of(timers: LiveTimers, rows: TimerRows, number: int) -> TimerFacts:
    return facts_then(
        timers.store.log, rows.commit_log_offset, rows.size_bytes, timers.older, number
    )


def apply_older_markers(timers: LiveTimers) -> None:
    """Take as done the older markers on the wheel or on its way there, with their targets."""
    marks = OlderMarks.of(timers)
    if not len(marks.rows):
        return
    rest = timers.unplaced(EVERYTHING).rows
    rows = TimerRows.together([timers.in_slots(timers.wheel.used_slots()), rest])
    rows = rows.rows(_may_be_taken(rows, marks.rows, timers))
    is_it = marks.taken_at(rows) < LONG_MAX
    is_it |= np.isin(rows.commit_log_offset, marks.rows.commit_log_offset)
    if is_it.any():
        timers.mark_done(rows.rows(is_it))


def _may_be_taken(rows: TimerRows, markers: TimerRows, timers: LiveTimers) -> Bools:
    """Rows to look at: of the markers' topics, in the markers' slots or in any if they roll."""
    facts = timers.facts(markers)
    slots = floor_ms(facts.out_ms, timers.precision_ms)
    may_be: Bools = np.isin(floor_ms(rows.slot_time_ms, timers.precision_ms), slots)
    may_be |= rows.is_roll | was_due_when_stored(rows.slot_time_ms)
    may_be &= np.isin(rows.table[TOPIC_HASH], markers.table[TOPIC_HASH])
    return may_be


def are_older(timers: LiveTimers, offsets: Int64s, facts: TimerFacts) -> Bools:
    """Which of these records were first stored for slots that the wheel had before."""
    is_it: Bools = marker_offsets(offsets, facts) < timers.older.until
    return is_it


def find_markers(
    timers: LiveTimers, from_ms: int, *, mended: TimerRows | None = None
) -> RecallMarks:
    """Every delete marker in slots from a time on, or in the queue; but for those of older slots,
    which were applied when the wheel was rebuilt (``OlderMarks``). ``mended`` are rows whose
    units still have wrong flags. Records are believed, not flags. A message in the hand's slot
    because that was over may have its marker before it.
    """
    marks = RecallMarks()
    promised_ms = floor_ms(timers.facts(timers.early).out_ms, timers.precision_ms)
    from_ms = int(promised_ms.min(initial=from_ms))
    placed = timers.log.find(None, NO_SLOT, 0, flags=FLAG_DELETE)
    placed = placed if mended is None else TimerRows.together([placed, mended])
    placed = placed.rows(placed.is_marker & (placed.slot_time_ms >= from_ms))
    rest = timers.unplaced(EVERYTHING, keys=True)
    for rows, facts in ((placed, timers.facts(placed, keys=True)), (rest.rows, rest.facts)):
        counts = facts.is_marker & facts.is_fine
        counts &= ~are_older(timers, rows.commit_log_offset, facts)
        marks.add(rows.commit_log_offset[counts], facts.rows(counts))
    return marks


def _name_nothing(timers: LiveTimers, rest: Unplaced, markers: Bools) -> list[LostMessage]:
    """Those of these markers in the queue whose key no message has, on the wheel or on its way
    there, in whatever slot it is parked.
    """
    if not markers.any():
        return []
    wanted = rest.facts.rows(markers)
    messages = rest.facts.is_fine & ~rest.facts.is_marker
    known = set(rest.facts.rows(messages).recall_keys())
    for units in timers.log.all_units():
        its = units.rows(np.isin(units.table[TOPIC_HASH], wanted.topic_hash) & ~units.is_marker)
        told = timers.facts(its, keys=True)
        known |= set(told.rows(told.is_fine & ~told.is_marker).recall_keys())
    offsets = rest.rows.commit_log_offset[markers].tolist()
    return [
        LostMessage(offset, TAKES_NOTHING)
        for offset, key in zip(offsets, wanted.recall_keys(), strict=True)
        if key not in known
    ]


def _has_all_flushed(timers: LiveTimers) -> bool:
    """Whether the timer log still has all units of the last flush."""
    own = timers.files.found_own
    return own is not None and own.is_known and timers.log.end >= own.flushed_position


def note_what_is_damaged(timers: LiveTimers, rest: Unplaced) -> None:
    """After a crash: note what has no unit (``rest``) and cannot be read, and delete markers there
    that cancel nothing; a cancel only makes one where a message waits that it takes. Where markers
    from before the last flush have no unit, retention may have deleted what they cancelled.
    """
    rows, facts, log = rest.rows, rest.facts, timers.store.log
    timers.lost.lose(rows.commit_log_offset, facts.problems.items())
    cancels = odd_markers(rows.commit_log_offset, facts)
    asked = (
        facts.is_fine & facts.is_marker & ~facts.is_odd_marker & ~was_due_when_stored(facts.out_ms)
    )
    asked &= ~are_older(timers, rows.commit_log_offset, facts)
    asked = are_of_cancel(log, rows.commit_log_offset, rows.size_bytes, asked)
    if log.min_offset > 0 and not _has_all_flushed(timers):
        asked[:] = False
    is_past = rows.slot_time_ms < timers.wheel.hand_ms
    cancels += _name_nothing(timers, rest, asked & is_past)
    asked &= ~is_past
    if asked.any() and not timers.has_rolled:
        held = timers.wheel.used_slots()
        slots = floor_ms(facts.out_ms[asked], timers.precision_ms) // timers.precision_ms
        placed, _ = timers.log.walk(timers.wheel, held[np.isin(held, slots)])
        near = TimerRows.together([placed, rows.rows(facts.is_fine)])
        told = timers.facts(near, keys=True)
        messages = told.is_fine & ~told.is_marker
        offsets, waiting = near.commit_log_offset[messages], told.rows(messages)
        cancels += without_target(
            rows.commit_log_offset[asked],
            facts.rows(asked),
            waiting.first_offsets(offsets),
            waiting,
        )
    if cancels:
        timers.lost.cancels.add(cancels)


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
        """The messages that are pending, one for each marker that is needed to take all of them.
        What is known of a width may be a multiple of it; that is thought of where nothing is named
        by the width itself, pending or not.
        """
        found = self._targets(is_exact=True)
        if not found and not self._named_in_past(is_exact=True).any():
            found = self._targets(is_exact=False)
        return found

    def _targets(self, *, is_exact: bool) -> list[Target]:
        found: dict[RecallKey, Target] = {}
        for rows in self._pending(self.slots_ms):
            among = self._among(rows, is_exact=is_exact)
            found |= {target.recall_key: target for target in among}
        return list(found.values())

    def count_alike(self, target: Target) -> int:
        """How many pending messages a delete marker of this one would cancel: whatever is of its
        slot, topic and key. What was due when it was stored lies in another slot than its promise
        says. One that is overdue may be met in two places.
        """
        found: set[int] = set()
        slot_ms = floor_ms(target.out_ms, self._timers.precision_ms)
        for rows in self._pending(sorted({*self.slots_ms, slot_ms})):
            may_be = may_be_of_topic(rows.table[TOPIC_HASH], self._topic_hash)
            rows = rows.rows(may_be & ~rows.is_marker)
            facts = self._timers.facts(rows, keys=True)
            key_one, key_two = target.recall_key
            alike = (facts.table[KEY_ONE] == key_one) & (facts.table[KEY_TWO] == key_two)
            alike &= facts.is_fine & ~self._marks.take_away(rows.commit_log_offset, facts)
            found |= set(rows.commit_log_offset[alike].tolist())
        return len(found)

    def _pending(self, slots_ms: list[int]) -> Iterator[TimerRows]:
        """Everything that is pending where a message of these slots may be."""
        timers = self._timers
        unplaced = timers.unplaced(EVERYTHING).rows
        yield unplaced.rows(~np.isin(unplaced.commit_log_offset, timers.done))
        yield timers.early
        held = timers.wheel.used_slots(slots_ms[-1] + timers.precision_ms)
        held = held[np.isin(held, [each // timers.precision_ms for each in slots_ms])]
        rows = timers.in_slots(held)
        yield rows.rows(~rows.is_roll)
        if timers.has_rolled:  # what will roll may be in any slot
            rows = timers.log.find(self._topic_hash, NO_SLOT, 0, flags=FLAG_ROLL)
            rows = rows.rows(rows.is_roll)
            yield rows.rows(timers.are_waiting(rows))

    def past(self) -> Cancellation:
        """What became of a message that is not pending."""
        timers, (rows, facts) = self._timers, self._past_rows
        is_named = self._named_in_past(is_exact=True)
        if not is_named.any():
            is_named = self._named_in_past(is_exact=False)
        if not is_named.any():
            # Of what was over when the wheel got its width nobody wrote down the one before.
            is_waiting = timers.are_waiting(rows)
            any_ms = np.where(is_waiting, self._widths_ms(rows, facts), EXACT_MS)
            is_named = self._is_named(rows, facts, any_ms, is_waiting)
        log, places = timers.store.log, (rows.commit_log_offset, rows.size_bytes)
        return fate(log, *places, facts, is_named, timers.older, timers.foreign_until)

    def _named_in_past(self, *, is_exact: bool) -> Bools:
        rows, facts = self._past_rows
        is_sure = self._are_sure(facts.first_offsets(rows.commit_log_offset), is_exact=is_exact)
        return self._is_named(rows, facts, self._widths_ms(rows, facts), is_sure)

    @cached_property
    def _past_rows(self) -> tuple[TimerRows, TimerFacts]:
        """All that a handle may name which the log of timers or the queue still has."""
        timers = self._timers
        first_ms = self._handle.due_ms - max(PRECISIONS_MS)
        end_ms = self.slots_ms[-1] + 2 * timers.precision_ms
        rows = timers.log.find(self._topic_hash, first_ms, end_ms - first_ms, flags=FLAG_ROLL)
        rows = TimerRows.together([rows, *self._queued()])
        rows, facts, moved = mend_places(timers, rows, keys=True)
        timers.count_mended(moved)
        return rows, facts

    def _are_sure(self, first_offsets: Int64s, *, is_exact: bool) -> Bools:
        older = self._timers.older
        return np.ones(len(first_offsets), bool) if is_exact else older.are_sure(first_offsets)

    def _queued(self) -> Iterator[TimerRows]:
        """Unplaced rows that may be of the topic: new ones, or done before the width was set."""
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

    def _among(self, rows: TimerRows, *, is_exact: bool) -> Iterator[Target]:
        """The messages of the handle among these rows that no marker takes yet."""
        may_be = may_be_of_topic(rows.table[TOPIC_HASH], self._topic_hash)
        rows = rows.rows(may_be & ~rows.is_marker)
        if not len(rows):
            return
        rows, facts, moved = mend_places(self._timers, rows, keys=True)
        self._timers.count_mended(moved)
        first_offsets = facts.first_offsets(rows.commit_log_offset)
        is_sure = self._are_sure(first_offsets, is_exact=is_exact)
        is_live = self._is_named(rows, facts, self._widths_ms(rows, facts), is_sure)
        is_live &= ~self._marks.take_away(rows.commit_log_offset, facts)
        for row in np.flatnonzero(is_live).tolist():
            first = -1 if self._first_offset is None else int(first_offsets[row])
            if (record := self._record(rows, row)) is not None:
                times = int(facts.out_ms[row]), int(facts.promised_ms[row])
                yield Target(record, *times, facts.recall_keys()[row], first)

    def _record(self, rows: TimerRows, row: int) -> StoredMessage | None:
        log = self._timers.store.log
        return log.readable_record(int(rows.commit_log_offset[row]), int(rows.size_bytes[row]))

    def _widths_ms(self, rows: TimerRows, facts: TimerFacts) -> Int64s:
        first_offsets = facts.first_offsets(rows.commit_log_offset)
        return self._timers.older.widths_of(first_offsets, self._timers.precision_ms)

    def _is_named(
        self, rows: TimerRows, facts: TimerFacts, widths_ms: Int64s, is_sure: Bools
    ) -> Bools:
        """Which rows the handle or the receipt names: by time, topic, key and first record."""
        offsets, handle = rows.commit_log_offset, self._handle
        foreign_until = self._timers.foreign_until
        named = facts.promised_ms, widths_ms, handle, self._first_offset, foreign_until
        may_be = are_named(facts, offsets, *named, is_sure)
        is_named = np.zeros(len(rows), bool)
        for row in np.flatnonzero(may_be).tolist():
            record = self._record(rows, row)
            properties = {} if record is None else record.properties
            its = properties.get("REAL_TOPIC"), properties.get("UNIQ_KEY")
            is_named[row] = its == (handle.topic, handle.unique_key)
        return is_named
