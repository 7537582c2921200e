# SPDX-License-Identifier: Apache-2.0
"""The level table: a broker's rules for its line, and level ↔ delay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError
from message_store.format.delay_levels import DelayLevels, format_delay

DEFAULT = DelayLevels.parse()


def test_the_default_table_has_18_levels() -> None:
    seconds = [1, 5, 10, 30, *(60 * n for n in range(1, 11)), 1200, 1800, 3600, 7200]
    assert DEFAULT.delays_ms == tuple(1000 * second for second in seconds)
    assert DEFAULT.max_level == 18


@pytest.mark.parametrize(
    ("line", "delays_ms"),
    [
        ("1d", (86_400_000,)),
        ("5s 1s", (5_000, 1_000)),
        ("0s -1s +2s", (0, -1_000, 2_000)),
        ("1s  ", (1_000,)),
        ("007m", (420_000,)),
    ],
)
def test_what_a_broker_accepts(line: str, delays_ms: tuple[int, ...]) -> None:
    assert DelayLevels.parse(line).delays_ms == delays_ms


@pytest.mark.parametrize("line", ["", " 1s", "1s  5s", "1S", "1w", "s", "1.5s", "1s,5s", "10"])
def test_a_line_on_which_a_broker_would_not_start_is_refused(line: str) -> None:
    with pytest.raises(BadFieldError):
        DelayLevels.parse(line)


@pytest.mark.parametrize(("asked", "used"), [(-3, 0), (0, 0), (1, 1), (18, 18), (19, 18)])
def test_a_level_above_the_last_is_the_last(asked: int, used: int) -> None:
    assert DEFAULT.clamp(asked) == used
    if used:
        assert DEFAULT.asked(asked) == (used, DEFAULT.delay_ms(used))
    else:
        with pytest.raises(BadFieldError, match="no such delay level"):
            DEFAULT.asked(asked)


@pytest.mark.parametrize("level", [0, 19, -1])
def test_a_level_outside_the_table_has_no_delay(level: int) -> None:
    with pytest.raises(BadFieldError, match="1 to 18"):
        DEFAULT.delay_ms(level)
    assert DEFAULT.describe(level) == f"level {level} (not in the table)"


@pytest.mark.parametrize(
    ("delay_ms", "level"),
    [(0, 1), (1_000, 1), (1_001, 2), (7_200_000, 18), (7_200_001, None)],
)
def test_a_free_delay_gets_the_smallest_level_not_shorter(delay_ms: int, level: int | None) -> None:
    assert DEFAULT.smallest_not_shorter(delay_ms) == level


def test_levels_need_not_be_in_order_and_the_first_of_equals_is_taken() -> None:
    levels = DelayLevels.parse("10s 1s 5s 1s")
    assert levels.smallest_not_shorter(500) == 2
    assert levels.smallest_not_shorter(6_000) == 1


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30))
def test_a_table_is_read_back_from_its_line(seconds: list[int]) -> None:
    levels = DelayLevels(tuple(1000 * second for second in seconds))
    assert DelayLevels.parse(levels.text()) == levels


def test_a_delay_is_shown_in_the_largest_unit_that_divides_it() -> None:
    assert [format_delay(ms) for ms in (0, 1_000, 90_000, 3_600_000, 172_800_000, 7)] == [
        "0s",
        "1s",
        "90s",
        "1h",
        "2d",
        "7ms",
    ]
