# SPDX-License-Identifier: Apache-2.0
"""When a timed message is delivered: from the due time to TIMER_OUT_MS, and from there to the
promise.

A message whose due time is past is promised for now, which may be within a slot that is already
being read. Its out time ends in ``OVERDUE_MARK_MS``, which no other out time does: due since it was
stored. A broker looks at the slot only, and keeps the message until that is over.

A record of a hierarchical wheel says no more, and wheels of any width read it. A multiple of 100
means the end of its slot. A time that ends in 01 means at once. Any other is a millisecond before
the promise. A promise to the millisecond must not look like the first two, and is moved on where it
would (docs/FORMAT.md, hierarchical wheel).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from message_store.columns.byte_column import Int64s
from timer_wheel.format.wheel_math import PRECISIONS_MS, Int64Array, Times, floor_ms

OVERDUE_MARK_MS = 1
FINEST_MS = min(PRECISIONS_MS)


def overdue_out_ms(now_ms: int, hand_ms: int, precision_ms: int) -> int:
    """The out time of what is due at once: in a slot that no reader of the wheel has passed.

    >>> overdue_out_ms(7_437, 6_000, 1000), overdue_out_ms(7_437, 9_000, 1000)
    (7001, 9001)
    """
    return max(floor_ms(now_ms, precision_ms), hand_ms) + OVERDUE_MARK_MS


def was_due_when_stored(out_ms: Times) -> Any:
    """Whether an out time, or the time of a unit, says that the message was due when stored.

    >>> was_due_when_stored(7_001), was_due_when_stored(7_000)
    (True, False)
    """
    return out_ms % FINEST_MS == OVERDUE_MARK_MS


def promised_times(out_ms: Int64Array, store_ms: Int64Array, precision_ms: int) -> Int64Array:
    """When each message was promised for: the end of its slot, or when it was stored."""
    ends: Int64Array = floor_ms(out_ms, precision_ms) + precision_ms
    return np.where(was_due_when_stored(out_ms), store_ms, ends)


def may_be_promised(out_ms: Int64Array, due_ms: int, widths_ms: Int64Array) -> NDArray[np.bool_]:
    """Which of these out times mean the end of a slot at ``due_ms``, in slots as wide as when each
    message was stored (``OlderSlots.widths_of``): a receipt says it as it was then.
    """
    is_it = np.zeros(len(out_ms), bool)
    for precision_ms in PRECISIONS_MS:
        may_be = (widths_ms <= TO_THE_MILLISECOND) | (widths_ms % precision_ms == 0)
        is_it |= may_be & (out_ms + precision_ms == due_ms) & (out_ms % precision_ms == 0)
    return is_it


def write_times(slot_time_ms: Int64Array, now_ms: int, precision_ms: int) -> NDArray[np.int64]:
    """The placing time of each unit: now, or its slot's time if 32 bits cannot say the distance."""
    write_ms = floor_ms(now_ms, precision_ms)
    is_near = np.abs(slot_time_ms - write_ms) < 2**31
    return np.where(is_near, write_ms, slot_time_ms)


TO_THE_MILLISECOND = 1
HIERARCHY_PRECISIONS_MS = (*PRECISIONS_MS, TO_THE_MILLISECOND)
"""How wide a promise can be."""

_FIRST_FREE = 3


def fine_promise_ms(due_ms: Any) -> Any:
    """The promise that keeps a time to the millisecond: the time itself, 98 times of 100.

    >>> [fine_promise_ms(due_ms) for due_ms in (7_000, 7_001, 7_002, 7_003, 7_437)]
    [7000, 7003, 7003, 7003, 7437]
    """
    rest = due_ms % FINEST_MS
    is_taken = (rest == 1) | (rest == 2)
    return due_ms + is_taken * (_FIRST_FREE - rest)


def due_times(out_ms: Int64s, store_ms: Int64s, slot_precision_ms: int) -> Int64s:
    """When messages with these out times are promised for, if what is a multiple of 100 was stored
    by a wheel with slots of this width.

    >>> due_times(np.array([7_000, 7_001, 7_436]), np.array([6_900, 6_999, 6_900]), 1_000)
    array([8000, 6999, 7437])
    """
    ends = floor_ms(out_ms, slot_precision_ms) + slot_precision_ms
    times = np.where(out_ms % FINEST_MS == 0, ends, out_ms + 1)
    return np.where(was_due_when_stored(out_ms), store_ms, times)


def at_once_out_ms(now_ms: int) -> int:
    """The out time of what is due when it is stored.

    >>> at_once_out_ms(7_437)
    7401
    """
    return overdue_out_ms(now_ms, 0, FINEST_MS)
