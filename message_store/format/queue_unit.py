# SPDX-License-Identifier: Apache-2.0
"""One unit of a consume queue, of its extension, and of a queue in RocksDB (docs/FORMAT.md)."""

from message_store.format.java_numbers import INT_MAX
from message_store.format.layout import Field, Layout

QUEUE_UNIT = Layout(
    "consume queue entry",
    (
        Field("commit_log_offset", "i64", "where the message begins in the commit log"),
        Field("size_bytes", "i32", "its whole length"),
        Field("tags_code", "i64", "hash of the tag; in a delay level: when it is due, epoch ms"),
    ),
)
PRE_BLANK_SIZE = INT_MAX
PRE_BLANK = QUEUE_UNIT.encode(commit_log_offset=0, size_bytes=PRE_BLANK_SIZE, tags_code=0)
"""The unit that fills a queue before its first message, if its queue offset is above 0."""

EXT_UNIT = Layout(
    "consume queue extension unit",
    (
        Field("size_bytes", "i16", "length of the unit with its bitmap; -1 ends a file"),
        Field("tags_code", "i64", "what the queue entry itself would hold"),
        Field("store_timestamp_ms", "i64", "when the broker stored the message"),
        Field("bitmap_bytes", "i16", "length of the bitmap that follows"),
    ),
)
MAX_EXT_ADDRESS = -(2**31) - 1
"""A tags code at or below this is an address: the unit's offset, counted from Long.MIN_VALUE."""

MAX_NEUTRAL_BYTES = 2
"""An entry of so few bytes, at the end of its record, is one that was delivered or cancelled."""

QUEUE_ROW = Layout(
    "consume queue row in RocksDB",
    (*QUEUE_UNIT.fields, Field("store_timestamp_ms", "i64", "when the broker stored the message")),
)
QUEUE_ROW_KEY_HEAD = Layout(
    "consume queue key in RocksDB, before the topic",
    (
        Field("topic_bytes", "i32", "length of the topic in UTF-8"),
        Field("separator", "i8", "1; the topic follows"),
    ),
)
QUEUE_ROW_KEY_TAIL = Layout(
    "consume queue key in RocksDB, behind the topic",
    (
        Field("separator", "i8", "1"),
        Field("queue_id", "i32", "the queue"),
        Field("separator_2", "i8", "1"),
        Field("queue_offset", "i64", "the ordinal in the queue"),
    ),
)
QUEUE_END = Layout(
    "consume queue end in RocksDB",
    (
        Field("commit_log_offset", "i64", "where the queue's last (or first) message begins"),
        Field("queue_offset", "i64", "its ordinal: a queue ends one behind its last one"),
    ),
)
