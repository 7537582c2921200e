# SPDX-License-Identifier: Apache-2.0
"""Repeats a case: ``python -m tests.simulation SCENARIO ENGINE FAULT --step N --seed S``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.simulation.cases import FAULTS, Simulation, table


def say(*lines: object) -> None:
    """Print."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def main() -> int:
    """Run one case, or every step of a scenario and fault; say what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("scenario", choices=sorted({name for name, _ in table()}))
    parser.add_argument("engine", choices=sorted({engine for _, engine in table()}))
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--step", type=int, help="where the fault strikes; default: everywhere")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="print every change of the disk")
    asked = parser.parse_args()
    if (asked.scenario, asked.engine) not in table():
        parser.error(f"{asked.engine} has no scenario {asked.scenario}")
    with tempfile.TemporaryDirectory(prefix="delaywheel-simulation-") as place:
        simulation = Simulation(asked.scenario, asked.engine, asked.seed, Path(place) / "case")
        steps = simulation.steps_of(asked.fault) if asked.step is None else [asked.step]
        wrong = list(simulation.wrong)
        for step in steps:
            outcome = simulation.run(asked.fault, step)
            if asked.trace:
                say(*outcome.events)
            if outcome.wrong:
                say(outcome.message)
            wrong += outcome.wrong
        say(f"{len(steps)} cases, {len(wrong)} things are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
