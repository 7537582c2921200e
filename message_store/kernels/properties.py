# SPDX-License-Identifier: Apache-2.0
"""The kernels of properties texts: join columns into texts, find one property in each text, make
unique keys. And they walk a text once for destination, tag and the entries that are dropped.

The walk is equal to ``redelivery.record.redelivered_properties`` and to what
``properties.split_entries`` keeps (docs/FORMAT.md, properties).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from message_store.format import properties as names
from message_store.format.record_layout import PROPERTIES_RUN
from message_store.kernels.cache import inline_kernel, kernel
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
PIECE_TEXT, PIECE_NUMBER, PIECE_READY = 0, 1, 2
"""A property of text, one of whole numbers, and a run of ready entries."""
PIECE_FIELDS = ("kind", "name", "name_bytes", "block", "starts", "lengths")
NUMBER_MAX_BYTES = 20

_KIND, _NAME, _NAME_BYTES, _BLOCK, _STARTS, _LENGTHS = range(len(PIECE_FIELDS))
_REAL_TOPIC = np.frombuffer(names.REAL_TOPIC.encode(), np.uint8)
_REAL_QUEUE_ID = np.frombuffer(names.REAL_QUEUE_ID.encode(), np.uint8)
_TAGS = np.frombuffer(names.TAGS.encode(), np.uint8)
_CLOSER = names.PROPERTY_SEPARATOR[0]
_LENGTH_BYTES = PROPERTIES_RUN.length.size
_NONE, _ONE = np.uint64(0), np.uint64(1)
_ONES = np.uint64(0x0101010101010101)
_THREES, _CLOSERS = _ONES * np.uint64(3), _ONES * np.uint64(_CLOSER)
_HIGH_BITS = np.uint64(0x8080808080808080)
_HEX_0, _HEX_A = ord("0"), ord("A") - 10

Int64s = NDArray[np.int64]
Pieces = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@inline_kernel
def lengths_mask(dropped: Any) -> np.uint64:
    """A bit for each length that a dropped name has."""
    mask = np.uint64(0)
    for number in range(dropped.shape[0]):
        mask |= _ONE << np.uint64(dropped[number, 1])
    return mask


@inline_kernel
def _is_dropped(name: int, length: int, mask: np.uint64, dropped: int, count: int) -> bool:
    """Whether a name is to be left out; ``dropped`` is where their addresses and lengths lie."""
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


@inline_kernel
def _has_byte(word: np.uint64, pattern: np.uint64) -> bool:
    difference = word ^ pattern
    return bool((difference - _ONES) & ~difference & _HIGH_BITS)


@inline_kernel
def _has_separator(address: int, length: int) -> bool:
    index = 0
    while index + 8 <= length:
        word = load_word(address + index)
        if _has_byte(word, _ONES) or _has_byte(word, _ONES + _ONES):
            return True
        index += 8
    while index < length:
        if 1 <= load_u8(address + index) <= 2:
            return True
        index += 1
    return False


@inline_kernel
def decimal_bytes(value: int) -> int:
    """How many bytes a number takes in decimal digits, its sign included."""
    left = np.uint64(-value) if value < 0 else np.uint64(value)
    digits = 1
    power = np.uint64(10)
    while digits < 19 and left >= power:
        digits += 1
        power *= np.uint64(10)
    return digits + (value < 0)


@inline_kernel
def write_number(target: int, value: int) -> int:
    """The decimal digits of a number; returns the address behind them."""
    end = target + decimal_bytes(value)
    left = np.uint64(-value) if value < 0 else np.uint64(value)
    if value < 0:
        store_u8(target, 0x2D)
        target += 1
    for address in range(end - 1, target - 1, -1):
        quotient = left // np.uint64(10)
        store_u8(address, np.int64(left - quotient * np.uint64(10)) + 0x30)
        left = quotient
    return end


@inline_kernel
def _write_piece(pieces: Pieces, piece: int, row: int, target: int) -> int:
    """One piece of one text; returns the address behind it, or -1 for a separator in a value."""
    kind = pieces[piece, _KIND]
    if kind == PIECE_NUMBER:
        copy_short(target, pieces[piece, _NAME], pieces[piece, _NAME_BYTES])
        value = load_native(pieces[piece, _BLOCK] + 8 * row)
        target = write_number(target + pieces[piece, _NAME_BYTES], value)
        store_u8(target, _CLOSER)
        return target + 1
    length = load_native(pieces[piece, _LENGTHS] + 8 * row)
    if length == 0:
        return target
    source = pieces[piece, _BLOCK] + load_native(pieces[piece, _STARTS] + 8 * row)
    if kind == PIECE_READY:
        copy_bytes(target, source, length)
        return target + length  # type: ignore[no-any-return]
    if _has_separator(source, length):
        return -1
    copy_short(target, pieces[piece, _NAME], pieces[piece, _NAME_BYTES])
    target += pieces[piece, _NAME_BYTES]
    copy_short(target, source, length)
    store_u8(target + length, _CLOSER)
    return target + length + 1  # type: ignore[no-any-return]


@kernel("int64(int64[:, ::1], boolean, int64, int64[::1], int64[::1])")
def join_pieces(pieces: Pieces, closed: bool, target: int, starts: Int64s, lengths: Int64s) -> int:
    """Write every text behind the one before; returns -1, or the first row with a separator in a
    value.

    ``target`` has room for all names, values and separators, and for ``NUMBER_MAX_BYTES`` a number.
    """
    address = target
    for row in range(len(starts)):
        start = address
        for piece in range(pieces.shape[0]):
            address = _write_piece(pieces, piece, row, address)
            if address < 0:
                return row
        if not closed and address > start:
            address -= 1
        starts[row] = start - target
        lengths[row] = address - start
    return -1


@inline_kernel
def find_value(text: int, end: int, name: int, name_bytes: int) -> tuple[int, int]:
    """Address and length of the last value of this name; length 0 where there is none."""
    found, found_bytes = text, 0
    while text < end:
        divider = name_end_at(text, end)
        stop = entry_end_at(divider, end)
        if (
            divider - text == name_bytes
            and stop - divider > 1
            and equal_bytes(text, name, name_bytes)
        ):
            found, found_bytes = divider + 1, stop - divider - 1
        text = stop + 1
    return found, found_bytes


@kernel("void(int64, int64, int64, int64, int64, int64[::1], int64[::1])")
def find_property(
    block: int,
    starts: int,
    lengths: int,
    name: int,
    name_bytes: int,
    found_starts: Int64s,
    found_lengths: Int64s,
) -> None:
    """Where in a block the value of one property lies, for each text; length 0 for none."""
    for row in range(len(found_starts)):
        text = block + load_native(starts + 8 * row)
        end = text + load_native(lengths + 8 * row)
        found, length = find_value(text, end, name, name_bytes)
        found_starts[row] = found - block
        found_lengths[row] = length


@kernel("void(int64, int64, int64, int64[::1], int64)")
def fill_hex_keys(
    target: int, prefix: int, prefix_bytes: int, numbers: Int64s, digits: int
) -> None:
    """Write, one behind another, a prefix and a number in upper-case hexadecimal digits."""
    for row in range(len(numbers)):
        copy_short(target, prefix, prefix_bytes)
        target += prefix_bytes + digits
        left = numbers[row]
        for address in range(target - 1, target - 1 - digits, -1):
            digit = left & 15
            store_u8(address, digit + (_HEX_A if digit > 9 else _HEX_0))
            left >>= 4
