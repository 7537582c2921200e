# SPDX-License-Identifier: Apache-2.0
"""What the properties of many messages ask of a store: ``intake.asked`` for columns.

Law: a row is due when ``asked_by`` says, and its record keeps the same properties, byte for byte.
"""

from collections.abc import Mapping

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import ByteColumn, Int64s, int64s
from message_store.columns.message_batch import MessageBatch
from message_store.columns.property_column import find_property_column, join_property_columns
from message_store.format import properties as names
from message_store.format.delay_levels import DelayLevels
from message_store.format.message_rules import TIME_PROPERTIES
from message_store.intake.asked import STEERING, whole_number
from message_store.interface.promise_rules import LATEST_MS

_STEERS = rf"\x02(?:{'|'.join(sorted(STEERING))})\x01[^\x02]*"
_PLAIN_NUMBER = r"^[+-]?[0-9]{1,18}$"


@attrs.frozen(eq=False)
class AskedBatch:
    """Messages without what steers their delay, when each is due (int64[rows], epoch ms), and which
    of them have a property that says so.

    In a batch for a wheel the user's properties end with TIMER_* as its records keep them.
    """

    batch: MessageBatch
    due_ms: Int64s
    asks: NDArray[np.bool_]


def asked_by_batch(
    batch: MessageBatch,
    now_ms: int,
    levels: DelayLevels,
    *,
    start_deliver_time_alias: bool = False,
    keeps_times: bool = False,
) -> AskedBatch:
    """``asked_by`` for columns; the records of ``keeps_times`` are a wheel's.

    Raises BadFieldError, which names the row, for a time that is no number, and for a delete
    marker: it cancels what lies before it, and so it is put by itself.
    """
    texts = batch.user_properties
    found = {name: find_property_column(texts, name) for name in STEERING}
    if start_deliver_time_alias:
        found[names.START_DELIVER_TIME] = find_property_column(texts, names.START_DELIVER_TIME)
    due_ms = np.full(len(batch), now_ms, np.int64)
    asks = np.zeros(len(batch), np.bool_)
    for column in found.values():
        asks |= column.lengths > 0
    if not asks.any():
        return AskedBatch(batch, due_ms, asks)
    level_rows, asked_levels = _numbers(found, names.DELAY, np.ones(len(batch), np.bool_))
    is_level = np.zeros(len(batch), np.bool_)
    is_level[level_rows] = asked_levels > 0
    delays_ms = int64s([0, *levels.delays_ms])
    chosen = np.clip(asked_levels, 0, levels.max_level)
    due_ms[level_rows] += np.where(asked_levels > 0, delays_ms[chosen], 0)
    is_timed = ~is_level & (found[names.TIMER_OUT_MS].lengths == 0)
    _refuse_markers(found[names.TIMER_DELETE_UNIQUE_KEY], is_timed)
    _set_due_times(found, is_timed.copy(), due_ms, now_ms)
    plain = _without_steering(texts, found)
    if keeps_times:
        plain = join_property_columns(
            [plain, *((name, _only(found[name], is_timed)) for name in TIME_PROPERTIES)]
        )
    return AskedBatch(attrs.evolve(batch, user_properties=plain), due_ms, asks)


def _set_due_times(
    found: Mapping[str, ByteColumn], is_open: NDArray[np.bool_], due_ms: Int64s, now_ms: int
) -> None:
    """The due times of rows that are open, by the first of these properties that each has."""
    for name in (*TIME_PROPERTIES, names.START_DELIVER_TIME):
        if name not in found:
            continue
        rows, values = _numbers(found, name, is_open)
        values = np.maximum(values, 0)
        if name == names.TIMER_DELAY_SEC:
            values = np.minimum(values, LATEST_MS // 1000) * 1000
        values = np.minimum(values, LATEST_MS)
        is_delay = name in (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS)
        due_ms[rows] = values + now_ms if is_delay else values
        is_open[rows] = False


def _numbers(
    found: Mapping[str, ByteColumn], name: str, is_open: NDArray[np.bool_]
) -> tuple[Int64s, Int64s]:
    """The open rows that have this property, and its values. Raises BadFieldError."""
    rows = np.flatnonzero(is_open & (found[name].lengths > 0))
    column = found[name].take(rows)
    values = np.zeros(len(rows), np.int64)
    texts = column.to_arrow()
    is_plain = pc.match_substring_regex(texts, _PLAIN_NUMBER).to_numpy(zero_copy_only=False)
    plain = np.flatnonzero(is_plain)
    digits = pc.ascii_ltrim(column.take(plain).to_arrow(pa.string()), "+")
    values[plain] = digits.cast(pa.int64()).to_numpy()
    for each in np.flatnonzero(~is_plain).tolist():
        try:
            values[each] = whole_number(name, column[each].decode("utf-8", "replace"))
        except BadFieldError as error:
            row = int(rows[each])
            refused = BadFieldError(f"row {row}: {error.problem}", found=error.found)
            raise refused.of_row(row) from error
    return rows, values


def _refuse_markers(column: ByteColumn, is_timed: NDArray[np.bool_]) -> None:
    for row in np.flatnonzero(is_timed & (column.lengths > 0))[:1].tolist():
        raise BadFieldError(
            f"row {row}: {names.TIMER_DELETE_UNIQUE_KEY} makes a delete marker, which is put by"
            " itself"
        ).of_row(row)


def _without_steering(texts: ByteColumn, found: Mapping[str, ByteColumn]) -> ByteColumn:
    """The texts, and for those that steer copies without these entries."""
    steers = np.zeros(len(texts), np.bool_)
    for name in STEERING:
        steers |= found[name].lengths > 0
    rows = np.flatnonzero(steers)
    nothing, separator = (pa.scalar(text, pa.large_binary()) for text in (b"", b"\x02"))
    opened = pc.binary_join_element_wise(nothing, texts.take(rows).to_arrow(), separator)
    left = ByteColumn.from_arrow(pc.replace_substring_regex(opened, _STEERS, ""))
    starts, lengths = texts.starts.copy(), texts.lengths.copy()
    starts[rows] = texts.data.size + left.starts + 1  # behind the separator that opens it
    lengths[rows] = left.lengths - 1
    return ByteColumn(np.concatenate([texts.data, left.data]), starts, lengths)


def _only(column: ByteColumn, chosen: NDArray[np.bool_]) -> ByteColumn:
    """The column, empty where it is not chosen."""
    return ByteColumn(column.data, column.starts, np.where(chosen, column.lengths, 0))
