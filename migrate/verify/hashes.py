# SPDX-License-Identifier: Apache-2.0
"""The two 64-bit hashes that verification compares messages by, as kernel pieces at raw addresses.

Each hash takes eight bytes a step. A step is a bijection of the state for any word and of the word
for any state, so two messages that differ in one word never meet again by that step alone; the two
hashes use different multipliers, rotations and orders of operations. Long texts run in two chains a
hash, even and odd words, because a chain waits for its own multiplication. They guard against
faults, not against someone who looks for collisions; the seed lets a run be repeated with others.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from message_store.kernels.cache import inline_kernel
from message_store.kernels.raw_memory import load_u8, load_word

_A_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_B_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
_B_WORD_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_FINISH_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_FINISH_SECOND = np.uint64(0x94D049BB133111EB)

_LONG_BYTES = 64
"""From this length on a text runs in two chains."""


@inline_kernel
def step_a(state: np.uint64, word: np.uint64) -> np.uint64:
    """Take one word into the first hash."""
    state = (state ^ word) * _A_MULTIPLIER
    return state ^ state >> np.uint64(32)


@inline_kernel
def step_b(state: np.uint64, word: np.uint64) -> np.uint64:
    """Take one word into the second hash."""
    state = (state << np.uint64(27) | state >> np.uint64(37)) + word * _B_WORD_MULTIPLIER
    return (state ^ state >> np.uint64(29)) * _B_MULTIPLIER


@inline_kernel
def finish(state: np.uint64) -> np.uint64:
    """Spread every bit of a state over all bits of the result (splitmix64)."""
    state = (state ^ state >> np.uint64(30)) * _FINISH_FIRST
    state = (state ^ state >> np.uint64(27)) * _FINISH_SECOND
    return state ^ state >> np.uint64(31)


@inline_kernel
def _last_word(address: int, length: int) -> np.uint64:
    """The last bytes that fill no word of their own: of eight or more bytes the last eight, which
    overlap the word before; the length makes that unambiguous.
    """
    if length >= 8:
        return load_word(address + length - 8)  # type: ignore[no-any-return]
    word = np.uint64(0)
    for place in range(length):
        word |= np.uint64(load_u8(address + place)) << np.uint64(8 * place)
    return word


@inline_kernel
def take_bytes(
    a: np.uint64, b: np.uint64, address: int, length: int
) -> tuple[np.uint64, np.uint64]:
    """Take the length and that many bytes into both hashes."""
    a = step_a(a, np.uint64(length))
    b = step_b(b, np.uint64(length))
    place = np.int64(0)
    if length >= _LONG_BYTES:
        odd_a, odd_b = a, b
        while length - place >= 16:
            even, odd = load_word(address + place), load_word(address + place + 8)
            a, b = step_a(a, even), step_b(b, even)
            odd_a, odd_b = step_a(odd_a, odd), step_b(odd_b, odd)
            place += 16
        a, b = step_a(a, odd_a), step_b(b, odd_b)
    while length - place >= 8:
        word = load_word(address + place)
        a, b = step_a(a, word), step_b(b, word)
        place += 8
    if place < length:
        word = _last_word(address, length)
        a, b = step_a(a, word), step_b(b, word)
    return a, b


@inline_kernel
def take_bytes_once(state: np.uint64, address: int, length: int) -> np.uint64:
    """Take the length and that many bytes into the first hash alone, in one chain."""
    state = step_a(state, np.uint64(length))
    place = np.int64(0)
    while length - place >= 8:
        state = step_a(state, load_word(address + place))
        place += 8
    return step_a(state, _last_word(address, length)) if place < length else state


# --- finding separators eight bytes at a time -----------------------------------------------------

_ONES = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)


@intrinsic
def _trailing_zeros(_context: Any, value: Any) -> Any:
    """How many zero bits stand below the lowest set one; the value is not 0."""

    def code(_ctx: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


@inline_kernel
def find_byte(address: int, end: int, byte: int) -> int:
    """The address of the first such byte before ``end``; ``end`` where there is none."""
    pattern = np.uint64(byte) * _ONES
    while end - address >= 8:
        word = load_word(address) ^ pattern
        # The lowest marked byte is right; marks above it may not be.
        marks = (word - _ONES) & ~word & _HIGH_BITS
        if marks != np.uint64(0):
            return address + (_trailing_zeros(marks) >> 3)  # type: ignore[call-arg]
        address += 8
    while address < end and load_u8(address) != byte:
        address += 1
    return address
