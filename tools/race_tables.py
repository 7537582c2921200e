# SPDX-License-Identifier: Apache-2.0
"""Races as tables, a row an engine, of what ``benchmarks.race`` and ``benchmarks.waiting`` keep."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.machine import spread, table
from benchmarks.waiting import ENDS
from compare.report.results import is_busy
from tools.performance_bars import NOT_MEASURED, Results

RACES = ("race", "race-steady")
_KILO = 1e3
_MILLION = 1e6
_Told = Mapping[str, Any]
"""What is kept of one engine."""


def _rounds(name: str, unit: float = 1) -> Callable[[_Told], str]:
    """The median of the rounds, the least and the most."""

    def cell(told: _Told) -> str:
        values = [value / unit for each in told["rounds"] if (value := each[name]) is not None]
        return spread(values, 0) if values else "–"

    return cell


def _late(name: str, worst: str, unit: float = 1, of_rounds: str = "") -> Callable[[_Told], str]:
    """P50 and a worse one; of that each round has its own where it is named."""

    def cell(told: _Told) -> str:
        if (late := told[name]) is None:
            return "–"
        digits = 0 if unit == 1 else 1
        each = [value for each in told["rounds"] if (value := each.get(of_rounds)) is not None]
        return f"{late['p50'] / unit:,.{digits}f} / {spread(each or [late[worst] / unit], digits)}"

    return cell


_COLUMNS: Mapping[str, Callable[[_Told], str]] = {
    "messages": lambda told: f"{told['taken']:,}",
    "put, thousand/s": _rounds("put_per_second", _KILO),
    "drained, thousand/s": _rounds("drain_per_second", _KILO),
    "woken": lambda told: f"{told['woken']:,}",
    "by the time asked: P50 / P99, s": _late("lateness_ms", "p99", _KILO),
    "by the time asked: P50 / P99.9, ms": _late("lateness_ms", "p999"),
    "by the promise: P50 / P99.9, ms": _late(
        "lateness_after_promise_ms", "p999", of_rounds="after_promise_p999_ms"
    ),
    "wrong": lambda told: f"{told['early'] + told['missing'] + told['duplicates']:,}",
    "CPU, %": _rounds("cpu_percent"),
    "private memory, MB": lambda told: f"{told['peak_private_bytes'] / _MILLION:,.0f}",
    "bytes on disk a message": lambda told: f"{told['bytes_on_disk'] / told['taken']:,.0f}",
}
_OF_A_RACE = ("put, thousand/s", "drained, thousand/s", "by the time asked: P50 / P99.9, ms",
              "by the promise: P50 / P99.9, ms", "wrong", "CPU, %")  # fmt: skip
_OF_MUCH = ("messages", "put, thousand/s", "drained, thousand/s", "woken",
            "by the time asked: P50 / P99, s", "wrong", "CPU, %", "private memory, MB",
            "bytes on disk a message")  # fmt: skip


def _engine_rows(engines: Mapping[str, _Told], columns: Sequence[str]) -> Iterator[Sequence[str]]:
    """A row an engine; of one that did not run, why."""
    for name, told in engines.items():
        if why := told.get("unavailable"):
            yield (name, why, *[""] * (len(columns) - 1))
        else:
            yield (name, *(_COLUMNS[column](told) for column in columns))


def race_tables(results: Results) -> str:
    """Ours beside RocketMQ's own, a row an engine and race."""
    rows: list[Sequence[str]] = []
    for name, event, cores in _race_events(results):
        if is_busy(event["load before"], cores):
            name += f" (on a busy machine, load {event['load before']})"
        rows += ((name, *row) for row in _engine_rows(event["engines"], _OF_A_RACE))
        told_ratios = (
            f"{what} {each['median']:.2f} × (worst pair {each['worst']:.2f} ×)"
            for what, each in event["ratios"].items()
        )
        if ratios := ", ".join(told_ratios):
            rows.append(("", "**ours / RocketMQ's**", ratios, *[""] * 5))
    head = ("race", "engine", *_OF_A_RACE)
    return table(head, rows) if rows else f"The race was {NOT_MEASURED}."


def _race_events(results: Results) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """All races of the files, the last of those of one name, and how many cores each had."""
    found = {
        name: (name, event, results[file]["facts"]["cores"])
        for file in RACES
        for name, event in results.get(file, {}).get("events", {}).items()
    }
    yield from found.values()


def _waiting_races(results: Results) -> Iterator[Mapping[str, _Told]]:
    for race in results.get("waiting", {}).get("races", ()):
        yield race["engines"]


def waiting_table(results: Results) -> str:
    """Three engines with much in them: filled and emptied."""
    rows = [row for race in _waiting_races(results) for row in _engine_rows(race, _OF_MUCH)]
    return table(("engine", *_OF_MUCH), rows) if rows else f"Much that waits was {NOT_MEASURED}."


def reopenings_table(results: Results) -> str:
    """The same engines: opened again, warm and with nothing in the page cache."""
    rows = [
        (name, *_opening_cells(ENDS[fault["kind"]], fault["opening"]))
        for race in _waiting_races(results)
        for kind in ENDS
        for name, told in race.items()
        for fault in told.get("faults", ())
        if fault["kind"] == kind and fault["opening"] is not None
    ]
    head = ("engine", "waiting", "it was", "opened in, s", "MB read", "first delivery, s",
            "messages in it", "MB read for it")  # fmt: skip
    return table(head, rows) if rows else f"An opening again was {NOT_MEASURED}."


def _opening_cells(title: str, opening: Mapping[str, Any]) -> Iterator[str]:
    yield f"{opening['waiting']:,}"
    yield title
    yield f"{opening['open_s']:.2f}"
    yield f"{opening['read_bytes'] / _MILLION:,.0f}"
    yield f"{opening['first_s']:.3f}"
    yield f"{opening['first_messages']:,}"
    yield f"{opening['first_read_bytes'] / _MILLION:,.0f}"
