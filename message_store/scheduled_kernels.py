# SPDX-License-Identifier: Apache-2.0
"""The kernel that looks at every row of a batch before any is stored: can it wait, can it be
delivered.

It only ever says yes or no; ``scheduled_records`` says what is wrong with a row. The two are held
together by property tests.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from message_store.kernel_cache import inline_kernel, kernel
from message_store.message_rules import (
    RESERVED_PROPERTIES,
    TOPIC_MAX_BYTES,
    UNDELIVERABLE_TOPICS,
)
from message_store.properties import RETRY_PREFIX
from message_store.raw_memory import load_native, load_u8
from message_store.text_kernels import NOT_UTF8, equal_bytes, java_hash_utf8

Int64s = NDArray[np.int64]

TEXT_COLUMNS = ("topic", "tags", "keys", "unique_key", "user_properties")
"""The columns that are looked at, three addresses each: block, starts, lengths."""
_TOPIC, _TAGS, _KEYS, _UNIQUE_KEY, _USER = range(0, 3 * len(TEXT_COLUMNS), 3)


def _packed(texts: Iterable[str]) -> tuple[NDArray[np.uint8], Int64s, Int64s]:
    """Names one behind another, where each begins, and how long it is."""
    names = [text.encode() for text in sorted(texts)]
    lengths = np.array([len(name) for name in names], np.int64)
    return np.frombuffer(b"".join(names), np.uint8), np.cumsum(lengths) - lengths, lengths


_RESERVED, _RESERVED_STARTS, _RESERVED_LENGTHS = _packed(RESERVED_PROPERTIES)
_NO_TOPICS, _NO_TOPICS_STARTS, _NO_TOPICS_LENGTHS = _packed(UNDELIVERABLE_TOPICS)
_RETRY, _, _ = _packed([RETRY_PREFIX])


@inline_kernel
def _is_reserved(name: int, length: int) -> bool:
    for each in range(len(_RESERVED_LENGTHS)):
        if length == _RESERVED_LENGTHS[each] and equal_bytes(
            name, _RESERVED.ctypes.data + _RESERVED_STARTS[each], length
        ):
            return True
    return False


@inline_kernel
def _is_deliverable(topic: int, length: int, retry_topic_max_bytes: int) -> bool:
    is_retry = length >= len(_RETRY) and equal_bytes(topic, _RETRY.ctypes.data, len(_RETRY))
    if length > (retry_topic_max_bytes if is_retry else TOPIC_MAX_BYTES):
        return False
    for each in range(len(_NO_TOPICS_LENGTHS)):
        if length == _NO_TOPICS_LENGTHS[each] and equal_bytes(
            topic, _NO_TOPICS.ctypes.data + _NO_TOPICS_STARTS[each], length
        ):
            return False
    return True


@inline_kernel
def _is_word(text: int, length: int, forbidden: int) -> bool:
    """Whether these bytes are UTF-8 without spaces, control characters and one byte more."""
    high_bits = 0
    for place in range(text, text + length):
        byte = load_u8(place)
        if byte <= 0x20 or byte == 0x7F or byte == forbidden:
            return False
        high_bits |= byte
    return high_bits < 0x80 or java_hash_utf8(text, length) != NOT_UTF8


@inline_kernel
def _is_value(text: int, length: int) -> bool:
    """Whether these bytes are UTF-8 without the two separators."""
    high_bits = 0
    for place in range(text, text + length):
        byte = load_u8(place)
        if 1 <= byte <= 2:
            return False
        high_bits |= byte
    return high_bits < 0x80 or java_hash_utf8(text, length) != NOT_UTF8


@inline_kernel
def _are_closed_entries(text: int, end: int) -> bool:
    """Whether these are entries of name, 0x01, value and 0x02, none of them reserved."""
    while text < end:
        divider = text
        while divider < end and not 1 <= load_u8(divider) <= 2:
            divider += 1
        stop = divider + 1
        while stop < end and not 1 <= load_u8(stop) <= 2:
            stop += 1
        if stop >= end or load_u8(divider) != 1 or load_u8(stop) != 2:
            return False
        if divider == text or stop == divider + 1:
            return False
        if _is_reserved(text, divider - text):
            return False
        if not _is_value(text, divider - text) or not _is_value(divider + 1, stop - divider - 1):
            return False
        text = stop + 1
    return True


@inline_kernel
def _length(table: Int64s, column: int, row: int) -> int:
    return load_native(table[column + 2] + 8 * row)  # type: ignore[no-any-return]


@inline_kernel
def _text(table: Int64s, column: int, row: int) -> int:
    return table[column] + load_native(table[column + 1] + 8 * row)  # type: ignore[no-any-return]


@kernel("int64(int64[::1], int64, int64[::1])")
def check_rows(table: Int64s, retry_topic_max_bytes: int, tags_codes: Int64s) -> int:
    """The first row whose texts cannot be stored or delivered, -1 where there is none.

    An empty unique key is fine: the row gets a new one. Fills ``tags_codes`` up to that row.
    """
    for row in range(len(tags_codes)):
        topic, length = _text(table, _TOPIC, row), _length(table, _TOPIC, row)
        if length == 0 or not _is_deliverable(topic, length, retry_topic_max_bytes):
            return row
        if not _is_word(topic, length, 0x2F):
            return row
        if not _is_word(_text(table, _UNIQUE_KEY, row), _length(table, _UNIQUE_KEY, row), 0):
            return row
        if not _is_value(_text(table, _KEYS, row), _length(table, _KEYS, row)):
            return row
        tags, length = _text(table, _TAGS, row), _length(table, _TAGS, row)
        if not _is_value(tags, length):
            return row
        tags_codes[row] = java_hash_utf8(tags, length)
        user = _text(table, _USER, row)
        if not _are_closed_entries(user, user + _length(table, _USER, row)):
            return row
    return -1
