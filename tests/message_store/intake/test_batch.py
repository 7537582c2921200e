# SPDX-License-Identifier: Apache-2.0
"""Records that wait, made from columns, are never a second truth: they are those made one by one,
and what is refused is refused in the same words, with its row.
"""

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import ByteColumn, Int64s
from message_store.columns.message_batch import MessageBatch
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import Host, Message
from message_store.format.message_codec import decode_message_at
from message_store.format.message_rules import RESERVED_PROPERTIES, SizeLimits
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC
from message_store.format.timer_record_rules import TimerFault, timer_record_faults
from message_store.intake.batch import BatchDraft, draft_batch, levels_for
from message_store.intake.records import PLAIN_FORM, RecordForm
from message_store.kernels.raw_memory import address_of
from tests.message_store import vectors
from tests.message_store.drafts import draft
from tests.message_store.strategies import hosts, waiting_messages

NOW_MS = 1_700_000_000_123
START = 1_000_003
GOOD = Message("TopicA", b"hello", tags="TagA", unique_key="0A0102030001")


out_times = st.integers(0, 2**63 - 1)


def written(made: BatchDraft, piece_rows: int, gap_bytes: int = 0) -> list[bytes]:
    """The records, written in pieces as a log asks for them, with gaps between the pieces."""
    count = len(made)
    gaps = np.arange(count) // piece_rows * gap_bytes
    positions = START + np.cumsum(made.sizes) - made.sizes + gaps
    queue_ids, queue_offsets = np.arange(count) % 7, np.arange(count) + 2**33
    fill = made.bind(queue_ids, queue_offsets, NOW_MS)
    records = []
    for start in range(0, count, piece_rows):
        rows = slice(start, min(start + piece_rows, count))
        target = np.full(int(made.sizes[rows].sum()) + 8, 0xEE, np.uint8)
        fill(rows, positions, address_of(target))
        ends = np.cumsum(made.sizes[rows])
        records += [
            target[end - size : end].tobytes()
            for size, end in zip(made.sizes[rows], ends, strict=True)
        ]
        assert target[ends[-1] :].tolist() == [0xEE] * 8
    return records


def one_by_one(
    messages: list[Message],
    sizes: Int64s,
    numbers: list[int],
    is_timed: bool,
    form: RecordForm,
    piece_rows: int,
    gap_bytes: int,
) -> list[bytes]:
    position, records = START, []
    for row, (message, number) in enumerate(zip(messages, numbers, strict=True)):
        if row and row % piece_rows == 0:
            position += gap_bytes
        made = draft(
            message,
            system_topic=TIMER_TOPIC if is_timed else LEVEL_TOPIC,
            out_ms=number if is_timed else None,
            delay_level=None if is_timed else number,
            form=form,
        )
        records.append(made.record(row % 7, row + 2**33, position, NOW_MS))
        position += made.size_bytes
    return records


# --- one law: the same bytes ----------------------------------------------------------------------


@given(
    rows=st.lists(st.tuples(waiting_messages(), st.integers(1, 30), out_times), max_size=9),
    is_timed=st.booleans(),
    hosts=st.tuples(hosts, hosts),
    closed=st.booleans(),
    piece_rows=st.integers(1, 4),
    gap_bytes=st.integers(0, 50),
)
def test_columns_make_the_records_that_are_made_one_by_one(
    rows: list[tuple[Message, int, int]],
    is_timed: bool,
    hosts: tuple[Host, Host],
    closed: bool,
    piece_rows: int,
    gap_bytes: int,
) -> None:
    messages = [message for message, _, _ in rows]
    numbers = [out_ms if is_timed else level for _, level, out_ms in rows]
    form = RecordForm(closes_properties=closed, born_host=hosts[0], store_host=hosts[1])
    made = draft_batch(
        MessageBatch.of(messages),
        system_topic=TIMER_TOPIC if is_timed else LEVEL_TOPIC,
        out_ms=np.array(numbers, np.int64) if is_timed else None,
        delay_levels=None if is_timed else np.array(numbers, np.int64),
        form=form,
    )
    expected = one_by_one(messages, made.sizes, numbers, is_timed, form, piece_rows, gap_bytes)
    assert written(made, piece_rows, gap_bytes) == expected
    assert made.sizes.tolist() == [len(record) for record in expected]
    assert [key.decode() for key in made.unique_keys] == [each.unique_key for each in messages]
    assert made.tags_codes.tolist() == [
        draft(message, system_topic=LEVEL_TOPIC, form=form).tags_code for message in messages
    ]


def test_a_row_without_a_unique_key_gets_one_and_the_others_keep_theirs() -> None:
    messages = [attrs.evolve(GOOD, unique_key=key) for key in (None, "K1", None, "K3", None)]
    batch = MessageBatch.of(messages)
    # In a column, an empty key is none.
    batch = attrs.evolve(batch, unique_key=ByteColumn.of([b"", b"K1", b"", b"K3", b""]))
    made = draft_batch(batch, system_topic=TIMER_TOPIC, out_ms=np.full(5, NOW_MS))
    keys = [key.decode() for key in made.unique_keys]
    assert [keys[1], keys[3]] == ["K1", "K3"]
    assert [len(keys[row]) for row in (0, 2, 4)] == [32, 32, 32]
    assert len(set(keys)) == 5
    for key, record in zip(keys, written(made, 2), strict=True):
        assert f"UNIQ_KEY\x01{key}\x02".encode() in record


def test_an_empty_batch_makes_no_records() -> None:
    made = draft_batch(MessageBatch.of([]), system_topic=TIMER_TOPIC, out_ms=np.zeros(0, np.int64))
    assert (len(made), written(made, 1)) == (0, [])


def test_columns_that_share_one_block_are_told_apart() -> None:
    """A column of a few values, as Arrow's dictionaries give it, and one that lies among others."""
    batch = MessageBatch(
        body=ByteColumn.choose([b"one", b"two"], [1, 0, 1]),
        topic=ByteColumn.choose(["a", "b"], [0, 1, 1]),
        tags=ByteColumn.choose([None, "late"], [1, 0, 1]),
        user_properties=ByteColumn.of([b"n\x011\x02", b"", b"n\x013\x02m\x014\x02"]),
        unique_key=ByteColumn.of(["K0", "K1", "K2"]),
    )
    made = draft_batch(batch, system_topic=LEVEL_TOPIC, delay_levels=np.array([1, 18, 3]))
    expected = one_by_one(
        [batch.message(row) for row in range(3)], made.sizes, [1, 18, 3], False, PLAIN_FORM, 3, 0
    )
    assert written(made, 3) == expected


def test_as_many_places_as_records_are_needed() -> None:
    made = draft_batch(
        MessageBatch.of([GOOD]), system_topic=TIMER_TOPIC, out_ms=np.ones(1, np.int64)
    )
    for ids, offsets in ((2, 1), (1, 2)):
        with pytest.raises(ValueError, match="1 records need as many"):
            made.bind(np.zeros(ids, np.int64), np.zeros(offsets, np.int64), NOW_MS)


# --- what is refused ------------------------------------------------------------------------------

BAD_MESSAGES: dict[str, dict[str, object]] = {
    "a path as topic": {"topic": "a/b"},
    "the folder above": {"topic": ".."},
    "a space in the topic": {"topic": "a b"},
    "a control character": {"topic": "a\x7f"},
    "a topic too long": {"topic": "t" * 128},
    "a retry topic too long": {"topic": "%RETRY%" + "g" * 249},
    "a long topic of few characters": {"topic": "%RETRY%" + "ü" * 61},
    "the topic of levels": {"topic": LEVEL_TOPIC},
    "the topic of the wheel": {"topic": TIMER_TOPIC},
    "a separator in tags": {"tags": "a\x02b"},
    "a separator in keys": {"keys": ("a", "b\x01")},
    "a space in the key": {"unique_key": "a b"},
    "a property that delays": {"properties": {"a": "b", "DELAY": "3"}},
    "a queue that no topic has": {"queue_id": 65_536},
    "a flag beyond 32 bits": {"flag": 2**31},
    "properties too long": {"properties": {"a": "x" * 40_000}},
    "tags too long": {"tags": "x" * 32_700},
    "a body too long": {"body": bytes(2001)},
    "a record too long for a wheel": {"body": bytes(1900)},
}


@pytest.mark.parametrize("changes", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_what_is_refused_alone_is_refused_in_a_batch_in_the_same_words(
    changes: dict[str, object],
) -> None:
    form = attrs.evolve(PLAIN_FORM, max_message_bytes=2000)
    bad = attrs.evolve(GOOD, **changes)  # type: ignore[arg-type]
    with pytest.raises(BadFieldError) as alone:
        draft(bad, system_topic=TIMER_TOPIC, out_ms=10**12, form=form)
    messages = [GOOD, GOOD, bad, GOOD, bad]
    with pytest.raises(BadFieldError) as together:
        draft_batch(
            MessageBatch.of(messages),
            system_topic=TIMER_TOPIC,
            out_ms=np.full(5, 10**12),
            form=form,
        )
    assert str(together.value) == f"row 2: {alone.value}"


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
@pytest.mark.parametrize("is_last", [False, True])
def test_a_property_that_steers_delivery_is_refused_by_name(name: str, is_last: bool) -> None:
    properties = {"a": "1", name: "1"} if is_last else {name: "1", "a": "1"}
    messages = [GOOD, attrs.evolve(GOOD, properties=properties)]
    with pytest.raises(BadFieldError, match=f"row 1: the property {name} "):
        draft_batch(
            MessageBatch.of(messages), system_topic=TIMER_TOPIC, out_ms=np.zeros(2, np.int64)
        )


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("user_properties", b"a\x01b", "not closed entries"),
        ("user_properties", b"a\x02", "not closed entries"),
        ("user_properties", b"\x02", "not closed entries"),
        ("user_properties", b"\x01\x02", "not closed entries"),
        ("user_properties", b"a\x01\x02", "not closed entries"),
        ("user_properties", b"\x01b\x02", "not closed entries"),
        ("user_properties", b"a\x01b\x02c\x02", "not closed entries"),
        ("user_properties", b"a\x01b\x02\x02", "not closed entries"),
        ("user_properties", b"a\x01b\x01c\x02", "value with a control character"),
        ("user_properties", b"a\x01\xff\x02", "user_properties that is not UTF-8"),
        ("user_properties", b"a\x01b\x02DELAY\x015", "the property DELAY "),
        ("topic", b"", "topic"),
        ("topic", b"\xff", "topic that is not UTF-8"),
        ("tags", b"\xc3", "tags that is not UTF-8"),
        ("keys", b"a \xed\xa0\x80", "keys that is not UTF-8"),
        ("unique_key", b"\xfe", "unique_key that is not UTF-8"),
        ("queue_id", -1, "queue_id"),
        ("queue_id", 2**40, "no such queue"),
        ("flag", -(2**31) - 1, "a flag beyond 32 bits"),
    ],
)
def test_what_only_columns_can_hold_is_refused_too(
    column: str, value: bytes | int, problem: str
) -> None:
    good = MessageBatch.of([GOOD, GOOD])
    fine = GOOD.topic if column == "topic" else b""
    changed = np.array([0, value]) if isinstance(value, int) else ByteColumn.of([fine, value])
    bad = attrs.evolve(good, **{column: changed})  # type: ignore[arg-type]
    with pytest.raises(BadFieldError, match=f"row 1: .*{problem}"):
        draft_batch(bad, system_topic=TIMER_TOPIC, out_ms=np.zeros(2, np.int64))


def test_the_first_bad_row_is_named_whatever_is_wrong_with_it() -> None:
    too_long = attrs.evolve(GOOD, body=bytes(5_000))
    strange = attrs.evolve(GOOD, topic="a/b")
    form = attrs.evolve(PLAIN_FORM, max_message_bytes=2000)
    for first, second in ((too_long, strange), (strange, too_long)):
        batch = MessageBatch.of([GOOD, first, second])
        with pytest.raises(BadFieldError, match="row 1: "):
            draft_batch(batch, system_topic=TIMER_TOPIC, out_ms=np.zeros(3, np.int64), form=form)


def _size_alone(message: Message, is_timed: bool, form: RecordForm) -> int:
    if is_timed:
        return draft(message, system_topic=TIMER_TOPIC, out_ms=NOW_MS, form=form).size_bytes
    return draft(message, system_topic=LEVEL_TOPIC, delay_level=5, form=form).size_bytes


def _size_in_a_batch(message: Message, is_timed: bool, form: RecordForm) -> int:
    batch = MessageBatch.of([message])
    if is_timed:
        times = np.array([NOW_MS])
        return int(draft_batch(batch, system_topic=TIMER_TOPIC, out_ms=times, form=form).sizes[0])
    levels = np.array([5])
    return int(
        draft_batch(batch, system_topic=LEVEL_TOPIC, delay_levels=levels, form=form).sizes[0]
    )


@given(st.integers(0, 40), st.booleans())
def test_the_limits_of_size_are_those_of_one_message(around: int, is_timed: bool) -> None:
    """Properties one byte around their limit, bodies one byte around that of a whole record."""
    form = attrs.evolve(PLAIN_FORM, max_message_bytes=32_000)
    limits = SizeLimits.of(32_000)
    for change in (
        {"properties": {"a": "x" * (limits.properties - 60 - around)}},
        {"body": bytes(limits.timed_record - 180 - around)},
        {"body": bytes(limits.body + 20 - around)},
    ):
        message = attrs.evolve(GOOD, **change)
        results = []
        for make in (_size_alone, _size_in_a_batch):
            try:
                results.append(str(make(message, is_timed, form)))
            except BadFieldError as error:
                results.append(str(error).removeprefix("row 0: "))
        assert results[0] == results[1]


def test_the_topic_of_a_4_9_broker_is_never_longer_than_127_bytes() -> None:
    messages = [attrs.evolve(GOOD, topic="%RETRY%" + "g" * length) for length in (120, 121)]
    form = attrs.evolve(PLAIN_FORM, retry_topic_max_bytes=127)
    with pytest.raises(BadFieldError, match=r"row 1: .*at most 127 bytes, found 128"):
        draft_batch(
            MessageBatch.of(messages),
            system_topic=LEVEL_TOPIC,
            delay_levels=np.ones(2, np.int64),
            form=form,
        )


# --- levels ---------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(-5, 40), min_size=1, max_size=8),
    st.lists(st.integers(-10, 50), max_size=9),
)
def test_levels_of_many_delays_are_those_of_each(table: list[int], delays_ms: list[int]) -> None:
    levels = DelayLevels(tuple(table))
    found = levels_for(np.array(delays_ms, np.int64), levels)
    assert found.tolist() == [levels.smallest_not_shorter(each) or 0 for each in delays_ms]


def test_the_vector_of_a_timer_record_comes_out_of_columns_too() -> None:
    form = RecordForm(store_host=vectors.STORE, born_host=vectors.BORN)
    made = draft_batch(
        MessageBatch.of([GOOD]),
        system_topic=TIMER_TOPIC,
        out_ms=np.array([1_700_003_600_000]),
        form=form,
    )
    target = np.zeros(int(made.sizes[0]), np.uint8)
    fill = made.bind(np.array([0]), np.array([42]), NOW_MS)
    fill(slice(0, 1), np.array([5678]), address_of(target))
    expected = bytearray.fromhex(vectors.VECTORS["timer"][1])
    expected[40:48] = NOW_MS.to_bytes(8, "big")  # a batch is born when it is stored
    assert target.tobytes() == bytes(expected)


@given(
    messages=st.lists(waiting_messages(), min_size=1, max_size=5),
    outs=st.lists(st.integers(-2, 2**62), min_size=5, max_size=5),
    is_large=st.booleans(),
)
def test_no_timer_record_is_made_that_a_wheel_could_not_place_and_deliver(
    messages: list[Message], outs: list[int], is_large: bool
) -> None:
    """One of them stops a stock broker's wheel for ever; one by one and in bulk the same is
    refused. An engine takes a message without a body.
    """
    form = RecordForm(max_message_bytes=4 << 20 if is_large else 300)
    out_ms = np.array(outs[: len(messages)])
    singles: list[bytes] = []
    refusals: list[str] = []
    for message, out in zip(messages, out_ms.tolist(), strict=True):
        try:
            made = draft(message, system_topic=TIMER_TOPIC, out_ms=out, form=form)
            singles.append(made.record(0, 0, 0, NOW_MS))
        except BadFieldError as error:
            refusals.append(error.problem)
    for record in singles:
        stored = decode_message_at(record)
        faults = timer_record_faults(stored, len(record), form.limits.timed_record)
        assert [what for fault, what in faults if fault is not TimerFault.NO_BODY] == []
    batch = MessageBatch.of(messages)
    if refusals:
        with pytest.raises(BadFieldError, match=refusals[0]):
            draft_batch(batch, system_topic=TIMER_TOPIC, out_ms=out_ms, form=form)
    else:
        draft_batch(batch, system_topic=TIMER_TOPIC, out_ms=out_ms, form=form)


def test_an_address_that_brokers_cannot_store_anew_is_refused() -> None:
    mapped = Host.of("::ffff:10.1.2.3", 7)
    for name in ("born_host", "store_host"):
        with pytest.raises(BadFieldError, match="in the form of an IPv6 one"):
            RecordForm(**{name: mapped})  # type: ignore[arg-type]
