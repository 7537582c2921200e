# SPDX-License-Identifier: Apache-2.0
"""What a level has due, compared with a list that is searched from end to end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legacy_levels.engine.cursor import NEVER_MS, DueRuns, LevelCursor, find_record_end
from legacy_levels.neutral_units import CANCELLED_BYTES, DELIVERED_BYTES
from tests.legacy_levels.unit_lists import RECORD_BYTES, UnitList


def due(cursor: LevelCursor, now_ms: int) -> list[int]:
    return cursor.due_entries(now_ms).queue_offset.tolist()


def take(cursor: LevelCursor, now_ms: int) -> list[int]:
    entries = cursor.due_entries(now_ms)
    cursor.delivered(entries)
    return entries.queue_offset.tolist()


def test_what_is_due_is_taken_from_the_head() -> None:
    cursor = LevelCursor(3, UnitList([10, 20, 20, 30]))
    assert due(cursor, 9) == []
    assert take(cursor, 20) == [0, 1, 2]
    assert (cursor.head, cursor.next_due_ms) == (3, 30)
    assert take(cursor, 20) == []
    assert take(cursor, 30) == [3]
    assert (cursor.head, cursor.next_due_ms) == (4, NEVER_MS)


def test_an_entry_behind_a_later_one_comes_at_its_own_time() -> None:
    cursor = LevelCursor(1, UnitList([100, 50, 100]))
    assert cursor.next_due_ms == 50
    assert take(cursor, 50) == [1]
    assert (cursor.head, cursor.done.tolist(), cursor.next_due_ms) == (0, [1], 100)
    assert take(cursor, 99) == []
    assert take(cursor, 100) == [0, 2]
    assert cursor.done.tolist() == []


def test_entries_out_of_turn_are_found_near_and_far() -> None:
    queue = UnitList([100] * 1_000)
    for place in (1, 2, 300, 900, 999):
        queue.rows[place] = (*queue.rows[place][:2], 50)
    cursor = LevelCursor(1, queue)
    queue.neutralise(300, DELIVERED_BYTES)
    entries = cursor.due_entries(50)
    assert entries.queue_offset.tolist() == [1, 2, 900, 999]
    assert entries.commit_log_offset.tolist() == [100, 200, 90_000, 99_900]
    assert set(entries.due_ms.tolist()) == {50}
    assert take(cursor, 50) == [1, 2, 900, 999]
    assert take(cursor, 99) == []


def test_neutral_units_are_passed_over() -> None:
    queue = UnitList([10, 20, 30, 40])
    queue.neutralise(0, CANCELLED_BYTES)
    queue.neutralise(2, DELIVERED_BYTES)
    cursor = LevelCursor(1, queue)
    assert (cursor.head, cursor.next_due_ms) == (1, 20)
    assert take(cursor, 40) == [1, 3]


def test_a_forgotten_head_moves_on() -> None:
    queue = UnitList([10, 20, 5])
    cursor = LevelCursor(1, queue)
    for offset, left_ms in ((0, 5), (2, 20), (1, NEVER_MS)):
        queue.neutralise(offset, CANCELLED_BYTES)
        cursor.forget(offset)
        assert cursor.next_due_ms == left_ms
    assert cursor.head == 3


def test_what_was_delivered_in_part_waits_on_for_the_rest() -> None:
    cursor = LevelCursor(1, UnitList([10, 20, 30, 5]))
    entries = cursor.due_entries(30)
    assert entries.queue_offset.tolist() == [0, 1, 2, 3]
    cursor.delivered_some(entries, np.array([True, False, True, False]))
    assert (cursor.head, cursor.done.tolist(), cursor.next_due_ms) == (1, [2], 5)
    assert take(cursor, 30) == [1, 3]
    assert cursor.head == 4


def test_beyond_the_limit_is_due_at_once() -> None:
    """As brokers have it for a due time further away than the level's delay."""
    queue = UnitList([100, 20, 100])
    cursor = LevelCursor(1, queue)
    entries = cursor.due_entries(10, latest_due_ms=50)
    assert entries.queue_offset.tolist() == [0]
    cursor.delivered(entries)
    assert due(cursor, 20) == [1]


def test_a_queue_that_was_cut_goes_on_at_its_beginning() -> None:
    queue = UnitList([10, 20, 30])
    cursor = LevelCursor(1, queue)
    queue.min_offset = 2
    cursor.queue_was_cut()
    assert (cursor.head, cursor.next_due_ms) == (2, 30)


def test_a_queue_that_begins_later_is_entered_there() -> None:
    assert LevelCursor(1, UnitList([10], min_offset=7)).head == 7


steps = st.lists(
    st.one_of(
        st.tuples(st.just("one"), st.integers(0, 60)),
        st.tuples(st.just("many"), st.lists(st.integers(0, 60), max_size=8)),
        st.tuples(st.just("take"), st.integers(0, 60)),
        st.tuples(st.just("some"), st.integers(0, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 10**6)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=40,
)


class Model:
    """A queue, its cursor, and the set of what waits."""

    def __init__(self) -> None:
        self.queue = UnitList()
        self.cursor = LevelCursor(1, self.queue)
        self.waiting: dict[int, int] = {}

    def one(self, due_ms: int) -> None:
        at = self.queue.max_offset
        self.queue.extend([due_ms])
        self.cursor.appended(at, due_ms)
        self.waiting[at] = due_ms

    def many(self, due_ms: list[int]) -> None:
        at = self.queue.max_offset
        self.queue.extend(due_ms)
        self.cursor.appended_many(at, np.array(due_ms, np.int64))
        self.waiting |= dict(enumerate(due_ms, start=at))

    def take(self, now_ms: int) -> None:
        expected = [at for at, due_ms in self.waiting.items() if due_ms <= now_ms]
        assert sorted(take(self.cursor, now_ms)) == expected
        for at in expected:
            del self.waiting[at]

    def some(self, now_ms: int) -> None:
        entries = self.cursor.due_entries(now_ms)
        which = np.arange(len(entries)) % 2 == 0
        self.cursor.delivered_some(entries, which)
        for at in entries.queue_offset[which].tolist():
            del self.waiting[at]

    def cancel(self, choice: int) -> None:
        if self.waiting:
            at = sorted(self.waiting)[choice % len(self.waiting)]
            self.queue.neutralise(at, CANCELLED_BYTES)
            self.cursor.forget(at)
            del self.waiting[at]

    def reopen(self, _: int) -> None:
        for at in self.cursor.done.tolist():
            self.queue.neutralise(at, DELIVERED_BYTES)
        self.cursor = LevelCursor(1, self.queue, self.cursor.head)

    def check(self) -> None:
        cursor = self.cursor
        assert cursor.next_due_ms == min(self.waiting.values(), default=NEVER_MS)
        assert cursor.head == min(self.waiting, default=self.queue.max_offset)
        found = [
            first + place
            for first, _, waits in cursor.waiting()
            for place in np.flatnonzero(waits).tolist()
        ]
        assert found == sorted(self.waiting)
        assert all(cursor.still_waits(at) for at in found)


@given(steps)
def test_a_cursor_agrees_with_a_dict(steps: list[tuple[str, object]]) -> None:
    model = Model()
    for step, argument in steps:
        getattr(model, step)(argument)
        model.check()


@pytest.mark.parametrize("pieces", [1, 3])
@given(st.lists(st.integers(0, 12), max_size=40), st.integers(0, 12))
def test_entries_are_found_by_their_due_time(pieces: int, due_ms: list[int], wanted: int) -> None:
    queue = UnitList(min_offset=4)
    runs = DueRuns(queue)
    for piece in range(pieces):
        queue.extend(due_ms[piece::pieces])
        expected = [at + 4 for at, row in enumerate(queue.rows) if row[2] == wanted]
        assert runs.find(wanted).tolist() == expected


def test_runs_are_bisected_where_they_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = UnitList([*range(5_000), *range(2_500, 7_500)])
    runs = DueRuns(queue)
    assert runs.find(3_000).tolist() == [3_000, 5_500]
    looks = 0
    real = queue.units

    def counted(first: int, last: int) -> object:
        nonlocal looks
        looks += last - first
        return real(first, last)

    monkeypatch.setattr(queue, "units", counted)
    assert runs.find(4_999).tolist() == [4_999, 7_499]
    assert 0 < looks < 100


def test_a_cut_queue_is_searched_from_its_beginning() -> None:
    queue = UnitList([5, 6, 5, 6, 7])
    runs = DueRuns(queue)
    assert runs.find(5).tolist() == [0, 2]
    queue.min_offset = 1
    assert runs.find(5).tolist() == [2]
    assert runs.find(6).tolist() == [1, 3]
    for cut in range(2, 6):
        queue.min_offset = cut
        expected = [at for at in (1, 3) if at >= cut]
        assert runs.find(6).tolist() == expected, "retention may take all that a level had"


def test_a_record_is_found_by_its_end_also_when_its_unit_is_neutral() -> None:
    queue = UnitList(range(9))
    queue.neutralise(4, CANCELLED_BYTES)
    for at in (0, 4, 8):
        assert find_record_end(queue, (at + 1) * RECORD_BYTES) == at
    assert find_record_end(queue, 4 * RECORD_BYTES + 1) is None
    assert find_record_end(UnitList(), 100) is None


def test_no_more_is_taken_than_asked_for() -> None:
    queue = UnitList([10, 20, 30, 40, 5])
    queue.neutralise(1, CANCELLED_BYTES)
    cursor = LevelCursor(1, queue)
    entries = cursor.due_entries(40, most=2)
    assert (entries.queue_offset.tolist(), entries.stop) == ([0, 2, 4], 3)
    cursor.delivered(entries)
    assert (cursor.head, cursor.done.tolist()) == (3, [4])
    assert cursor.due_entries(40, most=0).queue_offset.tolist() == []
    assert take(cursor, 40) == [3]
