# SPDX-License-Identifier: Apache-2.0
"""Properties texts: a broker's reader with all its quirks, and a strict writer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError
from message_store.format.properties import decode_properties, encode_properties, split_entries
from tests.independent.raw_records import effective_properties, parse_properties
from tests.message_store.strategies import property_lists


@pytest.mark.parametrize("closed", [True, False])
@given(entries=property_lists)
def test_what_is_written_is_read_back(closed: bool, entries: list[tuple[str, str]]) -> None:
    text = encode_properties(entries, closed=closed)
    assert decode_properties(text) == dict(entries)
    assert [(name.decode(), value.decode()) for name, value in split_entries(text)] == entries


@given(st.text("ab\x01\x02", max_size=40))
def test_odd_texts_are_read_as_an_independent_reader_reads_them(text: str) -> None:
    raw = text.encode()
    assert decode_properties(raw) == effective_properties(parse_properties(raw))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"a\x01\x02b\x012", {"b": "2"}),
        (b"\x01b\x02", {}),
        (b"no value\x02b\x012\x02", {"b": "2"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"\x02\x02a\x01b\x02\x02", {"a": "b"}),
        ("ü\x01\N{GRINNING FACE}\x02".encode(), {"ü": "\N{GRINNING FACE}"}),
        (b"a\x01\xff", {"a": "\N{REPLACEMENT CHARACTER}"}),
    ],
)
def test_a_broker_reads_it_so(text: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(text) == expected


@given(st.binary(max_size=60))
def test_no_bytes_are_too_odd_to_read(text: bytes) -> None:
    assert all(name and value for name, value in decode_properties(text).items())


@pytest.mark.parametrize(
    ("name", "value"), [("", "v"), ("n", ""), ("n\x01", "v"), ("n", "v\x02"), ("n\x02", "v")]
)
def test_what_would_not_be_read_back_is_not_written(name: str, value: str) -> None:
    with pytest.raises(BadFieldError, match="cannot be stored"):
        encode_properties([("fine", "too"), (name, value)])


def test_no_properties_have_no_ending() -> None:
    assert encode_properties([], closed=True) == b""
