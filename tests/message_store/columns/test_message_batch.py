# SPDX-License-Identifier: Apache-2.0
"""Reading in bulk is never a second truth: its values and errors are the scalar codec's."""

from collections.abc import Callable

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError, FormatError
from message_store.columns.byte_column import ByteColumn
from message_store.columns.message_batch import MessageBatch, StoredBatch, decode_batch
from message_store.columns.property_column import (
    find_property_column,
    hex_key_column,
    join_property_columns,
)
from message_store.format.message import Host, Message, StoredMessage
from message_store.format.message_codec import (
    body_crc,
    decode_message_at,
    encode_message,
)
from message_store.format.properties import decode_properties, encode_properties
from message_store.format.record_layout import BLANK_RECORD, MAGIC_BLANK
from tests.message_store.strategies import (
    int64s,
    property_lists,
    stored_messages,
    texts,
)

HOST = Host.of("127.0.0.1", 10911)
FIRST = np.zeros(1, np.int64)


def test_a_message_has_no_empty_unique_key() -> None:
    with pytest.raises(ValueError, match="'unique_key' must not be empty"):
        Message("TopicA", b"x", unique_key="")


def message(body: bytes = b"hello", **changes: object) -> StoredMessage:
    plain = StoredMessage(
        topic="TopicA",
        body=body,
        body_crc=body_crc(body),
        properties_text=b"TAGS\x01TagA\x02",
        queue_id=1,
        queue_offset=2,
        commit_log_offset=0,
        born_timestamp_ms=4,
        born_host=HOST,
        store_timestamp_ms=5,
        store_host=HOST,
    )
    return attrs.evolve(plain, **changes)  # type: ignore[arg-type]


def log_of(messages: list[StoredMessage], start: int, file_bytes: int) -> tuple[bytes, list[int]]:
    """The same log by the scalar codec, record after record."""
    log, positions = b"", []
    for each in messages:
        record = encode_message(each)
        left = file_bytes - (start + len(log)) % file_bytes
        if len(record) + 8 > left:
            log += BLANK_RECORD.encode(size_bytes=left, magic=MAGIC_BLANK).ljust(left, b"\0")
        positions.append(start + len(log))
        log += encode_message(attrs.evolve(each, commit_log_offset=start + len(log)))
    return log, positions


# --- one law: the same values ---------------------------------------------------------------------


@given(st.lists(stored_messages(), max_size=12))
def test_records_are_read_in_bulk_as_one_by_one(messages: list[StoredMessage]) -> None:
    log, positions = log_of(messages, 0, 1 << 20)
    placed = [
        attrs.evolve(each, commit_log_offset=position)
        for each, position in zip(messages, positions, strict=True)
    ]
    batch = decode_batch(log, np.array(positions, np.int64))
    assert [batch.message(row) for row in range(len(batch))] == placed
    assert [decode_message_at(log, at) for at in positions] == placed
    of_values = StoredBatch.of(placed)
    assert [of_values.message(row) for row in range(len(placed))] == placed


@given(st.lists(stored_messages(), min_size=1, max_size=3), st.data())
def test_both_codecs_refuse_the_same_damage_with_the_same_words(
    messages: list[StoredMessage], data: st.DataObject
) -> None:
    whole, positions = log_of(messages, 0, 1 << 20)
    log = bytearray(whole)
    place = data.draw(st.integers(0, len(log) - 1))
    log[place] ^= data.draw(st.integers(1, 255))

    def in_bulk() -> list[StoredMessage]:
        batch = decode_batch(log, np.array(positions, np.int64))
        return [batch.message(row) for row in range(len(batch))]

    assert outcome(in_bulk) == outcome(lambda: [decode_message_at(log, at) for at in positions])


@given(st.binary(max_size=400), st.integers(0, 100))
def test_arbitrary_bytes_are_refused_alike(data: bytes, position: int) -> None:
    places = np.array([position], np.int64)
    in_bulk = outcome(lambda: [decode_batch(data, places).message(0)])
    assert in_bulk == outcome(lambda: [decode_message_at(data, position)])


def outcome(read: Callable[[], list[StoredMessage]]) -> object:
    try:
        return read()
    except FormatError as error:
        return type(error), str(error)


def test_records_of_several_files_are_read_at_their_places() -> None:
    log, positions = log_of([message(queue_offset=n) for n in range(7)], 0, 300)
    assert len(log) > 3 * 300
    batch = decode_batch(log, np.array(positions, np.int64))
    assert batch.queue_offset.tolist() == list(range(7))
    assert batch.commit_log_offset.tolist() == positions


def test_no_positions_are_an_empty_batch() -> None:
    assert len(decode_batch(b"", np.empty(0, np.int64))) == 0


# --- checksums ------------------------------------------------------------------------------------


def test_a_damaged_body_is_not_read() -> None:
    log = bytearray(encode_message(message()))
    log[log.index(b"hello")] ^= 1
    with pytest.raises(FormatError, match="the body is damaged at offset 0"):
        decode_batch(bytes(log), FIRST)


# --- properties as columns ------------------------------------------------------------------------


@given(st.lists(st.tuples(texts, st.none() | texts, int64s, property_lists), max_size=8))
def test_joined_columns_are_the_scalar_texts(
    rows: list[tuple[str, str | None, int, list[tuple[str, str]]]],
) -> None:
    assume(rows)
    for closed in (True, False):
        expected = [
            encode_properties(
                [("A", a), *([("TAGS", tag)] if tag else []), *user, ("N", str(number))],
                closed=closed,
            )
            for a, tag, number, user in rows
        ]
        joined = join_property_columns(
            [
                ("A", ByteColumn.of(a for a, *_ in rows)),
                ("TAGS", ByteColumn.of(tag for _, tag, *_ in rows)),
                ByteColumn.of(encode_properties(user) for *_, user in rows),
                ("N", np.array([number for _, _, number, _ in rows], np.int64)),
            ],
            closed=closed,
        )
        assert list(joined) == expected


@given(
    st.lists(st.text("\x01\x02ab", max_size=12).map(str.encode), min_size=1),
    st.text("ab", min_size=1),
)
def test_a_property_is_found_as_a_broker_reads_it(raw: list[bytes], name: str) -> None:
    found = find_property_column(ByteColumn.of(raw), name)
    assert list(found) == [decode_properties(text).get(name, "").encode() for text in raw]


@pytest.mark.parametrize("value", ["a\x01", "\x02", "0123456789\x02bcdefgh", "1234567\x01"])
def test_a_value_with_a_separator_is_refused_by_row(value: str) -> None:
    with pytest.raises(BadFieldError, match="row 1: "):
        join_property_columns([("TAGS", ByteColumn.of(["fine", value]))])


def test_properties_of_a_batch_are_found_in_place() -> None:
    log, positions = log_of([message(), message(properties_text=b"")], 0, 1 << 20)
    batch = decode_batch(log, np.array(positions, np.int64))
    assert list(batch.property("TAGS")) == [b"TagA", b""]


def test_hex_keys_are_upper_case_and_of_one_width() -> None:
    assert list(hex_key_column(b"K", np.array([0xABC, 7]), 4)) == [b"K0ABC", b"K0007"]


# --- what applications hand over ------------------------------------------------------------------

MESSAGES = [
    Message("a", b"1", tags="t", keys=["k1", "k2"], properties={"x": "1", "y": "ü"}, flag=7),
    Message("b", b"", queue_id=3, unique_key="U"),
    Message("a", b"3", properties={"z": "\N{GRINNING FACE}"}),
]
ARROW = pa.table(
    {
        "topic": pa.array(["a", "b", "a"]).dictionary_encode(),
        "body": pa.array([b"1", None, b"3"]),
        "tags": pa.array(["t", None, ""]),
        "keys": pa.array(["k1 k2", None, None], pa.large_string()),
        "unique_key": [None, "U", None],
        "properties": pa.array(
            [[("x", "1"), ("y", "ü")], None, [("z", "\N{GRINNING FACE}")]],
            pa.map_(pa.string(), pa.string()),
        ),
        "queue_id": [0, 3, None],
        "flag": pa.array([7, 0, 0], pa.int32()),
        "not ours": [1, 2, 3],
    }
)


def as_rows(batch: MessageBatch) -> list[tuple[object, ...]]:
    columns = [getattr(batch, field.name) for field in attrs.fields(MessageBatch)]
    return list(zip(*columns, strict=True))


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="queue_id has 1 rows, body 3"):
        attrs.evolve(MessageBatch.of(MESSAGES), queue_id=np.zeros(1))


@pytest.mark.parametrize("shape", ["table", "chunks", "slices", "record batch"])
def test_an_arrow_table_is_the_same_batch_as_its_messages(shape: str) -> None:
    table = ARROW
    if shape == "chunks":
        table = pa.concat_tables([ARROW.slice(0, 1), ARROW.slice(1, 0), ARROW.slice(1)])
    if shape == "slices":
        table = pa.concat_tables([ARROW.slice(2), ARROW, ARROW.slice(0, 1)]).slice(1, 3)
    if shape == "record batch":
        table = ARROW.combine_chunks().to_batches()[0]
    assert as_rows(MessageBatch.from_arrow(table)) == as_rows(MessageBatch.of(MESSAGES))


def test_topic_and_body_are_enough() -> None:
    batch = MessageBatch.from_arrow(pa.table({"topic": ["a"], "body": [b"x"]}))
    assert as_rows(batch) == as_rows(MessageBatch.of([Message("a", b"x")]))


@pytest.mark.parametrize(
    "entry", [("a\x01", "b"), ("a", "b\x02"), ("a", ""), ("", "b"), ("a", None)]
)
def test_a_property_that_cannot_be_stored_is_refused(entry: tuple[str, str | None]) -> None:
    maps = pa.array([[("fine", "v"), entry]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(BadFieldError, match="cannot be stored"):
        MessageBatch.from_arrow(pa.table({"topic": ["a"], "body": [b"x"], "properties": maps}))


def test_a_column_of_numbers_is_no_topic() -> None:
    with pytest.raises(TypeError, match="found int64"):
        MessageBatch.from_arrow(pa.table({"topic": [1], "body": [b"x"]}))


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.binary(2),
    ],
    ids=str,
)
def test_a_byte_column_goes_to_arrow_and_back(kind: pa.DataType) -> None:
    array = pa.array([b"ab", b"cd", b"ef"]).cast(kind).slice(1)
    column = ByteColumn.from_arrow(array)
    assert list(column) == [b"cd", b"ef"]
    assert column.take([1, 0, 1]).to_arrow(pa.string()).to_pylist() == ["ef", "cd", "ef"]


@pytest.mark.parametrize("shape", ["array", "view", "frozen view"])
def test_a_byte_column_stays_inside_its_block_whatever_becomes_of_the_given_arrays(
    shape: str,
) -> None:
    """Kernels read at these places without looking again."""
    starts, lengths = np.array([0, 2, 4]), np.array([2, 2, 0])
    given_starts = starts if shape == "array" else starts[:]
    if shape == "frozen view":
        given_starts.flags.writeable = False
    column = ByteColumn(np.frombuffer(b"abcd", np.uint8), given_starts, lengths)
    starts[1] = lengths[1] = 1 << 40
    assert list(column) == [b"ab", b"cd", b""]
    assert column.to_arrow().to_pylist() == [b"ab", b"cd", b""]


def test_a_byte_column_beyond_its_block_is_refused() -> None:
    block = np.zeros(4, np.uint8)
    for starts, lengths in [
        ([0], [5]),
        ([4], [1]),
        ([-1], [1]),
        ([0], [-1]),
        ([2**62], [2**62]),
        ([2**63 - 1], [1]),
    ]:
        with pytest.raises(ValueError, match="beyond its block"):
            ByteColumn(block, starts, lengths)
