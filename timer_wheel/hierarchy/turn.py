# SPDX-License-Identifier: Apache-2.0
"""One turn of a hierarchical wheel: what is due at a time goes to its topic, and what is wanted for
a time long after its record would be gone is stored again.

The database is not written for it. A process that is killed has delivered all of a turn or nothing;
whoever opens the store then finds in the log what the database does not know.
"""

import numpy as np

from message_store.columns.byte_column import Int64s, int64s
from message_store.redelivery.batch import FROM_WHEEL, Redelivered, redeliver
from message_store.redelivery.deliveries import LogDeliveries
from timer_wheel.format.index_layouts import Rows
from timer_wheel.hierarchy.timer_index import TimerIndex
from timer_wheel.hierarchy.waiting_rows import is_stored_again, store_times_ms
from timer_wheel.timers.rows import TimerFacts, delivery_order
from timer_wheel.timers.timer_properties import wheel_stamps

_PLACED_WITHIN_MS = 1_000


class HierarchyTurn:
    """Turns the wheels of one store; whoever calls holds its lock."""

    def __init__(self, index: TimerIndex) -> None:
        self._index = index
        self._store = index.store

    def turn(self, now_ms: int) -> LogDeliveries:
        """Deliver what is due at ``now_ms``. Raises TargetError when the disk refuses."""
        with self._index.whole_or_broken():
            return self._turn(now_ms)

    def _turn(self, now_ms: int) -> LogDeliveries:
        index, waiting = self._index, self._index.waiting
        index.settle()
        second_ms = waiting.hands.second_ms
        waiting.reach(now_ms)
        due = waiting.take_due(now_ms)
        count = self._store.log.append_count
        try:
            deliveries = self._deliver(due, max(self._store.clock.now_ms(), now_ms))
        except BaseException:
            if self._store.log.append_count == count:
                waiting.add(due)
            raise
        index.hand_ms = max(index.hand_ms, now_ms)
        index.marks.pass_by(now_ms)
        if waiting.hands.second_ms != second_ms:
            waiting.feed_ahead()
        index.relieve()
        return deliveries

    def _deliver(self, due: Rows, stamp_ms: int) -> LogDeliveries:
        if not len(due):
            return LogDeliveries(self._store, *3 * [int64s([])])
        marks = self._index.marks
        if len(marks) or is_stored_again(due).any():
            facts = self._index.facts_of(due, keys=True)
            is_taken = marks.take_away(int64s(due["commit_log_offset"]), facts)
            kept = np.flatnonzero(~is_taken)
            due = due[kept[self._order(due[kept], facts.rows(kept))]]
        done = self._redeliver(due, stamp_ms)
        promised_ms = int64s(due["due_ms"])[done.rows]
        return LogDeliveries(self._store, done.positions, done.sizes, promised_ms)

    @staticmethod
    def _order(rows: Rows, facts: TimerFacts) -> Int64s:
        times, offsets = int64s(rows["due_ms"]), int64s(rows["commit_log_offset"])
        return delivery_order(times, offsets, facts)

    def _redeliver(self, rows: Rows, stamp_ms: int) -> Redelivered:
        places = int64s(rows["commit_log_offset"]), int64s(rows["size_bytes"])
        placed_ms = store_times_ms(self._store.log, *places)
        placed_ms -= placed_ms % _PLACED_WITHIN_MS
        done = redeliver(
            self._store,
            *places,
            FROM_WHEEL,
            suffixes=wheel_stamps(placed_ms, stamp_ms) if len(rows) else None,
            store_ms=stamp_ms,
        )
        self._index.lose(places[0], done.bad)
        for destination in done.counts:
            self._store.remember_topic(destination.topic.decode(), destination.queue_id)
        return done
