# SPDX-License-Identifier: Apache-2.0
"""An open wheel looks at the pages in use only, and finds what a look at every slot finds."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from message_store.files.small_files import data_extents
from tests.timer_wheel.wheel_store_builder import write_wheel
from timer_wheel.format.wheel_file import SLOT, WHEEL_FILE_BYTES, WheelSlots, read_slots
from timer_wheel.format.wheel_math import WHEEL_SLOTS
from timer_wheel.wheel.slots import LiveWheel

HAND = 1_700_000_000
PAGE_SLOTS = 4096 // SLOT.size
#: Slots near the hand, a page or many pages away, a round away, and before the hand.
SLOTS = st.one_of(
    st.integers(HAND - 3, HAND + 2 * PAGE_SLOTS),
    st.integers(HAND - WHEEL_SLOTS, HAND + 2 * WHEEL_SLOTS),
)


def wheel_with(slots: dict[int, int]) -> LiveWheel:
    """A wheel whose slots hold one unit each, at these positions."""
    wheel = LiveWheel(1000, HAND * 1000)
    for slot, position in slots.items():
        wheel.set_slot(slot, np.array([position], np.int64), 1)
    return wheel


def image_of(slots: dict[int, int]) -> NDArray[np.void]:
    """The whole wheel file of these slots: every slot, used or not."""
    image = np.zeros(WHEEL_SLOTS, SLOT.dtype)
    for slot, position in slots.items():
        image[slot % WHEEL_SLOTS] = (slot, position, position, 1, 0)
    return image


@settings(max_examples=15)
@given(st.dictionaries(SLOTS, st.integers(0, 1 << 40), max_size=12), st.booleans())
def test_used_slots_are_those_that_a_look_at_every_slot_finds(
    slots: dict[int, int], is_written: bool
) -> None:
    wheel, times = wheel_with(slots), image_of(slots)["time_units"]
    if is_written:
        wheel.all_is_written()
        assert not wheel.dirty.any()
    held = np.sort(times[(times >= HAND) & (times < HAND + WHEEL_SLOTS)])
    assert wheel.used_slots().tolist() == held.tolist()
    until = HAND + WHEEL_SLOTS // 2
    assert wheel.used_slots(until * 1000).tolist() == held[held < until].tolist()
    beyond = np.sort(times[(times >= HAND) & (times < HAND + 3 * WHEEL_SLOTS)])
    assert wheel.held_slots((HAND + 3 * WHEEL_SLOTS) * 1000).tolist() == beyond.tolist()
    assert wheel.next_slot_ms() == (int(held[0]) * 1000 if len(held) else None)


@pytest.mark.check
@settings(max_examples=15)
@given(
    st.dictionaries(SLOTS, st.integers(0, 2000), max_size=8),
    st.dictionaries(SLOTS, st.integers(0, 2000), max_size=8),
    st.booleans(),
)
def test_pages_that_differ_are_those_that_a_comparison_of_every_slot_finds(
    here: dict[int, int], there: dict[int, int], is_alike: bool
) -> None:
    there = here | there if is_alike else there
    log_end = 1000
    wheel, file = wheel_with(here), image_of(there)
    ours = wheel.slots.copy()
    matters = (ours["time_units"] >= HAND) | (file["time_units"] >= HAND)
    matters |= file["last_position"] >= log_end
    words = SLOT.size // 8
    differs = (ours.view(np.int64) != file.view(np.int64)).reshape(-1, words).any(axis=1)
    expected = np.unique(np.flatnonzero(differs & matters) // PAGE_SLOTS)
    used = np.unique(np.flatnonzero(file.view(np.int64)) // words)
    wheel.note_differences(WheelSlots(used, file[used]), log_end)
    assert np.flatnonzero(wheel.dirty).tolist() == expected.tolist()


@pytest.mark.parametrize("is_sparse", [True, False])
def test_a_file_with_holes_and_one_without_hold_the_same(tmp_path: Path, is_sparse: bool) -> None:
    slots = {HAND + 700_000: 52, HAND: 104, HAND + 5: 156}
    image = image_of(slots)
    path = tmp_path / "timerwheel"
    write_wheel(path, {})
    with path.open("r+b") as file:
        for begin in range(0, WHEEL_FILE_BYTES, 4096):
            page = image.view(np.uint8)[begin : begin + 4096]
            if page.any() or not is_sparse:
                file.seek(begin)
                file.write(page.tobytes())
        file.flush()
        extents = list(data_extents(file.fileno(), 0, WHEEL_FILE_BYTES))
    assert (sum(end - begin for begin, end in extents) < 1 << 20) is is_sparse
    found = read_slots(path)
    assert found is not None
    assert found.index.tolist() == sorted(slot % WHEEL_SLOTS for slot in slots)
    assert np.array_equal(found.slots, image[found.index])
