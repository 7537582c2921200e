# SPDX-License-Identifier: Apache-2.0
"""Every scenario of every engine with every fault: nothing acknowledged is lost, nothing comes
twice or early, and what is reported adds up. A failure prints the command that repeats it.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import cycle, product
from pathlib import Path

import pytest

from tests.helpers.tiers import POSITIONS, positions, with_examples
from tests.simulation.cases import (
    FAULTS,
    IN_PROCESS,
    LATER_POWER,
    POWER,
    Outcome,
    Simulation,
    faults_of,
    table,
)
from tests.source_laws import ROOT

TABLE = table()
EACH = [(*row, fault) for row in TABLE for fault in faults_of(row[0])]
FEWER = {"test": 2, "check": 2, "nightly": None}
"""At how many steps a process dies that has a second life after it: that is two cases."""


def assert_survives(simulation: Simulation, fault: str, tier: str) -> None:
    """Try as many steps of a fault as the tier does."""
    assert simulation.wrong == []
    steps = simulation.steps_of(fault)
    wrong = []
    wanted = (FEWER if fault == LATER_POWER else POSITIONS)[tier]
    for step in positions(len(steps), wanted, simulation.seed):
        outcome = simulation.run(fault, steps[step])
        wrong += [outcome.message] if outcome.wrong else []
    assert wrong == [], "\n".join(wrong)


def in_turn() -> list[tuple[str, str, str]]:
    """Every scenario of every engine with one fault; an engine meets all of them in turn."""
    rows = [(scenario, engine, faults_of(scenario)) for scenario, engine in TABLE]
    met = {(engine, faults): cycle(faults) for _, engine, faults in rows}
    return [(scenario, engine, next(met[engine, faults])) for scenario, engine, faults in rows]


@pytest.mark.parametrize(("scenario", "engine", "fault"), in_turn())
def test_a_fault_in_each_scenario(tmp_path: Path, scenario: str, engine: str, fault: str) -> None:
    assert_survives(Simulation(scenario, engine, 1, tmp_path / "case"), fault, "test")


def test_every_engine_meets_every_fault() -> None:
    engines = {engine for _, engine in TABLE}
    assert {(engine, fault) for _, engine, fault in in_turn()} == {*product(engines, FAULTS)}


@pytest.mark.check
@pytest.mark.parametrize(("scenario", "engine"), TABLE)
def test_more_steps_of_each_fault(tmp_path: Path, scenario: str, engine: str) -> None:
    simulation = Simulation(scenario, engine, 2, tmp_path / "case")
    for fault in faults_of(scenario):
        assert_survives(simulation, fault, "check")


@pytest.mark.nightly
@pytest.mark.parametrize(("scenario", "engine", "fault"), EACH)
def test_every_step_of_each_fault(
    tmp_path: Path, scenario: str, engine: str, fault: str, seed: int
) -> None:
    assert_survives(Simulation(scenario, engine, seed, tmp_path / "case"), fault, "nightly")


# --- the harness itself ---------------------------------------------------------------------------


def what_happens(scenario: str, engine: str, fault: str, folder: Path) -> Outcome:
    simulation = Simulation(scenario, engine, 3, folder)
    steps = simulation.steps_of(fault)
    return simulation.run(fault, steps[len(steps) // 2])


@pytest.mark.parametrize(
    ("scenario", "engine"),
    with_examples(
        [("work", "levels"), ("work", "wheel"), ("work", "hierarchy"), ("recovery", "wheel")],
        [("work", "levels")],
    ),
)
@pytest.mark.parametrize("fault", ["kill", "reordered"])
def test_two_runs_of_a_case_are_equal_event_by_event(
    tmp_path: Path, scenario: str, engine: str, fault: str
) -> None:
    one = what_happens(scenario, engine, fault, tmp_path / "case")
    other = what_happens(scenario, engine, fault, tmp_path / "case")
    assert one.events == other.events
    assert one == other
    assert len(one.events) > 50


@pytest.mark.check
def test_every_scenario_writes_where_faults_strike(tmp_path: Path) -> None:
    torn = False
    for number, (scenario, engine) in enumerate(TABLE):
        simulation = Simulation(scenario, engine, 1, tmp_path / str(number))
        assert simulation.wrong == []
        torn |= len(simulation.steps_of("torn")) > 0
        counts = {fault: len(simulation.steps_of(fault)) for fault in (*IN_PROCESS, *POWER)}
        counts.pop("torn")
        assert min(counts.values()) > 0, (scenario, engine, counts)
    assert torn


@pytest.mark.check
def test_the_command_repeats_a_case() -> None:
    command = [sys.executable, "-m", "tests.simulation", "close", "levels", "kill", "--step", "7"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "1 cases, 0 things are wrong\n"


def test_a_lost_message_is_told_with_the_command_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that says it is flushed, and is not."""
    from message_store.writing.store import LiveStore

    monkeypatch.setattr(LiveStore, "flush", lambda _store: None)
    monkeypatch.setattr("legacy_levels.engine.store.LevelStore.flush", lambda _store: None)
    simulation = Simulation("flush", "levels", 1, tmp_path / "case")
    steps = simulation.steps_of("power")
    outcome = simulation.run("power", steps[-1])
    assert any("lost" in each for each in outcome.wrong)
    command = f"tests.simulation flush levels power --step {steps[-1]} --seed 1"
    assert command in outcome.message


@pytest.mark.check
def test_a_flush_waits_for_what_each_step_of_a_killed_one_left(tmp_path: Path) -> None:
    """Slots that were in the file and not on the disk are what a broker goes by."""
    simulation = Simulation("flush", "wheel", 1, tmp_path / "case")
    steps = simulation.steps_of(LATER_POWER)
    outcomes = [simulation.run(LATER_POWER, step) for step in steps]
    assert [each.message for each in outcomes if each.wrong] == []
