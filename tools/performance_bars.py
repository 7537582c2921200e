# SPDX-License-Identifier: Apache-2.0
"""The table of bars on docs/PERFORMANCE.md: what the project set itself, and what was reached."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from benchmarks.bars import (
    ACKNOWLEDGED,
    ACKNOWLEDGED_MESSAGES,
    AIM_RATIO,
    BAR_DRIVER_BYTES,
    BAR_MESSAGES,
    BAR_RATIO,
    BAR_WORKER_BYTES,
    DRIVER_MESSAGES,
    FLEET_MESSAGES,
    FLEET_S,
    FLEET_STORES,
    IN_PROCESS_S,
    LATENESS_MS,
    OPENED_MESSAGES,
    OPENING_S,
    PLAIN,
    POWER_SAFE,
    SHAPES,
    THOUSANDS_A_SECOND,
    VERIFY_RATIO,
    Bar,
)
from benchmarks.machine import spread, table
from benchmarks.power import ENTRANTS, SQLITE

NOT_MEASURED = "not measured"
Results = Mapping[str, Mapping[str, Any]]
_Read = Callable[[Results], Sequence[float]]
_MILLION = 1e6
_KILO = 1e3


@attrs.frozen
class BarRow:
    """One row. ``read`` gives a value a round, in ``unit``, as the bar's limit is."""

    what: str
    bar: Bar
    unit: str
    read: _Read
    digits: int = 0

    def cells(self, results: Results) -> tuple[str, str, str, str]:
        """What, the bar, what was reached, by how much."""
        sign = "≤" if self.bar.is_ceiling else "≥"
        asked = f"{sign} {self.bar.limit:,.{self.digits}f} {self.unit}"
        if self.bar.in_any_round:
            asked += " in any round"
        try:
            values = self.read(results)
        except (KeyError, StopIteration):
            values = ()
        if not values:
            return (self.what, asked, NOT_MEASURED, "")
        reached = f"{spread(values, self.digits)} {self.unit}"
        return (self.what, asked, reached, self._verdict(values))

    def _verdict(self, values: Sequence[float]) -> str:
        judged = self.bar.judged(values)
        above, below = self.bar.limit, judged
        if not self.bar.is_ceiling:
            above, below = below, above
        if below <= 0:
            return "met"
        return f"{'met' if above >= below else '**missed**'}, {above / below:.2f} ×"


def bars_table(results: Results) -> str:
    """Every bar and what was reached."""
    head = ("what", "bar", "here: median (least–most)", "bar and figure")
    return table(head, (row.cells(results) for row in BARS))


def part_of(results: Results, part: str) -> Sequence[Mapping[str, Any]]:
    """The runs of one part of the engines' benchmark, from a file of its own where it has one."""
    found = (results.get(name, {}).get(part, ()) for name in (part, "engines"))
    return next(filter(None, found), ())


# --- where figures are ----------------------------------------------------------------------------


def _conversion(results: Results) -> list[float]:
    found = next(r for r in results["convert"]["runs"] if r["messages"] == BAR_MESSAGES)
    pairs = zip(found["convert"], found["copy"], strict=False)  # cut short: one of them has more
    return [ours["total"] / copy["total"] for ours, copy in pairs]


def _verification(results: Results) -> list[float]:
    """Each of the target of the conversion just before it."""
    found = next(r for r in results["convert"]["runs"] if r["messages"] == BAR_MESSAGES)
    return [each["verify"] / each["total"] for each in found["verified"]]


def _shape(name: str) -> _Read:
    def read(results: Results) -> list[float]:
        found = results["shapes"]
        if found["messages"] != BAR_MESSAGES:
            return []
        pairs = zip(found["shapes"][name], found["shapes"][PLAIN], strict=False)
        return [shaped["total"] / plain["total"] for shaped, plain in pairs]

    return read


def _driver_memory(results: Results) -> list[float]:
    found = next(r for r in results["memory"]["runs"] if r["messages"] == DRIVER_MESSAGES)
    return [found["driver_private_bytes"] / _MILLION]


def _fleet(results: Results) -> list[float]:
    found = results["fleet"]
    is_whole = (found["stores"], found["messages"]) == (FLEET_STORES, FLEET_MESSAGES)
    return list(found["s"]) if is_whole else []


def _worker_memory(results: Results) -> list[float]:
    """Of the largest of all sizes, which should be that of any."""
    watched = [run["memory"] for run in results["convert"]["runs"] if "memory" in run]
    return [max(each["worker_private_bytes"] for each in watched) / _MILLION] if watched else []


def _codec(body_bytes: int) -> _Read:
    def read(results: Results) -> list[float]:
        rounds = results["codec"]["rounds"][str(body_bytes)]
        return [_KILO / each["encode, fresh pages"] for each in rounds]

    return read


def _rate(part: str, engine: str, size: float) -> _Read:
    def read(results: Results) -> list[float]:
        return [each[part] / size for each in results["engines"]["throughput"][part][engine]]

    return read


def _drain(part: str, engine: str) -> _Read:
    """Thousands of messages a second."""

    def read(results: Results) -> list[float]:
        found = results["engines"]["throughput"][part]
        return [found["messages"] / each["drain s"] / _KILO for each in found[engine]]

    return read


def _drain_s(part: str, engine: str, messages: int) -> _Read:
    """Seconds, of so many messages and no fewer."""

    def read(results: Results) -> list[float]:
        found = results["engines"]["throughput"][part]
        rounds = found[engine] if found["messages"] == messages else ()
        return [each["drain s"] for each in rounds]

    return read


def _late(rate: int, precision_ms: int, what: str, percentile: str) -> _Read:
    def read(results: Results) -> list[float]:
        wanted = (rate, precision_ms)
        runs = (r for r in part_of(results, "steady") if (r["rate"], r["precision_ms"]) == wanted)
        return [next(runs)[what][percentile]]

    return read


def _large_wheel(results: Results) -> Mapping[str, Any]:
    wanted = ("wheel", OPENED_MESSAGES)
    runs = part_of(results, "opening")
    return next(run for run in runs if (run["engine"], run["messages"]) == wanted)


def _opened(kind: str) -> _Read:
    return lambda results: [each["open s"] for each in _large_wheel(results)[kind]]


def _bytes_besides(results: Results) -> list[float]:
    found = _large_wheel(results)
    sizes: Mapping[str, int] = found["disk bytes"]
    counted = [size for part, size in sizes.items() if part not in ("commitlog", "timerwheel")]
    return [sum(counted) / found["messages"]]


def _started(command: str, what: str) -> _Read:
    def read(results: Results) -> list[float]:
        return [each[what] for each in results["start"]["commands"][command]]

    return read


def _power_safe(engine: str, batch: int) -> _Read:
    def read(results: Results) -> list[float]:
        runs = [run for run in results["power"]["runs"] if run["batch"] == batch]
        told = [run["messages a second"] for run in runs]
        return [each[engine] / each[SQLITE] for each in told]

    return read


def _acknowledged(what: str, engine: str) -> _Read:
    """Thousands of messages a second."""

    def read(results: Results) -> list[float]:
        found = results["groups"]
        rounds = found["engines"][engine][what]
        is_whole = found["messages"] == ACKNOWLEDGED_MESSAGES
        return [found["messages"] / each["s"] / _KILO for each in rounds] if is_whole else []

    return read


# --- the bars -------------------------------------------------------------------------------------


def _ceiling(limit: float) -> Bar:
    return Bar(limit, is_ceiling=True)


def _lateness_rows() -> Iterator[BarRow]:
    """Those of a steady load; precision 1000 goes without saying."""
    told = {"seen - promised": "by the promise", "seen - due": "by the time asked"}
    for (rate, precision_ms), bars in LATENESS_MS.items():
        load = f"{rate:,}/s" + ("" if precision_ms == 1_000 else f", precision {precision_ms}")
        for what, percentile, bar in bars:
            read = _late(rate, precision_ms, what, percentile)
            yield BarRow(f"{load}: P{percentile} {told[what]}", bar, "ms", read)


_SPEED = THOUSANDS_A_SECOND
_BATCH = attrs.evolve(_SPEED["schedule_batch"], limit=_SPEED["schedule_batch"].limit / _KILO)
_BURST_MESSAGES = 500_000
_BURST = _ceiling(_BURST_MESSAGES / _KILO / _SPEED["burst"].limit)
BARS = (
    BarRow("conversion of 4 million / `cp` + `sync` of the same log", _ceiling(BAR_RATIO), "×",
           _conversion, 2),
    BarRow("the same, what is aimed at", _ceiling(AIM_RATIO), "×", _conversion, 2),
    BarRow("verification of 4 million / the conversion before it", _ceiling(VERIFY_RATIO), "×",
           _verification, 2),
    *(BarRow(f"conversion of 4 million, {name} / plain", bar, "×", _shape(name), 2)
      for name, bar in SHAPES.items()),
    BarRow(f"{FLEET_STORES} stores of {FLEET_MESSAGES:,}, three of them broken, one command",
           _ceiling(FLEET_S), "s", _fleet, 1),
    BarRow("`convert --in-process` of the sample, from the shell", _ceiling(IN_PROCESS_S), "s",
           _started("convert --in-process", "s"), 2),
    BarRow(f"private memory of the driver, {DRIVER_MESSAGES // 1_000_000} million small messages",
           _ceiling(BAR_DRIVER_BYTES / _MILLION), "MB", _driver_memory),
    BarRow("private memory of a conversion's worker", _ceiling(BAR_WORKER_BYTES / _MILLION), "MB",
           _worker_memory),
    BarRow("records encoded by a core, 1 KB", Bar(2), "million/s", _codec(1024), 1),
    BarRow("records encoded by a core, 256 B", Bar(4), "million/s", _codec(256), 1),
    *(BarRow(f"`schedule`, {engine}", _SPEED["schedule"], "thousand/s",
             _rate("schedule", engine, _KILO)) for engine in ("levels", "wheel")),
    *(BarRow(f"`schedule_batch`, {engine}", _BATCH, "million/s",
             _rate("schedule_batch", engine, _MILLION), 2) for engine in ("levels", "wheel")),
    *(BarRow(f"drain of {name}", _SPEED[name], "thousand/s", _drain(name, "levels"))
      for name in ("one level", "all levels")),
    BarRow(f"drain of a burst of {_BURST_MESSAGES:,}, wheel", _BURST, "s",
           _drain_s("burst", "wheel", _BURST_MESSAGES), 2),
    *_lateness_rows(),
    *(BarRow(f"{engine}, {batch:,} at a time, power-safe / SQLite FULL", bar, "×",
             _power_safe(engine, batch), 2) for batch, bar in POWER_SAFE.items()
      for engine in ENTRANTS),
    *(BarRow(f"received and acknowledged, {what}, {engine}", bar, "thousand/s",
             _acknowledged(what, engine)) for what, bar in ACKNOWLEDGED.items()
      for engine in ENTRANTS),
    BarRow("opening a wheel of 10 million, clean", OPENING_S["clean"], "s", _opened("clean"), 2),
    BarRow("opening it after a kill", OPENING_S["killed"], "s", _opened("killed"), 2),
    BarRow("bytes on disk a waiting message, besides record and wheel",
           _ceiling(72.4), "bytes", _bytes_besides, 1),
    BarRow("`delaywheel --help`", _ceiling(0.5), "s", _started("help", "s"), 2),
    BarRow("silence of a first run that compiles", _ceiling(4), "s",
           _started("first", "first word s"), 2),
)  # fmt: skip
