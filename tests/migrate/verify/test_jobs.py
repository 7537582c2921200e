# SPDX-License-Identifier: Apache-2.0
"""How the work is cut, run and put together again changes nothing of what verification finds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from message_store.base.errors import (
    BadFieldError,
    DelayStoreError,
    FormatError,
    MigrationError,
    OptionsError,
    SourceError,
    TargetError,
    UnsupportedStoreError,
)
from message_store.files.small_files import replace_file
from migrate.convert import convert
from migrate.settings import ConvertOptions, TargetSettings
from migrate.spark.tasks import run_tasks
from migrate.verify import found as verify_found
from migrate.verify import jobs as verify_jobs
from migrate.verify import tasks as verify_tasks
from migrate.verify.reached import END, NOWHERE, walk_chains
from migrate.verify.report import VerifyReport
from migrate.verify.verify import VerifyOptions, verify
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.independent.raw_files import QUEUE_UNIT_BYTES
from tests.independent.raw_records import MAGIC_V2
from tests.migrate.verify_targets import (
    LOG_FILE_BYTES,
    MESSAGES,
    NOW_MS,
    TIMER_FILE_BYTES,
    WINDOW_SLOTS,
    Stores,
    make_stores,
    pending_of,
    write_target,
)
from tests.migrate.verify_targets import (
    convert as convert_by_hand,
)

SMALL = TargetSettings(
    roll_window_slots=WINDOW_SLOTS,
    commit_log_file_bytes=LOG_FILE_BYTES,
    queue_file_bytes=20 * QUEUE_UNIT_BYTES,
    timer_log_file_bytes=TIMER_FILE_BYTES,
)


@given(st.data())
def test_any_chains_are_walked_to_an_end(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 8))
    links = st.integers(NOWHERE, count - 1)
    last = data.draw(st.lists(links, max_size=6))
    previous = data.draw(st.lists(links, min_size=count, max_size=count))
    walk = walk_chains(np.array(last, np.int64), np.array(previous, np.int64))
    expected = []
    for slot, unit in enumerate(last):
        while unit >= 0:
            expected.append((unit, slot))
            unit = previous[unit] if previous[unit] < unit else NOWHERE
        assert walk.broken[slot] == (unit != END)
    assert list(zip(walk.units.tolist(), walk.slots.tolist(), strict=True)) == expected


def test_chains_without_end_are_given_up() -> None:
    """Every slot leads to the same long chain: more steps than there are units to deliver."""
    units = 2000
    walk = walk_chains(np.full(units, units - 1), np.arange(-1, units - 1))
    assert walk.broken[-1]
    assert len(walk.units) < units * units


@pytest.mark.parametrize("parallelism", [1, 2, 16])
@pytest.mark.parametrize("order", [1, -1])
def test_a_task_has_few_enough_entries_however_sizes_are_spread(
    monkeypatch: pytest.MonkeyPatch, parallelism: int, order: int
) -> None:
    monkeypatch.setattr(verify_jobs, "_TASK_MAX_ENTRIES", 4_000)
    monkeypatch.setattr(verify_jobs, "_TASK_MIN_ENTRIES", 100)
    entries = np.zeros(7_003, [("size_bytes", "i4")])
    entries["size_bytes"] = np.array([200] * 7_000 + [2 << 20] * 3)[::order]
    cuts = verify_jobs._cuts(entries, parallelism)
    assert (cuts[0], cuts[-1]) == (0, len(entries))
    assert all(0 < last - first <= 4_000 for first, last in pairwise(cuts))


@pytest.mark.parametrize("parallelism", [1, 3, 50])
def test_tasks_cover_every_entry_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    monkeypatch.setattr(verify_jobs, "_TASK_MIN_ENTRIES", 1)
    entries = np.zeros(33, [("size_bytes", ">i4")])
    entries["size_bytes"] = np.arange(33) % 7
    cuts = verify_jobs._cuts(entries, parallelism)
    assert (cuts[0], cuts[-1]) == (0, 33)
    assert cuts == sorted(set(cuts))
    assert len(cuts) <= parallelism + 1


def test_many_small_tasks_find_what_one_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_level_store(tmp_path / "source", MESSAGES)
    changed = [LevelMessage(level=16, body=b"other", unique_key="TWIN", tags="x")]
    other = build_level_store(tmp_path / "other", changed)
    write_target(tmp_path / "target", convert_by_hand([*built.placed[3:], *other.placed]))
    stores = Stores(built, tmp_path / "target", pending_of(built.placed))
    whole = stores.verify()
    assert (whole.missing, whole.unexpected) == (3, 1)
    monkeypatch.setattr(verify_jobs, "_TASK_MIN_ENTRIES", 1)
    monkeypatch.setattr(verify_jobs, "_TASK_MAX_ENTRIES", 3)
    monkeypatch.setattr(verify_found, "_CHUNK_RECORDS", 2)
    monkeypatch.setattr(verify_found, "_BLOCK_RECORDS", 1)
    monkeypatch.setattr(verify_found, "_INLINE_RECORDS", 0)
    monkeypatch.setattr(verify_tasks, "_TOPIC_TABLE_ROWS", 2)
    assert stores.verify() == whole


def test_tasks_run_here_in_order_and_say_how_far_they_are() -> None:
    seen: list[int] = []
    assert run_tasks(None, [3, 1, 2], lambda task: task * 10, seen.append) == [30, 10, 20]
    assert seen == [1, 2, 3]


@pytest.mark.check
@pytest.mark.spark
def test_spark_finds_what_this_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    stores = make_stores(tmp_path)
    monkeypatch.setattr(verify_jobs, "_TASK_MIN_ENTRIES", 10)
    monkeypatch.setattr(verify_jobs, "_INLINE_BYTES", 500)
    seen: list[tuple[str, int, int]] = []
    report = verify(
        stores.source.root,
        stores.target,
        spark=spark,
        progress=lambda stage, done, total: seen.append((stage, done, total)),
    )
    (stores.target / "timerwheel").unlink()
    damaged = verify(stores.source.root, stores.target, spark=spark)
    assert report == VerifyReport(len(MESSAGES), 0, 0, 0, sampled=len(MESSAGES))
    assert ("digest", 4, 4) in seen
    assert damaged.missing == len(MESSAGES)
    assert not list(tmp_path.glob("delaywheel-verify-*"))


@pytest.mark.check
@pytest.mark.spark
def test_what_goes_wrong_on_a_worker_is_one_sentence_of_its_own_kind(
    tmp_path: Path, spark: SparkSession
) -> None:
    def refuse(error: Exception) -> int:
        raise error

    refusals: list[DelayStoreError] = [
        SourceError("/logs/0: cannot be read: Input/output error"),
        UnsupportedStoreError("/logs: of another kind"),
        BadFieldError("no file name", path="/logs/x"),
        MigrationError("something else"),
    ]
    kinds = [SourceError, SourceError, FormatError, MigrationError]
    for error, kind in zip(refusals, kinds, strict=True):
        with pytest.raises(kind) as caught:
            run_tasks(spark, [error], refuse, lambda _done: None)
        assert str(caught.value) == str(error)
        assert isinstance(caught.value, DelayStoreError)
    with pytest.raises(MigrationError, match="could not finish the verification") as given_up:
        run_tasks(spark, [ZeroDivisionError()], refuse, lambda _done: None)
    assert "\n" not in str(given_up.value)


@pytest.mark.parametrize(
    ("facts", "where"),
    [({"sparkContext": None}, "behind Spark Connect"), ({"sparkContext": 1}, "spark://node:7077")],
)
def test_a_cluster_needs_a_directory_that_all_its_workers_see(
    tmp_path: Path, facts: dict[str, Any], where: str
) -> None:
    stores = make_stores(tmp_path)
    conf = SimpleNamespace(get=lambda *_: "spark://node:7077")
    cluster = cast(SparkSession, SimpleNamespace(conf=conf, **facts))
    with pytest.raises(OptionsError, match=rf"{where}\) .* --scratch must name a directory"):
        verify(stores.source.root, stores.target, spark=cluster)


@pytest.mark.spark
def test_entries_are_laid_down_in_the_scratch_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    stores = make_stores(tmp_path)
    monkeypatch.setattr(verify_jobs, "_INLINE_BYTES", 500)
    seen: list[Path] = []

    def lay_down(path: Path, content: bytes, *, mode: int, is_durable: bool) -> None:
        seen.append(path)
        replace_file(path, content, mode=mode, is_durable=is_durable)

    monkeypatch.setattr(verify_jobs, "replace_file", lay_down)
    scratch = tmp_path / "scratch"
    options = VerifyOptions(scratch=scratch)
    with pytest.raises(TargetError, match=r"scratch.*: cannot be written"):
        verify(stores.source.root, stores.target, spark=spark, options=options)
    scratch.mkdir()
    assert verify(stores.source.root, stores.target, spark=spark, options=options).is_clean
    assert {path.parent.parent for path in seen} == {scratch}
    assert not list(scratch.iterdir())


# --- what the conversion writes -------------------------------------------------------------------


@pytest.mark.parametrize("precision_ms", [100, 1000])
@pytest.mark.parametrize("facts", [{}, {"dialect": "5.5"}, {"offsets": {16: 3, 17: 1}}])
def test_a_conversion_is_accepted(tmp_path: Path, precision_ms: int, facts: dict[str, Any]) -> None:
    built = build_level_store(tmp_path / "source", MESSAGES, **facts)
    settings = attrs.evolve(SMALL, precision_ms=precision_ms)
    options = ConvertOptions(
        source=built.root, target=tmp_path / "target", now_ms=NOW_MS, settings=settings
    )
    count = convert(options).total("converted")
    assert count == len(MESSAGES) - (4 if "offsets" in facts else 0)
    report = verify(built.root, options.target, spark=None)
    assert report == VerifyReport(count, 0, 0, 0, sampled=count)


def test_the_conversion_of_a_record_of_v2_is_accepted(tmp_path: Path) -> None:
    messages = [LevelMessage(level=16, record_fields={"magic": MAGIC_V2}), *MESSAGES]
    built = build_level_store(tmp_path / "source", messages)
    options = ConvertOptions(
        source=built.root, target=tmp_path / "target", now_ms=NOW_MS, settings=SMALL
    )
    convert(options)
    report = verify(built.root, options.target, spark=None)
    assert report == VerifyReport(len(messages), 0, 0, 0, sampled=len(messages))


BAD = [
    LevelMessage(level=16, body=b"bad crc", record_fields={"body_crc": 1}),
    LevelMessage(level=16, body=b"bad magic", damage=lambda data: data[:4] + b"xxxx" + data[8:]),
    LevelMessage(level=16, body=b"no topic", without=["REAL_TOPIC"]),
    LevelMessage(level=16, body=b"no queue", without=["REAL_QID"]),
    LevelMessage(level=16, body=b"no delay", without=["DELAY"]),
]


def set_one_aside(tmp_path: Path, item: LevelMessage) -> ConvertOptions:
    """Convert ``MESSAGES`` and, before them, one that is set aside."""
    options = ConvertOptions(
        source=build_level_store(tmp_path / "source", [item, *MESSAGES]).root,
        target=tmp_path / "target",
        now_ms=NOW_MS,
        settings=SMALL,
        on_bad_record="quarantine",
    )
    assert convert(options).total("quarantined") == 1
    return options


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_a_conversion_sets_aside_verification_finds_bad_too(
    tmp_path: Path, number: int
) -> None:
    options, count = set_one_aside(tmp_path, BAD[number]), len(MESSAGES)
    report = verify(options.source, options.target, spark=None)
    assert report == VerifyReport(count, 0, 0, 0, quarantined=1, sampled=count)


@pytest.mark.parametrize("unit_fields", [{"commit_log_offset": 2**40}, {"size_bytes": 2**30}])
def test_what_the_whole_log_tells_of_a_damaged_entry_is_no_success_without_it(
    tmp_path: Path, unit_fields: dict[str, int]
) -> None:
    """The entry leads nowhere, and its message could have been found."""
    item = LevelMessage(level=16, body=b"elsewhere", unit_fields=unit_fields)
    options, count = set_one_aside(tmp_path, item), len(MESSAGES)
    report = verify(options.source, options.target, spark=None)
    assert (report.converted, report.missing, report.quarantined) == (count, 0, 1)
    assert not report.is_clean
    assert report.problems[0].where == "quarantine"
    assert report.problems[0].what.startswith("level 16, queue offset 0: ")
    told = "convert anew, with --whole-log where its entry leads nowhere"
    assert report.problems[0].what.endswith(told)
    anew = attrs.evolve(options, target=tmp_path / "anew", whole_log=True, on_bad_record="fail")
    assert convert(anew).total("converted") == count + 1
    assert verify(options.source, anew.target, spark=None) == VerifyReport(
        count + 1, 0, 0, 0, sampled=count + 1, whole_log=True
    )


@pytest.mark.parametrize(
    ("changes", "expected"), [({"only_levels": (17,)}, 3), ({"only_topics": ("TopicB",)}, 1)]
)
def test_a_conversion_of_a_part_is_verified_as_that_part(
    tmp_path: Path, changes: dict[str, Any], expected: int
) -> None:
    built = build_level_store(tmp_path / "source", MESSAGES)
    options = ConvertOptions(
        source=built.root, target=tmp_path / "target", now_ms=NOW_MS, settings=SMALL, **changes
    )
    convert(options)
    report = verify(built.root, options.target, spark=None)
    assert (report.converted, report.is_clean) == (expected, True)
