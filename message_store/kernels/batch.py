# SPDX-License-Identifier: Apache-2.0
"""The kernels of the bulk codec: place records in a log, fill them in, find them, read them back.

A kernel is handed a table of addresses: one for each column of numbers (``NUMBER_COLUMNS``), and
three (block, starts, lengths) for each column of bytes (``BYTE_COLUMNS``). Nothing is checked here
that ``message_batch`` has checked before; reading checks every length before it is used.
"""

import numpy as np
from numpy.typing import NDArray

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
    PROPERTIES_RUN,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_IPV6,
    SYS_STORE_HOST_IPV6,
    TOPIC_RUN_V1,
    TOPIC_RUN_V2,
)
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.crc import crc32
from message_store.kernels.raw_memory import (
    copy_bytes,
    copy_short,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_native,
    load_u8,
    store_i16,
    store_i32,
    store_i64,
    store_native,
    store_u8,
)
from message_store.kernels.text import NOT_UTF8, java_hash_utf8

TABLE_LENGTH = len(NUMBER_COLUMNS) + 3 * len(BYTE_COLUMNS)

_MAGIC, _BODY_CRC, _QUEUE_ID, _FLAG, _QUEUE_OFFSET, _COMMIT_LOG_OFFSET, _SYS_FLAG = range(7)
_BORN_MS, _BORN_PORT, _STORE_MS, _STORE_PORT, _RECONSUMED, _PREPARED = range(7, 13)
_BODY, _TOPIC, _PROPERTIES, _BORN_IP, _STORE_IP = range(len(NUMBER_COLUMNS), TABLE_LENGTH, 3)

_AT_SIZE = HEAD_V4_V4.offset_of("size_bytes")
_AT_MAGIC = HEAD_V4_V4.offset_of("magic")
_AT_BODY_CRC = HEAD_V4_V4.offset_of("body_crc")
_AT_QUEUE_ID = HEAD_V4_V4.offset_of("queue_id")
_AT_FLAG = HEAD_V4_V4.offset_of("flag")
_AT_QUEUE_OFFSET = HEAD_V4_V4.offset_of("queue_offset")
_AT_COMMIT_LOG_OFFSET = HEAD_V4_V4.offset_of("commit_log_offset")
_AT_SYS_FLAG = HEAD_V4_V4.offset_of("sys_flag")
_AT_BORN_MS = HEAD_V4_V4.offset_of("born_timestamp_ms")
_AT_BORN_IP = HEAD_V4_V4.offset_of("born_ip")
# Beyond the first address, places count from the end of an address.
_BORN_PORT_AFTER = 0
_STORE_MS_AFTER = HEAD_V4_V4.offset_of("store_timestamp_ms") - HEAD_V4_V4.offset_of("born_port")
_STORE_IP_AFTER = HEAD_V4_V4.offset_of("store_ip") - HEAD_V4_V4.offset_of("born_port")
_STORE_PORT_AFTER = 0
_RECONSUMED_AFTER = HEAD_V4_V4.offset_of("reconsume_times") - HEAD_V4_V4.offset_of("store_port")
_PREPARED_AFTER = HEAD_V4_V4.offset_of("prepared_transaction_offset") - HEAD_V4_V4.offset_of(
    "store_port"
)
_HEAD_AFTER = HEAD_V4_V4.size - HEAD_V4_V4.offset_of("store_port")

_BODY_LENGTH_BYTES = BODY_RUN.length.size
_TOPIC_LENGTH_BYTES_V1 = TOPIC_RUN_V1.length.size
_TOPIC_LENGTH_BYTES_V2 = TOPIC_RUN_V2.length.size
_PROPERTIES_LENGTH_BYTES = PROPERTIES_RUN.length.size
_BLANK_BYTES = BLANK_RECORD.size
_AT_BLANK_SIZE = BLANK_RECORD.offset_of("size_bytes")
_AT_BLANK_MAGIC = BLANK_RECORD.offset_of("magic")

Int64s = NDArray[np.int64]


@inline_kernel
def _number(table: Int64s, column: int, row: int) -> int:
    return load_native(table[column] + 8 * row)  # type: ignore[no-any-return]


@inline_kernel
def _put(table: Int64s, column: int, row: int, value: int) -> None:
    store_native(table[column] + 8 * row, value)


@inline_kernel
def _source(table: Int64s, column: int, row: int) -> int:
    return table[column] + _number(table, column + 1, row)  # type: ignore[no-any-return]


@kernel("void(int64, int64, int64, int64, int64, int64)")
def gather(
    block: int, starts: int, lengths: int, count: int, target: int, target_bytes: int
) -> None:
    """Copy the strings of a byte column one behind another; ``target_bytes`` is the sum of their
    lengths.
    """
    end = target + target_bytes
    for row in range(count):
        length = load_native(lengths + 8 * row)
        if length > end - target:
            return
        copy_bytes(target, block + load_native(starts + 8 * row), length)
        target += length


@kernel("int64(int64[::1], int64, int64, int64[::1])")
def place_records(sizes: Int64s, start: int, file_bytes: int, positions: Int64s) -> int:
    """Where each record goes in a log of files of ``file_bytes``; returns the end of the last one,
    or -1 - row for a record that no file can hold.
    """
    place = start
    file_end = start - start % file_bytes + file_bytes
    for row in range(len(sizes)):
        needed = sizes[row] + END_OF_FILE_MIN_BYTES
        if needed > file_bytes:
            return -1 - row
        if needed > file_end - place:
            place = file_end
            file_end += file_bytes
        positions[row] = place
        place += sizes[row]
    return place


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
    store_i32(place + _AT_SIZE, size)
    store_i32(place + _AT_MAGIC, magic)
    store_i32(place + _AT_BODY_CRC, crc)
    store_i32(place + _AT_QUEUE_ID, _number(table, _QUEUE_ID, row))
    store_i32(place + _AT_FLAG, _number(table, _FLAG, row))
    store_i64(place + _AT_QUEUE_OFFSET, _number(table, _QUEUE_OFFSET, row))
    store_i64(place + _AT_COMMIT_LOG_OFFSET, position)
    store_i32(place + _AT_SYS_FLAG, _number(table, _SYS_FLAG, row))
    store_i64(place + _AT_BORN_MS, _number(table, _BORN_MS, row))
    length = _number(table, _BORN_IP + 2, row)
    copy_short(place + _AT_BORN_IP, _source(table, _BORN_IP, row), length)
    place += _AT_BORN_IP + length
    store_i32(place + _BORN_PORT_AFTER, _number(table, _BORN_PORT, row))
    store_i64(place + _STORE_MS_AFTER, _number(table, _STORE_MS, row))
    length = _number(table, _STORE_IP + 2, row)
    copy_short(place + _STORE_IP_AFTER, _source(table, _STORE_IP, row), length)
    place += _STORE_IP_AFTER + length
    store_i32(place + _STORE_PORT_AFTER, _number(table, _STORE_PORT, row))
    store_i32(place + _RECONSUMED_AFTER, _number(table, _RECONSUMED, row))
    store_i64(place + _PREPARED_AFTER, _number(table, _PREPARED, row))
    place += _HEAD_AFTER
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
def fill_records(table: Int64s, positions: Int64s, sizes: Int64s, start: int, target: int) -> None:
    """Write every record, and the blanks between them, where ``target`` is the log's ``start``."""
    end = start
    for row in range(len(positions)):
        position = positions[row]
        _fill_blank(target + end - start, position - end)
        _fill_record(table, row, target + position - start, position, sizes[row])
        end = position + sizes[row]


@kernel("int64(int64, int64, int64[::1])")
def walk_records(buffer: int, length: int, positions: Int64s) -> int:
    """Find the records that lie one behind another from the start of a buffer; returns how many.

    ``positions`` has room for one more than the buffer can hold, and gets, behind the last record,
    the place where the walk stopped.
    """
    place = 0
    count = 0
    while length - place >= _BLANK_BYTES:
        size = load_i32(buffer + place + _AT_SIZE)
        magic = load_i32(buffer + place + _AT_MAGIC)
        if magic == MAGIC_BLANK and _BLANK_BYTES <= size <= length - place:
            place += size
            continue
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            break
        if not SMALLEST_RECORD_BYTES <= size <= length - place:
            break
        positions[count] = place
        count += 1
        place += size
    positions[count] = place
    return count


@inline_kernel
def _is_utf8(address: int, length: int) -> bool:
    high_bits = 0
    for place in range(length):
        high_bits |= load_u8(address + place)
    return high_bits < 0x80 or java_hash_utf8(address, length) != NOT_UTF8


@inline_kernel
def _read_head(buffer: int, place: int, row: int, table: Int64s) -> int:
    """The numbers of a head, and where the body's length field is."""
    head = buffer + place
    _put(table, _MAGIC, row, load_i32(head + _AT_MAGIC))
    _put(table, _BODY_CRC, row, load_i32(head + _AT_BODY_CRC))
    _put(table, _QUEUE_ID, row, load_i32(head + _AT_QUEUE_ID))
    _put(table, _FLAG, row, load_i32(head + _AT_FLAG))
    _put(table, _QUEUE_OFFSET, row, load_i64(head + _AT_QUEUE_OFFSET))
    _put(table, _COMMIT_LOG_OFFSET, row, load_i64(head + _AT_COMMIT_LOG_OFFSET))
    sys_flag = load_i32(head + _AT_SYS_FLAG)
    _put(table, _SYS_FLAG, row, sys_flag)
    _put(table, _BORN_MS, row, load_i64(head + _AT_BORN_MS))
    _put(table, _BORN_IP + 1, row, place + _AT_BORN_IP)
    length = IPV6_BYTES if sys_flag & SYS_BORN_HOST_IPV6 else IPV4_BYTES
    _put(table, _BORN_IP + 2, row, length)
    head += _AT_BORN_IP + length
    _put(table, _BORN_PORT, row, load_i32(head + _BORN_PORT_AFTER))
    _put(table, _STORE_MS, row, load_i64(head + _STORE_MS_AFTER))
    _put(table, _STORE_IP + 1, row, head + _STORE_IP_AFTER - buffer)
    length = IPV6_BYTES if sys_flag & SYS_STORE_HOST_IPV6 else IPV4_BYTES
    _put(table, _STORE_IP + 2, row, length)
    head += _STORE_IP_AFTER + length
    _put(table, _STORE_PORT, row, load_i32(head + _STORE_PORT_AFTER))
    _put(table, _RECONSUMED, row, load_i32(head + _RECONSUMED_AFTER))
    _put(table, _PREPARED, row, load_i64(head + _PREPARED_AFTER))
    return head + _HEAD_AFTER - buffer


@inline_kernel
def _read_record(
    buffer: int, end: int, place: int, row: int, table: Int64s, check_crc: bool
) -> bool:
    """The record at ``place`` of what ends at ``end``; False when anything about it is wrong."""
    if place < 0 or end - place < SMALLEST_RECORD_BYTES:
        return False
    size = load_i32(buffer + place + _AT_SIZE)
    magic = load_i32(buffer + place + _AT_MAGIC)
    if not SMALLEST_RECORD_BYTES <= size <= end - place or magic not in (MAGIC_V1, MAGIC_V2):
        return False
    end = place + size
    sys_flag = load_i32(buffer + place + _AT_SYS_FLAG)
    wide = (sys_flag & SYS_BORN_HOST_IPV6 != 0) + (sys_flag & SYS_STORE_HOST_IPV6 != 0)
    if size < SMALLEST_RECORD_BYTES + wide * (IPV6_BYTES - IPV4_BYTES):
        return False
    place = _read_head(buffer, place, row, table)

    length = load_i32(buffer + place)
    place += _BODY_LENGTH_BYTES
    if not 0 <= length <= end - place - _TOPIC_LENGTH_BYTES_V2:
        return False
    if check_crc and length > 0:
        crc = int(crc32(buffer + place, length)) & CRC_MASK
        if crc != _number(table, _BODY_CRC, row):
            return False
    _put(table, _BODY + 1, row, place)
    _put(table, _BODY + 2, row, length)
    place += length

    if magic == MAGIC_V2:
        length = load_i16(buffer + place)
        place += _TOPIC_LENGTH_BYTES_V2
    else:
        length = load_i8(buffer + place)
        place += _TOPIC_LENGTH_BYTES_V1
    if not 0 <= length <= end - place - _PROPERTIES_LENGTH_BYTES:
        return False
    if not _is_utf8(buffer + place, length):
        return False
    _put(table, _TOPIC + 1, row, place)
    _put(table, _TOPIC + 2, row, length)
    place += length

    length = load_i16(buffer + place)
    place += _PROPERTIES_LENGTH_BYTES
    _put(table, _PROPERTIES + 1, row, place)
    _put(table, _PROPERTIES + 2, row, length)
    return bool(length >= 0 and place + length == end)


@kernel("int64(int64, int64, int64[::1], int64[::1], boolean)")
def read_records(
    buffer: int, length: int, positions: Int64s, table: Int64s, check_crc: bool
) -> int:
    """Fill the columns from the records at these places of a buffer.

    Returns -1, or the first row that is no record; the columns are then of no use.
    """
    for row in range(len(positions)):
        if not _read_record(buffer, length, positions[row], row, table, check_crc):
            return row
    return -1
