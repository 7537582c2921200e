# SPDX-License-Identifier: Apache-2.0
"""A process that is killed at any moment loses nothing, repeats nothing, and is early with nothing.

Children schedule, take back and deliver without end, rolls included, each on what the one before it
left; all of them are killed. What came of it is read from the files without the product.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.engines import ENGINES, REFERENCES
from tests.faults.kill_account import LEVELS_REPEAT_MS, early, repeats
from tests.faults.kill_journal import History, read_journal
from tests.faults.kill_rounds import (
    LONGEST_LIFE_S,
    kill_generations,
    lost_to_a_broker,
    nursery,
    settle,
)
from tests.faults.kill_worker import Task
from tests.faults.store_reading import Found, delivered

GENERATIONS = 8
FAITHFUL_ENGINES = ("levels", "wheel")
"""Those that can repeat as brokers do."""

ROUNDS = [
    pytest.param(2, 5, id="10 kills", marks=pytest.mark.check),
    pytest.param(26, GENERATIONS, id="208 kills", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("stores", "generations"), ROUNDS)
def test_nothing_is_lost_early_or_repeated_by_a_kill(
    tmp_path: Path, engine: str, stores: int, generations: int, seed: int
) -> None:
    for task, wrong in killed_stores(tmp_path, engine, stores, generations, seed):
        assert wrong == [], task
        assert read_journal(task.journal).delivered, task


def killed_stores(
    place: Path, engine: str, stores: int, generations: int, seed: int, *, faithful: bool = False
) -> Iterator[tuple[Task, list[str]]]:
    """Stores whose processes were killed, and what was wrong with each in the end."""
    seeds = random.Random(seed)
    with nursery(engine) as home:
        for number in range(stores):
            folder = place / str(number)
            folder.mkdir()
            task = Task(engine, str(folder), seeds.getrandbits(32), faithful=faithful)
            yield task, kill_generations(home, task, generations) + settle(task)


@pytest.mark.check
@pytest.mark.parametrize("stores", [1, pytest.param(10, id="80 kills", marks=pytest.mark.nightly)])
def test_a_broker_that_takes_over_after_a_kill_finds_all_that_waits(
    tmp_path: Path, stores: int, seed: int
) -> None:
    seeds = random.Random(seed)
    with nursery("wheel") as home:
        for number in range(stores):
            folder = tmp_path / str(number)
            folder.mkdir()
            task = Task("wheel", str(folder), seeds.getrandbits(32))
            for _ in range(GENERATIONS):
                home.kill_one(task, seeds.uniform(0, LONGEST_LIFE_S))
                assert lost_to_a_broker(task) == [], task


@pytest.mark.check
@pytest.mark.parametrize("engine", FAITHFUL_ENGINES)
@pytest.mark.parametrize("stores", [1, pytest.param(5, id="40 kills", marks=pytest.mark.nightly)])
def test_the_faithful_setting_repeats_what_brokers_would_and_no_more(
    tmp_path: Path, engine: str, stores: int, seed: int
) -> None:
    seeds = random.Random(seed)
    with nursery(engine) as home:
        for number in range(stores):
            folder = tmp_path / str(number)
            folder.mkdir()
            task = Task(engine, str(folder), seeds.getrandbits(32), faithful=True)
            before: list[Found] = []
            for _ in range(GENERATIONS):
                told = read_journal(task.journal)
                home.kill_one(task, seeds.uniform(0, LONGEST_LIFE_S))
                after = list(delivered(task.store))
                assert early(read_journal(task.journal), after) == [], task
                assert_few(engine, told, repeats(before, after))
                before = after
            assert settle(task) == [], task


@pytest.mark.parametrize("engine", REFERENCES)
@pytest.mark.parametrize(("stores", "generations"), ROUNDS)
def test_a_reference_loses_nothing_to_a_kill_and_hurries_nothing(
    tmp_path: Path, engine: str, stores: int, generations: int, seed: int
) -> None:
    """As a broker, it may repeat what it has delivered, also what was cancelled since, and put a
    part of what was handed over together.
    """
    open_to_it = ("repeated: ", "cancelled, and delivered: ", "torn: ")
    for task, wrong in killed_stores(tmp_path, engine, stores, generations, seed, faithful=True):
        assert [each for each in wrong if not each.startswith(open_to_it)] == [], task


def assert_few(engine: str, at_the_kill: History, repeated: list[Found]) -> None:
    """The levels repeat ten seconds, the wheel the slot in hand: time passes slot by slot here, so
    that it is what was delivered since the last advance that came back. The one that a kill cut
    short may have been about to read a slot that an earlier kill had left in hand.
    """
    oldest_ms = at_the_kill.finished_to_ms - (LEVELS_REPEAT_MS if engine == "levels" else 0)
    assert [each for each in repeated if each.store_timestamp_ms < oldest_ms] == []
