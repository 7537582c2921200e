# SPDX-License-Identifier: Apache-2.0
"""Entries come out as java.util.Properties.load gives them (each row was compared with Java 17)."""

import pytest

from message_store.base.errors import BadFieldError
from migrate.settings import parse_properties


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (b"a=1\nb:2\nc 3\nd\t4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        (b"a \t= \f1", {"a": "1"}),
        (b"a==1\nb::2\nc = = 3", {"a": "=1", "b": ":2", "c": "= 3"}),
        (b"a=1 \n", {"a": "1 "}),
        (b"alone\nempty=\n=value", {"alone": "", "empty": "", "": "value"}),
        (b"# a=1\n ! b=2\n\n \t\nc=3", {"c": "3"}),
        (b"# never continued \\\na=1", {"a": "1"}),
        (b"a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
        (b"a=1\\\n   2\\\n# 3\nb=4", {"a": "12# 3", "b": "4"}),
        (b"a=1\\\r\n 2", {"a": "12"}),
        (b"a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        (b"a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        (b"a=1\\", {"a": "1"}),
        (b"k\\:e\\=y\\ s=\\ x", {"k:e=y s": " x"}),
        (b"a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
        (b"a=\\u00e9\\u4e2d", {"a": "\u00e9\u4e2d"}),
        (b"a=\xe9\xc3\xa9", {"a": "\u00e9\u00c3\u00a9"}),
        (b"a=1\na=2", {"a": "2"}),
        (b"", {}),
    ],
)
def test_entries_are_those_of_java(text: bytes, entries: dict[str, str]) -> None:
    assert parse_properties(text) == entries


@pytest.mark.parametrize("text", [b"a=\\u12", b"\\u12g4=1", b"a=\\u"])
def test_a_broken_unicode_escape_is_refused_as_by_java(text: bytes) -> None:
    with pytest.raises(BadFieldError, match="without four hexadecimal digits"):
        parse_properties(text)
