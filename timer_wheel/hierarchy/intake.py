# SPDX-License-Identifier: Apache-2.0
"""How messages come into a hierarchical wheel: as into any, with promises as fine as is set."""

import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.writing.store import LiveStore
from timer_wheel.format.hierarchy_due import TO_THE_MILLISECOND, at_once_out_ms, fine_promise_ms
from timer_wheel.hierarchy.settings import HierarchySettings
from timer_wheel.hierarchy.timer_index import TimerIndex
from timer_wheel.timers.intake import TimerIntake


class HierarchyIntake(TimerIntake):
    """Stores messages and delete markers; whoever calls holds the store's lock."""

    def __init__(self, store: LiveStore, index: TimerIndex, settings: HierarchySettings) -> None:
        super().__init__(store, index.queue, settings)
        if settings.precision_ms == TO_THE_MILLISECOND:
            to_slot_end = self._promise

            def to_millisecond(due_ms: int, now_ms: int) -> int:
                promised_ms = to_slot_end(due_ms, now_ms)
                return promised_ms if promised_ms == now_ms else int(fine_promise_ms(promised_ms))

            self._promise = to_millisecond

    def _overdue_out_ms(self, now_ms: int) -> int:
        return at_once_out_ms(now_ms)

    def _refuse_congestion(self, out: int, now_ms: int, more: int = 0) -> None:
        """No slot is ever too full: nothing is linked one by one."""

    def _promises(self, due_ms: Int64s, now_ms: int) -> tuple[Int64s, Int64s]:
        if self.settings.precision_ms != TO_THE_MILLISECOND:
            return super()._promises(due_ms, now_ms)
        promised_ms, _ = super()._promises(due_ms, now_ms)
        at_once = promised_ms == now_ms
        fine_ms = fine_promise_ms(promised_ms)
        outs = np.where(at_once, self._overdue_out_ms(now_ms), fine_ms - 1)
        return np.where(at_once, now_ms, fine_ms), outs
