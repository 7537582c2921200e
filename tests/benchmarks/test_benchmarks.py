# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run, on next to nothing, and say what they measured; how fast is nobody's test."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from benchmarks import (
    codec,
    convert,
    fleet,
    groups,
    machine,
    memory,
    power,
    race,
    race_sample,
    shapes,
    start,
    waiting,
)
from benchmarks.bars import PLAIN, POWER_SAFE, SHAPES
from benchmarks.engines import measure as engines
from compare.report.html import render_report
from compare.report.results import Lateness, RaceResults
from compare.running import race as compared
from compare.running.observation import RaceSettings
from legacy_levels.backlog.backlog import read_backlog
from message_store.kernels.cache import cache_directory
from migrate.demo import unpack_sample
from tools.generate_performance import (
    conversion_table,
    groups_table,
    memory_table,
    read_results,
    shapes_table,
)
from tools.performance_bars import bars_table
from tools.race_sample import sample_page
from tools.race_tables import race_tables, reopenings_table, waiting_table

pytestmark = pytest.mark.check


@pytest.fixture(autouse=True)
def _cold_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (codec, convert, engines, groups, compared, waiting):
        monkeypatch.setattr(module, "prewarm", lambda *_wanted: None)
    monkeypatch.setattr(race, "settle", lambda: None)


def run(module: object, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    module.main()  # type: ignore[attr-defined]


def test_the_codec_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(codec, monkeypatch, "--messages", "500", "--rounds", "2", "--results", str(tmp_path))
    measured = json.loads((tmp_path / "codec.json").read_text())
    assert set(measured["rounds"]) == {"256", "1024"}
    assert all(ns > 0 for each in measured["rounds"]["256"] for ns in each.values())
    assert measured["crc_gb_per_s"]["zlib"] > 0
    assert str(tmp_path / "codec.json") in capsys.readouterr().out


def test_the_engines_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ["--messages", "300", "--batch", "300", "--burst", "300", "--drain", "180"]
    load = ["--rates", "400", "--precisions", "100", "--steady-s", "2", "--rounds", "1"]
    more = ["--longest-delay-ms", "1500", "--pending", "1000", "--directory", str(tmp_path)]
    results = tmp_path / "results"
    run(engines, monkeypatch, *few, *load, *more, "--results", str(results))
    measured = json.loads((results / "engines.json").read_text())
    for name in ("schedule", "schedule_batch", "burst", "one level", "all levels"):
        for engine in ("levels", "wheel"):
            [found] = measured["throughput"][name][engine]
            assert all(value > 0 for value in found.values())
    [steady] = measured["steady"]
    assert (steady["sent"], steady["delivered"], steady["early"]) == (800, 800, 0)
    assert 0 <= steady["stored - promised"]["0"] <= steady["seen - promised"]["100"]
    assert min(steady["reached a second"], steady["longest schedule ms"]) > 0
    assert {run["engine"] for run in measured["opening"]} == {"levels", "wheel"}
    for opened in measured["opening"]:
        assert opened["disk bytes"]["commitlog"] > 256_000
        assert opened["clean"][0]["open s"] > 0
    assert list(tmp_path.iterdir()) == [results]


def test_ours_race_and_the_page_says_who_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java(_entrant: object, _settings: RaceSettings, _progress: object) -> str:
        return "no Java here"

    monkeypatch.setattr("compare.rocketmq.java_engines.JavaEntrant.lacks", no_java)
    few = ["--burst", "200", "--burst-after-ms", "2000", "--rounds", "1", "--events", "burst"]
    results = tmp_path / "results"
    run(race, monkeypatch, *few, "--directory", str(tmp_path), "--results", str(results))
    measured = json.loads((results / "race.json").read_text())
    told = measured["events"]["burst"]["engines"]
    assert told["wheel"]["delivered"] == 200
    assert [len(told["wheel"][name]) for name in ("warming_rounds", "rounds")] == [1, 1]
    events = measured["events"]
    assert [events[name]["puts_one_by_one"] for name in ("burst", "burst, in batches")] == [
        True,
        False,
    ]
    assert "lateness_curve" not in told["wheel"]
    assert told["java-wheel"]["unavailable"] == "no Java here"
    measured["facts"]["cores"] = "9999"  # whatever else this machine did
    assert "| burst | java-wheel | no Java here |" in race_tables({"race": measured})
    assert list(tmp_path.iterdir()) == [results]


def test_the_page_of_a_race_is_drawn_from_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--messages", "200", "--delays-s", "1", "2", "--rounds", "2"]
    few += ["--engines", "levels", "wheel"]
    results = tmp_path / "results"
    drawn: list[RaceResults] = []

    def draw(race: RaceResults) -> str:
        drawn.append(race)
        return render_report(race)

    monkeypatch.setattr("tools.race_sample.render_report", draw)
    run(race_sample, monkeypatch, *few, "--directory", str(tmp_path), "--results", str(results))
    assert "wheel: reading what was delivered" in capsys.readouterr().err
    kept = json.loads((results / "race-sample.json").read_text())
    page = sample_page(read_results(results))
    assert page is not None
    assert page.count("<svg") == 3
    assert (
        "--messages 200 --delays 1s-2s --clock wall --engines levels,wheel --repeat 2</pre>" in page
    )
    assert "2 rounds in turns, judged by the median and the worst; 1 round before them is" in page
    [race_drawn] = drawn
    assert json.loads(json.dumps(attrs.asdict(race_drawn))) == kept["race"]
    assert isinstance(race_drawn.engines[1].lateness_ms, Lateness)
    assert sample_page({}) is None
    assert list(tmp_path.iterdir()) == [results]


def test_all_races_are_what_their_names_say(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ["--rates", "100", "2000", "--steady-s", "1", "--burst", "50", "--levels", "9"]
    monkeypatch.setattr(sys, "argv", ["race", *few])
    found = {event.name: event for event in race.events(race.arguments())}
    steady = [
        f"steady, {rate}/s, precision {ms}" for rate in ("100", "2,000") for ms in (1000, 100)
    ]
    assert list(found) == ["levels", "levels, in batches", "burst", "burst, in batches", *steady]
    assert found["levels"].engines == ("levels", "java-levels")
    assert found["levels, in batches"].engines == ("levels",)  # RocketMQ's store knows none
    assert found["levels"].workload.level.tolist() == [1, 2, 3] * 3
    delays_ms = found["levels"].workload.due_ms - found["levels"].workload.arrival_ms
    assert delays_ms.tolist() == [1_000, 5_000, 10_000] * 3
    assert found["steady, 2,000/s, precision 100"].precision_ms == 100
    assert len(found["steady, 2,000/s, precision 100"].workload) == 2_000


def test_starting_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start.command_s(("--help",), tmp_path)
    assert 0 < first[1] <= first[0]
    monkeypatch.setattr(start, "command_s", lambda *_asked: (2.0, 1.0))
    run(start, monkeypatch, "--rounds", "2", "--results", str(tmp_path))
    measured = json.loads((tmp_path / "start.json").read_text())
    assert set(measured["commands"]) == set(start.COMMANDS)
    for rounds in measured["commands"].values():
        assert rounds == [{"s": 2.0, "first word s": 1.0}] * 2


def test_a_conversion_from_the_shell_is_measured_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernels that are there already: to compile them takes half a minute."""
    command_s, kernels = start.command_s, cache_directory() or tmp_path
    monkeypatch.setattr(start, "command_s", lambda words, _cache: command_s(words, kernels))
    sample = unpack_sample(tmp_path)
    assert start.conversion_s(tmp_path, sample, "--in-process")[0] > 0
    assert not (tmp_path / "target").exists()


def test_what_outlives_a_loss_of_power_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["--rounds", "1", "--seconds", "0.05", "--directory", str(tmp_path)]
    run(power, monkeypatch, *few, "--results", str(tmp_path / "results"))
    measured = json.loads((tmp_path / "results/power.json").read_text())
    assert [run["batch"] for run in measured["runs"]] == [*POWER_SAFE]
    for found in measured["runs"]:
        assert set(found["messages a second"]) == {power.SQLITE, *power.ENTRANTS}
    assert "power-safe / SQLite FULL | ≥ 1.00 × |" in bars_table({"power": measured})


def test_groups_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ["--messages", "300", "--rounds", "1", "--directory", str(tmp_path)]
    results = tmp_path / "results"
    run(groups, monkeypatch, *few, "--results", str(results))
    measured = json.loads((results / "groups.json").read_text())
    for told in measured["engines"].values():
        for [found] in told.values():
            assert min(found["s"], found["journal bytes"], found["journal bytes left"]) > 0
            assert min(found["cpu s"], found["flush s"]) >= 0
        batches, singles = told["batches"][0], told["one by one"][0]
        assert batches["journal bytes"] < 100 < singles["journal bytes"]
    text = groups_table({"groups": measured})
    assert len(text.splitlines()) == 2 + len(power.ENTRANTS) * len(groups.WORK)
    assert list(tmp_path.iterdir()) == [results]


@pytest.mark.spark
def test_a_conversion_is_measured_next_to_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "WARM_UP_MESSAGES", 200)
    monkeypatch.setattr(convert, "direct_write_bytes_per_s", lambda _place: 1e9)
    place, results = tmp_path / "work", tmp_path / "results"
    place.mkdir()
    flags = ["--messages", "1000", "2000", "--rounds", "1", "--directory", str(place)]
    run(convert, monkeypatch, *flags, "--results", str(results))
    for found in json.loads((results / "convert.json").read_text())["runs"]:
        assert found["convert"][0]["converted"] == found["messages"]
        assert found["verified"][0]["verify"] > 0
        assert found["copy"][0]["total"] > 0
        assert found["memory"]["worker_private_bytes"] > 1 << 20
    assert "| 2,000 |" in conversion_table(read_results(results))
    assert list(place.iterdir()) == []


@pytest.mark.spark
def test_records_of_every_shape_are_measured_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, results = tmp_path / "work", tmp_path / "results"
    place.mkdir()
    flags = ["--messages", "1000", "--rounds", "1", "--directory", str(place)]
    run(shapes, monkeypatch, *flags, "--results", str(results))
    measured = json.loads((results / "shapes.json").read_text())
    assert set(measured["shapes"]) == {PLAIN, *SHAPES}
    for name, [took] in measured["shapes"].items():
        assert took["converted"] == (999 if name == "one bad record" else 1_000)
    assert shapes_table({"shapes": measured}).count("| 1,000 |") == len(shapes.SHAPES)
    assert list(place.iterdir()) == []


def test_the_shapes_are_what_their_names_say(tmp_path: Path) -> None:
    properties = {}
    for name, shape in shapes.SHAPES.items():
        shapes.make_source(tmp_path / name, 500, shape)
        log = "dledger-n0/data" if shape.is_member else "commitlog"
        with (tmp_path / name / "source" / log / f"{0:020d}").open("rb") as file:
            content = file.read(500 * 600)
        properties[name] = [content.count(each) for each in (b"__CRC32#", b"TIMER_ROLL_TIMES")]
    assert properties[PLAIN] == properties["one bad record"] == [0, 0]
    member = tmp_path / "the log of a DLedger member/source"
    assert read_backlog(member).total("pending") == 500
    assert properties["a CRC property on every record"] == [500, 0]
    assert 0 < properties["1 % odd sizes"][1] < 25


@pytest.mark.spark
def test_memory_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, results = tmp_path / "work", tmp_path / "results"
    place.mkdir()
    flags = ["--messages", "1000", "2000", "--directory", str(place)]
    run(memory, monkeypatch, *flags, "--results", str(results))
    measured = json.loads((results / "memory.json").read_text())
    for found in measured["runs"]:
        assert found["converted"] == found["messages"]
        assert found["driver_private_bytes"] > 1 << 20
        assert found["driver_bytes_before"] > 1 << 20
    assert "| 2,000 |" in memory_table({"memory": measured})
    assert list(place.iterdir()) == []


@pytest.mark.spark
def test_a_fleet_with_three_broken_stores_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, results = tmp_path / "work", tmp_path / "results"
    place.mkdir()
    convert_all, took = fleet.convert_all, list[float]()

    def convert_once(where: Path, sources: list[Path]) -> float:
        took.append(1.0 if took else convert_all(where, sources))
        return took[-1]

    monkeypatch.setattr(fleet, "convert_all", convert_once)
    flags = ["--stores", "5", "--messages", "200", "--rounds", "1", "--directory", str(place)]
    run(fleet, monkeypatch, *flags, "--results", str(results))
    measured = json.loads((results / "fleet.json").read_text())
    assert (measured["s"], took[0] > 0) == ([1.0], True)
    assert list(place.iterdir()) == []


def test_the_log_to_copy_is_the_log_without_its_empty_tail(tmp_path: Path) -> None:
    facts = convert.make_source(tmp_path, 100)
    [copied] = (tmp_path / "to_copy").iterdir()
    original = tmp_path / "source" / "commitlog" / copied.name
    assert copied.stat().st_size == facts["commit_log_bytes"]
    with original.open("rb") as file:
        assert file.read(copied.stat().st_size) == copied.read_bytes()
        assert not any(file.read(1 << 16))


def test_no_benchmark_fills_the_disk(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="bytes are needed for 1,000,000,000,000 messages"):
        convert.require_room(tmp_path, 10**12)
    convert.require_room(tmp_path, 1)


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    try:
        speed = machine.direct_write_bytes_per_s(tmp_path, 4 << 20)
    except OSError as error:
        pytest.skip(f"the disk of the tests cannot be written past the cache: {error}")
    assert speed > 0
    assert list(tmp_path.iterdir()) == []


def test_a_child_is_found_and_its_private_memory_seen() -> None:
    program = "block = bytearray(b'x') * (64 << 20); print(flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in machine.descendants(os.getpid())
        assert machine.is_python(child.pid)
        assert machine.private_bytes(child.pid) > 64 << 20
        child.communicate("\n")
    assert machine.private_bytes(child.pid) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_benchmark_keeps_what_it_measured(tmp_path: Path, number: int) -> None:
    measured: dict[str, list[int]] = {"runs": []}

    def measure() -> None:
        with machine.keeping("race", measured, tmp_path):
            measured["runs"].append(7)
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        measure()
    kept = json.loads((tmp_path / "race.json").read_text())
    assert kept == {"runs": [7], "ended early": "KeyboardInterrupt()"}


def test_a_benchmark_that_measured_nothing_leaves_the_last_one_alone(tmp_path: Path) -> None:
    (tmp_path / "race.json").write_text("[]")
    with (
        pytest.raises(ZeroDivisionError),
        machine.keeping("race", {"runs": []}, tmp_path),
    ):
        raise ZeroDivisionError
    assert (tmp_path / "race.json").read_text() == "[]"


def test_a_steady_load_ends_before_its_store_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["engines", "--steady-s", "120", "--steady-gb", "16"])
    seconds = [engines.sending_s(engines.arguments(), rate) for rate in (14_000, 50_000, 100_000)]
    assert seconds == [120, 120, 62]


def test_results_name_what_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/race.py", "--events", "steady"])
    assert machine.facts(tmp_path)["command"] == "race --events steady"


def test_warming_touches_memory_and_gives_it_back() -> None:
    before = machine.private_bytes(os.getpid())
    machine.prewarm(1 << 20)
    assert machine.private_bytes(os.getpid()) - before < 64 << 20


def test_facts_and_tables_are_readable(tmp_path: Path) -> None:
    known = machine.facts(tmp_path)
    assert int(known["cores"]) >= 1
    assert machine.table(("a", "b"), [(1, 2)]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_much_that_waits_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    few = ["--messages", "300", "--directory", str(tmp_path)]
    run(waiting, monkeypatch, *few, "--listed", "300", "--results", str(results))
    measured = json.loads((results / "waiting.json").read_text())
    assert [(one["store"], one["filter"]) for one in measured["listings"][2:4]] == [
        ("levels", "--due-after"), ("wheel", "--key"),
    ]  # fmt: skip
    [found] = measured["races"]
    for name in ("levels", "wheel", "hierarchy"):
        told = found["engines"][name]
        assert (told["delivered"], told["early"], told["missing"]) == (300, 0, 0)
        assert [fault["kind"] for fault in told["faults"]] == list(waiting.ENDS)
        assert all(fault["opening"]["first_messages"] for fault in told["faults"])
    text = reopenings_table({"waiting": measured})
    assert len(text.splitlines()) == 2 + 3 * 3
    assert waiting_table({"waiting": measured}).count("| 300 |") == 3
    assert list(tmp_path.iterdir()) == [results]
