# SPDX-License-Identifier: Apache-2.0
"""Writes timer queue entries and timer log units, and the blanks at the ends of full files."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.columns.byte_column import Int64s
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import BLANK_RECORD, MAGIC_BLANK
from message_store.kernels.cache import kernel
from message_store.kernels.crc import crc32_from
from message_store.kernels.raw_memory import address_of, store_i32, store_i64
from migrate.settings import TargetSettings
from migrate.write.row_output import PartStream, stream_to_row
from timer_wheel.format.timer_log import (
    NO_POSITION,
    TIMER_UNIT,
    blank_bytes,
    unit_position,
    units_per_file,
)

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


@attrs.frozen(eq=False, kw_only=True)
class Units:
    """The messages from queue offset ``first`` on, of ``total`` in the target; arrays have a row a
    message. ``distances`` (int32) lead to the message before in the same slot, 0 where there is
    none.
    """

    first: int
    total: int
    write_time_ms: int
    offsets: Int64s
    sizes: Int64s
    tags_hashes: NDArray[np.int32]
    topic_hashes: NDArray[np.int32]
    distances: NDArray[np.int32]
    flags: NDArray[np.int32]
    slot_times_ms: Int64s


def write_units(
    store: StoreRoot,
    settings: TargetSettings,
    units: Units,
    *,
    has_timer_log: bool = True,
    durably: bool = False,
) -> int:
    """Write queue entries and, ``has_timer_log``, timer log units to rows that ``create_row`` made.

    Returns the CRC-32 of both, blanks left out. Raises TargetError.
    """
    count, file_bytes = len(units.offsets), settings.timer_log_file_bytes
    queue = np.empty(count * QUEUE_UNIT.size, np.uint8)
    timers = np.empty(count * TIMER_UNIT.size, np.uint8)
    fill_units(
        address_of(queue), address_of(timers), units.first, units_per_file(file_bytes),
        file_bytes, units.write_time_ms, units.offsets, units.sizes, units.tags_hashes,
        units.topic_hashes, units.distances, units.flags, units.slot_times_ms,
    )  # fmt: skip
    put = partial(stream_to_row, durably=durably)
    put(store.timer_queue(), settings.queue_file_bytes, units.first * QUEUE_UNIT.size, queue)
    crc = int(crc32_from(0, address_of(queue), len(queue)))
    if not has_timer_log:
        return crc
    first = units.first
    for begin, stop, is_full in timer_pieces(file_bytes, first, first + count, units.total):
        piece = timers[(begin - first) * TIMER_UNIT.size : (stop - first) * TIMER_UNIT.size]
        if is_full:
            piece = np.append(piece, np.frombuffer(blank_bytes(file_bytes), np.uint8))
        put(store.timer_log, file_bytes, unit_position(begin, file_bytes), piece)
    return int(crc32_from(crc, address_of(timers), len(timers)))


def timer_pieces(
    file_bytes: int, first: int, end: int, total: int
) -> Iterator[tuple[int, int, bool]]:
    """Timer units file by file: first, end, and whether a blank follows because more units do."""
    in_file = units_per_file(file_bytes)
    begin = first
    while begin < end:
        file_end = (begin // in_file + 1) * in_file
        stop = min(end, file_end)
        yield begin, stop, stop == file_end and stop < total
        begin = stop


def encode_blank(size_bytes: int) -> bytes:
    """What stands behind the last record of a log file that others follow."""
    return BLANK_RECORD.encode(size_bytes=size_bytes, magic=MAGIC_BLANK)


def write_blank(stream: PartStream, size_bytes: int) -> None:
    """End a log file with the head of a blank of this length; 0 is none. Raises TargetError."""
    if size_bytes:
        blank = np.frombuffer(encode_blank(size_bytes), np.uint8)
        stream.room(len(blank))[:] = blank
        stream.advance(len(blank))
