# SPDX-License-Identifier: Apache-2.0
"""Text at raw addresses, for kernels: Java's hash of UTF-8, comparison, a 64-bit hash."""

from typing import Any

import numpy as np

from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.raw_memory import load_u8, load_word

NOT_UTF8 = -(2**62)
"""The result of ``java_hash_utf8`` for bytes that are no UTF-8; no 32-bit hash is this number."""
_PLUS = ord("+")
_DIGITS_MAX = 18


@inline_kernel
def _continuation(address: int) -> int:
    """The six bits of a continuation byte, or -1."""
    byte = load_u8(address)
    return byte & 0x3F if byte & 0xC0 == 0x80 else -1


@inline_kernel
def _code_point(address: int, left: int) -> int:
    """The code point behind a byte above 0x7F, its length above bit 24; -1 where it is none."""
    first = load_u8(address)
    if 0xC2 <= first <= 0xDF and left >= 2:
        second = _continuation(address + 1)
        return -1 if second < 0 else 2 << 24 | (first & 0x1F) << 6 | second
    if 0xE0 <= first <= 0xEF and left >= 3:
        second, third = _continuation(address + 1), _continuation(address + 2)
        point = (first & 0x0F) << 12 | second << 6 | third
        fits = second >= 0 and third >= 0 and point >= 0x800 and not 0xD800 <= point <= 0xDFFF
        return 3 << 24 | point if fits else -1
    if 0xF0 <= first <= 0xF4 and left >= 4:
        second, third, fourth = (
            _continuation(address + 1),
            _continuation(address + 2),
            _continuation(address + 3),
        )
        point = (first & 0x07) << 18 | second << 12 | third << 6 | fourth
        fits = second >= 0 and third >= 0 and fourth >= 0 and 0x10000 <= point <= 0x10FFFF
        return 4 << 24 | point if fits else -1
    return -1


@kernel("int64(int64, int64)")
def java_hash_utf8(address: int, length: int) -> int:
    """``String.hashCode`` of ``length`` bytes of UTF-8, signed; ``NOT_UTF8`` where they are none.

    Equal to ``java_numbers.string_hash`` of the decoded text.
    """
    value = 0
    index = 0
    while index < length:
        byte = load_u8(address + index)
        if byte < 0x80:
            value = value * 31 + byte & 0xFFFFFFFF
            index += 1
            continue
        packed = _code_point(address + index, length - index)
        if packed < 0:
            return NOT_UTF8
        point = packed & 0xFFFFFF
        if point >= 0x10000:
            value = value * 31 + (0xD800 + (point - 0x10000 >> 10)) & 0xFFFFFFFF
            point = 0xDC00 + (point - 0x10000 & 0x3FF)
        value = value * 31 + point & 0xFFFFFFFF
        index += packed >> 24
    return value - 2**32 if value >= 2**31 else value


@kernel("boolean(int64, int64, int64)")
def equal_bytes(one: int, other: int, length: int) -> bool:
    """Whether ``length`` bytes at two addresses are the same."""
    index = 0
    while index + 8 <= length:
        if load_word(one + index) != load_word(other + index):
            return False
        index += 8
    while index < length:
        if load_u8(one + index) != load_u8(other + index):
            return False
        index += 1
    return True


@inline_kernel
def is_text(address: int, length: int, wanted: Any) -> bool:
    """Whether the ``length`` bytes at an address are those of ``wanted``, an array of bytes."""
    return bool(length == len(wanted) and equal_bytes(address, wanted.ctypes.data, length))


@inline_kernel
def mix64(value: np.uint64) -> np.uint64:
    """Spread every bit of a word over all others (the finaliser of MurmurHash3)."""
    value = (value ^ value >> np.uint64(33)) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ value >> np.uint64(33)) * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ value >> np.uint64(33)


@kernel("uint64(int64, int64, uint64)")
def hash_bytes(address: int, length: int, seed: np.uint64) -> np.uint64:
    """A 64-bit hash of ``length`` bytes; not against an adversary, but good enough to count by."""
    value = seed ^ np.uint64(length) * np.uint64(0x9E3779B97F4A7C15)
    index = 0
    while index + 8 <= length:
        value = mix64(value ^ load_word(address + index)) + np.uint64(0x9E3779B97F4A7C15)
        index += 8
    tail = np.uint64(0)
    shift = np.uint64(0)
    while index < length:
        tail |= np.uint64(load_u8(address + index)) << shift
        shift += np.uint64(8)
        index += 1
    return mix64(value ^ tail)


@inline_kernel
def whole_number(address: int, length: int, most_digits: int) -> int:
    """The number of some digits, or -1; up to 18 of them fit."""
    if not 0 < length <= most_digits:
        return -1
    value = 0
    for at in range(address, address + length):
        digit = load_u8(at) - 0x30
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@inline_kernel
def plain_number(address: int, length: int) -> int:
    """The number of some plain digits, or -1 for anything else, which may still be a number."""
    if length > 1 and load_u8(address) == _PLUS:
        address += 1
        length -= 1
    return whole_number(address, length, _DIGITS_MAX)
