# SPDX-License-Identifier: Apache-2.0
"""The kernels of records that wait: look at every row before any is stored, then write them.

The first only ever says yes or no; ``intake.records`` says what is wrong with a row. Both are
held equal to it by property tests. Property texts are written straight into the record: joined
ahead, they cost half as much again as all the rest.
"""

import numpy as np
from numpy.typing import NDArray

from message_store.columns.unique_keys import UNIQUE_KEY_CHARS
from message_store.format import properties as names
from message_store.format.message_rules import QUEUE_ID_MAX
from message_store.format.record_layout import BODY_RUN, CRC_MASK, PROPERTIES_RUN
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.crc import crc32
from message_store.kernels.log import (
    AT_BODY_CRC,
    AT_FLAG,
    AT_LOG_OFFSET,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_SIZE,
)
from message_store.kernels.message_rules import (
    are_closed_entries,
    is_deliverable,
    is_value,
    is_word,
)
from message_store.kernels.properties import decimal_bytes, write_number
from message_store.kernels.raw_memory import (
    copy_bytes,
    copy_short,
    load_native,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)
from message_store.kernels.text import equal_bytes, hash_bytes, java_hash_utf8

Int64s = NDArray[np.int64]

BYTE_COLUMNS = ("body", "topic", "tags", "keys", "unique_key", "user_properties")
"""The columns of bytes in a kernel's table, three addresses each: block, starts, lengths."""
NUMBER_COLUMNS = ("queue_id", "flag")
"""The columns of numbers behind them, an address each; the last one is that of the due column:
delay levels, or out times for a wheel.
"""
_BODY, _TOPIC, _TAGS, _KEYS, UNIQUE_KEY, _USER = range(0, 3 * len(BYTE_COLUMNS), 3)
_QUEUE_ID, _FLAG, _DUE = range(3 * len(BYTE_COLUMNS), 3 * len(BYTE_COLUMNS) + 3)

IS_TIMED, CLOSES, RETRY_TOPIC_MAX, BODY_MAX, PROPERTIES_MAX, TIMED_RECORD_MAX = range(6)
HEAD, HEAD_BYTES, TOPIC_RUN, TOPIC_RUN_BYTES, KEEPS_TIMES = range(6, 11)
FACTS = 11
"""The facts that all rows share: whether they are for a wheel, whether the last property is closed,
limits in bytes, and addresses and lengths of a head that lacks only a row's own numbers and of the
system topic's run; whether a user's properties may be those that ask for a time.
"""

_BODY_LENGTH_BYTES = BODY_RUN.length.size
_PROPERTIES_LENGTH_BYTES = PROPERTIES_RUN.length.size
_CLOSER = 2


def _label(name: str) -> NDArray[np.uint8]:
    return np.frombuffer(f"{name}\x01".encode(), np.uint8)


_REAL_TOPIC_IS, _UNIQUE_KEY_IS, _DELAY_IS = map(
    _label, (names.REAL_TOPIC, names.UNIQUE_KEY, names.DELAY)
)
_KEYS_ARE, _TAGS_ARE, _QUEUE_ID_IS, _OUT_MS_IS = map(
    _label, (names.KEYS, names.TAGS, names.REAL_QUEUE_ID, names.TIMER_OUT_MS)
)
_ALWAYS_BYTES = len(_REAL_TOPIC_IS) + len(_UNIQUE_KEY_IS) + len(_QUEUE_ID_IS) + 3


@inline_kernel
def _length(table: Int64s, column: int, row: int) -> int:
    return load_native(table[column + 2] + 8 * row)  # type: ignore[no-any-return]


@inline_kernel
def _text(table: Int64s, column: int, row: int) -> int:
    return table[column] + load_native(table[column + 1] + 8 * row)  # type: ignore[no-any-return]


@inline_kernel
def _number(table: Int64s, column: int, row: int) -> int:
    return load_native(table[column] + 8 * row)  # type: ignore[no-any-return]


@inline_kernel
def _is_storable(table: Int64s, facts: Int64s, row: int) -> bool:
    """Whether the texts and numbers of a row are such as can be stored and delivered."""
    topic, length = _text(table, _TOPIC, row), _length(table, _TOPIC, row)
    if length == 0 or not is_deliverable(topic, length, facts[RETRY_TOPIC_MAX]):
        return False
    if not is_word(topic, length, 0x2F):
        return False
    if not is_word(_text(table, UNIQUE_KEY, row), _length(table, UNIQUE_KEY, row), 0):
        return False
    if not is_value(_text(table, _KEYS, row), _length(table, _KEYS, row)):
        return False
    if not is_value(_text(table, _TAGS, row), _length(table, _TAGS, row)):
        return False
    flag = _number(table, _FLAG, row)
    if not -(2**31) <= flag < 2**31 or not 0 <= _number(table, _QUEUE_ID, row) <= QUEUE_ID_MAX:
        return False
    user = _text(table, _USER, row)
    keeps_times = facts[KEEPS_TIMES] != 0
    return are_closed_entries(user, user + _length(table, _USER, row), keeps_times)


@inline_kernel
def _properties_bytes(table: Int64s, facts: Int64s, row: int) -> int:
    due = decimal_bytes(_number(table, _DUE, row)) + 1
    due += len(_OUT_MS_IS) if facts[IS_TIMED] else len(_DELAY_IS)
    length = _ALWAYS_BYTES + due + decimal_bytes(_number(table, _QUEUE_ID, row))
    key = _length(table, UNIQUE_KEY, row)
    length += _length(table, _TOPIC, row) + _length(table, _USER, row)
    length += key if key > 0 else UNIQUE_KEY_CHARS
    keys, tags = _length(table, _KEYS, row), _length(table, _TAGS, row)
    length += keys + len(_KEYS_ARE) + 1 if keys > 0 else 0
    length += tags + len(_TAGS_ARE) + 1 if tags > 0 else 0
    return length if facts[CLOSES] else length - 1


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1])")
def measure_rows(table: Int64s, facts: Int64s, sizes: Int64s, tags_codes: Int64s) -> int:
    """The size of each record and the hash of its tag; returns the first row that cannot be stored
    or delivered, -1 where there is none.

    An empty unique key is fine: the row will get one.
    """
    around = facts[HEAD_BYTES] + facts[TOPIC_RUN_BYTES] + _PROPERTIES_LENGTH_BYTES
    for row in range(len(sizes)):
        if not _is_storable(table, facts, row):
            return row
        body, text = _length(table, _BODY, row), _properties_bytes(table, facts, row)
        if body > facts[BODY_MAX] or text > facts[PROPERTIES_MAX]:
            return row
        sizes[row] = around + body + text
        if facts[IS_TIMED] and sizes[row] > facts[TIMED_RECORD_MAX]:
            return row
        tags_codes[row] = java_hash_utf8(_text(table, _TAGS, row), _length(table, _TAGS, row))
    return -1


@inline_kernel
def _put_text(address: int, name: NDArray[np.uint8], text: int, length: int) -> int:
    """A property of text, closed; returns the address behind it."""
    copy_short(address, name.ctypes.data, len(name))
    address += len(name)
    copy_short(address, text, length)
    store_u8(address + length, _CLOSER)
    return address + length + 1


@inline_kernel
def _put_number(address: int, name: NDArray[np.uint8], value: int) -> int:
    """A property that is a number, not closed; returns the address behind it."""
    copy_short(address, name.ctypes.data, len(name))
    return write_number(address + len(name), value)


@inline_kernel
def _put_properties(table: Int64s, facts: Int64s, row: int, address: int) -> None:
    """The properties of a record that waits, in their order."""
    text, length = _text(table, _TOPIC, row), _length(table, _TOPIC, row)
    address = _put_text(address, _REAL_TOPIC_IS, text, length)
    text, length = _text(table, UNIQUE_KEY, row), _length(table, UNIQUE_KEY, row)
    address = _put_text(address, _UNIQUE_KEY_IS, text, length)
    if not facts[IS_TIMED]:
        address = _put_number(address, _DELAY_IS, _number(table, _DUE, row))
        store_u8(address, _CLOSER)
        address += 1
    length = _length(table, _KEYS, row)
    if length > 0:
        address = _put_text(address, _KEYS_ARE, _text(table, _KEYS, row), length)
    length = _length(table, _TAGS, row)
    if length > 0:
        address = _put_text(address, _TAGS_ARE, _text(table, _TAGS, row), length)
    length = _length(table, _USER, row)
    copy_bytes(address, _text(table, _USER, row), length)
    address = _put_number(address + length, _QUEUE_ID_IS, _number(table, _QUEUE_ID, row))
    if facts[IS_TIMED]:
        store_u8(address, _CLOSER)
        address = _put_number(address + 1, _OUT_MS_IS, _number(table, _DUE, row))
    if facts[CLOSES]:
        store_u8(address, _CLOSER)


@kernel(
    "void(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1],"
    " int64[::1], int64[::1], int64)"
)
def fill_rows(
    table: Int64s, facts: Int64s, first: int, stop: int, positions: Int64s, sizes: Int64s,
    queue_ids: Int64s, queue_offsets: Int64s, target: int,
) -> None:  # fmt: skip
    """Write the records of these rows, the first of them to ``target``, the others as far from it
    as their positions are. ``sizes`` are those of ``measure_rows``.
    """
    for row in range(first, stop):
        record = target + positions[row] - positions[first]
        body, length = _text(table, _BODY, row), _length(table, _BODY, row)
        copy_bytes(record, facts[HEAD], facts[HEAD_BYTES])
        store_i32(record + AT_SIZE, sizes[row])
        store_i32(record + AT_BODY_CRC, int(crc32(body, length)) & CRC_MASK)
        store_i32(record + AT_QUEUE_ID, queue_ids[row])
        store_i32(record + AT_FLAG, _number(table, _FLAG, row))
        store_i64(record + AT_QUEUE_OFFSET, queue_offsets[row])
        store_i64(record + AT_LOG_OFFSET, positions[row])
        address = record + facts[HEAD_BYTES]
        store_i32(address - _BODY_LENGTH_BYTES, length)
        copy_bytes(address, body, length)
        address += length
        copy_short(address, facts[TOPIC_RUN], facts[TOPIC_RUN_BYTES])
        address += facts[TOPIC_RUN_BYTES] + _PROPERTIES_LENGTH_BYTES
        length = record + sizes[row] - address
        store_i16(address - _PROPERTIES_LENGTH_BYTES, length)
        _put_properties(table, facts, row, address)


@kernel("int64(int64, int64, int64, int64, int64[::1], int64[::1], int64[::1], int64[::1])")
def topics_of_rows(
    data: int, starts: int, lengths: int, queue_ids: int,
    firsts: Int64s, highest: Int64s, counts: Int64s, table: Int64s,
) -> int:  # fmt: skip
    """For each topic of a column, at three addresses, the first row that has it, its highest queue
    id and how many rows it has. Returns how many topics there are. The ids are at an address too:
    an array of the user's may be read-only.

    ``table`` is for hashing: -1 everywhere, at least twice as long as the rows, its length a power
    of two.
    """
    topics, number, text, length = 0, -1, 0, -1
    for row in range(len(firsts)):
        before, many = text, length
        text, length = data + load_native(starts + 8 * row), load_native(lengths + 8 * row)
        if many != length or not (text == before or equal_bytes(text, before, length)):
            place = np.int64(hash_bytes(text, length, np.uint64(0)) & np.uint64(len(table) - 1))
            while True:
                number = table[place]
                if number < 0:
                    number = table[place] = topics
                    firsts[topics], highest[topics], counts[topics] = row, 0, 0
                    topics += 1
                    break
                first = firsts[number]
                if load_native(lengths + 8 * first) == length and equal_bytes(
                    data + load_native(starts + 8 * first), text, length
                ):
                    break
                place = (place + 1) & (len(table) - 1)
        highest[number] = max(highest[number], load_native(queue_ids + 8 * row))
        counts[number] += 1
    return topics
