# SPDX-License-Identifier: Apache-2.0
"""Where a conversion puts each message of a backlog on a fresh wheel, for millions at once.

A broker puts a message into the slot of its out time. So do we, with two exceptions, both to keep
a slot from becoming an avalanche: what is overdue is spread, in order of due time, over the 3,600
slots before now; what is beyond the roll window is spread, in order of out time, over the second
half of the window, where a broker would park it in one of two slots.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from timer_wheel.timer_log import FLAG_DEFAULT, FLAG_ROLL
from timer_wheel.wheel_math import Int64Array, floor_ms, needs_roll, out_ms

OVERDUE_SLOTS = 3600
"""How many slots before now take what is overdue."""


@attrs.frozen(eq=False)
class Placing:
    """Three arrays, one element a message, in the order in which the due times were given."""

    slot_time_ms: Int64Array
    flags: NDArray[np.int32]
    out_ms: Int64Array


def place(due_ms: Int64Array, *, now_ms: int, precision_ms: int, window_slots: int) -> Placing:
    """The slot, timer unit flags and TIMER_OUT_MS of each message.

    ``due_ms`` is in store order, which decides among equals. A pure function: the same due times
    and ``now_ms`` give the same slots. ``window_slots`` is the effective roll window.
    """
    write_time_ms = floor_ms(now_ms, precision_ms)
    out = out_ms(due_ms, precision_ms)
    slot_time_ms = out.copy()
    flags = np.full(len(due_ms), FLAG_DEFAULT, np.int32)
    if not len(out):
        return Placing(slot_time_ms, flags, out)

    if needs_roll(int(out.max()), write_time_ms, precision_ms, window_slots):
        rolled = np.flatnonzero(needs_roll(out, write_time_ms, precision_ms, window_slots))
        half = window_slots // 2
        first_ms = write_time_ms + half * precision_ms
        slots = _spread(out[rolled], window_slots - half)
        slot_time_ms[rolled] = first_ms + slots * precision_ms
        flags[rolled] |= FLAG_ROLL

    if int(out.min()) < write_time_ms:
        overdue = np.flatnonzero(out < write_time_ms)
        first_ms = write_time_ms - OVERDUE_SLOTS * precision_ms
        slots = _spread(due_ms[overdue], OVERDUE_SLOTS)
        slot_time_ms[overdue] = first_ms + slots * precision_ms
    return Placing(slot_time_ms, flags, out)


def _spread(keys: Int64Array, slot_count: int) -> Int64Array:
    """For each element a slot in ``range(slot_count)``: evenly, in order of key, then of place."""
    ranks = np.arange(len(keys), dtype=np.int64)
    slots = np.empty_like(ranks)
    slots[_stable_order(keys)] = ranks * slot_count // len(keys)
    return slots


def _stable_order(keys: Int64Array) -> Int64Array:
    """``argsort(kind="stable")``, four times faster where key and place fit one word."""
    places = np.arange(len(keys), dtype=np.int64)
    place_bits = len(keys).bit_length()
    lowest = int(keys.min())
    if int(keys.max()) - lowest >= 1 << (63 - place_bits):
        return np.argsort(keys, kind="stable")
    words = (keys - lowest) << place_bits | places
    words.sort()
    return words & ((1 << place_bits) - 1)
