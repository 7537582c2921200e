# SPDX-License-Identifier: Apache-2.0
"""The kernels of the bulk codec: copy byte columns, place records in a log, read them back.

A kernel gets a table of addresses: one for each column of numbers (``NUMBER_COLUMNS``), three for
each column of bytes (``BYTE_COLUMNS``: block, starts, lengths). ``message_batch`` has checked the
columns; reading checks every length before it is used.
"""

import numpy as np
from numpy.typing import NDArray

from message_store.format.record_layout import (
    BYTE_COLUMNS,
    END_OF_FILE_MIN_BYTES,
    IPV4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    NUMBER_COLUMNS,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_IPV6,
    SYS_STORE_HOST_IPV6,
)
from message_store.kernels.cache import inline_kernel, kernel
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
    BODY_AT,
    IPV6_EXTRA,
    PARTS,
    PROPERTIES_AT,
    TOPIC_AT,
    TOPIC_BYTES,
    body_is_whole,
    find_parts,
)
from message_store.kernels.raw_memory import (
    copy_bytes,
    load_i32,
    load_i64,
    load_native,
    load_u8,
    store_native,
)
from message_store.kernels.text import NOT_UTF8, java_hash_utf8

TABLE_LENGTH = len(NUMBER_COLUMNS) + 3 * len(BYTE_COLUMNS)

_MAGIC, _BODY_CRC, _QUEUE_ID, _FLAG, _QUEUE_OFFSET, _COMMIT_LOG_OFFSET, _SYS_FLAG = range(7)
_BORN_MS, _BORN_PORT, _STORE_MS, _STORE_PORT, _RECONSUMED, _PREPARED = range(7, 13)
_BODY, _TOPIC, _PROPERTIES, _BORN_IP, _STORE_IP = range(len(NUMBER_COLUMNS), TABLE_LENGTH, 3)

Int64s = NDArray[np.int64]


@inline_kernel
def _put(table: Int64s, column: int, row: int, value: int) -> None:
    store_native(table[column] + 8 * row, value)


@kernel("void(int64, int64, int64, int64, int64, int64)")
def gather(
    block: int, starts: int, lengths: int, count: int, target: int, target_bytes: int
) -> None:
    """Copy the strings of a byte column one behind another, ``target_bytes`` in all."""
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
def _is_utf8(address: int, length: int) -> bool:
    high_bits = 0
    for place in range(length):
        high_bits |= load_u8(address + place)
    return high_bits < 0x80 or java_hash_utf8(address, length) != NOT_UTF8


@inline_kernel
def _read_head(buffer: int, place: int, row: int, table: Int64s) -> None:
    """The numbers of a head, and where its addresses lie."""
    head = buffer + place
    sys_flag = load_i32(head + AT_SYS_FLAG)
    born_extra = IPV6_EXTRA if sys_flag & SYS_BORN_HOST_IPV6 else 0
    store_extra = IPV6_EXTRA if sys_flag & SYS_STORE_HOST_IPV6 else 0
    both_extra = born_extra + store_extra
    _put(table, _MAGIC, row, load_i32(head + AT_MAGIC))
    _put(table, _BODY_CRC, row, load_i32(head + AT_BODY_CRC))
    _put(table, _QUEUE_ID, row, load_i32(head + AT_QUEUE_ID))
    _put(table, _FLAG, row, load_i32(head + AT_FLAG))
    _put(table, _QUEUE_OFFSET, row, load_i64(head + AT_QUEUE_OFFSET))
    _put(table, _COMMIT_LOG_OFFSET, row, load_i64(head + AT_LOG_OFFSET))
    _put(table, _SYS_FLAG, row, sys_flag)
    _put(table, _BORN_MS, row, load_i64(head + AT_BORN_TIME))
    _put(table, _BORN_IP + 1, row, place + AT_BORN_IP)
    _put(table, _BORN_IP + 2, row, IPV4_BYTES + born_extra)
    _put(table, _BORN_PORT, row, load_i32(head + AT_BORN_PORT + born_extra))
    _put(table, _STORE_MS, row, load_i64(head + AT_STORE_TIME + born_extra))
    _put(table, _STORE_IP + 1, row, place + AT_STORE_IP + born_extra)
    _put(table, _STORE_IP + 2, row, IPV4_BYTES + store_extra)
    _put(table, _STORE_PORT, row, load_i32(head + AT_STORE_PORT + both_extra))
    _put(table, _RECONSUMED, row, load_i32(head + AT_RECONSUMED + both_extra))
    _put(table, _PREPARED, row, load_i64(head + AT_PREPARED + both_extra))


@inline_kernel
def _put_part(table: Int64s, column: int, row: int, place: int, parts: int, part: int) -> None:
    _put(table, column + 1, row, place + load_native(parts + 8 * part))
    _put(table, column + 2, row, load_native(parts + 8 * part + 8))


@inline_kernel
def _read_record(buffer: int, end: int, place: int, row: int, table: Int64s, parts: int) -> bool:
    """The record at ``place`` of what ends at ``end``; False when anything about it is wrong."""
    if place < 0 or end - place < SMALLEST_RECORD_BYTES:
        return False
    record = buffer + place
    size = load_i32(record + AT_SIZE)
    magic = load_i32(record + AT_MAGIC)
    if not SMALLEST_RECORD_BYTES <= size <= end - place or magic not in (MAGIC_V1, MAGIC_V2):
        return False
    if not find_parts(record, size, parts) or not body_is_whole(record, parts):
        return False
    topic = record + load_native(parts + 8 * TOPIC_AT)
    if not _is_utf8(topic, load_native(parts + 8 * TOPIC_BYTES)):
        return False
    _read_head(buffer, place, row, table)
    _put_part(table, _BODY, row, place, parts, BODY_AT)
    _put_part(table, _TOPIC, row, place, parts, TOPIC_AT)
    _put_part(table, _PROPERTIES, row, place, parts, PROPERTIES_AT)
    return True


@kernel("int64(int64, int64, int64[::1], int64[::1])")
def read_records(buffer: int, length: int, positions: Int64s, table: Int64s) -> int:
    """Fill the columns from the records at these places of a buffer.

    Returns -1, or the first row that is no record; the columns are then of no use.
    """
    parts = np.zeros(PARTS, np.int64)
    for row in range(len(positions)):
        place = positions[row]
        if not _read_record(buffer, length, place, row, table, parts.ctypes.data):
            return row
    return -1
