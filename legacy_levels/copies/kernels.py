# SPDX-License-Identifier: Apache-2.0
"""Kernels that recognise delivered copies: a digest of every field that survives delivery.

A broker that delivers a delayed message appends a copy of it to its real topic. Body, flags, born
time and host, store host, reconsume times and properties stay. Brokers of 5.x write the properties
in another order. They leave out what their map does not hold: empty values, the earlier of two
equal names. So the properties are compared as a set of pairs, without those that a put writes
afresh.

A copy that was delivered here names the record that waited, and needs no digest
(``message_store.redelivery.lineage``).
"""

from typing import Any

import numpy as np

from message_store.format import properties as names
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import (
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_MAX_BYTES,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_IPV6,
    SYS_COMMIT,
    SYS_STORE_HOST_IPV6,
    SYS_TRANSACTION_MASK,
)
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.log import (
    AT_FLAG,
    AT_LOG_OFFSET,
    AT_MAGIC,
    AT_PREPARED,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_SIZE,
    AT_STORE_IP,
    AT_STORE_TIME,
    AT_SYS_FLAG,
    BODY_AT,
    BODY_BYTES,
    IPV6_EXTRA,
    PARTS,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    RECORD,
    TOPIC_AT,
    TOPIC_BYTES,
    entry_head_bytes,
    find_parts,
    record_at,
    store_time_at,
)
from message_store.kernels.properties import entry_end_at, name_end_at
from message_store.kernels.raw_memory import load_i32, load_i64, load_u8
from message_store.kernels.text import (
    equal_bytes,
    hash_bytes,
    is_text,
    mix64,
    plain_number,
    whole_number,
)
from message_store.redelivery.lineage import first_offset_at

LEVEL_RECORD, DELIVERED_COPY, REPLACEMENT = 1, 2, 3
"""What a noted record is: one waiting in a level, one that is the copy of another, or one waiting
in a level that is in its queue, and replaces another.
"""

KIND, OFFSET, SIZE, QUEUE_ID, QUEUE_OFFSET, STORE_MS, NAMED, DIGEST_1, DIGEST_2 = range(9)
"""Columns of a note; ``NAMED`` is where the record lies that a copy names, or that one replaces
which waits for another time; -1 for none.
"""
NOTE_COLUMNS = 9
NAMES_NONE = -1
NOTES, STOPPED_AT, WHY, NEWEST_MS = range(4)

UNITS_AT, UNITS_END, NEXT_UNIT, CONFIRMED = range(4)
"""Columns of what a queue leads one to expect, a row a queue id: the address of its units, in the
order of the log; how many; the next one; how many records were where their unit says.
"""
EXPECTED_COLUMNS = 4

SCRATCH_SLOTS = 1 << 14
"""Room for the names of one record's properties: more than twice as many as it can have."""
assert SCRATCH_SLOTS > 2 * (PROPERTIES_MAX_BYTES // 4)

_SEED_1 = np.uint64(0x243F6A8885A308D3)
_SEED_2 = np.uint64(0x13198A2E03707344)
_LEVEL_TOPIC = np.frombuffer(names.LEVEL_TOPIC.encode(), np.uint8)
_DELAY = np.frombuffer(names.DELAY.encode(), np.uint8)
_REAL_TOPIC = np.frombuffer(names.REAL_TOPIC.encode(), np.uint8)
_REAL_QUEUE_ID = np.frombuffer(names.REAL_QUEUE_ID.encode(), np.uint8)
_MADE_ANEW = (names.CRC32, names.INNER_MULTI_DISPATCH, names.INNER_MULTI_QUEUE_OFFSET)
_ANEW_1, _ANEW_2, _ANEW_3 = (np.frombuffer(name.encode(), np.uint8) for name in _MADE_ANEW)
_RESCHEDULED = np.frombuffer(names.RESCHEDULED_FROM.encode(), np.uint8)
_PARTS, _DIGITS, _HALF = 3, names.REPLACEMENT_DIGITS, names.REPLACEMENT_DIGITS // 2
_TEXT_BYTES = _PARTS * (_DIGITS + 1) - 1
_HIGH_UNIT, _TOO_HIGH = 10**_HALF, 10 ** (names.OFFSET_DIGITS - _HALF)
_SPACE = ord(" ")
_UNIT_BYTES = QUEUE_UNIT.size
_UNIT_OFFSET = QUEUE_UNIT.offset_of("commit_log_offset")
_UNIT_SIZE = QUEUE_UNIT.offset_of("size_bytes")


@inline_kernel
def _is_kept(name: int, name_end: int, pair_end: int) -> bool:
    """Whether a broker's map holds a pair: it has a name and a value."""
    return name_end > name and pair_end > name_end + 1


@inline_kernel
def _is_delivered(record: int, parts: Any) -> bool:
    """Whether a record lies where its own REAL_TOPIC and REAL_QID wanted it, with its DELAY."""
    place = record + parts[PROPERTIES_AT]
    end = place + parts[PROPERTIES_BYTES]
    has_delay, in_topic, in_queue = False, False, False
    while place < end:
        name_end = name_end_at(place, end)
        pair_end = entry_end_at(name_end, end)
        if _is_kept(place, name_end, pair_end):
            length = name_end - place
            value, value_bytes = name_end + 1, pair_end - name_end - 1
            if is_text(place, length, _DELAY):
                has_delay = True
            elif is_text(place, length, _REAL_TOPIC):
                topic = record + parts[TOPIC_AT]
                same_length = value_bytes == parts[TOPIC_BYTES]
                in_topic = same_length and equal_bytes(topic, value, value_bytes)
            elif is_text(place, length, _REAL_QUEUE_ID):
                in_queue = plain_number(value, value_bytes) == load_i32(record + AT_QUEUE_ID)
        place = pair_end + 1
    return has_delay and in_topic and in_queue


@inline_kernel
def _add_pairs(record: int, parts: Any, scratch: Any, sums: Any) -> None:
    """Add up the hashes of the pairs in the record's map, whatever their order.

    ``scratch`` has rows of slots: a name's hash (zeros before and after), the two hashes of its
    pair, and the slots in use.
    """
    place = record + parts[PROPERTIES_AT]
    end = place + parts[PROPERTIES_BYTES]
    sums[0], sums[1] = np.uint64(0), np.uint64(0)
    used = 0
    while place < end:
        name_end = name_end_at(place, end)
        pair_end = entry_end_at(name_end, end)
        length = name_end - place
        is_kept = _is_kept(place, name_end, pair_end)
        if is_kept and not (
            is_text(place, length, _ANEW_1)
            or is_text(place, length, _ANEW_2)
            or is_text(place, length, _ANEW_3)
        ):
            name = hash_bytes(place, length, _SEED_1) | np.uint64(1)
            slot = np.int64(name >> np.uint64(1)) % SCRATCH_SLOTS
            while scratch[0, slot] != np.uint64(0) and scratch[0, slot] != name:
                slot = (slot + 1) % SCRATCH_SLOTS
            if scratch[0, slot] == name:  # the last of equal names wins
                sums[0] -= scratch[1, slot]
                sums[1] -= scratch[2, slot]
            else:
                scratch[0, slot] = name
                scratch[3, used] = np.uint64(slot)
                used += 1
            scratch[1, slot] = hash_bytes(place, pair_end - place, _SEED_1)
            scratch[2, slot] = hash_bytes(place, pair_end - place, _SEED_2)
            sums[0] += scratch[1, slot]
            sums[1] += scratch[2, slot]
        place = pair_end + 1
    for number in range(used):
        scratch[0, np.int64(scratch[3, number])] = np.uint64(0)


@inline_kernel
def _digest(record: int, parts: Any, pairs: np.uint64, seed: np.uint64) -> np.uint64:
    """One 64-bit digest of what survives delivery, given the sum over its pairs."""
    sys_flag = load_i32(record + AT_SYS_FLAG)
    born_extra = IPV6_EXTRA if sys_flag & SYS_BORN_HOST_IPV6 else 0
    store_extra = IPV6_EXTRA if sys_flag & SYS_STORE_HOST_IPV6 else 0
    store_host = record + AT_STORE_IP + born_extra
    store_host_bytes = AT_PREPARED - AT_STORE_IP + store_extra  # reconsume times stand behind it
    value = mix64(pairs ^ seed) + np.uint64(load_i32(record + AT_FLAG))
    # System flag, born time and born host stand in a row before the store time.
    value = mix64(value) ^ hash_bytes(
        record + AT_SYS_FLAG, AT_STORE_TIME + born_extra - AT_SYS_FLAG, seed
    )
    value = mix64(value) ^ hash_bytes(store_host, store_host_bytes, seed)
    return mix64(value) ^ hash_bytes(record + parts[BODY_AT], parts[BODY_BYTES], seed)


@inline_kernel
def _note_digests(record: int, parts: Any, scratch: Any, sums: Any, note: Any) -> None:
    _add_pairs(record, parts, scratch, sums)
    note[DIGEST_1] = np.int64(_digest(record, parts, sums[0], _SEED_1))
    note[DIGEST_2] = np.int64(_digest(record, parts, sums[1], _SEED_2))


@inline_kernel
def _kind_of(record: int, is_named: bool, parts: Any) -> int:
    transaction = load_i32(record + AT_SYS_FLAG) & SYS_TRANSACTION_MASK
    if transaction != 0 and transaction != SYS_COMMIT:
        return 0
    if is_text(record + parts[TOPIC_AT], parts[TOPIC_BYTES], _LEVEL_TOPIC):
        return LEVEL_RECORD
    return DELIVERED_COPY if is_named or _is_delivered(record, parts) else 0


@inline_kernel
def _replaced_at(record: int, offset: int, parts: Any) -> int:
    """Where the record lies that is replaced by a waiting one, which lies at an offset of the log;
    its own offset where it replaces none (``rescheduling.replaced_offset``).
    """
    place = record + parts[PROPERTIES_AT]
    end = place + parts[PROPERTIES_BYTES]
    replaced = offset
    while place < end:
        name_end = name_end_at(place, end)
        pair_end = entry_end_at(name_end, end)
        if pair_end > name_end + 1 and is_text(place, name_end - place, _RESCHEDULED):
            replaced = _replaced_by_text(name_end + 1, pair_end - name_end - 1, offset)
        place = pair_end + 1
    return replaced


@inline_kernel
def _replaced_by_text(text: int, length: int, offset: int) -> int:
    """The same by the property's text; of several with that name, the last one counts."""
    if length != _TEXT_BYTES:
        return offset
    older, own = offset, -1
    for part in range(_PARTS):
        number = text + part * (_DIGITS + 1)
        high = whole_number(number, _HALF, _HALF)
        low = whole_number(number + _HALF, _HALF, _HALF)
        if high < 0 or low < 0 or (part and load_u8(number - 1) != _SPACE):
            return offset
        if part == 0 and high < _TOO_HIGH:
            older = high * _HIGH_UNIT + low
        elif part == 1 and high < _TOO_HIGH:
            own = high * _HIGH_UNIT + low
    return older if own == offset and older < own else offset


@inline_kernel
def _is_confirmed(offset: int, size: int, queue_id: int, expected: Any) -> bool:
    """Whether the next unit of its queue leads to a level record; the units before it are passed,
    since no record is where they say.
    """
    if queue_id < 0 or queue_id >= len(expected):
        return False
    queue = expected[queue_id]
    unit = queue[UNITS_AT] + queue[NEXT_UNIT] * _UNIT_BYTES
    while queue[NEXT_UNIT] < queue[UNITS_END] and load_i64(unit + _UNIT_OFFSET) < offset:
        queue[NEXT_UNIT] += 1
        unit += _UNIT_BYTES
    if queue[NEXT_UNIT] == queue[UNITS_END]:
        return False
    if load_i64(unit + _UNIT_OFFSET) != offset or load_i32(unit + _UNIT_SIZE) != size:
        return False
    queue[CONFIRMED] += 1
    return True


@kernel("void(int64, int64, int64, int64, int64[:,::1], int64[:,::1], uint64[:,::1], int64[::1])")
def note_window(
    buffer: int,
    length: int,
    base: int,
    file_room: int,
    expected: Any,
    notes: Any,
    scratch: Any,
    results: Any,
) -> None:
    """Walk the whole records of a buffer; note those waiting in levels and those delivered.

    A level record that its queue's next unit in ``expected`` leads to is counted there and not
    noted, but where it replaces another; ``expected`` has rows of ``EXPECTED_COLUMNS``, or none
    where all are to be noted. ``notes`` has a
    row for each record that the buffer can hold, of ``NOTE_COLUMNS``; digests are only made of
    copies that name no record. ``results`` gets how many notes, where the walk stopped, why
    (``log_kernels``), and the newest store time, 0 for none.
    """
    parts = np.zeros(PARTS, np.int64)
    sums = np.zeros(2, np.uint64)
    place, count, newest = 0, 0, 0
    while True:
        at = place + entry_head_bytes(buffer + place, length - place, base + place)
        record = buffer + at
        why = record_at(record, length - at, file_room - at, base + at, parts.ctypes.data)
        if why != RECORD:
            break
        place = at
        newest = max(newest, store_time_at(record))
        named = first_offset_at(record, base + place)
        kind = _kind_of(record, named < base + place, parts)
        size, queue_id = load_i32(record + AT_SIZE), load_i32(record + AT_QUEUE_ID)
        if kind == LEVEL_RECORD:
            named = _replaced_at(record, base + place, parts)
        is_named = named < base + place
        if kind == LEVEL_RECORD and _is_confirmed(base + place, size, queue_id, expected):
            kind = REPLACEMENT if is_named else 0
        if kind:
            note = notes[count]
            note[KIND] = kind
            note[OFFSET] = base + place
            note[SIZE] = size
            note[QUEUE_ID] = queue_id
            note[QUEUE_OFFSET] = load_i64(record + AT_QUEUE_OFFSET)
            note[STORE_MS] = store_time_at(record)
            note[NAMED] = named if is_named else NAMES_NONE
            if kind == DELIVERED_COPY and not is_named:
                _note_digests(record, parts, scratch, sums, note)
            count += 1
        place += size
    results[NOTES], results[STOPPED_AT], results[WHY], results[NEWEST_MS] = (
        count,
        place,
        why,
        newest,
    )


@kernel("void(int64, int64, int64, int64[::1], int64[::1], int64[:,::1], uint64[:,::1])")
def digest_records(
    buffer: int,
    length: int,
    base: int,
    offsets: Any,
    sizes: Any,
    notes: Any,
    scratch: Any,
) -> None:
    """The digests of records at known offsets, where a buffer holds the log from ``base`` on.

    ``notes[i, KIND]`` becomes LEVEL_RECORD where such a record is, and 0 where none of that size
    lies wholly in the buffer.
    """
    parts = np.zeros(PARTS, np.int64)
    sums = np.zeros(2, np.uint64)
    for row in range(len(offsets)):
        notes[row, KIND] = 0
        place = offsets[row] - base
        size = sizes[row]
        if place < 0 or size < SMALLEST_RECORD_BYTES or size > length or place > length - size:
            continue
        record = buffer + place
        magic = load_i32(record + AT_MAGIC)
        is_record = magic in (MAGIC_V1, MAGIC_V2)
        is_record = is_record and load_i32(record + AT_SIZE) == size
        is_record = is_record and load_i64(record + AT_LOG_OFFSET) == offsets[row]
        if is_record and find_parts(record, size, parts.ctypes.data):
            notes[row, KIND] = LEVEL_RECORD
            notes[row, STORE_MS] = store_time_at(record)
            _note_digests(record, parts, scratch, sums, notes[row])


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1])")
def pair_up(
    message_groups: Any, earliest_ms: Any, copy_groups: Any, copied_ms: Any, has_copy: Any
) -> None:
    """Give each message the first unused copy of its group that is not older than its time.

    Messages and copies are each sorted by group, then by time.
    """
    copy = 0
    for message in range(len(message_groups)):
        group = message_groups[message]
        while copy < len(copy_groups) and (
            copy_groups[copy] < group
            or (copy_groups[copy] == group and copied_ms[copy] < earliest_ms[message])
        ):
            copy += 1
        has_copy[message] = copy < len(copy_groups) and copy_groups[copy] == group
        if has_copy[message]:
            copy += 1
