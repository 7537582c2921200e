# SPDX-License-Identifier: Apache-2.0
"""Two random runs of a seed are equal, change by change of the disk; a few seeds are sound, and so
are those that failed once.
"""

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from message_store.writing.settings import StoreSettings
from tests.simulation.draws import (
    DAMAGE,
    ENGINES,
    FOCUSES,
    INDEX,
    KILLS,
    MOVES,
    REFERENCES,
    Drawn,
)
from tests.simulation.failed_once import (
    FAILED_ONCE,
    FAILED_ONCE_IN_A_TIME_INDEX,
    FAILED_ONCE_IN_KILLS,
    FAILED_ONCE_IN_MOVES,
    FAILED_ONCE_IN_REFERENCES,
)
from tests.simulation.harm import KINDS
from tests.simulation.random_runs import MIGRATION_EVERY, run_seed, seeds_of
from tests.simulation.simulated_disk import Event
from tests.simulation.together import Together
from tests.simulation.world import Owner, World
from timer_wheel.wheel import waiting

SOUND = (1, 2, 3, 4, 6, 7)
CONVERSIONS = (40, 7_075)
_FAILED = {**FAILED_ONCE, **FAILED_ONCE_IN_MOVES}


@pytest.mark.check
@pytest.mark.parametrize("number", SOUND)
def test_a_run_is_sound_and_the_same_again(tmp_path: Path, number: int) -> None:
    assert number % MIGRATION_EVERY
    one, other = (run_seed(number, tmp_path / "run") for _ in range(2))
    assert not one.wrong, one.trace
    assert one.trace == other.trace
    assert len(one.events) == len(other.events)


@pytest.mark.check
@pytest.mark.parametrize("seed", _FAILED.values(), ids=_FAILED)
def test_a_run_that_failed_once_is_sound(tmp_path: Path, seed: int) -> None:
    outcome = run_seed(seed, tmp_path / "run")
    assert not outcome.wrong, outcome.trace


@pytest.mark.check
@pytest.mark.parametrize("seed", FAILED_ONCE_IN_KILLS.values(), ids=FAILED_ONCE_IN_KILLS)
def test_a_run_of_kills_that_failed_once_is_sound(tmp_path: Path, seed: int) -> None:
    outcome = run_seed(seed, tmp_path / "run", focus=KILLS)
    assert not outcome.wrong, outcome.trace


@pytest.mark.check
@pytest.mark.parametrize(
    "seed", FAILED_ONCE_IN_A_TIME_INDEX.values(), ids=FAILED_ONCE_IN_A_TIME_INDEX
)
def test_a_run_of_a_time_index_that_failed_once_is_sound(tmp_path: Path, seed: int) -> None:
    outcome = run_seed(seed, tmp_path / "run", focus=INDEX)
    assert not outcome.wrong, outcome.trace


@pytest.mark.check
@pytest.mark.parametrize("seed", FAILED_ONCE_IN_REFERENCES.values(), ids=FAILED_ONCE_IN_REFERENCES)
def test_a_run_of_a_reference_that_failed_once_is_sound(tmp_path: Path, seed: int) -> None:
    outcome = run_seed(seed, tmp_path / "run", focus=REFERENCES)
    assert not outcome.wrong, outcome.trace


def test_runs_that_failed_once_have_the_steps_that_they_had_then() -> None:
    assert not any(Drawn.of(seed).moves for seed in FAILED_ONCE.values())
    assert all(Drawn.of(seed).moves for seed in FAILED_ONCE_IN_MOVES.values())


@pytest.mark.check
@pytest.mark.parametrize("focus", [None, KILLS, INDEX, DAMAGE])
def test_runs_in_which_messages_move_are_sound_and_the_same_again(
    tmp_path: Path, focus: str | None
) -> None:
    told: list[str] = []
    for seed in seeds_of(1, 3, [MOVES], focus):
        one, other = (run_seed(seed, tmp_path / "run", focus=focus) for _ in range(2))
        assert not one.wrong, one.trace
        assert one.trace == other.trace
        told += one.trace
    assert any("reschedule" in line or "ask about" in line for line in told)


def _changed(event: Event) -> tuple[str, str]:
    """What kind of change, and of which name. A plan's identity holds times of files."""
    name = getattr(event, "path", getattr(event, "directory", ""))
    return type(event).__name__, re.sub(r"staging/[0-9a-f]{16}", "staging", name)


@pytest.mark.check
@pytest.mark.parametrize("seed", CONVERSIONS)
def test_a_conversion_counts_what_was_made_and_changes_the_same_files_again(
    tmp_path: Path, seed: int
) -> None:
    one, other = (run_seed(seed, tmp_path / "run") for _ in range(2))
    assert (one.kind, one.wrong) == ("convert", "")
    assert one.trace == other.trace
    assert list(map(_changed, one.events)) == list(map(_changed, other.events))


@pytest.mark.check
@pytest.mark.parametrize("focus", FOCUSES)
def test_a_run_with_a_focus_is_sound_and_the_same_again(tmp_path: Path, focus: str) -> None:
    struck = Counter[str]()
    for number in range(1, 5):
        one, other = (run_seed(number, tmp_path / "run", focus=focus) for _ in range(2))
        assert not one.wrong, one.trace
        assert one.trace == other.trace
        struck += one.struck
    assert focus != DAMAGE or struck.keys() & KINDS.keys()


@pytest.mark.parametrize("engine", [*ENGINES, INDEX])
def test_listings_beside_an_advance_have_what_waits_and_nothing_else(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many orders in which threads list, deliver and flush. Much was cancelled, and much rolls."""
    monkeypatch.setattr(waiting, "_SLOTS_AT_ONCE", 1)
    for seed in range(16):
        folder, rng = tmp_path / str(seed), random.Random(seed)
        folder.mkdir()
        world = World(Owner(engine, StoreSettings(), window_slots=6), folder)
        try:
            world.open()
            now_ms = world.clock.now_ms()
            seconds = range(1, 90, 5)
            world.schedule(
                [f"K{each}" for each in seconds],
                [now_ms + 1_000 * each for each in seconds],
                at_once=True,
            )
            if seed % 2:
                world.flush()
            for _ in range(10):
                world.cancel(rng)
            world.look()
            world.clock.tick(rng.choice([2_000, 30_000, 600_000]))
            together = Together(world, rng)
            for do in (together.flush, together.advance, *4 * [together.look]):
                do()
            together.run()  # which holds the listings to the account
            world.look()
        finally:
            world.end()
