# SPDX-License-Identifier: Apache-2.0
"""Reads many records at once for a time index: due times, hashes of real topics and unique keys,
and the records that they name.

The fast form of ``read_waiting``, which the scalar codec answers for records of unusual shape.
"""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError, FormatError
from message_store.columns.byte_column import Int64s, TableColumn, int64s
from message_store.format import properties as names
from message_store.format.java_numbers import parse_long, string_hash
from message_store.format.message import StoredMessage
from message_store.format.record_layout import SMALLEST_RECORD_BYTES
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.log import (
    AT_QUEUE_ID,
    AT_SIZE,
    PARTS,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    ROWS_AHEAD,
    TOPIC_AT,
    TOPIC_BYTES,
    find_parts,
    is_record_at,
    next_head,
    prefetch_head_and_tail,
)
from message_store.kernels.properties import entry_end_at, name_end_at
from message_store.kernels.raw_memory import address_of, load_i32, store_native
from message_store.kernels.text import (
    NOT_UTF8,
    hash_bytes,
    is_text,
    java_hash_utf8,
    plain_number,
)
from message_store.redelivery.lineage import first_offset, first_offset_at
from message_store.writing.log import LiveLog

DUE_MS, TOPIC_HASH, KEY_HASH, FIRST = range(4)
"""The rows of the facts: the due time, -1 where the scalar code is to look; Java's hash of the real
topic; a hash of the unique key, 0 without one; the first record of the message.
"""
FACT_ROWS = 4

_OUT = np.frombuffer(names.TIMER_OUT_MS.encode(), np.uint8)
_TOPIC = np.frombuffer(names.REAL_TOPIC.encode(), np.uint8)
_KEY = np.frombuffer(names.UNIQUE_KEY.encode(), np.uint8)
_OWN_TOPIC = np.frombuffer(names.TIME_INDEX_TOPIC.encode(), np.uint8)
_OUT_SPOT, _TOPIC_SPOT, _KEY_SPOT, _SPOTS = 0, 2, 4, 6
_SEED = np.uint64(0xC2B2AE3D27D4EB4F)


@inline_kernel
def _walk(place: int, end: int, spots: int) -> None:
    """Where three values lie; of equal names the last counts, and an empty one does not."""
    for spot in range(_SPOTS):
        store_native(spots + 8 * spot, 0)
    while place < end:
        divider = name_end_at(place, end)
        stop = entry_end_at(divider, end)
        spot = -1
        if stop - divider > 1:
            if is_text(place, divider - place, _KEY):
                spot = _KEY_SPOT
            elif is_text(place, divider - place, _TOPIC):
                spot = _TOPIC_SPOT
            elif is_text(place, divider - place, _OUT):
                spot = _OUT_SPOT
        if spot >= 0:
            store_native(spots + 8 * spot, divider + 1)
            store_native(spots + 8 * spot + 8, stop - divider - 1)
        place = stop + 1


@kernel("void(int64[::1], int64[::1], int64[::1], int64[:, ::1])")
def read_waiting_records(addresses: Int64s, sizes: Int64s, offsets: Int64s, facts: Any) -> None:
    """Fill ``facts``, a column a record. An address is -1 where there is no memory to look at;
    otherwise ``sizes`` bytes can be read there.
    """
    parts = np.empty(PARTS, np.int64)
    spots = np.empty(_SPOTS, np.int64)
    for row in range(len(addresses)):
        ahead = min(row + ROWS_AHEAD, len(addresses) - 1)
        prefetch_head_and_tail(addresses[ahead], sizes[ahead])
        record = addresses[row]
        facts[DUE_MS, row] = -1
        if record < 0 or not is_record_at(record, sizes[row], offsets[row], parts.ctypes.data):
            continue
        text = record + parts[PROPERTIES_AT]
        _walk(text, text + parts[PROPERTIES_BYTES], spots.ctypes.data)
        topic_hash = 0
        if spots[_TOPIC_SPOT + 1]:
            topic_hash = java_hash_utf8(spots[_TOPIC_SPOT], spots[_TOPIC_SPOT + 1])
        key, key_bytes = spots[_KEY_SPOT], spots[_KEY_SPOT + 1]
        facts[TOPIC_HASH, row] = topic_hash
        facts[KEY_HASH, row] = np.int64(hash_bytes(key, key_bytes, _SEED)) if key_bytes else 0
        facts[FIRST, row] = first_offset_at(record, offsets[row])
        if topic_hash != NOT_UTF8:
            facts[DUE_MS, row] = plain_number(spots[_OUT_SPOT], spots[_OUT_SPOT + 1])


OFFSET, SIZE, DUE = range(3)
"""The rows of what is found in a log."""
FOUND_ROWS = 3


@kernel("int64(int64, int64, int64, int64[:, ::1])")
def find_messages(buffer: int, length: int, base: int, found: Any) -> int:
    """Find the messages of the topic's queue 0 in a log file, among its bytes from ``base`` on,
    where a record begins; returns how many there are.

    ``found`` gets as many as it has room for; DUE is -1 where it is no plain number. Damage is
    stepped over.
    """
    parts = np.empty(PARTS, np.int64)
    spots = np.empty(_SPOTS, np.int64)
    count, place = 0, next_head(buffer, length, base, 0)
    while place >= 0:
        record = buffer + place
        size = load_i32(record + AT_SIZE)
        if not find_parts(record, size, parts.ctypes.data):
            place = next_head(buffer, length, base, place + 1)
            continue
        is_ours = is_text(record + parts[TOPIC_AT], parts[TOPIC_BYTES], _OWN_TOPIC)
        if is_ours and load_i32(record + AT_QUEUE_ID) == 0:
            if count < found.shape[1]:
                text = record + parts[PROPERTIES_AT]
                _walk(text, text + parts[PROPERTIES_BYTES], spots.ctypes.data)
                found[OFFSET, count], found[SIZE, count] = base + place, size
                found[DUE, count] = plain_number(spots[_OUT_SPOT], spots[_OUT_SPOT + 1])
            count += 1
        place = next_head(buffer, length, base, place + size)
    return count


def messages_in(address: int, length: int, base: int) -> Int64s:
    """The same, as a table with a column for each of them."""
    nothing: Int64s = np.empty((FOUND_ROWS, 0), np.int64)
    found = np.empty((FOUND_ROWS, find_messages(address, length, base, nothing)), np.int64)
    find_messages(address, length, base, found)
    return found


@kernel("void(int64[::1], int64[::1], int64[::1])")
def _read_sizes(addresses: Int64s, rooms: Int64s, sizes: Int64s) -> None:
    for row in range(len(addresses)):
        is_there = addresses[row] >= 0 and rooms[row] >= SMALLEST_RECORD_BYTES
        sizes[row] = load_i32(addresses[row] + AT_SIZE) if is_there else 0


def record_sizes(log: LiveLog, offsets: Int64s) -> Int64s:
    """How long the records at these places say that they are; 0 outside the log."""
    sizes = np.empty(len(offsets), np.int64)
    _read_sizes(log.addresses(offsets), log.rooms(offsets), sizes)
    return sizes


def key_hash(unique_key: str) -> int:
    """The hash of a unique key, as ``KEY_HASH`` has it."""
    data = np.frombuffer(unique_key.encode("utf-8", "surrogatepass"), np.uint8)
    hashed = hash_bytes(address_of(data), data.size, _SEED) if data.size else 0
    return int(np.uint64(hashed).astype(np.int64))


@attrs.frozen(eq=False)
class Facts:
    """What the records of some rows say; ``problems`` says why a row can be no timed message."""

    table: Int64s
    problems: dict[int, FormatError]

    due_ms = TableColumn(DUE_MS)
    """When each is due."""
    topic_hash = TableColumn(TOPIC_HASH)
    """Java's hash of each real topic."""
    key_hash = TableColumn(KEY_HASH)
    """A hash of each unique key."""
    firsts = TableColumn(FIRST)
    """Which record each names; its own place where it names none."""

    @property
    def is_fine(self) -> NDArray[np.bool_]:
        """Which rows have a record with a due time."""
        return self.due_ms >= 0


def read_facts(log: LiveLog, offsets: Int64s, sizes: Int64s) -> Facts:
    """What the records at these places of the log say."""
    offsets, sizes = int64s(offsets), int64s(sizes)
    table = np.zeros((FACT_ROWS, len(offsets)), np.int64)
    read_waiting_records(log.record_addresses(offsets, sizes), sizes, offsets, table)
    problems: dict[int, FormatError] = {}
    for row in np.flatnonzero(table[DUE_MS] < 0).tolist():
        try:
            table[:, row] = read_waiting(log.record(int(offsets[row]), int(sizes[row])))
        except FormatError as error:
            problems[row] = error
    return Facts(table, problems)


def read_waiting(message: StoredMessage) -> tuple[int, int, int, int]:
    """The same for one record, slow and obviously right. Raises FormatError for none."""
    where = message.commit_log_offset
    text = message.properties.get(names.TIMER_OUT_MS)
    if text is None:
        raise BadFieldError("no TIMER_OUT_MS: nobody knows when", offset=where)
    due_ms = parse_long(text)
    if due_ms < 0:
        raise BadFieldError("a TIMER_OUT_MS before all time", offset=where, found=text)
    topic = message.properties.get(names.REAL_TOPIC)
    topic_hash = 0 if topic is None else string_hash(topic)
    return due_ms, topic_hash, key_hash(message.unique_key or ""), first_offset(message)
