# SPDX-License-Identifier: Apache-2.0
"""The digest of a delivered copy: what changes it, what does not; pairing by group and time."""

from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from legacy_levels.copies.kernels import (
    DELIVERED_COPY,
    DIGEST_1,
    DIGEST_2,
    EXPECTED_COLUMNS,
    KIND,
    LEVEL_RECORD,
    NAMED,
    NAMES_NONE,
    NOTE_COLUMNS,
    SCRATCH_SLOTS,
    digest_records,
    note_window,
)
from legacy_levels.copies.matching import match_copies
from message_store.format.message_codec import decode_message_at
from message_store.format.properties import RESCHEDULED_FROM
from message_store.intake.rescheduling import replaced_offset
from message_store.kernels.raw_memory import address_of
from tests.independent.raw_records import (
    BORN_HOST_IPV6,
    MAGIC_V2,
    SCHEDULE_TOPIC,
    STORE_HOST_IPV6,
    RawRecord,
    effective_properties,
    encode_record,
    join_properties,
)

PAIRS = [
    ("REAL_TOPIC", "TopicA"),
    ("KEYS", "k1 k2"),
    ("DELAY", "3"),
    ("城市", "上海"),
    ("REAL_QID", "2"),
]
WAITING = RawRecord(
    topic=SCHEDULE_TOPIC,
    queue_id=2,
    body=b"a body",
    properties=join_properties(PAIRS, ending=False),
    flag=7,
    queue_offset=11,
    sys_flag=1,
    born_timestamp_ms=5,
    store_timestamp_ms=6,
    reconsume_times=1,
    prepared_transaction_offset=9,
)


def digest(record: RawRecord) -> tuple[int, int]:
    data = np.frombuffer(encode_record(record), np.uint8).copy()
    notes = np.zeros((1, NOTE_COLUMNS), np.int64)
    scratch = np.zeros((4, SCRATCH_SLOTS), np.uint64)
    place = np.array([record.commit_log_offset], np.int64)
    sizes = np.array([len(data)], np.int64)
    base = record.commit_log_offset
    digest_records(address_of(data), len(data), base, place, sizes, notes, scratch)
    assert notes[0, KIND] == LEVEL_RECORD
    assert not scratch[0].any()
    return int(notes[0, DIGEST_1]), int(notes[0, DIGEST_2])


def notes_of(*records: RawRecord) -> Any:
    """The notes of these records, which lie one behind the other."""
    data, offsets = b"", []
    for record in records:
        offsets.append(len(data))
        data += encode_record(attrs.evolve(record, commit_log_offset=len(data)))
    buffer = np.frombuffer(data, np.uint8).copy()
    notes = np.zeros((len(records), NOTE_COLUMNS), np.int64)
    scratch = np.zeros((4, SCRATCH_SLOTS), np.uint64)
    found = np.zeros(4, np.int64)
    expected = np.zeros((0, EXPECTED_COLUMNS), np.int64)
    note_window(address_of(buffer), len(data), 0, len(data), expected, notes, scratch, found)
    assert found[1] == len(data)
    return notes[: found[0]]


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": "TopicA"},
        {"queue_id": 9},
        {"queue_offset": 12},
        {"commit_log_offset": 777},
        {"store_timestamp_ms": 99},
        {"prepared_transaction_offset": 0},
        {"magic": MAGIC_V2},
        {"properties": join_properties(PAIRS, ending=True)},
        {"properties": join_properties(PAIRS[::-1], ending=True)},
        {"properties": join_properties([("KEYS", "old"), *PAIRS], ending=True)},
        {"properties": join_properties([*PAIRS, ("x", "")], ending=False)},
        {"properties": b"\x02\x02ab\x02\x01c\x02" + WAITING.properties},
        {"properties": join_properties([*PAIRS, ("__CRC32#", "0000000001")], ending=True)},
        {"properties": join_properties([*PAIRS, ("INNER_MULTI_DISPATCH", "q")], ending=True)},
        {"properties": join_properties([*PAIRS, ("INNER_MULTI_QUEUE_OFFSET", "4")], ending=True)},
    ],
    ids=str,
)
def test_what_delivery_changes_does_not_change_the_digest(changed: dict[str, Any]) -> None:
    assert digest(attrs.evolve(WAITING, **changed)) == digest(WAITING)


@pytest.mark.parametrize(
    "changed",
    [
        {"body": b"a bodz"},
        {"body": b""},
        {"flag": 8},
        {"sys_flag": 0},
        {"sys_flag": 8 | 1},
        {"born_timestamp_ms": 4},
        {"born_ip": bytes([10, 1, 2, 4])},
        {"born_port": 1},
        {"store_ip": bytes(4)},
        {"store_port": 1},
        {"reconsume_times": 2},
        {"sys_flag": 1 | BORN_HOST_IPV6, "born_ip": bytes([10, 1, 2, 3]) + bytes(12)},
        {"sys_flag": 1 | STORE_HOST_IPV6, "store_ip": bytes([127, 0, 0, 1]) + bytes(12)},
        {"properties": join_properties(PAIRS[1:], ending=False)},
        {"properties": join_properties([*PAIRS, ("KEYS", "k3")], ending=False)},
        {"properties": join_properties([*PAIRS, ("x", "y")], ending=False)},
        {"properties": join_properties([*PAIRS, ("x", "k1 k2")], ending=False)},
        {"properties": join_properties(PAIRS, ending=False).replace(b"k1", b"k9")},
        {"properties": b""},
    ],
    ids=str,
)
def test_whatever_survives_delivery_is_in_both_digests(changed: dict[str, Any]) -> None:
    one, other = digest(WAITING), digest(attrs.evolve(WAITING, **changed))
    assert one[0] != other[0]
    assert one[1] != other[1]


_texts = st.text("abAB=城", min_size=0, max_size=3)
_pairs = st.lists(st.tuples(_texts, _texts), max_size=12)


@given(_pairs, _pairs)
def test_properties_count_as_the_map_that_a_broker_reads(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    digests = [
        digest(attrs.evolve(WAITING, properties=join_properties(pairs, ending=True)))
        for pairs in (one, other)
    ]
    same = effective_properties(one) == effective_properties(other)
    assert (digests[0] == digests[1]) == same


@pytest.mark.nightly
def test_as_many_properties_as_a_record_can_hold_are_counted() -> None:
    names = [chr(33 + number % 90) + chr(33 + number // 90) for number in range(6_500)]
    pairs = [(name, "v") for name in names if "\x01" not in name]
    full = join_properties(pairs, ending=False)
    backwards = join_properties(pairs[::-1], ending=False)
    assert len(full) <= 32767
    assert digest(attrs.evolve(WAITING, properties=full)) == digest(
        attrs.evolve(WAITING, properties=backwards)
    )


# --- which records are noted ----------------------------------------------------------------------

COPY = attrs.evolve(WAITING, topic="TopicA")


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, DELIVERED_COPY),
        ({"topic": SCHEDULE_TOPIC}, LEVEL_RECORD),
        ({"topic": "TopicB"}, 0),
        ({"queue_id": 3}, 0),
        ({"properties": join_properties(PAIRS[1:], ending=False)}, 0),
        ({"properties": join_properties(PAIRS[:-1], ending=False)}, 0),
        ({"properties": join_properties(PAIRS, ending=False).replace(b"DELAY", b"DELAX")}, 0),
        ({"properties": b""}, 0),
        ({"sys_flag": 0x8}, DELIVERED_COPY),
        ({"sys_flag": 0x4}, 0),
        ({"sys_flag": 0xC}, 0),
        ({"sys_flag": 0x4, "topic": SCHEDULE_TOPIC}, 0),
    ],
)
def test_only_what_concerns_the_levels_is_noted(changed: dict[str, Any], kind: int) -> None:
    record = attrs.evolve(COPY, **changed)
    plain = RawRecord(topic="TopicA", queue_id=2)
    assert notes_of(plain, record, plain)[:, KIND].tolist() == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("changed", "named", "kind"),
    [
        ({}, 0, DELIVERED_COPY),
        ({"topic": "TopicB", "properties": b""}, 0, DELIVERED_COPY),
        ({"topic": SCHEDULE_TOPIC}, NAMES_NONE, LEVEL_RECORD),
        ({"store_ip": bytes(16), "sys_flag": STORE_HOST_IPV6}, 0, DELIVERED_COPY),
        ({"prepared_transaction_offset": 0}, NAMES_NONE, DELIVERED_COPY),
        ({"prepared_transaction_offset": 77}, NAMES_NONE, DELIVERED_COPY),
        ({"prepared_transaction_offset": ~100_000}, NAMES_NONE, DELIVERED_COPY),
    ],
    ids=str,
)
def test_a_copy_is_noted_with_the_record_that_it_names(
    changed: dict[str, Any], named: int, kind: int
) -> None:
    """A half message lies before its copy too, and names nothing; nor does what lies behind."""
    record = attrs.evolve(COPY, **{"prepared_transaction_offset": ~0, **changed})
    _, note = notes_of(WAITING, record)
    assert (note[NAMED], note[KIND]) == (named, kind)
    assert bool(note[DIGEST_1]) is (named == NAMES_NONE and kind == DELIVERED_COPY)


FIRST_RECORD_BYTES = len(encode_record(WAITING))
NUMBERS = st.sampled_from([0, 1, FIRST_RECORD_BYTES, FIRST_RECORD_BYTES + 1, 10**18, 10**20 - 1])
PARTS_OF_A_NAME = st.lists(
    NUMBERS.map(lambda number: str(number).zfill(20))
    | st.sampled_from(["", "0" * 19, "0" * 21, "0" * 19 + "x", "+" + "0" * 19, "0" * 19 + "²"]),
    min_size=2,
    max_size=4,
)


@given(
    texts=st.lists(
        st.tuples(st.sampled_from([" ", "  ", "\t"]), PARTS_OF_A_NAME).map(
            lambda drawn: drawn[0].join(drawn[1])
        ),
        max_size=3,
    ),
    topic=st.sampled_from([SCHEDULE_TOPIC, "TopicA"]),
)
@example(texts=[f"{0:020} {FIRST_RECORD_BYTES:020} {5:020}"], topic=SCHEDULE_TOPIC)
@example(texts=[f"{0:020} {FIRST_RECORD_BYTES:020} {5:020}", ""], topic=SCHEDULE_TOPIC)
def test_a_record_is_noted_with_the_one_that_it_replaces(texts: list[str], topic: str) -> None:
    """The kernel reads the property as the scalar rule does."""
    pairs = [*PAIRS, *((RESCHEDULED_FROM, text) for text in texts)]
    properties = join_properties(pairs, ending=True)
    record = attrs.evolve(
        WAITING, topic=topic, properties=properties, commit_log_offset=FIRST_RECORD_BYTES
    )
    message = decode_message_at(encode_record(record))
    wanted = replaced_offset(message, FIRST_RECORD_BYTES)
    for note in notes_of(WAITING, record)[1:]:
        assert note[NAMED] == (NAMES_NONE if wanted is None else wanted)


def test_a_copy_has_the_digest_of_what_waited() -> None:
    assert digest(COPY) == digest(WAITING)


# --- pairing --------------------------------------------------------------------------------------


def plain_match(
    messages: list[tuple[int, int]], copies: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Message by message in order of time: the earliest copy left that is late enough."""
    left = sorted(copies)
    matched = []
    for digest_of, earliest in sorted(messages):
        fitting = [one for one in left if one[0] == digest_of and one[1] >= earliest]
        if fitting:
            left.remove(fitting[0])
            matched.append((digest_of, earliest))
    return matched


_dated = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=15)


@given(_dated, _dated)
def test_copies_are_given_out_once_each_and_in_order(
    messages: list[tuple[int, int]], copies: list[tuple[int, int]]
) -> None:
    def columns(rows: list[tuple[int, int]]) -> tuple[Any, Any]:
        table = np.array(rows, np.int64).reshape(-1, 2)
        return np.stack([table[:, 0], -table[:, 0]], axis=1), table[:, 1].copy()

    found = match_copies(*columns(messages), *columns(copies))
    chosen = [row for row, is_found in zip(messages, found, strict=True) if is_found]
    assert sorted(chosen) == plain_match(messages, copies)
