# SPDX-License-Identifier: Apache-2.0
"""Reads from many records of the timer topic what the wheel wants to know: one walk of each
properties text.

A recall key stands for slot, real topic and unique key; a message and the delete marker that takes
it away have the same one. It is two words of hash, 128 bits: good enough to tell messages apart.
The slot enters between topic and key, through ``mix64``. Two topics may differ in the same bits as
their slots: a seed xor-ed with the slot would give both one key.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from message_store.format import properties as names
from message_store.format.message_codec import body_crc
from message_store.format.record_layout import (
    HEAD_V4_V4,
)
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.log import (
    AT_BODY_CRC,
    AT_QUEUE_OFFSET,
    AT_SIZE,
    LONGEST_HEAD_BYTES,
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
    prepared_offset_at,
    store_time_at,
)
from message_store.kernels.properties import entry_end_at, name_end_at
from message_store.kernels.raw_memory import load_i32, load_i64, load_u8, store_native
from message_store.kernels.text import (
    NOT_UTF8,
    equal_bytes,
    hash_bytes,
    is_text,
    java_hash_utf8,
    mix64,
    plain_number,
    whole_number,
)
from timer_wheel.format.older_slots import EXACT_MS
from timer_wheel.format.timer_due import FINEST_MS, OVERDUE_MARK_MS
from timer_wheel.reading.delete_markers import MARKER_BODY, MARKER_FLAG, MARKER_TAGS

Int64s = NDArray[np.int64]

(
    STATUS, OUT_MS, STORE_MS, BORN_MS, TOPIC_HASH, IS_MARKER, ROLL_TIMES, PREPARED_OFFSET, KEY_ONE,
    KEY_TWO, ID, STORED_OUT_MS, CANCELS,
) = range(13)  # fmt: skip
FACT_COLUMNS = 13
"""What is told of each record."""

MESSAGE, MARKER, ODD_MARKER, MARKER_WITHOUT_KEY = range(4)
"""What IS_MARKER tells: a message; a delete marker; one that names another key than its own, or a
damaged offset; and a record with the body of a delete marker, and its tags or flag, without a key.
"""

FINE, MISSING, UNUSUAL = range(3)
"""A record of the usual shape; none of this size at this place; one for the scalar code."""

TIMED_ROWS = 3
"""What ``find_timed`` tells of a record: its queue offset, its log offset, its size."""

_TIMER_TOPIC = np.frombuffer(names.TIMER_TOPIC.encode(), np.uint8)
_OUT = np.frombuffer(names.TIMER_OUT_MS.encode(), np.uint8)
_TOPIC = np.frombuffer(names.REAL_TOPIC.encode(), np.uint8)
_KEY = np.frombuffer(names.UNIQUE_KEY.encode(), np.uint8)
_DELETE_KEY = np.frombuffer(names.TIMER_DELETE_UNIQUE_KEY.encode(), np.uint8)
_CANCELS = np.frombuffer(names.CANCELLED_OFFSET.encode(), np.uint8)
_ROLLS = np.frombuffer(names.TIMER_ROLL_TIMES.encode(), np.uint8)
_TAGS = np.frombuffer(names.TAGS.encode(), np.uint8)
_PLUS, _DASH = ord("+"), ord("-")
_NOTHING, _DAMAGED = -1, -2
_AT_FLAG = HEAD_V4_V4.offset_of("flag")
_AT_BORN_TIME = HEAD_V4_V4.offset_of("born_timestamp_ms")
_MARKER_TAGS = np.frombuffer(MARKER_TAGS.encode(), np.uint8)
_MARKER_CRC = body_crc(MARKER_BODY)
_CHECK, _CHECK_BYTES, _DIGITS = names.OFFSET_CHECK, len("-00"), names.OFFSET_DIGITS
ID_SEED = np.uint64(0xD6E8FEB86659FD93)
_SEED_ONE, _SEED_TWO = np.uint64(0x9AE16A3B2F90404F), np.uint64(0xC949D7C7509E6557)

_OUT_SPOT, _TOPIC_SPOT, _KEY_SPOT, _DELETE_SPOT, _ROLLS_SPOT, _TAGS_SPOT = 0, 2, 4, 6, 8, 10
_CANCELS_SPOT = 12
_SPOTS = 14


@inline_kernel
def _spot_of(name: int, length: int) -> int:
    if length == len(_KEY) and is_text(name, length, _KEY):
        return _KEY_SPOT
    if length == len(_TOPIC) and is_text(name, length, _TOPIC):
        return _TOPIC_SPOT
    if length == len(_OUT) and is_text(name, length, _OUT):
        return _OUT_SPOT
    if length == len(_ROLLS) and is_text(name, length, _ROLLS):
        return _ROLLS_SPOT
    if length == len(_DELETE_KEY) and is_text(name, length, _DELETE_KEY):
        return _DELETE_SPOT
    if length == len(_TAGS) and is_text(name, length, _TAGS):
        return _TAGS_SPOT
    if length == len(_CANCELS) and is_text(name, length, _CANCELS):
        return _CANCELS_SPOT
    return -1


@inline_kernel
def _walk(place: int, end: int, spots: int) -> None:
    """Where seven values lie; of equal names the last counts, and an empty one does not."""
    for spot in range(_SPOTS):
        store_native(spots + 8 * spot, 0)
    while place < end:
        divider = name_end_at(place, end)
        stop = entry_end_at(divider, end)
        if stop - divider > 1:
            spot = _spot_of(place, divider - place)
            if spot >= 0:
                store_native(spots + 8 * spot, divider + 1)
                store_native(spots + 8 * spot + 8, stop - divider - 1)
        place = stop + 1


@inline_kernel
def _tell_key(spots: Any, slot: int, facts: Any, row: int) -> None:
    """The recall key; of a marker that of its target, in either form. An odd marker gets none. A
    text that is the marker's own key is a key whole, also if that begins with the topic.
    """
    topic, topic_bytes = spots[_TOPIC_SPOT], spots[_TOPIC_SPOT + 1]
    spot = _DELETE_SPOT if spots[_DELETE_SPOT + 1] else _KEY_SPOT
    key, key_bytes = spots[spot], spots[spot + 1]
    own, own_bytes = spots[_KEY_SPOT], spots[_KEY_SPOT + 1]
    is_own = key_bytes == own_bytes and equal_bytes(key, own, own_bytes)
    if spot == _DELETE_SPOT and key_bytes > topic_bytes + 1 and not is_own:
        has_topic = topic_bytes > 0 and equal_bytes(key, topic, topic_bytes)
        if has_topic and load_u8(key + topic_bytes) == _PLUS:
            key += topic_bytes + 1
            key_bytes -= topic_bytes + 1
    one = mix64(hash_bytes(topic, topic_bytes, _SEED_ONE) ^ np.uint64(slot))
    two = mix64(hash_bytes(topic, topic_bytes, _SEED_TWO) ^ np.uint64(slot))
    facts[KEY_ONE, row] = np.int64(hash_bytes(key, key_bytes, one)) if key_bytes else 0
    facts[KEY_TWO, row] = np.int64(hash_bytes(key, key_bytes, two)) if key_bytes else 0


@inline_kernel
def _marker_kind(record: int, spots: Any) -> int:
    """Whether a record is a delete marker as a cancel makes it: it names its own key."""
    text, text_bytes = spots[_DELETE_SPOT], spots[_DELETE_SPOT + 1]
    tags, tags_bytes = spots[_TAGS_SPOT], spots[_TAGS_SPOT + 1]
    is_usual = is_text(tags, min(tags_bytes, len(_MARKER_TAGS)), _MARKER_TAGS)  # maybe run together
    is_usual = is_usual or load_i32(record + _AT_FLAG) == MARKER_FLAG
    is_usual = is_usual and load_i32(record + AT_BODY_CRC) == _MARKER_CRC
    if not text_bytes:
        return MARKER_WITHOUT_KEY if is_usual else MESSAGE
    key, key_bytes = spots[_KEY_SPOT], spots[_KEY_SPOT + 1]
    if not is_usual or not key_bytes:
        return MARKER
    if text_bytes == key_bytes and equal_bytes(text, key, key_bytes):
        return MARKER
    topic, topic_bytes = spots[_TOPIC_SPOT], spots[_TOPIC_SPOT + 1]
    if text_bytes == topic_bytes + 1 + key_bytes and equal_bytes(text, topic, topic_bytes):
        is_own = equal_bytes(text + topic_bytes + 1, key, key_bytes)
        if is_own and load_u8(text + topic_bytes) == _PLUS:
            return MARKER
    return ODD_MARKER


@inline_kernel
def _offset_of_text(place: int, length: int) -> int:
    """The same as ``offset_of_text``: _NOTHING where there is no text, _DAMAGED for damage."""
    if length == 0:
        return _NOTHING
    offset = whole_number(place, length, _DIGITS)
    if offset >= 0:
        return int(offset)
    end = length - _CHECK_BYTES
    if end > 0 and load_u8(place + end) == _DASH:
        offset = whole_number(place, end, _DIGITS)
        rest = whole_number(place + end + 1, _CHECK_BYTES - 1, _DIGITS)
        if offset >= 0 and rest == offset % _CHECK:
            return int(offset)
    return _DAMAGED


@kernel("int64(int64, int64, int64, int64[:, ::1])")
def find_timed(buffer: int, length: int, base: int, timed: Any) -> int:
    """Find the records of the timer topic among the bytes of a log file from ``base`` on, where a
    record begins; returns how many there are.

    ``timed``, of ``TIMED_ROWS``, gets as many as it has room for. Damage is stepped over.
    """
    parts = np.empty(PARTS, np.int64)
    count, place = 0, next_head(buffer, length, base, 0)
    while place >= 0:
        record = buffer + place
        size = load_i32(record + AT_SIZE)
        if find_parts(record, size, parts.ctypes.data):
            topic = record + parts[TOPIC_AT]
            if is_text(topic, parts[TOPIC_BYTES], _TIMER_TOPIC):
                if count < timed.shape[1]:
                    timed[0, count] = load_i64(record + AT_QUEUE_OFFSET)
                    timed[1, count] = base + place
                    timed[2, count] = size
                count += 1
        place = next_head(buffer, length, base, place + size)
    return count


@kernel("boolean(int64[::1], int64[::1])")
def is_any_to_be_read(addresses: Int64s, sizes: Int64s) -> bool:
    """Whether one of these records is a copy of ours that says where its first record was, has the
    body of a delete marker, or is not there with its size.
    """
    for row in range(len(addresses)):
        ahead = min(row + ROWS_AHEAD, len(addresses) - 1)
        prefetch_head_and_tail(addresses[ahead], sizes[ahead])
        if addresses[row] < 0 or sizes[row] < LONGEST_HEAD_BYTES:
            return True
        if load_i32(addresses[row] + AT_SIZE) != sizes[row]:
            return True
        if prepared_offset_at(addresses[row]) < 0:
            return True
        if load_i32(addresses[row] + AT_BODY_CRC) == _MARKER_CRC:
            return True
    return False


@inline_kernel
def _first_offset(offset: int, prepared_offset: int, rolls: int) -> int:
    """Where a message's first record was; one that a broker rolled does not say."""
    first = ~prepared_offset
    if rolls > 0 and first < offset:
        return max(first, 0)
    return offset


@inline_kernel
def number_of_older(first_offset: int, older_untils: Any) -> int:
    """Which of the older slots a record was stored for; their count for those of today."""
    for number in range(len(older_untils)):
        if first_offset < older_untils[number]:
            return number
    return len(older_untils)


@inline_kernel
def slot_of_older(out_ms: int, older_widths_ms: Any, number: int, precision_ms: int) -> int:
    """The slot whose end is the first at or after that of an older slot, by way of all that came
    between them. On a hierarchical wheel a millisecond was again what it had been.
    """
    if out_ms % FINEST_MS == OVERDUE_MARK_MS:
        return out_ms
    end_ms = out_ms - out_ms % older_widths_ms[number] + older_widths_ms[number]
    for later in range(number + 1, len(older_widths_ms)):
        if older_widths_ms[later] == EXACT_MS and out_ms % FINEST_MS != 0:
            end_ms = out_ms + 1
        else:
            end_ms += -end_ms % older_widths_ms[later]
    slot_ms = (end_ms - 1) // precision_ms * precision_ms
    if out_ms % FINEST_MS != 0 and out_ms // precision_ms * precision_ms == slot_ms:
        return out_ms
    return int(slot_ms)


@kernel(
    "void(int64[::1], int64[::1], int64[::1], int64, boolean, int64[::1], int64[::1],"
    " int64[:, ::1])"
)
def read_timer_records(
    addresses: Int64s,
    sizes: Int64s,
    offsets: Int64s,
    precision_ms: int,
    wants_keys: bool,
    older_untils: Int64s,
    older_widths_ms: Int64s,
    facts: Any,
) -> None:
    """Fill ``facts``, a column a record. An address is -1 where there is no memory to look at;
    otherwise ``sizes`` bytes can be read there. Recall keys and ids are told where they are
    wanted; an id is the hash of the unique key alone, 0 where there is none.

    Messages that were first stored before one of ``older_untils`` were promised for the ends of
    slots of the width beside it; OUT_MS is the slot of today that ends then or next.
    """
    parts = np.empty(PARTS, np.int64)
    spots = np.empty(_SPOTS, np.int64)
    for row in range(len(addresses)):
        ahead = min(row + ROWS_AHEAD, len(addresses) - 1)
        prefetch_head_and_tail(addresses[ahead], sizes[ahead])
        record = addresses[row]
        if record < 0 or not is_record_at(record, sizes[row], offsets[row], parts.ctypes.data):
            facts[STATUS, row] = MISSING
            continue
        text = record + parts[PROPERTIES_AT]
        _walk(text, text + parts[PROPERTIES_BYTES], spots.ctypes.data)
        out_ms = plain_number(spots[_OUT_SPOT], spots[_OUT_SPOT + 1])
        topic_hash = 0
        if spots[_TOPIC_SPOT + 1]:
            topic_hash = java_hash_utf8(spots[_TOPIC_SPOT], spots[_TOPIC_SPOT + 1])
        usual = out_ms >= 0 and topic_hash != NOT_UTF8
        facts[STATUS, row] = FINE if usual else UNUSUAL
        facts[STORED_OUT_MS, row] = out_ms
        facts[STORE_MS, row] = store_time_at(record)
        facts[BORN_MS, row] = load_i64(record + _AT_BORN_TIME)
        facts[TOPIC_HASH, row] = topic_hash
        cancels = _offset_of_text(spots[_CANCELS_SPOT], spots[_CANCELS_SPOT + 1])
        kind = _marker_kind(record, spots)
        facts[IS_MARKER, row] = ODD_MARKER if kind == MARKER and cancels == _DAMAGED else kind
        rolls = plain_number(spots[_ROLLS_SPOT], spots[_ROLLS_SPOT + 1])
        facts[ROLL_TIMES, row] = max(rolls, 0)
        facts[CANCELS, row] = cancels
        facts[PREPARED_OFFSET, row] = prepared_offset_at(record)
        if usual and len(older_untils):
            first = _first_offset(offsets[row], facts[PREPARED_OFFSET, row], facts[ROLL_TIMES, row])
            number = number_of_older(first, older_untils)
            if number < len(older_untils):
                out_ms = slot_of_older(out_ms, older_widths_ms, number, precision_ms)
        facts[OUT_MS, row] = out_ms
        if wants_keys:
            if facts[IS_MARKER, row] <= MARKER:  # nobody knows which of its keys is damaged
                _tell_key(spots, out_ms // precision_ms, facts, row)
            key, key_bytes = spots[_KEY_SPOT], spots[_KEY_SPOT + 1]
            facts[ID, row] = np.int64(hash_bytes(key, key_bytes, ID_SEED)) if key_bytes else 0
