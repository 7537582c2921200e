# SPDX-License-Identifier: Apache-2.0
"""The latest times that a wheel keeps, and what it adds to a record that leaves a slot."""

import numpy as np

from message_store.columns.byte_column import ByteColumn, Int64s
from message_store.columns.property_column import join_property_columns
from message_store.format import properties as names


def wheel_stamps(enqueue_ms: Int64s, dequeue_ms: int, rolled: Int64s | None = None) -> ByteColumn:
    """What the wheel adds to a record that leaves a slot, for each row: when it was placed, when it
    was taken, and for those that roll how often they have.

    >>> list(wheel_stamps(np.array([7]), 9, np.array([1])))
    [b'TIMER_ENQUEUE_MS\\x017\\x02TIMER_DEQUEUE_MS\\x019\\x02TIMER_ROLL_TIMES\\x011\\x02']
    """
    columns = [enqueue_ms] if rolled is None else [enqueue_ms, rolled]
    is_new = np.ones(len(enqueue_ms), np.bool_)
    if len(is_new):  # neighbours are mostly alike: each different text is written once
        is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    enqueued = enqueue_ms[is_new]
    stamps = [
        (names.TIMER_ENQUEUE_MS, enqueued),
        (names.TIMER_DEQUEUE_MS, np.full(len(enqueued), dequeue_ms, np.int64)),
    ]
    if rolled is not None:
        stamps.append((names.TIMER_ROLL_TIMES, rolled[is_new]))
    return join_property_columns(stamps).take(np.cumsum(is_new) - 1)
