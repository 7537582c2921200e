# SPDX-License-Identifier: Apache-2.0
"""Workers that die in the middle of a task, and attempts that run twice, change no byte of a
target.
"""

import itertools
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from legacy_levels.generate.store import generate_level_store
from message_store.base.errors import PlanError, TargetError
from message_store.files.store_root import StoreRoot
from migrate.convert import convert
from migrate.plan.stored_plan import StoredPlan
from migrate.plan.target_rows import TargetRows
from migrate.settings import ENGINES, ConvertOptions, TargetSettings
from migrate.spark import jobs
from migrate.spark import tasks as spark_tasks
from migrate.verify.verify import verify
from migrate.write.index_files import IndexStage
from migrate.write.large_files import FileStream
from migrate.write.log_file import FileWriter, write_file
from migrate.write.seal import seal
from migrate.write.staging import Staging, clear_staging, write_note
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import build_level_store
from tests.migrate.conversions import NOW_MS, broker_files, options_for

MESSAGES = 60_000
BAD = 9
"""More records than are held back to take the place of bad ones."""
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
    return ConvertOptions(source=source, target=target, now_ms=NOW_MS, settings=SETTINGS)


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


@pytest.mark.check
@pytest.mark.spark
def test_workers_killed_in_the_middle_are_replaced_and_no_byte_changes(
    source: Path,
    right: dict[str, str],
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Progress is looked at so often that a fast machine is not done in between."""
    monkeypatch.setattr(jobs, "_POLL_SECONDS", 0.002)
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


@pytest.mark.check
def test_attempts_that_run_at_the_same_time_write_the_same(
    source: Path, right: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(source, tmp_path / "target")

    def write_all(plan: StoredPlan) -> None:
        for number in range(plan.cut.file_count):
            write_file(options.target, plan.identity, False, number)

    def twice(plan: StoredPlan, *rest: Any) -> Any:
        threads = [threading.Thread(target=write_all, args=[plan]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        attempts = 2 * plan.cut.file_count
        assert len(list(plan.staging.attempts.iterdir())) == attempts > 2
        return known(plan, *rest)

    known = spark_tasks.write_logs
    monkeypatch.setattr("migrate.convert.write_logs", twice)
    convert(options)
    assert broker_files(options.target) == right


def bad_store(path: Path) -> None:
    """A store of which so many records are bad that its conversion makes two plans."""
    items = [LevelMessage(level=3, without=["REAL_TOPIC"]) for _ in range(BAD)]
    items += [LevelMessage(level=one % 4 + 1, body=bytes([one]) * 200) for one in range(24)]
    build_level_store(path, items)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("moment", ["opened", "planned", "while the next plan is made"])
def test_an_attempt_of_an_earlier_plan_changes_no_byte_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, moment: str
) -> None:
    bad_store(tmp_path / "source")
    facts = {"on_bad_record": "quarantine", "to": engine}
    options = options_for(tmp_path, **facts)
    alone = options_for(tmp_path, target=tmp_path / "alone", **facts)
    convert(alone)
    stale: list[Any] = []
    streams: list[FileStream] = []
    known = spark_tasks.write_logs

    def go_on_writing() -> None:
        """Whatever the stale attempts can still reach, they write."""
        for writer in stale:
            with suppress(TargetError):
                writer.write()
        for stream in streams:
            stream.room(1000)[:] = 255
            stream.advance(1000)
            stream.__exit__(None)
        streams.clear()

    def write_logs(plan: StoredPlan, *rest: Any) -> Any:
        if stale and moment == "while the next plan is made":
            go_on_writing()
        notes = known(plan, *rest)
        if stale:
            go_on_writing()
            return notes
        files = range(plan.cut.file_count)
        stale.extend(FileWriter(plan, number, durably=False) for number in files)
        if moment == "opened":
            paths = sorted(plan.staging.attempts.glob("*/log"))
            streams.extend(FileStream(path, 100) for path in paths)
        return notes

    monkeypatch.setattr("migrate.convert.write_logs", write_logs)
    report = convert(options)
    assert stale
    assert not streams
    assert report.total("quarantined") == BAD
    assert broker_files(options.target) == broker_files(alone.target)
    assert not (options.target / "delaywheel/staging").exists()


def test_a_task_of_an_earlier_plan_that_starts_late_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_store(tmp_path / "source")
    options = options_for(tmp_path, on_bad_record="quarantine")
    known, identities = spark_tasks.write_logs, list[str]()

    def write_logs(plan: StoredPlan, *rest: Any) -> Any:
        identities.append(plan.identity)
        if len(identities) == 2:
            with pytest.raises(PlanError, match="another plan has taken the place"):
                write_file(options.target, identities[0], False, 0)
            assert not list(plan.staging.attempts.iterdir())
        return known(plan, *rest)

    monkeypatch.setattr("migrate.convert.write_logs", write_logs)
    convert(options)
    assert len(set(identities)) == 2
    assert verify(options.source, options.target, spark=None).missing == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_an_attempt_at_an_index_file_that_comes_late_reaches_no_file_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    bad_store(tmp_path / "source")
    options = options_for(tmp_path, on_bad_record="quarantine", to=engine)
    known = seal

    def late(rows: TargetRows, staging: Staging, *rest: Any) -> None:
        def placed() -> dict[Path, int]:
            below = staging.store.path.rglob("*")
            return {path: path.stat().st_ino for path in below}

        before, stage = placed(), IndexStage.of(rows, staging)
        assert all(stage.write(file) for file in stage.files())
        assert placed() == before
        known(rows, staging, *rest)

    monkeypatch.setattr("migrate.convert.seal", late)
    convert(options)
    assert verify(options.source, options.target, spark=None).missing == 0


def test_a_note_that_comes_too_late_brings_nothing_back(tmp_path: Path) -> None:
    staging = Staging(StoreRoot(tmp_path), "a" * 64)
    with pytest.raises(TargetError):
        write_note(staging.attempt("one").note, b"{}")
    assert list(tmp_path.iterdir()) == []


def test_clearing_is_not_stopped_by_a_stale_writer(tmp_path: Path) -> None:
    staging = Staging(StoreRoot(tmp_path), "a" * 64)
    staging.attempt("one").path.mkdir(parents=True)
    is_over = threading.Event()

    def write_on() -> None:
        for number in itertools.count():
            try:
                write_note(staging.attempt("one").path / str(number), b"{}")
            except TargetError:
                return
            if is_over.is_set():
                return

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        clear_staging(staging)
    finally:
        is_over.set()
        writer.join()
    assert not staging.path.exists()
