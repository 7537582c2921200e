# SPDX-License-Identifier: Apache-2.0
"""Where a conversion puts its messages: the array function against the rules written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_wheel.format.wheel_math import PRECISIONS_MS, floor_ms, out_ms
from timer_wheel.placing import OVERDUE_SLOTS, place

NOW_MS = 1_700_000_000_123
CLOCK_MS = 1_700_000_000_000


def placed_one_by_one(
    dues: list[int], now_ms: int, precision_ms: int, window: int
) -> list[tuple[int, int, int]]:
    """The rules in plain words: (slot time, flags, out time) of each message."""
    clock_ms = floor_ms(now_ms, precision_ms)
    outs = [out_ms(due, precision_ms) for due in dues]
    rolled = [i for i, out in enumerate(outs) if out - clock_ms >= window * precision_ms]
    rolled.sort(key=lambda i: outs[i])
    overdue = sorted((i for i, out in enumerate(outs) if out < clock_ms), key=lambda i: dues[i])
    slots = list(outs)
    for rank, i in enumerate(rolled):
        ahead = window // 2 + rank * (window - window // 2) // len(rolled)
        slots[i] = clock_ms + ahead * precision_ms
    for rank, i in enumerate(overdue):
        slots[i] = clock_ms + (rank * 3600 // len(overdue) - 3600) * precision_ms
    is_rolled = set(rolled)
    return [(slots[i], 3 if i in is_rolled else 1, outs[i]) for i in range(len(dues))]


@given(
    st.lists(st.integers(-200_000, 700_000), max_size=60),
    st.sampled_from(PRECISIONS_MS),
    st.integers(2, 300),
)
def test_placing_follows_the_rules_and_keeps_its_laws(
    ahead_ms: list[int], precision_ms: int, window: int
) -> None:
    dues = [NOW_MS + ahead for ahead in ahead_ms]
    placing = place(
        np.array(dues, np.int64), now_ms=NOW_MS, precision_ms=precision_ms, window_slots=window
    )
    slots, flags, outs = (
        column.tolist() for column in (placing.slot_time_ms, placing.flags, placing.out_ms)
    )
    assert list(zip(slots, flags, outs, strict=True)) == placed_one_by_one(
        dues, NOW_MS, precision_ms, window
    )
    clock_ms = floor_ms(NOW_MS, precision_ms)
    assert all(slot % precision_ms == 0 for slot in slots)
    assert all(out < due <= out + precision_ms for due, out in zip(dues, outs, strict=True))
    assert all(slot >= clock_ms - OVERDUE_SLOTS * precision_ms for slot in slots)
    assert all(slot < clock_ms + window * precision_ms for slot in slots)
    # Order is kept: within the overdue and the rest by due time, within the rolled by out time.
    for is_chosen, times in [
        ([out < clock_ms for out in outs], dues),
        ([flag == 3 for flag in flags], outs),
        ([flag == 1 and out >= clock_ms for flag, out in zip(flags, outs, strict=True)], outs),
    ]:
        rows = sorted((t, i, s) for i, (t, s) in enumerate(zip(times, slots, strict=True)))
        chosen = [slot for _, i, slot in rows if is_chosen[i]]
        assert chosen == sorted(chosen)


def test_nothing_overdue_and_nothing_rolled_goes_to_its_own_slot() -> None:
    dues = np.array([CLOCK_MS + 1, CLOCK_MS + 1000, CLOCK_MS + 1001], np.int64)
    placing = place(dues, now_ms=NOW_MS, precision_ms=1000, window_slots=172_800)
    assert placing.slot_time_ms.tolist() == [CLOCK_MS, CLOCK_MS, CLOCK_MS + 1000]
    assert placing.flags.tolist() == [1, 1, 1]
    assert placing.flags.dtype == np.int32


def test_the_border_of_overdue_is_the_slot_of_now() -> None:
    dues = np.array([CLOCK_MS, CLOCK_MS + 1], np.int64)
    placing = place(dues, now_ms=NOW_MS, precision_ms=1000, window_slots=172_800)
    assert placing.slot_time_ms.tolist() == [CLOCK_MS - 3_600_000, CLOCK_MS]


def test_an_overdue_night_is_spread_over_an_hour() -> None:
    dues = CLOCK_MS - np.arange(36_000, dtype=np.int64) * 1000
    placing = place(dues, now_ms=NOW_MS, precision_ms=1000, window_slots=172_800)
    _, counts = np.unique(placing.slot_time_ms, return_counts=True)
    assert len(counts) == 3600
    assert set(counts) == {10}
    assert np.all(np.diff(placing.slot_time_ms) <= 0)


def test_a_month_of_rolls_is_spread_over_the_second_half_of_the_window() -> None:
    dues = CLOCK_MS + 30 * 86_400_000 + np.arange(172_800, dtype=np.int64)
    placing = place(dues, now_ms=NOW_MS, precision_ms=1000, window_slots=172_800)
    slots, counts = np.unique(placing.slot_time_ms, return_counts=True)
    assert set(counts) == {2}
    assert slots[0] == CLOCK_MS + 86_400_000
    assert slots[-1] == CLOCK_MS + 172_799_000


@pytest.mark.parametrize("oldest_ms", [1, CLOCK_MS - 10**9])
def test_equal_due_times_keep_store_order_however_far_apart_the_others_are(oldest_ms: int) -> None:
    """The fast order packs key and place into a word; a span too wide for that sorts plainly."""
    dues = np.array([CLOCK_MS - 5, oldest_ms, CLOCK_MS - 5, CLOCK_MS - 9] * 1000, np.int64)
    placing = place(dues, now_ms=NOW_MS, precision_ms=1000, window_slots=172_800)
    order = np.lexsort((np.arange(len(dues)), dues))
    assert np.all(np.diff(placing.slot_time_ms[order]) >= 0)


def test_a_span_too_wide_for_one_word_is_sorted_plainly() -> None:
    dues = np.array([CLOCK_MS - 5, -(2**61), CLOCK_MS - 5, CLOCK_MS - 9] * 2, np.int64)
    placing = place(dues, now_ms=NOW_MS, precision_ms=1000, window_slots=172_800)
    slots = placing.slot_time_ms.tolist()
    assert sorted(range(8), key=lambda i: slots[i]) == [1, 5, 3, 7, 0, 2, 4, 6]


def test_no_messages_have_no_places() -> None:
    placing = place(np.zeros(0, np.int64), now_ms=NOW_MS, precision_ms=1000, window_slots=60)
    assert len(placing.slot_time_ms) == len(placing.flags) == len(placing.out_ms) == 0
