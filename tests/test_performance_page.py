# SPDX-License-Identifier: Apache-2.0
"""docs/PERFORMANCE.md says what the benchmarks left behind; no figure on it is typed by hand."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bars import ACKNOWLEDGED, PLAIN, POWER_SAFE, SHAPES, Bar
from tests.source_laws import ROOT
from tools.generate_performance import (
    PAGES,
    PARTS,
    conversion_table,
    generated,
    machine_table,
    openings_table,
    read_results,
    steady_table,
)
from tools.performance_bars import BARS, BarRow, bars_table
from tools.race_sample import SAMPLE_PAGE, sample_page

PAGE = "".join(page.read_text("utf-8") for page in PAGES)


def a_steady_run(rate: int, precision_ms: int) -> dict[str, Any]:
    late = {"50": 10.0, "99": 40.0, "99.9": 50.0}
    return {
        "rate": rate,
        "precision_ms": precision_ms,
        "seconds": 60.0,
        "reached a second": rate - 1.0,
        "measured": 7,
        "seen - due": late,
        "seen - promised": late,
        "cpu percent": 20.0,
        "sent": 7,
        "delivered": 7,
        "early": 0,
    }


def whole_results() -> dict[str, Any]:
    """What the benchmarks leave, as far as the page reads it."""
    drain = {"drain s": 0.4, "ratio": 2.0}
    pieces = dict.fromkeys(("plan", "write", "seal", "driver_cpu", "workers_cpu", "jvm_cpu"), 0.3)
    rates = {name: {e: [{name: 2e6}, {name: 3e6}] for e in ("levels", "wheel")}
             for name in ("schedule", "schedule_batch")}  # fmt: skip
    counts = {"one level": 200_000, "all levels": 200_000, "burst": 500_000}
    drains = {name: {"messages": count, "levels": [drain], "wheel": [drain]}
              for name, count in counts.items()}  # fmt: skip
    opened = {"engine": "wheel", "messages": 10_000_000, "clean": [{"open s": 0.5}],
              "killed": [{"open s": 4.0}],
              "disk bytes": {"commitlog": 1, "timerlog": 520_000_000, "timerwheel": 7}}  # fmt: skip
    late = {"p50": 3.0, "p999": 40.0}
    opened_cold = {**opened, "engine": "hierarchy", "cold": {"open s": 9.25}}
    one = {"put_per_second": 1e5, "drain_per_second": 1e6, "cpu_percent": 10.0}
    ours = {"rounds": [one, one], "lateness_ms": late, "lateness_after_promise_ms": late,
            "early": 0, "missing": 2, "duplicates": 0, "unavailable": None}  # fmt: skip
    burst = {"engines": {"wheel": ours, "java-wheel": {"unavailable": "no Java here"}},
             "ratios": {"drained": {"median": 9.5, "worst": 7.25}},
             "load before": "1.5"}  # fmt: skip
    opening = {"waiting": 900, "open_s": 0.25, "read_bytes": 7_000_000, "first_messages": 30,
               "first_s": 0.125, "first_read_bytes": 2_000_000}  # fmt: skip
    full = {"taken": 1_000, "woken": 9, "early": 0, "missing": 2, "duplicates": 0,
            "lateness_ms": {"p50": 500.0, "p99": 990.0}, "rounds": [one],
            "peak_private_bytes": 5_000_000, "bytes_on_disk": 600_000,
            "faults": [{"kind": "reboot", "opening": opening},
                       {"kind": "clock-back", "opening": None}]}  # fmt: skip
    much = {"engines": {"wheel": full, "hierarchy": {"unavailable": "no rocksdict here"}}}
    power = {"SQLite FULL": 1e3, **dict.fromkeys(("levels", "wheel", "hierarchy"), 3e3)}
    seconds = {"s": 0.4, "first word s": 0.3}
    shaped = {name: [{"total": 2.1}] for name in SHAPES}
    acknowledged = {"s": 0.4, "cpu s": 0.5, "flush s": 0.01, "journal bytes": 4_000,
                    "journal bytes left": 345}  # fmt: skip
    return {
        "start": {"commands": {"help": [seconds], "first": [seconds],
                               "convert --in-process": [seconds], "convert": [seconds]}},
        "codec": {"rounds": {size: [{"encode, fresh pages": 200.0}] for size in ("256", "1024")}},
        "engines": {"throughput": rates | drains, "opening": [opened]},
        "steady": {"steady": [a_steady_run(rate, precision_ms) for precision_ms in (1_000, 100)
                              for rate in (14_000, 50_000, 100_000)]},
        "hierarchy": {"steady": [a_steady_run(14_000, 1) | {"what": "hierarchy"}],
                      "opening": [opened_cold]},
        "convert": {"runs": [{"messages": 4_000_000, "copy": [{"total": 1.0}],
                              "commit_log_bytes": 1_680_000_000,
                              "verified": [{"total": 1.5, "verify": 3.0}],
                              "convert": [{"total": 1.5, "target_bytes": 2e9,
                                           **pieces}],
                              "memory": {"worker_private_bytes": 2e8}}],
                    "direct_bytes_per_s": 1e9},
        "shapes": {"messages": 4_000_000,
                   "shapes": {PLAIN: [{"total": 2.0}], **shaped}},
        "fleet": {"stores": 200, "messages": 5_000, "s": [40.0]},
        "memory": {"runs": [{"messages": 50_000_000, "driver_bytes_before": 1e8,
                             "driver_private_bytes": 5e8, "worker_private_bytes": 2e8}]},
        "power": {"runs": [{"batch": batch, "messages a second": power} for batch in POWER_SAFE]},
        "race": {"events": {"burst": burst}, "facts": {"cores": "2"}},
        "groups": {"messages": 100_000,
                   "engines": {name: {what: [acknowledged] for what in ACKNOWLEDGED}
                               for name in ("levels", "wheel", "hierarchy")}},
        "waiting": {"races": [much]},
        "peers": peers_results(),
    }  # fmt: skip


def peers_results() -> dict[str, Any]:
    """Two queues of benchmarks.peers, one of which could not be installed."""
    put = {"what": "put", "outlives": "a kill", "batch": 1, "entrant": "sqlite", "load": 0.5}
    done = put | {"messages": 2_000, "s": 0.5, "cpu s": 0.1, "stored": 2_003,
                  "disk bytes": 2_403_600}  # fmt: skip
    late = put | {"what": "lateness", "sent": 4_000, "sent for s": 8.0, "cpu s": 2.0, "early": 0,
                  "different": 3_999, "late ms": {"50": 1, "99": 41, "99.9": 65, "100": 1_086},
                  }  # fmt: skip
    killed = put | {"what": "kill", "answered": 600, "handled before the second kill": 200,
                    "never handled": 0, "handled twice": 57}  # fmt: skip
    return {
        "entrants": {"sqlite": {"unavailable": None}, "bullmq": {"unavailable": "pip: no | wheel"}},
        "runs": [done, done | {"s": 0.25, "load": 7.5}, late, killed],
    }


def with_facts(results: Mapping[str, Any]) -> dict[str, Any]:
    names = ("date", "cpu", "memory", "file system", "load before")
    facts = {**dict.fromkeys(names, "x"), "cores": "2", "load before": "1.5"}
    return {name: {**told, "facts": facts} for name, told in results.items()}


def test_a_race_says_that_its_machine_was_busy_and_how_the_worst_round_was() -> None:
    shown = PARTS["race"](whole_results())
    assert "| burst (on a busy machine, load 1.5) | wheel |" in shown
    assert "| 1.5, **busy** |" in machine_table(with_facts(whole_results()))
    assert "drained 9.50 × (worst pair 7.25 ×)" in shown


def test_the_figures_are_those_of_the_results() -> None:
    assert generated(PAGE, read_results()) == PAGE, "run `make docs`"


def test_the_sample_of_a_race_is_that_of_its_results() -> None:
    """But for the pictures, which another Matplotlib draws otherwise."""
    pictures = re.compile(r"<svg.*?</svg>", re.DOTALL)
    drawn = sample_page(read_results())
    if drawn is not None:
        kept = SAMPLE_PAGE.read_text("utf-8")
        assert pictures.sub("", drawn) == pictures.sub("", kept), "run `make docs`"


def test_large_backlogs_are_arithmetic_with_the_rates_of_a_conversion() -> None:
    shown = PARTS["on paper"](with_facts(whole_results()))
    assert "A core converts 0.56 GB of log a second" in shown
    assert "| 1,000 brokers of 10 GB | one of two cores | 2.5 hours | **6.1 hours** |" in shown


def test_every_part_is_on_the_page_once() -> None:
    assert sorted(re.findall(r"<!-- generated: (.+?) -->", PAGE)) == sorted(PARTS)


def test_other_results_make_another_page() -> None:
    other = generated(PAGE, with_facts(whole_results()))
    assert other != PAGE
    assert "not measured" not in other
    assert "no Java here" in other
    assert "drained 9.50 ×" in other
    assert "| wheel | 900 | killed, not in the page cache | 0.25 | 7 | 0.125 | 30 | 2 |" in other
    assert "| wheel | 1,000 | 100 | 1,000 | 9 | 0.5 / 1.0 | 2 | 10 | 5 | 600 |" in other
    assert "| hierarchy | no rocksdict here |" in other
    assert "| 4,000,000 | one bad record | 2.10 | 1.05 |" in other
    assert "| 50,000,000 | 100 | 500 | 200 |" in other
    assert "| `convert --in-process` | 0.40 |" in other
    assert "| wheel | one by one | 250 | 5.0 | 0.04 | 345 | 10.0 |" in other
    title = "put one by one, outlives a kill"
    assert f"| {title} | sqlite | 6,000 (4,000–8,000) | 50.0 (50.0–50.0) | 7.5 |" in other
    assert "| sqlite | 500 | 3,999 of 4,000 | 1 | 41 | 1,086 | 0 | 25 |" in other
    assert "| sqlite | 600 | 200 | 0 | 57 | 1,200 (2,003 waiting) |" in other
    assert "| bullmq | pip: no / wheel |" in other


@pytest.mark.parametrize("name", sorted(whole_results()))
def test_what_was_not_measured_is_said(name: str) -> None:
    results = with_facts(whole_results())
    del results[name]
    assert "not measured" in generated(PAGE, results)


def test_every_bar_is_met_or_missed_by_so_much() -> None:
    rows = [row.cells(whole_results()) for row in BARS]
    assert [row[0] for row in rows if not row[3]] == []
    by_name = {row[0]: row for row in rows}
    assert by_name["opening it after a kill"][2:4] == ("4.00 s", "**missed**, 0.75 ×")
    assert by_name["records encoded by a core, 1 KB"][2:4] == ("5.0 million/s", "met, 2.50 ×")
    assert by_name["drain of one level"][3] == "**missed**, 0.62 ×"
    verified = by_name["verification of 4 million / the conversion before it"]
    assert verified[1:4] == ("≤ 1.50 ×", "2.00 ×", "**missed**, 0.75 ×")
    assert by_name["200 stores of 5,000, three of them broken, one command"][2] == "40.0 s"


@pytest.mark.parametrize(
    ("name", "change", "row"),
    [
        ("shapes", {"messages": 1_000}, "conversion of 4 million, one bad record / plain"),
        ("fleet", {"stores": 4}, "200 stores of 5,000, three of them broken, one command"),
        ("memory", {"runs": [{"messages": 7}]}, "private memory of the driver"),
        ("groups", {"messages": 7}, "received and acknowledged, batches, levels"),
    ],
)
def test_a_smaller_run_is_held_against_no_bar(name: str, change: dict[str, Any], row: str) -> None:
    results = whole_results()
    results[name] |= change
    [cells] = [bar.cells(results) for bar in BARS if bar.what.startswith(row)]
    assert cells[2] == "not measured"


def test_several_rounds_show_how_far_they_lie_apart() -> None:
    bar = Bar(10, is_ceiling=True)
    row = BarRow("x", bar, "s", lambda results: [4.0, 8.0, 5.0])
    assert row.cells({}) == ("x", "≤ 10 s", "5 (4–8) s", "met, 2.00 ×")


def test_a_bar_for_any_round_is_held_against_the_worst() -> None:
    row = BarRow("x", Bar(10, in_any_round=True), "/s", lambda results: [40.0, 8.0, 50.0])
    assert row.cells({})[1:4] == ("≥ 10 /s in any round", "40 (8–50) /s", "**missed**, 0.80 ×")


def test_nothing_at_all_is_within_a_ceiling() -> None:
    row = BarRow("x", Bar(10, is_ceiling=True), "ms", lambda results: [0.0])
    assert row.cells({})[3] == "met"


def test_a_load_without_a_bar_is_shown_as_well() -> None:
    cells = "| 100,000 | 99,999 | 60 | 1,000 | 10 / 50 | 10 / 50 | 20 | 0 / 0 |"
    assert cells in steady_table(whole_results())
    assert "100,000/s" not in bars_table(whole_results())


def test_every_opening_is_shown_also_of_a_hierarchical_wheel() -> None:
    told = openings_table(whole_results())
    assert "| wheel | 10,000,000 | 0.50 | 4.00 | – | 52.0 |" in told
    assert "| hierarchy | 10,000,000 | 0.50 | 4.00 | 9.25 | 52.0 |" in told


def test_a_conversion_says_what_one_message_more_costs() -> None:
    sizes = {1_000_000: 1.0, 4_000_000: 2.5, 16_000_000: 14.5}
    runs = [{"messages": count, "copy": [{"total": 1.0}], "convert": [{"total": took}]}
            for count, took in sizes.items()]  # fmt: skip
    rows = conversion_table({"convert": {"runs": runs}}).splitlines()[2:]
    assert [row.split(" | ")[-2] for row in rows] == ["–", "0.50", "1.00"]


def test_a_run_is_named_and_that_it_ended_early() -> None:
    results = with_facts({"race": {"events": {}, "ended early": "KeyboardInterrupt()"}})
    results["race"]["facts"]["command"] = "race --rounds 1"
    assert "`race --rounds 1`, ended early |" in machine_table(results)
    assert "not measured" in generated(PAGE, results)


def bench_runs() -> list[list[str]]:
    """What ``make bench`` runs: a module and its flags, each."""
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    [line] = re.findall(r"^BENCHES := (.*)$", makefile, re.M)
    return [run.split() for run in shlex.split(line)]


def test_make_bench_runs_every_benchmark_with_flags_that_it_has() -> None:
    folder = ROOT / "benchmarks"
    scripts = {file.stem: file.read_text("utf-8") for file in folder.glob("*.py")}
    runnable = {name for name, text in scripts.items() if "if __name__ ==" in text} | {"engines"}
    scripts["engines"] = (folder / "engines" / "measure.py").read_text("utf-8")
    assert {run[0] for run in bench_runs()} == runnable
    for name, *flags in bench_runs():
        unknown = [f for f in flags if f.startswith("--") and f'"{f}"' not in scripts[name]]
        assert unknown == []


def test_results_are_read_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "codec.json").write_text(json.dumps({"rounds": {}}))
    assert read_results(tmp_path) == {"codec": {"rounds": {}}}
    assert "not measured" in bars_table(read_results(tmp_path))
