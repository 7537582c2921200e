# SPDX-License-Identifier: Apache-2.0
"""What the number of a random run gives before anything is done: the owner, his settings, where
faults strike, and what is damaged.
"""

from __future__ import annotations

import random
from typing import Final

import attrs

from message_store.writing.settings import StoreSettings
from tests.faults import leeway
from tests.simulation.cases import IN_PROCESS, POWER
from tests.simulation.harm import KINDS
from tests.simulation.simulated_disk import Failing
from tests.simulation.world import DAY_MS, Owner, forgets

ENGINES: Final = ("levels", "wheel", "hierarchy")
FAULTS: Final = (*IN_PROCESS, *POWER)
DAMAGE: Final = "damage"
"""A focus: each run damages a file at its end, of each folder as often as of another."""

KILLS: Final = "kills"
"""A focus: three names, times at the edge of promises, and many kills between few flushes."""

INDEX: Final = "time-index"
"""A focus: the engine of each run is a time index, whatever was drawn."""

GROUPS: Final = "groups"
"""A focus: consumer groups receive and settle what is delivered. Every message has its own name."""

REFERENCES: Final = "references"
"""A focus: the reference engines, which promise what brokers do, in place of the others."""

FOCUSES: Final = (DAMAGE, KILLS, INDEX, GROUPS, REFERENCES)

MOVES: Final = "moves"
"""A kind: messages are also rescheduled and cancelled by key, somebody asks what became of them,
and the settings change. It came later than others, and most runs that failed once are of those.
"""

MOVES_EVERY: Final = 4
"""The last of so many runs is of that kind."""


@attrs.frozen
class Strike:
    """A fault, and at which change of the disk from the beginning of a step on."""

    fault: str
    change: int

    def failing(self, rng: random.Random) -> Failing:
        """What the disk does."""
        if self.fault in POWER:
            return Failing(self.change, "kill", is_torn=rng.random() < 0.3)
        how, is_torn = IN_PROCESS[self.fault]
        times = {"kill": 10**9, "interrupt": 1, "error": 1, "full": rng.choice([1, 2])}[how]
        return Failing(self.change, how, times, is_torn)


@attrs.frozen
class Drawn:
    """The plan of a run. ``looks`` is how often everything is looked at after a step; ``harm`` is
    the step behind which a file is damaged, and how.
    """

    owner: Owner
    looks: float
    count: int
    strikes: dict[int, Strike]
    harm: tuple[int, str] | None
    moves: bool = False

    @staticmethod
    def of(seed: int, focus: str | None = None) -> Drawn:
        """What this seed gives, with a focus or without."""
        drawn = Drawn._of(seed, focus)
        moves = seed % MOVES_EVERY == MOVES_EVERY - 1 and focus != REFERENCES
        return attrs.evolve(drawn, moves=moves)

    @staticmethod
    def _of(seed: int, focus: str | None = None) -> Drawn:
        rng = random.Random(f"run {seed}" if focus is None else f"{focus} {seed}")
        owner = draw_owner(rng)
        looks = rng.choice([0.0, 0.3, 1.0])
        count = rng.choice([6, 12, 20, 30, 45])
        weights = [4, 8, 4, 2] if count > 6 else [1, 3, 0, 0]
        drawn = {
            rng.randrange(count): Strike(
                rng.choice(FAULTS), rng.choice([0, 0, 1, 2, 3, 4, 6, 9, 14, 20, 40])
            )
            for _ in range(rng.choices(range(4), weights)[0])
        }
        harm = None
        if focus == REFERENCES:
            return Drawn(reference_of(owner), looks, count, drawn, None)
        if focus == INDEX:
            kept = attrs.evolve(owner.settings, repeat_after_kill=False)
            owner = attrs.evolve(owner, engine=INDEX, settings=kept, precision_ms=None)
        elif focus is not None:
            repeats = focus == DAMAGE and owner.engine != "hierarchy" and seed % 3 == 0
            kept = attrs.evolve(owner.settings, repeat_after_kill=repeats)
            owner = attrs.evolve(owner, settings=kept)
        if focus == GROUPS:
            kept = attrs.evolve(owner.settings, retention_ms=300 * DAY_MS)
            is_index = rng.random() < 0.25
            engine, precision_ms = owner.engine, owner.precision_ms
            if is_index:
                engine, precision_ms = INDEX, None
            owner = attrs.evolve(owner, settings=kept, engine=engine, precision_ms=precision_ms)
            return Drawn(owner, looks, max(count, 12), drawn, None)
        if focus == DAMAGE:
            kept = attrs.evolve(owner.settings, retention_ms=300 * DAY_MS)
            owner = attrs.evolve(owner, settings=kept)
            return Drawn(owner, 0.0, count, {}, (count - 1, rng.choice(sorted(KINDS))))
        if focus == KILLS:
            return Drawn(owner, looks, count, drawn, None)
        if rng.random() < 0.2 and not forgets(owner):
            harm = rng.randrange(count), rng.choice(sorted(KINDS))
        return Drawn(owner, looks, count, drawn, harm)

    @property
    def kinds(self) -> frozenset[str]:
        """The engine that it begins with; whether a file is damaged; whether messages move."""
        more = {DAMAGE: self.harm is not None, MOVES: self.moves}
        return frozenset({self.owner.engine, *(kind for kind, is_so in more.items() if is_so)})


def reference_of(owner: Owner) -> Owner:
    """The reference engine in place of another; it steps slots one by one, so none are narrow. What
    brokers deliver asynchronously is repeated after every end.
    """
    is_wide = owner.engine == "wheel" and owner.precision_ms in (500, 1_000)
    precision_ms = owner.precision_ms if is_wide else None
    engine = leeway.LEVELS if owner.family == "levels" else leeway.WHEEL
    return attrs.evolve(owner, engine=engine, precision_ms=precision_ms, async_delivery=False)


def draw_owner(rng: random.Random) -> Owner:
    """An engine and its settings: small files, of which any is often full."""
    engine = rng.choice(ENGINES)
    settings = StoreSettings(
        commit_log_file_bytes=rng.choice([8 << 10, 16 << 10, 64 << 10]),
        queue_file_bytes=rng.choice([10, 50, 200]) * 20,
        timer_log_file_bytes=rng.choice([3, 6, 40]) * 52 + rng.choice([16, 30]),
        retention_ms=rng.choice([60_000, 3 * DAY_MS, 300 * DAY_MS, 300 * DAY_MS]),
        repeat_after_kill=engine != "hierarchy" and rng.random() < 0.1,
    )
    precisions_ms: list[int | None] = [None]
    if engine == "wheel":
        precisions_ms += [1_000, 500, 200, 100]
    elif engine == "hierarchy":
        precisions_ms += [1, 1_000, 100]
    return Owner(
        engine,
        settings,
        rng.choice(precisions_ms),
        window_slots=rng.choice([60, 120, 172_800]),
        snapshots=engine == "wheel" and rng.random() < 0.2,
        async_delivery=engine == "levels" and rng.random() < 0.25,
    )
