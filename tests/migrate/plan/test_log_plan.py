# SPDX-License-Identifier: Apache-2.0
"""Where the records of a target log go: held to the rule said record by record."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate.plan.plan import LogPlan, plan_log

FILE_BYTES = 1000


def planned(sizes: list[int], part_bytes: int = 10_000) -> LogPlan:
    return plan_log(np.array(sizes, np.int64), file_bytes=FILE_BYTES, part_bytes=part_bytes)


def by_the_rule(sizes: list[int]) -> list[int]:
    """A record goes where eight bytes stay free behind it, or else into the next file."""
    offsets, position = [], 0
    for size in sizes:
        if position % FILE_BYTES + size + 8 > FILE_BYTES:
            position += FILE_BYTES - position % FILE_BYTES
        offsets.append(position)
        position += size
    return offsets


# Never 0: a broker's record has 91 bytes at least.
ROWS = st.lists(st.integers(1, FILE_BYTES - 8), max_size=60)


@given(ROWS, st.integers(1, 3 * FILE_BYTES))
def test_records_lie_where_a_broker_would_append_them(sizes: list[int], part_bytes: int) -> None:
    assert planned(sizes, part_bytes).offsets.tolist() == by_the_rule(sizes)


@given(ROWS, st.integers(1, 3 * FILE_BYTES))
def test_parts_cover_every_record_once_and_stay_within_a_file(
    sizes: list[int], part_bytes: int
) -> None:
    plan = planned(sizes, part_bytes)
    expected_first = 0
    for part in plan.parts:
        first, end = int(part["first"]), int(part["end"])
        assert first == expected_first < end
        assert part["log_offset"] == plan.offsets[first]
        assert part["log_end"] == plan.offsets[end - 1] + sizes[end - 1]
        assert plan.offsets[first] // FILE_BYTES == plan.offsets[end - 1] // FILE_BYTES
        # a part is about so long: never a whole record longer
        assert plan.offsets[end - 1] - plan.offsets[first] < part_bytes + max(sizes)
        expected_first = end
    assert expected_first == len(sizes)


@given(ROWS, st.integers(1, 3 * FILE_BYTES))
def test_exactly_the_last_part_of_a_full_file_has_its_blank(
    sizes: list[int], part_bytes: int
) -> None:
    parts = planned(sizes, part_bytes).parts
    for part, after in pairwise(parts):
        if part["log_offset"] // FILE_BYTES == after["log_offset"] // FILE_BYTES:
            assert part["blank_bytes"] == 0
        else:
            assert part["log_end"] + part["blank_bytes"] == after["log_offset"]
            assert part["blank_bytes"] >= 8
    assert all(part["blank_bytes"] == 0 for part in parts[-1:])


@pytest.mark.parametrize(
    ("sizes", "offsets", "blanks"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([992], [0], [0], id="one record that fills its file, and no blank after it"),
        pytest.param([992, 1], [0, 1000], [8, 0], id="a blank of exactly eight bytes"),
        pytest.param([500, 492, 1], [0, 500, 1000], [8, 0], id="two records up to the blank"),
        pytest.param([500, 493], [0, 1000], [500, 0], id="a byte too long for the blank"),
        pytest.param([992, 992], [0, 1000], [8, 0], id="a file each"),
    ],
)
def test_the_edge_of_a_file(sizes: list[int], offsets: list[int], blanks: list[int]) -> None:
    plan = planned(sizes)
    assert plan.offsets.tolist() == offsets
    assert plan.parts["blank_bytes"].tolist() == blanks
    assert plan.end_offset == (offsets[-1] + sizes[-1] if sizes else 0)


@given(ROWS, st.integers(1, 3 * FILE_BYTES), st.integers(1, 3 * FILE_BYTES))
def test_the_length_of_parts_moves_no_record(sizes: list[int], some: int, other: int) -> None:
    assert planned(sizes, some).offsets.tolist() == planned(sizes, other).offsets.tolist()
    assert planned(sizes, some).end_offset == planned(sizes, other).end_offset


def test_records_that_get_no_room_do_not_stop_the_row() -> None:
    plan = planned([0, 0, 992, 0, 400, 0])
    assert plan.offsets.tolist() == [0, 0, 0, 992, 1000, 1400]
    assert plan.end_offset == 1400
