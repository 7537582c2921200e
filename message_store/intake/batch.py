# SPDX-License-Identifier: Apache-2.0
"""Many messages → the records that wait for their time: ``intake.records`` for columns.

Law: the bytes are those that ``RecordMaker`` makes of each row. What it refuses is refused in its
words, with the row's number. All rows are checked before one is written.
"""

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from message_store.base.errors import BadFieldError
from message_store.base.kinds import require_kind
from message_store.columns.byte_column import ByteColumn, Bytes, Int64s, int64s
from message_store.columns.message_batch import MessageBatch
from message_store.columns.unique_keys import new_unique_keys
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message import Message
from message_store.format.message_rules import TIME_PROPERTIES
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import MAGIC_V1
from message_store.intake.kernels import (
    BODY_MAX,
    BYTE_COLUMNS,
    CLOSES,
    FACTS,
    HEAD,
    HEAD_BYTES,
    IS_TIMED,
    KEEPS_TIMES,
    NUMBER_COLUMNS,
    PROPERTIES_MAX,
    RETRY_TOPIC_MAX,
    TIMED_RECORD_MAX,
    TOPIC_RUN,
    TOPIC_RUN_BYTES,
    UNIQUE_KEY,
    fill_rows,
    measure_rows,
)
from message_store.intake.records import PLAIN_FORM, RecordForm, require_storable, topic_run
from message_store.interface.delay_store import BatchReceipt
from message_store.kernels.raw_memory import address_of
from message_store.writing.log import LiveLog
from message_store.writing.queue import LiveQueue

Fill = Callable[[slice, Int64s, int], None]
"""``fill(rows, positions, target)`` writes these rows: the one at ``i``, whose place in the log is
``positions[i]``, to the address ``target + positions[i] - positions[rows.start]``.
"""


def due_times(batch: MessageBatch, due_ms: Int64s) -> Int64s:
    """The due times of a batch, as a column. Raises BadFieldError where they are not whole numbers
    of 64 bits, or not as many as the messages.
    """
    require_kind("batch", batch, MessageBatch)
    given = np.asarray(due_ms)
    if given.size and (given.dtype.kind not in "iu" or (given > LONG_MAX).any()):
        raise BadFieldError("due_ms are no whole numbers of 64 bits", found=repr(due_ms)[:64])
    if given.shape != (len(batch),):
        raise BadFieldError(f"{len(batch)} messages, and due_ms of the shape {given.shape}")
    return int64s(given)


@attrs.frozen(eq=False)
class _Shared:
    """The data that all rows share: a head without a row's own numbers, the run of the system
    topic, and the kernel's facts, which point to both.
    """

    head: Bytes
    run: Bytes
    facts: Int64s

    @classmethod
    def of(
        cls,
        system_topic: str,
        form: RecordForm,
        is_timed: bool,
        now_ms: int,
        *,
        keeps_times: bool = False,
    ) -> "_Shared":
        packed = form.pack_head(0, MAGIC_V1, 0, 0, 0, 0, 0, form.stamp(now_ms, now_ms), 0)
        head, run = (np.frombuffer(part, np.uint8) for part in (packed, topic_run(system_topic)))
        facts = np.zeros(FACTS, np.int64)
        facts[IS_TIMED], facts[CLOSES] = is_timed, form.closes_properties
        facts[RETRY_TOPIC_MAX] = form.retry_topic_max_bytes
        facts[BODY_MAX], facts[PROPERTIES_MAX] = form.limits.body, form.limits.properties
        facts[TIMED_RECORD_MAX] = form.limits.timed_record
        facts[HEAD], facts[HEAD_BYTES] = address_of(head), head.size
        facts[TOPIC_RUN], facts[TOPIC_RUN_BYTES] = address_of(run), run.size
        facts[KEEPS_TIMES] = keeps_times
        return cls(head, run, facts)


@attrs.frozen(eq=False)
class BatchDraft:
    """Records that lack only what is known when they get their places, a row a message.

    ``tags_codes`` are the hashes of the tags, 0 where there is none.
    """

    sizes: Int64s
    tags_codes: Int64s
    unique_keys: ByteColumn
    _batch: MessageBatch
    _due: Int64s
    _table: Int64s
    _is_timed: bool
    _system_topic: str
    _form: RecordForm

    def __len__(self) -> int:
        return len(self.sizes)

    def bind(self, queue_ids: Int64s, queue_offsets: Int64s, now_ms: int) -> Fill:
        """The function that writes the records, once each has its queue id and queue offset (int64)
        in the system topic; all stored now. Raises ValueError where these are not as many.
        """
        if len(queue_ids) != len(self) or len(queue_offsets) != len(self):
            raise ValueError(f"{len(self)} records need as many queue ids and offsets")
        table = self._table.copy()
        table[UNIQUE_KEY : UNIQUE_KEY + 3] = self.unique_keys.addresses
        shared = _Shared.of(self._system_topic, self._form, self._is_timed, now_ms)
        places = int64s(queue_ids), int64s(queue_offsets)

        def fill(rows: slice, positions: Int64s, target: int) -> None:
            first, stop = rows.start, rows.stop
            fill_rows(table, shared.facts, first, stop, positions, self.sizes, *places, target)

        return fill

    def append(self, log: LiveLog, queue: LiveQueue, now_ms: int) -> Int64s:
        """Append the records to the log, and their entries to one queue; returns where they are."""
        queue_offsets = queue.max_offset + np.arange(len(self), dtype=np.int64)
        queue_ids = np.full(len(self), queue.queue_id, np.int64)
        offsets = log.append_rows(self.sizes, self.bind(queue_ids, queue_offsets, now_ms))
        units = np.empty(len(self), QUEUE_UNIT.dtype)
        units["commit_log_offset"] = offsets
        units["size_bytes"] = self.sizes
        units["tags_code"] = self.tags_codes
        queue.append(units)
        return offsets

    def receipt(
        self, due_ms: Int64s, promised_ms: Int64s, offsets: Int64s, broker_name: str
    ) -> BatchReceipt:
        """The answer to whoever asked for these due times, with the records at these offsets."""
        return BatchReceipt(
            unique_keys=self.unique_keys,
            topics=self._batch.topic,
            due_ms=due_ms,
            promised_ms=promised_ms,
            commit_log_offsets=offsets,
            broker_name=broker_name,
        )


def draft_batch(
    batch: MessageBatch,
    *,
    system_topic: str,
    delay_levels: Int64s | None = None,
    out_ms: Int64s | None = None,
    form: RecordForm = PLAIN_FORM,
    keeps_times: bool = False,
) -> BatchDraft:
    """The records in which the messages wait: with DELAY for levels, or with TIMER_OUT_MS for a
    wheel. ``keeps_times`` lets the user's properties be those that asked for a time
    (``intake.asked``); others that steer are refused.

    A row without a unique key gets a new one. Raises BadFieldError that names the first row that
    cannot be stored, or that no broker could deliver.
    """
    if (delay_levels is None) == (out_ms is None):
        raise ValueError("a record waits in a level or in a wheel")
    is_timed = out_ms is not None
    due = int64s(out_ms if delay_levels is None else delay_levels)  # type: ignore[arg-type]
    if len(due) != len(batch):
        raise ValueError(f"{len(batch)} messages need as many due times, not {len(due)}")
    sizes, tags_codes = np.empty(len(batch), np.int64), np.empty(len(batch), np.int64)
    shared = _Shared.of(system_topic, form, is_timed, 0, keeps_times=keeps_times)
    table = _table(batch, due)
    bad = int(measure_rows(table, shared.facts, sizes, tags_codes))
    if is_timed and len(due) and due.min() < 0:  # no time of digits: the scalar code refuses it
        early = int(np.argmax(due < 0))
        bad = early if bad < 0 else min(bad, early)
    if bad >= 0:
        _refuse(batch, bad, system_topic, int(due[bad]), is_timed, form, keeps_times)
    keys = _filled(batch.unique_key)
    return BatchDraft(sizes, tags_codes, keys, batch, due, table, is_timed, system_topic, form)


def _table(batch: MessageBatch, due: Int64s) -> Int64s:
    """Where the columns lie, for a kernel; keep the batch alive."""
    table = [part for name in BYTE_COLUMNS for part in getattr(batch, name).addresses]
    table += [address_of(getattr(batch, name)) for name in NUMBER_COLUMNS]
    return int64s([*table, address_of(due)])


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


def _refuse(
    batch: MessageBatch,
    row: int,
    system_topic: str,
    due: int,
    is_timed: bool,
    form: RecordForm,
    keeps_times: bool,
) -> None:
    """Let the scalar rules say what is wrong with a row."""
    for name in BYTE_COLUMNS[1:]:
        text = getattr(batch, name)[row]
        try:
            text.decode()
        except UnicodeDecodeError as error:
            found = repr(text[:64])
            problem = f"row {row}: {name} that is not UTF-8"
            raise BadFieldError(problem, found=found).of_row(row) from error
    wanted: dict[str, Any] = {"out_ms" if is_timed else "delay_level": due}
    try:
        message = batch.message(row)
        if keeps_times:
            message, wanted["extra"] = _times_apart(message)
        require_storable(message, system_topic=system_topic, form=form, **wanted)
    except BadFieldError as error:
        refused = BadFieldError(
            f"row {row}: {error.problem}", expected=error.expected, found=error.found
        )
        raise refused.of_row(row) from error
    except ValueError as error:
        raise BadFieldError(f"row {row}: {error}").of_row(row) from error
    raise BadFieldError(
        f"row {row}: user properties that are not closed entries of name, 0x01, value, 0x02"
    ).of_row(row)


def _times_apart(message: Message) -> tuple[Message, tuple[tuple[str, str], ...]]:
    """A message, and apart from it the properties by which it asked for a time."""
    properties = dict(message.properties)
    times = [(name, properties.pop(name)) for name in TIME_PROPERTIES if name in properties]
    return attrs.evolve(message, properties=properties), tuple(times)


def levels_for(delays_ms: Int64s, levels: DelayLevels) -> Int64s:
    """For each delay the level with the shortest delay that is not shorter; 0 beyond the longest.

    >>> levels_for(np.array([1, 5_000, 61_000, 8_000_000]), DelayLevels.parse()).tolist()
    [1, 2, 6, 0]
    """
    ranked = np.argsort(levels.delays_ms, kind="stable")
    places = np.searchsorted(int64s(levels.delays_ms)[ranked], delays_ms)
    return np.append(ranked + 1, 0)[places]
