# SPDX-License-Identifier: Apache-2.0
"""Writes the figures of docs/PERFORMANCE.md from what the benchmarks left in benchmarks/results.

No figure on that page is typed by hand. Run by ``make bench`` and ``make docs``.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

PERFORMANCE_PAGE = Path(__file__).parent / "PERFORMANCE.md"
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
_NAMES = ("start", "codec", "engines", "opening", "steady", "hierarchy", "convert", "race")
_MARKED = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_NOT_MEASURED = "not measured"

Results = Mapping[str, Mapping[str, Any]]


def read_results(directory: Path = RESULTS) -> Results:
    """What each benchmark left, by its name; nothing of those that were not run."""
    files = {name: directory / f"{name}.json" for name in _NAMES}
    return {
        name: json.loads(file.read_text(encoding="utf-8"))
        for name, file in files.items()
        if file.is_file()
    }


# --- the bars -------------------------------------------------------------------------------------


@attrs.frozen
class Bar:
    """What is to be reached. ``limit`` is at least, or at most where ``is_ceiling``; ``read`` gives
    a value a round, in ``unit``; ``java`` is what RocketMQ's own engine reached on such a machine.
    """

    what: str
    limit: float
    unit: str
    read: Callable[[Results], Sequence[float]]
    is_ceiling: bool = False
    digits: int = 0
    java: str = ""

    def row(self, results: Results) -> tuple[str, str, str, str, str]:
        """What, the bar, what was reached, by how much, RocketMQ's own."""
        sign = "≤" if self.is_ceiling else "≥"
        asked = f"{sign} {self._text(self.limit)} {self.unit}"
        try:
            values = self.read(results)
        except (KeyError, StopIteration):
            values = ()
        if not values:
            return (self.what, asked, _NOT_MEASURED, "", self.java)
        middle = statistics.median(values)
        reached = self._text(middle)
        if len(values) > 1:
            reached += f" ({self._text(min(values))}–{self._text(max(values))})"
        share = self.limit / middle if self.is_ceiling else middle / self.limit
        verdict = f"met, {share:.2f} ×" if share >= 1 else f"**missed**, {share:.2f} ×"
        return (self.what, asked, f"{reached} {self.unit}", verdict, self.java)

    def _text(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


_Read = Callable[[Results], Sequence[float]]
_MILLION = 1e6
_KILO = 1e3
_CONVERTED = 4_000_000
_WAITING = 10_000_000


def _conversion(results: Results) -> list[float]:
    found = next(r for r in results["convert"]["runs"] if r["messages"] == _CONVERTED)
    pairs = zip(found["convert"], found["copy"], strict=True)
    return [ours["total"] / copy["total"] for ours, copy in pairs]


def _worker_memory(results: Results) -> list[float]:
    """Of the largest of all sizes, which should be that of any."""
    watched = (found["memory"] for found in results["convert"]["runs"])
    return [max(each["worker_private_bytes"] for each in watched) / _MILLION]


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


def _part(results: Results, part: str) -> Sequence[Mapping[str, Any]]:
    """The runs of one part of the engines' benchmark, from a file of its own where it has one."""
    found = (results.get(name, {}).get(part, ()) for name in (part, "engines"))
    return next(filter(None, found), ())


def _late(rate: int, precision_ms: int, what: str, percentile: str) -> _Read:
    def read(results: Results) -> list[float]:
        wanted = (rate, precision_ms)
        runs = (r for r in _part(results, "steady") if (r["rate"], r["precision_ms"]) == wanted)
        return [next(runs)[what][percentile]]

    return read


def _large_wheel(results: Results) -> Mapping[str, Any]:
    wanted = ("wheel", _WAITING)
    runs = _part(results, "opening")
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


_THOUSANDS = "thousand/s"
BARS = (
    Bar("conversion of 4 million / `cp` + `sync` of the same log", 2, "×", _conversion, True, 2),
    Bar("private memory of a conversion's worker", 600, "MB", _worker_memory, True),
    Bar("records encoded by a core, 1 KB", 2, "million/s", _codec(1024), digits=1),
    Bar("records encoded by a core, 256 B", 4, "million/s", _codec(256), digits=1),
    Bar("`schedule`, levels", 120, _THOUSANDS, _rate("schedule", "levels", _KILO), java="102–190"),
    Bar("`schedule`, wheel", 120, _THOUSANDS, _rate("schedule", "wheel", _KILO), java="102–190"),
    Bar("`schedule_batch`, levels", 1.5, "million/s",
        _rate("schedule_batch", "levels", _MILLION), digits=2),
    Bar("`schedule_batch`, wheel", 1.5, "million/s",
        _rate("schedule_batch", "wheel", _MILLION), digits=2),
    Bar("drain of one level", 800, _THOUSANDS, _drain("one level", "levels"), java="198"),
    Bar("drain of all levels", 800, _THOUSANDS, _drain("all levels", "levels"), java="170"),
    Bar("drain of a burst of 500,000, wheel", 0.5, "s",
        _drain_s("burst", "wheel", 500_000), True, 2, "4.3"),
    Bar("14,000/s: P99.9 by the promise", 60, "ms",
        _late(14_000, 1_000, "seen - promised", "99.9"), True),
    Bar("14,000/s: P99.9 by the time asked", 1_060, "ms",
        _late(14_000, 1_000, "seen - due", "99.9"), True, java="1,218"),
    Bar("14,000/s, precision 100: P50 by the time asked", 70, "ms",
        _late(14_000, 100, "seen - due", "50"), True, java="61 at 5,000/s"),
    Bar("14,000/s, precision 100: P99.9 by the time asked", 130, "ms",
        _late(14_000, 100, "seen - due", "99.9"), True, java="127 at 5,000/s"),
    Bar("50,000/s: P99.9 by the promise", 100, "ms",
        _late(50_000, 1_000, "seen - promised", "99.9"), True),
    Bar("opening a wheel of 10 million, clean", 1, "s", _opened("clean"), True, 2,
        "2.6 with 1 million"),
    Bar("opening it after a kill", 3, "s", _opened("killed"), True, 2, "3.1 with 1 million"),
    Bar("bytes on disk a waiting message, besides record and wheel", 72.4, "bytes",
        _bytes_besides, True, 1, "the same, + 80 of key index"),
    Bar("`delaywheel --help`", 0.5, "s", _started("help", "s"), True, 2),
    Bar("silence of a first run that compiles", 4, "s", _started("first", "first word s"), True, 2),
)  # fmt: skip


def bars_table(results: Results) -> str:
    """Every bar and what was reached."""
    head = ("what", "bar", "here: median (least–most)", "bar and figure", "RocketMQ's own")
    return _table(head, (bar.row(results) for bar in BARS))


# --- the other parts ------------------------------------------------------------------------------


def race_tables(results: Results) -> str:
    """Ours beside RocketMQ's own, a row an engine and race."""
    if "race" not in results:
        return f"The race was {_NOT_MEASURED}."
    rows: list[Sequence[str]] = []
    for name, event in results["race"]["events"].items():
        for engine, told in event["engines"].items():
            rows.append((name, engine, *_race_row(told)))
        told_ratios = (f"{what} {value:.2f} ×" for what, value in event["ratios"].items())
        if ratios := ", ".join(told_ratios):
            rows.append(("", "**ours / RocketMQ's**", ratios, "", "", "", ""))
    head = ("race", "engine", "put, thousand/s", "drained, thousand/s",
            "late by the promise: P50 / P99.9, ms", "wrong", "CPU, %")  # fmt: skip
    return _table(head, rows)


def _race_row(told: Mapping[str, Any]) -> Iterator[str]:
    if why := told.get("unavailable"):
        yield from (why, "", "", "", "")
        return
    for name in ("put_per_second", "drain_per_second"):
        rounds = [each[name] / _KILO for each in told["rounds"] if each[name] is not None]
        yield _spread(rounds) if rounds else "–"
    late = told["lateness_after_promise_ms"]
    yield "–" if late is None else f"{late['p50']:,.0f} / {late['p999']:,.0f}"
    yield f"{told['early'] + told['missing'] + told['duplicates']:,}"
    yield _spread([each["cpu_percent"] for each in told["rounds"]])


def _spread(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):,.0f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.0f}–{max(values):,.0f})"


def drains_table(results: Results) -> str:
    """How far a drain is from what bounds it: writing the same bytes."""
    throughput = results.get("engines", {}).get("throughput", {})
    rows = []
    for part, found in throughput.items():
        for engine, rounds in found.items():
            if engine != "messages" and rounds and "ratio" in rounds[0]:
                ratios = [each["ratio"] for each in rounds]
                rows.append((part, engine, f"{statistics.median(ratios):.1f}",
                             f"{min(ratios):.1f}–{max(ratios):.1f}"))  # fmt: skip
    head = ("drain", "engine", "/ writing its bytes: median", "least–most")
    return _table(head, rows) if rows else f"The drains were {_NOT_MEASURED}."


def steady_table(results: Results) -> str:
    """Every steady run."""
    rows = [
        (
            f"{run['rate']:,}",
            f"{run['precision_ms']}",
            *(f"{run[what]['50']:,.0f} / {run[what]['99.9']:,.0f}" for what in
              ("seen - due", "seen - promised")),
            f"{run['cpu percent']:.0f}",
            f"{run['sent'] - run['delivered']:,} / {run['early']:,}",
        )
        for run in _part(results, "steady")
    ]  # fmt: skip
    head = ("rate/s", "precision, ms", "by the time asked: P50 / P99.9, ms",
            "by the promise: P50 / P99.9, ms", "CPU, %", "missing / early")  # fmt: skip
    return _table(head, rows) if rows else f"A steady load was {_NOT_MEASURED}."


def hierarchy_table(results: Results) -> str:
    """The hierarchical wheel under the load of a published test, and what stands beside it."""
    rows = [
        (
            run["what"],
            f"{run['precision_ms']:,}",
            " / ".join(f"{run['seen - due'][at]:,.0f}" for at in ("50", "99", "99.9"))
            if run["measured"]
            else "–",
            f"{run['cpu percent']:.0f}",
        )
        for run in results.get("hierarchy", {}).get("steady", ())
    ]
    head = ("engine", "precision, ms", "by the time asked: P50 / P99 / P99.9, ms", "CPU, %")
    return _table(head, rows) if rows else f"The hierarchical wheel was {_NOT_MEASURED}."


def conversion_table(results: Results) -> str:
    """Every size of a conversion."""
    rows = []
    for found in results.get("convert", {}).get("runs", ()):
        totals = [each["total"] for each in found["convert"]]
        copies = [each["total"] for each in found["copy"]]
        ratios = [ours / copy for ours, copy in zip(totals, copies, strict=True)]
        middle = statistics.median(totals)
        rows.append((f"{found['messages']:,}", f"{statistics.median(copies):.2f}",
                     f"{middle:.2f}", f"{statistics.median(ratios):.2f}",
                     f"{min(ratios):.2f}–{max(ratios):.2f}",
                     f"{middle / found['messages'] * _MILLION:.2f}"))  # fmt: skip
    head = ("messages", "cp + sync, s", "conversion, s", "ratio", "least–most", "µs a message")
    return _table(head, rows) if rows else f"A conversion was {_NOT_MEASURED}."


def conversion_pieces(results: Results) -> str:
    """Where a conversion's time goes, and what the disk alone needs."""
    told = results.get("convert", {})
    rows = []
    for found in told.get("runs", ()):
        if "direct_bytes_per_s" not in told or "workers_cpu" not in found["convert"][0]:
            break
        floor = found["convert"][-1]["target_bytes"] / told["direct_bytes_per_s"]
        middles = (
            statistics.median(each[name] for each in found["convert"])
            for name in ("plan", "write", "seal", "driver_cpu", "workers_cpu", "jvm_cpu")
        )
        rows.append((f"{found['messages']:,}", *(f"{each:.2f}" for each in middles),
                     f"{floor:.2f}"))  # fmt: skip
    head = ("messages", "plan, s", "write, s", "seal, s", "driver, CPU s", "workers, CPU s",
            "JVM, CPU s", "disk alone, s")  # fmt: skip
    return _table(head, rows) if rows else f"The pieces of a conversion were {_NOT_MEASURED}."


def machine_table(results: Results) -> str:
    """Where and when each benchmark was run."""
    names = ("date", "cpu", "cores", "memory", "file system", "load before")
    rows = [
        (f"[{name}](../benchmarks/results/{name}.md)", *(told["facts"][each] for each in names))
        for name, told in results.items()
    ]
    head = ("benchmark", *names)
    return _table(head, rows) if rows else "Nothing was measured."


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PARTS: dict[str, Callable[[Results], str]] = {
    "bars": bars_table,
    "race": race_tables,
    "drains": drains_table,
    "steady": steady_table,
    "hierarchy": hierarchy_table,
    "conversion": conversion_table,
    "pieces": conversion_pieces,
    "machines": machine_table,
}


def generated(page: str, results: Results) -> str:
    """The page with its figures as they should be."""
    return _MARKED.sub(lambda found: f"{found[1]}{PARTS[found[2]](results)}\n{found[3]}", page)


if __name__ == "__main__":
    text = PERFORMANCE_PAGE.read_text(encoding="utf-8")
    PERFORMANCE_PAGE.write_text(generated(text, read_results()), encoding="utf-8")
