# SPDX-License-Identifier: Apache-2.0
"""Walking the wheel as a broker does: from each slot's last unit back to the chain's end."""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.kernels.cache import kernel

END = -1
"""Where a chain ends."""
NOWHERE = -2
"""A position at which no unit begins."""

_SPARE_STEPS = 1 << 16


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], uint8[::1])")
def _walk(
    last: Any, previous: Any, units: Any, slots: Any, steps: Any, first: Any, broken: Any
) -> int:
    done = 0
    for slot in range(len(last)):
        unit = last[slot]
        first[slot] = unit
        while unit >= 0:
            if done == len(units):
                broken[slot:] = 1
                return done
            units[done] = unit
            slots[done] = slot
            done += 1
            steps[slot] += 1
            first[slot] = unit
            before = previous[unit]
            if before >= unit:
                before = NOWHERE
            unit = before
        broken[slot] = unit != END
    return done


@attrs.frozen(eq=False)
class Walk:
    """Every step of a walk over all slots.

    ``units[i]`` was reached from ``slots[i]``; a unit that two chains lead to is there twice. For
    each slot: ``steps`` taken, the ``first`` unit (the last one reached), and whether the chain was
    ``broken``: it leads to no unit, or not backwards, or all chains together have no end.
    """

    units: NDArray[np.int64]
    slots: NDArray[np.int64]
    steps: NDArray[np.int64]
    first: NDArray[np.int64]
    broken: NDArray[np.bool_]


def walk_chains(last: NDArray[np.int64], previous: NDArray[np.int64]) -> Walk:
    """Walk from the unit numbers ``last`` (one a slot) along ``previous`` (one a unit).

    ``END`` and ``NOWHERE`` stand for what is no unit. Chains that share units are walked each, up
    to a bound.
    """
    room = 2 * len(previous) + _SPARE_STEPS
    units, slots = np.empty(room, np.int64), np.empty(room, np.int64)
    steps, first = np.zeros(len(last), np.int64), np.full(len(last), NOWHERE, np.int64)
    broken = np.zeros(len(last), np.uint8)
    done = _walk(
        np.ascontiguousarray(last),
        np.ascontiguousarray(previous),
        units,
        slots,
        steps,
        first,
        broken,
    )
    return Walk(units[:done], slots[:done], steps, first, broken.astype(bool))
