# SPDX-License-Identifier: Apache-2.0
"""The bytes of a target follow from source and now alone: not from tasks, cores, attempts, or
tries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from migrate.convert import convert
from migrate.settings import ConvertOptions
from migrate.spark.session import spark_session
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import LevelMessage, RawBytes, build_level_store
from tests.independent.real_stores import LEVELS_49_CRASH, RealStore, unpack
from tests.migrate.conversions import (
    NOW_MS,
    SMALL,
    assert_is_the_truth,
    broker_files,
    options_for,
)

ITEMS: list[Item] = [
    *(LevelMessage(level=number % 18 + 1, body=bytes(number * 7 + 1)) for number in range(40)),
    LevelMessage(level=2, extra_pairs=[("__CRC32#", "0")]),
    LevelMessage(level=2, without=["REAL_QID"]),
    RawBytes(b"x" * 50),
    *(LevelMessage(level=number % 5 + 1, topic=f"Topic{number}") for number in range(9)),
]


def converted(place: Path, **changes: Any) -> dict[str, str]:
    options = options_for(place, on_bad_record="quarantine", **changes)
    convert(options)
    files = broker_files(options.target)
    assert len(files) > 8
    return files


def test_two_runs_are_alike_in_every_byte(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", ITEMS)
    first = converted(tmp_path, target=tmp_path / "first")
    assert converted(tmp_path, target=tmp_path / "second") == first


def test_the_source_s_place_and_file_times_change_no_byte(tmp_path: Path) -> None:
    build_level_store(tmp_path / "a/source", ITEMS)
    build_level_store(tmp_path / "b/source", ITEMS)
    assert converted(tmp_path / "a") == converted(tmp_path / "b")


def test_another_now_changes_the_records(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", ITEMS)
    first = converted(tmp_path, target=tmp_path / "first")
    second = converted(tmp_path, target=tmp_path / "second", now_ms=NOW_MS + 1)
    assert {name for name in first if first[name] != second[name]} >= {
        "commitlog/00000000000000000000",
        "config/timercheck",
    }


# --- Spark ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RealStore:
    return unpack(LEVELS_49_CRASH, tmp_path_factory.mktemp("real"))


def real_options(store: RealStore, target: Path) -> ConvertOptions:
    return options_for(
        store.root,
        source=store.root,
        target=target,
        now_ms=store.stopped_ms,
        after_crash=True,
        settings=SMALL.__class__(commit_log_file_bytes=1 << 20, timer_log_file_bytes=50_000),
    )


@pytest.fixture(scope="module")
def in_process(store: RealStore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    target = tmp_path_factory.mktemp("in-process")
    convert(real_options(store, target))
    return broker_files(target)


@pytest.mark.check
@pytest.mark.spark
def test_spark_writes_the_same_bytes_on_two_cores(
    store: RealStore, in_process: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    _same_bytes(store, in_process, spark, tmp_path)


@pytest.mark.check
@pytest.mark.spark
def test_spark_writes_the_same_bytes_on_one_core(
    store: RealStore, in_process: dict[str, str], tmp_path: Path
) -> None:
    with spark_session("local[1]") as spark:
        _same_bytes(store, in_process, spark, tmp_path)


def _same_bytes(
    store: RealStore, in_process: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    options = real_options(store, tmp_path / "target")
    report = convert(options, spark=spark, progress=lambda *step: seen.append(step))
    assert_is_the_truth(store, options, report)
    assert report.total("already_delivered") == 206
    assert broker_files(options.target) == in_process
    file_count = next(total for stage, _, total in seen if stage == "write")
    assert file_count > 3
    assert ("write", file_count, file_count) in seen


@pytest.mark.check
@pytest.mark.spark
def test_spark_brings_bad_and_odd_records_home(tmp_path: Path, spark: SparkSession) -> None:
    build_level_store(tmp_path / "source", ITEMS)
    plain = converted(tmp_path, target=tmp_path / "plain")
    options = options_for(tmp_path, on_bad_record="quarantine")
    report = convert(options, spark=spark)
    assert [bad.reason for bad in report.bad_records] == [
        "no REAL_QID: nobody knows where to deliver it"
    ]
    assert broker_files(options.target) == plain
