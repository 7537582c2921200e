# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's own engines in the race, as far as it can be told without Java."""

import stat
from pathlib import Path

import pytest

from compare.rocketmq import java_engines
from compare.rocketmq.java_engines import JAVA_ENTRANTS, WALL_CLOCK_ONLY, JavaRunError, busy_s
from compare.running.observation import Delivered, RaceSettings
from compare.running.race import no_progress
from compare.running.work_files import write_workload
from compare.workloads.made_up import Recipe, make_workload

WALL = RaceSettings(clock="wall")


@pytest.mark.parametrize(
    ("stored_ms", "seconds"),
    [
        ([], 0.001),
        ([5], 0.001),
        ([5, 5, 5], 0.001),
        ([5, 6, 9], 0.005),
        ([5, 25], 0.021),
        ([5, 26], 0.002),
        ([1_000, 1_010, 2_000, 2_010], 0.022),
    ],
)
def test_pauses_between_deliveries_are_not_counted_as_work(
    stored_ms: list[int], seconds: float
) -> None:
    delivered = Delivered(range(len(stored_ms)), stored_ms)
    assert busy_s(delivered, pause_ms=20) == pytest.approx(seconds)


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _tool(folder: Path, name: str, script: str) -> None:
    tool = folder / name
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


@pytest.mark.usefixtures("empty_path")
def test_without_a_jdk_and_maven_it_says_what_it_needs() -> None:
    lacking = JAVA_ENTRANTS["java-wheel"].lacks(WALL, no_progress)
    assert lacking == "not available: needs mvn, java, javac on the PATH"


def test_on_the_virtual_clock_it_says_why_it_is_absent() -> None:
    assert JAVA_ENTRANTS["java-levels"].lacks(RaceSettings(), no_progress) == WALL_CLOCK_ONLY


def test_jars_that_cannot_be_fetched_are_a_sentence(
    tmp_path: Path, empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("java", "javac"):
        _tool(empty_path, name, "exit 0")
    _tool(empty_path, "mvn", "echo no network; exit 1")
    lacking = JAVA_ENTRANTS["java-wheel"].lacks(WALL, no_progress)
    assert lacking is not None
    assert lacking.startswith("not available: RocketMQ 5.5.0 cannot be had: mvn")
    assert not any((tmp_path / "cache" / "delaywheel" / "rocketmq").iterdir())


def test_a_java_process_that_fails_tells_what_it_said(
    tmp_path: Path, empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tool(empty_path, "java", "echo the store does not load; exit 7")
    monkeypatch.setattr(java_engines, "jars", lambda version: tmp_path)
    monkeypatch.setattr(java_engines, "classes", lambda *program: tmp_path)
    workload = make_workload("burst", Recipe(messages=5, delay_max_ms=1_000))
    write_workload(tmp_path / "workload.npz", workload)
    entrant = JAVA_ENTRANTS["java-levels"]
    with pytest.raises(JavaRunError, match="ended with 7: the store does not load"):
        entrant.run(tmp_path / "workload.npz", WALL, tmp_path / "store", no_progress)
