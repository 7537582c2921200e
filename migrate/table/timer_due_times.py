# SPDX-License-Identifier: Apache-2.0
"""When a message of the wheel is due for good, by its record: also after it has rolled."""

import numpy as np

from message_store.columns.byte_column import Int64s
from timer_wheel.format.timer_due import FINEST_MS, is_overdue, promised_times


def timer_due_times(
    out_ms: Int64s, store_ms: Int64s, row_due_ms: Int64s, precision_ms: int
) -> Int64s:
    """Of each record its TIMER_OUT_MS and when it was stored; ``row_due_ms`` and ``precision_ms``
    are what the wheel's reader says.

    A slot is delivered once it is over, so one precision after its time; what our own engine was
    given when it was due already, since it was stored. A hierarchical wheel, whose reader tells
    slots finer than any wheel's, knows it itself: its out times mean slots of another precision.
    """
    if precision_ms < FINEST_MS:
        return np.where(is_overdue(out_ms), store_ms, row_due_ms)
    return promised_times(out_ms, store_ms, precision_ms)
