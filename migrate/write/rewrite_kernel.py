# SPDX-License-Identifier: Apache-2.0
"""Rewrites many level records as timer records: the fast path for records of the usual shape.

Any other record is marked and left to ``rewrite.rewrite_record``: odd addresses or numbers, a
property that must go, an unusual topic, damage. So each reason for a refusal is written once, in
plain Python, and the kernel answers "usual" only when all of its checks hold.

Measured, it is fast for three reasons. It copies all in front of ``DELAY`` at once and patches the
copy. It walks the properties once. It has no branch for the end of a log file.
"""

from typing import Any

import numpy as np

from message_store.format import properties as names
from message_store.format.record_layout import (
    HEAD_V4_V4,
    PROPERTIES_MAX_BYTES,
    PROPERTIES_RUN,
    SMALLEST_RECORD_BYTES,
)
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.raw_memory import (
    copy_bytes,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
    store_word,
)
from message_store.kernels.text import NOT_UTF8, java_hash_utf8
from migrate.source.level_record import (
    DELAY_END,
    DELAY_START,
    FOUND_SIZE,
    HEAD_END,
    PROPERTIES_AT,
    REAL_QUEUE_ID,
    STORE_TIME_AT,
    TAGS_END,
    TAGS_START,
    TIMER_WORDS,
    TOPIC_AT,
    TOPIC_END,
    TOPIC_START,
    fact,
    find_level_record,
    word_of,
)
from migrate.source.topic_table import NOT_PLAIN, TABLE_FULL, add_plain_topic, count_record
from migrate.write.rewrite import DELIVERY_GROWTH_BYTES

USUAL = 1
UNUSUAL = 0
OUT_MS_DIGITS = 13
_LOW_DIGIT_COUNT = OUT_MS_DIGITS // 2
_LOW_DIGITS = 10**_LOW_DIGIT_COUNT

_SIZE, _QUEUE_ID = HEAD_V4_V4.offset_of("size_bytes"), HEAD_V4_V4.offset_of("queue_id")
_QUEUE_OFFSET, _LOG_OFFSET = (
    HEAD_V4_V4.offset_of(name) for name in ("queue_offset", "commit_log_offset")
)
_PREPARED_FROM_END = HEAD_V4_V4.size - HEAD_V4_V4.offset_of("prepared_transaction_offset")
_PROPERTIES_LENGTH = PROPERTIES_RUN.length.size
_TIMER_TOPIC_BYTES = len(names.TIMER_TOPIC)
assert len(names.LEVEL_TOPIC) == _TIMER_TOPIC_BYTES, "the two topics trade places in a record"
_TIMER_OUT = f"{names.TIMER_OUT_MS}\x01"
_TIMER_OUT_BYTES = len(_TIMER_OUT)
_TIMER_OUT_WORDS = word_of(_TIMER_OUT), word_of(_TIMER_OUT[-8:])
assert 8 <= _TIMER_OUT_BYTES <= 16, "two words hold the name and its separator"
_TIMER_PROPERTY_BYTES = _TIMER_OUT_BYTES + OUT_MS_DIGITS
_DELAY_NAME_BYTES = len(names.DELAY) + 1


@inline_kernel
def _new_size(size: int, facts: int) -> int:
    """The size of the new record; 0 when its properties would outgrow their limit at delivery."""
    growth = _TIMER_PROPERTY_BYTES - (
        fact(facts, DELAY_END) - fact(facts, DELAY_START) + _DELAY_NAME_BYTES
    )
    properties_length = size - fact(facts, PROPERTIES_AT)
    if properties_length + growth + DELIVERY_GROWTH_BYTES > PROPERTIES_MAX_BYTES:
        return 0
    return int(size + growth)


@inline_kernel
def _copy_rewritten(
    out: int, record: int, size: int, new_size: int, out_ms: int, facts: int
) -> None:
    """The new record except for numbers that depend on its offset."""
    ahead = fact(facts, DELAY_START) - _DELAY_NAME_BYTES - record
    copy_bytes(out, record, ahead)
    topic = out + fact(facts, TOPIC_AT)
    store_word(topic, TIMER_WORDS[0])
    store_word(topic + 8, TIMER_WORDS[1])
    store_word(topic + _TIMER_TOPIC_BYTES - 8, TIMER_WORDS[2])
    store_word(out + ahead, _TIMER_OUT_WORDS[0])
    store_word(out + ahead + _TIMER_OUT_BYTES - 8, _TIMER_OUT_WORDS[1])
    last = out + ahead + _TIMER_PROPERTY_BYTES - 1
    high, low = out_ms // _LOW_DIGITS, out_ms % _LOW_DIGITS  # two short chains of divisions
    for digit in range(_LOW_DIGIT_COUNT):
        store_u8(last - digit, 0x30 + low % 10)
        store_u8(last - _LOW_DIGIT_COUNT - digit, 0x30 + high % 10)
        low //= 10
        high //= 10
    store_u8(last - 2 * _LOW_DIGIT_COUNT, 0x30 + high)
    behind = fact(facts, DELAY_END)
    copy_bytes(out + ahead + _TIMER_PROPERTY_BYTES, behind, record + size - behind)
    properties = fact(facts, PROPERTIES_AT)
    store_i16(out + properties - _PROPERTIES_LENGTH, new_size - properties)
    store_i32(out + _SIZE, new_size)


@kernel(
    "int64(int64, int64, int64[::1], int32[::1], int16[::1], int64[::1], int64[::1],"
    " int64, int64, int64[::1], int64[::1], int64, int64, int64,"
    " int64, uint8[::1], int32[::1], int32[::1], int64)"
)
def rewrite_records(
    buffer: int, buffer_bytes: int, begins: Any, sizes: Any, levels: Any, source_offsets: Any,
    outs_ms: Any, out: int, out_origin: int, target_offsets: Any, target_sizes: Any,
    first_queue_offset: int, now_ms: int, record_max_bytes: int,
    topics: int, status: Any, tags_hashes: Any, topic_hashes: Any, start: int,
) -> int:  # fmt: skip
    """Rewrite the records from number ``start`` on, from a source buffer into an output buffer.

    ``begins`` are offsets in the source buffer, -1 where the record could not be read.
    ``out`` is the address of the log byte ``out_origin``; the caller made room for every
    ``target_offsets[i] + target_sizes[i]``; ``topics`` is that of a topic table. Fills ``status``
    (USUAL or UNUSUAL) and, for usual ones, both hashes. Returns how many records it came through:
    fewer than all when the topic table was full.
    """
    facts = np.zeros(FOUND_SIZE, np.int64)
    facts_address = facts.ctypes.data
    for i in range(start, len(begins)):
        status[i] = UNUSUAL
        size = int(sizes[i])
        if begins[i] < 0 or size < SMALLEST_RECORD_BYTES or size > buffer_bytes - begins[i]:
            continue
        record = buffer + int(begins[i])
        if not find_level_record(record, size, int(levels[i]), source_offsets[i], facts_address):
            continue
        new_size = _new_size(size, facts_address)
        if new_size == 0 or new_size != target_sizes[i] or new_size > record_max_bytes:
            continue
        tags_hash = java_hash_utf8(facts[TAGS_START], facts[TAGS_END] - facts[TAGS_START])
        if tags_hash == NOT_UTF8:
            continue
        topic, topic_bytes = facts[TOPIC_START], facts[TOPIC_END] - facts[TOPIC_START]
        number = add_plain_topic(topics, topic, topic_bytes)
        if number == TABLE_FULL:
            return i
        if number == NOT_PLAIN:
            continue
        new = out + (target_offsets[i] - out_origin)
        _copy_rewritten(new, record, size, new_size, outs_ms[i], facts_address)
        store_i32(new + _QUEUE_ID, 0)
        store_i64(new + _QUEUE_OFFSET, first_queue_offset + i)
        store_i64(new + _LOG_OFFSET, target_offsets[i])
        store_i64(new + facts[STORE_TIME_AT], now_ms)
        store_i64(new + facts[HEAD_END] - _PREPARED_FROM_END, 0)
        tags_hashes[i] = tags_hash
        topic_hashes[i] = count_record(topics, number, facts[REAL_QUEUE_ID])
        status[i] = USUAL
    return len(begins)
