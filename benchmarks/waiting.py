# SPDX-License-Identifier: Apache-2.0
"""The three engines with a million and with ten million messages waiting, in the races of
``delaywheel compare``: what it costs to fill them, to open them again and to empty them.

Each is closed once, killed once, and once killed on a machine that is then started again, so that
nothing of its files is in the page cache. And what it costs to find one message among those that
wait in a store, as ``delaywheel pending --key`` does.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, Telling, facts, keeping, prewarm
from benchmarks.race import figures
from compare.report.results import RaceResults
from compare.running.faults import KILL, REBOOT, RESTART, Fault
from compare.running.observation import RaceSettings
from compare.running.race import Race, run_race
from compare.workloads.made_up import Recipe, make_workload
from legacy_levels.generate.store import generate_level_store
from message_store.base.clock import stopwatch_s
from migrate.convert import convert
from migrate.look.pending import PendingFilter, pending_messages
from migrate.settings import ConvertOptions

ENDS = {
    RESTART: "closed",
    KILL: "killed",
    REBOOT: "killed, not in the page cache",
}
"""How a store was ended before it was opened again, in the order in which that happens."""
_ENGINES = ("levels", "wheel", "hierarchy")
_LEAST_MS, _LONGEST_MS = 30_000, 1_200_000
_FIRST_END_MS, _APART_MS = 70_000, 60_000
_BODY_BYTES = 256


def race(count: int, engine: str, directory: Path) -> RaceResults:
    """One engine's race with so many messages."""
    recipe = Recipe(
        messages=count,
        body_bytes=_BODY_BYTES,
        delay_min_ms=_LEAST_MS,
        delay_max_ms=_LONGEST_MS,
    )
    ends = (Fault(kind, _FIRST_END_MS + number * _APART_MS) for number, kind in enumerate(ENDS))
    with tempfile.TemporaryDirectory(dir=directory) as name:
        wanted = Race(
            workload=make_workload("uniform", recipe),
            engines=(engine,),
            settings=RaceSettings(faults=tuple(ends)),
            directory=Path(name),
        )
        return run_race(wanted, Telling())


_STOPPED_MS = 1_767_323_045_000
_FILTERS = {
    "--key": PendingFilter(key="in no message"),
    "--topic": PendingFilter(topic="in no message"),
    "--due-after": PendingFilter(due_after_ms=_STOPPED_MS + 10 * 86_400_000),
}


def listings(count: int, directory: Path) -> Iterator[dict[str, Any]]:
    """How long a search that finds nothing takes, in levels and in the wheel made of them."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        levels, wheel = Path(name, "levels"), Path(name, "wheel")
        generate_level_store(levels, messages=count, now_ms=_STOPPED_MS, body_bytes=_BODY_BYTES)
        convert(ConvertOptions(source=levels, target=wheel, now_ms=_STOPPED_MS))
        for kind, path in (("levels", levels), ("wheel", wheel)):
            for flag, wanted in _FILTERS.items():
                started_s = stopwatch_s()
                found = sum(1 for _ in pending_messages(path, wanted, now_ms=_STOPPED_MS))
                took_s = stopwatch_s() - started_s
                if found:
                    raise AssertionError(f"{kind}: {found} messages that nobody asked for")
                yield {"store": kind, "messages": count, "filter": flag, "seconds": took_s}


def arguments() -> argparse.Namespace:
    """How much of everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--listed", type=int, default=4_000_000, help="how many to search among")
    parser.add_argument("--directory", type=Path, help="where to work; 10 million need 16 GB")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    """Measure, print, keep."""
    options = arguments()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        measured: dict[str, Any] = {"facts": facts(Path(name)), "races": []}
        with keeping("waiting", measured, options.results):
            for count in options.messages:
                told: dict[str, Any] = {"messages": count, "engines": {}}
                measured["races"].append(told)
                for engine in _ENGINES:  # one by one: what was measured is kept when it is ended
                    prewarm()
                    told["engines"] |= figures(race(count, engine, Path(name)))["engines"]
            prewarm()
            measured["listings"] = list(listings(options.listed, Path(name)))


if __name__ == "__main__":
    main()
