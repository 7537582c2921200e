# SPDX-License-Identifier: Apache-2.0
"""Workers that die in the middle of a task, and attempts that run twice, change no byte of a
target.
"""

import os
import signal
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from legacy_levels.generate import generate_level_store
from migrate.convert import convert
from migrate.settings import ConvertOptions, TargetSettings
from migrate.stored_plan import load_plan
from migrate.write import write_parts
from tests.migrate.conversions import NOW_MS, broker_files

MESSAGES = 60_000
SETTINGS = TargetSettings(commit_log_file_bytes=4 << 20, timer_log_file_bytes=1 << 20)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "source"
    generate_level_store(path, messages=MESSAGES, now_ms=NOW_MS, commit_log_file_bytes=8 << 20)
    return path


@pytest.fixture(scope="module")
def right(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    options = options_of(source, tmp_path_factory.mktemp("right") / "target")
    convert(options)
    return broker_files(options.target)


def options_of(source: Path, target: Path) -> ConvertOptions:
    return ConvertOptions(
        source=source, target=target, now_ms=NOW_MS, settings=SETTINGS, part_bytes=100_000
    )


def worker_pids() -> list[int]:
    """The Python workers of this process's JVM: what the daemon that serves it has forked."""
    parents, daemons = {}, set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
        if b"pyspark.daemon" in command:
            daemons.add(int(entry.name))
    return [pid for pid in daemons if parents[pid] in daemons and _is_ours(pid, parents)]


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


@pytest.mark.spark
def test_workers_killed_in_the_middle_are_replaced_and_no_byte_changes(
    source: Path, right: dict[str, str], tmp_path: Path, spark: SparkSession
) -> None:
    killed: list[int] = []

    def kill_once(stage: str, done: int, total: int) -> None:
        if stage == "write" and 0 < done < total and not killed:
            killed.extend(worker_pids())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    options = options_of(source, tmp_path / "target")
    report = convert(options, spark=spark, progress=kill_once)
    assert killed, "the write stage was over before anybody could be killed"
    assert report.total("converted") == MESSAGES
    assert broker_files(options.target) == right


def test_attempts_that_run_at_the_same_time_write_the_same(
    source: Path, right: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(source, tmp_path / "target")

    def twice(staging: object, part_count: int, *_: object) -> None:
        threads = [
            threading.Thread(target=lambda: list(write_parts(options.target, range(part_count))))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert load_plan(options.target).count == MESSAGES

    monkeypatch.setattr("migrate.convert.write_all", twice)
    convert(options)
    assert broker_files(options.target) == right
