# SPDX-License-Identifier: Apache-2.0
"""``message_rules`` for kernels: allowed topics, text, and properties that a user may set."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from message_store.format.message_rules import (
    RESERVED_PROPERTIES,
    TIME_PROPERTIES,
    TOPIC_MAX_BYTES,
    UNDELIVERABLE_TOPICS,
)
from message_store.format.properties import RETRY_PREFIX
from message_store.kernels.cache import inline_kernel
from message_store.kernels.raw_memory import load_u8
from message_store.kernels.text import NOT_UTF8, equal_bytes, java_hash_utf8

Int64s = NDArray[np.int64]


def _packed(texts: Iterable[str]) -> tuple[NDArray[np.uint8], Int64s, Int64s]:
    """Names one behind another, where each begins, and how long it is."""
    encoded = [text.encode() for text in sorted(texts)]
    lengths = np.array([len(name) for name in encoded], np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum(lengths) - lengths, lengths


_RESERVED, _RESERVED_STARTS, _RESERVED_LENGTHS = _packed(RESERVED_PROPERTIES)
_IS_TIME = np.array([name in TIME_PROPERTIES for name in sorted(RESERVED_PROPERTIES)], np.bool_)
_NO_TOPICS, _NO_TOPICS_STARTS, _NO_TOPICS_LENGTHS = _packed(UNDELIVERABLE_TOPICS)
_RETRY, _, _ = _packed([RETRY_PREFIX])


@inline_kernel
def _is_reserved(name: int, length: int, keeps_times: bool) -> bool:
    for each in range(len(_RESERVED_LENGTHS)):
        if length == _RESERVED_LENGTHS[each] and equal_bytes(
            name, _RESERVED.ctypes.data + _RESERVED_STARTS[each], length
        ):
            return not (keeps_times and _IS_TIME[each])
    return False


@inline_kernel
def is_deliverable(topic: int, length: int, retry_topic_max_bytes: int) -> bool:
    """Whether a topic of this name may have messages, as far as length and reserved names go."""
    is_retry = length >= len(_RETRY) and equal_bytes(topic, _RETRY.ctypes.data, len(_RETRY))
    if length > (retry_topic_max_bytes if is_retry else TOPIC_MAX_BYTES):
        return False
    if length > TOPIC_MAX_BYTES:
        for address in range(topic, topic + length):
            if load_u8(address) > 0x7F:
                return False
    for each in range(len(_NO_TOPICS_LENGTHS)):
        if length == _NO_TOPICS_LENGTHS[each] and equal_bytes(
            topic, _NO_TOPICS.ctypes.data + _NO_TOPICS_STARTS[each], length
        ):
            return False
    return True


@inline_kernel
def is_word(text: int, length: int, forbidden: int) -> bool:
    """Whether these bytes are UTF-8 without spaces, control characters and one byte more."""
    high_bits = 0
    for address in range(text, text + length):
        byte = load_u8(address)
        if byte <= 0x20 or byte == 0x7F or byte == forbidden:
            return False
        high_bits |= byte
    return high_bits < 0x80 or java_hash_utf8(text, length) != NOT_UTF8


@inline_kernel
def is_value(text: int, length: int) -> bool:
    """Whether these bytes are UTF-8 without the two separators."""
    high_bits = 0
    for address in range(text, text + length):
        byte = load_u8(address)
        if 1 <= byte <= 2:
            return False
        high_bits |= byte
    return high_bits < 0x80 or java_hash_utf8(text, length) != NOT_UTF8


@inline_kernel
def are_closed_entries(text: int, end: int, keeps_times: bool) -> bool:
    """Whether these are entries of name, 0x01, value and 0x02, none of them reserved; with
    ``keeps_times`` those by which a client asks for a time are not.
    """
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
        if _is_reserved(text, divider - text, keeps_times):
            return False
        if not is_value(text, divider - text) or not is_value(divider + 1, stop - divider - 1):
            return False
        text = stop + 1
    return True
