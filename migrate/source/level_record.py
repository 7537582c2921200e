# SPDX-License-Identifier: Apache-2.0
"""What a level record of the usual shape looks like, for kernels: where its parts lie, or
"unusual".

Every length is checked before it is used. Names are compared a word at a time, so the caller's
buffer has eight spare bytes at its end. Kernels pass addresses to each other, not arrays: numba
counts references to an array at every call, which took half of a record's time.
"""

from typing import Any

import numpy as np

from message_store.format import properties as names
from message_store.format.message import IPV4_IN_IPV6
from message_store.format.record_layout import (
    BODY_RUN,
    CRC_MASK,
    HEAD_V4_V4,
    HEAD_V6_V4,
    MAGIC_V1,
    PROPERTIES_RUN,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_IPV6,
    SYS_COMMIT,
    SYS_STORE_HOST_IPV6,
    SYS_TRANSACTION_MASK,
    TOPIC_RUN_V1,
)
from message_store.kernels.cache import inline_kernel
from message_store.kernels.crc import crc32
from message_store.kernels.message_rules import is_deliverable
from message_store.kernels.raw_memory import (
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_native,
    load_u8,
    load_word,
    load_word32,
    separator_bits,
    store_native,
    trailing_zeros,
)
from migrate.write.rewrite import QUEUE_ID_MAX, REAL_TOPIC_MAX_BYTES

_SIZE, _MAGIC, _CRC = (HEAD_V4_V4.offset_of(name) for name in ("size_bytes", "magic", "body_crc"))
_QUEUE_ID, _STORE_TIME = (HEAD_V4_V4.offset_of(name) for name in ("queue_id", "store_timestamp_ms"))
_LOG_OFFSET, _SYS_FLAG = (HEAD_V4_V4.offset_of(name) for name in ("commit_log_offset", "sys_flag"))
_BORN_IP, _STORE_IP = (HEAD_V4_V4.offset_of(name) for name in ("born_ip", "store_ip"))
_HEAD_BYTES = HEAD_V4_V4.size
_IPV6_EXTRA = HEAD_V6_V4.size - HEAD_V4_V4.size
_BODY_LENGTH = BODY_RUN.length.size
_TOPIC_LENGTH = TOPIC_RUN_V1.length.size
_PROPERTIES_LENGTH = PROPERTIES_RUN.length.size

_SYSTEM_TOPIC_BYTES = len(names.LEVEL_TOPIC)
_LAST_WORD_AT = _SYSTEM_TOPIC_BYTES - 8
_BLOCK_BYTES = 64
assert SMALLEST_RECORD_BYTES >= _BLOCK_BYTES, "a block ends in the properties and begins no earlier"


def word_of(name: str) -> np.uint64:
    """The first eight bytes of a name, as ``load_word`` loads them."""
    return np.uint64(int.from_bytes(name.encode()[:8].ljust(8, b"\0"), "little"))


def _words(topic: str) -> tuple[np.uint64, np.uint64, np.uint64]:
    """A system topic's name in three words, of which the last two overlap."""
    assert 16 <= len(topic) == _SYSTEM_TOPIC_BYTES < 24, "two words do not hold it, three do"
    return word_of(topic), word_of(topic[8:]), word_of(topic[_LAST_WORD_AT:])


_LEVEL_WORDS = _words(names.LEVEL_TOPIC)
TIMER_WORDS = _words(names.TIMER_TOPIC)
_TAGS, _DELAY = word_of(names.TAGS), word_of(names.DELAY)
_REAL_QUEUE_NAME, _REAL_TOPIC, _REAL_TOPIC_END = (
    word_of(names.REAL_QUEUE_ID),
    word_of(names.REAL_TOPIC),
    word_of(names.REAL_TOPIC[2:]),
)
_MAPPED_WORD = np.uint64(int.from_bytes(IPV4_IN_IPV6[:8], "little"))
_MAPPED_WORD_BEHIND = np.uint64(int.from_bytes(IPV4_IN_IPV6[8:], "little"))


def _name_words(name: str) -> tuple[np.uint64, np.uint64, np.uint64]:
    """The first, the second and the last eight bytes of a name of 8 to 24; they may overlap."""
    assert 8 <= len(name) <= 24, "three words hold it"
    return word_of(name), word_of(name[min(8, len(name) - 8) :]), word_of(name[-8:])


_CRC32, _TIMER_OUT, _ROLL_TIMES, _ROLL_LABEL, _DELETE_KEY, _INNER_DISPATCH, _INNER_OFFSET = map(
    _name_words,
    (
        names.CRC32,
        names.TIMER_OUT_MS,
        names.TIMER_ROLL_TIMES,
        names.TIMER_ROLL_LABEL,
        names.TIMER_DELETE_UNIQUE_KEY,
        names.INNER_MULTI_DISPATCH,
        names.INNER_MULTI_QUEUE_OFFSET,
    ),
)
_TIMER_OUT_BYTES, _ROLL_BYTES = len(names.TIMER_OUT_MS), len(names.TIMER_ROLL_TIMES)
assert len(names.TIMER_ROLL_LABEL) == _ROLL_BYTES
_DELETE_KEY_BYTES = len(names.TIMER_DELETE_UNIQUE_KEY)
_INNER_DISPATCH_BYTES = len(names.INNER_MULTI_DISPATCH)
_INNER_OFFSET_BYTES = len(names.INNER_MULTI_QUEUE_OFFSET)

# What a look at a record leaves: addresses of property values, then offsets within the record.
DELAY_START, DELAY_END, TOPIC_START, TOPIC_END, QID_START, QID_END, TAGS_START, TAGS_END = range(8)
HEAD_END, STORE_TIME_AT, TOPIC_AT, PROPERTIES_AT = range(8, 12)
REAL_QUEUE_ID = 12
CUT_COUNT, CUTS = 13, 14
"""How many pieces of the record go, and the first of them: addresses of its start and end. They are
in order; ``DELAY`` is one of them, without its separator, because something takes its place.
"""
_CUTS_MOST = 8
FOUND_SIZE = CUTS + 2 * _CUTS_MOST


@inline_kernel
def fact(facts: int, which: int) -> int:
    """One of the facts that a look at a record left at the address ``facts``."""
    return int(load_native(facts + 8 * which))


@inline_kernel
def _keep(facts: int, which: int, value: int) -> None:
    store_native(facts + 8 * which, value)


@inline_kernel
def _note(facts: int, which: int, start: int, end: int) -> bool:
    """Remember a property's value; False for an empty one and for a second one of one name."""
    if fact(facts, which) != 0 or start >= end:
        return False
    _keep(facts, which, start)
    _keep(facts, which + 1, end)
    return True


@inline_kernel
def _cut(facts: int, start: int, end: int) -> bool:
    """Remember a piece that goes; False where too many do."""
    count = fact(facts, CUT_COUNT)
    if count == _CUTS_MOST:
        return False
    _keep(facts, CUTS + 2 * count, start)
    _keep(facts, CUTS + 2 * count + 1, end)
    _keep(facts, CUT_COUNT, count + 1)
    return True


@inline_kernel
def _is_name(start: int, length: int, words: Any) -> bool:
    """Whether a name of so many bytes, 8 to 24, is the one of these words, which is as long."""
    return bool(
        load_word(start) == words[0]
        and load_word(start + min(8, length - 8)) == words[1]
        and load_word(start + length - 8) == words[2]
    )


@inline_kernel
def _must_go(start: int, length: int) -> bool:
    """Whether a converted record must not carry the property of this name of 8 bytes or more:
    ``rewrite.REMOVED_PROPERTIES``, but for DELAY.
    """
    if length == 8:
        return _is_name(start, length, _CRC32)
    if length == _TIMER_OUT_BYTES:
        return _is_name(start, length, _TIMER_OUT)
    if length == _ROLL_BYTES:
        return _is_name(start, length, _ROLL_TIMES) or _is_name(start, length, _ROLL_LABEL)
    if length == _DELETE_KEY_BYTES:
        return _is_name(start, length, _DELETE_KEY)
    if length == _INNER_DISPATCH_BYTES:
        return _is_name(start, length, _INNER_DISPATCH)
    return bool(length == _INNER_OFFSET_BYTES and _is_name(start, length, _INNER_OFFSET))


@inline_kernel
def _see_property(start: int, separator: int, end: int, closed: int, facts: int) -> bool:
    """Note a property that matters, or goes; False for one that is repeated. ``separator`` 0: none.
    ``closed`` is 1 where a separator follows, which goes with it.
    """
    if separator == 0:
        return True
    length = separator - start
    if length == 4:
        if load_word32(start) == _TAGS:
            return _note(facts, TAGS_START, separator + 1, end)
    elif length == 5:
        if load_word(start) & np.uint64(0xFFFFFFFFFF) == _DELAY:
            return _note(facts, DELAY_START, separator + 1, end) and _cut(facts, start, end)
    elif length == 10:
        if load_word(start) == _REAL_TOPIC and load_word(start + 2) == _REAL_TOPIC_END:
            return _note(facts, TOPIC_START, separator + 1, end)
    elif length >= 8:
        if length == 8 and load_word(start) == _REAL_QUEUE_NAME:
            return _note(facts, QID_START, separator + 1, end)
        if _must_go(start, length):  # the last one would take the separator before it along
            return closed == 1 and _cut(facts, start, end + 1)
    return True


@inline_kernel
def _walk_properties(start: int, end: int, facts: int) -> bool:
    """Find the properties that matter, and those that go; False for one that is repeated.

    Separators are searched 64 bytes at a time. The last block ends where the properties end: the
    record in front of them is longer than a block.
    """
    for which in range(HEAD_END):
        _keep(facts, which, 0)
    _keep(facts, CUT_COUNT, 0)
    name_start, separator = start, 0
    address = start
    while address < end:
        block = min(address, end - _BLOCK_BYTES)
        bits = separator_bits(block) >> np.uint64(address - block)
        while bits != 0:
            at = address + trailing_zeros(bits)
            bits &= bits - np.uint64(1)
            if load_u8(at) == 1:
                if separator == 0:
                    separator = at
                continue
            if not _see_property(name_start, separator, at, 1, facts):
                return False
            name_start, separator = at + 1, 0
        address = block + _BLOCK_BYTES
    if name_start < end and not _see_property(name_start, separator, end, 0, facts):
        return False
    return bool(
        fact(facts, DELAY_START) != 0
        and fact(facts, TOPIC_START) != 0
        and fact(facts, QID_START) != 0
    )


@inline_kernel
def _number(start: int, end: int, digits_max: int) -> int:
    """A plain decimal number as Java prints it, or -1."""
    length = end - start
    if length > digits_max or (length > 1 and load_u8(start) == 0x30):
        return -1
    value = 0
    for address in range(start, end):
        digit = load_u8(address) - 0x30
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@inline_kernel
def _is_system_topic(start: int, words: Any) -> bool:
    """Whether these bytes are this system topic; both have one length."""
    return bool(
        load_word(start) == words[0]
        and load_word(start + 8) == words[1]
        and load_word(start + _LAST_WORD_AT) == words[2]
    )


@inline_kernel
def is_plain_topic(start: int, length: int) -> bool:
    """Whether a topic's name needs no second look."""
    if length > REAL_TOPIC_MAX_BYTES or load_u8(start) == 0x2E:
        return False
    for address in range(start, start + length):
        byte = load_u8(address)
        if byte <= 0x20 or byte >= 0x7F or byte == 0x2F:
            return False
    return bool(is_deliverable(start, length, REAL_TOPIC_MAX_BYTES))


@inline_kernel
def _head_is_usual(record: int, size: int, level: int, source_offset: int) -> bool:
    """Whether the head belongs to the record of the queue entry."""
    if load_i32(record + _SIZE) != size or load_i32(record + _MAGIC) != MAGIC_V1:
        return False
    if load_i32(record + _QUEUE_ID) != level - 1 or load_i64(record + _LOG_OFFSET) != source_offset:
        return False
    transaction = load_i32(record + _SYS_FLAG) & SYS_TRANSACTION_MASK
    return bool(transaction == 0 or transaction == SYS_COMMIT)


@inline_kernel
def _has_usual_hosts(record: int, born_extra: int, store_extra: int) -> bool:
    """Whether no IPv6 address is an IPv4 one in disguise."""
    if born_extra and _is_mapped(record + _BORN_IP):
        return False
    return not (store_extra and _is_mapped(record + born_extra + _STORE_IP))


@inline_kernel
def _is_mapped(address: int) -> bool:
    return bool(
        load_word(address) == _MAPPED_WORD and load_word32(address + 8) == _MAPPED_WORD_BEHIND
    )


@inline_kernel
def _find_runs(record: int, size: int, facts: int) -> bool:
    """Find body, topic and properties, every length checked; False for no level record."""
    sys_flag = load_i32(record + _SYS_FLAG)
    born_extra = _IPV6_EXTRA if sys_flag & SYS_BORN_HOST_IPV6 else 0
    store_extra = _IPV6_EXTRA if sys_flag & SYS_STORE_HOST_IPV6 else 0
    head_bytes = _HEAD_BYTES + born_extra + store_extra
    room = size - (
        head_bytes + _BODY_LENGTH + _TOPIC_LENGTH + _SYSTEM_TOPIC_BYTES + _PROPERTIES_LENGTH
    )
    if room < 0 or not _has_usual_hosts(record, born_extra, store_extra):
        return False
    body_length = load_i32(record + head_bytes)
    if body_length <= 0 or body_length > room:  # without a body it goes nowhere
        return False
    body = record + head_bytes + _BODY_LENGTH
    topic = body + body_length + _TOPIC_LENGTH
    if load_i8(topic - _TOPIC_LENGTH) != _SYSTEM_TOPIC_BYTES:
        return False
    properties = topic + _SYSTEM_TOPIC_BYTES + _PROPERTIES_LENGTH
    if load_i16(properties - _PROPERTIES_LENGTH) != record + size - properties:
        return False
    _keep(facts, HEAD_END, head_bytes)
    _keep(facts, STORE_TIME_AT, _STORE_TIME + born_extra)
    _keep(facts, TOPIC_AT, topic - record)
    _keep(facts, PROPERTIES_AT, properties - record)
    if not _is_system_topic(topic, _LEVEL_WORDS):
        return False
    crc = crc32(body, body_length) & np.uint64(CRC_MASK)
    return bool(crc == np.uint64(load_i32(record + _CRC)))


@inline_kernel
def find_level_record(record: int, size: int, level: int, source_offset: int, facts: int) -> bool:
    """Fill ``facts`` for the record at an address; False when anything about it is unusual.

    ``size`` is at least that of the smallest record and within the buffer. The caller checks the
    limits of the target, and the real topic's name: once a topic, not once a record.
    """
    if not _head_is_usual(record, size, level, source_offset):
        return False
    if not _find_runs(record, size, facts):
        return False
    if not _walk_properties(record + fact(facts, PROPERTIES_AT), record + size, facts):
        return False
    if _number(fact(facts, DELAY_START), fact(facts, DELAY_END), 5) != level:
        return False
    _keep(facts, REAL_QUEUE_ID, _number(fact(facts, QID_START), fact(facts, QID_END), 5))
    return bool(0 <= fact(facts, REAL_QUEUE_ID) <= QUEUE_ID_MAX)
