# SPDX-License-Identifier: Apache-2.0
"""The chains of a fresh wheel: for each message the one before it in its slot, in one pass over the
backlog.
"""

from typing import Any

from message_store.kernel_cache import kernel


@kernel("void(int32[::1], int32[::1], int32[::1], int32[::1], int32[::1])")
def link_chains(slots: Any, distances: Any, first: Any, last: Any, counts: Any) -> None:
    """Walk the slot index of every message in store order.

    ``distances[i]`` becomes how many messages back the previous one of the same slot is, 0 when
    there is none. ``first``, ``last`` (filled with -1) and ``counts`` (zeros) are per slot of the
    wheel.
    """
    for i in range(len(slots)):
        slot = slots[i]
        before = last[slot]
        if before < 0:
            first[slot] = i
            distances[i] = 0
        else:
            distances[i] = i - before
        last[slot] = i
        counts[slot] += 1
