# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/PERFORMANCE.md with queues that a Python user would pick instead."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.machine import spread, table
from benchmarks.peers import FAST, Measurement
from tools.performance_bars import NOT_MEASURED, Results

_MILLION = 1e6


def _entrants(results: Results) -> list[str]:
    """Those that could be tried."""
    told = results.get("peers", {}).get("entrants", {})
    return [name for name, each in told.items() if not each["unavailable"]]


def _runs(results: Results, wanted: Measurement, entrant: str) -> list[Mapping[str, Any]]:
    return [
        run
        for run in results["peers"]["runs"]
        if (run["what"], run["outlives"], run["batch"], run["entrant"])
        == (wanted.what, wanted.outlives, wanted.batch, entrant)
    ]


def _title(wanted: Measurement) -> str:
    many = "one by one" if wanted.batch == 1 else f"{wanted.batch:,} at a time"
    outlives = f", outlives {wanted.outlives}" if wanted.what == "put" else ""
    return f"{wanted.what} {many}{outlives}"


def rates_table(results: Results) -> str:
    """Puts and drains: like beside like, the median and the spread of all rounds."""
    rows = [
        (_title(wanted), entrant, *_rate_cells(runs))
        for wanted in FAST
        for entrant in _entrants(results)
        if (runs := _runs(results, wanted, entrant))
    ]
    head = ("what", "queue", "messages/s: median (least–most)", "µs of processor time a message",
            "load, its own in it")  # fmt: skip
    return table(head, rows) if rows else f"Puts and drains of peers were {NOT_MEASURED}."


def _rate_cells(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    done = [run for run in runs if "failed" not in run and run["messages"] > 0]
    if not done:
        yield from (_why(runs), "–", "–")
        return
    failed = f", failed {len(runs) - len(done)} ×" if len(done) < len(runs) else ""
    yield spread([run["messages"] / run["s"] for run in done], 0) + failed
    yield spread([run["cpu s"] / run["messages"] * _MILLION for run in done], 1)
    yield f"{max(run['load'] for run in done):.1f}"


def _why(runs: Sequence[Mapping[str, Any]]) -> str:
    """Why a measurement has no figure: the error, without what would end a cell of a table."""
    said = next((run["failed"] for run in runs if "failed" in run), "no message in time")
    return f"failed: {said.replace('|', '/')}"


def lateness_table(results: Results) -> str:
    """A steady load: how late by the time asked, and for how much of a core."""
    rows: list[Sequence[str]] = []
    for entrant in _entrants(results):
        for run in _runs(results, Measurement("lateness"), entrant):
            if "failed" in run:
                rows.append((entrant, _why([run]), *["–"] * 6))
                continue
            late = run["late ms"]
            rows.append((
                entrant,
                f"{run['sent'] / run['sent for s']:,.0f}",
                f"{run['different']:,} of {run['sent']:,}",
                *(f"{late[each]:,}" if late else "–" for each in ("50", "99", "100")),
                f"{run['early']:,}",
                f"{100 * run['cpu s'] / run['sent for s']:.0f}",
            ))  # fmt: skip
    head = ("queue", "sent/s", "delivered", "P50, ms", "P99, ms", "latest, ms", "early",
            "CPU, % of the time of sending")  # fmt: skip
    return table(head, rows) if rows else f"The lateness of peers was {NOT_MEASURED}."


def kills_table(results: Results) -> str:
    """What was left after two kills, and what a waiting message takes on disk."""
    rows: list[Sequence[str]] = []
    for entrant in _entrants(results):
        for run in _runs(results, Measurement("kill"), entrant):
            names = ("answered", "handled before the second kill", "never handled", "handled twice")
            cells = [f"{run[name]:,}" for name in names] if "failed" not in run else [
                _why([run]), *["–"] * 3]  # fmt: skip
            rows.append((entrant, *cells, _disk(results, entrant)))
    head = ("queue", "answered", "handled before the second kill", "never handled",
            "handled twice", "bytes on disk a waiting message of 1,024")  # fmt: skip
    return table(head, rows) if rows else f"Kills of peers were {NOT_MEASURED}."


def _disk(results: Results, entrant: str) -> str:
    """Of the put that left the most: a small store is mostly its empty files."""
    puts = [
        run
        for run in results["peers"]["runs"]
        if run["what"] == "put" and run["entrant"] == entrant and "failed" not in run
    ]
    if not puts:
        return "–"
    most = max(puts, key=lambda run: int(run["stored"]))
    return f"{most['disk bytes'] / most['stored']:,.0f} ({most['stored']:,} waiting)"


def absent_table(results: Results) -> str:
    """Those that could not be installed or run."""
    told = results.get("peers", {}).get("entrants", {})
    rows = [
        (name, each["unavailable"].replace("|", "/"))
        for name, each in told.items()
        if each["unavailable"]
    ]
    if not told:
        return f"Peers were {NOT_MEASURED}."
    return table(("queue", "could not be run"), rows) if rows else "All of them could be run."
