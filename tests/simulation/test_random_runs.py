# SPDX-License-Identifier: Apache-2.0
"""Two random runs of a seed are equal, change by change of the disk; a few seeds are sound, and so
are those that failed once.
"""

import random
from pathlib import Path

import pytest

from message_store.writing.settings import StoreSettings
from tests.simulation.random_run import ENGINES
from tests.simulation.random_runs import MIGRATION_EVERY, run_seed
from tests.simulation.together import Together
from tests.simulation.world import Owner, World
from timer_wheel.wheel import waiting

SOUND = (1, 2, 3, 4, 6, 7)
FAILED_ONCE = {
    "a-listing-beside-an-advance-has-what-was-cancelled": 600_809,
    "a-store-that-was-closed-repeats-after-a-flipped-offset": 802_118,
    "a-handover-after-a-kill-takes-old-markers-for-damaged": 902_738,
    "a-cancel-is-answered-about-a-message-of-another-slot": 920_132,
    "a-last-unit-without-its-time-hides-its-message": 920_668,
    "a-marker-before-the-hand-is-forgotten": 923_322,
    "a-cancel-is-in-memory-alone-after-a-flush": 923_904,
    "a-unit-without-its-record-counts-for-the-first-message": 947_966,
}
"""What was wrong, and the seed that met it."""


@pytest.mark.check
@pytest.mark.parametrize("number", SOUND)
def test_a_run_is_sound_and_the_same_again(tmp_path: Path, number: int) -> None:
    assert number % MIGRATION_EVERY
    one, other = (run_seed(number, tmp_path / "run") for _ in range(2))
    assert not one.wrong, one.trace
    assert one.trace == other.trace
    assert len(one.events) == len(other.events)


@pytest.mark.check
@pytest.mark.parametrize("seed", FAILED_ONCE.values(), ids=FAILED_ONCE)
def test_a_run_that_failed_once_is_sound(tmp_path: Path, seed: int) -> None:
    outcome = run_seed(seed, tmp_path / "run")
    assert not outcome.wrong, outcome.trace


@pytest.mark.parametrize("engine", ENGINES)
def test_listings_beside_an_advance_have_what_waits_and_nothing_else(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many orders in which threads list, deliver and flush. Much was cancelled, and much rolls."""
    monkeypatch.setattr(waiting, "_SLOTS_AT_ONCE", 1)
    for seed in range(16):
        folder, rng = tmp_path / str(seed), random.Random(seed)
        folder.mkdir()
        world = World(Owner(engine, StoreSettings(), window_slots=6), folder, rng)
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
