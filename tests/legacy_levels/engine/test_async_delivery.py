# SPDX-License-Identifier: Apache-2.0
"""The state machine of asynchronous delivery, a rule at a time."""

from __future__ import annotations

import pytest

from legacy_levels.engine.async_delivery import Handled, PendingPuts, Resent
from legacy_levels.engine.rules import AsyncRules

RULES = AsyncRules(first_wait=1)


class Disk:
    """Answers to sending again, in order; the last one stays."""

    def __init__(self, *answers: Resent) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def __call__(self, queue_offset: int) -> Resent:
        self.asked.append(queue_offset)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


NOBODY = Disk(Resent.FAILED)


def puts(*outcomes: tuple[int, bool], rules: AsyncRules = RULES) -> PendingPuts:
    """Deliveries of these queue offsets at time 0, each stored or failed."""
    level = PendingPuts(rules)
    for queue_offset, is_stored in outcomes:
        level.add([queue_offset], is_stored=is_stored, now_ms=0)
    return level


def test_what_is_stored_leaves_in_order() -> None:
    level = puts((4, True), (5, True), (6, True))
    assert level.handle_results(0, NOBODY) == Handled(stored=(4, 5, 6))
    assert len(level) == 0


def test_a_failed_one_is_sent_again_and_then_lets_the_others_go() -> None:
    level = puts((4, False), (5, True))
    disk = Disk(Resent.STORED)
    assert level.handle_results(99, disk) == Handled()
    assert level.next_try_ms == 100
    assert level.handle_results(100, disk).stored == (4, 5)
    assert disk.asked == [4]


@pytest.mark.parametrize(
    ("first_wait", "tries_ms"), [(0, [0, 100, 300, 600, 1_000]), (1, [100, 300, 600, 1_000])]
)
def test_waiting_times_grow_by_100_ms_and_begin_at_0_in_4_9(
    first_wait: int, tries_ms: list[int]
) -> None:
    level = puts((1, False), rules=AsyncRules(first_wait=first_wait))
    disk = Disk(Resent.FAILED)
    seen = []
    for now_ms in range(0, 1_001, 50):
        before = len(disk.asked)
        level.handle_results(now_ms, disk)
        seen += [now_ms] * (len(disk.asked) - before)
    assert seen == tries_ms


def test_no_wait_is_longer_than_a_minute() -> None:
    level = puts((1, False))
    now_ms, waits = 0, []
    for _ in range(700):
        next_ms = level.next_try_ms
        assert next_ms is not None
        waits.append(next_ms - now_ms)
        now_ms = next_ms
        level.handle_results(now_ms, NOBODY)
    assert waits[-1] == 60_000
    assert max(waits) == 60_000


def test_a_put_that_keeps_failing_is_tried_without_end() -> None:
    level = puts((1, False))
    for now_ms in range(0, 10**8, 60_000):
        assert level.handle_results(now_ms, NOBODY) == Handled()
    assert not level.puts[0].is_stored
    assert level.handle_results(10**9, Disk(Resent.STORED)).stored == (1,)


def test_more_than_the_limit_under_way_starts_nothing_new() -> None:
    level = puts((0, True), (1, False), (2, False), rules=AsyncRules(max_pending=3))
    assert level.free_places == 1
    level.add([3], is_stored=False, now_ms=0)
    assert level.free_places == 0
    level.handle_results(0, NOBODY)
    assert level.free_places == 1


def test_a_level_is_blocked_after_more_than_three_resends_of_its_head() -> None:
    level = puts((1, False), (2, True))
    rooms = []
    for _ in range(5):
        rooms.append((level.puts[0].resend_count, level.is_blocked, level.free_places > 0))
        next_ms = level.next_try_ms
        assert next_ms is not None
        level.handle_results(next_ms, NOBODY)
    assert rooms == [
        (1, False, True),
        (2, False, True),
        (3, False, True),
        (4, True, False),
        (5, True, False),
    ]
    level.handle_results(10**6, Disk(Resent.STORED))
    assert not level.is_blocked


def test_a_missing_record_is_given_up_after_six_resends_and_saves_no_offset() -> None:
    level = puts((1, False), (2, False))
    disk = Disk(Resent.MISSING)
    for _ in range(6):
        next_ms = level.next_try_ms
        assert next_ms is not None
        assert level.handle_results(next_ms, disk) == Handled()
    next_ms = level.next_try_ms
    assert next_ms is not None
    assert level.handle_results(next_ms, disk) == Handled(skipped=(1,))
    assert level.unsaved_skip == 1
    assert level.handle_results(10**10, Disk(Resent.STORED)).stored == (2,)
    assert level.unsaved_skip is None


def test_a_message_that_was_taken_back_is_not_sent_again() -> None:
    level = puts((1, False), (2, True))
    level.forget(1)
    assert level.handle_results(10**6, NOBODY).stored == (2,)
