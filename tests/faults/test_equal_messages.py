# SPDX-License-Identifier: Apache-2.0
"""Equal messages come as often as they were stored, whenever the wheel is killed, and a broker that
takes over finds all that wait.
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
MODES = [
    (),
    (MOVING_CLOCK, RECALL),
    (MOVING_CLOCK, RETENTION),
    (MOVING_CLOCK, SNAPSHOTS),
    (MOVING_CLOCK, DAMAGE),
]


@pytest.mark.parametrize("modes", MODES, ids=lambda modes: " and ".join(modes) or "kills alone")
@pytest.mark.parametrize("histories", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_each_of_many_equal_messages_comes_once_whatever_is_killed(
    tmp_path: Path, modes: tuple[str, ...], histories: int
) -> None:
    for number in range(histories):
        seed = random.SystemRandom().getrandbits(32)
        history = History(tmp_path / str(number), seed, frozenset(modes))
        for _ in range(STEPS):
            history.step()
        history.finish()
