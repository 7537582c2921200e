# SPDX-License-Identifier: Apache-2.0
"""Kernels that walk a commit log: is this a whole record, where does the next one begin.

A buffer holds log bytes from ``base`` on; ``file_room`` is how far the log file goes from there.
Every length is compared with what holds it before it is used.
"""

from typing import Any

from message_store.format.members.dledger_entry import ENTRY_BLANK_MAGIC, ENTRY_HEAD, ENTRY_MAGIC
from message_store.format.record_layout import (
    BLANK_RECORD,
    BODY_RUN,
    CRC_MASK,
    HEAD_V4_V4,
    HEAD_V6_V4,
    MAGIC_BLANK,
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
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_native,
    prefetch,
    store_native,
)

RECORD, NEEDS_MORE, FILE_ENDS, NO_RECORD = range(4)
"""Kinds of bytes at an offset: a whole record; one that the buffer cuts off; the blank, or too
little room for one, that ends a file; anything else.
"""

AT_SIZE = HEAD_V4_V4.offset_of("size_bytes")
AT_MAGIC = HEAD_V4_V4.offset_of("magic")
AT_BODY_CRC = HEAD_V4_V4.offset_of("body_crc")
AT_QUEUE_ID = HEAD_V4_V4.offset_of("queue_id")
AT_FLAG = HEAD_V4_V4.offset_of("flag")
AT_QUEUE_OFFSET = HEAD_V4_V4.offset_of("queue_offset")
AT_LOG_OFFSET = HEAD_V4_V4.offset_of("commit_log_offset")
AT_SYS_FLAG = HEAD_V4_V4.offset_of("sys_flag")
AT_BORN_TIME = HEAD_V4_V4.offset_of("born_timestamp_ms")
AT_BORN_IP = HEAD_V4_V4.offset_of("born_ip")
AT_BORN_PORT = HEAD_V4_V4.offset_of("born_port")
AT_STORE_TIME = HEAD_V4_V4.offset_of("store_timestamp_ms")
AT_STORE_IP = HEAD_V4_V4.offset_of("store_ip")
AT_STORE_PORT = HEAD_V4_V4.offset_of("store_port")
AT_RECONSUMED = HEAD_V4_V4.offset_of("reconsume_times")
AT_PREPARED = HEAD_V4_V4.offset_of("prepared_transaction_offset")
HEAD_BYTES = HEAD_V4_V4.size
IPV6_EXTRA = HEAD_V6_V4.size - HEAD_V4_V4.size
LONGEST_HEAD_BYTES = HEAD_BYTES + 2 * IPV6_EXTRA

BLANK_BYTES = BLANK_RECORD.size
ENTRY_HEAD_BYTES = ENTRY_HEAD.size
_AT_ENTRY_BYTES = ENTRY_HEAD.offset_of("entry_bytes")
_AT_ENTRY_OFFSET = ENTRY_HEAD.offset_of("entry_offset")
_AT_RECORD_BYTES = ENTRY_HEAD.offset_of("record_bytes")
_BODY_LENGTH = BODY_RUN.length.size
_TOPIC_LENGTH_V1 = TOPIC_RUN_V1.length.size
_TOPIC_LENGTH_V2 = TOPIC_RUN_V2.length.size
_PROPERTIES_LENGTH = PROPERTIES_RUN.length.size

ROWS_AHEAD = 16
"""How many records ahead of its use memory is prefetched."""
_TAIL_BYTES = 256
LINE_BYTES = 64
_WHOLE_BYTES = 2048

# Where the parts of a record lie, counted from its beginning. Kernels hand each other the address
# of these numbers and not the array: counting references to that takes longer than the rest.
BODY_AT, BODY_BYTES, TOPIC_AT, TOPIC_BYTES, PROPERTIES_AT, PROPERTIES_BYTES = range(6)
PARTS = 6


@inline_kernel
def _note(parts: int, which: int, position: int, length: int) -> None:
    store_native(parts + 8 * which, position)
    store_native(parts + 8 * which + 8, length)


@inline_kernel
def find_parts(record: int, size: int, parts: int) -> bool:
    """Where body, topic and properties of a record lie; False unless they fill its ``size`` bytes.

    The caller knows that so many are there, and at least ``SMALLEST_RECORD_BYTES``; it keeps the
    array that ``parts`` is the address of.
    """
    sys_flag = load_i32(record + AT_SYS_FLAG)
    position = HEAD_BYTES
    if sys_flag & SYS_BORN_HOST_IPV6:
        position += IPV6_EXTRA
    if sys_flag & SYS_STORE_HOST_IPV6:
        position += IPV6_EXTRA
    is_v2 = load_i32(record + AT_MAGIC) == MAGIC_V2
    topic_length_bytes = _TOPIC_LENGTH_V2 if is_v2 else _TOPIC_LENGTH_V1
    room = size - position - _BODY_LENGTH - topic_length_bytes - _PROPERTIES_LENGTH
    if room < 0:
        return False
    length = load_i32(record + position)
    if length < 0 or length > room:
        return False
    room -= length
    _note(parts, BODY_AT, position + _BODY_LENGTH, length)
    position += _BODY_LENGTH + length
    length = load_i16(record + position) if is_v2 else load_i8(record + position)
    if length < 0 or length > room:
        return False
    room -= length
    _note(parts, TOPIC_AT, position + topic_length_bytes, length)
    position += topic_length_bytes + length
    length = load_i16(record + position)
    _note(parts, PROPERTIES_AT, position + _PROPERTIES_LENGTH, length)
    return bool(length == room)


@inline_kernel
def body_is_whole(record: int, parts: int) -> bool:
    """Whether the body of a record has the checksum that its head tells."""
    length = load_native(parts + 8 * BODY_BYTES)
    if length == 0:
        return True  # nobody looks at the checksum of no body
    crc = int(crc32(record + load_native(parts + 8 * BODY_AT), length)) & CRC_MASK
    return bool(crc == load_i32(record + AT_BODY_CRC))


@inline_kernel
def entry_head_bytes(place: int, room: int, log_offset: int) -> int:
    """The length of a DLedger entry's head at an address, behind which its record begins; 0 where
    none is, as in front of every record of an ordinary log.

    Its first field would be the length of an ordinary record: none is one byte long.
    """
    if room < ENTRY_HEAD_BYTES or load_i32(place) != ENTRY_MAGIC:
        return 0
    if load_i64(place + _AT_ENTRY_OFFSET) != log_offset:
        return 0
    record_bytes = load_i32(place + _AT_RECORD_BYTES)
    is_head = (
        record_bytes > 0 and load_i32(place + _AT_ENTRY_BYTES) - ENTRY_HEAD_BYTES == record_bytes
    )
    return ENTRY_HEAD_BYTES if is_head else 0


@inline_kernel
def record_at(record: int, room: int, file_room: int, log_offset: int, parts: int) -> int:
    """The kind of bytes at an address: ``room`` are readable, and the file has ``file_room``."""
    kind = head_at(record, room, file_room, log_offset, parts)
    if kind == RECORD and not body_is_whole(record, parts):
        return NO_RECORD
    return kind


@inline_kernel
def head_at(record: int, room: int, file_room: int, log_offset: int, parts: int) -> int:
    """The same, but for the checksum of the body, which is not looked at."""
    if file_room < BLANK_BYTES:
        return FILE_ENDS
    if room < BLANK_BYTES:
        return NEEDS_MORE
    magic = load_i32(record + AT_MAGIC)
    if magic == MAGIC_BLANK:
        return FILE_ENDS
    size = load_i32(record + AT_SIZE)
    if size == ENTRY_BLANK_MAGIC and magic == file_room:  # a DLedger log's blank
        return FILE_ENDS
    if size == ENTRY_MAGIC and room < ENTRY_HEAD_BYTES:  # the head of an entry is cut off
        return NEEDS_MORE
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return NO_RECORD
    if size < SMALLEST_RECORD_BYTES or size > file_room:
        return NO_RECORD
    if room < SMALLEST_RECORD_BYTES:
        return NEEDS_MORE
    if load_i64(record + AT_LOG_OFFSET) != log_offset:
        return NO_RECORD
    if size > room:
        return NEEDS_MORE
    return RECORD if find_parts(record, size, parts) else NO_RECORD


@inline_kernel
def _is_head(record: int, room: int, log_offset: int) -> bool:
    """Whether a head is here that says where it lies, and that its record ends within ``room``."""
    if room < SMALLEST_RECORD_BYTES:
        return False
    magic, size = load_i32(record + AT_MAGIC), load_i32(record + AT_SIZE)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return False
    fits = SMALLEST_RECORD_BYTES <= size <= room
    return bool(fits and load_i64(record + AT_LOG_OFFSET) == log_offset)


@inline_kernel
def is_record_at(record: int, size: int, offset: int, parts: int) -> bool:
    """Whether a record of this size, which says that it lies at this offset, is at an address;
    ``parts`` as of ``find_parts``.
    """
    if size < SMALLEST_RECORD_BYTES or load_i32(record + AT_SIZE) != size:
        return False
    magic = load_i32(record + AT_MAGIC)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return False
    return load_i64(record + AT_LOG_OFFSET) == offset and find_parts(record, size, parts)


@inline_kernel
def next_head(buffer: int, length: int, base: int, place: int) -> int:
    """The first place in a buffer, from ``place`` on, where a record begins; -1 where the blank or
    the end of the buffer comes first. Damage is stepped over.
    """
    while length - place >= BLANK_BYTES:
        if _is_head(buffer + place, length - place, base + place):
            return place
        if load_i32(buffer + place + AT_MAGIC) == MAGIC_BLANK:
            return -1
        place += 1
    return -1


@inline_kernel
def prefetch_head_and_tail(record: int, size: int) -> None:
    """Prefetch a record's head and its end, which are read besides its body.

    Hardware prefetchers cannot predict these addresses, and cache misses dominate the time.
    """
    if record >= 0:
        prefetch(record)
        prefetch(record + HEAD_BYTES)
        for address in range(record + max(size - _TAIL_BYTES, 64), record + size, LINE_BYTES):
            prefetch(address)
        prefetch(record + size - 1)


@inline_kernel
def prefetch_whole(address: int, size: int) -> None:
    """Prefetch a record's first 2 KiB: from there on the hardware prefetcher follows alone."""
    if address >= 0:
        for line in range(address, address + min(size, _WHOLE_BYTES), LINE_BYTES):
            prefetch(line)


@inline_kernel
def store_time_at(record: int) -> int:
    """The store time in the head of a record."""
    extra = IPV6_EXTRA if load_i32(record + AT_SYS_FLAG) & SYS_BORN_HOST_IPV6 else 0
    return load_i64(record + AT_STORE_TIME + extra)  # type: ignore[no-any-return]


@inline_kernel
def prepared_offset_at(record: int) -> int:
    """The prepared transaction offset in the head of a record."""
    sys_flag = load_i32(record + AT_SYS_FLAG)
    extra = IPV6_EXTRA if sys_flag & SYS_BORN_HOST_IPV6 else 0
    extra += IPV6_EXTRA if sys_flag & SYS_STORE_HOST_IPV6 else 0
    return load_i64(record + AT_PREPARED + extra)  # type: ignore[no-any-return]


@kernel("int64(int64, int64, int64)")
def find_record_head(buffer: int, length: int, base: int) -> int:
    """The first position in a buffer where a head names its own commit log offset; -1 for none."""
    for position in range(length - SMALLEST_RECORD_BYTES + 1):
        magic = load_i32(buffer + position + AT_MAGIC)
        is_named = magic in (MAGIC_V1, MAGIC_V2)
        if is_named and load_i64(buffer + position + AT_LOG_OFFSET) == base + position:
            return position
    return -1


WALKED = 5 + PARTS
"""Places of ``walk_window``'s result."""


@kernel("void(int64, int64, int64, int64, int64[::1])")
def walk_window(buffer: int, length: int, base: int, file_room: int, found: Any) -> None:
    """Walk whole records from the start of a buffer.

    ``found``, of ``WALKED``, gets: how many, where the walk stopped, why, and the newest and oldest
    store time (0 for none); it has room for the parts of a record besides.
    """
    parts = found.ctypes.data + 8 * (WALKED - PARTS)
    position, count, newest, oldest = 0, 0, 0, 0
    while True:
        head = entry_head_bytes(buffer + position, length - position, base + position)
        at = position + head
        why = record_at(buffer + at, length - at, file_room - at, base + at, parts)
        if why != RECORD:
            break
        position = at
        stored_ms = store_time_at(buffer + position)
        newest = max(newest, stored_ms)
        oldest = min(oldest, stored_ms) if count else stored_ms
        position += load_i32(buffer + position + AT_SIZE)
        count += 1
    found[0], found[1], found[2], found[3], found[4] = count, position, why, newest, oldest
