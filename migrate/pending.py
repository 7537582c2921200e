# SPDX-License-Identifier: Apache-2.0
"""Lists the messages that wait in a store, in its levels and in its wheel, the next due first.

Places and due times come as columns, so that filters by level and time cost nothing; a record is
decoded when it is its turn, by the scalar codec. Limitations: a topic or key is found by looking at
every record, some 20,000 a second.
"""

from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.delay_offsets import OffsetsChoice, read_delay_offsets
from legacy_levels.level_backlog import read_backlog
from message_store import properties as names
from message_store.delay_store import Pending
from message_store.errors import BadFieldError, DelayStoreError, FormatError
from message_store.java_numbers import parse_long
from message_store.message import StoredMessage
from message_store.message_codec import decode_message_at
from message_store.segment_files import SegmentReader
from message_store.small_files import is_directory, is_present
from message_store.store_root import StoreRoot
from migrate.finished_target import refuse_unfinished
from migrate.level_delays import told_table
from migrate.report import BadRecord
from migrate.timer_due_times import timer_due_times
from timer_wheel.wheel_reader import read_wheel_store

NO_LEVEL = 0
NOT_IN_A_LEVEL_QUEUE = -1


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

    def window(self, rows: "_Rows") -> NDArray[np.bool_]:
        """Which rows may be asked for, by level and due time."""
        chosen = np.ones(len(rows.due_ms), np.bool_)
        if self.level is not None:
            chosen &= rows.level == self.level
        if self.due_after_ms is not None:
            chosen &= rows.will_roll | (rows.due_ms >= self.due_after_ms)
        if self.due_before_ms is not None:
            chosen &= rows.earliest_ms < self.due_before_ms
        return chosen


@attrs.frozen(eq=False)
class _Rows:
    """One row a waiting message; level 0 and queue offset -1 are those on the wheel.

    A message that will roll is due later than its row says, and one that was due when it was stored
    earlier: only its record says when.
    """

    level: NDArray[np.int64]
    queue_offset: NDArray[np.int64]
    commit_log_offset: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    due_ms: NDArray[np.int64]
    earliest_ms: NDArray[np.int64]
    will_roll: NDArray[np.bool_]

    def rows(self, chosen: NDArray[np.int64]) -> "_Rows":
        return _Rows(*(column[chosen] for column in attrs.astuple(self)))


def pending_messages(
    path: Path,
    wanted: PendingFilter = PendingFilter(),
    *,
    now_ms: int,
    offsets: OffsetsChoice | str = OffsetsChoice.AUTO,
) -> Iterator[Pending | BadRecord]:
    """What waits in the store under ``path`` and is asked for, the next due first; what the wheel
    will place again (due beyond its roll window) comes last, in no order.

    A message whose record cannot be read comes as a BadRecord, whatever topic or key is asked for.
    For one on the wheel ``level`` is None. After a crash, what was already delivered is left out.
    Raises SourceError and FormatError for a store that cannot be read.
    """
    store = StoreRoot(path)
    refuse_unfinished(store)
    store.require_readable()
    with store.shared_lock(), SegmentReader(store.commit_log) as log:
        rows, precision_ms = _all_rows(store, now_ms, OffsetsChoice(offsets))
        chosen = np.flatnonzero(wanted.window(rows))
        order = np.lexsort(
            (rows.commit_log_offset[chosen], rows.due_ms[chosen], rows.will_roll[chosen])
        )
        yield from _decoded(log, rows.rows(chosen[order]), precision_ms, wanted)


def _all_rows(store: StoreRoot, now_ms: int, offsets: OffsetsChoice) -> tuple[_Rows, int]:
    """Levels and wheel in one table, and the wheel's precision."""
    backlog = read_backlog(
        store.path,
        offsets_choice=offsets,
        level_table=told_table(store.path, read_delay_offsets(store.path, offsets)),
        after_crash=not store.was_stopped_cleanly,
    )
    waiting = _Rows(
        level=backlog.level.astype(np.int64),
        queue_offset=backlog.queue_offset.astype(np.int64),
        commit_log_offset=backlog.commit_log_offset.astype(np.int64),
        size_bytes=backlog.size_bytes.astype(np.int64),
        due_ms=backlog.due_ms.astype(np.int64),
        earliest_ms=backlog.due_ms.astype(np.int64),
        will_roll=np.zeros(len(backlog), np.bool_),
    )
    if not (is_present(store.timer_wheel) or is_directory(store.timer_queue())):
        return waiting, 0
    wheel = read_wheel_store(
        store,
        now_ms=now_ms,
        topic_in_delete_key=None,
        after_crash=not store.was_stopped_cleanly,
    )
    timers = wheel.pending
    on_wheel = _Rows(
        level=np.full(len(timers), NO_LEVEL, np.int64),
        queue_offset=np.full(len(timers), NOT_IN_A_LEVEL_QUEUE, np.int64),
        commit_log_offset=timers.commit_log_offset,
        size_bytes=timers.size_bytes,
        due_ms=timers.slot_time_ms + wheel.precision_ms,
        earliest_ms=timers.slot_time_ms - wheel.precision_ms,
        will_roll=timers.is_roll,
    )
    pairs = zip(attrs.astuple(waiting), attrs.astuple(on_wheel), strict=True)
    return _Rows(*(np.concatenate(pair) for pair in pairs)), wheel.precision_ms


def _decoded(
    log: SegmentReader, rows: _Rows, precision_ms: int, wanted: PendingFilter
) -> Iterator[Pending | BadRecord]:
    left = wanted.limit
    columns = (rows.level, rows.queue_offset, rows.commit_log_offset, rows.size_bytes, rows.due_ms)
    listed = (column.tolist() for column in columns)
    for level, queue_offset, offset, size_bytes, due_ms in zip(*listed, strict=True):
        if left == 0:
            return
        try:
            record = decode_message_at(_read(log, offset, size_bytes))
            if level == NO_LEVEL:
                due_ms = _wheel_due_ms(record, due_ms, precision_ms)
            message = _pending(record, level, due_ms, size_bytes)
        except DelayStoreError as error:
            reason = error.problem if isinstance(error, FormatError) else str(error)
            yield BadRecord(level, queue_offset, offset, reason)
            continue
        if wanted.lets_pass(message):
            left = None if left is None else left - 1
            yield message


def _read(log: SegmentReader, offset: int, size_bytes: int) -> bytes:
    """The bytes of a queue entry, once they are known to lie within one file."""
    segment = log.segment_at(offset)
    if segment is None or size_bytes <= 0:
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
        level=None if level == NO_LEVEL else level,
        due_ms=due_ms,
        size_bytes=size_bytes,
        commit_log_offset=record.commit_log_offset,
    )
