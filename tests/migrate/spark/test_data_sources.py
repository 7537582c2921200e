# SPDX-License-Identifier: Apache-2.0
"""Stores as Spark tables, on whatever PySpark is here: read, asked in SQL, written, retried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema

from message_store.base.errors import OptionsError, UncleanStoreError
from message_store.interface.delay_store import Pending
from migrate.look.pending import pending_messages
from migrate.spark.data_sources import (
    LevelsDataSource,
    PushdownReader,
    WheelDataSource,
    spark_schema,
)
from migrate.table.pending_table import SCHEMA
from tests.helpers.tiers import with_examples
from tests.independent.level_messages import LevelMessage, retry_message
from tests.independent.level_store_builder import T0, build_level_store
from tests.independent.real_stores import LEVELS_49_CRASH, RealStore, unpack
from tests.independent.variant_b_checker import check_target

pytestmark = pytest.mark.spark

NOW_MS = T0 + 20_000
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
knows_filters = pytest.mark.skipif(
    not hasattr(DataSourceReader, "pushFilters"), reason="PySpark 4.0 hands no filters over"
)
PLACE = ("level", "store_ms", "size_bytes", "commit_log_offset")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RealStore:
    return unpack(LEVELS_49_CRASH, tmp_path_factory.mktemp("real") / "store")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    items = [
        LevelMessage(level=18, topic="Orders", queue_id=3, keys="k1 k2", unique_key="U1"),
        LevelMessage(level=3, tags=None, unique_key=None),
        retry_message(level=4, unique_key="U1"),
    ]
    build_level_store(tmp_path / "small", items)
    return tmp_path / "small"


def levels(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq_levels").options(**options).load(str(path))


def wheel(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq_wheel").options(**options).load(str(path))


def comparable(frame: DataFrame) -> DataFrame:
    """Everything but the place, in a form that Spark can compare."""
    entries = F.sort_array(F.map_entries("properties"))
    return frame.drop(*PLACE).withColumn("properties", entries)


# --- columns and options --------------------------------------------------------------------------


def test_the_columns_are_exactly_those_that_this_pyspark_expects() -> None:
    assert to_arrow_schema(spark_schema(SCHEMA)).equals(SCHEMA)


@pytest.mark.check
def test_bodies_and_properties_are_columns_only_when_asked_for(
    spark: SparkSession, small: Path
) -> None:
    assert "body" not in levels(spark, small).columns
    assert "properties" in levels(spark, small).columns
    frame = levels(spark, small, includeBody="true", includeProperties="false")
    assert "body" in frame.columns
    assert "properties" not in frame.columns
    assert frame.count() == 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"includebodies": "true"}, "no such option: includebodies"),
        ({"offsets": "newest"}, "auto, main, bak or none"),
        ({"includebody": "yes"}, "true or false"),
        ({"precisionms": "1s"}, "is a number"),
        ({"leveltable": "1 2"}, "levelTable"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionsError, match=why):
        LevelsDataSource({"path": "x", **options}).schema()


def test_a_crashed_store_is_read_only_when_told_so(store: RealStore) -> None:
    source = LevelsDataSource({"path": str(store.root)})
    with pytest.raises(UncleanStoreError):
        source.reader(source.schema()).partitions()


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("topic string, body binary", "has a column due_ms"),
        ("topic string, body binary, due_ms timestamp", "int or bigint is wanted"),
        ("topic string, body binary, due_ms long, tag string", "column tag: not one"),
        ("topic string, body binary, due_ms long, properties map<string,int>", "map<string,string"),
    ],
)
def test_a_table_that_is_not_one_of_messages_is_refused(
    columns: str, why: str, spark: SparkSession, tmp_path: Path
) -> None:
    schema = spark.createDataFrame([], columns).schema
    with pytest.raises(OptionsError, match=why):
        WheelDataSource({"path": str(tmp_path / "w")}).writer(schema, False)
    assert not (tmp_path / "w").exists()


# --- reading --------------------------------------------------------------------------------------


def test_every_pending_message_is_a_row(spark: SparkSession, store: RealStore) -> None:
    rows = levels(spark, store.root, afterCrash="true").collect()
    listed = (
        each for each in pending_messages(store.root, now_ms=NOW_MS) if isinstance(each, Pending)
    )
    wanted = sorted(listed, key=lambda message: message.commit_log_offset)
    assert len(rows) == len(wanted) == len(store.pending_in_levels())
    for row, message in zip(rows, wanted, strict=True):
        names = ("unique_key", "topic", "queue_id", "tags", "level", "due_ms", "size_bytes")
        assert [row[name] for name in names] == [getattr(message, name) for name in names]
        assert tuple(row["keys"] or ()) == message.keys
        assert row["problem"] is None


def test_sql_over_a_store(spark: SparkSession, small: Path) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW waiting USING rocketmq_levels OPTIONS (path '{small}')")
    try:
        [row] = spark.sql(
            "SELECT topic, keys, timestamp_millis(due_ms) > now() AS later FROM waiting"
            " WHERE level = 18 AND array_contains(keys, 'k2')"
        ).collect()
        assert (row.topic, row["keys"], row.later) == ("Orders", ["k1", "k2"], False)
        [count] = spark.sql("SELECT count(*) AS n FROM waiting WHERE retry").collect()
        assert count.n == 1
    finally:
        spark.catalog.dropTempView("waiting")


def test_a_store_without_a_wheel_has_no_rows_on_it(spark: SparkSession, small: Path) -> None:
    assert wheel(spark, small).count() == 0


ASKED = [
    "level = 3",
    "level >= 4 AND due_ms < 2000000000000",
    "topic = 'Orders'",
    "topic IN ('Orders', 'nobody')",
    "unique_key = 'U1'",
    "unique_key IS NOT NULL AND level > 3",
    "topic = 'Orders' OR level = 3",
    "topic LIKE 'Ord%'",
    "tags IS NULL",
    "retry",
    f"due_ms > {T0 + 30_000}",
]


@knows_filters
@pytest.mark.parametrize("asked", with_examples(ASKED, ASKED[:2]))
def test_filters_that_are_handed_over_answer_as_sparks_own(
    asked: str, spark: SparkSession, small: Path
) -> None:
    plain = sorted(levels(spark, small).filter(asked).collect(), key=str)
    spark.conf.set(PUSHDOWN, "true")
    try:
        pushed = sorted(levels(spark, small, pushdown="true").filter(asked).collect(), key=str)
    finally:
        spark.conf.unset(PUSHDOWN)
    assert pushed == plain


@knows_filters
def test_filters_that_can_be_answered_are_kept_and_the_others_given_back(small: Path) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, StringStartsWith

    source = LevelsDataSource({"path": str(small), "pushdown": "true"})
    reader = source.reader(source.schema())
    assert isinstance(reader, PushdownReader)
    mine = [EqualTo(("level",), 3), In(("topic",), ("a", "b")), GreaterThan(("due_ms",), 5)]
    others = [StringStartsWith(("topic",), "a"), EqualTo(("keys",), "k"), EqualTo(("level",), 2.5)]
    assert list(reader.pushFilters([*mine, *others])) == others
    assert [condition.column for condition in reader.conditions] == ["level", "topic", "due_ms"]
    assert sum(part.value[0] for part in reader.partitions()) == 1


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.check
def test_levels_become_a_wheel_in_one_statement(
    spark: SparkSession, store: RealStore, tmp_path: Path
) -> None:
    now_ms = store.stopped_ms
    frame = levels(spark, store.root, afterCrash="true", includeBody="true")
    target = tmp_path / "wheel"
    writing = frame.repartition(3).write.format("rocketmq_wheel").mode("append")
    writing.options(now=str(now_ms), mappedFileSizeCommitLog=str(1 << 20)).save(str(target))
    assert check_target(target, now_ms=now_ms, commit_log_file_bytes=1 << 20) == []
    there = comparable(wheel(spark, target, now=str(now_ms), includeBody="true"))
    seconds = F.ceil(F.col("due_ms") / 1000) * 1000
    here = comparable(frame).withColumn("due_ms", seconds.cast("long"))
    assert here.exceptAll(there).count() == there.exceptAll(here).count() == 0
    assert there.count() == frame.count()


def rows_of(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 4).selectExpr(
        "'Orders' AS topic", "cast(id AS string) AS body", f"{NOW_MS} + id AS due_ms",
        "cast(id AS string) AS unique_key", "cast(id % 4 AS int) AS queue_id",
    )  # fmt: skip


def test_overwrite_replaces_and_append_refuses(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "w")
    rows_of(spark, 100).write.format("rocketmq_wheel").mode("append").save(target)
    with pytest.raises(PySparkException, match="already holds a written wheel"):
        rows_of(spark, 50).write.format("rocketmq_wheel").mode("append").save(target)
    rows_of(spark, 50).write.format("rocketmq_wheel").mode("overwrite").save(target)
    assert wheel(spark, Path(target)).count() == 50


@pytest.mark.check
def test_a_task_that_is_tried_again_writes_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    mark = tmp_path / "failed"

    def fails_late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return
        raise RuntimeError("a worker that is lost behind its last row")

    frame = rows_of(spark, 1_000)
    again = frame.mapInArrow(fails_late, frame.schema)
    again.write.format("rocketmq_wheel").mode("append").save(str(tmp_path / "w"))
    assert mark.exists()
    keys = [row.unique_key for row in wheel(spark, tmp_path / "w").collect()]
    assert sorted(keys, key=int) == [str(number) for number in range(1_000)]


@pytest.mark.check
def test_a_write_that_fails_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    bad = rows_of(spark, 100).withColumn(
        "topic", F.when(F.col("unique_key") == "77", F.lit("a/b")).otherwise(F.col("topic"))
    )
    with pytest.raises(PySparkException, match="the topic's name has a slash"):
        bad.write.format("rocketmq_wheel").mode("append").save(str(tmp_path / "w"))
    assert list((tmp_path / "w").iterdir()) == []
