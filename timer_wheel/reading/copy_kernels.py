# SPDX-License-Identifier: Apache-2.0
"""Kernels that find copies, which a wheel delivered or rolled, and the messages that they are
copies of.

They keep the rule of ``copies`` for many records: an identity is 128 bits of hash over all that
survives.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from message_store.format import properties as names
from message_store.format.record_layout import (
    HEAD_V4_V4,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_IPV6,
    SYS_STORE_HOST_IPV6,
)
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.log import (
    AT_FLAG,
    AT_LOG_OFFSET,
    AT_MAGIC,
    AT_QUEUE_ID,
    AT_SIZE,
    AT_SYS_FLAG,
    BODY_AT,
    BODY_BYTES,
    IPV6_EXTRA,
    PARTS,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    TOPIC_AT,
    TOPIC_BYTES,
    find_parts,
    prepared_offset_at,
    store_time_at,
)
from message_store.kernels.raw_memory import load_i32, load_i64, load_u8
from message_store.kernels.text import equal_bytes, hash_bytes, is_text
from timer_wheel.reading.copies import CHANGING

Int64s = NDArray[np.int64]

OFFSET, IS_ROLL, STORE_MS, ONE, TWO, FIRST_OFFSET = range(6)
COPY_COLUMNS = 6
"""Where a copy lies, whether it went round again, when it was stored, its identity, and where the
message's first record was.
"""

_TIMER_TOPIC = np.frombuffer(names.TIMER_TOPIC.encode(), np.uint8)
_REAL_TOPIC = np.frombuffer(names.REAL_TOPIC.encode(), np.uint8)
_REAL_QUEUE_ID = np.frombuffer(names.REAL_QUEUE_ID.encode(), np.uint8)
_DEQUEUE = np.frombuffer(names.TIMER_DEQUEUE_MS.encode(), np.uint8)
_LABEL = np.frombuffer(names.TIMER_ROLL_LABEL.encode(), np.uint8)
_OUT = np.frombuffer(names.TIMER_OUT_MS.encode(), np.uint8)
_CHANGING = np.array(sorted(name.encode() for name in CHANGING))
_CHANGING_LENGTHS = np.array([len(name) for name in _CHANGING.tolist()], np.int64)
_CHANGING_BYTES = _CHANGING.itemsize
_CHANGING_TEXT = np.frombuffer(_CHANGING.tobytes(), np.uint8)
_CLOSER = names.PROPERTY_SEPARATOR[0]
_ZERO = ord("0")
_AT_BORN_TIME = HEAD_V4_V4.offset_of("born_timestamp_ms")
_AT_RECONSUME = HEAD_V4_V4.offset_of("reconsume_times")
_SEED_ONE, _SEED_TWO = np.uint64(0xB492B66FBE98F273), np.uint64(0x9FB21C651E98DF25)

_TOPIC_SEED, _QUEUE_SEED = np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)

_TOPIC_SPOT, _TOPIC_LENGTH, _QUEUE_SPOT, _QUEUE_LENGTH, _WAS_DEQUEUED, _HAS_LABEL, _HAS_OUT = range(
    7
)
_SPOTS = 7
_DIGITS = 10


@inline_kernel
def _changes(name: int, length: int) -> bool:
    """Whether a property of this name does not survive."""
    for number in range(len(_CHANGING_LENGTHS)):
        if length == _CHANGING_LENGTHS[number]:
            wanted = _CHANGING_TEXT.ctypes.data + number * _CHANGING_BYTES
            if equal_bytes(name, wanted, length):
                return True
    return False


@inline_kernel
def _tell(name: int, length: int, value: int, value_bytes: int, spots: Any) -> bool:
    """Note a property that tells whether its record is a copy; says whether it is a destination,
    which a copy need not have.
    """
    if is_text(name, length, _DEQUEUE):
        spots[_WAS_DEQUEUED] = 1
    elif is_text(name, length, _LABEL):
        spots[_HAS_LABEL] = 1
    elif is_text(name, length, _OUT):
        spots[_HAS_OUT] = 1
    elif is_text(name, length, _REAL_TOPIC):
        spots[_TOPIC_SPOT], spots[_TOPIC_LENGTH] = value, value_bytes
        return True
    elif is_text(name, length, _REAL_QUEUE_ID):
        spots[_QUEUE_SPOT], spots[_QUEUE_LENGTH] = value, value_bytes
        return True
    return False


@inline_kernel
def _hash_destination(record: int, parts: Any, spots: Any, seed: np.uint64) -> np.uint64:
    """Real topic and queue or, in a record without them, its own."""
    topic, topic_bytes = spots[_TOPIC_SPOT], spots[_TOPIC_LENGTH]
    if topic_bytes == 0:
        topic, topic_bytes = record + parts[TOPIC_AT], parts[TOPIC_BYTES]
    hashed = hash_bytes(topic, topic_bytes, seed ^ _TOPIC_SEED)
    queue_seed = seed ^ _QUEUE_SEED
    if spots[_QUEUE_LENGTH]:
        return hashed + hash_bytes(spots[_QUEUE_SPOT], spots[_QUEUE_LENGTH], queue_seed)
    digits = np.empty(_DIGITS, np.uint8)
    first, left = _DIGITS, load_i32(record + AT_QUEUE_ID)
    while first == _DIGITS or left > 0:
        first -= 1
        digits[first] = _ZERO + left % 10
        left //= 10
    return hashed + hash_bytes(digits.ctypes.data + first, _DIGITS - first, queue_seed)


@inline_kernel
def _identify(record: int, parts: Any, spots: Any) -> tuple[np.uint64, np.uint64]:
    """The identity of a record; ``spots`` gets what tells whether it is a copy."""
    place = record + parts[PROPERTIES_AT]
    end = place + parts[PROPERTIES_BYTES]
    one, two = np.uint64(0), np.uint64(0)
    spots[:] = 0
    while place < end:
        divider = place
        while divider < end and not 1 <= load_u8(divider) <= 2:
            divider += 1
        stop = divider
        while stop < end and load_u8(stop) != _CLOSER:
            stop += 1
        if stop - divider > 1 and divider > place:
            length = divider - place
            is_told = _tell(place, length, divider + 1, stop - divider - 1, spots)
            if not (is_told or _changes(place, length)):
                one += hash_bytes(place, stop - place, _SEED_ONE)
                two += hash_bytes(place, stop - place, _SEED_TWO)
        place = stop + 1
    one += _hash_destination(record, parts, spots, _SEED_ONE)
    two += _hash_destination(record, parts, spots, _SEED_TWO)
    sys_flag = load_i32(record + AT_SYS_FLAG)
    extra = IPV6_EXTRA if sys_flag & SYS_BORN_HOST_IPV6 else 0
    more = IPV6_EXTRA if sys_flag & SYS_STORE_HOST_IPV6 else 0
    rest = np.uint64(load_i64(record + _AT_BORN_TIME))
    rest ^= np.uint64(load_i32(record + AT_FLAG)) << np.uint64(32)
    rest += np.uint64(load_i32(record + _AT_RECONSUME + extra + more)) << np.uint64(48)
    body, length = record + parts[BODY_AT], parts[BODY_BYTES]
    return hash_bytes(body, length, one ^ rest), hash_bytes(body, length, two + rest)


@inline_kernel
def _is_copy(is_roll: bool, topic: int, topic_bytes: int, spots: Any) -> bool:
    """Whether a wheel or a timeline made the record: see ``copies``."""
    if is_roll and (spots[_WAS_DEQUEUED] or spots[_HAS_LABEL]):
        return True
    if not spots[_WAS_DEQUEUED]:
        return bool(spots[_HAS_OUT] and not spots[_TOPIC_LENGTH])
    is_there = topic_bytes == spots[_TOPIC_LENGTH]
    return bool(is_there and equal_bytes(topic, spots[_TOPIC_SPOT], topic_bytes))


@inline_kernel
def _is_record(record: int, room: int, offset: int, parts: Any) -> bool:
    if room < SMALLEST_RECORD_BYTES:
        return False
    magic, size = load_i32(record + AT_MAGIC), load_i32(record + AT_SIZE)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return False
    if size < SMALLEST_RECORD_BYTES or size > room or load_i64(record + AT_LOG_OFFSET) != offset:
        return False
    return find_parts(record, size, parts.ctypes.data)


@inline_kernel
def _first_offset(record: int, offset: int) -> int:
    """Where the message's first record was: see ``copies``."""
    told = ~prepared_offset_at(record)
    return int(told if 0 <= told < offset else offset)


@kernel("int64(int64, int64, int64, int64[:, ::1])")
def find_copies(buffer: int, length: int, base: int, copies: Any) -> int:
    """Find the copies among the records of a log file, which stand one behind another from ``base``
    on; returns how many there are.

    Those that a timeline has put again are among them. ``copies`` gets as many as it has room for.
    What is no record ends the search.
    """
    parts = np.empty(PARTS, np.int64)
    spots = np.empty(_SPOTS, np.int64)
    place, count = 0, 0
    while _is_record(buffer + place, length - place, base + place, parts):
        record = buffer + place
        one, two = _identify(record, parts, spots)
        topic, topic_bytes = record + parts[TOPIC_AT], parts[TOPIC_BYTES]
        is_roll = is_text(topic, topic_bytes, _TIMER_TOPIC)
        if _is_copy(is_roll, topic, topic_bytes, spots):
            if count < copies.shape[1]:
                copies[OFFSET, count] = base + place
                copies[IS_ROLL, count] = is_roll
                copies[STORE_MS, count] = store_time_at(record)
                copies[ONE, count] = np.int64(one)
                copies[TWO, count] = np.int64(two)
                copies[FIRST_OFFSET, count] = _first_offset(record, base + place)
            count += 1
        place += load_i32(record + AT_SIZE)
    return count


@kernel("void(int64[::1], int64[::1], int64[::1], int64[:, ::1])")
def identify_rows(addresses: Int64s, sizes: Int64s, offsets: Int64s, found: Any) -> None:
    """The identities of waiting records, in the columns of ``find_copies``; 0 and 0 where no record
    is.
    """
    parts = np.empty(PARTS, np.int64)
    spots = np.empty(_SPOTS, np.int64)
    for row in range(len(addresses)):
        found[OFFSET, row], found[IS_ROLL, row] = offsets[row], 0
        found[ONE, row], found[TWO, row], found[FIRST_OFFSET, row] = 0, 0, offsets[row]
        record = addresses[row]
        if record >= 0 and _is_record(record, sizes[row], offsets[row], parts):
            one, two = _identify(record, parts, spots)
            found[ONE, row], found[TWO, row] = np.int64(one), np.int64(two)
            found[FIRST_OFFSET, row] = _first_offset(record, offsets[row])
