# SPDX-License-Identifier: Apache-2.0
"""Configuration texts: what four broker versions accept, refuse and write."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError, FormatError
from message_store.format.broker_json import (
    ConfigDialect,
    Damage,
    JsonValue,
    examine,
    java_key_order,
    parse,
    write,
)

ALL_DIALECTS = list(ConfigDialect)
TABLE = {"offsetTable": {1: 10}}


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{1:10}}',
        b'{ "offsetTable" : { 1 : 10 } }\r\n \t',
        b"{'offsetTable':{1:10}}",
        b'{"offsetTable":{1:10,}}',
        b'{"offsetTable":{1:10},}',
        b'/* c */{"offsetTable":{1:10}}//x',
        b'\xef\xbb\xbf{"offsetTable":{1:10}}',
        b'{"offsetTable":{1:10}}\0\0',
        b'{"offsetTable":{1:10}}\x1a',
        b'{"offsetTable":{01:010}}',
        b'{"offsetTable":{+1:+10}}',
        b'{"offsetTable":{1:9,1:10}}',
        b'{"offsetTable":{2:5},"offsetTable":{1:10}}',
    ],
)
def test_what_all_brokers_accept_is_accepted(text: bytes) -> None:
    assert parse(text) == TABLE


@pytest.mark.parametrize(
    ("text", "damage", "value"),
    [
        (b"", Damage.EMPTY, None),
        (b" \n", Damage.EMPTY, None),
        (bytes(50), Damage.NUL_FILLED, None),
        (b'{"offsetTable":{1:10', Damage.TRUNCATED, {"offsetTable": {}}),
        (b'{"offsetTable":{1:10}', Damage.TRUNCATED, TABLE),
        (b'{"offsetTable":{1:10,', Damage.TRUNCATED, TABLE),
        (b'{"offsetTable":{1:10,2', Damage.TRUNCATED, TABLE),
        (b'{"offsetTable":{1:10,2:2', Damage.TRUNCATED, TABLE),
        (b'{"offsetTable":{1:10,2:26\0\0', Damage.TRUNCATED, TABLE),
        (b'{"offsetTab', Damage.TRUNCATED, {}),
        (b'{"offsetTable":{1:10}}}', Damage.STALE_TAIL, TABLE),
        (b'{"offsetTable":{1:10}}x', Damage.STALE_TAIL, TABLE),
        (b'{"offsetTable":{1:10}}{"a":1}', Damage.STALE_TAIL, TABLE),
        (b'{"offsetTable":{1:10}}\xff\xfe', Damage.STALE_TAIL, TABLE),
        (b'{"offsetTable":{1:10},\xff\xfe}', Damage.NOT_UTF8, TABLE),
        ('{"offsetTable":{1:10}}'.encode("utf-16"), Damage.NOT_UTF8, None),
        (b'{"offsetTable":{a:10}}', Damage.NOT_JSON, {"offsetTable": {}}),
        (b'{"offsetTable":{1:10,,2:3}}', Damage.NOT_JSON, TABLE),
        (b'{"offsetTable":{1:10]', Damage.NOT_JSON, TABLE),
        (b'{"offsetTable" {1:10}}', Damage.NOT_JSON, {}),
        (b'{"offsetTable":{1:99999999999999999999}}', Damage.NOT_JSON, {"offsetTable": {}}),
        (b"hello", Damage.NOT_JSON, None),
        (b"\0\0{}", Damage.NOT_JSON, None),
    ],
)
def test_damage_is_named_and_what_stood_before_it_is_kept(
    text: bytes, damage: Damage, value: object
) -> None:
    reading = examine(text)
    assert (reading.damage, reading.value) == (damage, value)
    with pytest.raises(FormatError):
        parse(text)


def test_damage_is_placed_by_bytes_not_by_characters() -> None:
    error = examine('{"城市":1,x}'.encode()).error
    assert error is not None
    assert error.offset == 12


def test_bytes_that_are_no_utf8_inside_a_string_are_replaced_as_java_does() -> None:
    assert parse(b'{"x":"a\xff"}') == {"x": "a\N{REPLACEMENT CHARACTER}"}


def test_escapes_are_read() -> None:
    text = rb'{"x":"\"\\\/\b\f\n\r\t\u57ce\ud83d\ude00"}'
    assert parse(text) == {"x": '"\\/\b\f\n\r\t城\N{GRINNING FACE}'}


@pytest.mark.parametrize(("text", "value"), [(b"null", None), (b"17", 17), (b" true", True)])
def test_a_lone_word_or_number_is_whole(text: bytes, value: object) -> None:
    assert parse(text) == value


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    with pytest.raises(BadFieldError, match="deeply"):
        parse(b"[" * 100_000)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    examine(text)


@given(st.text('{}[]:,"\\1a \n\0/*', max_size=60))
def test_any_text_of_the_signs_that_matter_is_read_or_refused(text: str) -> None:
    examine(text.encode())


# --- writing --------------------------------------------------------------------------------------

LEVELS = {1: 10, 18: 180, 63: 630, 64: 640, 65: 650, 128: 1280, 2: 20}
ONE_LINE = '{\n\t"offsetTable":{64:640,128:1280,1:10,65:650,2:20,18:180,63:630\n\t}\n}'
LINES = (
    '{\n\t"offsetTable":{\n\t\t64:640,\n\t\t128:1280,\n\t\t1:10,\n\t\t65:650,\n\t\t2:20,'
    "\n\t\t18:180,\n\t\t63:630\n\t}\n}"
)
BOX = {
    "s": "a\"b\\c\n\t/城<>&'\N{GRINNING FACE}",
    "list": ["x", "y"],
    "empty": [],
    "map": {},
    "nest": {1: "v", 2: {"k": 1}},
    "t": True,
    "gone": None,
    "d": 1.5,
}
BOX_HEAD = (
    '{\n\t"s":"a\\"b\\\\c\\n\\t/城<>&\'\N{GRINNING FACE}",\n\t"list":[\n\t\t"x",\n\t\t"y"\n\t],'
)
BOX_1 = (
    BOX_HEAD + '\n\t"empty":[],\n\t"map":{},\n\t"nest":{1:"v",2:{\n\t\t\t"k":1\n\t\t}\n\t},'
    '\n\t"t":true,\n\t"d":1.5\n}'
)
BOX_5_4 = (
    BOX_HEAD + '\n\t"empty":[\n\t\t\n\t],\n\t"map":{\n\t\t\n\t},'
    '\n\t"nest":{\n\t\t1:"v",\n\t\t2:{\n\t\t\t"k":1\n\t\t}\n\t},\n\t"t":true,\n\t"d":1.5\n}'
)
BOX_5_5 = BOX_5_4.replace("[\n\t\t\n\t]", "[]").replace("{\n\t\t\n\t}", "{}")


@pytest.mark.parametrize(
    ("value", "by_dialect"),
    [
        ({"offsetTable": LEVELS}, (ONE_LINE, ONE_LINE, LINES, LINES)),
        (BOX, (BOX_1, BOX_1, BOX_5_4, BOX_5_5)),
        (
            {"e": {}},
            ('{\n\t"e":{}\n}', '{\n\t"e":{}\n}', '{\n\t"e":{\n\t\t\n\t}\n}', '{\n\t"e":{}\n}'),
        ),
    ],
    ids=["integer keys", "everything", "empty"],
)
def test_the_text_is_what_the_broker_of_that_version_writes(
    value: JsonValue, by_dialect: tuple[str, ...]
) -> None:
    assert [write(value, dialect).decode() for dialect in ALL_DIALECTS] == list(by_dialect)


def test_integer_keys_follow_the_hash_table_as_it_grows() -> None:
    assert java_key_order(range(1, 64)) == list(range(1, 64))
    assert java_key_order([*range(1, 47), 64]) == [64, *range(1, 47)]
    assert java_key_order([*range(1, 48), 64]) == [*range(1, 48), 64]


_scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)
_names = st.text(string.ascii_letters, max_size=5)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(_names, inner, max_size=4)
        | st.dictionaries(st.integers(-5, 200), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(_names, _values, max_size=4), st.sampled_from(ALL_DIALECTS))
def test_what_is_written_is_read_back(value: JsonValue, dialect: ConfigDialect) -> None:
    assert parse(write(value, dialect)) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_without_a_text_is_refused(value: float) -> None:
    with pytest.raises(BadFieldError):
        write({"x": value})
