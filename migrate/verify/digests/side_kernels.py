# SPDX-License-Identifier: Apache-2.0
"""Kernels that digest the records of a source's levels, and those of a target's wheel."""

from typing import Any

import numpy as np

from message_store.format import properties as names
from message_store.format.record_layout import (
    CRC_MASK,
    HEAD_V4_V4,
    HEAD_V6_V4,
    MAGIC_V1,
    SYS_BORN_HOST_IPV6,
)
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.crc import crc32
from message_store.kernels.raw_memory import (
    load_i32,
    load_i64,
    load_u8,
    load_word,
    store_native,
    store_word,
)
from message_store.kernels.text import NOT_UTF8, java_hash_utf8
from migrate.verify.digests.complaints import Complaint
from migrate.verify.digests.entries import (
    DIGEST_COLUMNS,
    QUEUE_OFFSET_FIELD,
    SOURCE_ENTRY,
    TARGET_ENTRY,
    bookkeeping,
    is_held,
    is_readable,
    keep_digest,
)
from migrate.verify.digests.record_kernel import (
    DELAY,
    FORBIDDEN_COUNT,
    HEAD_GROWTH,
    OUT_COUNT,
    OUT_MS,
    REAL_QUEUE_ID,
    REAL_TOPIC_AT,
    REAL_TOPIC_BYTES,
    RECORD_CRC_AT,
    RECORD_CRC_BYTES,
    TAGS_AT,
    TAGS_BYTES,
    TOPIC_KEY,
    fact,
    hash_at,
    read_record,
)
from timer_wheel.format.timer_log import FLAG_DEFAULT, FLAG_ROLL

OVERDUE_SLOTS = 3600
"""Overdue messages lie at most this many slots before now."""

NOW_MS, WRITE_TIME_MS, PRECISION_MS, WINDOW_SLOTS = range(4)
"""Places in ``rules``."""

TOPIC_COLUMNS = 3
TOPIC_COUNT, TOPIC_MAX_QUEUE_ID, TOPIC_EXAMPLE = range(TOPIC_COLUMNS)
"""Columns of ``topic_rows``: messages, highest real queue id, the log offset of one of them."""

OVERDUE_COLUMNS = 2
OVERDUE_EARLIEST, OVERDUE_LATEST = range(OVERDUE_COLUMNS)
"""Columns of ``overdue``, a row for each slot before now, the youngest first."""

_TOPIC_ROW_BYTES, _DIGEST_BYTES = 8 * TOPIC_COLUMNS, 8 * DIGEST_COLUMNS
_SOURCE_ENTRY_BYTES = SOURCE_ENTRY.size
_SOURCE_SIZE = SOURCE_ENTRY.offset_of("size_bytes")
_SOURCE_QUEUE_ID = SOURCE_ENTRY.offset_of("queue_id")
_SOURCE_QUEUE_OFFSET = SOURCE_ENTRY.offset_of("queue_offset")
_SOURCE_OUT = SOURCE_ENTRY.offset_of("out_ms")
_SOURCE_TOPIC = np.frombuffer(names.LEVEL_TOPIC.encode(), np.uint8).copy()

_TARGET_ENTRY_BYTES = TARGET_ENTRY.size
_TARGET_SIZE = TARGET_ENTRY.offset_of("size_bytes")
_TARGET_UNIT_FLAGS = TARGET_ENTRY.offset_of("flags")
_TARGET_QUEUE_OFFSET = TARGET_ENTRY.offset_of("queue_offset")
_TARGET_SLOT_TIME = TARGET_ENTRY.offset_of("slot_time_ms")
_TARGET_TAGS_HASH = TARGET_ENTRY.offset_of("tags_code")
_TARGET_UNIT_TOPIC_HASH = TARGET_ENTRY.offset_of("topic_hash")
_TARGET_TOPIC = np.frombuffer(names.TIMER_TOPIC.encode(), np.uint8).copy()

_MAGIC_FIELD = HEAD_V4_V4.offset_of("magic")
_SYS_FLAG_FIELD = HEAD_V4_V4.offset_of("sys_flag")
_STORE_TIME_FIELD = HEAD_V4_V4.offset_of("store_timestamp_ms")
_STORE_TIME_GROWTH = HEAD_V6_V4.offset_of("store_timestamp_ms") - _STORE_TIME_FIELD
_PREPARED_FIELD = HEAD_V4_V4.offset_of("prepared_transaction_offset")
_RECORD_CRC_NAME_BYTES = len(names.CRC32)
_RECORD_CRC_DIGITS = 10


@inline_kernel
def _placing(out_ms: int, slot_ms: int, flags: int, rules: int) -> int:
    """Whether the slot and the flags are right for a message that is out at ``out_ms``."""
    write_ms, precision_ms = fact(rules, WRITE_TIME_MS), fact(rules, PRECISION_MS)
    window = fact(rules, WINDOW_SLOTS)
    rolls = out_ms - write_ms >= window * precision_ms
    if flags != (FLAG_DEFAULT | FLAG_ROLL if rolls else FLAG_DEFAULT):
        return Complaint.FLAGS
    ahead_ms = slot_ms - write_ms
    if rolls:
        fits = window // 2 * precision_ms <= ahead_ms <= window * precision_ms
    elif out_ms < write_ms:
        fits = slot_ms == out_ms or -OVERDUE_SLOTS * precision_ms <= ahead_ms < 0
    else:
        fits = slot_ms == out_ms
    return Complaint.NONE if fits else Complaint.SLOT


@inline_kernel
def _is_record_crc(record: int, size: int, facts: int) -> bool:
    """Whether the last property is the checksum of all before it, least significant digit first."""
    digits, count = fact(facts, RECORD_CRC_AT), fact(facts, RECORD_CRC_BYTES)
    property_bytes = _RECORD_CRC_NAME_BYTES + count + 2
    if count != _RECORD_CRC_DIGITS or digits + count + 1 != record + size:
        return False
    value = np.int64(crc32(record, size - property_bytes)) & CRC_MASK
    for index in range(count):
        if load_u8(digits + index) != 48 + value % 10:
            return False
        value //= 10
    return True


@inline_kernel
def _target_complaint(entry: int, record: int, size: int, rules: int, facts: int) -> int:
    complaint = bookkeeping(record, _TARGET_TOPIC, 0, load_i64(entry), facts)
    if complaint != Complaint.NONE:
        return complaint
    if load_i64(record + QUEUE_OFFSET_FIELD) != load_i64(entry + _TARGET_QUEUE_OFFSET):
        return Complaint.QUEUE_OFFSET
    if load_i32(record + _MAGIC_FIELD) != MAGIC_V1:
        return Complaint.MAGIC
    growth = fact(facts, HEAD_GROWTH)
    is_ipv6 = load_i32(record + _SYS_FLAG_FIELD) & SYS_BORN_HOST_IPV6
    born_growth = _STORE_TIME_GROWTH if is_ipv6 else 0
    if load_i64(record + _STORE_TIME_FIELD + born_growth) != fact(rules, NOW_MS):
        return Complaint.STORE_TIME
    if load_i64(record + _PREPARED_FIELD + growth) != 0:
        return Complaint.PREPARED_OFFSET
    if fact(facts, OUT_COUNT) != 1 or fact(facts, OUT_MS) < 0:
        return Complaint.OUT_TIME
    if fact(facts, FORBIDDEN_COUNT) != 0:
        return Complaint.FORBIDDEN_PROPERTY
    if fact(facts, RECORD_CRC_AT) != 0 and not _is_record_crc(record, size, facts):
        return Complaint.RECORD_CRC
    tags_hash = java_hash_utf8(fact(facts, TAGS_AT), fact(facts, TAGS_BYTES))
    if tags_hash not in (NOT_UTF8, load_i64(entry + _TARGET_TAGS_HASH)):
        return Complaint.TAGS_CODE
    topic_hash = java_hash_utf8(fact(facts, REAL_TOPIC_AT), fact(facts, REAL_TOPIC_BYTES))
    if topic_hash not in (NOT_UTF8, load_i32(entry + _TARGET_UNIT_TOPIC_HASH)):
        return Complaint.TOPIC_HASH
    slot_ms = load_i64(entry + _TARGET_SLOT_TIME)
    return _placing(fact(facts, OUT_MS), slot_ms, load_i32(entry + _TARGET_UNIT_FLAGS), rules)


@inline_kernel
def _count_topic(
    key: np.uint64, queue_id: int, example: int, keys: int, rows: int, mask: int
) -> int:
    """Count a message of a topic in the open table; returns 1 when the topic is new."""
    index = int(key) & mask
    row = rows + _TOPIC_ROW_BYTES * index
    while fact(row, TOPIC_COUNT) != 0 and load_word(keys + 8 * index) != key:
        index = index + 1 & mask
        row = rows + _TOPIC_ROW_BYTES * index
    count = fact(row, TOPIC_COUNT)
    store_native(row + 8 * TOPIC_COUNT, count + 1)
    if count == 0:
        store_word(keys + 8 * index, key)
        store_native(row + 8 * TOPIC_EXAMPLE, example)
    if count == 0 or fact(row, TOPIC_MAX_QUEUE_ID) < queue_id:
        store_native(row + 8 * TOPIC_MAX_QUEUE_ID, queue_id)
    return 1 if count == 0 else 0


@inline_kernel
def _note_overdue(out_ms: int, slot_ms: int, rules: int, overdue: int) -> None:
    """Keep the earliest and the latest out time of each slot before now."""
    number = (fact(rules, WRITE_TIME_MS) - slot_ms) // fact(rules, PRECISION_MS) - 1
    if 0 <= number < OVERDUE_SLOTS:
        row = overdue + 8 * OVERDUE_COLUMNS * number
        store_native(row + 8 * OVERDUE_EARLIEST, min(fact(row, OVERDUE_EARLIEST), out_ms))
        store_native(row + 8 * OVERDUE_LATEST, max(fact(row, OVERDUE_LATEST), out_ms))


@kernel(
    "int64(int64, int64, int64, int64, int64, int64, uint64, int64[::1],"
    " uint64[::1], int64[::1], uint64[:, ::1], uint8[::1],"
    " uint64[::1], int64[:, ::1], int64[:, ::1])"
)
def digest_target(
    entries: int,
    first: int,
    last: int,
    buffer: int,
    buffer_offset: int,
    available: int,
    seed: np.uint64,
    rules: Any,
    hashes: Any,
    facts: Any,
    digests: Any,
    complaints: Any,
    topic_keys: Any,
    topic_rows: Any,
    overdue: Any,
) -> int:
    """As :func:`digest_source` for TARGET_ENTRY, counting topics and overdue slots on the way.

    Stops also when the table of topics is half full: the caller empties it and goes on.
    """
    hashes_at, facts_at, rules_at = hashes.ctypes.data, facts.ctypes.data, rules.ctypes.data
    keys_at, rows_at = topic_keys.ctypes.data, topic_rows.ctypes.data
    digests_at, overdue_at = digests.ctypes.data, overdue.ctypes.data
    topic_mask = len(topic_keys) - 1
    topics = np.int64(0)
    for index in range(len(topic_keys)):
        topics += topic_rows[index, TOPIC_COUNT] != 0
    for number in range(first, last):
        entry = entries + number * _TARGET_ENTRY_BYTES
        log_offset = load_i64(entry)
        size = load_i32(entry + _TARGET_SIZE)
        held = is_held(log_offset, size, buffer_offset, available)
        if not held or 2 * topics >= len(topic_keys):
            return number
        record = buffer + (log_offset - buffer_offset)
        complaint = read_record(record, size, seed, hashes_at, facts_at)
        if is_readable(complaint):
            if complaint == Complaint.NONE:
                complaint = _target_complaint(entry, record, size, rules_at, facts_at)
            out_ms, queue_id = fact(facts_at, OUT_MS), fact(facts_at, REAL_QUEUE_ID)
            digest = digests_at + _DIGEST_BYTES * (number - first)
            keep_digest(digest, hashes_at, out_ms, complaint)
            key = hash_at(hashes_at, TOPIC_KEY)
            topics += _count_topic(key, queue_id, log_offset, keys_at, rows_at, topic_mask)
            _note_overdue(out_ms, load_i64(entry + _TARGET_SLOT_TIME), rules_at, overdue_at)
        complaints[number - first] = complaint
    return last


@kernel(
    "int64(int64, int64, int64, int64, int64, int64, uint64, uint64[::1],"
    " uint64[::1], int64[::1], uint64[:, ::1], uint8[::1])"
)
def digest_source(
    entries: int,
    first: int,
    last: int,
    buffer: int,
    buffer_offset: int,
    available: int,
    seed: np.uint64,
    topics: Any,
    hashes: Any,
    facts: Any,
    digests: Any,
    complaints: Any,
) -> int:
    """Entries ``first`` to ``last`` (SOURCE_ENTRY at address ``entries``) → rows from 0 on.

    ``buffer`` holds ``available`` bytes of the log from ``buffer_offset`` on. With ``topics`` (keys
    as ``topic_key`` makes them), messages of other real topics are left out. Returns the number of
    the first entry that was not looked at.
    """
    hashes_at, facts_at, digests_at = hashes.ctypes.data, facts.ctypes.data, digests.ctypes.data
    for number in range(first, last):
        entry = entries + number * _SOURCE_ENTRY_BYTES
        log_offset = load_i64(entry)
        size = load_i32(entry + _SOURCE_SIZE)
        if not is_held(log_offset, size, buffer_offset, available):
            return number
        record = buffer + (log_offset - buffer_offset)
        complaint = read_record(record, size, seed, hashes_at, facts_at)
        if is_readable(complaint):
            queue_id = load_i32(entry + _SOURCE_QUEUE_ID)
            if complaint == Complaint.NONE:
                complaint = bookkeeping(record, _SOURCE_TOPIC, queue_id, log_offset, facts_at)
            if complaint == Complaint.NONE and fact(facts_at, DELAY) != queue_id + 1:
                complaint = Complaint.DELAY
            stated_offset = load_i64(record + QUEUE_OFFSET_FIELD)
            if complaint == Complaint.NONE and stated_offset != load_i64(
                entry + _SOURCE_QUEUE_OFFSET
            ):
                complaint = Complaint.QUEUE_OFFSET
            if len(topics) and hash_at(hashes_at, TOPIC_KEY) not in topics:
                complaint = Complaint.LEFT_OUT
            digest = digests_at + _DIGEST_BYTES * (number - first)
            keep_digest(digest, hashes_at, load_i64(entry + _SOURCE_OUT), Complaint.NONE)
        complaints[number - first] = complaint
    return last
