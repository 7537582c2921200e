# SPDX-License-Identifier: Apache-2.0
"""Spark's data sources ``rocketmq_levels`` and ``rocketmq_wheel``.

They show the pending messages of a store as a table, and write a table of messages as a new store.
This module only speaks with Spark. Readers, writers and their messages are pickled, so they hold
plain values. Compiled code is imported where it is used. docs/SPARK.md has columns, options and
limits.
"""

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from message_store.base.errors import OptionsError
from message_store.files.places import Places, placed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from migrate.table.pending_table import Condition, TableOptions
    from migrate.table.wheel_staging import StagedRows, WriteRun

_WHOLE = ("smallint", "int", "bigint")
_WRITABLE: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "due_ms": ("int", "bigint"),
    "queue_id": _WHOLE,
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "unique_key": ("string",),
    "properties": ("map<string,string>",),
    "flag": _WHOLE,
    "born_ms": ("int", "bigint"),
    "sys_flag": _WHOLE,
    "reconsume_times": _WHOLE,
}
"""The columns of a message, and as which of Spark's types each is taken."""
_REQUIRED = ("topic", "body")
_SAYS_WHEN = ("due_ms", "properties")
_PASSED_OVER = ("level", "store_ms", "size_bytes", "commit_log_offset", "retry", "problem")
"""Columns of readers about a message's old record; a new store gives it another one."""

_OPERATORS = {
    "EqualTo": "==",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
    "IsNotNull": "is not null",
}


def register_data_sources(spark: SparkSession) -> None:
    """Make both data sources known to a session, by name."""
    spark.dataSource.register(LevelsDataSource)
    spark.dataSource.register(WheelDataSource)


class PendingReader(DataSourceReader):
    """Reads the pending messages of the levels, or of the wheel, of one store."""

    def __init__(self, path: Path, places: Places, kind: str, options: "TableOptions") -> None:
        self.path = path
        self.places = places
        self.kind = kind
        self.options = options
        self.conditions: list[Condition] = []

    def partitions(self) -> Sequence[InputPartition]:
        """A run of messages each, in log order: packed rows, whose offsets are all a task needs."""
        from migrate.table.pending_table import pending_rows

        with placed(self.path, self.places):
            rows = pending_rows(self.path, self.kind, self.options, self.conditions)
        parts = [InputPartition(part.packed()) for part in rows.ranges()]
        # one at least: what readers are given instead of none differs between versions of Spark
        return parts or [InputPartition(rows.packed())]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The messages of one partition, as Arrow batches."""
        from message_store.files.store_root import StoreRoot
        from migrate.table.pending_batches import pending_batches
        from migrate.table.pending_table import PendingRows

        rows, store = PendingRows.unpacked(partition.value), StoreRoot(self.path, self.places)
        yield from pending_batches(store, self.kind, rows, self.options, self.conditions)


class PushdownReader(PendingReader):
    """Takes filters over as well. A class of its own: a reader with this method fails every read in
    a session without ``spark.sql.python.filterPushdown.enabled``.
    """

    def pushFilters(self, filters: "list[Filter]") -> "Iterator[Filter]":
        """Keep what can be answered here; give the rest back."""
        for filter_ in filters:
            condition = _condition(filter_)
            if condition is None:
                yield filter_
            else:
                self.conditions.append(condition)


def _condition(filter_: "Filter") -> "Condition | None":
    from migrate.table.pending_table import ASKABLE, Condition

    operator = _OPERATORS.get(type(filter_).__name__)
    column: tuple[str, ...] = getattr(filter_, "attribute", ())
    if operator is None or len(column) != 1 or column[0] not in ASKABLE:
        return None
    value: Any = getattr(filter_, "value", None)
    values = value if operator == "in" else () if operator == "is not null" else (value,)
    wanted = str if column[0] in ("topic", "tags", "unique_key") else int
    if not all(type(each) is wanted for each in values):
        return None
    return Condition(column[0], operator, value)


class _PendingSource(DataSource):
    """What both data sources share as readers."""

    kind: str

    def schema(self) -> StructType:
        """The columns, with bodies and properties as the options ask."""
        from migrate.spark.options import read_options

        return spark_schema(read_options(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader that the options ask for."""
        from migrate.spark.options import read_options, source_of, wants_pushdown

        options = read_options(self.options)
        if schema != spark_schema(options.schema):
            raise OptionsError("the columns of a store are given; choose from them with select")
        if not wants_pushdown(self.options):
            return PendingReader(*source_of(self.options), self.kind, options)
        if not hasattr(DataSourceReader, "pushFilters"):
            raise OptionsError("pushdown needs PySpark 4.1 or newer")
        return PushdownReader(*source_of(self.options), self.kind, options)


class LevelsDataSource(_PendingSource):
    """``spark.read.format("rocketmq_levels").load(store)``."""

    kind = "levels"

    @classmethod
    def name(cls) -> str:
        """The word for ``format``."""
        return "rocketmq_levels"


class WheelDataSource(_PendingSource):
    """``spark.read.format("rocketmq_wheel").load(store)``, and ``df.write`` to a new store."""

    kind = "wheel"

    @classmethod
    def name(cls) -> str:
        """The word for ``format``."""
        return "rocketmq_wheel"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of a new store, once the target and the columns are looked at."""
        from migrate.spark.options import path_of, takes_start_deliver_time, write_options
        from migrate.table.wheel_commit import begin_write
        from migrate.table.wheel_staging import WriteRun

        _require_columns(schema)
        now_ms, settings = write_options(self.options)
        alias = takes_start_deliver_time(self.options)
        run = WriteRun(path_of(self.options), secrets.token_hex(8), now_ms, settings, alias)
        begin_write(run, overwrite=overwrite)
        return WheelWriter(run, overwrite)


class Staged(WriterCommitMessage):
    """The result of a task."""

    def __init__(self, rows: "StagedRows") -> None:
        self.rows = rows


class WheelWriter(DataSourceArrowWriter):
    """Tasks stage records; the commit makes one store of those that it is given."""

    def __init__(self, run: "WriteRun", overwrite: bool) -> None:
        self.run = run
        self.overwrite = overwrite

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """In a task: the records of one partition, under a name of this attempt's own."""
        from pyspark import TaskContext

        from migrate.table.wheel_staging import stage_rows

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        return Staged(stage_rows(self.run, partition, iterator))

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Make the store of exactly the records that successful attempts have staged."""
        from migrate.table.wheel_commit import commit_rows

        rows = [message.rows for message in messages if isinstance(message, Staged)]
        commit_rows(self.run, rows, overwrite=self.overwrite)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Remove all that was staged, by whichever attempt."""
        from migrate.table.wheel_commit import give_up

        give_up(self.run)


def _require_columns(schema: StructType) -> None:
    """Raise OptionsError for a table that is not one of messages."""
    if missing := [name for name in _REQUIRED if name not in schema.names]:
        raise OptionsError(f"a table of messages has a column {missing[0]}; this one has none")
    if not any(name in schema.names for name in _SAYS_WHEN):
        raise OptionsError(
            "a table of messages has a column due_ms, or properties that say when; this one has"
            " none"
        )
    for field in schema.fields:
        if field.name in _PASSED_OVER:
            continue
        if field.name not in _WRITABLE:
            raise OptionsError(
                f"column {field.name}: not one of a message; there are {', '.join(_WRITABLE)}"
            )
        kind = field.dataType.simpleString()
        if kind not in _WRITABLE[field.name]:
            wanted = " or ".join(_WRITABLE[field.name])
            raise OptionsError(f"column {field.name}: {wanted} is wanted, not {kind}")


def spark_schema(schema: "pa.Schema") -> StructType:
    """The same columns as Spark names them."""
    kinds: dict[str, DataType] = {
        "string": StringType(),
        "int32": IntegerType(),
        "int64": LongType(),
        "bool": BooleanType(),
        "binary": BinaryType(),
        "list<element: string>": ArrayType(StringType()),
        "map<string, string>": MapType(StringType(), StringType()),
    }
    return StructType([StructField(field.name, kinds[str(field.type)]) for field in schema])
