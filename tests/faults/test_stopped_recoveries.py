# SPDX-License-Identifier: Apache-2.0
"""Whoever opens a store after a kill may be killed too, again and again: the last of them finds
what the first would have found.
"""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest

from tests.faults.engines import ENGINES
from tests.faults.kill_rounds import kill_generations, nursery, settle
from tests.faults.kill_worker import Task

pytestmark = pytest.mark.check

LONGEST_OPENING_S = 0.08
STORES = [
    pytest.param(1, id="1 store", marks=pytest.mark.check),
    pytest.param(8, id="8", marks=pytest.mark.nightly),
]


def a_task(engine: str, folder: Path, seed: int) -> Task:
    folder.mkdir()
    return Task(engine, str(folder), seed)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("stores", STORES)
def test_a_recovery_that_is_killed_at_each_of_its_changes_in_turn(
    tmp_path: Path, engine: str, torn: bool, stores: int, seed: int
) -> None:
    seeds = random.Random(seed)
    with nursery(engine) as home:
        for number in range(stores):
            task = a_task(engine, tmp_path / str(number), seeds.getrandbits(32))
            wrong = kill_generations(home, task, 2)
            deaths = 0
            while home.let_die(attrs.evolve(task, dies_at=deaths, torn=torn)):
                deaths += 1
            assert deaths > 5
            assert wrong + settle(task) == [], task


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stores", STORES)
def test_a_recovery_that_is_killed_at_twenty_moments(
    tmp_path: Path, engine: str, stores: int, seed: int
) -> None:
    rng = random.Random(seed)
    with nursery(engine) as home:
        for number in range(stores):
            task = a_task(engine, tmp_path / str(number), rng.getrandbits(32))
            wrong = kill_generations(home, task, 2)
            for _ in range(20):
                home.kill_one(task, rng.uniform(0, LONGEST_OPENING_S))
            assert wrong + settle(task) == [], task
