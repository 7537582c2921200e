# SPDX-License-Identifier: Apache-2.0
"""Bringing slots up to the log: all at once gives what one unit after the other gives."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timer_wheel.format.timer_log import TIMER_UNIT, TimerUnits
from timer_wheel.format.wheel_file import SLOT, WheelSlots
from timer_wheel.format.wheel_math import WHEEL_SLOTS
from timer_wheel.reading.wheel_reader import NATIVE_SLOT, revise_slots, revised_slots

WRITE_TIME_MS = 1_700_000_000_000
#: 1700000000 % WHEEL_SLOTS: the slot of the write time.
HERE = 1_700_000_000 % WHEEL_SLOTS
ROUND_MS = WHEEL_SLOTS * 1000


def wheel_of(slots: dict[int, tuple[int, int, int]]) -> WheelSlots:
    """Slots by index, each (time in slots, first, last); their counts are 7."""
    rows = [(*slot, 7, 0) for _, slot in sorted(slots.items())]
    return WheelSlots(np.array(sorted(slots), np.int64), np.array(rows, SLOT.dtype))


def log_of(slot_times_ms: list[int]) -> TimerUnits:
    """One file of units for these slots."""
    units = np.zeros(len(slot_times_ms), TIMER_UNIT.dtype)
    units["write_time_ms"] = slot_times_ms
    start = np.zeros(1, np.int64)
    return TimerUnits(units, len(units) * 52, start, start, start)


def slot_at(wheel: WheelSlots, index: int) -> tuple[int, ...]:
    return tuple(int(number) for number in wheel.slot(index)[0])


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 2)).map(
            lambda place: WRITE_TIME_MS + place[0] * 1000 + place[1] * ROUND_MS
        ),
        max_size=40,
    ),
    st.dictionaries(st.integers(0, 5), st.integers(0, 2), max_size=6),
)
def test_all_at_once_is_one_after_the_other(
    slot_times_ms: list[int], rounds_there: dict[int, int]
) -> None:
    there = {
        HERE + place: (1_700_000_000 + place + rounds * WHEEL_SLOTS, -111, -222)
        for place, rounds in rounds_there.items()
    }
    expected = np.zeros(6, NATIVE_SLOT)
    for index, slot in there.items():
        expected[index - HERE] = (*slot, 7, 0)
    positions = np.arange(len(slot_times_ms), dtype=np.int64) * 52 + 1000
    for position, time_ms in zip(positions, slot_times_ms, strict=True):
        slot = expected[time_ms // 1000 % WHEEL_SLOTS - HERE]
        if slot["time_units"] != time_ms // 1000:
            slot["time_units"] = time_ms // 1000
            slot["first_position"] = position
        slot["last_position"] = position
    revised = revise_slots(wheel_of(there), positions, np.array(slot_times_ms, np.int64), 1000)
    used = np.flatnonzero(expected["time_units"])
    assert (revised.index - HERE).tolist() == used.tolist()
    assert np.array_equal(revised.slots, expected[used])


def test_a_slot_of_the_same_time_keeps_its_first_unit_and_its_count() -> None:
    wheel = wheel_of({HERE: (1_700_000_000, 0, 0)})
    revised = revised_slots(
        wheel,
        log_of([WRITE_TIME_MS, WRITE_TIME_MS]),
        begin_position=0,
        read_time_ms=WRITE_TIME_MS,
        precision_ms=1000,
    )
    assert slot_at(revised, HERE) == (1_700_000_000, 0, 52, 7, 0)


def test_a_slot_of_another_time_is_taken_over_and_keeps_its_count() -> None:
    wheel = wheel_of({HERE: (1_700_000_000 - WHEEL_SLOTS, 5, 6)})
    revised = revised_slots(
        wheel,
        log_of([WRITE_TIME_MS + 1000, WRITE_TIME_MS, WRITE_TIME_MS]),
        begin_position=0,
        read_time_ms=WRITE_TIME_MS,
        precision_ms=1000,
    )
    assert slot_at(revised, HERE) == (1_700_000_000, 52, 104, 7, 0)


def test_precision_decides_which_slot_a_unit_belongs_to() -> None:
    revised = revised_slots(
        wheel_of({}),
        log_of([WRITE_TIME_MS + 100]),
        begin_position=0,
        read_time_ms=WRITE_TIME_MS,
        precision_ms=100,
    )
    index = 17_000_000_001 % WHEEL_SLOTS
    assert slot_at(revised, index) == (17_000_000_001, 0, 0, 0, 0)


def test_the_slots_that_were_read_are_not_changed() -> None:
    wheel = wheel_of({HERE: (1_700_000_000, 0, 0)})
    before = wheel.slots.copy()
    revised_slots(
        wheel, log_of([WRITE_TIME_MS]), begin_position=0, read_time_ms=0, precision_ms=1000
    )
    assert np.array_equal(wheel.slots, before)


def two_files(slot_times_ms: list[int]) -> TimerUnits:
    """The first half in one file, the second in the next."""
    units = log_of(slot_times_ms)
    half = len(slot_times_ms) // 2
    starts = np.array([0, half * 52], np.int64)
    return TimerUnits(units.units, units.end_position, starts, starts, np.array([0, half]))


def revised_from_the_second_file(last: int, *, read_time_ms: int = WRITE_TIME_MS) -> int:
    """What becomes of a slot with units in the first file only that points at ``last``."""
    units = two_files([WRITE_TIME_MS, WRITE_TIME_MS, WRITE_TIME_MS + 1000, WRITE_TIME_MS + 1000])
    revised = revised_slots(
        wheel_of({HERE: (1_700_000_000, 0, last)}),
        units,
        begin_position=104,
        read_time_ms=read_time_ms,
        precision_ms=1000,
    )
    return slot_at(revised, HERE)[2]


def test_a_slot_that_points_behind_the_log_is_hung_on_its_last_unit_again() -> None:
    assert revised_from_the_second_file(last=52 * 9) == 52


def test_a_slot_that_points_into_the_log_is_believed() -> None:
    assert revised_from_the_second_file(last=0) == 0


def test_a_slot_that_is_done_may_point_anywhere() -> None:
    assert revised_from_the_second_file(52 * 9, read_time_ms=WRITE_TIME_MS + 1000) == 52 * 9


def test_a_slot_whose_every_unit_is_gone_stays_as_it_is() -> None:
    revised = revised_slots(
        wheel_of({HERE: (1_700_000_000, 520, 572)}),
        log_of([WRITE_TIME_MS + 1000]),
        begin_position=0,
        read_time_ms=WRITE_TIME_MS,
        precision_ms=1000,
    )
    assert slot_at(revised, HERE)[1:3] == (520, 572)
