# SPDX-License-Identifier: Apache-2.0
"""The benchmark of peers runs, on next to nothing, with those that need no installation."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers
from benchmarks.peers import BATCH, ENTRANTS, FAST, KILL, POWER, SLOW, Entrant, install, turns
from tools.peer_tables import absent_table, kills_table, lateness_table, rates_table

pytestmark = pytest.mark.check

FEW = (
    "--rounds", "1", "--seconds", "0.1", "--messages", "1000", "--rate", "40", "--steady-s", "1",
    "--kill-s", "0.5", "--kill-rate", "100", "--prewarm-bytes", "4096", "--patience-s", "60",
)  # fmt: skip


def by_name(name: str) -> Entrant:
    return next(each for each in ENTRANTS if each.name == name)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("peers")
    flags = [*FEW, "--directory", str(place), "--results", str(place / "results")]
    command = [sys.executable, "-m", "benchmarks.peers", "--peers", "wheel", "sqlite", *flags]
    subprocess.run(command, cwd=peers.ROOT, check=True, timeout=400, stdout=subprocess.DEVNULL)
    assert [each.name for each in place.iterdir()] == ["results"]
    told: dict[str, Any] = json.loads((place / "results/peers.json").read_text())
    return told


def test_ours_and_a_table_by_hand_are_measured(measured: dict[str, Any]) -> None:
    assert set(measured["entrants"]) == {"wheel", "sqlite"}
    assert [run for run in measured["runs"] if "failed" in run] == []
    found = [(run["what"], run["outlives"], run["batch"]) for run in measured["runs"]]
    wanted = [(each.what, each.outlives, each.batch) for each in (*FAST, *SLOW)]
    assert found == [each for each in wanted for _ in range(2)]
    for run in measured["runs"]:
        if run["what"] in ("put", "drain"):
            assert run["messages"] > 0
        if run["what"] == "put":
            assert run["disk bytes"] / run["stored"] > 1_024


def test_a_kill_loses_nothing_of_ours_and_nothing_of_a_table(measured: dict[str, Any]) -> None:
    killed = [run for run in measured["runs"] if run["what"] == "kill"]
    assert [run["entrant"] for run in killed] == ["wheel", "sqlite"]
    for run in killed:
        assert run["answered"] > 0
        assert run["never handled"] == 0
        assert run["handled twice"] <= 100  # what was received and not yet acknowledged


def test_a_steady_load_is_delivered_once_and_not_early(measured: dict[str, Any]) -> None:
    for run in (run for run in measured["runs"] if run["what"] == "lateness"):
        assert (run["handled"], run["different"], run["early"]) == (run["sent"], run["sent"], 0)
        assert 0 < run["sent"] <= 40  # on a busy machine not all within their time


def test_the_page_shows_them(measured: dict[str, Any]) -> None:
    results = {"peers": measured}
    assert rates_table(results).count("| wheel |") == len(FAST)
    for shown in (lateness_table, kills_table):
        assert [line.split(" | ")[0] for line in shown(results).splitlines()[2:]] == [
            "| wheel",
            "| sqlite",
        ]
    assert absent_table(results) == "All of them could be run."


def test_like_stands_beside_like() -> None:
    found = list(turns(ENTRANTS, 2))
    assert {each.name for _, wanted, each in found if wanted.outlives == POWER} == {
        each.name for each in ENTRANTS if POWER in each.outlives
    }
    assert {each.name for _, wanted, each in found if wanted.batch == BATCH} == {
        each.name for each in ENTRANTS if each.in_batches
    }
    assert [each.name for _, _, each in found][:2] == ["levels", "wheel"]
    second = [each.name for number, _, each in found if number == 1]
    assert second[0] == "wheel"  # another begins
    assert [wanted for number, wanted, _ in found if number == 1 and wanted in SLOW] == []


def test_every_entrant_has_a_driver_and_pinned_versions() -> None:
    for each in ENTRANTS:
        driver = peers.ROOT / "benchmarks/peer_queues" / f"{each.driver}.py"
        assert "def open_queue" in driver.read_text("utf-8")
        assert all("==" in need for need in each.needs)
        assert (each.python == sys.executable) == (not each.needs)
        assert KILL in each.outlives or POWER in each.outlives


def test_a_peer_that_cannot_be_installed_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)

    def refuse(command: list[str], **_how: object) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="looking\nERROR: no such version\n")

    monkeypatch.setattr(subprocess, "run", refuse)
    for _ in range(2):
        assert install(by_name("huey")) == "pip: ERROR: no such version"
    assert install(by_name("sqlite")) is None


def test_what_fails_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: object, _bench: object, _options: argparse.Namespace) -> dict[str, Any]:
        raise RuntimeError("did not end within 60 s")

    monkeypatch.setattr(peers.Measurement, "run", fail)
    monkeypatch.setattr(peers, "try_out", lambda *_asked: None)
    monkeypatch.setattr(sys, "argv", ["peers", "--peers", "sqlite", *FEW])
    measured: dict[str, Any] = {"entrants": {}, "runs": []}
    peers.measure_all(peers.arguments(), tmp_path, measured)
    assert {run["failed"] for run in measured["runs"]} == {"did not end within 60 s"}
    assert "failed: did not end within 60 s | – | – |" in rates_table({"peers": measured})
