# SPDX-License-Identifier: Apache-2.0
"""The text kernels equal the plain code, and refuse what is no UTF-8."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.format.java_numbers import string_hash
from message_store.kernels.raw_memory import address_of
from message_store.kernels.text import NOT_UTF8, equal_bytes, hash_bytes, java_hash_utf8


def _hash(data: bytes) -> int:
    array = np.frombuffer(data + b"\0", np.uint8)
    return java_hash_utf8(address_of(array), len(data))


@given(st.text())
def test_the_hash_of_utf8_bytes_is_java_s_hash_of_the_text(text: str) -> None:
    assert _hash(text.encode()) == string_hash(text)


@given(st.binary(max_size=12))
def test_bytes_that_python_cannot_decode_are_not_utf8(data: bytes) -> None:
    try:
        expected = string_hash(data.decode())
    except UnicodeDecodeError:
        expected = NOT_UTF8
    assert _hash(data) == expected


@pytest.mark.parametrize(
    "data", [b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80", b"\xff"]
)
def test_overlong_surrogate_beyond_unicode_and_cut_sequences_are_refused(data: bytes) -> None:
    assert _hash(data) == NOT_UTF8


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_equal_bytes_compares_every_byte(one: bytes, other: bytes) -> None:
    length = min(len(one), len(other))
    left, right = np.frombuffer(one + b"\0", np.uint8), np.frombuffer(other + b"\0", np.uint8)
    expected = one[:length] == other[:length]
    assert equal_bytes(address_of(left), address_of(right), length) == expected
    assert equal_bytes(address_of(left), address_of(left), len(one))


def test_a_hash_depends_on_every_byte_on_the_length_and_on_the_seed() -> None:
    data = np.zeros(40, np.uint8)
    seen = {int(hash_bytes(address_of(data), length, np.uint64(1))) for length in range(40)}
    for place in range(40):
        changed = data.copy()
        changed[place] = 1
        seen.add(int(hash_bytes(address_of(changed), 40, np.uint64(1))))
    seen.add(int(hash_bytes(address_of(data), 40, np.uint64(2))))
    assert len(seen) == 81
