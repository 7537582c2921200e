# SPDX-License-Identifier: Apache-2.0
"""One record at an address → what must survive of it as two hashes, and what else is asked of it.

Both hashes cover everything that may not change: flags, born time, hosts, reconsume times, body and
properties. Properties count byte for byte and in order. Those that a conversion removes or adds are
left out; real topic and real queue id are hashed. Empty entries between two separators mean
nothing to any reader and are skipped.

Limitations: nothing here reads outside the ``size`` bytes that the caller vouches for, and every
length inside them is checked before it is used.
"""

import numpy as np

from message_store.format import properties as names
from message_store.format.record_layout import (
    BODY_RUN,
    CRC_MASK,
    HEAD_V4_V4,
    HEAD_V6_V4,
    MAGIC_V1,
    MAGIC_V2,
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
    address_of,
    folded_product,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_native,
    load_u8,
    load_word,
    separator_bits,
    store_native,
    store_word,
    trailing_zeros,
)
from migrate.verify.digests.complaints import Complaint

_A_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_B_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
_B_WORD_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_FINISH_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_FINISH_SECOND = np.uint64(0x94D049BB133111EB)


@inline_kernel
def step_a(state: np.uint64, word: np.uint64) -> np.uint64:
    """Take one word into the first hash."""
    state = (state ^ word) * _A_MULTIPLIER
    return state ^ state >> np.uint64(32)


@inline_kernel
def step_b(state: np.uint64, word: np.uint64) -> np.uint64:
    """Take one word into the second hash."""
    state = (state << np.uint64(27) | state >> np.uint64(37)) + word * _B_WORD_MULTIPLIER
    return (state ^ state >> np.uint64(29)) * _B_MULTIPLIER


@inline_kernel
def finish(state: np.uint64) -> np.uint64:
    """Spread every bit of a state over all bits of the result (splitmix64)."""
    state = (state ^ state >> np.uint64(30)) * _FINISH_FIRST
    state = (state ^ state >> np.uint64(27)) * _FINISH_SECOND
    return state ^ state >> np.uint64(31)


@inline_kernel
def _pair_a(state: np.uint64, even: np.uint64, odd: np.uint64) -> np.uint64:
    """Take two words into the first hash, by one product instead of two."""
    return state ^ folded_product(state ^ even, odd ^ _A_MULTIPLIER)  # type: ignore[no-any-return]


@inline_kernel
def _pair_b(state: np.uint64, even: np.uint64, odd: np.uint64) -> np.uint64:
    """Take two words into the second hash: the other one of them meets the state."""
    return state ^ folded_product(state ^ odd, even ^ _B_MULTIPLIER)  # type: ignore[no-any-return]


@inline_kernel
def _last_pair(address: int, left: int, length: int) -> tuple[np.uint64, np.uint64]:
    """The ``left`` bytes, 1 to 15, at the end of a text, as two words. They may overlap what was
    taken before: the length is hashed.
    """
    if length < 8:
        word = np.uint64(0)
        for index in range(length):
            word |= np.uint64(load_u8(address + index)) << np.uint64(8 * index)
        return word, np.uint64(0)
    last = load_word(address + length - 8)
    return (load_word(address + length - left), last) if left > 8 else (last, np.uint64(0))


@inline_kernel
def take_bytes(
    a: np.uint64, b: np.uint64, address: int, length: int
) -> tuple[np.uint64, np.uint64]:
    """Take the length and that many bytes into both hashes."""
    a = step_a(a, np.uint64(length))
    b = step_b(b, np.uint64(length))
    done = np.int64(0)
    while length - done >= 16:
        even, odd = load_word(address + done), load_word(address + done + 8)
        a, b = _pair_a(a, even, odd), _pair_b(b, even, odd)
        done += 16
    if done < length:
        even, odd = _last_pair(address, length & 15, length)
        a, b = _pair_a(a, even, odd), _pair_b(b, even, odd)
    return a, b


@inline_kernel
def take_bytes_once(state: np.uint64, address: int, length: int) -> np.uint64:
    """Take the length and that many bytes into the first hash alone."""
    state = step_a(state, np.uint64(length))
    done = np.int64(0)
    while length - done >= 16:
        state = _pair_a(state, load_word(address + done), load_word(address + done + 8))
        done += 16
    if done < length:
        even, odd = _last_pair(address, length & 15, length)
        state = _pair_a(state, even, odd)
    return state


# --- what the kernel leaves behind: places at two addresses ---------------------------------------

HASH_A, HASH_B, IDENTITY, CONTENT, TOPIC_KEY = range(5)
"""Places at ``hashes``: the two hashes; who the message is (real topic, unique key, born time);
what it carries (real topic, body); the real topic alone.
"""
HASH_COUNT = 5

(
    TOPIC_AT,
    TOPIC_BYTES,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    TAGS_AT,
    TAGS_BYTES,
    UNIQUE_KEY_AT,
    UNIQUE_KEY_BYTES,
    REAL_QUEUE_ID,
    DELAY,
    OUT_MS,
    OUT_COUNT,
    FORBIDDEN_COUNT,
    RECORD_CRC_AT,
    RECORD_CRC_BYTES,
    HEAD_GROWTH,
) = range(16)
"""Places at ``facts``. Addresses are 0 and numbers -1 where there is none."""
FACT_COUNT = 16

# Kernels hand each other the addresses of the two arrays, which their caller keeps alive. Counting
# references to an array at each call took longer than the hashing.


@inline_kernel
def fact(facts: int, which: int) -> int:
    """One of the facts that are kept at an address."""
    return load_native(facts + 8 * which)  # type: ignore[no-any-return]


@inline_kernel
def _keep(facts: int, which: int, value: int) -> None:
    store_native(facts + 8 * which, value)


@inline_kernel
def hash_at(hashes: int, which: int) -> np.uint64:
    """One of the hashes that are kept at an address."""
    return load_word(hashes + 8 * which)  # type: ignore[no-any-return]


# --- the names that matter ------------------------------------------------------------------------

_NO_NAME = 0
_IS_KEPT = 20
"""A kind below this is taken out before hashing."""
_IS_DELAY, _IS_OUT, _IS_FORBIDDEN, _IS_RECORD_CRC = 1, 2, 3, 4
_IS_REAL_TOPIC, _IS_REAL_QUEUE_ID, _IS_TAGS, _IS_UNIQUE_KEY = 20, 21, 22, 23

_KINDS = {
    names.DELAY: _IS_DELAY,
    names.TIMER_OUT_MS: _IS_OUT,
    names.TIMER_ROLL_TIMES: _IS_FORBIDDEN,
    names.TIMER_ROLL_LABEL: _IS_FORBIDDEN,
    names.TIMER_DELETE_UNIQUE_KEY: _IS_FORBIDDEN,
    names.INNER_MULTI_DISPATCH: _IS_FORBIDDEN,
    names.INNER_MULTI_QUEUE_OFFSET: _IS_FORBIDDEN,
    names.CRC32: _IS_RECORD_CRC,
    names.REAL_TOPIC: _IS_REAL_TOPIC,
    names.REAL_QUEUE_ID: _IS_REAL_QUEUE_ID,
    names.TAGS: _IS_TAGS,
    names.UNIQUE_KEY: _IS_UNIQUE_KEY,
}
REMOVED_PROPERTIES = tuple(name for name, kind in _KINDS.items() if kind < _IS_KEPT)
"""What a conversion takes away, adds or computes anew; all else must survive."""

_LONGEST_NAME = 31


def _name_table() -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """A row a name, ordered by length: length, kind, then the bytes."""
    rows = np.zeros((len(_KINDS), 2 + _LONGEST_NAME), np.uint8)
    for row, (name, kind) in zip(
        rows, sorted(_KINDS.items(), key=lambda item: len(item[0])), strict=True
    ):
        row[:2] = len(name), kind
        row[2 : 2 + len(name)] = np.frombuffer(name.encode(), np.uint8)
    return rows


_NAMES = _name_table()
_FIRST_OF_LENGTH = np.searchsorted(_NAMES[:, 0], np.arange(_LONGEST_NAME + 2))


@inline_kernel
def _kind_of(address: int, length: int) -> int:
    if length > _LONGEST_NAME:
        return _NO_NAME
    for row in range(_FIRST_OF_LENGTH[length], _FIRST_OF_LENGTH[length + 1]):
        index = 0
        while index < length and load_u8(address + index) == _NAMES[row, 2 + index]:
            index += 1
        if index == length:
            return int(_NAMES[row, 1])
    return _NO_NAME


@inline_kernel
def _number(address: int, length: int) -> int:
    """Decimal digits as a number, at most 18 of them; -1 for anything else."""
    if length < 1 or length > 18:
        return -1
    value = 0
    for index in range(length):
        digit = load_u8(address + index) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@inline_kernel
def _note(kind: int, value_at: int, value_bytes: int, facts: int) -> None:
    """Keep what a named property says; the last of equal names wins, as for a broker."""
    if kind == _IS_REAL_TOPIC:
        _keep(facts, REAL_TOPIC_AT, value_at)
        _keep(facts, REAL_TOPIC_BYTES, value_bytes)
    elif kind == _IS_REAL_QUEUE_ID:
        _keep(facts, REAL_QUEUE_ID, _number(value_at, value_bytes))
    elif kind == _IS_TAGS:
        _keep(facts, TAGS_AT, value_at)
        _keep(facts, TAGS_BYTES, value_bytes)
    elif kind == _IS_UNIQUE_KEY:
        _keep(facts, UNIQUE_KEY_AT, value_at)
        _keep(facts, UNIQUE_KEY_BYTES, value_bytes)
    elif kind == _IS_DELAY:
        _keep(facts, DELAY, _number(value_at, value_bytes))
        _keep(facts, FORBIDDEN_COUNT, fact(facts, FORBIDDEN_COUNT) + 1)
    elif kind == _IS_OUT:
        _keep(facts, OUT_MS, _number(value_at, value_bytes))
        _keep(facts, OUT_COUNT, fact(facts, OUT_COUNT) + 1)
    elif kind == _IS_FORBIDDEN:
        _keep(facts, FORBIDDEN_COUNT, fact(facts, FORBIDDEN_COUNT) + 1)
    elif kind == _IS_RECORD_CRC:
        _keep(facts, RECORD_CRC_AT, value_at)
        _keep(facts, RECORD_CRC_BYTES, value_bytes)


_ENTRY_MARK = names.PROPERTY_SEPARATOR[0]
_BLOCK_BYTES = 64
assert SMALLEST_RECORD_BYTES >= _BLOCK_BYTES, "a block that ends in a record begins in it"


@inline_kernel
def _take_entry(
    a: np.uint64, b: np.uint64, start: int, mark: int, end: int, facts: int
) -> tuple[np.uint64, np.uint64]:
    """One property into both hashes, if it is kept, and what it says into ``facts``. ``mark`` is
    where its name ends, 0 for none.
    """
    kind = _NO_NAME
    if mark > start:
        kind = _kind_of(start, mark - start)
        if kind != _NO_NAME and mark + 1 < end:
            _note(kind, mark + 1, end - mark - 1, facts)
    if end > start and (kind == _NO_NAME or kind >= _IS_KEPT):
        a, b = take_bytes(a, b, start, end - start)
    return a, b


@inline_kernel
def _take_properties(
    a: np.uint64, b: np.uint64, address: int, length: int, facts: int
) -> tuple[np.uint64, np.uint64]:
    """The properties text of a record into both hashes, and what it says into ``facts``.

    Separators are searched 64 bytes at a time. The last block ends where the text ends: the record
    in front of it is longer than a block.
    """
    end = address + length
    start, mark = address, 0
    while address < end:
        block = min(address, end - _BLOCK_BYTES)
        bits = separator_bits(block) >> np.uint64(address - block)
        while bits != 0:
            place = address + trailing_zeros(bits)
            bits &= bits - np.uint64(1)
            if load_u8(place) == _ENTRY_MARK:
                a, b = _take_entry(a, b, start, mark, place, facts)
                start, mark = place + 1, 0
            elif mark == 0:
                mark = place
        address = block + _BLOCK_BYTES
    a, b = _take_entry(a, b, start, mark, end, facts)
    closed = np.uint64(length > 0 and load_u8(end - 1) == _ENTRY_MARK)
    return step_a(a, closed), step_b(b, closed)


# --- the record -----------------------------------------------------------------------------------

_SIZE_FIELD = HEAD_V4_V4.offset_of("size_bytes")
_MAGIC_FIELD = HEAD_V4_V4.offset_of("magic")
_CRC_FIELD = HEAD_V4_V4.offset_of("body_crc")
_FLAG_FIELD = HEAD_V4_V4.offset_of("flag")
_SYS_FLAG_FIELD = HEAD_V4_V4.offset_of("sys_flag")
_BORN_TIME_FIELD = HEAD_V4_V4.offset_of("born_timestamp_ms")
_BORN_HOST_FIELD = HEAD_V4_V4.offset_of("born_ip")
_HOST_BYTES = HEAD_V4_V4.offset_of("store_timestamp_ms") - _BORN_HOST_FIELD
_STORE_HOST_FIELD = HEAD_V4_V4.offset_of("store_ip")
_RECONSUME_FIELD = HEAD_V4_V4.offset_of("reconsume_times")
_HEAD_BYTES = HEAD_V4_V4.size
_IPV6_GROWTH = HEAD_V6_V4.size - HEAD_V4_V4.size
_BODY_LENGTH_BYTES = BODY_RUN.length.size
_TOPIC_LENGTH_BYTES_V1 = TOPIC_RUN_V1.length.size
_TOPIC_LENGTH_BYTES_V2 = TOPIC_RUN_V2.length.size
_PROPERTIES_LENGTH_BYTES = PROPERTIES_RUN.length.size


@inline_kernel
def _clear(facts: int) -> None:
    for index in range(FACT_COUNT):
        _keep(facts, index, 0)
    _keep(facts, REAL_QUEUE_ID, -1)
    _keep(facts, DELAY, -1)
    _keep(facts, OUT_MS, -1)


@inline_kernel
def _take_head(
    a: np.uint64, b: np.uint64, record: int, born_growth: int, store_growth: int
) -> tuple[np.uint64, np.uint64]:
    flags = np.uint64(load_i32(record + _FLAG_FIELD)) << np.uint64(32) | np.uint64(
        load_i32(record + _SYS_FLAG_FIELD)
    ) & np.uint64(0xFFFFFFFF)
    born_ms = np.uint64(load_i64(record + _BORN_TIME_FIELD))
    growth = born_growth + store_growth
    reconsumed = np.uint64(load_i32(record + _RECONSUME_FIELD + growth))
    a, b = step_a(a, flags), step_b(b, flags)
    a, b = step_a(a, born_ms), step_b(b, born_ms)
    a, b = step_a(a, reconsumed), step_b(b, reconsumed)
    a, b = take_bytes(a, b, record + _BORN_HOST_FIELD, _HOST_BYTES + born_growth)
    return take_bytes(a, b, record + _STORE_HOST_FIELD + born_growth, _HOST_BYTES + store_growth)


@inline_kernel
def read_record(record: int, size: int, seed: np.uint64, hashes: int, facts: int) -> int:
    """Check the record of ``size`` bytes at ``record``, and fill what ``hashes`` and ``facts`` are
    the addresses of.

    Returns a complaint. Up to ``LAST_UNREADABLE`` neither means anything. The two hashes
    still lack the time that it is due: the caller adds it and finishes them.
    """
    if size < SMALLEST_RECORD_BYTES or load_i32(record + _SIZE_FIELD) != size:
        return Complaint.SIZE
    magic = load_i32(record + _MAGIC_FIELD)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Complaint.NO_RECORD
    sys_flag = load_i32(record + _SYS_FLAG_FIELD)
    born_growth = _IPV6_GROWTH if sys_flag & SYS_BORN_HOST_IPV6 else 0
    store_growth = _IPV6_GROWTH if sys_flag & SYS_STORE_HOST_IPV6 else 0
    offset = _HEAD_BYTES + born_growth + store_growth
    topic_length_bytes = _TOPIC_LENGTH_BYTES_V1 if magic == MAGIC_V1 else _TOPIC_LENGTH_BYTES_V2
    left = size - offset - _BODY_LENGTH_BYTES - topic_length_bytes - _PROPERTIES_LENGTH_BYTES
    if left < 0:
        return Complaint.LENGTHS
    body_bytes = load_i32(record + offset)
    if body_bytes < 0 or body_bytes > left:
        return Complaint.LENGTHS
    left -= body_bytes
    body = record + offset + _BODY_LENGTH_BYTES
    topic = body + body_bytes + topic_length_bytes
    topic_length = topic - topic_length_bytes
    topic_bytes = load_i8(topic_length) if magic == MAGIC_V1 else load_i16(topic_length)
    if topic_bytes < 0 or topic_bytes > left:
        return Complaint.LENGTHS
    left -= topic_bytes
    properties = topic + topic_bytes + _PROPERTIES_LENGTH_BYTES
    if load_i16(properties - _PROPERTIES_LENGTH_BYTES) != left:
        return Complaint.LENGTHS
    _clear(facts)
    _keep(facts, TOPIC_AT, topic)
    _keep(facts, TOPIC_BYTES, topic_bytes)
    _keep(facts, HEAD_GROWTH, born_growth + store_growth)
    a, b = take_bytes(seed, ~seed, body, body_bytes)
    body_state = a
    a, b = _take_head(a, b, record, born_growth, store_growth)
    a, b = _take_properties(a, b, properties, left, facts)
    store_word(hashes + 8 * HASH_A, a)
    store_word(hashes + 8 * HASH_B, b)
    topic_state = take_bytes_once(seed, fact(facts, REAL_TOPIC_AT), fact(facts, REAL_TOPIC_BYTES))
    store_word(hashes + 8 * TOPIC_KEY, finish(topic_state))
    store_word(hashes + 8 * CONTENT, finish(step_a(body_state, topic_state)))
    key_at, key_bytes = fact(facts, UNIQUE_KEY_AT), fact(facts, UNIQUE_KEY_BYTES)
    identity = take_bytes_once(topic_state, key_at, key_bytes)
    born_ms = np.uint64(load_i64(record + _BORN_TIME_FIELD))
    store_word(hashes + 8 * IDENTITY, finish(step_a(identity, born_ms)))
    crc = np.int64(crc32(body, body_bytes)) & CRC_MASK
    if body_bytes > 0 and crc != load_i32(record + _CRC_FIELD):
        return Complaint.BODY_CRC
    return Complaint.NONE


@kernel("uint64(int64, int64, uint64)")
def _topic_key(address: int, length: int, seed: np.uint64) -> np.uint64:
    return finish(take_bytes_once(seed, address, length))


def topic_key(topic: str, seed: int) -> int:
    """What ``TOPIC_KEY`` is for records of this real topic."""
    data = np.frombuffer(topic.encode(), np.uint8)
    return int(_topic_key(address_of(data), len(data), np.uint64(seed)))
