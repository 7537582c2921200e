# SPDX-License-Identifier: Apache-2.0
"""The pending messages of a wheel that is open for writing, slot by slot, in pieces.

A listing is of one moment, although others go on with the wheel. The last unit of each slot leads
to all that the slot held then. A cancel may put that unit away; the slot's last unit of today leads
to the rest. The hand may pass a slot meanwhile: its messages roll to other slots, and its delete
markers are forgotten.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.format.java_numbers import string_hash
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.store import LiveStore
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.timers.recall import RecallMarks
from timer_wheel.timers.rows import Bools, TimerFacts, TimerRows, Unplaced
from timer_wheel.timers.unit_kernels import TOPIC_HASH
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.unit_repair import mend_places

_SLOTS_AT_ONCE = 256


@attrs.frozen(eq=False)
class _Live:
    """Messages that wait, with what their records say and when they are due."""

    rows: TimerRows
    facts: TimerFacts
    promised_ms: Int64s

    def chosen(self, which: Bools) -> "_Live":
        """Some of them."""
        return _Live(self.rows.rows(which), self.facts.rows(which), self.promised_ms[which])

    def in_time(self, store: LiveStore, wanted: WaitingFilter) -> LogDeliveries:
        """The record and the promise of those that are due when it is asked for."""
        chosen = wanted.in_time(self.promised_ms)
        offsets, sizes = self.rows.commit_log_offset[chosen], self.rows.size_bytes[chosen]
        return LogDeliveries(store, offsets, sizes, self.promised_ms[chosen])


@attrs.frozen(eq=False)
class _Moment:
    """What a wheel held when a listing was asked for: the slots in use with the last unit of each,
    the entries without units, the offsets of what is done, and the delete markers.
    """

    slots: Int64s
    last_positions: Int64s
    unplaced: Unplaced
    done: Int64s
    marks: RecallMarks

    @classmethod
    def of(cls, timers: LiveTimers, marks: RecallMarks) -> "_Moment":
        """This moment."""
        slots = timers.wheel.used_slots()
        return cls(
            slots,
            timers.wheel.last_positions(slots),
            timers.unplaced(EVERYTHING, keys=True),
            timers.done,
            marks.as_of_now(),
        )


def waiting(
    timers: LiveTimers, marks: RecallMarks, wanted: WaitingFilter
) -> Iterator[LogDeliveries]:
    """The record and the promise of every message that waits now, is due when it is asked for and
    may be of the topic, in pieces; whoever calls holds the store's lock. Raises StoreClosedError
    when the store is closed.
    """
    return _pieces(timers, _Moment.of(timers, marks), wanted)


def _pieces(timers: LiveTimers, moment: _Moment, wanted: WaitingFilter) -> Iterator[LogDeliveries]:
    with timers.store.reading():
        found = _without_units(timers, moment.unplaced, moment.done, moment.marks)
    yield found.in_time(timers.store, wanted)
    for begin in range(0, len(moment.slots), _SLOTS_AT_ONCE):
        with timers.store.reading():
            found = _in_slots(timers, moment, wanted, slice(begin, begin + _SLOTS_AT_ONCE))
        yield found.in_time(timers.store, wanted)


def _without_units(timers: LiveTimers, rest: Unplaced, done: Int64s, marks: RecallMarks) -> _Live:
    is_new = ~np.isin(rest.rows.commit_log_offset, done) & rest.facts.is_fine
    promised_ms = timers.promised_ms(rest.rows, rest.facts)
    return _live(_Live(rest.rows, rest.facts, promised_ms), marks, is_new)


def _in_slots(timers: LiveTimers, moment: _Moment, wanted: WaitingFilter, part: slice) -> _Live:
    slots, last, precision_ms = moment.slots[part], moment.last_positions[part], timers.precision_ms
    is_in_its_slot = floor_ms(timers.log.slot_times_at(last), precision_ms) == slots * precision_ms
    heads = np.where(is_in_its_slot, last, timers.wheel.last_positions(slots))
    rows, _ = timers.log.walk_from(heads, slots, precision_ms)
    its_slot = np.searchsorted(slots, rows.slot_time_ms // precision_ms)
    rows = rows.rows(rows.position <= last[its_slot])
    is_wanted = ~np.isin(rows.commit_log_offset, moment.done)
    if wanted.topic is not None:
        is_wanted &= rows.table[TOPIC_HASH] == string_hash(wanted.topic)
    rows, facts, moved = mend_places(timers, rows.rows(is_wanted), keys=len(moment.marks) > 0)
    timers.count_mended(moved)
    live = _Live(rows, facts, timers.promised_ms(rows, facts))
    is_new = ~np.isin(rows.commit_log_offset, moment.done) if moved else True
    return _live(live, moment.marks, facts.is_fine & is_new)


def _live(found: _Live, marks: RecallMarks, chosen: Bools) -> _Live:
    """The chosen rows that are messages and were not recalled."""
    is_taken = marks.take_away(found.rows.commit_log_offset, found.facts)
    chosen = chosen & ~found.rows.is_marker & ~found.facts.is_marker & ~is_taken
    return found.chosen(chosen)


def next_due_ms(timers: LiveTimers, marks: RecallMarks) -> int | None:
    """When the first message that waits is due, or its slot is over; None when nothing waits."""
    earliest: list[int] = []
    rest = timers.unplaced(EVERYTHING, keys=True)
    if len(rest):
        earliest += _without_units(timers, rest, timers.done, marks).promised_ms.tolist()
    early = timers.early
    if len(early):
        facts = timers.facts(early, keys=True)
        live = _Live(early, facts, timers.promised_ms(early, facts))
        earliest += _live(live, marks, facts.is_fine).promised_ms.tolist()
    slot_ms = _first_slot_ms(timers, marks)
    if slot_ms is not None:
        earliest.append(slot_ms + timers.precision_ms)
    return min(earliest, default=None)


def _first_slot_ms(timers: LiveTimers, marks: RecallMarks) -> int | None:
    """The first slot with a message that was not recalled."""
    if not len(marks) and not len(timers.done):
        return timers.wheel.next_slot_ms()
    count = 1
    for slots in timers.wheel.used_slots_by_distance():
        begin = 0
        while begin < len(slots):
            rows = timers.in_slots(slots[begin : begin + count])
            facts = timers.facts(rows, keys=len(marks) > 0)
            live = _live(_Live(rows, facts, rows.slot_time_ms), marks, facts.is_fine)
            if len(live.rows):
                slot_ms = int(live.rows.slot_time_ms.min())
                return slot_ms - slot_ms % timers.precision_ms
            begin, count = begin + count, min(2 * count, 4096)
    return None
