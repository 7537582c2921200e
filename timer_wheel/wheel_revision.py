# SPDX-License-Identifier: Apache-2.0
"""Brings the slots of a wheel file up to its timer log, as a broker does when it starts.

The log is the truth and the file is behind it, at times far. Units are applied in their order: a
slot that holds the unit's time gets a new last position, any other is taken over by the unit.
Counts are left as they were; nothing that delivers looks at them.
"""

import numpy as np
from numpy.typing import NDArray

from timer_wheel.timer_log import TimerUnits
from timer_wheel.wheel_file import SLOT
from timer_wheel.wheel_math import WHEEL_SLOTS, Int64Array

NATIVE_SLOT = SLOT.dtype.newbyteorder("=")
"""A slot in the machine's own byte order, for arrays that are worked on."""


def revised_slots(
    slots: NDArray[np.void],
    units: TimerUnits,
    *,
    begin_position: int,
    read_time_ms: int,
    precision_ms: int,
) -> NDArray[np.void]:
    """A copy of ``slots``, in native byte order, that agrees with the units of the log.

    Only units from the file that holds ``begin_position`` on are applied. Where a slot that is yet
    to be read still points behind the end of the log, units are applied again from that slot's
    first one on.
    """
    revised = slots.astype(NATIVE_SLOT)
    _apply(revised, units, units.index_of_file(begin_position), precision_ms)
    time_units = revised["time_units"] - read_time_ms // precision_ms
    is_ahead = (time_units >= 0) & (time_units < WHEEL_SLOTS)
    dangling = revised[is_ahead & (revised["last_position"] > units.end_position)]
    first = int(dangling["first_position"].min()) if len(dangling) else units.end_position
    if first < units.end_position:
        _apply(revised, units, units.index_of_file(first), precision_ms)
    return revised


def _apply(slots: NDArray[np.void], units: TimerUnits, first_index: int, precision_ms: int) -> None:
    revise_slots(
        slots, units.positions[first_index:], units.slot_time_ms[first_index:], precision_ms
    )


def revise_slots(
    slots: NDArray[np.void], positions: Int64Array, slot_time_ms: Int64Array, precision_ms: int
) -> None:
    """Apply units to native ``slots`` in place, all at once and as if one after the other."""
    if not len(positions):
        return
    time_units = slot_time_ms // precision_ms
    index = time_units % WHEEL_SLOTS
    places = np.arange(len(positions), dtype=np.int64)
    # Of equal indexes the last assignment stays: each slot's last unit, or its first from behind.
    newest = np.empty(WHEEL_SLOTS, np.int64)
    newest[index] = places
    ousted_until = np.full(WHEEL_SLOTS, -1, np.int64)
    is_ousted = time_units != time_units[newest[index]]
    ousted_until[index[is_ousted]] = places[is_ousted]
    staying = np.flatnonzero(places > ousted_until[index])[::-1]
    oldest = np.empty(WHEEL_SLOTS, np.int64)
    oldest[index[staying]] = staying

    last = np.flatnonzero(newest[index] == places)
    used = index[last]
    is_continued = slots["time_units"][used] == time_units[last]
    is_continued &= ousted_until[used] < 0
    slots["first_position"][used] = np.where(
        is_continued, slots["first_position"][used], positions[oldest[used]]
    )
    slots["last_position"][used] = positions[last]
    slots["time_units"][used] = time_units[last]
