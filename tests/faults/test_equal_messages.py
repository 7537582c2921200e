# SPDX-License-Identifier: Apache-2.0
"""Equal messages come as often as they were stored, whenever the store is killed, and a broker
that takes a wheel over finds all that wait.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.equal_messages import (
    DAMAGE,
    MOVING_CLOCK,
    RECALL,
    RETENTION,
    SNAPSHOTS,
    History,
)

STEPS = 30
HISTORIES = [
    ("wheel",),
    ("wheel", MOVING_CLOCK, RECALL),
    ("wheel", MOVING_CLOCK, RETENTION),
    ("wheel", MOVING_CLOCK, SNAPSHOTS),
    ("wheel", MOVING_CLOCK, DAMAGE),
    ("levels", MOVING_CLOCK),
    ("levels", MOVING_CLOCK, RETENTION),
    ("hierarchy", MOVING_CLOCK, RECALL),
    ("hierarchy", MOVING_CLOCK, RETENTION),
]


@pytest.mark.parametrize("history", HISTORIES, ids=", ".join)
@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.nightly)])
def test_each_of_many_equal_messages_comes_once_whatever_is_killed(
    tmp_path: Path, history: tuple[str, ...], count: int, seed: int
) -> None:
    engine, *modes = history
    seeds = random.Random(seed)
    for number in range(count):
        lived = History(tmp_path / str(number), engine, frozenset(modes), seeds.getrandbits(32))
        for _ in range(STEPS):
            lived.step()
        lived.finish()
