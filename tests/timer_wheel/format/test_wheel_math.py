# SPDX-License-Identifier: Apache-2.0
"""The wheel's arithmetic: tables of a broker's own answers, and arrays equal to single numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_wheel.format import wheel_math
from timer_wheel.format.wheel_math import (
    PRECISIONS_MS,
    SLOTS_TOTAL,
    effective_read_time_ms,
    effective_roll_window,
    floor_ms,
    needs_roll,
    out_ms,
    promised_ms,
    roll_slot_ms,
    slot_index,
    snap_precision,
)

WEEK_S = 7 * 86_400

times = st.integers(0, 4_000_000_000_000)
precisions = st.sampled_from(PRECISIONS_MS)
windows = st.integers(2, SLOTS_TOTAL - 60)


@pytest.mark.parametrize(
    ("due_ms", "precision_ms", "expected_ms"),
    [
        (1_700_003_600_000, 1000, 1_700_003_599_000),
        (1_700_003_600_001, 1000, 1_700_003_600_000),
        (1_700_003_600_999, 1000, 1_700_003_600_000),
        (1_700_003_600_000, 100, 1_700_003_599_900),
        (1_700_003_600_001, 200, 1_700_003_600_000),
        (1_700_003_600_499, 500, 1_700_003_600_000),
        (1_700_003_600_501, 500, 1_700_003_600_500),
    ],
)
def test_a_due_time_becomes_the_slot_before_it(
    due_ms: int, precision_ms: int, expected_ms: int
) -> None:
    assert out_ms(due_ms, precision_ms) == expected_ms


@pytest.mark.parametrize(
    ("given_ms", "snapped_ms"),
    [
        (-1, 100),
        (0, 100),
        (100, 100),
        (199, 100),
        (200, 200),
        (499, 200),
        (500, 500),
        (999, 500),
        (1000, 1000),
        (60_000, 1000),
    ],
)
def test_precision_snaps_down(given_ms: int, snapped_ms: int) -> None:
    assert snap_precision(given_ms) == snapped_ms


@pytest.mark.parametrize(
    ("given_slots", "slots"),
    [
        (172_800, 172_800),
        (2, 2),
        (1, 604_740),
        (0, 604_740),
        (-5, 604_740),
        (604_740, 604_740),
        (604_741, 604_740),
    ],
)
def test_an_impossible_roll_window_becomes_the_longest(given_slots: int, slots: int) -> None:
    assert effective_roll_window(given_slots) == slots


@pytest.mark.parametrize(
    ("time_ms", "precision_ms", "index"),
    [
        (1_700_003_600_000, 1000, 515_600),
        (1_700_003_600_999, 1000, 515_600),
        (1_700_003_600_000 + 2 * WEEK_S * 1000, 1000, 515_600),
        (1_700_003_600_000, 100, 17_000_036_000 % 1_209_600),
        (0, 1000, 0),
    ],
)
def test_a_time_has_one_place_on_the_ring(time_ms: int, precision_ms: int, index: int) -> None:
    assert slot_index(time_ms, precision_ms) == index


@pytest.mark.parametrize(
    ("ahead_s", "window", "parked_s"),
    [
        (172_799, 172_800, None),
        (172_800, 172_800, 86_400),
        (216_000, 172_800, 86_400),
        (172_800 + 57_599, 172_800, 86_400),
        (172_800 + 57_600, 172_800, 172_800),
        (259_200, 172_800, 172_800),
        (10, 10, 5),
        (13, 10, 10),
        # A window that neither 2 nor 3 divides: both divisions are whole ones.
        (11, 11, 5),
        (13, 11, 5),
        (14, 11, 11),
        (2, 2, 2),
    ],
)
def test_what_is_beyond_the_window_is_parked_half_or_whole_a_window_ahead(
    ahead_s: int, window: int, parked_s: int | None
) -> None:
    now_ms = 1_700_000_001_000
    due_out_ms = now_ms + ahead_s * 1000
    assert needs_roll(due_out_ms, now_ms, 1000, window) == (parked_s is not None)
    if parked_s is not None:
        assert roll_slot_ms(due_out_ms, now_ms, 1000, window) == now_ms + parked_s * 1000


@pytest.mark.parametrize(
    ("last_read_ms", "now_ms", "precision_ms", "expected_ms"),
    [
        (1_700_000_000_000, 1_700_000_005_999, 1000, 1_700_000_000_000),
        (0, 1_700_000_005_999, 1000, 1_700_000_005_000 - (WEEK_S - 60) * 1000),
        (0, 1_700_000_005_999, 100, 1_700_000_005_900 - (WEEK_S - 60) * 100),
        (1_800_000_000_000, 1_700_000_000_000, 1000, 1_800_000_000_000),
    ],
)
def test_reading_begins_at_the_checkpoint_but_never_a_wheel_back(
    last_read_ms: int, now_ms: int, precision_ms: int, expected_ms: int
) -> None:
    assert effective_read_time_ms(last_read_ms, now_ms, precision_ms) == expected_ms


@given(times, precisions)
def test_nothing_is_early_and_nothing_is_later_than_the_precision(
    due_ms: int, precision_ms: int
) -> None:
    slot_ms = out_ms(due_ms, precision_ms)
    assert slot_ms < due_ms <= promised_ms(slot_ms, precision_ms) < due_ms + precision_ms
    # The definition: the due time rounded up to a slot, less one.
    assert slot_ms == -(-due_ms // precision_ms) * precision_ms - precision_ms


@given(st.lists(times, max_size=20), times, precisions, windows)
def test_arrays_give_what_single_numbers_give(
    dues: list[int], now_ms: int, precision_ms: int, window: int
) -> None:
    array = np.array(dues, np.int64)
    clock_ms = floor_ms(now_ms, precision_ms)
    for of_array, of_one in [
        (out_ms(array, precision_ms), [out_ms(due, precision_ms) for due in dues]),
        (promised_ms(array, precision_ms), [promised_ms(due, precision_ms) for due in dues]),
        (floor_ms(array, precision_ms), [floor_ms(due, precision_ms) for due in dues]),
        (slot_index(array, precision_ms), [slot_index(due, precision_ms) for due in dues]),
        (
            roll_slot_ms(array, clock_ms, precision_ms, window),
            [roll_slot_ms(due, clock_ms, precision_ms, window) for due in dues],
        ),
    ]:
        assert of_array.dtype == np.int64
        assert of_array.tolist() == of_one
    rolls = needs_roll(array, clock_ms, precision_ms, window)
    assert rolls.tolist() == [needs_roll(due, clock_ms, precision_ms, window) for due in dues]


@given(times, precisions, windows, st.integers(0, 10**10))
def test_a_roll_is_within_the_window_and_before_its_end(
    now_ms: int, precision_ms: int, window: int, beyond_ms: int
) -> None:
    clock_ms = floor_ms(now_ms, precision_ms)
    end_ms = clock_ms + window * precision_ms + floor_ms(beyond_ms, precision_ms)
    parked_ms = roll_slot_ms(end_ms, clock_ms, precision_ms, window)
    assert clock_ms < parked_ms <= min(end_ms, clock_ms + window * precision_ms)


def test_the_small_wheel_of_the_explanation_turns_as_it_says() -> None:
    ring, window, clock_ms = 12, 6, 20_000
    dues = {"a": 22_500, "b": 23_000, "c": 25_001, "d": 25_999, "e": 36_000}
    slots: dict[int, tuple[int, str]] = {}
    late_ms: dict[str, int] = {}
    seen: list[str] = []

    def put(name: str) -> None:
        slot_ms = out_ms(dues[name], 1000)
        if needs_roll(slot_ms, clock_ms, 1000, window):
            slot_ms = roll_slot_ms(slot_ms, clock_ms, 1000, window)
        old_ms, chain = slots.get(slot_index(slot_ms, 1000, ring), (slot_ms, ""))
        slots[slot_index(slot_ms, 1000, ring)] = (
            slot_ms,
            name + (chain if old_ms == slot_ms else ""),
        )

    for name in "abcde":
        put(name)
    for hand_ms in range(20_000, 36_000, 1000):
        clock_ms = promised_ms(hand_ms, 1000)
        index = slot_index(hand_ms, 1000, ring)
        slot_ms, chain = slots.get(index, (-1, ""))
        if slot_ms != hand_ms:
            continue
        seen.append(f"clock {clock_ms:,}: slot {index}: {chain}")
        for name in reversed(chain):
            if out_ms(dues[name], 1000) == hand_ms:
                late_ms[name] = clock_ms - dues[name]
            else:
                put(name)
    assert late_ms == {"a": 500, "b": 0, "c": 999, "d": 1, "e": 0}
    assert seen == [
        "clock 23,000: slot 10: ba",
        "clock 26,000: slot 1: dc",
        "clock 27,000: slot 2: e",
        "clock 34,000: slot 9: e",
        "clock 36,000: slot 11: e",
    ]
    assert "b and e 0, c 999, d 1" in str(wheel_math.__doc__)
