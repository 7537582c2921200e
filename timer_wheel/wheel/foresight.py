# SPDX-License-Identifier: Apache-2.0
"""Looks at the slot that is next to be over while nothing is due, so that what it holds is late by
its copying only.

Following a chain through the timer log and looking at the records, which lie far apart in the log,
waits for memory at every step: of the 80 to 180 ms that 50,000 messages of a slot took, 37 to 115.
Nothing of it is written down, and nothing that happens later makes it wrong: what comes into the
slot afterwards is found when it is over, what leaves it is left out then as ever, and where units
are rewritten what was known of them is not used.
"""

from typing import TYPE_CHECKING

from message_store.base.errors import DelayStoreError
from message_store.redelivery.batch import FROM_WHEEL
from message_store.redelivery.measured import Measured
from message_store.redelivery.wheel_stamps import wheel_stamps
from timer_wheel.timers.rows import TimerRows
from timer_wheel.wheel.known_slot import KnownSlot
from timer_wheel.wheel.live_timers import LiveTimers

if TYPE_CHECKING:
    from message_store.writing.store import LiveStore

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

    def __init__(self, store: "LiveStore", timers: LiveTimers) -> None:
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
                self.records.come_near()

    def _has_grown(self, count: int) -> bool:
        """Whether there is much in the slot that is not known; a little is found soon enough when
        it is over.
        """
        return self.units is None or 8 * count > 9 * len(self.units.rows)

    def _measured(self, rows: TimerRows, now_ms: int) -> Measured:
        goes = rows.rows(~(rows.is_marker | rows.is_roll))
        lengths = wheel_stamps(goes.enqueued_ms, now_ms).lengths
        offsets, sizes = goes.commit_log_offset, goes.size_bytes
        return Measured.of(self._store, offsets, sizes, lengths, FROM_WHEEL, known=self.records)
