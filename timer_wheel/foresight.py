# SPDX-License-Identifier: Apache-2.0
"""Looks at the slot that is next to be over while nothing is due, so that what it holds is late by
its copying only.

Following a chain through the timer log and looking at the records, which lie far apart in the log,
waits for memory at every step: of the 80 to 180 ms that 50,000 messages of a slot took, 40 to 130.
Nothing of it is written down and nothing that happens later makes it wrong: units and records stay
as they are, what comes into the slot afterwards is found when it is over, and what leaves it is
left out then as ever.
"""

from typing import TYPE_CHECKING

from message_store.measured_records import Measured
from message_store.redelivery import FROM_WHEEL, measured
from message_store.wheel_stamps import wheel_stamps
from timer_wheel.live_timer_log import KnownSlot
from timer_wheel.live_timers import LiveTimers
from timer_wheel.timer_rows import TimerRows

if TYPE_CHECKING:
    from message_store.live_store import LiveStore

WORTH_IT_UNITS = 1_000
_MOST_UNITS = 1 << 18
"""Nobody else gets the store meanwhile, and many more take long anyway."""
_UNITS_A_MS = 200
_MARGIN_MS = 20
_SHORTLY_MS = 150
"""Who looks every 100 ms has no other chance then. Records that are brought near earlier are far
again when they are copied.
"""


class Foresight:
    """What is known of one slot: ``units`` that it holds, and what was ``measured`` of records."""

    def __init__(self, store: "LiveStore", timers: LiveTimers) -> None:
        self._store, self._timers = store, timers
        self.units: KnownSlot | None = None
        self.measured: Measured | None = None

    def look(self, stamp_ms: int, *, is_busy: bool) -> None:
        """Forget what is over and, unless there was enough to do, look at the slot in hand, at this
        time by the clock, if that leaves time enough.
        """
        timers, precision_ms = self._timers, self._timers.precision_ms
        slot_ms = timers.wheel.hand_ms
        slot, count = slot_ms // precision_ms, timers.wheel.unit_count(slot_ms)
        needs_ms = count // _UNITS_A_MS + _MARGIN_MS
        left_ms = slot_ms + precision_ms - stamp_ms
        if self.units is not None and self.units.slot != slot:
            self.units = self.measured = None
        if is_busy or not WORTH_IT_UNITS <= count <= _MOST_UNITS or left_ms < needs_ms:
            return
        of_slot = timers.wheel.used_slots(slot_ms + precision_ms)
        rows, _ = timers.log.walk(timers.wheel, of_slot, self.units)
        if not len(rows):
            return
        is_new = self.units is None or len(rows) != len(self.units.rows)
        self.units = KnownSlot.of(timers.log, slot, rows)
        if is_new or self.measured is None:
            self._measure(rows, stamp_ms)
        if self.measured is not None and left_ms < needs_ms + _SHORTLY_MS:
            self.measured.touch()

    def _measure(self, rows: TimerRows, stamp_ms: int) -> None:
        goes = rows.rows(~(rows.is_marker | rows.is_roll))
        self.measured = measured(
            self._store,
            goes.commit_log_offset,
            goes.size_bytes,
            wheel_stamps(goes.enqueued_ms, stamp_ms).lengths,
            FROM_WHEEL,
            known=self.measured,
        )
