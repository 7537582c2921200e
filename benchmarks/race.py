# SPDX-License-Identifier: Apache-2.0
"""Our engines and RocketMQ's own in the same races: the same messages, on the same machine, by the
wall clock, one after the other, in turns.

RocketMQ's engines run in process, warm, without a network; what all of them delivered is read from
their files by the same code. Where there is no JDK or no Maven their columns say so. Beside
RocketMQ's engines ours put one by one, as those do; races in batches are ours alone. The first
round of each race is kept, but not judged. Memory is warmed before each run of each engine.
"""

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.machine import RESULTS, Telling, facts, keeping, settle, tell
from compare.report.results import EngineResult, RaceResults
from compare.running.observation import RaceSettings
from compare.running.race import Race, run_race
from compare.workloads.made_up import Recipe, make_workload
from compare.workloads.workload import Workload
from message_store.format.delay_levels import DelayLevels

_SHORT_LEVELS = 3


@attrs.frozen
class Event:
    """One race of the meeting."""

    name: str
    workload: Workload
    engines: tuple[str, ...]
    precision_ms: int = 1_000


def events(options: argparse.Namespace) -> list[Event]:
    """All races, the short ones first."""
    burst = Recipe(messages=options.burst, delay_max_ms=options.burst_after_ms)
    wheels, levels = ("wheel", "java-wheel"), ("levels", "java-levels")
    found = [
        Event(name + how, workload, engines[:count])
        for name, workload, engines in (
            ("levels", short_levels(options.levels), levels),
            ("burst", make_workload("burst", burst), wheels),
        )
        for how, count in (("", 2), (", in batches", 1))
    ]
    for rate, precision_ms in itertools.product(options.rates, (1_000, 100)):
        steady = Recipe(
            messages=int(rate * options.steady_s),
            rate_per_second=rate,
            delay_min_ms=1_200,
            delay_max_ms=options.longest_delay_ms,
        )
        name = f"steady, {rate:,}/s, precision {precision_ms}"
        found.append(Event(name, make_workload("uniform", steady), wheels, precision_ms))
    return [event for event in found if event.name.split(",")[0] in options.events]


def short_levels(count: int) -> Workload:
    """All at once, for the levels that nobody has to wait for long."""
    workload = make_workload("levels", Recipe(messages=count))
    level = np.arange(count) % _SHORT_LEVELS + 1
    delays_ms = np.array(DelayLevels.parse().delays_ms)[level - 1]
    return attrs.evolve(workload, level=level, due_ms=workload.arrival_ms + delays_ms)


def run(event: Event, rounds: int, directory: Path) -> RaceResults:
    """One race, with one round before those that are judged."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        race = Race(
            workload=event.workload,
            engines=event.engines,
            settings=RaceSettings(clock="wall", precision_ms=event.precision_ms),
            directory=Path(name),
            repeat=rounds,
            warming=1,
        )
        return run_race(race, Telling())


# --- what is kept ---------------------------------------------------------------------------------


def figures(results: RaceResults) -> dict[str, Any]:
    """What the tables need of a race."""
    told = results.as_json()
    kept = ("workload", "puts_one_by_one", "engines")
    return {name: told[name] for name in kept} | {"load before": told["machine"]["load before"]}


_HIGHER, _LOWER = (min, max), (max, min)
_RATIOS = {
    "put": ("put_per_second", _HIGHER),
    "drained": ("drain_per_second", _HIGHER),
    "CPU": ("cpu_percent", _LOWER),
    "P99.9 by the promise": ("after_promise_p999_ms", _LOWER),
}
"""What is compared; which of ours and of theirs makes the worst pair."""


def ratios(engines: Mapping[str, EngineResult]) -> dict[str, dict[str, float]]:
    """Ours divided by RocketMQ's, the medians and the worst pair of rounds: more is better for
    speeds, less for lateness and CPU.
    """
    ours = next((e for n, e in engines.items() if not n.startswith("java-")), None)
    theirs = None if ours is None else engines.get(f"java-{ours.name}")
    if ours is None or theirs is None or theirs.unavailable or ours.unavailable:
        return {}
    found = {}
    for what, (name, (of_ours, of_theirs)) in _RATIOS.items():
        a, b = (
            [value for each in engine.rounds if (value := getattr(each, name)) is not None]
            for engine in (ours, theirs)
        )
        if a and b and min(b) > 0:
            median = statistics.median(a) / statistics.median(b)
            found[what] = {"median": median, "worst": of_ours(a) / of_theirs(b)}
    return found


def arguments() -> argparse.Namespace:
    """How much of everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = ("levels", "burst", "steady")
    parser.add_argument("--events", nargs="+", choices=names, default=list(names))
    parser.add_argument("--rounds", type=int, default=3, help="that are judged, of each race")
    parser.add_argument("--burst", type=int, default=500_000)
    parser.add_argument("--burst-after-ms", type=int, default=20_000)
    parser.add_argument("--levels", type=int, default=200_000)
    parser.add_argument("--rates", type=int, nargs="+", default=[14_000, 50_000])
    parser.add_argument("--steady-s", type=float, default=12, help="of each round")
    parser.add_argument("--longest-delay-ms", type=int, default=8_000)
    parser.add_argument("--directory", type=Path, help="where to work; needs 5 GB")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--name", default="race", help="of the result file")
    return parser.parse_args()


def main() -> None:
    """Measure, print, keep."""
    options = arguments()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        measured: dict[str, Any] = {
            "facts": facts(Path(name)),
            "rounds": options.rounds,
            "events": {},
        }
        with keeping(options.name, measured, options.results):
            for event in events(options):
                settle()
                tell(event.name)
                results = run(event, options.rounds, Path(name))
                found = ratios({each.name: each for each in results.engines})
                measured["events"][event.name] = figures(results) | {"ratios": found}


if __name__ == "__main__":
    main()
