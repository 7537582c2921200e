# SPDX-License-Identifier: Apache-2.0
"""The race of docs/race-sample.html: one burst through two of our engines and both of RocketMQ's.

All that the page shows is kept, also what its pictures are drawn from; five minutes in all, with
the round that is not judged. Then ``tools.generate_performance`` draws the page.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import attrs

from benchmarks.machine import RESULTS, Telling, facts, keeping, tell
from compare.running.observation import RaceSettings
from compare.running.race import ENTRANTS, Race, run_race
from compare.workloads.made_up import Recipe, make_workload

SAMPLE = "race-sample"
_DELAYS_S = (9, 10)


def main() -> None:
    """Run it, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    named = ["levels", "wheel", "java-levels", "java-wheel"]
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--delays-s", type=int, nargs=2, default=_DELAYS_S)
    parser.add_argument("--rounds", type=int, default=3, help="that are judged")
    parser.add_argument("--engines", nargs="+", choices=ENTRANTS, default=named)
    parser.add_argument("--directory", type=Path, help="where to work; needs 2 GB")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    least_s, most_s = options.delays_s
    engines = ",".join(options.engines)
    recipe = Recipe(
        messages=options.messages, delay_min_ms=1_000 * least_s, delay_max_ms=1_000 * most_s
    )
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        race = Race(
            workload=make_workload("burst", recipe),
            engines=options.engines,
            settings=RaceSettings(clock="wall"),
            directory=Path(name, "race"),
            repeat=options.rounds,
            warming=1,
            command=f"delaywheel compare --workload burst --messages {options.messages}"
            f" --delays {least_s}s-{most_s}s --clock wall --engines {engines}"
            f" --repeat {options.rounds}",
        )
        race.directory.mkdir()
        measured: dict[str, Any] = {"facts": facts(Path(name))}
        with keeping(SAMPLE, measured, options.results):
            tell(f"{SAMPLE}: {engines}")
            measured["race"] = attrs.asdict(run_race(race, Telling()))


if __name__ == "__main__":
    main()
