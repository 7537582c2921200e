# SPDX-License-Identifier: Apache-2.0
"""When a timed message comes on a hierarchical wheel: from what is asked for to TIMER_OUT_MS, and
back from a record's out time to the promise.

The out time is all that a record says, and wheels of any width read it: a multiple of 100 means the
end of its slot, one that ends in 01 means at once, any other is a millisecond before the promise.
A promise to the millisecond must not look like the first two, and is moved on where it would
(docs/FORMAT.md, hierarchical wheel).
"""

from typing import Any

import numpy as np

from message_store.columns.byte_column import Int64s
from timer_wheel.format.timer_due import FINEST_MS, is_overdue, overdue_out_ms
from timer_wheel.format.wheel_math import PRECISIONS_MS, floor_ms

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
    return np.where(is_overdue(out_ms), store_ms, times)


def at_once_out_ms(now_ms: int) -> int:
    """The out time of what is due when it is stored.

    >>> at_once_out_ms(7_437)
    7401
    """
    return overdue_out_ms(now_ms, 0, FINEST_MS)
