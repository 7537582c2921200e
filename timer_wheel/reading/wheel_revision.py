# SPDX-License-Identifier: Apache-2.0
"""Brings the slots of a wheel file up to its timer log, as a broker does when it starts.

The log is the truth and the file is behind it, at times far. Units are applied in their order: a
slot that holds the unit's time gets a new last position, any other is taken over by the unit.
Counts are left as they were; nothing that delivers looks at them.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from timer_wheel.format.timer_log import TimerUnits
from timer_wheel.format.wheel_file import SLOT, WheelSlots
from timer_wheel.format.wheel_math import WHEEL_SLOTS, Int64Array

NATIVE_SLOT = SLOT.dtype.newbyteorder("=")
"""A slot in the machine's own byte order, for arrays that are worked on."""


def revised_slots(
    wheel: WheelSlots,
    units: TimerUnits,
    *,
    begin_position: int,
    read_time_ms: int,
    precision_ms: int,
) -> WheelSlots:
    """The slots in use, in native byte order, once they agree with the units of the log.

    Only units from the file that holds ``begin_position`` on are applied. Where a slot that is yet
    to be read still points behind the end of the log, units are applied again from that slot's
    first one on.
    """
    revised = _apply(wheel, units, units.index_of_file(begin_position), precision_ms)
    slots = revised.slots
    time_units = slots["time_units"] - read_time_ms // precision_ms
    is_ahead = (time_units >= 0) & (time_units < WHEEL_SLOTS)
    dangling = slots[is_ahead & (slots["last_position"] > units.end_position)]
    first = int(dangling["first_position"].min()) if len(dangling) else units.end_position
    if first < units.end_position:
        revised = _apply(revised, units, units.index_of_file(first), precision_ms)
    return revised


def _apply(wheel: WheelSlots, units: TimerUnits, first_index: int, precision_ms: int) -> WheelSlots:
    return revise_slots(
        wheel, units.positions[first_index:], units.slot_time_ms[first_index:], precision_ms
    )


def revise_slots(
    wheel: WheelSlots, positions: Int64Array, slot_time_ms: Int64Array, precision_ms: int
) -> WheelSlots:
    """The slots in use, in native byte order, once these units are applied: all at once, and as if
    one after the other.
    """
    time_units = slot_time_ms // precision_ms
    is_used = np.zeros(WHEEL_SLOTS, np.bool_)
    is_used[wheel.index] = True
    is_used[time_units % WHEEL_SLOTS] = True
    used_index = np.flatnonzero(is_used)
    row_of = np.empty(WHEEL_SLOTS, np.int64)
    row_of[used_index] = np.arange(len(used_index), dtype=np.int64)
    slots = np.zeros(len(used_index), NATIVE_SLOT)
    slots[row_of[wheel.index]] = wheel.slots
    _revise(slots, row_of[time_units % WHEEL_SLOTS], positions, time_units)
    return attrs.evolve(wheel, index=used_index, slots=slots)


def _revise(
    slots: NDArray[np.void], index: Int64Array, positions: Int64Array, time_units: Int64Array
) -> None:
    """Apply units to ``slots`` in place; ``index`` is the row of each unit's slot."""
    places = np.arange(len(positions), dtype=np.int64)
    # Of equal indexes the last assignment stays: each slot's last unit, or its first from behind.
    newest = np.empty(len(slots), np.int64)
    newest[index] = places
    ousted_until = np.full(len(slots), -1, np.int64)
    is_ousted = time_units != time_units[newest[index]]
    ousted_until[index[is_ousted]] = places[is_ousted]
    staying = np.flatnonzero(places > ousted_until[index])[::-1]
    oldest = np.empty(len(slots), np.int64)
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
