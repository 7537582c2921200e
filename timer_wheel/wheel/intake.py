# SPDX-License-Identifier: Apache-2.0
"""How messages come into a wheel in files: in slots that no reader has passed, and not too many to
one slot where that is limited.
"""

import random

from message_store.base.errors import UnsupportedDelayError
from message_store.base.printable import counted
from message_store.writing.store import LiveStore
from timer_wheel.format.timer_due import overdue_out_ms
from timer_wheel.timers.intake import TimerIntake
from timer_wheel.wheel.live_timers import LiveTimers
from timer_wheel.wheel.settings import WheelSettings

_NO_LIMIT = 2**31 - 1


class WheelIntake(TimerIntake):
    """Stores messages and delete markers for one wheel; whoever calls holds the store's lock."""

    def __init__(self, store: LiveStore, timers: LiveTimers, settings: WheelSettings) -> None:
        super().__init__(store, timers.queue, settings)
        self._timers = timers
        self._limit = settings.congest_num_each_slot
        self._is_limited = self._limit < _NO_LIMIT
        self._dice = random.Random()

    def _overdue_out_ms(self, now_ms: int) -> int:
        return overdue_out_ms(now_ms, self._timers.wheel.hand_ms, self.settings.precision_ms)

    def _refuse_congestion(self, out: int, now_ms: int, more: int = 0) -> None:
        """Refuse some of what goes to a slot that holds much, as a broker does: fewer, the fuller
        it is, until it holds twice its limit. ``more`` go there before this one.
        """
        limit = self._limit
        self._timers.settle(now_ms)
        held = self._timers.wheel.unit_count(out - out % self.settings.precision_ms) + more
        if held <= limit:
            return
        odds = 1000 * (held - limit) / (limit + 0.1)
        if held >= 2 * limit or self._dice.randrange(1000) > odds:
            told = counted(held, "message")
            raise UnsupportedDelayError(f"its slot holds {told}, the limit is {limit:,}")
