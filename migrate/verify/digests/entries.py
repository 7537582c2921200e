# SPDX-License-Identifier: Apache-2.0
"""What verification expects of each record, as rows of numbers, and how a digest is counted.

An entry says where a record should be and what it should say about itself. Kernels compare the two
and leave a row of digests (hash a, hash b, identity, content) and a complaint for each. Digests are
added up by the bucket of their identity. Sides with equal buckets hold the same messages, and
differences are searched bucket by bucket.
"""

from typing import Any

import numpy as np

from message_store.format.layout import Field, Layout
from message_store.format.record_layout import HEAD_V4_V4, SYS_COMMIT, SYS_TRANSACTION_MASK
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.raw_memory import load_i32, load_i64, store_word
from message_store.kernels.text import is_text
from migrate.verify.digests.complaints import LAST_UNREADABLE, Complaint
from migrate.verify.digests.record_kernel import (
    CONTENT,
    HASH_A,
    HASH_B,
    IDENTITY,
    REAL_QUEUE_ID,
    REAL_TOPIC_BYTES,
    TOPIC_AT,
    TOPIC_BYTES,
    fact,
    finish,
    hash_at,
    step_a,
    step_b,
)

SOURCE_ENTRY = Layout(
    "pending message, for verification",
    (
        Field("commit_log_offset", "i64", "where its record begins"),
        Field("size_bytes", "i32", "its whole length"),
        Field("queue_id", "i32", "level - 1"),
        Field("queue_offset", "i64", "its place in the level's queue"),
        Field("out_ms", "i64", "the slot time that its due time asks for"),
    ),
)
TARGET_ENTRY = Layout(
    "message reached from the wheel, for verification",
    (
        Field("commit_log_offset", "i64", "where its record begins"),
        Field("size_bytes", "i32", "its whole length"),
        Field("flags", "i32", "the flags of its timer log unit"),
        Field("queue_offset", "i64", "its place in the timer queue; -1 when it has none"),
        Field("slot_time_ms", "i64", "the time of the slot that leads to it"),
        Field("tags_code", "i64", "what the queue says"),
        Field("topic_hash", "i32", "what the timer log says"),
    ),
)

DIGEST_COLUMNS = 4
DIGEST_A, DIGEST_B, DIGEST_IDENTITY, DIGEST_CONTENT = range(DIGEST_COLUMNS)

BUCKETS = 4096
BUCKET_COLUMNS = 3
BUCKET_COUNT, BUCKET_SUM_A, BUCKET_SUM_B = range(BUCKET_COLUMNS)

_BUCKET_SHIFT = 64 - 12
_QUEUE_ID_FIELD = HEAD_V4_V4.offset_of("queue_id")
QUEUE_OFFSET_FIELD = HEAD_V4_V4.offset_of("queue_offset")
"""Where a record says its queue offset, whatever its hosts."""

_LOG_OFFSET_FIELD = HEAD_V4_V4.offset_of("commit_log_offset")
_SYS_FLAG_FIELD = HEAD_V4_V4.offset_of("sys_flag")
_INT_MAX = 2**31 - 1


@inline_kernel
def is_held(log_offset: int, size: int, buffer_offset: int, available: int) -> bool:
    """Whether the buffer holds these bytes; written so that no number can overflow."""
    offset = log_offset - buffer_offset
    return 0 <= offset <= available and size <= available - offset


@inline_kernel
def is_readable(complaint: int) -> bool:
    """Whether a record with this complaint has fields to compare."""
    return complaint == Complaint.NONE or complaint > LAST_UNREADABLE


@inline_kernel
def bookkeeping(record: int, topic: Any, queue_id: int, log_offset: int, facts: int) -> int:
    """What both sides ask: the record agrees with its place, and can be delivered."""
    if not is_text(fact(facts, TOPIC_AT), fact(facts, TOPIC_BYTES), topic):
        return Complaint.TOPIC
    if load_i32(record + _QUEUE_ID_FIELD) != queue_id:
        return Complaint.QUEUE_ID
    if load_i64(record + _LOG_OFFSET_FIELD) != log_offset:
        return Complaint.COMMIT_LOG_OFFSET
    if fact(facts, REAL_TOPIC_BYTES) == 0:
        return Complaint.REAL_TOPIC
    if fact(facts, REAL_QUEUE_ID) < 0 or fact(facts, REAL_QUEUE_ID) > _INT_MAX:
        return Complaint.REAL_QUEUE_ID
    transaction = load_i32(record + _SYS_FLAG_FIELD) & SYS_TRANSACTION_MASK
    if transaction not in (0, SYS_COMMIT):
        return Complaint.HALF_MESSAGE
    return Complaint.NONE


@inline_kernel
def keep_digest(digest: int, hashes: int, out_ms: int, complaint: int) -> None:
    """Finish the digest of a record; a complaint makes it another one, so that it cannot match."""
    out, wrong = np.uint64(out_ms), np.uint64(complaint)
    a, b = hash_at(hashes, HASH_A), hash_at(hashes, HASH_B)
    store_word(digest + 8 * DIGEST_A, finish(step_a(step_a(a, out), wrong)))
    store_word(digest + 8 * DIGEST_B, finish(step_b(step_b(b, out), wrong)))
    store_word(digest + 8 * DIGEST_IDENTITY, hash_at(hashes, IDENTITY))
    store_word(digest + 8 * DIGEST_CONTENT, hash_at(hashes, CONTENT))


@kernel("void(uint64[:, ::1], uint8[::1], int64, uint64[:, ::1])")
def add_to_buckets(digests: Any, complaints: Any, count: int, buckets: Any) -> None:
    """Add the first ``count`` records, where readable, to the bucket of their identity."""
    for row in range(count):
        if is_readable(complaints[row]):
            bucket = digests[row, DIGEST_IDENTITY] >> np.uint64(_BUCKET_SHIFT)
            buckets[bucket, BUCKET_COUNT] += np.uint64(1)
            buckets[bucket, BUCKET_SUM_A] += digests[row, DIGEST_A]
            buckets[bucket, BUCKET_SUM_B] += digests[row, DIGEST_B]


def bucket_of(identity: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, Any]:
    """The bucket of each identity, as :func:`add_to_buckets` finds it."""
    return (identity >> np.uint64(_BUCKET_SHIFT)).astype(np.int64)
