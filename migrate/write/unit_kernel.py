# SPDX-License-Identifier: Apache-2.0
"""The queue entries and timer log units of a part, in one pass over its records."""

from typing import Any

from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.cache import kernel
from message_store.kernels.raw_memory import store_i32, store_i64
from timer_wheel.format.timer_log import NO_POSITION, TIMER_UNIT

_QUEUE_BYTES, _TIMER_BYTES = QUEUE_UNIT.size, TIMER_UNIT.size
_QUEUE_LOG_OFFSET, _QUEUE_SIZE, _QUEUE_TAGS = (
    QUEUE_UNIT.offset_of(name) for name in ("commit_log_offset", "size_bytes", "tags_code")
)
_AT_SIZE, _AT_PREVIOUS, _AT_MAGIC, _AT_WRITE_TIME = (
    TIMER_UNIT.offset_of(name)
    for name in ("size_bytes", "previous_position", "magic", "write_time_ms")
)
_AT_DELAY, _AT_LOG_OFFSET, _AT_RECORD_SIZE, _AT_TOPIC_HASH, _AT_RESERVED = (
    TIMER_UNIT.offset_of(name)
    for name in ("delay_ms", "commit_log_offset", "record_size_bytes", "topic_hash", "reserved")
)


@kernel(
    "void(int64, int64, int64, int64, int64, int64, int64[::1], int64[::1], int32[::1],"
    " int32[::1], int32[::1], int32[::1], int64[::1])"
)
def fill_units(
    queue: int, timer: int, first: int, units_in_file: int, file_bytes: int, write_time_ms: int,
    offsets: Any, sizes: Any, tags_hashes: Any, topic_hashes: Any, distances: Any, flags: Any,
    slot_times_ms: Any,
) -> None:  # fmt: skip
    """Fill room for as many entries and units as there are records, at two addresses.

    ``first`` is the number of the first record in its queue and timer log, of which a file holds
    ``units_in_file`` units in ``file_bytes``. ``distances`` lead to the record before in the same
    slot, 0 where there is none.
    """
    for i in range(len(offsets)):
        store_i64(queue + _QUEUE_LOG_OFFSET, offsets[i])
        store_i32(queue + _QUEUE_SIZE, sizes[i])
        store_i64(queue + _QUEUE_TAGS, tags_hashes[i])
        queue += _QUEUE_BYTES
        previous = NO_POSITION
        if distances[i] != 0:
            before = first + i - distances[i]
            previous = before // units_in_file * file_bytes + before % units_in_file * _TIMER_BYTES
        store_i32(timer + _AT_SIZE, _TIMER_BYTES)
        store_i64(timer + _AT_PREVIOUS, previous)
        store_i32(timer + _AT_MAGIC, flags[i])
        store_i64(timer + _AT_WRITE_TIME, write_time_ms)
        store_i32(timer + _AT_DELAY, slot_times_ms[i] - write_time_ms)
        store_i64(timer + _AT_LOG_OFFSET, offsets[i])
        store_i32(timer + _AT_RECORD_SIZE, sizes[i])
        store_i32(timer + _AT_TOPIC_HASH, topic_hashes[i])
        store_i64(timer + _AT_RESERVED, 0)
        timer += _TIMER_BYTES
