# SPDX-License-Identifier: Apache-2.0
"""Kernels that walk a properties text once: destination, tag, and the entries that are dropped.

Equal to ``redelivery.record.redelivered_properties`` and to what ``properties.split_entries``
keeps (docs/FORMAT.md, properties).
"""

from typing import Any

import numpy as np

from message_store.format import properties as names
from message_store.format.record_layout import PROPERTIES_RUN
from message_store.kernels.cache import inline_kernel
from message_store.kernels.raw_memory import (
    copy_bytes,
    copy_short,
    load_native,
    load_u8,
    load_word,
    store_i16,
    store_native,
    store_u8,
    trailing_zeros,
)
from message_store.kernels.text import equal_bytes, is_text

TOPIC_VALUE, QUEUE_VALUE, TAGS_VALUE, DROPPED = 0, 2, 4, 6
"""A walk's result: address and length of three values, and how many bytes are dropped."""
WALK_FIELDS = 7

_REAL_TOPIC = np.frombuffer(names.REAL_TOPIC.encode(), np.uint8)
_REAL_QUEUE_ID = np.frombuffer(names.REAL_QUEUE_ID.encode(), np.uint8)
_TAGS = np.frombuffer(names.TAGS.encode(), np.uint8)
_CLOSER = names.PROPERTY_SEPARATOR[0]
_LENGTH_BYTES = PROPERTIES_RUN.length.size
_DIGITS_MAX = 9
_NONE, _ONE = np.uint64(0), np.uint64(1)
_ONES = np.uint64(0x0101010101010101)
_THREES, _CLOSERS = _ONES * np.uint64(3), _ONES * np.uint64(_CLOSER)
_HIGH_BITS = np.uint64(0x8080808080808080)


@inline_kernel
def lengths_mask(dropped: Any) -> np.uint64:
    """A bit for each length that a dropped name has."""
    mask = np.uint64(0)
    for number in range(dropped.shape[0]):
        mask |= _ONE << np.uint64(dropped[number, 1])
    return mask


@inline_kernel
def _is_dropped(name: int, length: int, mask: np.uint64, dropped: int, count: int) -> bool:
    """Whether a name is one of those to leave out; ``dropped`` is where their addresses and lengths
    lie.
    """
    if length > 63 or mask >> np.uint64(length) & _ONE == _NONE:
        return False
    for entry in range(dropped, dropped + 16 * count, 16):
        if load_native(entry + 8) == length and equal_bytes(name, load_native(entry), length):
            return True
    return False


@inline_kernel
def name_end_at(address: int, end: int) -> int:
    """The first separator of either kind from an address on, or the end."""
    while end - address >= 8:
        word = load_word(address)
        below_3 = (word - _THREES) & ~word & _HIGH_BITS  # exact up to the first that is
        if below_3 == _NONE:
            address += 8
            continue
        address += trailing_zeros(below_3) >> 3
        if load_u8(address) != 0:
            return address
        address += 1
    while address < end and not 1 <= load_u8(address) <= 2:
        address += 1
    return address


@inline_kernel
def entry_end_at(address: int, end: int) -> int:
    """The first separator of entries from an address on, or the end."""
    while end - address >= 8:
        word = load_word(address) ^ _CLOSERS
        closers = (word - _ONES) & ~word & _HIGH_BITS
        if closers != _NONE:
            return address + (trailing_zeros(closers) >> 3)  # type: ignore[no-any-return]
        address += 8
    while address < end and load_u8(address) != _CLOSER:
        address += 1
    return address


@inline_kernel
def walk_properties(
    address: int, end: int, mask: np.uint64, dropped: int, dropped_count: int, walked: int
) -> None:
    """Find in a properties text its record's destination, its tag, and how much is dropped.

    As in Java the last of equal names counts, and an empty value does not. ``walked`` is the
    address of ``WALK_FIELDS`` int64s, which get the result.
    """
    for field in range(WALK_FIELDS):
        store_native(walked + 8 * field, 0)
    while address < end:
        name_end = name_end_at(address, end)
        stop = entry_end_at(name_end, end)
        length = name_end - address
        if stop > name_end:
            if _is_dropped(address, length, mask, dropped, dropped_count):
                dropped_bytes = load_native(walked + 8 * DROPPED)
                store_native(walked + 8 * DROPPED, dropped_bytes + stop + 1 - address)
            elif stop > name_end + 1:
                which = -1
                if is_text(address, length, _REAL_TOPIC):
                    which = TOPIC_VALUE
                elif is_text(address, length, _REAL_QUEUE_ID):
                    which = QUEUE_VALUE
                elif is_text(address, length, _TAGS):
                    which = TAGS_VALUE
                if which >= 0:
                    store_native(walked + 8 * which, name_end + 1)
                    store_native(walked + 8 * which + 8, stop - name_end - 1)
        address = stop + 1


@inline_kernel
def _copy_kept(
    target: int, target_end: int, address: int, end: int, mask: np.uint64, dropped: int, count: int
) -> int:
    """Copy the entries that stay, each closed if there is room; returns the address behind."""
    while address < end:
        name_end = name_end_at(address, end)
        stop = entry_end_at(name_end, end)
        if not (stop > name_end and _is_dropped(address, name_end - address, mask, dropped, count)):
            copy_short(target, address, stop - address)
            target += stop - address
            if target < target_end:
                store_u8(target, _CLOSER)
                target += 1
        address = stop + 1
    return target


@inline_kernel
def kept_bytes(properties: int, length: int, dropped_bytes: int, suffix: int) -> int:
    """The length of the new properties, given how much of them stays behind."""
    if length == 0 or load_u8(properties + length - 1) == _CLOSER:
        return length - dropped_bytes + suffix
    return max(length + 1 - dropped_bytes + suffix - 1, 0)


@inline_kernel
def whole_number(address: int, length: int) -> int:
    """The number of some plain digits, or -1."""
    if not 0 < length <= _DIGITS_MAX:
        return -1
    value = 0
    for at in range(address, address + length):
        digit = load_u8(at) - 0x30
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@inline_kernel
def fill_properties(
    out: int, properties: int, length: int, suffix: int, suffix_bytes: int, dropped_bytes: int,
    mask: np.uint64, dropped: int, dropped_count: int,
) -> None:  # fmt: skip
    """The properties with their length in front; what is not closed stays so."""
    new_length = kept_bytes(properties, length, dropped_bytes, suffix_bytes)
    store_i16(out, new_length)
    address = out + _LENGTH_BYTES
    end = address + new_length
    if dropped_bytes:
        text_end = properties + length
        address = _copy_kept(address, end, properties, text_end, mask, dropped, dropped_count)
    else:
        copy_bytes(address, properties, length)
        address += length
        if address < end and length > 0 and load_u8(address - 1) != _CLOSER:
            store_u8(address, _CLOSER)
            address += 1
    copy_short(address, suffix, min(suffix_bytes, end - address))
