# SPDX-License-Identifier: Apache-2.0
"""Many messages → the records that wait for their time: ``scheduled_records`` for columns.

Law: the bytes are those that ``draft`` makes of each row, and what it refuses is refused in its
words, with the number of the first such row. All rows are looked at before one is written.
"""

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from message_store import properties as names
from message_store.batch_kernels import fill_records
from message_store.byte_column import ByteColumn, Int64s, int64s
from message_store.delay_levels import DelayLevels
from message_store.errors import BadFieldError
from message_store.message_batch import MessageBatch, StoredBatch
from message_store.message_rules import QUEUE_ID_MAX
from message_store.property_column import Piece, join_property_columns
from message_store.record_layout import BODY_RUN, PROPERTIES_RUN, TOPIC_RUN_V1, head_layout
from message_store.scheduled_kernels import TEXT_COLUMNS, check_rows
from message_store.scheduled_records import PLAIN_FORM, RecordForm, draft
from message_store.unique_keys import new_unique_keys

Fill = Callable[[slice, Int64s, int], None]
"""``fill(rows, positions, target)`` writes these rows: the one at ``i``, whose place in the log is
``positions[i]``, to the address ``target + positions[i] - positions[rows.start]``.
"""


@attrs.frozen(eq=False)
class BatchDraft:
    """Records that lack only what is known when they get their places, a row a message.

    ``tags_codes`` are the hashes of the tags, 0 where there is none.
    """

    sizes: Int64s
    tags_codes: Int64s
    unique_keys: ByteColumn
    _batch: MessageBatch
    _texts: ByteColumn
    _system_topic: str
    _form: RecordForm

    def __len__(self) -> int:
        return len(self.sizes)

    def bind(self, queue_ids: Int64s, queue_offsets: Int64s, now_ms: int) -> Fill:
        """What writes the records, once each has its place in a queue of the system topic; all
        stored now.
        """
        if len(queue_ids) != len(self) or len(queue_offsets) != len(self):
            raise ValueError(f"{len(self)} records need as many queue ids and offsets")

        def fill(rows: slice, positions: Int64s, target: int) -> None:
            places = positions[rows]
            if len(places):
                piece = self._piece(rows, queue_ids[rows], queue_offsets[rows], places, now_ms)
                table = piece.address_table()
                fill_records(table, places, self.sizes[rows], int(places[0]), target)

        return fill

    def _piece(
        self,
        rows: slice,
        queue_ids: Int64s,
        queue_offsets: Int64s,
        positions: Int64s,
        now_ms: int,
    ) -> StoredBatch:
        count, form = len(positions), self._form
        now = np.full(count, now_ms)
        return StoredBatch(
            body=self._batch.body.take(rows),
            topic=ByteColumn.repeat(self._system_topic, count),
            properties_text=self._texts.take(rows),
            born_ip=ByteColumn.repeat(form.born_host.ip, count),
            store_ip=ByteColumn.repeat(form.store_host.ip, count),
            queue_id=queue_ids,
            queue_offset=queue_offsets,
            commit_log_offset=positions,
            born_timestamp_ms=now,
            store_timestamp_ms=now,
            born_port=np.full(count, form.born_host.port),
            store_port=np.full(count, form.store_host.port),
            flag=self._batch.flag[rows],
            sys_flag=np.full(count, form.sys_flag),
        )


def draft_batch(
    batch: MessageBatch,
    *,
    system_topic: str,
    delay_levels: Int64s | None = None,
    out_ms: Int64s | None = None,
    form: RecordForm = PLAIN_FORM,
) -> BatchDraft:
    """The records in which the messages wait: with DELAY for levels, with TIMER_OUT_MS for a wheel.

    A row without a unique key gets a new one. Raises BadFieldError that names the first row that
    cannot be stored, or that no broker could deliver.
    """
    tags_codes = np.zeros(len(batch), np.int64)
    table = int64s([part for name in TEXT_COLUMNS for part in getattr(batch, name).addresses])
    bad = check_rows(table, form.retry_topic_max_bytes, tags_codes)
    fine = slice(0, len(batch) if bad < 0 else bad)
    unique_keys = _filled(batch.unique_key.take(fine))
    levels = None if delay_levels is None else int64s(delay_levels)[fine]
    outs_ms = None if out_ms is None else int64s(out_ms)[fine]
    texts = _texts(batch, fine, unique_keys, levels, outs_ms, form.closes_properties)
    around = head_layout(form.sys_flag).size + len(system_topic.encode())
    around += sum(run.length.size for run in (BODY_RUN, TOPIC_RUN_V1, PROPERTIES_RUN))
    sizes = batch.body.lengths[fine] + texts.lengths
    sizes += around
    too_much = _too_much(batch, fine, texts, None if outs_ms is None else sizes, form)
    if len(too_much) or bad >= 0:
        row = int(too_much[0]) if len(too_much) else bad
        _refuse(batch, row, system_topic, outs_ms is not None, form)
    return BatchDraft(sizes, tags_codes, unique_keys, batch, texts, system_topic, form)


def _filled(unique_keys: ByteColumn) -> ByteColumn:
    """The keys, and new ones where there are none."""
    absent = np.flatnonzero(unique_keys.lengths == 0)
    if not len(absent):
        return unique_keys
    made = new_unique_keys(len(absent))
    if len(absent) == len(unique_keys):
        return made
    given = ByteColumn.from_arrow(unique_keys.to_arrow())
    starts, lengths = given.starts.copy(), given.lengths.copy()
    starts[absent] = given.data.size + made.starts
    lengths[absent] = made.lengths
    return ByteColumn(np.concatenate([given.data, made.data]), starts, lengths)


def _texts(
    batch: MessageBatch,
    rows: slice,
    unique_keys: ByteColumn,
    delay_levels: Int64s | None,
    outs_ms: Int64s | None,
    closed: bool,
) -> ByteColumn:
    """The properties in the order of a record that waits."""
    pieces: list[Piece] = [
        (names.REAL_TOPIC, batch.topic.take(rows)),
        (names.UNIQUE_KEY, unique_keys),
    ]
    if delay_levels is not None:
        pieces.append((names.DELAY, delay_levels))
    pieces += [
        (names.KEYS, batch.keys.take(rows)),
        (names.TAGS, batch.tags.take(rows)),
        batch.user_properties.take(rows),
        (names.REAL_QUEUE_ID, batch.queue_id[rows]),
    ]
    if outs_ms is not None:
        pieces.append((names.TIMER_OUT_MS, outs_ms))
    return join_property_columns(pieces, closed=closed)


def _too_much(
    batch: MessageBatch,
    rows: slice,
    texts: ByteColumn,
    timed_sizes: Int64s | None,
    form: RecordForm,
) -> Int64s:
    """The rows with a number out of bounds or too many bytes."""
    queue_id, flag, limits = batch.queue_id[rows], batch.flag[rows], form.limits
    wrong = (queue_id < 0) | (queue_id > QUEUE_ID_MAX) | (flag != flag.astype(np.int32))
    wrong |= batch.body.lengths[rows] > limits.body
    wrong |= texts.lengths > limits.properties
    if timed_sizes is not None:
        wrong |= timed_sizes > limits.timed_record
    return np.flatnonzero(wrong)


def _refuse(
    batch: MessageBatch, row: int, system_topic: str, is_timed: bool, form: RecordForm
) -> None:
    """Let the scalar rules say what is wrong with a row."""
    for name in TEXT_COLUMNS:
        text = getattr(batch, name)[row]
        try:
            text.decode()
        except UnicodeDecodeError as error:
            found = repr(text[:64])
            raise BadFieldError(f"row {row}: {name} that is not UTF-8", found=found) from error
    due: dict[str, Any] = {"out_ms": 10**12} if is_timed else {"delay_level": 1}
    try:
        draft(batch.message(row), system_topic=system_topic, form=form, **due)
    except BadFieldError as error:
        raise BadFieldError(
            f"row {row}: {error.problem}", expected=error.expected, found=error.found
        ) from error
    except ValueError as error:
        raise BadFieldError(f"row {row}: {error}") from error
    raise BadFieldError(
        f"row {row}: user properties that are not closed entries of name, 0x01, value, 0x02"
    )


def levels_for(delays_ms: Int64s, levels: DelayLevels) -> Int64s:
    """For each delay the level with the shortest delay that is not shorter; 0 beyond the longest.

    >>> levels_for(np.array([1, 5_000, 61_000, 8_000_000]), DelayLevels.parse()).tolist()
    [1, 2, 6, 0]
    """
    ranked = np.argsort(levels.delays_ms, kind="stable")
    places = np.searchsorted(int64s(levels.delays_ms)[ranked], delays_ms)
    return np.append(ranked + 1, 0)[places]
