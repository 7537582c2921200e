# SPDX-License-Identifier: Apache-2.0
"""How wide the slots of a wheel are. A broker writes that nowhere: its slots tell, else its units,
else the records in its queue.

A slot holds its time divided by the width, and the last unit of its chain has that time. If that
unit can be read, the answer is certain. Otherwise the links of units tell, which join what shares a
slot, and their times, which are multiples of the width. Of several possible widths the coarsest is
taken: a width that is too coarse delivers late, one that is too fine delivers early.
"""

import numpy as np
from numpy.typing import NDArray

from timer_wheel.format.timer_due import FINEST_MS, was_due_when_stored
from timer_wheel.format.timer_log import TimerUnits
from timer_wheel.format.wheel_math import PRECISIONS_MS, Int64Array

_NO_UNIT = -1
_FEW, _MANY, _SHARE = 2, 16, 64
"""A damaged unit contradicts some widths, as its neighbours do that its links join: of many units
so many say nothing, or one in so many.
"""


def precision_of_slots(
    slots: NDArray[np.void], slot_time_ms: Int64Array, hand_ms: int
) -> int | None:
    """The width told by slots, rows of SLOT's dtype, and the times of their last units, -1 where
    none can be read; None when no slot tells.

    Slots that are yet to be read count before those that are over, which are never wiped.
    """
    time_units = slots["time_units"].astype(np.int64)
    is_used = (time_units > 0) & (slot_time_ms != _NO_UNIT)
    fits = [is_used & (slot_time_ms // ms == time_units) for ms in PRECISIONS_MS]
    for is_asked in (slot_time_ms >= hand_ms, np.ones(len(slots), bool)):
        votes = [int((fit & is_asked).sum()) for fit in fits]
        if any(votes):
            return PRECISIONS_MS[int(np.argmax(votes))]
    return None


def precision_of_units(units: TimerUnits, hand_ms: int) -> int | None:
    """The width that links and times of all units tell, unread ones first; None for nothing."""
    times = units.slot_time_ms
    write_ms = units.units["write_time_ms"].astype(np.int64)
    is_live = times >= hand_ms
    astray = [_links_astray(units, np.flatnonzero(is_live), ms) for ms in PRECISIONS_MS]
    asked = is_live if is_live.any() else np.ones(len(units), bool)
    return _coarsest([times[asked], write_ms[asked]], astray)


def precision_of_times(times: Int64Array) -> int | None:
    """The width told by the out times of records; None when nothing tells."""
    return _coarsest([times], [0] * len(PRECISIONS_MS))


def _coarsest(columns: list[Int64Array], astray: list[int]) -> int | None:
    """The coarsest width that next to nothing contradicts, neither links (``astray`` by width) nor
    times. Times that are no multiples of the finest width tell nothing.
    """
    tells = np.logical_or.reduce([times % FINEST_MS == 0 for times in columns])
    if not tells.any():
        return None
    against = [
        count + int(np.logical_or.reduce([_contradicts(times, ms) for times in columns]).sum())
        for ms, count in zip(PRECISIONS_MS, astray, strict=True)
    ]
    count = int(tells.sum())
    few = max(_FEW, count // _SHARE) if count >= _MANY else 0
    return next(
        ms for ms, each in zip(PRECISIONS_MS, against, strict=True) if each <= min(against) + few
    )


def _contradicts(times: Int64Array, precision_ms: int) -> NDArray[np.bool_]:
    is_it: NDArray[np.bool_] = (times % FINEST_MS == 0) & (times % precision_ms != 0)
    return is_it


def _links_astray(units: TimerUnits, live: Int64Array, precision_ms: int) -> int:
    """How many of these units lead to another slot, or nowhere although their slot goes on."""
    slots = units.slot_time_ms // precision_ms
    previous = units.units["previous_position"].astype(np.int64)[live]
    before = units.index_at(previous)
    leads = before >= 0
    is_astray = leads & (slots[before] != slots[live])
    order = np.lexsort((live, slots[live]))
    is_first = np.ones(len(live), bool)
    is_first[order[1:]] = slots[live][order[1:]] != slots[live][order[:-1]]
    is_cut = ~leads & ~is_first & ~was_due_when_stored(units.slot_time_ms[live])
    return int((is_astray | is_cut).sum())
