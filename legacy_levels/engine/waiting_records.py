# SPDX-License-Identifier: Apache-2.0
"""The records behind entries of level queues, read in bulk: topic, queue and key of each.

``read_waiting`` separates rows whose record is missing or damaged, with the reason.
"""

import contextlib
from collections.abc import Iterator

import attrs
import numpy as np

from legacy_levels.engine.cursor import LevelCursor
from legacy_levels.engine.state import LevelState
from message_store.base.errors import BadFieldError, FormatError
from message_store.columns.byte_column import ByteColumn, Int64s
from message_store.columns.message_batch import StoredBatch, decode_batch
from message_store.columns.property_column import find_property_column
from message_store.format import properties as names
from message_store.format.java_numbers import INT_MAX, parse_long
from message_store.format.message import StoredMessage
from message_store.interface.delay_store import Pending
from message_store.interface.waiting_messages import WaitingFilter, pending_of
from message_store.reading.consume_queue import BoolArray, UnitArray
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.log import LiveLog

ROWS_AT_ONCE = 8_192

_SIZE_FIELD_BYTES = 4
_LONGEST_PLAIN_NUMBER = 9


@attrs.frozen(eq=False)
class WaitingRecords:
    """Some of the rows asked for: ``rows`` counts them, ``batch`` holds their records in order."""

    rows: Int64s
    batch: StoredBatch

    @property
    def real_topic(self) -> ByteColumn:
        """Where each goes; empty where it does not say."""
        return self._property(names.REAL_TOPIC)

    @property
    def unique_key(self) -> ByteColumn:
        """The client's message id of each; empty for none."""
        return self._property(names.UNIQUE_KEY)

    @property
    def real_queue_id(self) -> ByteColumn:
        """The queue that each goes to, as text."""
        return self._property(names.REAL_QUEUE_ID)

    def _property(self, name: str) -> ByteColumn:
        return find_property_column(self.batch.properties_text, name)


def pending_in_level(message: StoredMessage, level: int, due_ms: int, size_bytes: int) -> Pending:
    """What is to be told of a record that waits in a level. Raises as ``real_queue_id``."""
    queue_id = real_queue_id(message)
    return pending_of(message, due_ms, size_bytes, level=level, queue_id=queue_id)


def real_queue_id(message: StoredMessage) -> int:
    """The queue that a record goes to. Raises BadFieldError where it does not say."""
    text = message.properties.get(names.REAL_QUEUE_ID)
    if text is None:
        raise BadFieldError(f"no {names.REAL_QUEUE_ID}", offset=message.commit_log_offset)
    queue_id = parse_long(text)
    if not 0 <= queue_id <= INT_MAX:
        raise BadFieldError(f"{names.REAL_QUEUE_ID} is no queue", found=queue_id)
    return queue_id


def destination_problem(message: StoredMessage) -> str | None:
    """Why preparing its delivery fails, if it does: REAL_TOPIC or REAL_QID is missing or wrong."""
    if names.REAL_TOPIC not in message.properties:
        return f"no {names.REAL_TOPIC}"
    try:
        real_queue_id(message)
    except FormatError as error:
        return str(error)
    return None


def read_waiting(
    log: LiveLog, offsets: Int64s, sizes: Int64s, bad: list[tuple[int, FormatError]] | None = None
) -> Iterator[WaitingRecords]:
    """The records at these places of the log, a part at a time; ``bad`` gets the rows without one.

    A part lies in one log file; parts are in order for offsets that are.
    """
    file_numbers = offsets // log.file_bytes
    edges = np.flatnonzero(np.diff(file_numbers)) + 1
    for first, last in zip([0, *edges.tolist()], [*edges.tolist(), len(offsets)], strict=True):
        for start in range(first, last, ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, last))
            yield from _read_part(log, offsets, sizes, rows, bad)


def _read_part(
    log: LiveLog,
    offsets: Int64s,
    sizes: Int64s,
    rows: Int64s,
    bad: list[tuple[int, FormatError]] | None,
) -> Iterator[WaitingRecords]:
    """One part; where a bulk read finds damage, its records are read one by one."""
    is_whole = (offsets[rows] >= log.min_offset) & (offsets[rows] + sizes[rows] <= log.end)
    try:
        if not is_whole.all():
            raise BadFieldError("not in the log")
        yield WaitingRecords(rows, _decode(log, offsets[rows], sizes[rows]))
        return
    except FormatError:
        pass
    good = []
    for row in rows.tolist():
        try:
            log.record(int(offsets[row]), int(sizes[row]))
            good.append(row)
        except FormatError as error:
            if bad is not None:
                bad.append((row, error))
    if good:
        chosen = np.array(good, np.int64)
        yield WaitingRecords(chosen, _decode(log, offsets[chosen], sizes[chosen]))


def _decode(log: LiveLog, offsets: Int64s, sizes: Int64s) -> StoredBatch:
    """Records of one file as columns. Raises FormatError for the first that is none."""
    base, end = int(offsets.min()), int((offsets + sizes).max())
    end = min(end, base - base % log.file_bytes + log.file_bytes)
    data = np.frombuffer(log.segments.view(base, end - base), np.uint8)
    places = offsets - base
    if len(data) < int(places.max()) + _SIZE_FIELD_BYTES:
        raise BadFieldError("not in the log", offset=end)
    heads = data[places[:, None] + np.arange(_SIZE_FIELD_BYTES)]
    record_sizes = np.ascontiguousarray(heads).view(">i4")[:, 0]
    batch = decode_batch(data, places)
    if (record_sizes != sizes).any() or (batch.commit_log_offset != offsets).any():
        raise BadFieldError("a record of another place or size")
    return batch


def equals(column: ByteColumn, value: bytes) -> BoolArray:
    """Which rows of a column are exactly this.

    >>> equals(ByteColumn.of(["ab", "a", "ab"]), b"ab").tolist()
    [True, False, True]
    """
    is_equal = column.lengths == len(value)
    rows = np.flatnonzero(is_equal)
    if len(rows) and value:
        texts = column.data[column.starts[rows][:, None] + np.arange(len(value))]
        is_equal[rows] = (texts == np.frombuffer(value, np.uint8)).all(axis=1)
    return np.asarray(is_equal)


def are_plain_numbers(column: ByteColumn) -> BoolArray:
    """Which rows are one to nine decimal digits.

    >>> are_plain_numbers(ByteColumn.of(["0", "", "12x", "4294967296", "-1"])).tolist()
    [True, False, False, False, False]
    """
    is_number = (column.lengths > 0) & (column.lengths <= _LONGEST_PLAIN_NUMBER)
    for place in range(_LONGEST_PLAIN_NUMBER):
        rows = np.flatnonzero(is_number & (column.lengths > place))
        digits = column.data[column.starts[rows] + place]
        is_number[rows] = (digits >= ord("0")) & (digits <= ord("9"))
    return np.asarray(is_number)


def iterate_pending(state: LevelState, wanted: WaitingFilter) -> Iterator[Pending]:
    """Level after level in the order of its queue. Records that are none are left out."""
    for level, cursor in state.cursors.items():
        if wanted.level in (None, level):
            pieces = _of_level(state, cursor, wanted)
            while True:
                with state.live.reading():
                    piece = next(pieces, None)
                if piece is None:
                    break
                yield from piece


def _of_level(
    state: LevelState, cursor: LevelCursor, wanted: WaitingFilter
) -> Iterator[list[Pending]]:
    for units, records in _units_and_records(state, cursor, wanted):
        passes = np.ones(len(units), np.bool_)
        for column, text in (("real_topic", wanted.topic), ("unique_key", wanted.unique_key)):
            if text is not None:
                passes &= equals(getattr(records, column), text.encode(errors="surrogatepass"))
        messages = []
        for row in np.flatnonzero(passes).tolist():
            with contextlib.suppress(FormatError):
                message = records.batch.message(row)
                due = int(units["tags_code"][row]), int(units["size_bytes"][row])
                messages.append(pending_in_level(message, cursor.level, *due))
        yield messages


def waiting_records(state: LevelState) -> Iterator[LogDeliveries]:
    """The record and the due time of each pending message that can be read, level after level."""
    for cursor in state.cursors.values():
        for units, _ in _units_and_records(state, cursor, WaitingFilter()):
            yield LogDeliveries(state.live, *_places(units), units["tags_code"])


def _units_and_records(
    state: LevelState, cursor: LevelCursor, wanted: WaitingFilter
) -> Iterator[tuple[UnitArray, WaitingRecords]]:
    """The pending messages of a level at the times that are wanted: units and records, by parts."""
    for first, units, waits in cursor.waiting():
        rows = np.flatnonzero(waits & wanted.in_time(units["tags_code"].astype(np.int64)))
        right = state.right_units(cursor.level, first + rows, units[rows])
        for part in read_waiting(state.live.log, *_places(right)):
            yield right[part.rows], part


def _places(units: UnitArray) -> tuple[Int64s, Int64s]:
    """Offsets and sizes."""
    return units["commit_log_offset"].astype(np.int64), units["size_bytes"].astype(np.int64)
