# SPDX-License-Identifier: Apache-2.0
"""Walks the chains of many slots: from each slot's last unit backwards, given in order of placing.

One slot can hold half a million units, so this is a loop over single numbers: plain Python for a
small log, the same function compiled for a large one.
"""

from collections.abc import Callable
from functools import cache

import attrs
import numpy as np
from numpy.typing import NDArray

from timer_wheel.format.wheel_math import Int64Array

_WORTH_COMPILING = 20_000
"""From so many units on, loading the compiled walk takes less than walking without it."""

_SIGNATURE = "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], uint8[::1])"

UNUSED = -1


@attrs.frozen(eq=False)
class Chains:
    """The units of all slots: ``lengths[i]`` of ``unit_indexes`` are slot i's, oldest first.

    ``met`` has for each slot the unit at which its chain ran into one that had been walked before,
    or -1. A chain ends there; a broker would go on and deliver those units a second time.
    """

    unit_indexes: Int64Array
    lengths: Int64Array
    met: Int64Array


def walk_chains(heads: Int64Array, previous: Int64Array) -> Chains:
    """The chains that begin at ``heads``, one a slot.

    ``previous`` has for each unit the one placed before it. Both hold indexes of units, and -1 for
    none. A link that does not lead backwards ends its chain, so that damage cannot make a circle.
    """
    order = np.empty(len(previous), np.int64)
    lengths = np.zeros(len(heads), np.int64)
    met = np.full(len(heads), UNUSED, np.int64)
    walked = np.zeros(len(previous), np.uint8)
    walk = _compiled() if len(previous) >= _WORTH_COMPILING else _walk
    count = walk(heads, previous, order, lengths, met, walked)
    return Chains(order[:count], lengths, met)


@cache
def _compiled() -> Callable[..., int]:
    from message_store.kernels.cache import kernel

    return kernel(_SIGNATURE)(_walk)


def _walk(
    heads: Int64Array,
    previous: Int64Array,
    order: Int64Array,
    lengths: Int64Array,
    met: Int64Array,
    walked: NDArray[np.uint8],
) -> int:
    count = 0
    for slot in range(len(heads)):
        start = count
        unit = heads[slot]
        while 0 <= unit < len(previous):
            if walked[unit]:
                met[slot] = unit
                break
            walked[unit] = 1
            order[count] = unit
            count += 1
            before = previous[unit]
            if before >= unit:
                break
            unit = before
        lengths[slot] = count - start
        order[start:count] = order[start:count][::-1].copy()
    return count
