# SPDX-License-Identifier: Apache-2.0
"""A verb of migration as a random run: a source of random messages, and one fault somewhere."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import attrs

from tests.independent.level_messages import Item, LevelMessage, OrdinaryMessage
from tests.simulation.cases import FAULTS, LATER_POWER, Simulation
from tests.simulation.migrations import MIGRATIONS, Convert, Migration
from tests.simulation.random_run import Outcome
from tests.simulation.simulated_disk import Event

_FAULTS = [fault for fault in FAULTS if fault != LATER_POWER]
_STRIKES = 3


def _odd(rng: random.Random) -> dict[str, Any]:
    """Seldom something that makes a message other than most: some cannot be converted."""
    ways: list[dict[str, Any]] = [
        {"record_fields": {"body_crc": 7}},
        {"without": ["REAL_TOPIC"]},
        {"extra_pairs": [("__CRC32#", "0")]},
        {"ends_with_separator": rng.random() < 0.5},
    ]
    return rng.choice(ways) if rng.random() < 0.15 else {}


def draw_items(rng: random.Random, *, has_odd: bool) -> list[Item]:
    """Messages of any level, equal ones among them, and some that wait for nothing."""
    items: list[Item] = []
    for number in range(rng.choice([2, 8, 20])):
        kind = rng.random()
        topic, size_bytes = rng.choice(["TopicA", "TopicB"]), rng.choice([0, 40, 700])
        if kind < 0.2:
            items.append(OrdinaryMessage(topic=topic))
        elif kind < 0.5 and items:
            items.append(attrs.evolve(rng.choice(items)))  # type: ignore[misc]
        else:
            body = bytes(size_bytes) + b"%d" % number
            level, key = rng.randint(1, 18), f"KEY{number:08X}"
            odd = _odd(rng) if has_odd else {}
            items.append(LevelMessage(level=level, topic=topic, body=body, unique_key=key, **odd))
    return [*items, LevelMessage(level=18)]


def run_migration(seed: int, folder: Path) -> Outcome:
    """The run of a seed: the verb without a fault, and then with some."""
    rng = random.Random(f"migration {seed}")
    name = rng.choice(sorted(MIGRATIONS))
    drawn: type[Migration] = type(
        name, (MIGRATIONS[name],), {"items": draw_items(rng, has_odd=name == Convert.name)}
    )
    engine = rng.choice(drawn.engines)
    trace = [f"{name}, {engine}, {len(drawn.items)} messages"]
    wrong: list[str] = []
    events: list[Event] = []
    struck = Counter[str]()
    try:
        simulation = Simulation(name, engine, seed, folder, {name: drawn})
        wrong += simulation.wrong
        events += simulation.events
        for _ in range(_STRIKES):
            fault = rng.choice(_FAULTS)
            steps = simulation.steps_of(fault)
            if not steps:
                continue
            step = rng.choice(steps)
            struck[fault] += 1
            trace.append(f"{fault} at change {step}")
            outcome = simulation.run(fault, step)
            events += outcome.events
            wrong += outcome.wrong
    except Exception as error:  # what nobody expects is wrong, and the next runs go on
        wrong.append(f"{type(error).__name__}: {error}")
    return Outcome(seed, name, "\n  ".join(wrong), struck, trace, events)
