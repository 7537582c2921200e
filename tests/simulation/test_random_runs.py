# SPDX-License-Identifier: Apache-2.0
"""Two random runs of a seed are equal, change by change of the disk, and a few seeds are sound."""

from pathlib import Path

import pytest

from tests.simulation.random_runs import MIGRATION_EVERY, run_seed

SOUND = (1, 2, 3, 4, 6, 7)


@pytest.mark.check
@pytest.mark.parametrize("number", SOUND)
def test_a_run_is_sound_and_the_same_again(tmp_path: Path, number: int) -> None:
    assert number % MIGRATION_EVERY
    one, other = (run_seed(number, tmp_path / "run") for _ in range(2))
    assert not one.wrong, one.trace
    assert one.trace == other.trace
    assert len(one.events) == len(other.events)
