# SPDX-License-Identifier: Apache-2.0
"""The slots of other widths that a wheel had before, and which records were stored for them.

A promise moves with each change: to the end of the first slot that ends at or after it.
"""

import math

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.columns.byte_column import Int64s, int64s

EXACT_MS = 1
"""The width to read facts with for keys of one time, and that of a hierarchical wheel."""

MOST_WIDTHS = 4
"""As many as the checkpoint has room for."""

MEANING_OF_WIDTHS = (
    "width of those slots in ms; the least common multiple where two were merged; 1: to the"
    " millisecond, as on a hierarchical wheel"
)
"""For the layouts that hold them."""


@attrs.frozen
class OlderSlots:
    """Records before each of these offsets of the log, the smallest first, were stored for slots of
    the width beside it: ``EXACT_MS`` means a hierarchical wheel.
    """

    untils: tuple[int, ...] = ()
    widths_ms: tuple[int, ...] = ()

    @property
    def until(self) -> int:
        """Records before this place of the log were stored for slots of another width."""
        return max(self.untils, default=0)

    def columns(self) -> tuple[Int64s, Int64s]:
        """The same for a kernel."""
        return np.array(self.untils, np.int64), np.array(self.widths_ms, np.int64)

    def first(self, count: int) -> "OlderSlots":
        """Only the first of them."""
        return OlderSlots(self.untils[:count], self.widths_ms[:count])

    def cut_to(self, log_end: int) -> "OlderSlots":
        """The same of a log that has lost its end."""
        return OlderSlots(tuple(min(each, log_end) for each in self.untils), self.widths_ms)

    def followed_by(self, until: int, width_ms: int) -> "OlderSlots":
        """These, and then slots that were in use up to a place of the log.

        Of more than there is room for the first two become one, with the multiple for its width: so
        what they cancelled stays so. Nothing of theirs may wait (``until_next_change``).
        """
        untils, widths_ms = (*self.untils, until), (*self.widths_ms, width_ms)
        if len(untils) <= MOST_WIDTHS:
            return OlderSlots(untils, widths_ms)
        return OlderSlots(untils[1:], (math.lcm(*widths_ms[:2]), *widths_ms[2:]))

    def with_room_for(self, first_offsets: Int64s) -> "OlderSlots":
        """Merge the two oldest widths into ``EXACT_MS`` if a pending message belongs to them; these
        are the first records of all that are pending. Cancels then match to the millisecond: none
        hits a neighbour; some old cancels are reported as delivered.
        """
        if not (first_offsets < self.until_next_change).any():
            return self
        return OlderSlots(self.untils[1:], (EXACT_MS, *self.widths_ms[2:]))

    @property
    def until_next_change(self) -> int:
        """Messages before this log offset would lose their slots' width with another change."""
        return self.untils[1] if len(self.untils) == MOST_WIDTHS else 0

    def number_of(self, first_offsets: Int64s) -> Int64s:
        """Which of these slots each record was stored for; their count for those of today.
        The same as ``number_of_older`` in kernels.
        """
        return int64s(np.searchsorted(int64s(self.untils), first_offsets, side="right"))

    def widths_of(self, first_offsets: Int64s, today_ms: int) -> Int64s:
        """How wide the slots were that each record was stored for, a multiple where widths were
        merged; ``EXACT_MS`` where nobody knows: slots of any width then.
        """
        widths_ms = int64s([*self.widths_ms, today_ms])[self.number_of(first_offsets)]
        return np.where(first_offsets < 0, EXACT_MS, widths_ms)

    def are_sure(self, first_offsets: Int64s) -> NDArray[np.bool_]:
        """Of which of these records ``widths_of`` is the width itself: not where widths were merged
        or nobody knows, nor of a hierarchical wheel, which has slots beside the millisecond.
        """
        numbers = self.number_of(first_offsets)
        is_sure = int64s([*self.widths_ms, 0])[numbers] != EXACT_MS
        is_merged = (numbers == 0) & (len(self.untils) == MOST_WIDTHS)
        return np.asarray(is_sure & ~is_merged & (first_offsets >= 0))

    def moved(self, promised_ms: int) -> set[int]:
        """What a promise in slots of any of these widths became; ``slot_of_older`` is among it."""
        moved = {promised_ms}
        for width_ms in self.widths_ms:
            moved |= {-(-each // width_ms) * width_ms for each in moved}
        return moved


NO_OLDER_SLOTS = OlderSlots()
