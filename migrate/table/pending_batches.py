# SPDX-License-Identifier: Apache-2.0
"""Pending messages as Arrow batches: records are read in place and decoded as columns.

A record that cannot be read becomes a row that says why, so there are as many rows as messages.
Only around such a record are records decoded one by one.
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from message_store.base.errors import FormatError
from message_store.columns.byte_column import ByteColumn
from message_store.columns.message_batch import StoredBatch, decode_batch
from message_store.columns.property_column import find_property_column
from message_store.files.log_row import open_log
from message_store.files.store_root import StoreRoot
from message_store.format import properties as names
from message_store.format.message_codec import decode_message_at
from message_store.format.message_rules import RESERVED_PROPERTIES
from message_store.reading.looking import looking_at
from message_store.reading.record_reader import NO_RECORD, NOT_THERE, Chunk, read_chunks
from migrate.table.pending_table import (
    SCHEMA,
    WHEEL,
    Condition,
    PendingRows,
    TableOptions,
    level_column,
    timer_due_times,
)

KEYS_TYPE = SCHEMA.field("keys").type
_NUMBER = r"^[+-]?[0-9]{1,18}$"
_RECORD_COLUMNS = (
    "unique_key", "topic", "queue_id", "tags", "due_ms", "born_ms", "store_ms", "retry",
    "reconsume_times", "flag", "sys_flag",
)  # fmt: skip
MAP = pa.map_(pa.string(), pa.string())
_BACKWARD = slice(None, None, -1)


@attrs.frozen(eq=False)
class DecodedChunk:
    """The readable records of a chunk, and why the other rows cannot be read.

    ``rows`` (int64[len(batch)]) are their rows within the chunk. ``other_sizes`` are the rows with
    a problem whose records declare another size than their entries.
    """

    batch: StoredBatch
    rows: NDArray[np.int64]
    problems: dict[int, str]
    other_sizes: frozenset[int]


def pending_batches(
    store: StoreRoot,
    kind: str,
    rows: PendingRows,
    options: TableOptions,
    conditions: Sequence[Condition] = (),
    *,
    keep_unreadable: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows that meet all conditions, with the columns of ``options.schema``.

    ``keep_unreadable``: an unreadable record meets conditions on columns that only its record has.
    Raises SourceError when the disk refuses, or a broker holds the store.
    """
    with looking_at(store), open_log(store) as log:
        for chunk in read_chunks(log, rows.commit_log_offset, rows.size_bytes):
            part = rows.rows(slice(chunk.first, chunk.end))
            decoded = decode_chunk(chunk, part.size_bytes)
            for row in decoded.problems:
                if deleted := log.describe_deleted(int(part.commit_log_offset[row])):
                    decoded.problems[row] = deleted
            batch = _batch(decoded, part, kind, options, conditions, keep_unreadable)
            if batch.num_rows:
                yield batch


def _batch(
    decoded: "DecodedChunk",
    part: PendingRows,
    kind: str,
    options: TableOptions,
    conditions: Sequence[Condition],
    keep_unreadable: bool,
) -> pa.RecordBatch:
    columns, problems = _record_columns(decoded, part, kind)
    columns |= {
        "level": level_column(part.level),
        "size_bytes": pa.array(part.size_bytes),
        "commit_log_offset": pa.array(part.commit_log_offset),
        "problem": _problem_column(problems, len(part)),
    }
    chosen = np.ones(len(part), np.bool_)
    unreadable = np.zeros(len(part), np.bool_)
    unreadable[list(problems)] = True
    for condition in conditions:
        holds = condition.holds(columns[condition.column])
        if keep_unreadable and condition.column in _RECORD_COLUMNS:
            holds |= unreadable & pc.is_null(columns[condition.column]).to_numpy(
                zero_copy_only=False
            )
        chosen &= holds
    batch_rows = np.full(len(part), -1, np.int64)
    batch_rows[decoded.rows] = np.arange(len(decoded.rows))
    kept = np.flatnonzero(chosen)
    wanted = _CostlyColumns(decoded.batch, batch_rows[kept])
    schema = options.schema
    arrays = [
        wanted.column(field.name)
        if field.name in ("keys", "properties", "body")
        else columns[field.name].take(pa.array(kept))
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@attrs.frozen(eq=False)
class _CostlyColumns:
    """The costly columns, only for the chosen rows; row -1 is a record that cannot be read."""

    batch: StoredBatch
    batch_rows: NDArray[np.int64]

    def column(self, name: str) -> pa.Array:
        """Body, keys or properties."""
        is_there = self.batch_rows >= 0
        rows = self.batch_rows[is_there]
        if name == "body":
            values = self.batch.body.take(rows).to_arrow(pa.binary())
        elif name == "keys":
            texts = self.batch.properties_text.take(rows)
            values = _key_lists(find_property_column(texts, names.KEYS))
        else:
            values = user_properties(self.batch.properties_text.take(rows))
        if is_there.all():
            return values
        return values.take(_with_gaps(is_there))


def _with_gaps(is_there: NDArray[np.bool_]) -> pa.Array:
    """The index of each row among those that are there; null for the others."""
    return pa.array(np.cumsum(is_there) - 1, mask=~is_there)


def _key_lists(column: ByteColumn) -> pa.Array:
    """Keys as lists: a record separates them by spaces."""
    texts = pc.ascii_trim_whitespace(readable_text(column))
    lists = pc.ascii_split_whitespace(texts)
    is_empty = pc.equal(pc.binary_length(texts), 0)
    return pc.if_else(is_empty, pa.scalar(None, lists.type), lists).cast(KEYS_TYPE)


def decode_chunk(chunk: Chunk, size_bytes: NDArray[np.int32] | NDArray[np.int64]) -> DecodedChunk:
    """Decode the records of a chunk in bulk; ``size_bytes`` is what their entries say, a row each.

    Only where the bulk codec finds damage is every record decoded by itself.
    """
    data = np.frombuffer(chunk.buffer, np.uint8)
    rows = np.flatnonzero(chunk.buffer_offsets != NOT_THERE)
    problems = {int(row): NO_RECORD for row in np.flatnonzero(chunk.buffer_offsets == NOT_THERE)}
    heads = data[chunk.buffer_offsets[rows][:, None] + np.arange(4)]
    sizes = np.ascontiguousarray(heads).view(">i4").reshape(-1).astype(np.int64)
    is_right = sizes == size_bytes[rows]
    other_sizes = dict(zip(rows[~is_right].tolist(), sizes[~is_right].tolist(), strict=True))
    for row, size in other_sizes.items():
        problems[row] = f"a length of {size} where the queue says {size_bytes[row]}"
    rows = rows[is_right]
    try:
        batch = decode_batch(data, chunk.buffer_offsets[rows])
    except FormatError:
        good = []
        for row in rows.tolist():
            try:
                decode_message_at(data.data, int(chunk.buffer_offsets[row]))
                good.append(row)
            except FormatError as error:
                problems[row] = error.problem
        rows = np.array(good, np.int64)
        batch = decode_batch(data, chunk.buffer_offsets[rows])
    return DecodedChunk(batch, rows, problems, frozenset(other_sizes))


def _record_columns(
    decoded: DecodedChunk, part: PendingRows, kind: str
) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Columns from the records, a value for each row of the part; and why rows have none."""
    batch, rows = decoded.batch, decoded.rows
    topics = _text(batch.property(names.REAL_TOPIC))
    queue_ids = _numbers(batch.property(names.REAL_QUEUE_ID))
    is_int = pc.equal(queue_ids, queue_ids.cast(pa.int32(), safe=False).cast(pa.int64()))
    queue_ids = pc.if_else(is_int, queue_ids, None)  # Integer.parseInt takes no other
    due_ms = pa.array(part.due_ms[rows])
    required = [
        (topics, "its real topic is missing"),
        (queue_ids, "its real queue id is no number"),
    ]
    if kind == WHEEL:
        outs = _numbers(batch.property(names.TIMER_OUT_MS))
        required.append((outs, "its time is no number"))
        # what a wheel says of a due time is its slot, where the record does not know better
        told_ms = timer_due_times(
            pc.fill_null(outs, 0).to_numpy(zero_copy_only=False),
            batch.store_timestamp_ms,
            part.due_ms[rows],
            part.precision_ms,
        )
        due_ms = pc.if_else(pc.is_null(outs), due_ms, pa.array(told_ms))
    problems = dict(decoded.problems)
    for values, why in required:
        for at in np.flatnonzero(pc.is_null(values).to_numpy(zero_copy_only=False)).tolist():
            problems.setdefault(int(rows[at]), why)
    columns = {
        "unique_key": _text(batch.property(names.UNIQUE_KEY)),
        "topic": topics,
        "queue_id": queue_ids.cast(pa.int32(), safe=False),
        "tags": _text(batch.property(names.TAGS)),
        "due_ms": due_ms,
        "born_ms": pa.array(batch.born_timestamp_ms),
        "store_ms": pa.array(batch.store_timestamp_ms),
        "retry": pc.starts_with(topics, names.RETRY_PREFIX),
        "reconsume_times": pa.array(batch.reconsume_times.astype(np.int32)),
        "flag": pa.array(batch.flag.astype(np.int32)),
        "sys_flag": pa.array(batch.sys_flag.astype(np.int32)),
    }
    if len(rows) < len(part):
        is_there = np.zeros(len(part), np.bool_)
        is_there[rows] = True
        gaps = _with_gaps(is_there)
        columns = {name: column.take(gaps) for name, column in columns.items()}
        columns["due_ms"] = pc.coalesce(columns["due_ms"], pa.array(part.due_ms))
    return columns, problems


def _text(column: ByteColumn) -> pa.Array:
    """Strings; null for an absent or empty value, which a record does not distinguish."""
    texts = readable_text(column)
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, pa.string()), texts)


def _numbers(column: ByteColumn) -> pa.Array:
    """Decimal numbers as Java reads them; null for other text."""
    texts = readable_text(column)
    is_number = pc.match_substring_regex(texts, _NUMBER)
    digits = pc.if_else(is_number, pc.utf8_ltrim(texts, "+"), pa.scalar(None, pa.string()))
    return digits.cast(pa.int64())


def _problem_column(problems: dict[int, str], count: int) -> pa.Array:
    if not problems:
        return pa.nulls(count, pa.string())
    return pa.array([problems.get(row) for row in range(count)], pa.string())


def readable_text(column: ByteColumn) -> pa.Array:
    """A column as strings; bytes that are not UTF-8 are replaced, as brokers do."""
    try:
        return column.to_arrow(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in column], pa.string())


def user_properties(texts: ByteColumn) -> pa.Array:
    """The map of each properties text: entries without name or value dropped, the last of equal
    names kept, reserved names left out.

    >>> user_properties(ByteColumn.of([b"a\\x011\\x02TAGS\\x01x\\x02a\\x012", b""])).to_pylist()
    [[('a', '2')], []]
    """
    entries = pc.split_pattern(readable_text(texts), "\x02")
    parents = pc.list_parent_indices(entries).to_numpy()
    flat = pc.list_flatten(entries)
    dividers = pc.binary_length(pc.list_element(pc.split_pattern(flat, "\x01", max_splits=1), 0))
    at = dividers.to_numpy().astype(np.int64)
    is_entry = (at > 0) & (at + 1 < pc.binary_length(flat).to_numpy())
    parents, flat = parents[is_entry], flat.filter(pa.array(is_entry))
    halves = pc.split_pattern(flat, "\x01", max_splits=1)
    names, values = pc.list_element(halves, 0), pc.list_element(halves, 1)
    kept = _kept(parents, names)
    counts = np.bincount(parents[kept], minlength=len(texts))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    chosen = pa.array(kept)
    return pa.MapArray.from_arrays(pa.array(offsets), names.take(chosen), values.take(chosen), MAP)


def _kept(parents: np.ndarray, names: pa.Array) -> np.ndarray:
    """The rows of the entries that count, in their order."""
    coded = names.dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    distinct = coded.dictionary.to_pylist()
    is_reserved = np.array([name in RESERVED_PROPERTIES for name in distinct], np.bool_)
    together = parents.astype(np.int64) * max(1, len(distinct)) + codes
    _values, from_the_end = np.unique(together[_BACKWARD], return_index=True)
    last = np.sort(len(together) - 1 - from_the_end)
    return last[~is_reserved[codes[last]]] if len(last) else last
