# SPDX-License-Identifier: Apache-2.0
"""The kernels of properties texts: join columns into texts, find one property in each text, make
unique keys.
"""

import numpy as np
from numpy.typing import NDArray

from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.kept_properties import entry_end_at, name_end_at
from message_store.kernels.raw_memory import (
    copy_bytes,
    copy_short,
    load_native,
    load_u8,
    load_word,
    store_u8,
)
from message_store.kernels.text import equal_bytes

PIECE_TEXT, PIECE_NUMBER, PIECE_READY = 0, 1, 2
"""A property of text, one of whole numbers, and a run of ready entries."""
PIECE_FIELDS = ("kind", "name", "name_bytes", "block", "starts", "lengths")
NUMBER_MAX_BYTES = 20

_KIND, _NAME, _NAME_BYTES, _BLOCK, _STARTS, _LENGTHS = range(len(PIECE_FIELDS))
_CLOSER = 2
_HIGH_BITS = np.uint64(0x8080808080808080)
_ONES = np.uint64(0x0101010101010101)
_HEX_0, _HEX_A = ord("0"), ord("A") - 10

Int64s = NDArray[np.int64]
Pieces = np.ndarray[tuple[int, int], np.dtype[np.int64]]


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
    """Address and length of the value of the last entry of this name; length 0 where there is
    none.
    """
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
    """Where in a block the value of one property lies, for each text of a byte column; length 0
    where it has none.
    """
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
