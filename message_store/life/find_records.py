# SPDX-License-Identifier: Apache-2.0
"""Finds the records of one message in a log: one pass over it, and no object for any other."""

from typing import Any

import numpy as np

from message_store.base.errors import FormatError
from message_store.files.segments import SegmentReader
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.properties import UNIQUE_KEY
from message_store.format.record_layout import HEAD_V4_V4, SMALLEST_RECORD_BYTES
from message_store.kernels.cache import kernel
from message_store.kernels.log import (
    AT_SIZE,
    PARTS,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    RECORD,
    entry_head_bytes,
    head_at,
)
from message_store.kernels.properties import find_value
from message_store.kernels.raw_memory import address_of, load_i32
from message_store.kernels.text import equal_bytes
from message_store.reading.commit_log import LogWalk
from message_store.redelivery.lineage import first_offset_at

_KEY = np.frombuffer(UNIQUE_KEY.encode(), np.uint8)
_KEY_NAME_BYTES = len(UNIQUE_KEY)
_COUNT, _STOPPED_AT, _WHY = range(3)
_OFFSET, _SIZE = range(2)
_MOST_AT_ONCE = (8 << 20) // SMALLEST_RECORD_BYTES
"""More records than a buffer of the walk can hold, unless one of them is very large."""


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64, int64[:, ::1], int64[::1])")
def find_of_message(
    buffer: int,
    length: int,
    base: int,
    file_room: int,
    name: int,
    key: int,
    key_bytes: int,
    first: int,
    rows: Any,
    found: Any,
) -> None:
    """Find the records in a buffer that have a unique key, or whose first record is at ``first``.

    ``name`` is the address of the property's name, ``key_bytes`` 0 for no key. ``rows`` gets
    offset and size of each. ``found`` gets how many, where the walk stopped, and why.
    """
    parts = np.empty(PARTS, np.int64)
    place, count = 0, 0
    while True:
        at = place + entry_head_bytes(buffer + place, length - place, base + place)
        record = buffer + at
        why = head_at(record, length - at, file_room - at, base + at, parts.ctypes.data)
        if why != RECORD or count == rows.shape[1]:
            break
        place, size = at, load_i32(record + AT_SIZE)
        is_it = first_offset_at(record, base + place) == first
        if key_bytes and not is_it:
            text = record + parts[PROPERTIES_AT]
            end = text + parts[PROPERTIES_BYTES]
            value, value_bytes = find_value(text, end, name, _KEY_NAME_BYTES)
            is_it = value_bytes == key_bytes and equal_bytes(value, key, key_bytes)
        if is_it:
            rows[_OFFSET, count], rows[_SIZE, count] = base + place, size
            count += 1
        place += size
    found[_COUNT], found[_STOPPED_AT], found[_WHY] = count, place, why


def find_records(
    reader: SegmentReader, unique_key: str | None, *, first: int = -1, known_end: int = 0
) -> list[StoredMessage]:
    """The records of a log that have a unique key, or name the record at ``first``; in order.

    Below ``known_end`` damage is stepped over, as ``LogWalk`` does. Bodies are not checked, and a
    record that cannot be decoded is left out. Raises SourceError where the disk refuses.
    """
    key = np.frombuffer((unique_key or "").encode("utf-8", "surrogatepass"), np.uint8)
    rows, found = np.empty((2, _MOST_AT_ONCE), np.int64), np.zeros(3, np.int64)
    places: list[tuple[int, int]] = []
    key_at = address_of(key) if key.size else 0

    def visit(address: int, length: int, base: int, room: int) -> tuple[int, int]:
        wanted = address_of(_KEY), key_at, key.size, first
        find_of_message(address, length, base, room, *wanted, rows, found)
        places.extend(zip(*rows[:, : found[_COUNT]].tolist(), strict=True))
        return int(found[_STOPPED_AT]), int(found[_WHY])

    walk = LogWalk(reader, known_end=known_end)
    if known_end:
        walk.run(reader.min_offset, visit, stop_at=known_end)
    else:
        walk.run(reader.min_offset, visit)
    records = (record_at(reader, *place) for place in places)
    return [record for record in records if record is not None]


def record_at(
    reader: SegmentReader, offset: int, size_bytes: int | None = None
) -> StoredMessage | None:
    """The record at an offset, of the size that it says itself if none is given; None where none
    can be decoded there.
    """
    try:
        if size_bytes is None:
            head = HEAD_V4_V4.decode_at(reader.read_at(offset, HEAD_V4_V4.size), 0)
            size_bytes = head["size_bytes"]
            segment = reader.segment_at(offset)
            room = 0 if segment is None else segment.start_offset + segment.length_bytes - offset
            if head["commit_log_offset"] != offset or not 0 < size_bytes <= room:
                return None
        return decode_message_at(reader.read_at(offset, size_bytes))
    except FormatError:
        return None
