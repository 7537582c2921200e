# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the timer wheel: due time → out time → slot, roll, and where reading begins.

A wheel is a ring of slots. Slot number ``(time / P) % ring`` holds what is out in the P
milliseconds from ``time`` on; P is the precision. A real ring has 1,209,600 slots; think of one
with 12 slots of 1000 ms and a roll window W of 6 slots. The clock is at 20,000, and five messages
are placed::

    message  due      out = ceil(due / P) * P - P   slot (out / P) % 12
    a        22,500   22,000                        10
    b        23,000   22,000                        10    a chain: b -> a
    c        25,001   25,000                        1
    d        25,999   25,000                        1     a chain: d -> c
    e        36,000   35,000                        15 slots ahead, beyond W: it must roll

A message W or more slots ahead is parked W slots ahead of the clock. If less than W/3 would remain
behind a whole W, it is parked W/2 ahead. For e, 9 of 15 remain: it is parked at 26,000, in slot 2.
The hand reads a slot when its P milliseconds are over: no message is early, none more than P late.
It steps over empty slots::

    slot            0    1    2    3    4    5    6    7    8    9    10   11
    clock 20,000    .    dc   e    .    .    .    .    .    .    .    ba   .     as placed
    clock 21,000    .    dc   e    .    .    .    .    .    .    .    ba   .     took 8: empty
    clock 22,000    .    dc   e    .    .    .    .    .    .    .    ba   .     took 9: empty
    clock 23,000    .    dc   e    .    .    .    .    .    .    .    (ba) .     took 10: a, b
    clock 26,000    .    (dc) e    .    .    .    .    .    .    .    (ba) .     took 1: c, d
    clock 27,000    .    (dc) (e)  .    .    .    .    .    .    e    (ba) .     took 2: e rolls
    clock 34,000    .    (dc) (e)  .    .    .    .    .    .    (e)  (ba) e     took 9: e is placed
    clock 35,000    .    (dc) (e)  .    .    .    .    .    .    (e)  (ba) e     10: skipped
    clock 36,000    .    (dc) (e)  .    .    .    .    .    .    (e)  (ba) (e)   took 11: e

a came 500 ms after its due time, b and e 0, c 999, d 1. At 27,000 e rolled: it became a new
record with 8 slots to go, and was parked at 33,000. At 34,000 one slot remained, and it got its
own. Rolling keeps records young in a log whose old files get deleted.

A slot is not wiped, hence the brackets. It remembers the whole time that it was used for; with
another time than the hand's it counts as empty. At 35,000 the hand asks slot 10 for 34,000, and
finds 22,000. When another time is placed in a slot, the old chain is out of reach for good. That is
why a ring is twice as long as a wheel may look ahead.

Everything here takes and gives whole milliseconds, one ``int`` or an array of ``int64``, and is
the same for both; times are not negative. Precision changes what a slot number means. A broker
stores it nowhere: who reads a wheel must know it (``wheel_reader.guess_precision``).
"""

from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

SLOTS_TOTAL = 7 * 24 * 3600
"""How many slots a wheel may look ahead (Java: slotsTotal), whatever the precision."""

WHEEL_SLOTS = 2 * SLOTS_TOTAL
"""How many slots the ring has."""

PRECISIONS_MS = (1000, 500, 200, 100)
"""What `timerPrecisionMs` can be, coarsest first."""

DEFAULT_PRECISION_MS = 1000
DEFAULT_ROLL_WINDOW_SLOTS = 2 * 24 * 3600

MARGIN_SLOTS = 60
"""A wheel is not used to its very end: this many slots stay free."""

Int64Array = NDArray[np.int64]
Times = TypeVar("Times", int, Int64Array)


def snap_precision(precision_ms: int) -> int:
    """The precision that a broker makes of the one it is given: the next lower of four, or 100.

    >>> [snap_precision(ms) for ms in (50, 199, 200, 999, 5000)]
    [100, 100, 200, 500, 1000]
    """
    return next((known for known in PRECISIONS_MS if known <= precision_ms), PRECISIONS_MS[-1])


def effective_roll_window(window_slots: int) -> int:
    """The roll window that a broker makes of `timerRollWindowSlot`.

    >>> effective_roll_window(172_800), effective_roll_window(1), effective_roll_window(604_741)
    (172800, 604740, 604740)
    """
    longest = SLOTS_TOTAL - MARGIN_SLOTS
    return longest if window_slots > longest or window_slots < 2 else window_slots


def floor_ms(time_ms: Times, precision_ms: int) -> Times:
    """The beginning of the slot that ``time_ms`` lies in; of the clock, Java's currWriteTimeMs."""
    return time_ms // precision_ms * precision_ms


def out_ms(due_ms: Times, precision_ms: int) -> Times:
    """The slot time that keeps the promise ``due_ms``: the property TIMER_OUT_MS.

    >>> [out_ms(due_ms, 1000) for due_ms in (7_000, 7_001, 7_999)]
    [6000, 7000, 7000]
    """
    return (due_ms - 1) // precision_ms * precision_ms


def promised_ms(out_ms: Times, precision_ms: int) -> Times:
    """When a slot is taken: once its milliseconds are over, which is at or after the due time.

    >>> promised_ms(out_ms(7_001, 1000), 1000)
    8000
    """
    return out_ms + precision_ms


def slot_index(time_ms: Times, precision_ms: int, wheel_slots: int = WHEEL_SLOTS) -> Times:
    """The place on the ring of a time.

    >>> slot_index(1_700_003_600_000, 1000), slot_index(26_000, 1000, wheel_slots=8)
    (515600, 2)
    """
    return time_ms // precision_ms % wheel_slots


@overload
def needs_roll(out_ms: int, write_time_ms: int, precision_ms: int, window_slots: int) -> bool: ...
@overload
def needs_roll(
    out_ms: Int64Array, write_time_ms: int, precision_ms: int, window_slots: int
) -> NDArray[np.bool_]: ...
def needs_roll(
    out_ms: int | Int64Array, write_time_ms: int, precision_ms: int, window_slots: int
) -> bool | NDArray[np.bool_]:
    """Whether a unit written at ``write_time_ms`` is beyond the roll window.

    >>> needs_roll(9_999, 4_000, 1000, 6), needs_roll(10_000, 4_000, 1000, 6)
    (False, True)
    """
    return out_ms - write_time_ms >= window_slots * precision_ms


def roll_slot_ms(out_ms: Times, write_time_ms: int, precision_ms: int, window_slots: int) -> Times:
    """Where a broker parks what needs to roll: half a window ahead, or a whole one.

    Half when less than a third of the window would remain after a whole one, so that the last
    hop is not a short one.

    >>> [roll_slot_ms(out_ms, 0, 1000, 6) for out_ms in (7_999, 8_000)]
    [3000, 6000]
    """
    beyond_ms = out_ms - write_time_ms - window_slots * precision_ms
    is_far = beyond_ms >= window_slots // 3 * precision_ms
    half = window_slots // 2
    return write_time_ms + (half + is_far * (window_slots - half)) * precision_ms


def effective_read_time_ms(last_read_ms: int, now_ms: int, precision_ms: int) -> int:
    """Where a starting broker's hand begins: its checkpoint, but never a wheel's length back.

    Slots before it are never read: what is pending in them is lost.
    """
    oldest_ms = floor_ms(now_ms, precision_ms) - (SLOTS_TOTAL - MARGIN_SLOTS) * precision_ms
    return max(last_read_ms, oldest_ms)


DAY_MS = 86_400_000
