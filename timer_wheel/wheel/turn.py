# SPDX-License-Identifier: Apache-2.0
"""The fast form of ``TimerMessageStore.dequeue`` and of what its services do then.

One turn of the wheel: due messages are delivered, messages with farther to go are rolled, and the
hand moves on.

Order: deliveries to the log and the queues, then rolls, then the units of what the queue held, then
the checkpoint. A process that is killed in between has delivered all or nothing; whoever opens the
store then finds in the log what was done.
"""

from collections.abc import Iterable

import attrs
import numpy as np

from message_store.base.errors import DelayStoreError, FormatError
from message_store.columns.byte_column import Int64s
from message_store.redelivery.batch import (
    FROM_WHEEL,
    ROLLED,
    Measured,
    Redelivered,
    Rewrite,
    redeliver,
)
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.store import LiveStore
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.timers.recall import RecallMarks
from timer_wheel.timers.rows import (
    Bools,
    TimerFacts,
    TimerRows,
    Unplaced,
    delivery_order,
    store_times_of_copies,
)
from timer_wheel.timers.timer_properties import wheel_stamps
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.log import KnownSlot
from timer_wheel.wheel.recall_search import are_older
from timer_wheel.wheel.unit_repair import (
    are_other_kinds,
    has_doubtful_units,
    mend_flags,
    mend_places,
)

WORTH_IT_UNITS = 1_000
_MOST_UNITS = 1 << 18
"""Nobody else gets the store meanwhile. A slot of more is taken as if nobody had looked: what was
seen first would be far from the processor again.
"""
_UNITS_A_MS = 200
"""So that looking is over before the slot is: 450 to 1,350 were measured."""
_MARGIN_MS = 20
_SHORTLY_MS = 150
"""Who looks every 100 ms has no other chance then. How long records stay near was not measured: at
this distance copying them took 26 ms in place of 33 to 55.
"""
_NEAR_BYTES = 256 << 20
"""More than a processor's caches may hold would not be near when it is copied. Not measured."""


class Foresight:
    """What is known of one slot: ``units`` that it holds, and their ``records``."""

    def __init__(self, store: LiveStore, timers: LiveTimers) -> None:
        self._store, self._timers = store, timers
        self._forget()

    def _forget(self) -> None:
        self.units: KnownSlot | None = None
        self.records: Measured | None = None
        self._is_finished = False

    def look(self, now_ms: int, *, is_busy: bool) -> None:
        """Forget what is over and look at the slot in hand, at this time by the clock, if that
        leaves time enough; but not where the caller waits for what came of its turn (``is_busy``).

        Whatever goes wrong here goes wrong again when the slot is over, and is told then.
        """
        try:
            self._look(now_ms, is_busy)
        except (DelayStoreError, MemoryError):
            self._forget()

    def _look(self, now_ms: int, is_busy: bool) -> None:
        timers, precision_ms = self._timers, self._timers.precision_ms
        slot_ms = timers.wheel.hand_ms
        slot, count = slot_ms // precision_ms, timers.wheel.unit_count(slot_ms)
        if self.units is not None and self.units.slot != slot:
            self._forget()
        needs_ms = count // _UNITS_A_MS + _MARGIN_MS
        left_ms = slot_ms + precision_ms - now_ms
        if is_busy or not WORTH_IT_UNITS <= count <= _MOST_UNITS or left_ms < needs_ms:
            return
        is_last_chance = left_ms < needs_ms + _SHORTLY_MS
        if self._is_finished or not (is_last_chance or self._has_grown(count)):
            return
        rows, _ = timers.log.walk(
            timers.wheel, timers.wheel.used_slots(slot_ms + precision_ms), self.units
        )
        if not len(rows):
            return
        self.units = KnownSlot(slot, rows, timers.log.rewrite_count)
        self.records = self._measured(rows, now_ms)
        if is_last_chance:
            self._is_finished = True
            if int(self.records.sizes.sum()) <= _NEAR_BYTES:
                self.records.prefetch()

    def _has_grown(self, count: int) -> bool:
        """Whether much in the slot is unknown; a little is found soon enough when it is over."""
        return self.units is None or 8 * count > 9 * len(self.units.rows)

    def _measured(self, rows: TimerRows, now_ms: int) -> Measured:
        goes = rows.rows(~(rows.is_marker | rows.is_roll))
        lengths = wheel_stamps(goes.enqueued_ms, now_ms).lengths
        offsets, sizes = goes.commit_log_offset, goes.size_bytes
        return Measured.of(self._store, offsets, sizes, lengths, FROM_WHEEL, known=self.records)


@attrs.frozen(eq=False)
class Due:
    """Rows that a turn looks at: of the slots that are over, and of what never gets a slot."""

    rows: TimerRows
    facts: TimerFacts
    promised_ms: Int64s


@attrs.frozen(eq=False)
class _Passed:
    """Which rows of slots that are over were rolled (``rolls``), and before which the hand
    ``stays``: due when it was stored, a message is promised for then. In narrower slots than there
    were, or by a clock that was set back, that is behind its slot.
    """

    rolls: Bools
    stays: Bools


class Turning:
    """Turns the wheel of one store."""

    def __init__(self, store: LiveStore, timers: LiveTimers) -> None:
        self._store = store
        self._timers = timers
        self._foresight = Foresight(store, timers)

    def turn(self, now_ms: int, marks: RecallMarks) -> LogDeliveries:
        """Deliver what is due at ``now_ms``. Raises TargetError when the disk refuses."""
        timers = self._timers
        stamp_ms = max(self._store.clock.now_ms(), now_ms)
        append_count = self._store.log.append_count
        timers.place_queued(stamp_ms)
        rest = timers.unplaced(EVERYTHING, keys=True)
        due = self._due(rest, now_ms, marks)
        is_marker = due.rows.is_marker
        is_recalled = marks.take_away(due.rows.commit_log_offset, due.facts) & ~is_marker
        is_due = due.promised_ms <= now_ms
        is_over = due.rows.slot_time_ms < floor_ms(now_ms, timers.precision_ms)
        rolls = is_over & ~is_due & due.rows.is_roll & due.facts.is_fine & ~is_recalled
        goes = is_due & due.facts.is_fine & ~is_marker & ~is_recalled
        stays = is_over & ~is_due & ~rolls & due.facts.is_fine & ~is_marker & ~is_recalled
        self._lose(due.rows, due.facts.problems.items())
        order = _in_order(due, np.flatnonzero(goes))
        delivered = self._redeliver(due, order, FROM_WHEEL, stamp_ms)
        deliveries = LogDeliveries(
            self._store,
            delivered.positions,
            delivered.sizes,
            due.promised_ms[order[delivered.rows]],
        )
        self._roll(due, np.flatnonzero(rolls), stamp_ms)
        of_rest = marks.take_away(rest.rows.commit_log_offset, rest.facts)
        self._move_on(rest, of_rest, due, _Passed(rolls, stays), now_ms, stamp_ms)
        if not len(timers.early):  # what is due before its slot may be cancelled in an older slot
            marks.forget_before(timers.wheel.hand_ms)
        later_ms = max(stamp_ms, self._store.clock.now_ms())
        self._foresight.look(later_ms, is_busy=self._store.log.append_count != append_count)
        return deliveries

    # --- what is looked at ------------------------------------------------------------------------

    def _due(self, rest: Unplaced, now_ms: int, marks: RecallMarks) -> Due:
        """The slots that are over, what is due before its slot is, and what has no slot."""
        timers = self._timers
        taken = timers.due_rows(now_ms, self._foresight.units)
        early = timers.early
        if len(early):
            early = early.rows(early.slot_time_ms >= floor_ms(now_ms, timers.precision_ms))
        rows = TimerRows.together([taken, early])
        is_plain = not (len(marks) or len(rest) or timers.has_rolled)
        is_plain = is_plain and not has_doubtful_units(timers, rows)
        if is_plain and not timers.placed_again.among(rows, self._store.log):
            facts = TimerFacts.assumed(rows, timers.precision_ms)
        else:
            rows, facts = self._read(rows, marks)
            rows = timers.believe_records(rows, facts)
        promised_ms = timers.promised_ms(rows, facts)
        if not len(rest):
            return Due(rows, facts, promised_ms)
        is_open = rest.facts.promised_ms <= now_ms
        is_open &= rest.facts.is_fine & ~np.isin(rest.rows.commit_log_offset, timers.done)
        direct, its_facts = rest.rows.rows(is_open), rest.facts.rows(is_open)
        return Due(
            TimerRows.together([rows, direct]),
            TimerFacts(
                np.concatenate([facts.table, its_facts.table], axis=1),
                facts.problems,
                facts.precision_ms,
            ),
            np.concatenate([promised_ms, its_facts.promised_ms]),
        )

    def _read(self, rows: TimerRows, marks: RecallMarks) -> tuple[TimerRows, TimerFacts]:
        """What the records say, and the rows with the right places and flags; ``marks`` gets
        markers that nobody knew. Raises TargetError.
        """
        timers = self._timers
        rows, facts, moved = mend_places(timers, rows, keys=len(marks) > 0)
        timers.count_mended(moved)
        is_other = are_other_kinds(rows, facts)
        if not is_other.any():
            return rows, facts
        rows = TimerRows(rows.table.copy())
        timers.count_mended(mend_flags(timers, rows, facts))
        facts = timers.facts(rows, keys=True)
        offsets = rows.commit_log_offset
        is_new = is_other & facts.is_marker & ~are_older(timers, offsets, facts)
        marks.add(offsets[is_new], facts.rows(is_new))
        return rows, facts

    # --- what becomes of it -----------------------------------------------------------------------

    def _redeliver(
        self,
        due: Due,
        chosen: Int64s,
        how: Rewrite,
        stamp_ms: int,
        store_ms: int | None = None,
    ) -> Redelivered:
        is_all = len(chosen) == len(due.rows) and _is_all(chosen)  # copying all takes its time
        rows = due.rows if is_all else due.rows.rows(chosen)
        facts = due.facts if is_all else due.facts.rows(chosen)
        rolled = facts.roll_times + 1 if how is ROLLED else None
        done = redeliver(
            self._store,
            rows.commit_log_offset,
            rows.size_bytes,
            how,
            suffixes=wheel_stamps(rows.enqueued_ms, stamp_ms, rolled) if len(rows) else None,
            prepared_offsets=~facts.lineages(rows.commit_log_offset),
            store_ms=stamp_ms if store_ms is None else store_ms,
            known=self._foresight.records,
        )
        self._lose(rows, done.bad)
        for destination, count in done.counts.items():
            topic = destination.topic.decode()
            if how is not ROLLED:
                self._store.remember_topic(topic, destination.queue_id)
                self._timers.metrics.delivered(topic, count)
        return done

    def _roll(self, due: Due, chosen: Int64s, stamp_ms: int) -> None:
        """Store again what has farther to go, in order of placing."""
        if not len(chosen):
            return
        order = np.argsort(due.rows.commit_log_offset[chosen], kind="stable")
        for run, store_ms in store_times_of_copies(due.facts, chosen[order], stamp_ms):
            self._redeliver(due, run, ROLLED, stamp_ms, store_ms)
        self._timers.metrics.placed(due.rows.rows(chosen), -1)

    def _move_on(
        self,
        rest: Unplaced,
        is_recalled: Bools,
        due: Due,
        passed: _Passed,
        now_ms: int,
        stamp_ms: int,
    ) -> None:
        timers = self._timers
        until_ms = floor_ms(now_ms, timers.precision_ms)
        if passed.stays.any():
            first_ms = int(due.rows.slot_time_ms[passed.stays].min())
            until_ms = min(until_ms, floor_ms(first_ms, timers.precision_ms))
        is_early = ((due.promised_ms <= now_ms) | passed.rolls) & ~due.rows.is_marker
        is_early &= (due.rows.slot_time_ms >= until_ms) & (due.rows.write_time_ms > 0)
        if is_early.any():
            timers.mark_done(due.rows.rows(is_early))
        if until_ms > timers.wheel.hand_ms:
            timers.pass_slots(until_ms)
        if len(rest):
            is_done = rest.facts.is_fine & (rest.facts.promised_ms <= now_ms)
            is_done |= np.isin(rest.rows.commit_log_offset, timers.done)
            timers.place_rest(rest, is_done, is_recalled, stamp_ms)
        timers.place_queued(stamp_ms)
        timers.save()

    def _lose(self, rows: TimerRows, problems: Iterable[tuple[int, FormatError]]) -> None:
        """Note those of these rows that have a problem."""
        lost, known = self._timers.lost, list(problems)
        for notes, is_marker in ((lost, False), (lost.cancels, True)):
            its = [each for each in known if rows.is_marker[each[0]] == is_marker]
            notes.lose(rows.commit_log_offset, its)


def _is_all(chosen: Int64s) -> bool:
    """Whether a choice of as many rows as there are is all of them in order."""
    return bool((np.diff(chosen) == 1).all())


def _in_order(due: Due, chosen: Int64s) -> Int64s:
    """These rows in order of promise, equal ones in the order in which they were scheduled."""
    offsets, promised_ms = due.rows.commit_log_offset[chosen], due.promised_ms[chosen]
    is_sorted = (np.diff(promised_ms) == 0) & (np.diff(offsets) > 0) | (np.diff(promised_ms) > 0)
    if is_sorted.all() and not due.facts.roll_times[chosen].any():
        return chosen
    return chosen[delivery_order(promised_ms, offsets, due.facts.rows(chosen))]
