# SPDX-License-Identifier: Apache-2.0
"""The independent reader against bytes that were exchanged with real brokers."""

from __future__ import annotations

import hashlib

import attrs
import pytest

from tests.independent import raw_files, raw_records
from tests.independent.raw_records import RawRecord, decode_record, encode_record, join_properties

DELAYED = [
    ("REAL_TOPIC", "TopicA"),
    ("UNIQ_KEY", "0A0102030001"),
    ("DELAY", "5"),
    ("TAGS", "TagA"),
    ("REAL_QID", "0"),
]
TIMED = [
    ("REAL_TOPIC", "TopicA"),
    ("UNIQ_KEY", "0A0102030001"),
    ("TAGS", "TagA"),
    ("REAL_QID", "0"),
    ("TIMER_OUT_MS", "1700003600000"),
]
COMMON = RawRecord(
    topic="TopicA",
    body=b"hello",
    born_timestamp_ms=1700000000000,
    store_timestamp_ms=1700000000123,
)
LEVEL_RECORD = attrs.evolve(
    COMMON, topic="SCHEDULE_TOPIC_XXXX", queue_id=4, queue_offset=7, commit_log_offset=1234
)
RECORDS = {
    "f8eb897b2bf0b83ffc6e0c4327e9c139a46bed5fa7938b477fe9c14a98454d51": attrs.evolve(
        LEVEL_RECORD, properties=join_properties(DELAYED, ending=False)
    ),
    "4cf69a2c21fcf7b5b217dbc29419466fda220dd75bd5156c69587ea36489ce91": attrs.evolve(
        LEVEL_RECORD, properties=join_properties(DELAYED, ending=True)
    ),
    "bff32c7db451b7a180d4adcbcced4a375b739c360682082e07090e33a38eef8c": attrs.evolve(
        COMMON,
        topic="rmq_sys_wheel_timer",
        queue_offset=42,
        commit_log_offset=5678,
        properties=join_properties(TIMED, ending=True),
    ),
    "a2177579c0cc634ea17320d29e97575e23d19455ec3f06ce0f3e4a28751ce89c": attrs.evolve(
        COMMON,
        sys_flag=0x30,
        born_ip=raw_records.ip_bytes("2001:db8::1"),
        store_ip=raw_records.ip_bytes("2001:db8::2"),
        properties=join_properties([("UNIQ_KEY", "0A0102030001"), ("TAGS", "TagA")], ending=True),
    ),
    "569753111728675c42a3b1cb5422b68957c5763acbf991e52b7041065149602e": attrs.evolve(
        COMMON,
        topic="%RETRY%" + "g" * 123,
        body=b"v2",
        properties=join_properties([("UNIQ_KEY", "0A0102030001")], ending=True),
    ),
}


@pytest.mark.parametrize(("digest", "record"), RECORDS.items())
def test_records_are_the_bytes_a_broker_was_seen_to_read(digest: str, record: RawRecord) -> None:
    data = encode_record(record)
    assert hashlib.sha256(data).hexdigest() == digest
    found = decode_record(data)
    assert attrs.evolve(found, body_crc=None, magic=None, total_size=None) == record
    assert encode_record(found) == data


@pytest.mark.parametrize("length", range(0, 183, 7))
def test_a_record_cut_short_is_refused(length: int) -> None:
    data = encode_record(next(iter(RECORDS.values())))
    with pytest.raises(raw_records.BadRecordError):
        decode_record(data[:length])


def test_a_changed_body_is_noticed() -> None:
    data = encode_record(COMMON).replace(b"hello", b"jello")
    with pytest.raises(raw_records.BadRecordError, match="CRC"):
        decode_record(data)
    assert decode_record(data, check_crc=False).body == b"jello"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("order-cancelled", 441731474),
        ("标签", 857175),
        ("polygenelubricants", -2147483648),
        ("TopicA", -1784167150),
        ("😀", 1772899),
        ("", 0),
    ],
)
def test_java_hashes(text: str, code: int) -> None:
    assert raw_records.java_hash(text) == code


@pytest.mark.parametrize(
    ("data", "pairs", "effective"),
    [
        (b"", [], {}),
        (b"a\x011\x02b\x012", [("a", "1"), ("b", "2")], {"a": "1", "b": "2"}),
        (b"a\x011\x02a\x012\x02", [("a", "1"), ("a", "2")], {"a": "2"}),
        (b"a\x01\x02\x02\x01x\x02b\x011\x012", None, {"b": "1\x012"}),
    ],
)
def test_properties_keep_what_a_map_would_lose(
    data: bytes, pairs: list[tuple[str, str]] | None, effective: dict[str, str]
) -> None:
    found = raw_records.parse_properties(data)
    assert pairs is None or found == pairs
    assert raw_records.effective_properties(found) == effective


def test_timer_units_and_slots_are_the_bytes_a_broker_was_seen_to_read() -> None:
    unit = raw_files.TimerUnit(
        0, 52, -1, 1, 1700000001000, 3599000, 5678, 203, raw_records.java_hash("TopicA"), 0
    )
    assert raw_files.encode_timer_unit(unit).hex() == (
        "00000034ffffffffffffffff000000010000018bcfe56be80036ea98000000000000162e000000cb"
        "95a7c5120000000000000000"
    )
    slot = raw_files.Slot(515600, 1700003600, 0, 52, 2, 0)
    assert raw_files.encode_slot(slot).hex() == (
        "000000006553ff10000000000000000000000000000000340000000200000000"
    )


def test_numbers_as_keys_are_read_as_a_broker_writes_them() -> None:
    text = '{\n\t"offsetTable":{1:10,2:20,30:3\n\t},"a@b":{"1":2}\n}'
    assert raw_files.parse_fastjson(text) == {
        "offsetTable": {"1": 10, "2": 20, "30": 3},
        "a@b": {"1": 2},
    }
