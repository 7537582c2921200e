# SPDX-License-Identifier: Apache-2.0
"""Digests of pending messages as they wait in the source's delay levels."""

from typing import Any

import numpy as np

from message_store.format import properties as names
from message_store.kernels.cache import kernel
from message_store.kernels.raw_memory import load_i32, load_i64
from migrate.verify.complaints import Complaint
from migrate.verify.entries import (
    QUEUE_OFFSET_PLACE,
    SOURCE_ENTRY,
    bookkeeping,
    is_held,
    is_readable,
    keep_digest,
)
from migrate.verify.record_kernel import DELAY, TOPIC_KEY, read_record

_ENTRY_BYTES = SOURCE_ENTRY.size
_SIZE = SOURCE_ENTRY.offset_of("size_bytes")
_QUEUE_ID = SOURCE_ENTRY.offset_of("queue_id")
_QUEUE_OFFSET = SOURCE_ENTRY.offset_of("queue_offset")
_OUT = SOURCE_ENTRY.offset_of("out_ms")
_TOPIC = np.frombuffer(names.LEVEL_TOPIC.encode(), np.uint8).copy()

_NONE = int(Complaint.NONE)
_WRONG_QUEUE_OFFSET = int(Complaint.QUEUE_OFFSET)
_LEFT_OUT = int(Complaint.LEFT_OUT)
_DELAY = int(Complaint.DELAY)


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
    for number in range(first, last):
        entry = entries + number * _ENTRY_BYTES
        log_offset = load_i64(entry)
        size = load_i32(entry + _SIZE)
        if not is_held(log_offset, size, buffer_offset, available):
            return number
        record = buffer + (log_offset - buffer_offset)
        complaint = read_record(record, size, seed, hashes, facts)
        if is_readable(complaint):
            queue_id = load_i32(entry + _QUEUE_ID)
            if complaint == _NONE:
                complaint = bookkeeping(record, _TOPIC, queue_id, log_offset, facts)
            if complaint == _NONE and facts[DELAY] != queue_id + 1:
                complaint = _DELAY
            said = load_i64(record + QUEUE_OFFSET_PLACE)
            if complaint == _NONE and said != load_i64(entry + _QUEUE_OFFSET):
                complaint = _WRONG_QUEUE_OFFSET
            if len(topics) and hashes[TOPIC_KEY] not in topics:
                complaint = _LEFT_OUT
            keep_digest(digests, number - first, hashes, load_i64(entry + _OUT), _NONE)
        complaints[number - first] = complaint
    return last
