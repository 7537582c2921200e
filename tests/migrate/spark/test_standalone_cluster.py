# SPDX-License-Identifier: Apache-2.0
"""On a real cluster of a master and two workers a conversion ends in the bytes of a local one,
whoever is killed in the middle.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from legacy_levels.generate.store import generate_level_store
from message_store.base.errors import TargetError
from message_store.files.store_root import StoreRoot
from migrate.convert import convert
from migrate.fleet import CONVERTED, Fleet
from migrate.progress import Progress
from migrate.settings import ConvertOptions, TargetSettings
from migrate.spark.session import spark_session
from migrate.spark.tasks import run_tasks
from migrate.verify.verify import VerifyOptions, verify
from migrate.write.staging import Staging
from tests.migrate.conversions import NOW_MS, broker_files
from tests.migrate.standalone_cluster import (
    PATIENCE_S,
    Cluster,
    count_files,
    kill_with_all_below,
    standalone_cluster,
    wait_for,
)
from tests.source_laws import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.spark]

MESSAGES = 60_000
LOG_FILE_BYTES = 1 << 20
SETTINGS = TargetSettings(commit_log_file_bytes=LOG_FILE_BYTES)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), note_seconds=0.2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "source"
    generate_level_store(path, messages=MESSAGES, now_ms=NOW_MS, commit_log_file_bytes=8 << 20)
    return path


@pytest.fixture(scope="module")
def right(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a conversion in one process."""
    options = options_of(source, tmp_path_factory.mktemp("right") / "target")
    convert(options)
    return broker_files(options.target)


def options_of(source: Path, target: Path) -> ConvertOptions:
    return ConvertOptions(source=source, target=target, now_ms=NOW_MS, settings=SETTINGS)


def in_the_middle(done: int, total: int) -> bool:
    return total // 8 <= done < total // 2


def test_a_worker_killed_with_its_executor_changes_no_byte(
    cluster: Cluster, source: Path, right: dict[str, str], tmp_path: Path
) -> None:
    cluster.have_workers(2)
    killed: list[int] = []

    def kill_once(stage: str, done: int, total: int) -> None:
        if stage == "write" and in_the_middle(done, total) and not killed:
            killed.extend(kill_with_all_below(cluster.workers[0]))

    options = options_of(source, tmp_path / "target")
    with spark_session(cluster.url, cluster.conf) as spark:
        assert spark.sparkContext.master == cluster.url
        report = convert(options, spark=spark, progress=kill_once)
    assert len(killed) > 1, "the worker had no executor"
    assert report.total("converted") == MESSAGES
    assert broker_files(options.target) == right


def test_a_driver_that_was_killed_is_followed_by_the_same_command(
    cluster: Cluster, source: Path, right: dict[str, str], tmp_path: Path
) -> None:
    """The executors of the first may still be at work when the second begins."""
    cluster.have_workers(2)
    conf = tmp_path / "target.conf"
    conf.write_text(f"mappedFileSizeCommitLog={LOG_FILE_BYTES}\n")
    words = ["convert", str(source), str(tmp_path / "target"), "--now", str(NOW_MS)]
    words += ["--target-conf", str(conf), "--master", cluster.url]
    for name, value in cluster.conf.items():
        words += ["--conf", f"{name}={value}"]
    staging = Staging(StoreRoot(tmp_path / "target"))
    first = subprocess.Popen(
        [sys.executable, "-m", "cli", *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    try:
        wait_for(
            "some files", lambda: count_files(staging.target.path) >= 3 or first.poll() is not None
        )
    finally:
        kill_with_all_below(first)
    assert staging.plan_file.exists(), "it was over before it could be killed"
    again = subprocess.run(
        [sys.executable, "-m", "cli", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert again.returncode == 0, again.stderr
    assert broker_files(tmp_path / "target") == right


def test_an_error_of_the_disk_is_tried_again(
    cluster: Cluster, source: Path, right: dict[str, str], tmp_path: Path
) -> None:
    cluster.have_workers(2)
    options = options_of(source, tmp_path / "target")
    with (
        cluster.disturbed("fail-0", "fail-1", "fail-2"),
        spark_session(cluster.url, cluster.conf) as spark,
    ):
        assert convert(options, spark=spark).total("converted") == MESSAGES
        assert not list(cluster.orders.glob("fail-*"))
        assert cluster.repeated()
    assert broker_files(options.target) == right


def test_a_disk_that_fails_every_time_is_named_by_the_project_s_own_error(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    cluster.have_workers(2)
    options = options_of(source, tmp_path / "target")
    with (
        cluster.disturbed("fail-always"),
        spark_session(cluster.url, cluster.conf) as spark,
        pytest.raises(
            TargetError,
            match=r"attempts/.*/note\.json: cannot be written: Input/output error$",
        ),
    ):
        convert(options, spark=spark)
    assert any(name.endswith("-3") for name in cluster.repeated())
    assert not any(name.endswith("-4") for name in cluster.repeated())


def test_a_slow_worker_is_overtaken_and_changes_no_byte(
    cluster: Cluster, source: Path, right: dict[str, str], tmp_path: Path
) -> None:
    """Its attempts still write when others have finished their tasks."""
    cluster.have_workers(2)
    conf = {
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.interval": "100ms",
    }
    options = options_of(source, tmp_path / "target")
    with (
        cluster.disturbed(f"slow-worker-{cluster.started}"),
        spark_session(cluster.url, {**cluster.conf, **conf}) as spark,
    ):
        assert convert(options, spark=spark).total("converted") == MESSAGES
        assert cluster.repeated()
        assert broker_files(options.target) == right
    assert broker_files(options.target) == right


def test_executors_that_come_and_go_change_no_byte(
    cluster: Cluster, source: Path, right: dict[str, str], tmp_path: Path
) -> None:
    cluster.have_workers(2)
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
    }
    options = options_of(source, tmp_path / "target")
    with spark_session(cluster.url, {**cluster.conf, **conf}) as spark:
        assert convert(options, spark=spark).total("converted") == MESSAGES
        verified = verify(
            source, options.target, spark=spark, options=VerifyOptions(scratch=tmp_path)
        )
    assert verified.is_clean
    assert broker_files(options.target) == right


def test_workers_get_the_package_as_an_archive(
    cluster: Cluster, source: Path, right: dict[str, str], tmp_path: Path
) -> None:
    def file_of(module: str) -> str:
        return str(Path(importlib.import_module(module).__file__ or "").resolve())

    cluster.have_workers(2)
    archive = tmp_path / "delaywheel.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for package in ("message_store", "legacy_levels", "timer_wheel", "migrate"):
            for path in sorted((ROOT / package).rglob("*.py")):
                packed.write(path, path.relative_to(ROOT))
    conf = {
        "spark.archives": f"{archive}#delaywheel",
        "spark.executorEnv.PYTHONPATH": "delaywheel",
    }
    options = options_of(source, tmp_path / "target")
    with spark_session(cluster.url, {**cluster.conf, **conf}) as spark:
        [found] = run_tasks(spark, ["migrate"], file_of, lambda _done: None)
        assert convert(options, spark=spark).total("converted") == MESSAGES
    assert Path(found).is_relative_to(cluster.directory)
    assert broker_files(options.target) == right


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[ConvertOptions]:
    """Six small stores, converted one by one: what is right."""
    place = tmp_path_factory.mktemp("small")
    asked = []
    for number in range(6):
        options = options_of(place / f"source-{number}", place / "right" / str(number))
        generate_level_store(options.source, messages=500, now_ms=NOW_MS, seed=number)
        convert(options)
        asked.append(options)
    return asked


def converted_fleet(
    small: list[ConvertOptions], place: Path, spark: SparkSession, progress: Progress
) -> None:
    """Convert them all to a place; the bytes are right."""
    members = [attrs.evolve(each, target=place / each.target.name) for each in small]
    fleet = Fleet(members)
    fleet.convert(spark, progress)
    assert [entry.state for entry in fleet.entries] == [CONVERTED] * 6, fleet.entries
    for options, each in zip(members, small, strict=True):
        assert broker_files(options.target) == broker_files(each.target)


def test_small_stores_in_work_on_a_worker_that_is_killed_are_converted_by_another(
    cluster: Cluster, small: list[ConvertOptions], tmp_path: Path
) -> None:
    cluster.have_workers(2)
    killed: list[int] = []

    def kill_once(stage: str, done: int, _total: int) -> None:
        if stage == "small stores" and 1 <= done < 5 and not killed:
            killed.extend(kill_with_all_below(cluster.workers[0]))

    with spark_session(cluster.url, cluster.conf) as spark:
        converted_fleet(small, tmp_path, spark, kill_once)
    assert len(killed) > 1, "the worker had no executor"


def test_a_small_store_waits_for_a_slow_attempt_and_is_converted_once(
    cluster: Cluster, small: list[ConvertOptions], tmp_path: Path
) -> None:
    cluster.have_workers(2)
    conf = {
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.interval": "100ms",
    }
    with (
        cluster.disturbed(f"slow-worker-{cluster.started}", "fail-0"),
        spark_session(cluster.url, {**cluster.conf, **conf}) as spark,
    ):
        converted_fleet(small, tmp_path, spark, lambda *_: None)
        assert cluster.repeated()


def test_a_master_that_is_lost_does_not_stop_the_executors(
    cluster: Cluster, source: Path, right: dict[str, str], tmp_path: Path
) -> None:
    cluster.have_workers(2)

    def kill(stage: str, done: int, total: int) -> None:
        if stage == "write" and in_the_middle(done, total):
            kill_with_all_below(cluster.master)

    options = options_of(source, tmp_path / "target")
    with spark_session(cluster.url, cluster.conf) as spark:
        convert(options, spark=spark, progress=kill)
    assert cluster.master.poll() is not None, "it was over before the master could be killed"
    assert broker_files(options.target) == right
