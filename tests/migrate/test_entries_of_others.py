# SPDX-License-Identifier: Apache-2.0
"""A level queue's entry that leads to the record of another message: whoever reads the store finds
each message once, or says that one cannot be found.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.errors import MigrationError
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.convert import convert
from migrate.look.pending import pending_messages
from migrate.report.report import BadRecord
from migrate.verify.verify import verify
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, BuiltStore, build_level_store
from tests.migrate.conversions import NOW_MS, Converted, assert_right, options_for

COUNT = 4
MESSAGES = [
    LevelMessage(level=18, store_timestamp_ms=T0 + number, body=b"%d" % number)
    for number in range(COUNT)
]
DAMAGED = list(itertools.permutations(range(COUNT), 2))


def damaged_store(root: Path, damaged: int, other: int, *, is_lost: bool = False) -> BuiltStore:
    """A store in which one entry leads to the record of another; its own may be lost."""
    whole = build_level_store(root.with_name(f"{root.name}-whole"), MESSAGES, offsets={18: 0})
    place = whole.of(MESSAGES[other]).commit_log_offset
    items = list(MESSAGES)
    items[damaged] = attrs.evolve(items[damaged], unit_fields={"commit_log_offset": place})
    if is_lost:
        items[damaged] = attrs.evolve(items[damaged], damage=lambda data: b"\x5a" * len(data))
    return build_level_store(root, items, offsets={18: 0})


def codes_of(root: Path) -> list[str]:
    report = check_store(root, CheckOptions(now_ms=NOW_MS))
    return [each.code for each in report.findings if each.severity.name == "ERROR"]


@pytest.mark.parametrize(("damaged", "other"), DAMAGED)
def test_readers_list_each_message_once(tmp_path: Path, damaged: int, other: int) -> None:
    store = damaged_store(tmp_path / "source", damaged, other)
    listed = list(pending_messages(store.root, now_ms=NOW_MS))
    assert not any(isinstance(each, BadRecord) for each in listed)
    assert len({each.commit_log_offset for each in listed}) == COUNT
    assert read_backlog(store.root).queue_offset.tolist() == list(range(COUNT))
    assert codes_of(store.root) == ["entries-of-others"]


@pytest.mark.parametrize(("damaged", "other"), [(0, 3), (1, 2), (3, 0)])
def test_a_conversion_makes_the_entry_anew_and_says_so(
    tmp_path: Path, damaged: int, other: int
) -> None:
    store = damaged_store(tmp_path / "source", damaged, other)
    options = options_for(tmp_path)
    report = convert(options)
    assert_right(Converted(built=store, options=options, report=report), store_items(store))
    assert any("1 entry of a level's queue led" in each for each in report.warnings)
    assert verify(store.root, options.target, spark=None).is_clean


def store_items(store: BuiltStore) -> list[LevelMessage]:
    return [each.item for each in store.placed if isinstance(each.item, LevelMessage)]


@pytest.mark.parametrize(("damaged", "other"), [(0, 3), (1, 2), (3, 0)])
def test_where_the_own_record_is_lost_too_the_entry_is_a_bad_record(
    tmp_path: Path, damaged: int, other: int
) -> None:
    store = damaged_store(tmp_path / "source", damaged, other, is_lost=True)
    listed = Counter(isinstance(e, BadRecord) for e in pending_messages(store.root, now_ms=NOW_MS))
    assert listed == {False: COUNT - 1, True: 1}
    with pytest.raises(MigrationError):
        convert(options_for(tmp_path))
    assert not (tmp_path / "target").exists()
    report = convert(options_for(tmp_path, on_bad_record="quarantine"))
    assert (report.total("converted"), len(report.bad_records)) == (COUNT - 1, 1)
    assert [each.queue_offset for each in report.bad_records] == [damaged]
    assert verify(store.root, tmp_path / "target", spark=None).is_clean


@pytest.mark.spark
def test_spark_sees_the_same(tmp_path: Path, spark: SparkSession) -> None:
    store = damaged_store(tmp_path / "source", 1, 2)
    frame = spark.read.format("rocketmq_levels").load(str(store.root))
    assert sorted(row.commit_log_offset for row in frame.collect()) == sorted(
        each.commit_log_offset for each in store.placed
    )
