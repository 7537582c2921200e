# SPDX-License-Identifier: Apache-2.0
"""Kernels that make the delivered or rolled copies of many records of usual shape.

There are two passes. The first checks a record, finds its destination and
the length of its successor. The second writes the successors when every offset is known, and checks
the bodies while it copies them. A record of any other shape is marked unusual and left to
``redelivery.record``: every reason for refusing one is written once, in plain Python.
"""

from typing import Any

import numpy as np

from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import (
    MAGIC_V2,
    PROPERTIES_MAX_BYTES,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_IPV6,
    SYS_COMMIT,
    SYS_STORE_HOST_IPV6,
    SYS_TRANSACTION_MASK,
    TOPIC_MAX_CHARS_V1,
    TOPIC_RUN_V1,
    TOPIC_RUN_V2,
)
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.log import (
    AT_LOG_OFFSET,
    AT_MAGIC,
    AT_PREPARED,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_SIZE,
    AT_STORE_TIME,
    AT_SYS_FLAG,
    BODY_AT,
    BODY_BYTES,
    IPV6_EXTRA,
    LINE_BYTES,
    PARTS,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    RECORD,
    ROWS_AHEAD,
    TOPIC_AT,
    TOPIC_BYTES,
    body_is_whole,
    find_parts,
    head_at,
    prefetch_head_and_tail,
    prefetch_whole,
)
from message_store.kernels.properties import (
    DROPPED,
    QUEUE_VALUE,
    TAGS_VALUE,
    TOPIC_VALUE,
    WALK_FIELDS,
    fill_properties,
    kept_bytes,
    lengths_mask,
    walk_properties,
)
from message_store.kernels.raw_memory import (
    copy_bytes,
    copy_short,
    load_i32,
    load_native,
    load_u8,
    load_word,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)
from message_store.kernels.text import NOT_UTF8, java_hash_utf8, whole_number
from message_store.redelivery.destinations import (
    LENGTH,
    QUEUE_ID,
    TABLE_FULL,
    TOPIC,
    fact_of,
    find_or_add,
)

NEW_SIZE, DESTINATION, TAGS_CODE, DROPPED_BYTES = range(4)
"""Columns of the first pass's result: length of the row's successor (0: unusual), number of its
destination, hash of its tag, and bytes of its properties that are dropped.
"""
FOUND_COLUMNS = 4

_TOPIC_LENGTH_V1 = TOPIC_RUN_V1.length.size
_TOPIC_LENGTH_V2 = TOPIC_RUN_V2.length.size
_UNIT_BYTES = QUEUE_UNIT.size
_UNIT_OFFSET, _UNIT_SIZE, _UNIT_TAGS = (
    QUEUE_UNIT.offset_of(name) for name in ("commit_log_offset", "size_bytes", "tags_code")
)
_ASCII = np.uint64(0x8080808080808080)
_COPIED_AHEAD = 3
_QUEUE_ID_DIGITS = 9


@inline_kernel
def _is_ascii(place: int, length: int) -> bool:
    end = place + length
    bits = np.uint64(0)
    while place + 8 <= end:
        bits |= load_word(place)
        place += 8
    while place < end:
        bits |= np.uint64(load_u8(place))
        place += 1
    return bool(bits & _ASCII == np.uint64(0))


@inline_kernel
def _is_usual(record: int, size: int, log_offset: int, parts: int) -> bool:
    """Whether a whole record of this size and place lies here, its body apart."""
    if size < SMALLEST_RECORD_BYTES or load_i32(record + AT_SIZE) != size:
        return False
    if head_at(record, size, size, log_offset, parts) != RECORD:
        return False
    transaction = load_i32(record + AT_SYS_FLAG) & SYS_TRANSACTION_MASK
    if transaction != 0 and transaction != SYS_COMMIT:
        return False
    topic, length = load_native(parts + 8 * TOPIC_AT), load_native(parts + 8 * TOPIC_BYTES)
    return _is_ascii(record + topic, length)


@inline_kernel
def _topic_length_bytes(is_v2: bool) -> int:
    return _TOPIC_LENGTH_V2 if is_v2 else _TOPIC_LENGTH_V1


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], boolean, int64[:, ::1], int64[:, ::1],"
    " int64[::1], int64[::1], int64[:, ::1], int64)"
)
def measure_records(
    addresses: Any, sizes: Any, offsets: Any, suffix_lengths: Any, is_fixed: bool, dropped: Any,
    destinations: Any, slots: Any, used: Any, found: Any, start: int,
) -> int:  # fmt: skip
    """Fill ``found`` (a row for each of its columns) from the records at these addresses.

    An address is negative where nothing can be read, else ``sizes`` bytes are there. ``is_fixed``:
    all go to destination 0. Returns how many rows it came through: fewer than all where the table
    of destinations was full.
    """
    parts = np.zeros(PARTS, np.int64)
    walked = np.zeros(WALK_FIELDS, np.int64)
    mask = lengths_mask(dropped)
    names, names_count = dropped.ctypes.data, dropped.shape[0]
    table, table_slots, table_used = destinations.ctypes.data, slots.ctypes.data, used.ctypes.data
    for row in range(start, len(addresses)):
        ahead = min(row + ROWS_AHEAD, len(addresses) - 1)
        prefetch_head_and_tail(addresses[ahead], sizes[ahead])
        found[NEW_SIZE, row] = 0
        record, size = addresses[row], sizes[row]
        if record < 0 or not _is_usual(record, size, offsets[row], parts.ctypes.data):
            continue
        properties, length = record + parts[PROPERTIES_AT], parts[PROPERTIES_BYTES]
        walk_properties(
            properties, properties + length, mask, names, names_count, walked.ctypes.data
        )
        new_length = kept_bytes(properties, length, walked[DROPPED], suffix_lengths[row])
        tags_code = java_hash_utf8(walked[TAGS_VALUE], walked[TAGS_VALUE + 1])
        if new_length > PROPERTIES_MAX_BYTES or tags_code == NOT_UTF8:
            continue
        number = 0
        if not is_fixed:
            queue_id = whole_number(walked[QUEUE_VALUE], walked[QUEUE_VALUE + 1], _QUEUE_ID_DIGITS)
            topic_bytes = walked[TOPIC_VALUE + 1]
            if queue_id < 0 or topic_bytes <= 0:
                continue
            number = find_or_add(
                walked[TOPIC_VALUE], topic_bytes, queue_id, table, table_slots, len(slots),
                table_used,
            )  # fmt: skip
            if number == TABLE_FULL:
                return row
        topic_bytes = destinations[number, LENGTH]
        was_v2 = load_i32(record + AT_MAGIC) == MAGIC_V2
        is_v2 = was_v2 or topic_bytes > TOPIC_MAX_CHARS_V1
        growth = new_length - length + topic_bytes - parts[TOPIC_BYTES]
        growth += _topic_length_bytes(is_v2) - _topic_length_bytes(was_v2)
        found[NEW_SIZE, row] = size + growth
        found[DESTINATION, row] = number
        found[TAGS_CODE, row] = tags_code
        found[DROPPED_BYTES, row] = walked[DROPPED]
    return len(addresses)


@kernel("int64(int64[::1], int64[::1])")
def read_all_lines(addresses: Any, sizes: Any) -> int:
    """Read every cache line of these records, so that copying them finds them in the cache.

    The sum is returned only so that LLVM keeps the loads.
    """
    total = 0
    for row in range(len(addresses)):
        record = addresses[row]
        if record >= 0:
            for line in range(record, record + sizes[row], LINE_BYTES):
                total += load_u8(line)
    return total


@kernel("void(int64[::1], int64[::1], int64[:, ::1])")
def mark_damaged_bodies(addresses: Any, sizes: Any, found: Any) -> None:
    """Mark as unusual the rows whose bodies are damaged, among those found usual."""
    parts = np.zeros(PARTS, np.int64)
    for row in range(len(addresses)):
        record = addresses[row]
        if (
            found[NEW_SIZE, row] > 0
            and find_parts(record, sizes[row], parts.ctypes.data)
            and not body_is_whole(record, parts.ctypes.data)
        ):
            found[NEW_SIZE, row] = 0


@kernel("void(int64[::1], int64[::1], int64[::1])")
def number_rows(destinations: Any, next_offsets: Any, queue_offsets: Any) -> None:
    """Give each row the next offset of its queue; ``next_offsets`` are moved on."""
    for row in range(len(destinations)):
        number = destinations[row]
        queue_offsets[row] = next_offsets[number]
        next_offsets[number] += 1


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64)")
def fill_units(
    destinations: Any, queue_offsets: Any, places: Any, positions: Any, sizes: Any,
    tags_codes: Any, target: int,
) -> None:  # fmt: skip
    """Write the queue units, those of one queue together: unit ``places`` + queue offset."""
    for row in range(len(destinations)):
        unit = target + _UNIT_BYTES * (places[destinations[row]] + queue_offsets[row])
        store_i64(unit + _UNIT_OFFSET, positions[row])
        store_i32(unit + _UNIT_SIZE, sizes[row])
        store_i64(unit + _UNIT_TAGS, tags_codes[row])


@inline_kernel
def _fill_head(
    out: int, queue_id: int, queue_offset: int, position: int, store_ms: int, prepared_offset: int
) -> None:
    """Write the fields of a copied head that change, except its length and version."""
    sys_flag = load_i32(out + AT_SYS_FLAG)
    born_extra = IPV6_EXTRA if sys_flag & SYS_BORN_HOST_IPV6 else 0
    store_extra = IPV6_EXTRA if sys_flag & SYS_STORE_HOST_IPV6 else 0
    store_i32(out + AT_QUEUE_ID, queue_id)
    store_i64(out + AT_QUEUE_OFFSET, queue_offset)
    store_i64(out + AT_LOG_OFFSET, position)
    store_i64(out + AT_STORE_TIME + born_extra, store_ms)
    store_i64(out + AT_PREPARED + born_extra + store_extra, prepared_offset)


@kernel(
    "int64(int64[::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1],"
    " int64[::1], int64[::1], int64, int64[::1], int64[::1], int64, int64, int64, int64)"
)
def fill_records(
    addresses: Any, sizes: Any, found: Any, dropped: Any, destinations: Any, queue_offsets: Any,
    positions: Any, prepared_offsets: Any, suffix_block: int, suffix_starts: Any,
    suffix_lengths: Any, store_ms: int, start: int, stop: int, target: int,
) -> int:  # fmt: skip
    """Write the successors of the rows from ``start`` to ``stop``, the first of them at ``target``.

    The rows are those that ``measure_records`` found usual; one with a negative address is another
    that stays as it is. ``prepared_offsets`` may be empty: all 0. Returns the first row whose body
    is damaged, where it stops; -1 for none.
    """
    parts = np.zeros(PARTS, np.int64)
    mask = lengths_mask(dropped)
    names, names_count, table = dropped.ctypes.data, dropped.shape[0], destinations.ctypes.data
    for row in range(start, stop):
        # Copying waited for memory at the beginning of every record: a third of its time, and half
        # where records that follow each other lie apart.
        ahead = min(row + _COPIED_AHEAD, len(addresses) - 1)
        prefetch_whole(addresses[ahead], sizes[ahead])
        record = addresses[row]
        if record < 0 or not find_parts(record, sizes[row], parts.ctypes.data):
            continue
        number = found[DESTINATION, row]
        out = target + positions[row] - positions[start]
        place = parts[BODY_AT] + parts[BODY_BYTES]
        copy_bytes(out, record, place)
        # Here, because the copy is near by now: to look at every body ahead of all copying is to
        # bring all of them from memory twice, which took a third of a drain.
        if not body_is_whole(out, parts.ctypes.data):
            return row
        queue_id, queue_offset = fact_of(table, number, QUEUE_ID), queue_offsets[row]
        prepared_offset = prepared_offsets[row] if len(prepared_offsets) else 0
        _fill_head(out, queue_id, queue_offset, positions[row], store_ms, prepared_offset)
        store_i32(out + AT_SIZE, found[NEW_SIZE, row])
        topic_bytes = fact_of(table, number, LENGTH)
        if topic_bytes > TOPIC_MAX_CHARS_V1:
            store_i32(out + AT_MAGIC, MAGIC_V2)
        place += out
        if load_i32(out + AT_MAGIC) == MAGIC_V2:
            store_i16(place, topic_bytes)
            place += _TOPIC_LENGTH_V2
        else:
            store_u8(place, topic_bytes)
            place += _TOPIC_LENGTH_V1
        copy_short(place, fact_of(table, number, TOPIC), topic_bytes)
        place += topic_bytes
        properties, length = record + parts[PROPERTIES_AT], parts[PROPERTIES_BYTES]
        suffix = suffix_block + suffix_starts[row]
        fill_properties(
            place, properties, length, suffix, suffix_lengths[row], found[DROPPED_BYTES, row],
            mask, names, names_count,
        )  # fmt: skip
    return -1
