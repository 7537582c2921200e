# SPDX-License-Identifier: Apache-2.0
"""``delaywheel compare``: what it prints, how it ends, and that engines run in processes."""

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from compare.running import race
from compare.running.engines import ENGINES
from legacy_levels.generate.store import generate_level_store
from tests.compare.races import Absent, Here, twisted
from tests.source_laws import ROOT

NOW_MS = 1_767_323_045_000
LATENESS_KEYS = {"p50", "p90", "p99", "p999", "max"}


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines run in this process: what is tested is the command."""
    for name in ENGINES:
        monkeypatch.setitem(race.ENTRANTS, name, Here(ENGINES[name]))
    monkeypatch.setitem(race.ENTRANTS, "losing", Here(twisted("memory", "missing")))


def run(*words: str) -> Result:
    main: click.Group = import_module("cli").main
    return CliRunner().invoke(main, ["compare", "--quiet", *words])


def small(*words: str) -> Result:
    return run("--messages", "100", "--body-bytes", "32", *words)


@pytest.mark.usefixtures("_here")
def test_the_json_has_the_keys_that_others_rely_on() -> None:
    ended = small("--workload", "burst", "--engines", "levels,wheel,memory", "--json")
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert list(told["engines"]) == ["levels", "wheel", "memory"]
    for facts in told["engines"].values():
        assert facts["lateness_ms"].keys() == LATENESS_KEYS
        assert facts["lateness_after_promise_ms"].keys() == LATENESS_KEYS
        assert facts.keys() >= {
            "put_per_second", "drain_per_second", "early", "missing", "duplicates", "cpu_percent",
            "peak_memory_bytes", "bytes_on_disk",
        }  # fmt: skip
    assert told["workload"]["name"] == "burst"
    assert told["first_difference"]["kind"] == "other times"


@pytest.mark.usefixtures("_here")
def test_of_several_rounds_a_first_one_is_told_and_does_not_count() -> None:
    ended = small("--workload", "burst", "--engines", "memory", "--repeat", "2", "--json")
    facts = json.loads(ended.stdout)["engines"]["memory"]
    assert [len(facts[name]) for name in ("warming_rounds", "rounds")] == [1, 2]
    text = small("--workload", "burst", "--engines", "memory", "--repeat", "2").stdout
    assert "2 rounds in turns, judged by the median and the worst; 1 round before them" in text


@pytest.mark.usefixtures("_here")
def test_the_answer_comes_first_and_then_a_column_an_engine() -> None:
    ended = small("--workload", "uniform", "--engines", "levels,wheel")
    first, *lines = ended.stdout.splitlines()
    assert first == "Every engine delivered all that was taken once, and nothing early"
    heads = [line.split() for line in lines]
    assert ["levels", "wheel"] in heads
    assert ["missing", "0", "0"] in heads


@pytest.mark.usefixtures("_here")
def test_what_is_missing_is_told_and_ends_with_exit_code_1() -> None:
    ended = small("--rate", "10", "--engines", "losing,memory")
    assert ended.exit_code == 1
    assert ended.stdout.startswith("Losing is wrong: 0 early, 10 missing, 0 repeated\n")


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--engines", "levels,abacus"], 2, "'abacus' is none of levels, wheel"),
        (["--engines", "levels,"], 2, "is not a list of engines"),
        (["--workload", "backlog"], 2, "--workload backlog needs --store"),
        (["--converted", "wheel"], 2, "--converted is for --workload backlog"),
        (["--workload", "backlog", "--store", "s", "--converted", "w"], 2, "needs --now"),
        (
            ["--workload", "backlog", "--store", "s", "--converted", "w", "--now", str(NOW_MS)],
            3,
            "w: no such directory; --converted names a converted store",
        ),
        (["--workload", "trace"], 2, "--workload trace needs --trace"),
        (["--workload", "backlog", "--store", "nowhere"], 3, "nowhere"),
        (["--workload", "trace", "--trace", "nowhere.csv"], 3, "nowhere.csv: no such file"),
        (["--now", str(NOW_MS)], 2, "--now is for --workload backlog and trace"),
        (["--fault", "flood@1m"], 2, "no fault"),
        (["--fault", "kill@1m", "--clock", "wall"], 2, "--fault needs the virtual clock"),
        (["--faults", "3", "--clock", "wall"], 2, "--faults needs the virtual clock"),
        (["--tick", "1ms", "--clock", "wall"], 2, "--tick needs the virtual clock"),
        (
            ["--workload", "trace", "--now", str(NOW_MS), "--clock", "wall"],
            2,
            "--now needs the virtual clock",
        ),
        (["--delays", "10m-30s"], 2, "ends before it begins"),
        (["--delays", "soon"], 2, "'soon' is not a duration"),
        (["--body-bytes", "4"], 2, "4 is not in the range"),
        (["--messages", "0"], 2, "0 is not in the range"),
        (["--messages", "abc"], 2, "'abc' is not a valid integer."),
        (["--rate", "nan"], 2, "'nan' is no number of messages a second"),
        (["--rate", "inf"], 2, "'inf' is no number of messages a second"),
        (["--rate", "0"], 2, "'0' is no number of messages a second"),
        (["--rate", "1e-9"], 2, "a rate too slow"),
        (["--rate", "5e-324"], 2, "a rate too slow"),
        (["--delays", "1s-99999d"], 2, "delays too long"),
        (["--tick", "100d"], 2, "'100d' is not within 1ms to 1h"),
        (["--tick", "0ms"], 2, "'0ms' is not within 1ms to 1h"),
        (["--max-delay", "99999d"], 2, "'99999d' is not within 1s to 3650d"),
        (["--fault", "clock-back@1m+99999d"], 2, "a leap or a full disk of 1ms to 365d"),
        (["--fault", "kill@99999d"], 2, "at most 3,650 days after the beginning"),
        (["--fault", "kill@1m+5s"], 2, "a kill does not last"),
        (["--fault", "kill-inside@1m+5s"], 2, "a kill does not last"),
        (["--fault", "reboot@1m+5s"], 2, "a reboot does not last"),
        (["--trace", "nowhere.csv"], 2, "--trace is for --workload trace, not uniform"),
        (["--store", "nowhere"], 2, "--store is for --workload backlog, not uniform"),
        (["--workload", "levels", "--delays", "1s-5s"], 2, "--delays is for --workload uniform"),
        (["--workload", "trace", "--trace", "t.csv", "--rate", "5"], 2, "--rate is for"),
        (["--workload", "backlog", "--store", "s", "--topics", "5"], 2, "--topics is for"),
        (["--engines", "memory,levels,memory"], 2, "names memory twice"),
        (["--engines", "java-levels,java-wheel"], 2, "java-wheel cannot race on the virtual clock"),
        (["--keep", "full"], 4, "full: is not empty"),
        (["--directory", "nowhere"], 4, "nowhere: cannot be written"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    complaint: str,
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    monkeypatch.chdir(tmp_path)
    ended = run("--engines", "memory", *words)
    assert ended.exit_code == code, ended.output
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.check
@pytest.mark.usefixtures("_here")
def test_the_backlog_of_a_store_goes_through_the_levels_exactly(tmp_path: Path) -> None:
    store = tmp_path / "store"
    generate_level_store(
        store, messages=200, body_bytes=40, levels=tuple(range(1, 19)), topics=3, seed=0,
        dialect="4.9", commit_log_file_bytes=1 << 20, now_ms=NOW_MS,
    )  # fmt: skip
    before = sorted(path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file())
    words = ("--workload", "backlog", "--store", str(store), "--tick", "1ms", "--json")
    told = json.loads(run(*words).stdout)
    assert told["workload"]["messages"] == 200
    assert told["engines"]["levels"]["lateness_ms"]["max"] == 0
    assert 0 < told["engines"]["wheel"]["lateness_ms"]["max"] < 1_000
    assert told["engines"]["wheel"]["delivered"] == 200
    assert before == sorted(path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file())
    # Asleep for an hour after the broker was stopped: what was due meanwhile is late.
    asleep = json.loads(run(*words, "--now", str(NOW_MS + 3_600_000)).stdout)
    assert asleep["engines"]["levels"]["lateness_ms"]["max"] > 3_000_000
    assert asleep["engines"]["levels"]["missing"] == 0


@pytest.mark.usefixtures("_here")
def test_a_trace_runs_and_a_report_is_written(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("arrival,due\n0,5000\n100,90000\n")
    report = tmp_path / "race.html"
    ended = run(
        "--workload", "trace", "--trace", str(tmp_path / "trace.csv"), "--engines", "wheel,memory",
        "--report", str(report),
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output
    assert "memory" in report.read_text(encoding="utf-8")


@pytest.mark.usefixtures("_here")
def test_a_trace_has_the_seed_that_was_given_and_counts_what_is_overdue(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("0,5000\n100,85\n")
    ended = run("--workload", "trace", "--trace", str(path), "--engines", "wheel", "--seed", "9")
    assert ended.exit_code == 0, ended.output
    [head] = [line for line in ended.stdout.splitlines() if line.startswith("trace of ")]
    assert head.endswith(
        "due up to 5.0 s later; 1 of them was overdue already when put, by 15 ms at most;"
        " virtual clock, slots of 1000 ms, seed 9"
    )


@pytest.mark.usefixtures("_here")
def test_a_race_that_nobody_could_run_ends_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(race.ENTRANTS, "memory", Absent(ENGINES["memory"]))
    alone, with_java = small("--engines", "memory"), small("--engines", "memory,java-wheel")
    assert (alone.exit_code, with_java.exit_code) == (1, 1), alone.output
    assert alone.stdout.startswith("No engine could run\n")
    # One that races is enough, whatever else could not.
    assert small("--engines", "wheel,java-wheel").exit_code == 0


@pytest.mark.check
@pytest.mark.usefixtures("_here")
def test_openings_stand_side_by_side_and_in_the_json(tmp_path: Path) -> None:
    report = tmp_path / "race.html"
    words = ("--engines", "levels,wheel", "--fault", "restart@1m", "--fault", "reboot@30m")
    ended = small("--workload", "uniform", *words, "--report", str(report))
    assert ended.exit_code == 0, ended.output
    titles = [line.strip() for line in ended.stdout.splitlines()]
    for title in ("opened again, restart after 1.0 min", "opened again, reboot after 30.0 min"):
        assert [line for line in titles if line.startswith(title)]
        assert title in report.read_text(encoding="utf-8")
    assert len([line for line in titles if line.startswith("its first delivery")]) == 2
    told = json.loads(small("--workload", "uniform", *words, "--json").stdout)
    for engine in told["engines"].values():
        for fault in engine["faults"]:
            assert fault["opening"].keys() == {
                "waiting", "open_s", "read_bytes", "first_messages", "first_s", "first_read_bytes"
            }  # fmt: skip


@pytest.mark.usefixtures("_here")
def test_stores_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    assert small("--engines", "levels", "--keep", str(keep)).exit_code == 0
    assert (keep / "levels" / "commitlog").is_dir()
    assert [path.name for path in keep.iterdir()] == ["levels"]


@pytest.mark.check
def test_engines_run_in_processes_of_their_own_and_leave_nothing(tmp_path: Path) -> None:
    # A full disk too, because its limit is the whole process's.
    ended = small(
        "--engines", "wheel,memory", "--directory", str(tmp_path), "--json", "--rate", "10",
        "--fault", "disk-full@5s+1m", "--fault", "kill@90s", "--fault", "kill-inside@80s",
        "--delays", "1s-2m",
    )  # fmt: skip
    told = json.loads(ended.stdout)
    wheel, memory = told["engines"]["wheel"], told["engines"]["memory"]
    assert (wheel["early"], wheel["missing"], wheel["duplicates"]) == (0, 0, 0)
    assert [fault["kind"] for fault in wheel["faults"]] == ["disk-full", "kill-inside", "kill"]
    assert wheel["faults"][1]["answer"].startswith("killed in the middle of a delivery")
    assert wheel["faults"][0]["answer"] == "refused, and opened again when there was room"
    assert memory["missing"] > 0
    assert ended.exit_code == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_race_that_is_ended_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    words = ["--messages", "50000", "--rate", "5", "--directory", str(tmp_path)]
    command = [sys.executable, "-m", "cli", "compare", *words]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "racing" in line:
            break
    process.send_signal(number)
    assert process.wait(250) == 130
    process.stderr.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("_here")
def test_what_a_killed_race_left_is_named(tmp_path: Path) -> None:
    left = tmp_path / "delaywheel-race-killed"
    left.mkdir()
    ended = small("--engines", "memory", "--directory", str(tmp_path))
    assert ended.exit_code == 0, ended.output
    assert f"{left}: left by a race that was killed; it can be removed" in ended.stderr


def test_the_help_names_every_engine() -> None:
    [option] = [
        each
        for each in import_module("cli").main.commands["compare"].params
        if each.name == "engines"
    ]
    named = option.help.removeprefix("Which engines: ").rstrip(".").split(", ")
    assert sorted(named) == sorted(race.ENTRANTS)
