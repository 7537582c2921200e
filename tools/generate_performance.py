# SPDX-License-Identifier: Apache-2.0
"""Writes the figures of docs/PERFORMANCE.md from what the benchmarks left in benchmarks/results,
the table of large backlogs in docs/MIGRATING.md, and docs/race-sample.html.

No figure of them is typed by hand. Run by ``make bench`` and ``make docs``.
"""

import json
import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bars import PLAIN
from benchmarks.machine import RESULTS, spread, table
from benchmarks.race_sample import SAMPLE
from compare.report.results import is_busy
from tools.on_paper import paper_table
from tools.peer_tables import absent_table, kills_table, lateness_table, rates_table
from tools.performance_bars import NOT_MEASURED, Results, bars_table, part_of
from tools.race_sample import SAMPLE_PAGE, sample_page
from tools.race_tables import RACES, race_tables, reopenings_table, waiting_table

PERFORMANCE_PAGE = Path(__file__).resolve().parents[1] / "docs" / "PERFORMANCE.md"
PAGES = (PERFORMANCE_PAGE, PERFORMANCE_PAGE.with_name("MIGRATING.md"))
_NAMES = ("start", "codec", "engines", "opening", "steady", "hierarchy", "waiting", "convert",
          "shapes", "fleet", "memory", "power", *RACES, SAMPLE, "groups",
          "peers")  # fmt: skip
_MARKED = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_MILLION = 1e6
_KILO = 1e3


def read_results(directory: Path = RESULTS) -> Results:
    """What each benchmark left, by its name; nothing of those that were not run."""
    files = {name: directory / f"{name}.json" for name in _NAMES}
    return {
        name: json.loads(file.read_text(encoding="utf-8"))
        for name, file in files.items()
        if file.is_file()
    }


# --- the engines ----------------------------------------------------------------------------------


def drains_table(results: Results) -> str:
    """How many times as long a drain takes as writing the same bytes."""
    rows = []
    for part, found in results.get("engines", {}).get("throughput", {}).items():
        for engine, rounds in found.items():
            if engine != "messages" and rounds and "ratio" in rounds[0]:
                rows.append((part, engine, spread([each["ratio"] for each in rounds], 1)))
    head = ("drain", "engine", "/ writing its bytes: median (least–most)")
    return table(head, rows) if rows else f"The drains were {NOT_MEASURED}."


def steady_table(results: Results) -> str:
    """Every steady run, with a bar or without."""
    rows = [
        (
            f"{run['rate']:,}",
            f"{run['reached a second']:,.0f}",
            f"{run['seconds']:g}",
            f"{run['precision_ms']:,}",
            *(_percentiles(run, what, "50", "99.9") for what in ("seen - due", "seen - promised")),
            f"{run['cpu percent']:.0f}",
            f"{run['sent'] - run['delivered']:,} / {run['early']:,}",
        )
        for run in part_of(results, "steady")
    ]
    head = ("rate/s", "reached", "sent for, s", "precision, ms",
            "by the time asked: P50 / P99.9, ms", "by the promise: P50 / P99.9, ms", "CPU, %",
            "missing / early")  # fmt: skip
    return table(head, rows) if rows else f"A steady load was {NOT_MEASURED}."


def _percentiles(run: Mapping[str, Any], what: str, *wanted: str) -> str:
    return " / ".join(f"{run[what][at]:,.0f}" for at in wanted) if run["measured"] else "–"


def hierarchy_table(results: Results) -> str:
    """The hierarchical wheel under the load of a published test, and what stands beside it."""
    rows = [
        (
            run["what"],
            f"{run['rate']:,}",
            f"{run['seconds']:g}",
            f"{run['precision_ms']:,}",
            _percentiles(run, "seen - due", "50", "99", "99.9"),
            f"{run['cpu percent']:.0f}",
        )
        for run in results.get("hierarchy", {}).get("steady", ())
    ]
    head = ("engine", "rate/s", "sent for, s", "precision, ms",
            "by the time asked: P50 / P99 / P99.9, ms", "CPU, %")  # fmt: skip
    return table(head, rows) if rows else f"The hierarchical wheel was {NOT_MEASURED}."


def openings_table(results: Results) -> str:
    """Every store that was opened: those of the engines' benchmark, and the hierarchical wheel's
    beside the same wheel in files, which were also opened with nothing in the page cache.
    """
    runs = (*part_of(results, "opening"), *results.get("hierarchy", {}).get("opening", ()))
    rows = [
        (
            run["engine"],
            f"{run['messages']:,}",
            *(spread([each["open s"] for each in run[kind]]) for kind in ("clean", "killed")),
            f"{run['cold']['open s']:.2f}" if "cold" in run else "–",
            f"{_besides(run['disk bytes']) / run['messages']:.1f}",
        )
        for run in runs
    ]
    head = ("engine", "waiting", "clean, s", "killed, s", "not in the page cache, s",
            "bytes on disk a message, besides its record")  # fmt: skip
    return table(head, rows) if rows else f"An opening was {NOT_MEASURED}."


def _besides(disk_bytes: Mapping[str, int]) -> int:
    return sum(size for part, size in disk_bytes.items() if part != "commitlog")


def groups_table(results: Results) -> str:
    """What a consumer group costs in time, and what it writes for a message."""
    found = results.get("groups", {})
    rows = []
    for engine, told in found.get("engines", {}).items():
        for what, rounds in told.items():
            if rounds:
                rates, cpu_us, written, flush_ms = zip(
                    *(_group_round(each, found["messages"]) for each in rounds), strict=True
                )
                left = statistics.median(each["journal bytes left"] for each in rounds)
                cells = (spread(rates, 0), spread(cpu_us, 1), spread(written, 2))
                rows.append((engine, what, *cells, f"{left:,.0f}", spread(flush_ms, 1)))
    head = ("engine", "how", "thousand/s", "CPU, µs a message", "journal, bytes a message",
            "left after a flush, bytes", "that flush, ms")  # fmt: skip
    return table(head, rows) if rows else f"Consumer groups were {NOT_MEASURED}."


def _group_round(each: Mapping[str, float], messages: int) -> tuple[float, float, float, float]:
    return (
        messages / each["s"] / _KILO,
        each["cpu s"] / messages * _MILLION,
        each["journal bytes"] / messages,
        each["flush s"] * _KILO,
    )


# --- the conversion -------------------------------------------------------------------------------


def _conversions(results: Results) -> list[Mapping[str, Any]]:
    """The sizes of which a round was measured."""
    runs = results.get("convert", {}).get("runs", ())
    return [run for run in runs if run["convert"] and run["copy"]]


def _total_s(run: Mapping[str, Any]) -> float:
    return statistics.median(float(each["total"]) for each in run["convert"])


def _cost(run: Mapping[str, Any], fewer: Mapping[str, Any] | None = None) -> str:
    """What a message takes, in µs; of those that another size has not."""
    seconds, messages = _total_s(run), run["messages"]
    if fewer is not None:
        seconds, messages = seconds - _total_s(fewer), messages - fewer["messages"]
    return f"{seconds / messages * _MILLION:.2f}"


def conversion_table(results: Results) -> str:
    """Every size of a conversion; the slope is what one message more costs since the last size."""
    runs = _conversions(results)
    rows = []
    for fewer, run in zip((None, *runs), runs, strict=False):
        copies = [each["total"] for each in run["copy"]]
        pairs = zip(run["convert"], copies, strict=False)  # cut short: one of them has more
        rows.append((f"{run['messages']:,}", f"{statistics.median(copies):.2f}",
                     f"{_total_s(run):.2f}", spread([each["total"] / copy for each, copy in pairs]),
                     _cost(run), _cost(run, fewer) if fewer else "–", _verified(run)))  # fmt: skip
    head = ("messages", "cp + sync, s", "conversion, s", "ratio: median (least–most)",
            "µs a message", "µs for one more since the row above", "verification, s")  # fmt: skip
    return table(head, rows) if rows else f"A conversion was {NOT_MEASURED}."


def _verified(run: Mapping[str, Any]) -> str:
    took = [each["verify"] for each in run.get("verified", ())]
    return f"{statistics.median(took):.2f}" if took else "–"


def shapes_table(results: Results) -> str:
    """A conversion of records of each shape, beside that of plain ones."""
    found = results.get("shapes", {})
    rows = []
    for name, rounds in found.get("shapes", {}).items():
        pairs = list(zip(rounds, found["shapes"][PLAIN], strict=False))
        if pairs:
            took = statistics.median(each["total"] for each, _plain in pairs)
            ratios = [each["total"] / plain["total"] for each, plain in pairs]
            rows.append((f"{found['messages']:,}", name, f"{took:.2f}", spread(ratios)))
    head = ("messages", "records", "conversion, s", "/ plain: median (least–most)")
    return table(head, rows) if rows else f"Records of other shapes were {NOT_MEASURED}."


def memory_table(results: Results) -> str:
    """What a conversion of very many small messages takes."""
    names = ("driver_bytes_before", "driver_private_bytes", "worker_private_bytes")
    rows = [
        (f"{run['messages']:,}", *(f"{run[each] / _MILLION:,.0f}" for each in names))
        for run in results.get("memory", {}).get("runs", ())
    ]
    head = ("messages", "driver before, MB", "driver, MB", "a worker, MB")
    return table(head, rows) if rows else f"The memory of a large conversion was {NOT_MEASURED}."


def starts_table(results: Results) -> str:
    """Every command that was started from the shell."""
    rows = [
        (f"`{name}`", spread([each["s"] for each in rounds]))
        for name, rounds in results.get("start", {}).get("commands", {}).items()
        if rounds and name.startswith("convert")
    ]
    head = ("command", "s: median (least–most)")
    return table(head, rows) if rows else f"A conversion from the shell was {NOT_MEASURED}."


def conversion_pieces(results: Results) -> str:
    """Where a conversion's time goes, what the disk alone needs, and the floor that both set: the
    disk's time after the quickest plan, as a ratio to ``cp`` and ``sync``.
    """
    rows = []
    for run in _conversions(results):
        disk_s = run["convert"][-1]["target_bytes"] / results["convert"]["direct_bytes_per_s"]
        middles = (
            statistics.median(each[name] for each in run["convert"])
            for name in ("plan", "write", "seal", "driver_cpu", "workers_cpu", "jvm_cpu")
        )
        quickest_s = min(each["plan"] for each in run["convert"])
        floor = (quickest_s + disk_s) / statistics.median(each["total"] for each in run["copy"])
        cells = (f"{each:.2f}" for each in (*middles, disk_s, quickest_s, floor))
        rows.append((f"{run['messages']:,}", *cells))
    head = ("messages", "plan, s", "write, s", "seal, s", "driver, CPU s", "workers, CPU s",
            "JVM, CPU s", "disk alone, s", "quickest plan, s", "floor, ratio")  # fmt: skip
    return table(head, rows) if rows else f"The pieces of a conversion were {NOT_MEASURED}."


# --- the page -------------------------------------------------------------------------------------


def machine_table(results: Results) -> str:
    """What was run where and when; of a run that ended early, that it did."""
    names = (
        "date",
        "cpu",
        "cores",
        "memory",
        "file system",
        "load before",
        "a step of plain Python",
    )
    rows = [
        (
            f"[{name}](../benchmarks/results/{name}.json)",
            _what_was_run(told),
            *(_fact(told["facts"], each) for each in names),
        )
        for name, told in results.items()
    ]
    head = ("benchmark", "what was run", *names)
    return table(head, rows) if rows else "Nothing was measured."


def _fact(facts: Mapping[str, str], name: str) -> str:
    said = facts.get(name, "–")
    return f"{said}, **busy**" if name == "load before" and is_busy(said, facts["cores"]) else said


def _what_was_run(told: Mapping[str, Any]) -> str:
    command = told["facts"].get("command")
    said = f"`{command}`" if command else "–"
    return f"{said}, ended early" if "ended early" in told else said


PARTS: dict[str, Callable[[Results], str]] = {
    "bars": bars_table,
    "race": race_tables,
    "peers": rates_table,
    "peers, lateness": lateness_table,
    "peers, kills": kills_table,
    "peers, absent": absent_table,
    "drains": drains_table,
    "steady": steady_table,
    "hierarchy": hierarchy_table,
    "openings": openings_table,
    "reopenings": reopenings_table,
    "waiting": waiting_table,
    "groups": groups_table,
    "conversion": conversion_table,
    "pieces": conversion_pieces,
    "shapes": shapes_table,
    "memory": memory_table,
    "starts": starts_table,
    "on paper": paper_table,
    "machines": machine_table,
}


def generated(page: str, results: Results) -> str:
    """The page with its figures as they should be."""
    return _MARKED.sub(lambda found: f"{found[1]}{PARTS[found[2]](results)}\n{found[3]}", page)


def write_pages() -> None:
    """Write every page that has figures, and that of the race."""
    results = read_results()
    for page in PAGES:
        page.write_text(generated(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    if (sample := sample_page(results)) is not None:
        SAMPLE_PAGE.write_text(sample, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
