# SPDX-License-Identifier: Apache-2.0
"""What is said of slots of older widths, one record at a time in a kernel and elsewhere in numpy,
is the same.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timer_wheel.format.older_slots import EXACT_MS, MOST_WIDTHS, OlderSlots
from timer_wheel.format.timer_due import was_due_when_stored
from timer_wheel.format.wheel_math import PRECISIONS_MS, floor_ms, out_ms
from timer_wheel.reading.record_kernel import number_of_older, slot_of_older

OFFSETS = st.integers(0, 50)
UNTILS = st.lists(OFFSETS, max_size=MOST_WIDTHS).map(sorted)
WIDTHS_MS = st.lists(st.sampled_from((EXACT_MS, *PRECISIONS_MS)), min_size=1, max_size=MOST_WIDTHS)


@given(UNTILS, st.lists(OFFSETS))
def test_a_record_is_of_the_same_slots_in_the_kernel_and_outside(
    untils: list[int], first_offsets: list[int]
) -> None:
    """Also where two changes were made at one place of the log."""
    older = OlderSlots(tuple(untils), (100,) * len(untils))
    columns = older.columns()
    found = [number_of_older(first, columns[0]) for first in first_offsets]
    assert older.number_of(np.array(first_offsets, np.int64)).tolist() == found


@given(st.data(), WIDTHS_MS, st.sampled_from(PRECISIONS_MS), st.integers(10_000, 20_000))
def test_where_the_kernel_finds_a_message_a_search_by_its_promise_looks(
    data: st.DataObject, widths_ms: list[int], precision_ms: int, due_ms: int
) -> None:
    """And that is not before the promise. What was overdue is found by its mark."""
    older = OlderSlots(tuple(range(1, len(widths_ms) + 1)), tuple(widths_ms))
    number = data.draw(st.integers(0, len(widths_ms) - 1))
    # Two widths that became one have a multiple; the records are of either.
    stored_for = [EXACT_MS] if widths_ms[number] == EXACT_MS else list(PRECISIONS_MS)
    width_ms = data.draw(st.sampled_from([w for w in stored_for if widths_ms[number] % w == 0]))
    slot_ms = out_ms(due_ms, width_ms)
    promised_ms = slot_ms + width_ms
    found_ms = slot_of_older(slot_ms, older.columns()[1], number, precision_ms)
    if was_due_when_stored(slot_ms):
        assert found_ms == slot_ms
        return
    found_ms = floor_ms(found_ms, precision_ms)
    assert found_ms in {out_ms(each, precision_ms) for each in older.moved(promised_ms)}
    assert found_ms + precision_ms >= promised_ms
