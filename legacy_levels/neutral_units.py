# SPDX-License-Identifier: Apache-2.0
"""Units of a level queue that nobody delivers any more: cancelled, or delivered out of turn.

RocketMQ's levels have no format for either. Such a unit points at the last one or two bytes of its
record. A broker finds no record there and skips it. The end of the entry stays where it was,
because from the last end a broker computes what it still has to index. The due time is kept.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from message_store.reading.consume_queue import BoolArray, UnitArray, is_pre_blank

CANCELLED_BYTES: Final = 1
"""Size of a unit whose message was cancelled."""
DELIVERED_BYTES: Final = 2
"""Size of a unit whose message was delivered before others in front of it."""
NEUTRAL_SIZES: Final = (CANCELLED_BYTES, DELIVERED_BYTES)


def is_neutral(units: UnitArray) -> BoolArray:
    """Which units nobody delivers."""
    return is_neutral_size(units["size_bytes"])


def is_neutral_size(size_bytes: NDArray[np.int32]) -> BoolArray:
    """Which sizes are those of such units."""
    return np.asarray((size_bytes == CANCELLED_BYTES) | (size_bytes == DELIVERED_BYTES))


def is_message(units: UnitArray) -> BoolArray:
    """Which units stand for a message: neither neutral nor only there to fill the queue."""
    return np.asarray((units["size_bytes"] > DELIVERED_BYTES) & ~is_pre_blank(units))
