# SPDX-License-Identifier: Apache-2.0
"""What a hierarchical wheel does as time passes: it delivers, rolls, and removes old log files.

The database is not written for a delivery. A killed process has delivered all of a turn or nothing.
Each record names the first of its message (``redelivery.lineage``). The next opening finds in the
log what the database does not know.

A message that is due within hours keeps its log file, which will soon be free. Every other message
in an old file gets a younger record with the same out time, as a broker's wheel does by rolling.
"""

import numpy as np

from message_store.columns.byte_column import Int64s, int64s
from message_store.format.properties import TIMER_TOPIC
from message_store.redelivery.batch import FROM_WHEEL, ROLLED, Redelivered, redeliver
from message_store.redelivery.deliveries import LogDeliveries
from timer_wheel.format.index_layouts import Rows
from timer_wheel.hierarchy.timer_index import TimerIndex
from timer_wheel.hierarchy.waiting_rows import is_stored_again, store_times_ms, together
from timer_wheel.timers.rows import (
    Bools,
    delivery_order,
    store_times_of_copies,
)
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
        index.place_queued()
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
        index.delivered_until(now_ms)
        if waiting.hands.second_ms != second_ms:
            waiting.feed_ahead()
        index.relieve()
        return deliveries

    def _deliver(self, due: Rows, stamp_ms: int) -> LogDeliveries:
        if not len(due):
            return LogDeliveries(self._store, *3 * [int64s([])])
        marks, lineages = self._index.marks, int64s(due["commit_log_offset"])
        if len(marks) or is_stored_again(due).any():
            facts = self._index.facts_of(due, keys=True)
            kept = np.flatnonzero(~marks.take_away(lineages, facts))
            times = int64s(due["due_ms"])[kept]
            kept = kept[delivery_order(times, lineages[kept], facts.rows(kept))]
            due, lineages = due[kept], facts.lineages(lineages)[kept]
        done = self._redeliver(due, lineages, stamp_ms)
        promised_ms = int64s(due["due_ms"])[done.rows]
        return LogDeliveries(self._store, done.positions, done.sizes, promised_ms)

    def _redeliver(self, rows: Rows, lineages: Int64s, stamp_ms: int) -> Redelivered:
        places = int64s(rows["commit_log_offset"]), int64s(rows["size_bytes"])
        placed_ms = store_times_ms(self._store.log, *places)
        placed_ms -= placed_ms % _PLACED_WITHIN_MS
        done = redeliver(
            self._store,
            *places,
            FROM_WHEEL,
            suffixes=wheel_stamps(placed_ms, stamp_ms) if len(rows) else None,
            prepared_offsets=~lineages,
            store_ms=stamp_ms,
        )
        self._index.lost.lose(places[0], done.bad)
        for destination in done.counts:
            self._store.remember_topic(destination.topic.decode(), destination.queue_id)
        return done


LOOK_EVERY_MS = 60_000


class Renewal:
    """Cleans up after one store; whoever calls holds its lock."""

    def __init__(self, index: TimerIndex) -> None:
        self._index = index
        self._store = index.store
        self._look_again_ms = 0

    def clean(self, now_ms: int) -> None:
        """Take away the files whose time is over. Raises TargetError."""
        looked_lately = self._look_again_ms - LOOK_EVERY_MS <= now_ms < self._look_again_ms
        if looked_lately or self._index.is_writing:
            return
        with self._store.all_or_broken(), self._index.whole_or_broken():
            self._index.place_queued()
            self._index.waiting.reach(now_ms)
            self._renew(self._end_of_old_files(now_ms), now_ms)
        elsewhere = self._store.first_of_others(TIMER_TOPIC)  # what of it came is not known here
        keep_from = min(self._first_needed(), elsewhere)
        if not self._store.clean(now_ms, keep_from, self._make_known):
            self._look_again_ms = now_ms + LOOK_EVERY_MS

    def _make_known(self) -> None:
        self._index.write_now(durably=True)

    def _end_of_old_files(self, now_ms: int) -> int:
        """Where the first file begins whose first record is not old; before it may be old files."""
        log = self._store.log
        retention_ms = self._store.settings.retention_ms
        for start in log.segments.starts:
            if log.store_time_ms(start) + retention_ms > now_ms:
                return start
        return log.segments.starts[-1]

    def _renew(self, end: int, now_ms: int) -> None:
        """Store again what lies before a place of the log and is far from due."""
        hour_ms = self._index.waiting.hands.hour_ms

        def is_wanted_later(rows: Rows) -> Bools:
            return np.asarray((rows["commit_log_offset"] < end) & (rows["due_ms"] >= hour_ms))

        marks = self._index.marks
        messages = self._index.waiting.take_out(is_wanted_later)
        marked = is_wanted_later(marks.rows)
        rows = together([messages, marks.rows[marked]])
        if not len(rows):
            return
        count = self._store.log.append_count
        try:
            self._store_again(rows[np.argsort(rows["commit_log_offset"], kind="stable")], now_ms)
        except BaseException:
            if self._store.log.append_count == count:
                self._index.waiting.add(messages)
            raise
        marks.take_out(marked)
        self._index.place_queued()

    def _store_again(self, rows: Rows, now_ms: int) -> None:
        every, stamp_ms = self._index.facts_of(rows), max(self._store.clock.now_ms(), now_ms)
        for run, store_ms in store_times_of_copies(every, np.arange(len(rows)), stamp_ms):
            facts, chosen = every.rows(run), rows[run]
            places = int64s(chosen["commit_log_offset"]), int64s(chosen["size_bytes"])
            placed_ms = store_times_ms(self._store.log, *places)
            done = redeliver(
                self._store,
                *places,
                ROLLED,
                suffixes=wheel_stamps(placed_ms, stamp_ms, facts.roll_times + 1),
                prepared_offsets=~facts.lineages(places[0]),
                store_ms=store_ms,
            )
            self._index.lost.lose(places[0], done.bad)

    def _first_needed(self) -> int:
        """The first commit log offset that a pending message or a marker that counts needs."""
        index = self._index
        parts = [int64s(rows["commit_log_offset"]) for rows in index.waiting.parts()]
        if len(index.marks.rows):
            parts.append(index.marks.offsets_since(index.marked_from_ms))
        return min((int(part.min()) for part in parts if len(part)), default=self._store.log.end)
