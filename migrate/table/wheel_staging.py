# SPDX-License-Identifier: Apache-2.0
"""The task of a write into a new wheel: columns become records in the staging directory.

A record is finished but for its two offsets, which are known only when all tasks are done. Each
attempt of a task has its own name, so repeated and speculative attempts never meet. The commit
names the attempts that count.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import Int64s, int64s
from message_store.columns.message_batch import MessageBatch
from message_store.files.segments import segment_name
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import INT_MAX, string_hash
from message_store.format.message_rules import MAX_MESSAGE_BYTES
from message_store.format.properties import TIMER_TOPIC
from message_store.format.record_layout import (
    END_OF_FILE_MIN_BYTES,
    HEAD_V4_V4,
    SYS_COMMIT,
    SYS_OF_BODY,
    SYS_TRANSACTION_MASK,
)
from message_store.intake.asked_batch import AskedBatch, asked_by_batch
from message_store.intake.batch import draft_batch
from message_store.intake.records import RecordForm
from message_store.kernels.crc import crc32_from
from message_store.kernels.raw_memory import address_of
from migrate.plan.plan import OUT_MS_END, OUT_MS_MIN
from migrate.settings import TargetSettings
from migrate.write.large_files import FileStream, create_file
from migrate.write.staging import Staging, save_array, target_errors
from timer_wheel.format.wheel_math import out_ms

SIZE, DUE, TAGS_CODE, TOPIC_HASH = range(4)
"""Rows of a task's index; it has a column for each message."""


@attrs.frozen
class WriteRun:
    """One write: its target, its own name, its reference time and its broker's settings."""

    target: Path
    name: str
    now_ms: int
    settings: TargetSettings
    start_deliver_time_alias: bool = False

    @property
    def staging(self) -> Staging:
        """The unfinished store."""
        return Staging(StoreRoot(self.target))

    @property
    def directory(self) -> Path:
        """The directory of this write's staged records."""
        return self.staging.path / "writes" / self.name


@attrs.frozen
class StagedRows:
    """The staged records of one attempt of a task; ``topics`` are name, messages, highest queue."""

    partition: int
    name: str
    count: int
    size_bytes: int
    crc: int
    topics: tuple[tuple[str, int, int], ...]

    def records(self, run: WriteRun) -> Path:
        """The directory with the file of records."""
        return run.directory / self.name / "records"

    def index(self, run: WriteRun) -> Path:
        """The file of the index."""
        return run.directory / self.name / "index.npy"


def stage_rows(run: WriteRun, partition: int, batches: Iterator[pa.RecordBatch]) -> StagedRows:
    """Make the records of all batches of one attempt, in their order.

    Raises BadFieldError that names a row which cannot be stored, and TargetError.
    """
    staged = StagedRows(partition, f"{partition:06d}-{secrets.token_hex(8)}", 0, 0, 0, ())
    records = staged.records(run) / segment_name(0)
    with target_errors(records.parent):
        records.parent.mkdir(parents=True, exist_ok=True)
    create_file(records, 0)
    index: list[Int64s] = []
    topics: dict[str, tuple[int, int]] = {}
    size_bytes, crc, seen = 0, 0, 0
    with FileStream(records, 0) as stream:
        for batch in batches:
            try:
                block, facts = _records(run, batch, stream, topics)
            except BadFieldError as error:
                where = f"partition {partition}, behind row {seen}: {error.problem}"
                raise BadFieldError(where, expected=error.expected, found=error.found) from error
            crc = int(crc32_from(crc, address_of(block), len(block))) if len(block) else crc
            stream.advance(len(block))
            size_bytes, seen = size_bytes + len(block), seen + batch.num_rows
            index.append(facts)
    whole = np.concatenate(index, axis=1) if index else np.empty((4, 0), np.int64)
    save_array(staged.index(run), whole)
    rows = tuple((topic, *counts) for topic, counts in topics.items())
    return attrs.evolve(staged, count=seen, size_bytes=size_bytes, crc=crc, topics=rows)


def _records(
    run: WriteRun, batch: pa.RecordBatch, stream: FileStream, topics: dict[str, tuple[int, int]]
) -> tuple[NDArray[np.uint8], Int64s]:
    """Make a batch's records in the stream's buffer; returns them and their index; counts
    ``topics``.
    """
    settings = run.settings
    _require_values(batch)
    asked = _asked(run, batch)
    due_ms = asked.due_ms
    wrong = np.flatnonzero((due_ms < OUT_MS_MIN + settings.precision_ms) | (due_ms >= OUT_MS_END))
    if len(wrong):
        raise BadFieldError(
            f"row {wrong[0]}: no due time; expected epoch milliseconds", found=int(due_ms[wrong[0]])
        )
    messages = asked.batch
    draft = draft_batch(
        messages,
        system_topic=TIMER_TOPIC,
        out_ms=out_ms(due_ms, settings.precision_ms),
        form=RecordForm(max_message_bytes=settings.max_message_bytes or MAX_MESSAGE_BYTES),
        keeps_times=bool(asked.asks.any()),
    )
    longest = settings.commit_log_file_bytes - END_OF_FILE_MIN_BYTES
    if len(draft) and draft.sizes.max() > longest:
        row = int(draft.sizes.argmax())
        raise BadFieldError(
            f"row {row}: a record longer than a log file", found=int(draft.sizes[row])
        )
    starts = np.cumsum(draft.sizes) - draft.sizes
    block = stream.room(int(draft.sizes.sum()))
    nothing = np.zeros(len(draft), np.int64)
    if len(draft):
        fill = draft.bind(nothing, nothing, run.now_ms)
        fill(slice(0, len(draft)), starts, address_of(block))
    _keep_origin(batch, block, starts)
    hashes = _count_topics(batch.column("topic"), messages.queue_id, topics)
    return block, np.stack([draft.sizes, due_ms, draft.tags_codes, hashes])


def _require_values(batch: pa.RecordBatch) -> None:
    for name in ("topic", "body"):
        if batch.column(name).null_count:
            row = pc.index(batch.column(name).is_null(), True).as_py()
            raise BadFieldError(f"row {row}: no {name}")
    is_empty = pc.equal(pc.binary_length(batch.column("body")), 0)
    if pc.any(is_empty).as_py():
        raise BadFieldError(f"row {pc.index(is_empty, True).as_py()}: no body")


def _asked(run: WriteRun, batch: pa.RecordBatch) -> AskedBatch:
    """The messages and their due times; those without one say it by their properties, as to a
    broker. Raises BadFieldError for a row that says it in both ways or in none.
    """
    messages, count = _messages(batch), batch.num_rows
    column = batch.column("due_ms") if "due_ms" in batch.schema.names else pa.nulls(count)
    due_ms = int64s(pc.fill_null(column.cast(pa.int64()), 0))
    is_given = column.is_valid().to_numpy(zero_copy_only=False)
    if is_given.all() and not run.start_deliver_time_alias:  # else a row may say it twice
        return AskedBatch(messages, due_ms, np.zeros(count, np.bool_))
    asked = asked_by_batch(
        messages,
        run.now_ms,
        DelayLevels.parse(),
        start_deliver_time_alias=run.start_deliver_time_alias,
        keeps_times=True,
    )
    for row in np.flatnonzero(is_given == asked.asks)[:1].tolist():
        both = "due_ms, and a property that says when: give one of them"
        raise BadFieldError(f"row {row}: {both if is_given[row] else 'no due_ms'}")
    return attrs.evolve(asked, due_ms=np.where(is_given, due_ms, asked.due_ms))


def _messages(batch: pa.RecordBatch) -> MessageBatch:
    """The columns that make a message; keys may be a list."""
    columns = {
        name: batch.column(name)
        for name in ("topic", "body", "tags", "unique_key", "properties", "queue_id", "flag")
        if name in batch.schema.names
    }
    if "keys" in batch.schema.names:
        columns["keys"] = _joined_keys(batch.column("keys"))
    return MessageBatch.from_arrow(pa.table(columns))


def _joined_keys(keys: pa.Array) -> pa.Array:
    """Keys as a record holds them. Raises BadFieldError for a null key, which Arrow would drop."""
    if not pa.types.is_nested(keys.type):
        return keys
    is_null = pc.is_null(pc.list_flatten(keys))
    if pc.any(is_null).as_py():
        row = pc.list_parent_indices(keys)[pc.index(is_null, True).as_py()].as_py()
        raise BadFieldError(f"row {row}: a key that is null")
    return pc.binary_join(keys.cast(pa.list_(pa.string())), " ")


def _keep_origin(batch: pa.RecordBatch, block: NDArray[np.uint8], starts: Int64s) -> None:
    """Write what a message keeps of its old record: birth time, flags of its body, retry count.
    Raises BadFieldError for a number that its field does not hold.
    """
    present = set(batch.schema.names)
    if "born_ms" in present:
        born_ms = batch.column("born_ms").cast(pa.int64())
        rows = np.flatnonzero(born_ms.is_valid().to_numpy(zero_copy_only=False))
        values = born_ms.drop_null().to_numpy()
        put_numbers(block, starts[rows], "born_timestamp_ms", values.astype(">i8"))
    for name in ("sys_flag", "reconsume_times"):
        if name in present:
            values = int64s(pc.fill_null(batch.column(name), 0))
            for row in np.flatnonzero((values < -INT_MAX - 1) | (values > INT_MAX))[:1].tolist():
                raise BadFieldError(f"row {row}: {name} beyond 32 bits", found=int(values[row]))
            kept = _kept_flags(values) if name == "sys_flag" else np.maximum(values, 0)
            put_numbers(block, starts, name, kept.astype(">i4"))


def _kept_flags(flags: Int64s) -> Int64s:
    """The flags of a pending message: hosts are ours, transactions committed."""
    is_committed = flags & SYS_TRANSACTION_MASK == SYS_COMMIT
    return flags & SYS_OF_BODY | np.where(is_committed, SYS_COMMIT, 0)


def put_numbers(
    block: NDArray[np.uint8], starts: Int64s, name: str, values: NDArray[np.generic]
) -> None:
    """Write numbers (big-endian dtype) into one field of the heads of the records at ``starts``."""
    width = values.dtype.itemsize
    offsets = (starts + HEAD_V4_V4.offset_of(name))[:, None] + np.arange(width)
    block[offsets] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)


def _count_topics(
    column: pa.Array, queue_ids: Int64s, topics: dict[str, tuple[int, int]]
) -> Int64s:
    """Count messages and the highest queue of each topic; returns each row's topic hash."""
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    names = coded.dictionary.to_pylist()
    counts = np.bincount(codes, minlength=len(names))
    highest = np.zeros(len(names), np.int64)
    np.maximum.at(highest, codes, queue_ids)
    for topic, count, queue_id in zip(names, counts.tolist(), highest.tolist(), strict=True):
        before = topics.get(topic, (0, 0))
        if count:
            topics[topic] = (before[0] + count, max(before[1], queue_id))
    hashes = int64s([string_hash(topic) for topic in names])
    return int64s(hashes[codes]) if names else codes
