# SPDX-License-Identifier: Apache-2.0
"""The account of a killed store notices every fault that there is, and nothing else."""

from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from tests.faults.kill_account import early, faults, repeats
from tests.faults.kill_journal import History, Journal, Line, read_journal
from tests.faults.store_reading import Found

ROWS = [[f"KEY{number}", "orders", 0, f"body {number}", 2_000] for number in range(3)]
STEPS: list[Line] = [
    {"step": "begin", "now_ms": 1_000},
    {"step": "opened", "log_end": 50},
    {"step": "schedule", "now_ms": 1_000, "rows": ROWS},
    {"step": "scheduled", "receipts": [[2_000, f"handle {number}", number] for number in range(3)]},
    {"step": "cancel", "number": 2},
    {"step": "cancelled", "answer": "cancelled"},
    {"step": "advance", "now_ms": 2_500},
    {"step": "advanced", "count": 2},
]
RIGHT = [
    Found("orders", 0, number, f"KEY{number}", f"body {number}", 2_500, 100 + number)
    for number in range(2)
]
CANCELLED = Found("orders", 0, 2, "KEY2", "body 2", 2_500, 102)


def history(steps: Sequence[Line]) -> History:
    told = History()
    for step in steps:
        told.add(dict(step))
    return told


def test_what_was_promised_and_came_once_is_right() -> None:
    assert faults(history(STEPS), RIGHT) == []
    assert early(history(STEPS), RIGHT) == []


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (RIGHT[:1], "lost"),
        ([*RIGHT, attrs.evolve(RIGHT[1], commit_log_offset=109)], "repeated"),
        ([*RIGHT, CANCELLED], "cancelled, and delivered"),
        ([*RIGHT, attrs.evolve(CANCELLED, name="KEY9")], "never scheduled"),
        ([RIGHT[0], attrs.evolve(RIGHT[1], body="another")], "never scheduled"),
        ([RIGHT[0], attrs.evolve(RIGHT[1], topic="elsewhere")], "never scheduled"),
    ],
)
def test_each_fault_is_named(found: list[Found], kind: str) -> None:
    assert faults(history(STEPS), found)[0].startswith(kind)


def test_a_time_before_the_promise_is_early_and_so_is_a_delivery_that_nobody_asked_for() -> None:
    stamped = attrs.evolve(RIGHT[0], store_timestamp_ms=1_999)
    assert len(early(history(STEPS), [stamped, RIGHT[1]])) == 1
    assert len(early(history(STEPS[:-2]), RIGHT)) == 2


def test_a_step_that_was_cut_short_may_have_happened_or_not() -> None:
    cut = history(STEPS[:3])
    assert faults(cut, []) == []
    assert faults(cut, [*RIGHT, CANCELLED]) == []
    taking_back = history(STEPS[:5])
    assert faults(taking_back, RIGHT) == []
    assert faults(taking_back, [*RIGHT, CANCELLED]) == []
    assert faults(taking_back, RIGHT[:1])[0].startswith("lost")


def test_a_batch_that_was_cut_short_comes_whole_or_not_at_all() -> None:
    assert faults(history(STEPS[:3]), RIGHT) == ["torn: 2 of the 3 that were handed over together"]


def test_a_message_that_was_too_late_to_take_back_must_have_come() -> None:
    late = [*STEPS[:5], {"step": "cancelled", "answer": "already delivered"}]
    assert faults(history(late), RIGHT)[0].startswith("lost")
    denied = [*STEPS[:5], {"step": "cancelled", "answer": "never existed"}]
    assert faults(history(denied), RIGHT)[0].startswith("denied")


def test_twins_are_counted() -> None:
    rows = [["TWIN", "twins", 0, "twin", 2_000]] * 2
    steps: list[Line] = [
        {"step": "schedule", "now_ms": 1_000, "rows": rows},
        {"step": "scheduled", "receipts": [[2_000, "handle", 1], [3_000, "handle", 2]]},
        {"step": "advance", "now_ms": 9_000},
    ]
    twins = [Found("twins", 0, place, "TWIN", "twin", 9_000, place) for place in range(3)]
    assert faults(history(steps), twins[:2]) == []
    assert faults(history(steps), twins[:1])[0].startswith("lost")
    assert faults(history(steps), twins)[0].startswith("repeated")


def test_repeating_may_be_allowed_but_not_of_what_was_taken_back() -> None:
    again = attrs.evolve(RIGHT[1], commit_log_offset=109)
    assert faults(history(STEPS), [*RIGHT, again], may_repeat=True) == []
    assert faults(history(STEPS), [*RIGHT, CANCELLED], may_repeat=True) != []
    assert repeats(RIGHT, [*RIGHT, again]) == [RIGHT[1]]
    assert repeats(RIGHT, RIGHT) == []


def test_what_came_before_a_kill_may_be_taken_back_after_it_but_not_come_again() -> None:
    begun = [{"step": "begin", "now_ms": 2_500}, {"step": "opened", "log_end": 110}]
    again = history([*STEPS[:4], *begun, *STEPS[4:]])
    assert faults(again, [*RIGHT, CANCELLED], may_repeat=True) == []
    assert faults(again, [*RIGHT, CANCELLED]) != []
    late = attrs.evolve(CANCELLED, commit_log_offset=110)
    assert faults(again, [*RIGHT, late], may_repeat=True) != []
    assert faults(again, [*RIGHT, CANCELLED, late], may_repeat=True) != []


def test_a_journal_forgets_the_line_that_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    for step in STEPS:
        journal.write(str(step["step"]), **{k: v for k, v in step.items() if k != "step"})
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert read_journal(path).delivered == 0
    again = Journal(path)
    again.write("advanced", count=2)
    again.close()
    assert path.read_bytes() == whole
    told = read_journal(path)
    assert (told.delivered, told.advanced_to_ms, told.generations) == (2, 2_500, 1)
    assert [life.answer for life in told.lives] == [None, None, "cancelled"]
