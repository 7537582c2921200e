# SPDX-License-Identifier: Apache-2.0
"""The chains of a fresh wheel: for each message the one before it in its slot, in one pass over the
backlog.
"""

from typing import Any

from message_store.kernels.cache import kernel
from timer_wheel.format.wheel_math import WHEEL_SLOTS


@kernel("void(int64[::1], int64, int32[::1], int32[::1], int32[::1], int32[::1])")
def link_chains(
    slot_times_ms: Any, precision_ms: int, distances: Any, first: Any, last: Any, counts: Any
) -> None:
    """Walk the slot time of every message in store order.

    ``distances[i]`` becomes how many messages back the previous one of the same slot is, 0 when
    there is none. ``first``, ``last`` (filled with -1) and ``counts`` (zeros) are per slot of the
    wheel.
    """
    for i in range(len(slot_times_ms)):
        slot = slot_times_ms[i] // precision_ms % WHEEL_SLOTS
        before = last[slot]
        if before < 0:
            first[slot] = i
            distances[i] = 0
        else:
            distances[i] = i - before
        last[slot] = i
        counts[slot] += 1
