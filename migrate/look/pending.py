# SPDX-License-Identifier: Apache-2.0
"""Lists the pending messages of a store, whatever its engines, the next due first.

Rows and due times are columns, so filters by level and time cost nothing. Other filters read many
records at once, in log order. The scalar codec decodes the candidates, and decides.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from legacy_levels.delay_offsets import OffsetsChoice
from legacy_levels.engine.waiting_records import are_plain_numbers, equals
from message_store.base.errors import BadFieldError, DelayStoreError, FormatError
from message_store.columns.byte_column import ByteColumn
from message_store.columns.message_batch import StoredBatch
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format import properties as names
from message_store.format.java_numbers import parse_long
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.interface.delay_store import Pending
from message_store.reading.looking import looking_at
from message_store.reading.record_reader import Chunk, read_chunks
from migrate.look.choices import require_levels
from migrate.report.accounting import told_as_gone
from migrate.report.finished_target import refuse_unfinished
from migrate.report.report import BadRecord
from migrate.source.condition import loss_warnings
from migrate.table.pending_batches import decode_chunk
from migrate.table.pending_table import (
    KINDS,
    ON_WHEEL,
    PendingRows,
    TableOptions,
    rows_of,
    timer_due_times,
)

_FIRST_ROWS: Final = 4_096
"""With a limit, so many rows are asked first: mostly they are enough."""
_GROWTH: Final = 8
_TIME_DIGITS: Final = 13
_REPLACED: Final = "\ufffd"
"""Stands in decoded text for bytes that are no UTF-8, so a search by bytes would not find it."""


@attrs.frozen(kw_only=True)
class PendingFilter:
    """What to list. ``due_after_ms`` is inclusive, ``due_before_ms`` exclusive; ``key`` is a unique
    key or one of a message's keys; None lets everything pass.
    """

    topic: str | None = None
    level: int | None = None
    key: str | None = None
    due_after_ms: int | None = None
    due_before_ms: int | None = None
    limit: int | None = None

    def lets_pass(self, message: Pending) -> bool:
        """Whether a decoded message is asked for."""
        keys = (message.unique_key, *message.keys)
        return (
            self.topic in (None, message.topic)
            and (self.key is None or self.key in keys)
            and (self.due_after_ms is None or message.due_ms >= self.due_after_ms)
            and (self.due_before_ms is None or message.due_ms < self.due_before_ms)
        )

    def needs_records(self, rows: PendingRows) -> bool:
        """Whether rows alone do not tell what is asked for: on a wheel they give no exact time."""
        has_window = self.due_after_ms is not None or self.due_before_ms is not None
        asks_time = has_window and bool((rows.level == ON_WHEEL).any())
        return asks_time or self.topic is not None or self.key is not None

    def window(self, rows: PendingRows) -> NDArray[np.bool_]:
        """Which rows may be asked for, by level and due time."""
        chosen = np.ones(len(rows.due_ms), np.bool_)
        if self.level is not None:
            chosen &= rows.level == self.level
        if self.due_after_ms is not None:
            chosen &= rows.is_roll | (rows.due_ms >= self.due_after_ms)
        if self.due_before_ms is not None:
            # What was overdue when it was stored lies in a slot before: only its record says when.
            reach_ms = np.where(rows.level == ON_WHEEL, 2 * rows.precision_ms, 0)
            chosen &= rows.due_ms - reach_ms < self.due_before_ms
        return chosen


def _be_silent(_sentence: str) -> None:
    """Nobody asked for warnings."""


def pending_messages(
    path: Path,
    wanted: PendingFilter = PendingFilter(),
    *,
    now_ms: int,
    offsets: OffsetsChoice | str = OffsetsChoice.AUTO,
    warn: Callable[[str], None] = _be_silent,
) -> Iterator[Pending | BadRecord]:
    """The pending messages of the store under ``path`` that are ``wanted``, the next due first.

    Messages that will roll, being due beyond the roll window, are last and in no order.

    A message whose record cannot be read comes as a BadRecord, whatever topic or key is asked for.
    For one on the wheel ``level`` is None. After a crash, what was already delivered is left out.
    ``warn`` is told, in words, what log and level queues have lost, and of messages whose records
    are no longer in the log.
    Raises SourceError and FormatError for a store that cannot be read, OptionsError for a level
    that it does not have.
    """
    store = StoreRoot(path)
    refuse_unfinished(store)
    store.require_readable()
    for sentence in loss_warnings(store):
        warn(sentence)
    with looking_at(store):
        rows = _all_rows(store, now_ms, OffsetsChoice(offsets))
        if rows.gone_count:
            warn(told_as_gone(rows.gone_count))
        require_levels(store, () if wanted.level is None else (wanted.level,), offsets=offsets)
        rows = rows.rows(np.flatnonzero(wanted.window(rows)))
        with open_log(store) as log:
            yield from _decoded(log, _candidates(log, rows, wanted), wanted)


def unreadable_among(log: SegmentReader, rows: PendingRows) -> list[BadRecord]:
    """The rows whose record cannot be read."""
    of_nothing = PendingFilter(topic="")  # no message has this topic
    listed = _decoded(log, _candidates(log, rows, of_nothing), of_nothing)
    return [each for each in listed if isinstance(each, BadRecord)]


def _candidates(
    log: SegmentReader, rows: PendingRows, wanted: PendingFilter
) -> Iterator[PendingRows]:
    """The rows to decode, the next due first; with a limit in pieces that grow."""
    if not wanted.needs_records(rows):
        yield _in_order(rows)
        return
    if wanted.limit is None:
        yield _in_order(rows.rows(_may_pass(log, rows, wanted)))
        return
    rows = _in_order(rows)
    first, count = 0, _FIRST_ROWS
    while first < len(rows):
        part = rows.rows(np.arange(first, min(first + count, len(rows))))
        yield part.rows(_may_pass(log, part, wanted))
        first, count = first + count, count * _GROWTH


def _in_order(rows: PendingRows) -> PendingRows:
    return rows.rows(np.lexsort((rows.commit_log_offset, rows.due_ms, rows.is_roll)))


def _may_pass(log: SegmentReader, rows: PendingRows, wanted: PendingFilter) -> NDArray[np.int64]:
    """Which rows to decode: all but readable records that are certainly not asked for."""
    may_pass = np.ones(len(rows), np.bool_)
    order = np.argsort(rows.commit_log_offset, kind="stable")
    with suppress(DelayStoreError):  # what the disk refuses is then said record by record
        for chunk in read_chunks(log, rows.commit_log_offset[order], rows.size_bytes[order]):
            part = order[chunk.first : chunk.end]
            may_pass[part] = ~_are_excluded(chunk, rows.rows(part), wanted)
    return np.flatnonzero(may_pass)


def _are_excluded(chunk: Chunk, rows: PendingRows, wanted: PendingFilter) -> NDArray[np.bool_]:
    """Which rows of a chunk the scalar codec would read and the filter would not let pass."""
    excluded = np.zeros(len(rows), np.bool_)
    decoded = decode_chunk(chunk, rows.size_bytes)
    if len(decoded.rows):
        batch, there = decoded.batch, decoded.rows
        is_readable, due_ms = _facts(batch, rows.rows(there))
        excluded[there] = is_readable & ~_may_match(batch, due_ms, wanted)
    return excluded


def _facts(batch: StoredBatch, rows: PendingRows) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which records say plainly all that ``Pending`` tells, and when they are due."""
    is_readable = batch.property(names.REAL_TOPIC).lengths > 0
    is_readable &= are_plain_numbers(batch.property(names.REAL_QUEUE_ID))
    is_on_wheel = rows.level == ON_WHEEL
    if not is_on_wheel.any():
        return is_readable, rows.due_ms
    outs_ms = plain_times(batch.property(names.TIMER_OUT_MS))
    is_readable &= ~is_on_wheel | (outs_ms >= 0)
    exact_ms = timer_due_times(outs_ms, batch.store_timestamp_ms, rows.due_ms, rows.precision_ms)
    return is_readable, np.where(is_on_wheel, exact_ms, rows.due_ms)


def _may_match(
    batch: StoredBatch, due_ms: NDArray[np.int64], wanted: PendingFilter
) -> NDArray[np.bool_]:
    """Which records may be asked for: all that are, and for a key some more."""
    may_match = np.ones(len(batch), np.bool_)
    if wanted.topic is not None and _REPLACED not in wanted.topic:
        may_match &= equals(batch.property(names.REAL_TOPIC), _searched_bytes(wanted.topic))
    if wanted.key is not None and _REPLACED not in wanted.key:
        key = _searched_bytes(wanted.key)
        has_key = _hold(batch.property(names.KEYS), key)
        may_match &= has_key | equals(batch.property(names.UNIQUE_KEY), key)
    if wanted.due_after_ms is not None:
        may_match &= due_ms >= wanted.due_after_ms
    if wanted.due_before_ms is not None:
        may_match &= due_ms < wanted.due_before_ms
    return may_match


def _searched_bytes(text: str) -> bytes:
    """What a text is in a record; half a character, which no record holds, as bytes of its own."""
    return text.encode("utf-8", "surrogatepass")


def _hold(column: ByteColumn, part: bytes) -> NDArray[np.bool_]:
    """Which rows of a column hold these bytes somewhere."""
    held = np.zeros(len(column), np.bool_)
    rows = np.flatnonzero(column.lengths >= len(part))
    matches = pc.match_substring(column.take(rows).to_arrow(pa.binary()), part)
    held[rows] = matches.to_numpy(zero_copy_only=False)
    return held


def plain_times(column: ByteColumn) -> NDArray[np.int64]:
    """The numbers of thirteen digits, as times of our days have; -1 for every other text."""
    times = np.full(len(column), -1, np.int64)
    rows = np.flatnonzero(column.lengths == _TIME_DIGITS)
    digits = column.data[column.starts[rows][:, None] + np.arange(_TIME_DIGITS)].astype(np.int64)
    digits -= ord("0")
    powers = 10 ** np.arange(_TIME_DIGITS - 1, -1, -1, dtype=np.int64)
    is_number = ((digits >= 0) & (digits <= 9)).all(axis=1)
    times[rows[is_number]] = (digits @ powers)[is_number]
    return times


def _all_rows(store: StoreRoot, now_ms: int, offsets: OffsetsChoice) -> PendingRows:
    """The rows of all engines in one table."""
    after_crash = not store.was_stopped_cleanly
    options = TableOptions(now_ms=now_ms, offsets=offsets, after_crash=after_crash)
    return PendingRows.joined([rows_of(kind, store, options) for kind in KINDS])


def _decoded(
    log: SegmentReader, pieces: Iterator[PendingRows], wanted: PendingFilter
) -> Iterator[Pending | BadRecord]:
    left = wanted.limit
    if left == 0:
        return
    for rows in pieces:
        columns = (
            rows.level, rows.queue_offset, rows.commit_log_offset, rows.size_bytes, rows.due_ms,
        )  # fmt: skip
        listed = (column.tolist() for column in columns)
        for level, queue_offset, offset, size_bytes, due_ms in zip(*listed, strict=True):
            message = _decoded_row(log, level, offset, size_bytes, due_ms, rows.precision_ms)
            if isinstance(message, str):
                yield BadRecord(max(level, ON_WHEEL), queue_offset, offset, message)
            elif wanted.lets_pass(message):
                yield message
                left = None if left is None else left - 1
                if left == 0:
                    return


def _decoded_row(
    log: SegmentReader, level: int, offset: int, size_bytes: int, due_ms: int, precision_ms: int
) -> Pending | str:
    """The message of a row, or why it cannot be read."""
    try:
        record = decode_message_at(_read(log, offset, size_bytes))
        if level == ON_WHEEL:
            due_ms = _wheel_due_ms(record, due_ms, precision_ms)
        return _pending(record, level, due_ms, size_bytes)
    except DelayStoreError as error:
        return error.problem if isinstance(error, FormatError) else str(error)


def _read(log: SegmentReader, offset: int, size_bytes: int) -> bytes:
    """The bytes of a queue entry, once they are known to lie within one file."""
    segment = log.segment_at(offset)
    if segment is None or size_bytes <= 0:
        if deleted := log.describe_deleted(offset):
            raise BadFieldError(deleted, offset=offset)
        raise BadFieldError("no file of the log holds it", offset=offset, found=size_bytes)
    if offset + size_bytes > segment.start_offset + segment.length_bytes:
        raise BadFieldError("it reaches beyond the log file", offset=offset, found=size_bytes)
    return log.read_at(offset, size_bytes)


def _wheel_due_ms(record: StoredMessage, row_due_ms: int, precision_ms: int) -> int:
    out_ms = parse_long(record.properties.get(names.TIMER_OUT_MS, ""))
    out, stored, row_due = np.array([[out_ms], [record.store_timestamp_ms], [row_due_ms]])
    return int(timer_due_times(out, stored, row_due, precision_ms)[0])


def _pending(record: StoredMessage, level: int, due_ms: int, size_bytes: int) -> Pending:
    properties = record.properties
    if names.REAL_TOPIC not in properties:
        raise BadFieldError("its real topic is missing")
    return Pending(
        unique_key=record.unique_key,
        topic=record.real_topic,
        queue_id=parse_long(properties.get(names.REAL_QUEUE_ID, "")),
        tags=record.tags,
        keys=record.keys,
        level=level if level > ON_WHEEL else None,
        due_ms=due_ms,
        size_bytes=size_bytes,
        commit_log_offset=record.commit_log_offset,
    )
