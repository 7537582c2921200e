# SPDX-License-Identifier: Apache-2.0
"""What is known of a slot of the wheel, so that only what came since is walked."""

import attrs

from message_store.columns.byte_column import Int64s
from timer_wheel.timers.rows import TimerRows


@attrs.frozen(eq=False)
class KnownSlot:
    """What a walk has found in a slot, given by its time in units of the precision: one unit at
    least. ``rewrite_count`` is that of the timer log then.
    """

    slot: int
    rows: TimerRows
    rewrite_count: int

    @property
    def last_position(self) -> int:
        """Where the last of its units is."""
        return int(self.rows.position[-1])

    def is_of(self, slots: Int64s, rewrite_count: int) -> bool:
        """Whether these slots are this one, and what was found is there still."""
        is_same = self.rewrite_count == rewrite_count
        return is_same and len(slots) == 1 and int(slots[0]) == self.slot
