# SPDX-License-Identifier: Apache-2.0
"""What the two engines do in a second: schedule, deliver, keep up, open.

Rounds are in turns, engine by engine, after one that is thrown away, and printed apart. A drain is
held beside writing the same bytes into a new file in the same round. The bars are those that the
project set itself; the figures beside them are RocketMQ's own engines' on such a machine, in one
process and warm, and were not measured in this run.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine_bars import (
    OPENED_MESSAGES,
    OPENING_S,
    lateness_verdicts,
    opening_verdict,
    throughput_verdict,
)
from benchmarks.engine_loads import ENGINES, OpenStore
from benchmarks.engine_opening import opening
from benchmarks.engine_steady import Steady, steady
from benchmarks.engine_throughput import (
    Round,
    all_levels,
    burst,
    in_batches,
    one_by_one,
    one_level,
)
from benchmarks.machine import RESULTS, facts, facts_text, keeping, prewarm, spread, table

PARTS = ("schedule", "batch", "burst", "levels", "steady", "opening")
_KILO = 1_000
_RECORD_BYTES = 250
_STEADY_WARM_BYTES = 1 << 30
_Measure = Callable[[OpenStore, Path, int, int], Round]


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
                    took = measure(ENGINES[engine], place, count, options.body_bytes)
                    if number:  # the first round is thrown away
                        found[name][engine].append(took)


def steady_runs(options: argparse.Namespace, place: Path, found: list[dict[str, Any]]) -> None:
    """One run for each rate and precision; the levels cannot: they know eighteen delays."""
    for rate in options.rates if "wheel" in options.engines else ():
        for precision_ms in options.precisions:
            prewarm(_STEADY_WARM_BYTES)
            wanted = Steady(
                rate=rate,
                precision_ms=precision_ms,
                seconds=sending_s(options, rate),
                body_bytes=options.body_bytes,
                longest_delay_ms=options.longest_delay_ms,
            )
            found.append(steady(ENGINES["wheel"], place, wanted))


def sending_s(options: argparse.Namespace, rate: int) -> float:
    """As long as asked for, or until the store, in which a message stands twice, is as large as it
    may be: a run whose log no longer fits into memory measures the disk.
    """
    bytes_a_second = 2 * rate * (options.body_bytes + _RECORD_BYTES)
    return min(float(options.steady_s), float(options.steady_gb * 10**9 // bytes_a_second))


def openings(options: argparse.Namespace, place: Path, found: list[dict[str, Any]]) -> None:
    """Every number of waiting messages, engine by engine."""
    for count in options.pending:
        for engine in options.engines:
            found.append(opening(engine, place, count, options.rounds))
            shutil.rmtree(place / "store")


def throughput_text(found: dict[str, Any]) -> str:
    """Rates and drains: the rounds apart, the bar beside them."""
    rows = []
    for name, measured in found.items():
        count = measured["messages"]
        for engine, rounds in measured.items():
            if engine != "messages":
                rows += _round_rows(name, engine, count, rounds)
    head = ("what", "engine", "messages", "rounds", "median (least–most)", "bar", "reached")
    return table(head, rows) if rows else "Not measured in this run."


def _round_rows(
    name: str, engine: str, count: int, rounds: Sequence[Round]
) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    if not rounds:
        return rows
    if "drain s" not in rounds[0]:
        for what in rounds[0]:
            rates = [each[what] / _KILO for each in rounds]
            each = ", ".join(f"{rate:,.0f}" for rate in rates)
            middle = f"{spread(rates, 0)} thousand/s"
            verdict = throughput_verdict(what, rates)
            rows.append((what, engine, f"{count:,}", each, middle, *verdict))
        return rows
    seconds = [each["drain s"] for each in rounds]
    rates = [count / took / _KILO for took in seconds]
    each = ", ".join(f"{took:.3f} s" for took in seconds)
    middle = f"{spread(rates, 0)} thousand/s"
    rows.append((name, engine, f"{count:,}", each, middle, *throughput_verdict(name, rates)))
    placing = [each["placing s"] for each in rounds]
    ratios = [each["ratio"] for each in rounds]
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    rows.append(("… / writing those bytes", engine, "", each, spread(ratios), "", ""))
    each = ", ".join(f"{took:.3f} s" for took in placing)
    rows.append(("… placing before it", engine, "", each, f"{spread(placing, 3)} s", "", ""))
    return rows


def steady_text(runs: Sequence[dict[str, Any]]) -> str:
    """Lateness under a steady load, one row a run."""
    rows = []
    for run in runs:
        late = [_percentiles(run[name]) for name in ("seen - due", "seen - promised")]
        rows.append(
            (
                f"{run['rate']:,}",
                f"{run['reached a second']:,.0f}",
                f"{run['seconds']:g}",
                run["precision_ms"],
                *late,
                f"{run['stored - promised']['99.9']:.0f}",
                f"{run['cpu percent']:.0f}",
                f"{run['longest schedule ms']:.0f}",
                f"{run['sent'] - run['delivered']:,} / {run['early']:,}",
                lateness_verdicts(run),
            )
        )
    titles = ("rate/s", "reached", "sent for s", "precision ms", "seen − due", "seen − promised")
    more = ("stored − promised P99.9", "CPU %", "longest schedule ms", "missing / early", "bars")
    return table((*titles, *more), rows) if rows else "Not measured in this run."


def _percentiles(found: dict[str, float]) -> str:
    return " / ".join(f"{value:,.0f}" for value in found.values())


def opening_text(runs: Sequence[dict[str, Any]]) -> str:
    """Seconds to open, bytes a waiting message."""
    rows = []
    for run in runs:
        count, disk = run["messages"], run["disk bytes"]
        besides = {part: size for part, size in disk.items() if part != "commitlog"}
        held = [each["private bytes"] for each in run["clean"] + run["killed"]]
        rows.append(
            (
                f"{count:,}",
                run["engine"],
                *(_opened(run, kind) for kind in ("clean", "killed")),
                spread([each["process s"] for each in run["clean"]]),
                f"{disk['commitlog'] / count:.0f}",
                ", ".join(f"{part} {size / count:.1f}" for part, size in besides.items()),
                f"{max(held) / count:.1f}",
            )
        )
    titles = ("waiting", "engine", "open s, clean", "open s, killed", "whole process s")
    more = ("log bytes each", "other bytes on disk each", "private bytes in memory each")
    return table((*titles, *more), rows) if rows else "Not measured in this run."


def _opened(run: dict[str, Any], kind: str) -> str:
    seconds = [each["open s"] for each in run[kind]]
    return spread(seconds) + opening_verdict(run["messages"], kind, seconds)


def _opening_bars() -> str:
    said = (f"{kind} {bar.limit:g} s, RocketMQ {bar.java}" for kind, bar in OPENING_S.items())
    return f"Bars for {OPENED_MESSAGES:,}: {'; '.join(said)}."


def report_text(measured: dict[str, Any]) -> str:
    """What was measured, for people."""
    return f"""# The engines

{facts_text(measured["facts"])}

Bodies of {measured["body_bytes"]:,} bytes, {measured["rounds"]} rounds in turns after one that is
thrown away.

## In and out

{throughput_text(measured["throughput"])}

## Steady load

Delays of 1.2 to {measured["longest_delay_ms"] / _KILO:g} s, a flush each second; least / P50 / P90
/ P99 / P99.9 / most, ms. Seen is when `advance` came back, stored is the time in the record.

{steady_text(measured["steady"])}

## Opening

Records of 256-byte bodies; each opening in a process of its own. {_opening_bars()}

{opening_text(measured["opening"])}"""


def arguments() -> argparse.Namespace:
    """How much of everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
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
        with keeping(options.name, measured, report_text, options.results):
            throughput(options, place, measured["throughput"])
            if "steady" in options.parts:
                steady_runs(options, place, measured["steady"])
            if "opening" in options.parts:
                openings(options, place, measured["opening"])


if __name__ == "__main__":
    main()
