# SPDX-License-Identifier: Apache-2.0
"""The kernel that follows the units of a queue to their records, and checks those.

Equal to ``LiveLog.record`` for each unit, and to ``queued_messages.identity_of``.
"""

import numpy as np

from message_store.format.queue_unit import MAX_NEUTRAL_BYTES, PRE_BLANK_SIZE, QUEUE_UNIT
from message_store.format.record_layout import SYS_COMPRESSED
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.crc import crc32, crc32_from
from message_store.kernels.log import (
    AT_BODY_CRC,
    AT_BORN_TIME,
    AT_LOG_OFFSET,
    AT_SYS_FLAG,
    BODY_AT,
    BODY_BYTES,
    PARTS,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    TOPIC_AT,
    TOPIC_BYTES,
    body_is_whole,
    is_record_at,
    store_time_at,
)
from message_store.kernels.properties import write_number
from message_store.kernels.raw_memory import load_i32, load_i64, load_native, store_u8
from message_store.kernels.text import NOT_UTF8, java_hash_utf8

QUEUE_OFFSET, IDENTITY, START, BODY_START, BODY_END, PROPERTIES_START, END = range(7)
"""The first columns of the table that ``follow_units`` fills, a row for each unit: its queue
offset, which is there before, and what ``QueuedRecord`` says of its record in a copy of all.
"""
RECORD_FIELDS = 7
STATE, LOG_OFFSET, SIZE = range(RECORD_FIELDS, 10)
UNIT_FIELDS = 10

NO_MESSAGE, WHOLE, UNREADABLE, ELSEWHERE, ENOUGH = range(5)
"""States of a unit: it leads to no record; to a whole one; to something else, or nowhere; not into
this part of the log; or there were enough bytes before it.
"""

_UNIT_BYTES = QUEUE_UNIT.size
_AT_UNIT_OFFSET = QUEUE_UNIT.offset_of("commit_log_offset")
_AT_UNIT_SIZE = QUEUE_UNIT.offset_of("size_bytes")
_AT_TAGS_CODE = QUEUE_UNIT.offset_of("tags_code")
_TEXT_WORDS = 11
"""Room for four numbers and what separates them."""
_SPACE = 0x20

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@inline_kernel
def _identity_at(record: int, parts: int, text: int) -> int:
    end = write_number(text, load_i64(record + AT_LOG_OFFSET))
    store_u8(end, _SPACE)
    end = write_number(end + 1, store_time_at(record))
    store_u8(end, _SPACE)
    end = write_number(end + 1, load_i64(record + AT_BORN_TIME))
    store_u8(end, _SPACE)
    end = write_number(end + 1, load_i32(record + AT_BODY_CRC))
    properties = record + load_native(parts + 8 * PROPERTIES_AT)
    crc = crc32(properties, load_native(parts + 8 * PROPERTIES_BYTES))
    return int(crc32_from(crc, text, end - text))


@inline_kernel
def _is_no_message(unit: int, offset: int, size: int) -> bool:
    """Whether a unit is neutral, or only fills a queue before its first message."""
    if 0 < size <= MAX_NEUTRAL_BYTES:
        return True
    is_blank = size == PRE_BLANK_SIZE and offset == 0
    return bool(is_blank and load_i64(unit + _AT_TAGS_CODE) == 0)


@inline_kernel
def _read_record(record: int, size: int, offset: int, parts: int, table: Table, row: int) -> bool:
    """Fill a row from the record at an address; False when anything about it is wrong."""
    if not is_record_at(record, size, offset, parts) or not body_is_whole(record, parts):
        return False
    topic = record + load_native(parts + 8 * TOPIC_AT)
    if java_hash_utf8(topic, load_native(parts + 8 * TOPIC_BYTES)) == NOT_UTF8:
        return False
    start = table[row, START]
    body = start + load_native(parts + 8 * BODY_AT)
    is_compressed = load_i32(record + AT_SYS_FLAG) & SYS_COMPRESSED
    table[row, BODY_START] = -1 if is_compressed else body
    table[row, BODY_END] = body + load_native(parts + 8 * BODY_BYTES)
    table[row, PROPERTIES_START] = start + load_native(parts + 8 * PROPERTIES_AT)
    table[row, IDENTITY] = _identity_at(record, parts, parts + 8 * PARTS)
    return True


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64[:, ::1])")
def follow_units(
    units: int,
    row: int,
    count: int,
    address: int,
    begin: int,
    end: int,
    size_bytes: int,
    most_bytes: int,
    table: Table,
) -> int:
    """Fill a row of ``table`` for each unit from ``row`` on, as they are in a queue's file.

    ``address`` is where in memory the log lies from ``begin`` up to ``end``, all in one file. The
    records before ``row`` have ``size_bytes``; behind ``most_bytes`` none is read. Returns the
    first row that is not read, whose state says why; else ``count``.
    """
    scratch = np.zeros(PARTS + _TEXT_WORDS, np.int64)
    parts = scratch.ctypes.data
    while row < count:
        unit = units + _UNIT_BYTES * row
        offset = load_i64(unit + _AT_UNIT_OFFSET)
        size = load_i32(unit + _AT_UNIT_SIZE)
        table[row, LOG_OFFSET], table[row, SIZE], table[row, START] = offset, size, size_bytes
        state = UNREADABLE
        if size_bytes > most_bytes:
            state = ENOUGH
        elif _is_no_message(unit, offset, size):
            state = NO_MESSAGE
        elif offset < begin or offset >= end:
            state = ELSEWHERE
        elif size <= end - offset:
            record = address + offset - begin
            if _read_record(record, size, offset, parts, table, row):
                state = WHOLE
                size_bytes += size
        table[row, STATE], table[row, END] = state, size_bytes
        if state >= ELSEWHERE:
            return row
        row += 1
    return count
