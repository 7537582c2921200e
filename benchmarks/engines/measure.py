# SPDX-License-Identifier: Apache-2.0
"""What the two engines do in a second: schedule, deliver, keep up, open.

Rounds are in turns, engine by engine, after one that is thrown away, and printed apart. A drain is
held beside writing the same bytes into a new file in the same round.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engines.lateness import Steady, steady
from benchmarks.engines.loads import ALL_ENGINES, ENGINES
from benchmarks.engines.opening import opening
from benchmarks.engines.throughput import (
    Round,
    all_levels,
    burst,
    in_batches,
    one_by_one,
    one_level,
)
from benchmarks.machine import RESULTS, facts, keeping, prewarm
from message_store.reading.engine_choice import EngineName

PARTS = ("schedule", "batch", "burst", "levels", "steady", "opening")
_RECORD_BYTES = 250
_Measure = Callable[[EngineName, Path, int, int], Round]


def throughput(options: argparse.Namespace, place: Path, found: dict[str, Any]) -> None:
    """Everything that is measured in rounds; engines take turns. ``copies`` is how many copies of
    the messages a round writes, its own yardstick among them.
    """
    wanted: list[tuple[str, str, _Measure, int, int]] = [
        ("schedule", "schedule", one_by_one, options.messages, 2),
        ("batch", "schedule_batch", in_batches, options.batch, 1),
        ("burst", "burst", burst, options.burst, 3),
        ("levels", "one level", one_level, options.drain, 3),
        ("levels", "all levels", all_levels, options.drain, 3),
    ]
    for part, name, measure, count, copies in wanted:
        if part in options.parts:
            found[name] = {"messages": count, **{engine: [] for engine in options.engines}}
            warm_bytes = copies * count * (options.body_bytes + _RECORD_BYTES)
            for number in range(options.rounds + 1):
                for engine in options.engines:
                    prewarm(warm_bytes)
                    took = measure(engine, place, count, options.body_bytes)
                    if number:  # the first round is thrown away
                        found[name][engine].append(took)


def steady_runs(options: argparse.Namespace, place: Path, found: list[dict[str, Any]]) -> None:
    """One run for each rate and precision; the levels cannot: they know eighteen delays."""
    for rate in options.rates if "wheel" in options.engines else ():
        for precision_ms in options.precisions:
            seconds = sending_s(options, rate)
            prewarm(int(seconds * bytes_a_second(options, rate)))
            wanted = Steady(
                rate=rate,
                precision_ms=precision_ms,
                seconds=seconds,
                body_bytes=options.body_bytes,
                longest_delay_ms=options.longest_delay_ms,
            )
            found.append(steady("wheel", place, wanted))


def sending_s(options: argparse.Namespace, rate: int) -> float:
    """As long as asked for, or until the store, in which a message stands twice, is as large as it
    may be: a run whose log no longer fits into memory measures the disk.
    """
    most_s = options.steady_gb * 10**9 // bytes_a_second(options, rate)
    return min(float(options.steady_s), float(most_s))


def bytes_a_second(options: argparse.Namespace, rate: int) -> int:
    """What is written at a rate of messages."""
    written: int = 2 * rate * (options.body_bytes + _RECORD_BYTES)
    return written


def openings(options: argparse.Namespace, place: Path, found: list[dict[str, Any]]) -> None:
    """Every number of waiting messages, engine by engine."""
    for count in options.pending:
        for engine in options.engines:
            found.append(opening(engine, place, count, options.rounds))
            shutil.rmtree(place / "store")


def arguments() -> argparse.Namespace:
    """How much of everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ALL_ENGINES, default=list(ENGINES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--body-bytes", type=int, default=1_024)
    parser.add_argument("--messages", type=int, default=200_000, help="scheduled one by one")
    parser.add_argument("--batch", type=int, default=500_000, help="scheduled at once")
    parser.add_argument("--burst", type=int, default=500_000, help="due in the same second")
    parser.add_argument("--drain", type=int, default=200_000, help="due in the levels")
    parser.add_argument("--rates", type=int, nargs="+", default=[14_000, 50_000, 100_000])
    parser.add_argument("--precisions", type=int, nargs="+", default=[1_000, 100])
    parser.add_argument("--steady-s", type=float, default=30, help="of sending, at most")
    parser.add_argument("--steady-gb", type=float, default=16, help="of store, at most")
    parser.add_argument("--longest-delay-ms", type=int, default=20_000)
    parser.add_argument("--pending", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--directory", type=Path, help="where to work; needs 16 GB")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--name", default="engines", help="of the result files")
    return parser.parse_args()


def main() -> None:
    """Measure, print, keep."""
    options = arguments()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        measured: dict[str, Any] = {
            "facts": facts(place),
            "rounds": options.rounds,
            "body_bytes": options.body_bytes,
            "longest_delay_ms": options.longest_delay_ms,
            "throughput": {},
            "steady": [],
            "opening": [],
        }
        with keeping(options.name, measured, options.results):
            throughput(options, place, measured["throughput"])
            if "steady" in options.parts:
                steady_runs(options, place, measured["steady"])
            if "opening" in options.parts:
                openings(options, place, measured["opening"])


if __name__ == "__main__":
    main()
