# SPDX-License-Identifier: Apache-2.0
"""The two 64-bit hashes that verification compares messages by, as kernel pieces at raw addresses.

Each hash takes eight bytes a step. A step is a bijection of the state for any word and of the word
for any state, so two messages that differ in one word never meet again by that step alone; the two
hashes use different multipliers, rotations and orders of operations. They guard against faults, not
against someone who looks for collisions; the seed lets a run be repeated with other values.
"""

import numpy as np

from message_store.kernel_cache import inline_kernel
from message_store.raw_memory import load_u8, load_word

A_MULTIPLIER = 0x9E3779B97F4A7C15
B_MULTIPLIER = 0xC2B2AE3D27D4EB4F
B_WORD_MULTIPLIER = 0xD6E8FEB86659FD93
FINISH_FIRST = 0xBF58476D1CE4E5B9
FINISH_SECOND = 0x94D049BB133111EB

_A_MULTIPLIER = np.uint64(A_MULTIPLIER)
_B_MULTIPLIER = np.uint64(B_MULTIPLIER)
_B_WORD_MULTIPLIER = np.uint64(B_WORD_MULTIPLIER)
_FINISH_FIRST = np.uint64(FINISH_FIRST)
_FINISH_SECOND = np.uint64(FINISH_SECOND)


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
def short_word(address: int, length: int) -> np.uint64:
    """Up to seven bytes as one word, the first byte lowest."""
    word = np.uint64(0)
    for place in range(length):
        word |= np.uint64(load_u8(address + place)) << np.uint64(8 * place)
    return word


@inline_kernel
def take_bytes(
    a: np.uint64, b: np.uint64, address: int, length: int
) -> tuple[np.uint64, np.uint64]:
    """Take the length and that many bytes into both hashes.

    The last word of eight or more bytes overlaps the one before it; the length makes that
    unambiguous.
    """
    a = step_a(a, np.uint64(length))
    b = step_b(b, np.uint64(length))
    place = np.int64(0)
    while length - place >= 8:
        word = load_word(address + place)
        a = step_a(a, word)
        b = step_b(b, word)
        place += 8
    if place < length:
        last = address + length - 8
        word = load_word(last) if length >= 8 else short_word(address, length)
        a = step_a(a, word)
        b = step_b(b, word)
    return a, b


@inline_kernel
def take_bytes_once(state: np.uint64, address: int, length: int) -> np.uint64:
    """As :func:`take_bytes`, for the first hash alone."""
    state = step_a(state, np.uint64(length))
    place = np.int64(0)
    while length - place >= 8:
        state = step_a(state, load_word(address + place))
        place += 8
    if place < length:
        if length >= 8:
            state = step_a(state, load_word(address + length - 8))
        else:
            state = step_a(state, short_word(address, length))
    return state
