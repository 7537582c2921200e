# SPDX-License-Identifier: Apache-2.0
"""One record at a time: known bytes both ways, damage by name, nothing but FormatError."""

import hashlib
import zlib

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import (
    BadFieldError,
    BadMagicError,
    ChecksumError,
    FormatError,
    TruncatedRecordError,
)
from message_store.columns.message_batch import decode_batch
from message_store.format.message import Host, Message, StoredMessage
from message_store.format.message_codec import (
    body_crc,
    decode_message_at,
    encode_message,
    record_size_at,
)
from message_store.format.record_layout import (
    BLANK_RECORD,
    HEAD_V4_V4,
    HEAD_V6_V6,
    MAGIC_BLANK,
    SMALLEST_RECORD_BYTES,
)
from tests.independent.raw_records import decode_record
from tests.message_store.strategies import stored_messages
from tests.message_store.vectors import (
    CRC_PROPERTY,
    IPV6,
    LEVEL_OPEN,
    LONG_TOPIC,
    SHA256,
    VECTORS,
    WITH_CRC,
    message,
)

VECTOR = pytest.mark.parametrize("name", VECTORS)


def bytes_of(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name][1].replace("\n", ""))


# --- vectors --------------------------------------------------------------------------------------


@VECTOR
def test_a_known_message_has_its_known_bytes(name: str) -> None:
    assert encode_message(VECTORS[name][0]).hex() == bytes_of(name).hex()
    assert hashlib.sha256(bytes_of(name)).hexdigest() == SHA256[name]


@VECTOR
def test_known_bytes_are_their_known_message(name: str) -> None:
    assert decode_message_at(b"xx" + bytes_of(name), 2) == VECTORS[name][0]


@VECTOR
def test_reading_in_bulk_knows_the_vectors_too(name: str) -> None:
    known = VECTORS[name][0]
    assert decode_batch(bytes_of(name), np.zeros(1, np.int64)).message(0) == known


def test_an_address_of_a_record_is_its_message_id() -> None:
    assert LEVEL_OPEN.offset_message_id == "7F00000100002A9F00000000000004D2"
    assert IPV6.offset_message_id == "20010DB800000000000000000000000200002A9F0000000000000000"


def test_the_blank_of_116_left_bytes() -> None:
    blank = BLANK_RECORD.encode(size_bytes=116, magic=MAGIC_BLANK)
    assert blank.hex() == "00000074cbd43194"


def test_the_whole_record_checksum_property() -> None:
    record = encode_message(WITH_CRC)
    assert record.endswith(CRC_PROPERTY)
    assert zlib.crc32(record[:-20]) & 0x7FFFFFFF == 914_701_189
    assert b"__CRC32#\x01" + b"0914701189"[::-1] + b"\x02" == CRC_PROPERTY


def test_a_body_checksum_has_no_sign_bit() -> None:
    assert body_crc(b"hello") == 0x3610A686
    assert body_crc(b"") == 0
    assert zlib.crc32(b"a") > 0x7FFFFFFF
    assert body_crc(b"a") == zlib.crc32(b"a") - 2**31


def test_sizes_of_the_fixed_parts() -> None:
    assert (HEAD_V4_V4.size, HEAD_V6_V6.size, SMALLEST_RECORD_BYTES) == (84, 108, 91)
    places = {"magic": 4, "queue_id": 12, "flag": 16, "queue_offset": 20, "commit_log_offset": 28}
    places |= {"sys_flag": 36, "born_timestamp_ms": 40, "born_ip": 48, "store_timestamp_ms": 56}
    assert {name: HEAD_V4_V4.offset_of(name) for name in places} == places
    assert HEAD_V6_V6.offset_of("store_timestamp_ms") == 68


# --- laws -----------------------------------------------------------------------------------------


@given(stored_messages())
def test_what_is_written_is_read_back(stored: StoredMessage) -> None:
    record = encode_message(stored)
    assert record_size_at(record, 0) == len(record)
    assert decode_message_at(record) == stored


@given(stored_messages())
def test_an_independent_reader_sees_the_same(stored: StoredMessage) -> None:
    record = encode_message(stored)
    raw = decode_record(record)
    assert raw.topic == stored.topic
    assert raw.body == stored.body
    assert raw.properties == stored.properties_text
    assert (raw.born_ip, raw.born_port) == (stored.born_host.ip, stored.born_host.port)
    assert (raw.store_ip, raw.store_port) == (stored.store_host.ip, stored.store_host.port)
    same = "queue_id flag queue_offset commit_log_offset sys_flag born_timestamp_ms"
    same += " store_timestamp_ms reconsume_times prepared_transaction_offset"
    for name in same.split():
        assert getattr(raw, name) == getattr(stored, name), name


@given(st.binary(max_size=300), st.integers(-5, 310))
def test_arbitrary_bytes_are_refused_with_a_format_error_or_read(data: bytes, at: int) -> None:
    try:
        stored = decode_message_at(data, at)
    except FormatError:
        return
    assert encode_message(stored) == data[at : at + record_size_at(data, at)]


@given(stored_messages(), st.data())
def test_a_record_with_a_changed_byte_is_refused_or_is_another(
    stored: StoredMessage, data: st.DataObject
) -> None:
    record = bytearray(encode_message(stored))
    place = data.draw(st.integers(0, len(record) - 1))
    record[place] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_message_at(bytes(record))
    except FormatError:
        return
    assert found != stored


# --- damage, by name ------------------------------------------------------------------------------

GOOD = encode_message(LEVEL_OPEN)
BODY_LENGTH_AT = HEAD_V4_V4.size
BODY_AT = BODY_LENGTH_AT + 4
TOPIC_LENGTH_AT = BODY_AT + 5
PROPERTIES_LENGTH_AT = TOPIC_LENGTH_AT + 1 + 19


def with_bytes(place: int, *values: int) -> bytes:
    record = bytearray(GOOD)
    record[place : place + len(values)] = bytes(values)
    return bytes(record)


@pytest.mark.parametrize(
    ("damage", "record", "error", "words"),
    [
        ("nothing at all", b"", TruncatedRecordError, "no room"),
        ("seven bytes", GOOD[:7], TruncatedRecordError, "no room"),
        ("a head only", GOOD[:84], TruncatedRecordError, "cut off at offset 0 .*found 84"),
        ("the last byte missing", GOOD[:-1], TruncatedRecordError, "cut off"),
        ("fresh file space", bytes(200), BadMagicError, "found 0x0"),
        ("the end of a file", bytes.fromhex("00000074cbd43194"), BadMagicError, "0xcbd43194"),
        ("a wrong magic", with_bytes(7, 0xA8), BadMagicError, "0xdaa320a8"),
        ("a size of zero", with_bytes(0, 0, 0, 0, 0), BadFieldError, "smaller than any"),
        ("a negative size", with_bytes(0, 0xFF), BadFieldError, "smaller than any"),
        ("a size too large", with_bytes(2, 1), TruncatedRecordError, "expected 439, found 183"),
        ("a size too small", with_bytes(3, 0xB6), BadFieldError, "properties does not fit"),
        ("a negative body", with_bytes(BODY_LENGTH_AT, 0x80), BadFieldError, "body does not fit"),
        ("a body too long", with_bytes(BODY_LENGTH_AT + 2, 1), BadFieldError, "body does not fit"),
        ("a topic too long", with_bytes(TOPIC_LENGTH_AT, 127), BadFieldError, "topic does not"),
        ("a negative topic", with_bytes(TOPIC_LENGTH_AT, 0x80), BadFieldError, "topic does not"),
        ("short properties", with_bytes(PROPERTIES_LENGTH_AT + 1, 3), BadFieldError, "add up"),
        ("long properties", with_bytes(PROPERTIES_LENGTH_AT, 1), BadFieldError, "properties does"),
        ("a flipped bit in the body", with_bytes(BODY_AT, 0x69), ChecksumError, "damaged"),
        ("a flipped checksum", with_bytes(8, 0xB6), ChecksumError, "damaged"),
        ("a topic not UTF-8", with_bytes(TOPIC_LENGTH_AT + 1, 0xFF), BadFieldError, "not UTF-8"),
        ("IPv6 said, IPv4 there", with_bytes(39, 0x30), BadFieldError, "does not fit"),
    ],
)
def test_damage_is_named(damage: str, record: bytes, error: type[FormatError], words: str) -> None:
    with pytest.raises(error, match=words):
        decode_message_at(record)
    with pytest.raises(error, match=words):
        decode_batch(record, np.zeros(1, np.int64))


def test_an_ipv6_head_that_the_record_has_no_room_for_is_refused() -> None:
    record = bytearray(encode_message(message(topic="", body=b"")))
    record[39] = 0x30
    with pytest.raises(FormatError):
        decode_message_at(bytes(record))


@pytest.mark.parametrize("offset", [-1, -200, 183, 10_000])
def test_an_offset_outside_is_refused(offset: int) -> None:
    with pytest.raises(TruncatedRecordError):
        decode_message_at(GOOD, offset)


def test_a_damaged_body_can_be_looked_at() -> None:
    assert decode_message_at(with_bytes(BODY_AT, 0x69), check_crc=False).body == b"iello"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topic": "t" * 128}, "topic too long"),
        ({"topic": "ü" * 64}, "topic too long"),
        ({"properties_text": b"p" * 32_768}, "properties too long"),
        ({"queue_id": 2**31}, "commit log record head"),
        ({"store_timestamp_ms": 2**63}, "commit log record head"),
    ],
)
def test_what_no_record_can_hold_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(BadFieldError, match=words):
        encode_message(attrs.evolve(LEVEL_OPEN, **changes))  # type: ignore[arg-type]


def test_the_longest_of_everything_is_kept() -> None:
    for stored in (
        message(topic="t" * 127, properties_text=b"p" * 32_767),
        attrs.evolve(LONG_TOPIC, topic="ü" * 16_383),
    ):
        assert decode_message_at(encode_message(stored)) == stored


# --- the values -----------------------------------------------------------------------------------


def test_flags_and_hosts_must_agree() -> None:
    with pytest.raises(ValueError, match="IPv6 bits"):
        message(sys_flag=0x10)
    with pytest.raises(ValueError, match="4 or 16 bytes"):
        Host(b"12345", 1)


def test_a_stored_message_answers_what_its_properties_say() -> None:
    stored = message(
        properties_text=b"KEYS\x01k1 k2\x02TAGS\x01t\x02UNIQ_KEY\x01U\x02REAL_TOPIC\x01orders\x02",
        sys_flag=1,
    )
    assert (stored.tags, stored.keys, stored.unique_key) == ("t", ("k1", "k2"), "U")
    assert (stored.real_topic, stored.is_compressed) == ("orders", True)
    bare = message()
    assert (bare.tags, bare.keys, bare.unique_key) == (None, (), None)
    assert (bare.real_topic, bare.is_compressed) == ("TopicA", False)


def test_a_message_takes_one_key_or_several() -> None:
    assert Message("t", b"", keys="one").keys == ("one",)
    assert Message("t", b"", keys=["a", "b"]).keys == ("a", "b")
    with pytest.raises(ValueError, match="topic"):
        Message("", b"")


def test_nobody_looks_at_the_checksum_of_an_empty_body() -> None:
    empty = attrs.evolve(LEVEL_OPEN, body=b"", body_crc=7)
    record = encode_message(empty)
    assert decode_message_at(record) == empty
    assert decode_batch(record, np.zeros(1, np.int64)).message(0) == empty
