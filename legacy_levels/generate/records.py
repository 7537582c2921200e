# SPDX-License-Identifier: Apache-2.0
"""Many messages as columns → the bytes of a log, as fast as memory takes them.

Law: for every batch the bytes are those of ``message_codec``, which is also asked what is wrong
with a row that cannot be a record.
"""

import attrs
import numpy as np

from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import Bytes, Int64s, int64s
from message_store.columns.message_batch import StoredBatch
from message_store.files.store_root import COMMIT_LOG_FILE_BYTES
from message_store.format.message_codec import encode_message
from message_store.format.record_layout import (
    BLANK_RECORD,
    BODY_RUN,
    BYTE_COLUMNS,
    CRC_MASK,
    END_OF_FILE_MIN_BYTES,
    HEAD_V4_V4,
    IPV4_BYTES,
    IPV6_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NUMBER_COLUMNS,
    PROPERTIES_MAX_BYTES,
    PROPERTIES_RUN,
    SYS_BORN_HOST_IPV6,
    SYS_STORE_HOST_IPV6,
    TOPIC_RUN_V1,
    TOPIC_RUN_V2,
    head_layout,
    runs,
)
from message_store.kernels.batch import place_records
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.crc import crc32
from message_store.kernels.log import (
    AT_BODY_CRC,
    AT_BORN_IP,
    AT_BORN_PORT,
    AT_BORN_TIME,
    AT_FLAG,
    AT_LOG_OFFSET,
    AT_MAGIC,
    AT_PREPARED,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_RECONSUMED,
    AT_SIZE,
    AT_STORE_IP,
    AT_STORE_PORT,
    AT_STORE_TIME,
    AT_SYS_FLAG,
    HEAD_BYTES,
)
from message_store.kernels.raw_memory import (
    address_of,
    copy_bytes,
    copy_short,
    load_native,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)

_MAGIC, _BODY_CRC, _QUEUE_ID, _FLAG, _QUEUE_OFFSET, _COMMIT_LOG_OFFSET, _SYS_FLAG = range(7)
_BORN_MS, _BORN_PORT, _STORE_MS, _STORE_PORT, _RECONSUMED, _PREPARED = range(7, 13)
_TABLE_LENGTH = len(NUMBER_COLUMNS) + 3 * len(BYTE_COLUMNS)
_BODY, _TOPIC, _PROPERTIES, _BORN_IP, _STORE_IP = range(len(NUMBER_COLUMNS), _TABLE_LENGTH, 3)

_BODY_LENGTH_BYTES = BODY_RUN.length.size
_TOPIC_LENGTH_BYTES_V1 = TOPIC_RUN_V1.length.size
_TOPIC_LENGTH_BYTES_V2 = TOPIC_RUN_V2.length.size
_PROPERTIES_LENGTH_BYTES = PROPERTIES_RUN.length.size
_BLANK_BYTES = BLANK_RECORD.size
_AT_BLANK_SIZE = BLANK_RECORD.offset_of("size_bytes")
_AT_BLANK_MAGIC = BLANK_RECORD.offset_of("magic")

_INT32_COLUMNS = tuple(
    field.name
    for field in HEAD_V4_V4.fields
    if field.kind == "i32" and field.name in NUMBER_COLUMNS and field.name != "body_crc"
)


@attrs.frozen(eq=False)
class Placement:
    """Where records go in a log: offset and size of each; ``end`` is one past the last byte."""

    start: int
    positions: Int64s
    sizes: Int64s
    end: int


def place_batch(
    batch: StoredBatch, start: int = 0, file_bytes: int = COMMIT_LOG_FILE_BYTES
) -> Placement:
    """Where the records of ``batch`` go in a log of files of ``file_bytes`` that ends at ``start``.

    A record goes to the next file where it would leave less than eight bytes behind it. Raises what
    the scalar codec raises for a row that cannot be a record, and BadFieldError for one that no
    file can hold.
    """
    room = file_bytes - start % file_bytes
    if start < 0 or room < END_OF_FILE_MIN_BYTES:
        raise ValueError(f"a log cannot end at {start} in files of {file_bytes} bytes")
    _refuse_impossible_rows(batch)
    sizes = _record_sizes(batch)
    positions = np.empty(len(batch), np.int64)
    end = place_records(sizes, start, file_bytes, positions)
    if end < 0:
        raise BadFieldError(
            "a record larger than a log file (--body-bytes, --commit-log-file-bytes)",
            expected=f"at most {file_bytes - END_OF_FILE_MIN_BYTES}",
            found=int(sizes[-1 - end]),
        )
    return Placement(start, positions, sizes, end)


def _record_sizes(batch: StoredBatch) -> Int64s:
    fixed = {
        magic: HEAD_V4_V4.size + sum(run.length.size for run in runs(magic))
        for magic in (MAGIC_V1, MAGIC_V2)
    }
    wider = head_layout(SYS_BORN_HOST_IPV6).size - HEAD_V4_V4.size
    sizes = batch.body.lengths + batch.topic.lengths
    sizes += batch.properties_text.lengths
    sizes += np.where(batch.magic == MAGIC_V2, fixed[MAGIC_V2], fixed[MAGIC_V1])
    for bit in (SYS_BORN_HOST_IPV6, SYS_STORE_HOST_IPV6):
        sizes += wider * (batch.sys_flag & bit != 0)
    return sizes


def _refuse_impossible_rows(batch: StoredBatch) -> None:
    """Let the scalar codec say what is wrong with the first row that does not fit the format."""
    suspect = np.zeros(len(batch), np.bool_)
    for magic in (MAGIC_V1, MAGIC_V2):
        kinds = zip(runs(magic), (batch.body, batch.topic, batch.properties_text), strict=True)
        for run, column in kinds:
            limit = 1 << (8 * run.length.size - 1)
            suspect |= (batch.magic == magic) & (column.lengths >= limit)
    suspect |= batch.properties_text.lengths > PROPERTIES_MAX_BYTES
    suspect |= (batch.magic != MAGIC_V1) & (batch.magic != MAGIC_V2)
    for name in _INT32_COLUMNS:
        column = getattr(batch, name)
        suspect |= column != column.astype(np.int32)
    for bit, column in ((SYS_BORN_HOST_IPV6, batch.born_ip), (SYS_STORE_HOST_IPV6, batch.store_ip)):
        suspect |= column.lengths != np.where(batch.sys_flag & bit != 0, IPV6_BYTES, IPV4_BYTES)
    for row in np.flatnonzero(suspect):
        encode_message(batch.message(int(row)))


def write_batch(batch: StoredBatch, placement: Placement, target: Bytes) -> None:
    """Write the records, and the blanks between files, into ``target``, which stands for the log
    from ``placement.start`` on.

    Each record gets the offset of its place. Raises ValueError when ``target`` is too small, and
    for the placement of another batch.
    """
    if target.size < placement.end - placement.start or not target.flags.c_contiguous:
        raise ValueError(f"{placement.end - placement.start} bytes do not fit {target.size}")
    if not np.array_equal(placement.sizes, _record_sizes(batch)):
        raise ValueError("this is the placement of another batch")
    table = _address_table(batch)
    _fill_records(table, placement.positions, placement.sizes, placement.start, address_of(target))


def _address_table(batch: StoredBatch) -> Int64s:
    """The addresses of all columns for a kernel: one of each column of numbers, three of each of
    bytes (block, starts, lengths). The batch has to be kept alive.
    """
    numbers = [getattr(batch, name) for name in NUMBER_COLUMNS]
    table = [0 if column is None else address_of(column) for column in numbers]
    for name in BYTE_COLUMNS:
        table.extend(getattr(batch, name).addresses)
    return int64s(table)


@inline_kernel
def _number(table: Int64s, column: int, row: int) -> int:
    return load_native(table[column] + 8 * row)  # type: ignore[no-any-return]


@inline_kernel
def _source(table: Int64s, column: int, row: int) -> int:
    return table[column] + _number(table, column + 1, row)  # type: ignore[no-any-return]


@inline_kernel
def _fill_blank(place: int, length: int) -> None:
    if length >= _BLANK_BYTES:
        store_i32(place + _AT_BLANK_SIZE, length)
        store_i32(place + _AT_BLANK_MAGIC, MAGIC_BLANK)
        for rest in range(_BLANK_BYTES, length):
            store_u8(place + rest, 0)


@inline_kernel
def _fill_record(table: Int64s, row: int, place: int, position: int, size: int) -> None:
    magic = _number(table, _MAGIC, row)
    body, body_length = _source(table, _BODY, row), _number(table, _BODY + 2, row)
    if table[_BODY_CRC]:
        crc = _number(table, _BODY_CRC, row)
    else:
        crc = int(crc32(body, body_length)) & CRC_MASK
    store_i32(place + AT_SIZE, size)
    store_i32(place + AT_MAGIC, magic)
    store_i32(place + AT_BODY_CRC, crc)
    store_i32(place + AT_QUEUE_ID, _number(table, _QUEUE_ID, row))
    store_i32(place + AT_FLAG, _number(table, _FLAG, row))
    store_i64(place + AT_QUEUE_OFFSET, _number(table, _QUEUE_OFFSET, row))
    store_i64(place + AT_LOG_OFFSET, position)
    store_i32(place + AT_SYS_FLAG, _number(table, _SYS_FLAG, row))
    store_i64(place + AT_BORN_TIME, _number(table, _BORN_MS, row))
    born_extra = _number(table, _BORN_IP + 2, row) - IPV4_BYTES
    store_extra = _number(table, _STORE_IP + 2, row) - IPV4_BYTES
    copy_short(place + AT_BORN_IP, _source(table, _BORN_IP, row), IPV4_BYTES + born_extra)
    place += born_extra
    store_i32(place + AT_BORN_PORT, _number(table, _BORN_PORT, row))
    store_i64(place + AT_STORE_TIME, _number(table, _STORE_MS, row))
    copy_short(place + AT_STORE_IP, _source(table, _STORE_IP, row), IPV4_BYTES + store_extra)
    place += store_extra
    store_i32(place + AT_STORE_PORT, _number(table, _STORE_PORT, row))
    store_i32(place + AT_RECONSUMED, _number(table, _RECONSUMED, row))
    store_i64(place + AT_PREPARED, _number(table, _PREPARED, row))
    place += HEAD_BYTES
    store_i32(place, body_length)
    place += _BODY_LENGTH_BYTES
    copy_bytes(place, body, body_length)
    place += body_length
    length = _number(table, _TOPIC + 2, row)
    if magic == MAGIC_V2:
        store_i16(place, length)
        place += _TOPIC_LENGTH_BYTES_V2
    else:
        store_u8(place, length)
        place += _TOPIC_LENGTH_BYTES_V1
    copy_short(place, _source(table, _TOPIC, row), length)
    place += length
    length = _number(table, _PROPERTIES + 2, row)
    store_i16(place, length)
    copy_bytes(place + _PROPERTIES_LENGTH_BYTES, _source(table, _PROPERTIES, row), length)


@kernel("void(int64[::1], int64[::1], int64[::1], int64, int64)")
def _fill_records(table: Int64s, positions: Int64s, sizes: Int64s, start: int, target: int) -> None:
    """Write every record, and the blanks between them, where ``target`` is the log's ``start``."""
    end = start
    for row in range(len(positions)):
        position = positions[row]
        _fill_blank(target + end - start, position - end)
        _fill_record(table, row, target + position - start, position, sizes[row])
        end = position + sizes[row]
