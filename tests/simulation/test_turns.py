# SPDX-License-Identifier: Apache-2.0
"""Threads that take turns: a race is met, and met again; whoever waits for ever is told; a kill in
one of them ends all.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest

from message_store.files.unsynced import GroupSync
from tests.simulation.simulated_disk import Killed
from tests.simulation.turns import TURNS, StandstillError, TurnLock, taking_turns


class Counted:
    """A number that two threads raise."""

    def __init__(self, *, is_locked: bool) -> None:
        self.number = 0
        self._lock, self._is_locked = TurnLock(), is_locked

    def add(self) -> None:
        for _ in range(5):
            with self._lock if self._is_locked else nullcontext():
                seen = self.number
                TURNS.step()
                self.number = seen + 1


def runs(work: Callable[[], Counted]) -> list[int]:
    found = []
    for seed in range(30):
        counted = work()
        assert TURNS.run([counted.add, counted.add], random.Random(seed)) == [None, None]
        found.append(counted.number)
    return found


def test_a_race_is_met_and_met_again() -> None:
    one, other = (runs(lambda: Counted(is_locked=False)) for _ in range(2))
    assert min(one) < 10
    assert one == other
    assert set(runs(lambda: Counted(is_locked=True))) == {10}


def test_threads_that_wait_for_each_other_are_told() -> None:
    def taking(first: TurnLock, second: TurnLock) -> None:
        with first, second:
            pass

    stood = 0
    for seed in range(30):
        one, other = TurnLock(), TurnLock()
        works = [partial(taking, one, other), partial(taking, other, one)]
        errors = TURNS.run(works, random.Random(seed))
        stood += any(isinstance(error, StandstillError) for error in errors)
    assert 0 < stood < 30


def test_a_thread_of_nobody_gives_way_to_nobody() -> None:
    """It may have the number of one that is over."""
    started: list[threading.Thread] = []

    def start_some() -> None:
        for _ in range(20):
            started.append(threading.Thread(target=TURNS.step, daemon=True))
            started[-1].start()
            started[-1].join(5)
            TURNS.step()

    for seed in range(5):
        works = [start_some, lambda: None, lambda: None]
        assert TURNS.run(works, random.Random(seed)) == [None] * 3
    assert not any(each.is_alive() for each in started)


def test_a_kill_in_one_thread_ends_all() -> None:
    def die() -> None:
        TURNS.step()
        raise Killed

    def go_on() -> None:
        while True:
            TURNS.step()

    errors = TURNS.run([die, go_on], random.Random(1))
    assert [type(error) for error in errors] == [Killed, Killed]


@pytest.mark.parametrize("seed", range(40))
def test_a_flush_that_is_shared_began_behind_what_it_makes_durable(seed: int) -> None:
    """Whoever joins the work of another waits for the next one."""
    stored, durable = [0], [0]

    def work() -> None:
        seen = stored[0]
        TURNS.step()
        durable[0] = max(durable[0], seen)

    with taking_turns():
        group = GroupSync(work)

        def store_and_flush() -> None:
            for _ in range(3):
                stored[0] += 1
                mine = stored[0]
                group.run()
                assert durable[0] >= mine

        assert TURNS.run([store_and_flush] * 3, random.Random(seed)) == [None] * 3
