# SPDX-License-Identifier: Apache-2.0
"""Which records go to which log file, and which numbers they get there: nobody's number depends on
how many of another file are bad.
"""

from itertools import pairwise

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from migrate.plan.plan import Cut, Plan, cut_files
from migrate.plan.target_rows import arrange
from migrate.settings import TargetSettings

FILE_BYTES = 1000
ROOM = FILE_BYTES - 8
SIZES = st.lists(st.integers(1, ROOM), max_size=80)


def plan_of(most_bytes: list[int], sources: int = 1) -> Plan:
    """A plan of records of at most these lengths; of the rest nothing is looked at."""
    count, sizes = len(most_bytes), np.array(most_bytes, np.int64)
    numbers = np.arange(count)
    bounds = [0, *sorted(count * each // sources for each in range(1, sources)), count]
    return Plan(
        identity="one",
        now_ms=0,
        settings=TargetSettings(commit_log_file_bytes=FILE_BYTES),
        chosen=numbers,
        source_offsets=numbers,
        source_sizes=sizes.astype(np.int32),
        levels=np.ones(count, np.int16),
        due_ms=numbers,
        outs_ms=numbers,
        most_bytes=sizes,
        cut=Cut(cut_files(sizes, FILE_BYTES), bounds),
    )


@given(SIZES)
def test_a_file_holds_its_records_and_no_more_files_than_needed_are_made(sizes: list[int]) -> None:
    bounds = cut_files(np.array(sizes, np.int64), FILE_BYTES)
    lengths = [sum(sizes[one:other]) for one, other in pairwise(bounds)]
    assert bounds[0] == 0
    assert bounds[-1] == len(sizes)
    assert bounds == sorted(bounds)
    assert sum(lengths) == sum(sizes)
    assert all(length <= ROOM for length in lengths)
    least = -(-sum(sizes) // ROOM)
    assert least <= len(lengths) <= max(1, 2 * least + 1)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_small_records_are_cut_into_as_few_files_about_equally_long(sizes: list[int]) -> None:
    bounds = cut_files(np.array(sizes, np.int64), FILE_BYTES)
    lengths = [sum(sizes[one:other]) for one, other in pairwise(bounds)]
    assert len(lengths) <= -(-sum(sizes) // (ROOM - max(sizes)))
    assert max(lengths) - min(lengths) <= 2 * max(sizes)


def test_records_that_get_no_room_are_cut_too() -> None:
    assert cut_files(np.zeros(5, np.int64), FILE_BYTES) == [0, 5]
    assert cut_files(np.array([0, 992, 0, 992, 0]), FILE_BYTES) == [0, 3, 5]


@given(SIZES, st.data())
def test_every_good_record_has_one_place_and_every_file_its_own_numbers(
    most_bytes: list[int], data: st.DataObject
) -> None:
    plan = plan_of(most_bytes)
    shorter = data.draw(st.integers(0, 30))
    sizes = np.array([max(1, each - shorter) for each in most_bytes], np.int32)
    for at in data.draw(st.sets(st.integers(0, len(sizes) - 1), max_size=6)) if most_bytes else ():
        sizes[at] = 0
    found = arrange(plan, sizes)
    assume(found is not None)
    assert found is not None
    assert sorted(found.messages) == np.flatnonzero(sizes).tolist()
    messages = np.array(found.messages, np.int64)
    ends = found.offsets + sizes[messages]
    assert (found.offsets[1:] >= ends[:-1]).all()
    assert found.log_end == (ends[-1] if len(ends) else 0)
    for file in range(plan.cut.file_count):
        start = file * FILE_BYTES
        first, end = np.searchsorted(found.offsets, [start, start + FILE_BYTES])
        assert first == plan.cut.files[file]
        own = messages[first:end]
        assert (np.diff(own) > 0).all()
        assert set(own.tolist()) - set(plan.cut.rows_of(file)) <= set(
            range(plan.cut.reserve, len(plan))
        )
        assert found.offsets[first] == start
        assert (found.offsets[first + 1 : end] == ends[first : end - 1]).all()
        assert ends[end - 1] <= start + ROOM


@given(SIZES)
def test_where_all_are_good_the_order_is_that_of_the_plan(most_bytes: list[int]) -> None:
    found = arrange(plan_of(most_bytes), np.array(most_bytes, np.int32))
    assert found is not None
    assert list(found.messages) == list(range(len(most_bytes)))


def test_bad_records_are_made_up_for_by_the_reserve_until_it_is_spent() -> None:
    plan = plan_of([100] * 40)
    assert (plan.cut.files, plan.cut.reserve) == ([0, 8, 16, 24, 32, 40], 36)
    sizes = np.full(40, 100, np.int32)
    sizes[[1, 9, 10, 37]] = 0
    found = arrange(plan, sizes)
    assert found is not None
    held = [0, *range(2, 8), 36, 8, *range(11, 16), 38, 39]
    assert list(found.messages) == [*held, *range(16, 36)]
    sizes[2] = 0
    assert arrange(plan, sizes) is None


def test_a_reserve_that_does_not_fit_where_it_is_needed_is_no_help() -> None:
    plan = plan_of([124] * 7 + [124] + [124] * 7 + [62] + [124] * 4)
    sizes = plan.most_bytes.astype(np.int32)
    sizes[plan.cut.files[1] - 1] = 0
    sizes[plan.cut.reserve :] = 900
    assert arrange(plan, sizes) is None


def test_one_file_has_no_reserve() -> None:
    assert plan_of([100] * 5).cut.reserve == 5


@given(SIZES, st.integers(1, 9), st.data())
def test_the_runs_of_the_sources_are_all_of_the_queue_and_hold_their_messages_alone(
    most_bytes: list[int], sources: int, data: st.DataObject
) -> None:
    plan = plan_of(most_bytes, sources)
    sizes = plan.most_bytes.astype(np.int32)
    for at in data.draw(st.sets(st.integers(0, len(sizes) - 1), max_size=6)) if most_bytes else ():
        sizes[at] = 0
    found = arrange(plan, sizes)
    assume(found is not None)
    assert found is not None
    runs = found.runs(plan.cut, FILE_BYTES)
    assert len(runs) == sources
    rows = sorted((run.start, run.stop) for of_source in runs for run in of_source)
    assert [row for first, end in rows for row in range(first, end)] == list(
        range(len(found.messages))
    )
    for of_source, (first, end) in zip(runs, pairwise(plan.cut.sources), strict=True):
        held = [int(each) for run in of_source for each in found.messages[run]]
        assert sorted(held) == [at for at in range(first, end) if sizes[at]]
        assert all(one.stop < other.start for one, other in pairwise(of_source))


def test_messages_are_told_apart_by_source() -> None:
    cut = Cut([0, 10], [0, 3, 3, 10])
    assert list(cut.runs(range(10))) == [(0, 0, 3), (2, 3, 10)]
    assert list(cut.runs(range(2, 4))) == [(0, 2, 3), (2, 3, 4)]
    assert list(cut.runs(range(0))) == []
