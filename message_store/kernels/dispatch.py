# SPDX-License-Identifier: Apache-2.0
"""Kernels that walk a log file in memory for what consume queues must know of every record."""

from typing import Any

from message_store.format.record_layout import MAGIC_V1, MAGIC_V2, SMALLEST_RECORD_BYTES
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.log import (
    AT_LOG_OFFSET,
    AT_MAGIC,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_SIZE,
    AT_SYS_FLAG,
    LONGEST_HEAD_BYTES,
    NO_RECORD,
    PARTS,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    RECORD,
    ROWS_AHEAD,
    TOPIC_AT,
    TOPIC_BYTES,
    head_at,
    prepared_offset_at,
    record_at,
    store_time_at,
)
from message_store.kernels.raw_memory import load_i32, load_i64, load_native, load_u8, prefetch
from message_store.kernels.text import java_hash_utf8

ROW_FIELDS = (
    "commit_log_offset",
    "size_bytes",
    "queue_id",
    "queue_offset",
    "sys_flag",
    "store_timestamp_ms",
    "topic_at",
    "topic_bytes",
    "properties_at",
    "properties_bytes",
)
"""The rows of ``list_records``; the two ``_at`` count from the record's beginning."""
FOUND_LENGTH = 3 + PARTS
SECTOR_BYTES = 512
"""What a disk writes whole, or not at all."""


@kernel("int64(int64, int64, int64, int64, int64[:,::1], int64[::1])")
def list_records(file: int, place: int, file_bytes: int, start: int, rows: Any, found: Any) -> int:
    """List the whole records of a file from byte ``place`` on; returns how many.

    ``file`` is the file's memory address and ``start`` its commit log offset. ``rows`` is an int64
    table, a row for each of ``ROW_FIELDS`` and a column for each record. ``found`` (int64,
    ``FOUND_LENGTH``) gets where the walk stopped and why (RECORD: ``rows`` is full).
    """
    parts = found[3:]
    count = 0
    while True:
        record = file + place
        room = file_bytes - place
        why = record_at(record, room, room, start + place, found.ctypes.data + 8 * 3)
        if why != RECORD or count == rows.shape[1]:
            break
        size = load_i32(record + AT_SIZE)
        rows[0, count] = start + place
        rows[1, count] = size
        rows[2, count] = load_i32(record + AT_QUEUE_ID)
        rows[3, count] = load_i64(record + AT_QUEUE_OFFSET)
        rows[4, count] = load_i32(record + AT_SYS_FLAG)
        rows[5, count] = store_time_at(record)
        rows[6, count] = parts[TOPIC_AT]
        rows[7, count] = parts[TOPIC_BYTES]
        rows[8, count] = parts[PROPERTIES_AT]
        rows[9, count] = parts[PROPERTIES_BYTES]
        place += size
        count += 1
    found[0], found[1] = place, why
    return count


@inline_kernel
def _lost_a_sector(file: int, start: int, end: int) -> bool:
    """Whether the part of any disk sector that lies between two places of a file is all zeros.

    No checksum covers topic and properties, and a disk that lost its power may have taken any of
    the sectors. A text has no such run of zeros; of a sector that the record ends in, it may have a
    few, but they hardly ever begin where the sector does.
    """
    begin = start
    while start < end:
        stop = min(start - start % SECTOR_BYTES + SECTOR_BYTES, end)
        if load_u8(file + start) == 0 and load_u8(file + stop - 1) == 0:
            place = start
            while place < stop and load_u8(file + place) == 0:
                place += 1
            is_part = stop - start < SECTOR_BYTES and start > begin
            if place == stop and not (is_part and load_u8(file + start - 1) == 0):
                return True
        start = stop
    return False


@inline_kernel
def _is_torn(file: int, place: int, found: Any, parts: int) -> bool:
    """Whether the record at a byte of a file lost a sector; its parts begin at ``found[parts]``."""
    topic = place + found[parts + TOPIC_AT]
    end = place + load_i32(file + place + AT_SIZE)
    if not found[parts + PROPERTIES_BYTES]:  # then zeros, that there are none, end the record
        end = topic + found[parts + TOPIC_BYTES]
    return bool(_lost_a_sector(file, topic, end))


@kernel("int64(int64, int64, int64, int64, int64, int64[::1])")
def find_torn(buffer: int, length: int, base: int, file_start: int, synced: int, found: Any) -> int:
    """The place of the first record of whole ones, which lie in a buffer from ``base`` on, that
    ``walk_file`` stops at though its body is whole; -1 for none. ``found`` has room for its parts.
    """
    place = 0
    while place < length:
        room = length - place
        if head_at(buffer + place, room, room, base + place, found.ctypes.data) != RECORD:
            return -1
        file = buffer - (base - file_start)
        if base + place > synced and _is_torn(file, base - file_start + place, found, 0):
            return place
        place += load_i32(buffer + place + AT_SIZE)
    return -1


@kernel("int64(int64, int64, int64, int64, int64, int64[::1])")
def walk_file(file: int, place: int, file_bytes: int, start: int, synced: int, found: Any) -> int:
    """Walk the whole records of a file from byte ``place`` on; returns how many.

    Records behind the commit log offset ``synced`` may be torn where no checksum covers them.
    ``found`` (int64, ``FOUND_LENGTH``) gets where the walk stopped, why, and where in the file the
    last record begins.
    """
    count = 0
    while True:
        record = file + place
        room = file_bytes - place
        why = record_at(record, room, room, start + place, found.ctypes.data + 8 * 3)
        if why != RECORD:
            break
        if start + place > synced and _is_torn(file, place, found, 3):
            why = NO_RECORD
            break
        found[2] = place
        place += load_i32(record + AT_SIZE)
        count += 1
    found[0], found[1] = place, why
    return count


@kernel("void(int64, int64, int64, int64, int64[::1])")
def hash_texts(block: int, starts: int, lengths: int, count: int, hashes: Any) -> None:
    """``String.hashCode`` of each text of a byte column; NOT_UTF8 where it is none."""
    for row in range(count):
        text = block + load_native(starts + 8 * row)
        hashes[row] = java_hash_utf8(text, load_native(lengths + 8 * row))


@inline_kernel
def _is_head_of(record: int, offset: int, size: int) -> bool:
    """Whether a record's head is here, which lies at this offset of the log; a size of 0 is any."""
    if load_i32(record + AT_MAGIC) not in (MAGIC_V1, MAGIC_V2):
        return False
    is_it = load_i64(record + AT_LOG_OFFSET) == offset
    return bool(is_it and (size == 0 or load_i32(record + AT_SIZE) == size))


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def read_store_times(addresses: Any, rooms: Any, offsets: Any, sizes: Any, times: Any) -> None:
    """When the record at each address was stored; what is in ``times`` stays where none begins.

    An address is negative where nothing can be read, else ``rooms`` bytes can. Only heads are
    looked at. A size of 0 is any.
    """
    for row in range(len(addresses)):
        ahead = addresses[min(row + ROWS_AHEAD, len(addresses) - 1)]
        prefetch(ahead)
        record = addresses[row]
        if record < 0 or rooms[row] < SMALLEST_RECORD_BYTES:
            continue
        if _is_head_of(record, offsets[row], sizes[row]):
            times[row] = store_time_at(record)


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def read_prepared_offsets(
    addresses: Any, rooms: Any, offsets: Any, sizes: Any, prepared: Any
) -> None:
    """The prepared transaction offset in the head at each address; as ``read_store_times``."""
    for row in range(len(addresses)):
        prefetch(addresses[min(row + ROWS_AHEAD, len(addresses) - 1)])
        record = addresses[row]
        if record < 0 or rooms[row] < LONGEST_HEAD_BYTES:
            continue
        if _is_head_of(record, offsets[row], sizes[row]):
            prepared[row] = prepared_offset_at(record)


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def read_queue_ids(addresses: Any, rooms: Any, offsets: Any, queue_ids: Any) -> None:
    """The queue that the record at each address names; what is in ``queue_ids`` stays where none
    begins. As ``read_store_times``.
    """
    for row in range(len(addresses)):
        prefetch(addresses[min(row + ROWS_AHEAD, len(addresses) - 1)])
        record = addresses[row]
        if record < 0 or rooms[row] < SMALLEST_RECORD_BYTES:
            continue
        if _is_head_of(record, offsets[row], 0):
            queue_ids[row] = load_i32(record + AT_QUEUE_ID)


@kernel("int64(int64, int64)")
def last_record_of(file: int, file_bytes: int) -> int:
    """Where in a file in memory the last record begins, going from one to the next by their sizes;
    -1 when none begins at its start.
    """
    place, last = 0, -1
    while file_bytes - place >= SMALLEST_RECORD_BYTES:
        magic = load_i32(file + place + AT_MAGIC)
        size = load_i32(file + place + AT_SIZE)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < SMALLEST_RECORD_BYTES:
            break
        last = place
        place += size
    return last
