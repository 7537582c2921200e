# SPDX-License-Identifier: Apache-2.0
"""What the timer queue holds that has no unit in the timer log yet."""

import attrs
import numpy as np

from timer_wheel.timers.rows import TimerFacts, TimerRows

EVERYTHING = 2**40
"""More entries than any queue has."""


@attrs.frozen(eq=False)
class Unplaced:
    """Entries of the timer queue that have no unit: their rows, without positions, and facts.

    ``queue_offset`` is the first one's, ``end`` is behind the last. Entries that cannot be timed
    messages have the slot time 0.
    """

    rows: TimerRows
    facts: TimerFacts
    queue_offset: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> int:
        """The queue offset behind the last."""
        return self.queue_offset + len(self.rows)

    def first(self, count: int) -> "Unplaced":
        """Only the first of them."""
        if count >= len(self.rows):
            return self
        part = slice(0, count)
        table = np.ascontiguousarray(self.facts.table[:, part])
        problems = {row: why for row, why in self.facts.problems.items() if row < count}
        facts = TimerFacts(table, problems, self.facts.precision_ms)
        return Unplaced(self.rows.rows(part), facts, self.queue_offset)
