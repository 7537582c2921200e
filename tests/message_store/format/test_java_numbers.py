# SPDX-License-Identifier: Apache-2.0
"""Java's numbers: hashes of known strings, 32-bit wrap-around, Long.parseLong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError
from message_store.format.java_numbers import parse_long, string_hash, wrap_int32
from tests.independent.raw_records import java_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("order-cancelled", 441731474),
        ("标签", 857175),
        ("polygenelubricants", -2147483648),
        ("TopicA", -1784167150),
        ("\N{GRINNING FACE}", 1772899),
    ],
)
def test_known_strings_have_their_java_hash(text: str, expected: int) -> None:
    assert string_hash(text) == expected


@given(st.text(max_size=40))
def test_the_hash_is_that_of_an_independent_one(text: str) -> None:
    assert string_hash(text) == java_hash(text)


@given(st.integers(-(2**70), 2**70))
def test_wrapping_keeps_the_low_32_bits(value: int) -> None:
    wrapped = wrap_int32(value)
    assert -(2**31) <= wrapped < 2**31
    assert (wrapped - value) % 2**32 == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("+7", 7), ("-9223372036854775808", -(2**63)), ("007", 7), ("٣", 3)],
)
def test_what_java_parses_is_parsed(text: str, expected: int) -> None:
    assert parse_long(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "+", "-", "--1", " 1", "1 ", "1_0", "1.0", "0x1", "²", "9223372036854775808", "9" * 5000],
)
def test_what_java_refuses_is_refused(text: str) -> None:
    with pytest.raises(BadFieldError):
        parse_long(text)
