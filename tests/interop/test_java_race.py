# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's own engines run a race in process; what they delivered is read from their files."""

from pathlib import Path

import attrs
import numpy as np
import pytest

from compare.rocketmq.java_engines import JAVA_ENTRANTS
from compare.running.observation import NOT_TAKEN, RaceSettings
from compare.running.work_files import write_workload
from compare.workloads.made_up import Recipe, make_workload
from compare.workloads.workload import Workload
from tests.interop.conftest import Tell

MESSAGES = 600


def a_workload() -> Workload:
    """A third of a second of arrivals; some are wanted at once, one later than any engine can."""
    recipe = Recipe(messages=MESSAGES, rate_per_second=2_000, delay_min_ms=-300, delay_max_ms=1_500)
    workload = make_workload("uniform", recipe)
    workload.due_ms[7] = workload.start_ms + 5 * 86_400_000
    return workload


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("java-levels", marks=[pytest.mark.check, pytest.mark.interop("4.9.7")]),
        pytest.param("java-wheel", marks=[pytest.mark.check, pytest.mark.interop("5.5.0")]),
    ],
)
def test_a_stock_engine_runs_the_race(name: str, tmp_path: Path, tell: Tell) -> None:
    asked = a_workload()
    write_workload(tmp_path / "workload.npz", asked)
    entrant = attrs.evolve(JAVA_ENTRANTS[name], warmup=200)
    wall = RaceSettings(clock="wall")
    seen = entrant.run(tmp_path / "workload.npz", wall, tmp_path / "store", lambda *told: None)
    delivered = seen.delivered
    assert delivered is not None
    refused = np.flatnonzero(seen.promised_ms == NOT_TAKEN)
    assert refused.tolist() == [7]
    assert sorted(delivered.number.tolist()) == [n for n in range(MESSAGES) if n != 7]
    due_ms = asked.starting_at(seen.start_ms).due_ms[delivered.number]
    assert (seen.promised_ms[delivered.number] >= due_ms).all()
    late_ms = delivered.stored_ms - seen.promised_ms[delivered.number]
    assert late_ms.min() >= 0
    assert seen.usage.at_ms
    assert seen.costs.bytes_on_disk > MESSAGES * 1_024
    assert not (tmp_path / "store" / "abort").exists()
    tell(f"{name}: latest {late_ms.max()} ms after its promise; {seen.version}")


@pytest.mark.check
@pytest.mark.interop("4.9.7")
def test_the_levels_of_a_table_of_its_own_are_those_of_the_race(tmp_path: Path) -> None:
    made = make_workload("levels", Recipe(messages=60))
    level = np.arange(60) % 2 + 1
    asked = attrs.evolve(made, level=level, due_ms=made.arrival_ms + (level + 1) * 1_000)
    write_workload(tmp_path / "workload.npz", asked)
    entrant = attrs.evolve(JAVA_ENTRANTS["java-levels"], warmup=0)
    wall = RaceSettings(clock="wall", level_table=asked.level_table())
    seen = entrant.run(tmp_path / "workload.npz", wall, tmp_path / "store", lambda *told: None)
    assert seen.delivered is not None
    assert sorted(seen.delivered.number.tolist()) == [*range(60)]
    waited_ms = seen.promised_ms - seen.start_ms
    assert (waited_ms >= (level + 1) * 1_000).all()  # how late each was put nobody knows
    apart_ms = np.median(waited_ms[1::2] - waited_ms[::2])
    assert 0 < apart_ms < 3_000  # a second; of stock levels, which are 1 s and 5 s, four
