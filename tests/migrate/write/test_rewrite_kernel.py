# SPDX-License-Identifier: Apache-2.0
"""The kernel equals the scalar rewrite: "usual" means the same bytes, anything else is left to the
scalar code.
"""

from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.format.java_numbers import string_hash
from message_store.format.message import Host, StoredMessage
from message_store.format.message_codec import body_crc, decode_message_at, encode_message
from message_store.format.message_rules import RESERVED_PROPERTIES, UNDELIVERABLE_TOPICS
from message_store.format.record_layout import SYS_BORN_HOST_IPV6, SYS_STORE_HOST_IPV6
from message_store.format.timer_record_rules import timer_record_faults
from message_store.kernels.raw_memory import address_of
from migrate.source.topic_table import TopicTable
from migrate.write.rewrite import (
    REMOVED_PROPERTIES,
    BadRecordError,
    Placement,
    RewriteLimits,
    Rewritten,
    growth_bytes,
    rewrite_record,
)
from migrate.write.rewriter import UNUSUAL, rewrite_records

NOW_MS = 1_795_268_475_441
OUT_MS = 1_795_268_999_000
TARGET_OFFSET = 7_000_000_000
LIMITS = RewriteLimits(record_max_bytes=4 << 20, commit_log_file_bytes=1 << 30)
V4, V6 = Host.of("10.1.2.3", 4567), Host.of("2001:db8::1", 10911)
MAPPED = Host.of("::ffff:10.1.2.3", 4567)


def level_record(text: bytes, *, level: int = 5, **changes: Any) -> StoredMessage:
    """A record as a broker stores it in a level, with these properties."""
    body = changes.pop("body", b"hello")
    born, stored = changes.pop("born_host", V4), changes.pop("store_host", V4)
    bits = SYS_BORN_HOST_IPV6 * born.is_ipv6 | SYS_STORE_HOST_IPV6 * stored.is_ipv6
    facts: dict[str, Any] = {
        "topic": "SCHEDULE_TOPIC_XXXX",
        "body": body,
        "body_crc": body_crc(body),
        "properties_text": text,
        "queue_id": level - 1,
        "queue_offset": 7,
        "commit_log_offset": 1234,
        "born_timestamp_ms": 1_700_000_000_000,
        "born_host": born,
        "store_timestamp_ms": 1_700_000_000_123,
        "store_host": stored,
        "sys_flag": changes.pop("sys_flag", 0) | bits,
        "prepared_transaction_offset": 99,
    }
    return StoredMessage(**{**facts, **changes})


def properties(level: int = 5, *more: str, closed: bool = True) -> bytes:
    """REAL_TOPIC, REAL_QID and DELAY among others, ending as wanted."""
    entries = ["UNIQ_KEY\1A1", "REAL_TOPIC\1TopicA", f"DELAY\1{level}", *more, "REAL_QID\x012"]
    return ("\2".join(entries) + "\2" * closed).encode()


@attrs.frozen
class KernelAnswer:
    """What the kernel made of one record."""

    is_usual: bool
    record: bytes
    tags_hash: int
    topic_hash: int
    topics: TopicTable


def placement(record: bytes, level: int) -> Placement:
    """The placement that the tests share."""
    return Placement(
        level=level,
        source_offset=1234,
        source_size_bytes=len(record),
        out_ms=OUT_MS,
        target_offset=TARGET_OFFSET,
        target_queue_offset=42,
        now_ms=NOW_MS,
    )


def by_kernel(record: bytes, level: int, *, lead: int = 3, room: int | None = None) -> KernelAnswer:
    """Run the kernel on one record that lies somewhere in a buffer."""
    buffer = np.frombuffer(b"\xaa" * lead + record + b"\xaa" * 16, np.uint8).copy()
    room = max(0, len(record) + growth_bytes(level, OUT_MS)) if room is None else room
    out = np.full(room + 32, 0x55, np.uint8)
    sizes, topics = np.zeros(1, np.int32), TopicTable()
    tags, hashes = np.zeros(1, np.int32), np.zeros(1, np.int32)
    cursor = np.array([TARGET_OFFSET, 42, address_of(out), address_of(out) + room])
    done = rewrite_records(
        address_of(buffer), lead + len(record), np.array([lead]),
        np.array([len(record)], np.int32), np.array([level], np.int16), np.array([1234]),
        np.array([OUT_MS]), cursor, NOW_MS, LIMITS.record_max_bytes,
        topics.address, sizes, tags, hashes, 0,
    )  # fmt: skip
    is_usual = done == 1
    assert is_usual or sizes[0] == UNUSUAL
    size = max(0, int(sizes[0]))
    moved = [TARGET_OFFSET + size, 42 + is_usual, address_of(out) + size, address_of(out) + room]
    assert cursor.tolist() == moved
    assert (out[size:] == 0x55).all(), "written beyond the record"
    return KernelAnswer(
        is_usual,
        out[:size].tobytes(),
        int(tags[0]),
        int(hashes[0]),
        topics,
    )


def by_scalar(record: bytes, level: int) -> Rewritten | None:
    """What the plain code makes of it, None for a bad record."""
    try:
        return rewrite_record(record, placement(record, level), LIMITS)
    except BadRecordError:
        return None


def assert_agreement(record: bytes, level: int) -> KernelAnswer:
    """A usual record is the scalar code's record; the kernel never accepts what the scalar code
    refuses.
    """
    fast, slow = by_kernel(record, level), by_scalar(record, level)
    if fast.is_usual:
        assert slow is not None
        assert fast.record == slow.record
        assert fast.tags_hash == slow.tags_hash
        assert fast.topic_hash == slow.topic_hash
        [counted] = fast.topics.counts()
        assert (counted.topic, counted.count) == (slow.real_topic, 1)
        assert counted.max_queue_id == slow.real_queue_id
    return fast


@pytest.mark.parametrize("closed", [True, False], ids=["5.2+ ending", "4.9 ending"])
@pytest.mark.parametrize("level", [1, 9, 10, 18, 100])
def test_usual_records_of_every_level_and_ending_are_rewritten_by_the_kernel(
    level: int, closed: bool
) -> None:
    record = encode_message(level_record(properties(level, closed=closed), level=level))
    assert assert_agreement(record, level).is_usual


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("stored", [V4, V6])
def test_every_kind_of_host_is_usual(born: Host, stored: Host) -> None:
    record = encode_message(level_record(properties(), born_host=born, store_host=stored))
    assert assert_agreement(record, 5).is_usual


@pytest.mark.parametrize(
    "more",
    [
        ("TAGS\1TagA",),
        ("TAGS\1取消",),
        ("TAGS\1\N{GRINNING FACE}",),
        ("城市\1Zürich", "KEYS\1a b c"),
        ("TIMER_DELIVER_MS\x011700000000000", "TIMER_DELAY_SEC\x0112", "TIMER_DELAY_MS\x015"),
        ("TIMER_ENQUEUE_MS\x011", "TIMER_DEQUEUE_MS\x012"),
        ("no separator at all", "x\1"),
        ("RECONSUME_TIME\x013", "WAIT\1true"),
    ],
)
def test_ordinary_properties_are_usual(more: tuple[str, ...]) -> None:
    assert assert_agreement(encode_message(level_record(properties(5, *more))), 5).is_usual


_MUST_GO = sorted(name.decode() for name in REMOVED_PROPERTIES - {b"DELAY"})
"""Names of properties that a converted record must not carry."""


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("value", ["", "x", "0123456789", "a\N{GRINNING FACE}b" * 40])
@pytest.mark.parametrize("name", _MUST_GO)
def test_a_property_that_must_go_is_dropped_by_the_kernel(
    name: str, value: str, closed: bool
) -> None:
    record = encode_message(level_record(properties(5, f"{name}\1{value}", closed=closed)))
    fast = assert_agreement(record, 5)
    assert fast.is_usual
    assert f"{name}\1{value}\2".encode() not in fast.record
    assert fast.record.count(b"TIMER_OUT_MS\x01%d" % OUT_MS) == 1


@pytest.mark.parametrize("name", _MUST_GO)
def test_a_property_that_only_looks_like_one_that_must_go_stays(name: str) -> None:
    changed = [name[:at] + "?" + name[at + 1 :] for at in range(len(name))]
    for other in (name + "?", name[:-1], "?" + name, *changed):
        fast = assert_agreement(encode_message(level_record(properties(5, f"{other}\1v"))), 5)
        assert fast.is_usual
        assert f"{other}\1v\2".encode() in fast.record


@pytest.mark.parametrize("count", range(1, 12))
def test_many_properties_that_must_go_are_dropped_by_the_kernel_or_the_scalar_code(
    count: int,
) -> None:
    text = (
        b"__CRC32#\x011\2" * (count // 2)
        + properties(5)
        + b"__CRC32#\x012\2" * (count - count // 2)
    )
    fast = assert_agreement(encode_message(level_record(text)), 5)
    assert fast.is_usual == (count < 8)


@pytest.mark.parametrize(
    ("more", "closed"),
    [
        (("DELAY\x015",), True),
        (("TAGS\1a", "TAGS\1b"), True),
        (("REAL_TOPIC\1TopicB",), True),
    ],
)
def test_repeated_properties_are_left_to_the_scalar_code(
    more: tuple[str, ...], closed: bool
) -> None:
    record = encode_message(level_record(properties(5, *more, closed=closed)))
    assert not assert_agreement(record, 5).is_usual
    slow = by_scalar(record, 5)
    assert slow is not None
    assert b"DELAY" not in slow.record


def test_a_last_property_that_must_go_and_is_not_closed_takes_the_separator_before_it_along() -> (
    None
):
    record = encode_message(level_record(properties(5) + b"__CRC32#\x011"))
    assert not assert_agreement(record, 5).is_usual
    slow = by_scalar(record, 5)
    assert slow is not None
    assert slow.record.endswith(b"REAL_QID\x012")


REST = b"\2DELAY\x015\2REAL_QID\x010"


@pytest.mark.parametrize(
    ("text", "changes", "reason"),
    [
        (properties(6), {}, "DELAY is '6'"),
        (b"REAL_TOPIC\1T\2REAL_QID\x010", {}, "no DELAY"),
        (b"REAL_QID\x010\2DELAY\x015", {}, "no REAL_TOPIC"),
        (b"REAL_TOPIC\1T\2DELAY\x015", {}, "no REAL_QID"),
        (b"REAL_TOPIC\1T\2DELAY\x015\2REAL_QID\x01-1", {}, "REAL_QID '-1'"),
        (b"REAL_TOPIC\1T\2DELAY\x015\2REAL_QID\x0199999", {}, "REAL_QID '99999'"),
        (b"REAL_TOPIC\1a/b\2DELAY\x015\2REAL_QID\x010", {}, "REAL_TOPIC 'a/b'"),
        (b"REAL_TOPIC\1..\2DELAY\x015\2REAL_QID\x010", {}, "REAL_TOPIC '..'"),
        (b"REAL_TOPIC\1RMQ_SYS_TRANS_HALF_TOPIC\2DELAY\x015\2REAL_QID\x010", {}, "REAL_TOPIC"),
        (b"REAL_TOPIC\1RMQ_SYS_TRANS_OP_HALF_TOPIC\2DELAY\x015\2REAL_QID\x010", {}, "REAL_TOPIC"),
        (b"REAL_TOPIC\1%RETRY%" + "组".encode() * 60 + REST, {}, "REAL_TOPIC"),
        (b"REAL_TOPIC\1\xff\xfe" + REST, {}, "REAL_TOPIC"),
        (b"REAL_TOPIC\1SCHEDULE_TOPIC_XXXX\2DELAY\x015\2REAL_QID\x010", {}, "REAL_TOPIC"),
        (b"REAL_TOPIC\1rmq_sys_wheel_timer\2DELAY\x015\2REAL_QID\x010", {}, "REAL_TOPIC"),
        (properties(), {"body_crc": 1}, "the body is damaged"),
        (properties(), {"body": b""}, "no body: no broker with a timer wheel delivers it"),
        (properties(), {"queue_id": 5}, "the record is of queue 5"),
        (properties(), {"commit_log_offset": 1235}, "it lies at 1235"),
        (properties(), {"topic": "SCHEDULE_TOPIC_XXXY"}, "a record of topic"),
        (properties(), {"sys_flag": 4}, "prepared or rolled back"),
        (properties(), {"sys_flag": 12}, "prepared or rolled back"),
        (properties(5, "k\1" + "v" * 32_600), {}, "would outgrow"),
        (b"REAL_TOPIC\1RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC" + REST, {}, "REAL_TOPIC"),
        (properties(), {"born_host": MAPPED}, "in the form of an IPv6 one"),
        (properties(), {"store_host": MAPPED}, "in the form of an IPv6 one"),
        (properties(), {"born_host": V6, "store_host": MAPPED}, "in the form of an IPv6 one"),
        (properties(), {"born_host": MAPPED, "store_host": V6}, "in the form of an IPv6 one"),
    ],
)
def test_a_bad_record_is_never_usual_and_has_a_reason(
    text: bytes, changes: dict[str, Any], reason: str
) -> None:
    record = encode_message(level_record(text, **changes))
    assert not assert_agreement(record, 5).is_usual
    with pytest.raises(BadRecordError, match=reason.replace("(", r"\(")):
        rewrite_record(record, placement(record, 5), LIMITS)


@given(place=st.integers(0, 200), value=st.integers(0, 255))
def test_any_changed_byte_is_either_agreed_on_or_left_out(place: int, value: int) -> None:
    record = bytearray(encode_message(level_record(properties(5, "TAGS\1T"))))
    record[place % len(record)] = value
    assert_agreement(bytes(record), 5)


@given(cut=st.integers(0, 220))
def test_a_cut_record_is_never_usual(cut: int) -> None:
    whole = encode_message(level_record(properties(5, "TAGS\1T")))
    fast = by_kernel(whole[: cut % len(whole)], 5)
    assert not fast.is_usual


_NAMES = st.sampled_from(
    [
        "TAGS",
        "KEYS",
        "UNIQ_KEY",
        "a",
        "DELAY",
        "REAL_QID",
        "城市",
        "WAIT",
        *_MUST_GO,
        "TIMER_ROLLED",
    ]
)
_VALUES = st.text(
    st.characters(blacklist_characters="\1\2", blacklist_categories=["Cs"]), max_size=12
)


@given(
    entries=st.lists(st.tuples(_NAMES, _VALUES), max_size=6),
    level=st.integers(1, 40),
    body=st.binary(max_size=80),
    closed=st.booleans(),
    hosts=st.tuples(st.sampled_from([V4, V6]), st.sampled_from([V4, V6])),
)
def test_the_kernel_never_disagrees_with_the_scalar_code(
    entries: list[tuple[str, str]],
    level: int,
    body: bytes,
    closed: bool,
    hosts: tuple[Host, Host],
) -> None:
    text = properties(level, *(f"{name}\1{value}" for name, value in entries), closed=closed)
    message = level_record(text, level=level, body=body, born_host=hosts[0], store_host=hosts[1])
    assert_agreement(encode_message(message), level)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_never_usual(data: bytes) -> None:
    assert not by_kernel(data, 5).is_usual
    assert by_scalar(data, 5) is None


def test_only_what_may_differ_differs() -> None:
    message = level_record(properties(5, "TAGS\1T"), sys_flag=8, flag=3, reconsume_times=2)
    [counted] = assert_agreement(encode_message(message), 5).topics.counts()
    rewritten = by_scalar(encode_message(message), 5)
    assert rewritten is not None
    expected = attrs.evolve(
        message,
        topic="rmq_sys_wheel_timer",
        queue_id=0,
        queue_offset=42,
        commit_log_offset=TARGET_OFFSET,
        store_timestamp_ms=NOW_MS,
        prepared_transaction_offset=0,
        properties_text=message.properties_text.replace(
            b"DELAY\x015", b"TIMER_OUT_MS\x01%d" % OUT_MS
        ),
    )
    assert rewritten.record == encode_message(expected)
    assert rewritten.topic_hash == string_hash("TopicA")
    assert counted.max_queue_id == 2


def test_a_topic_table_that_is_too_small_grows_and_keeps_its_counts() -> None:
    table = TopicTable(topics=2)
    for number in range(50):
        for _ in range(number + 1):
            table.add(b"topic-%d" % number, number)
    counts = {entry.topic: (entry.count, entry.max_queue_id) for entry in table.counts()}
    assert counts == {b"topic-%d" % n: (n + 1, n) for n in range(50)}


@pytest.mark.parametrize("room", [0, 1, 150])
@pytest.mark.parametrize("value_bytes", [10, 32_600])
def test_a_record_never_leaves_the_room_that_there_is(room: int, value_bytes: int) -> None:
    record = encode_message(level_record(properties(5, "k\1" + "v" * value_bytes)))
    assert not by_kernel(record, 5, room=room).is_usual


@pytest.mark.parametrize(
    ("topic", "is_fine"),
    [
        ("t" * 127, True),
        ("t" * 128, False),
        ("%RETRY%" + "g" * 248, True),
        ("%RETRY%" + "g" * 249, False),
    ],
)
def test_a_topic_that_a_broker_would_not_store_is_refused(topic: str, is_fine: bool) -> None:
    text = f"REAL_TOPIC\1{topic}\2DELAY\x015\2REAL_QID\x010".encode()
    record = encode_message(level_record(text))
    assert_agreement(record, 5)
    assert (by_scalar(record, 5) is not None) == is_fine


_TOPICS = st.sampled_from(
    ["TopicA", "%RETRY%group", "a b", "a/b", "..", "城市", "t" * 128, *sorted(UNDELIVERABLE_TOPICS)]
)
_STEERING = st.sampled_from([*sorted(RESERVED_PROPERTIES), "a"])


@given(
    topic=_TOPICS,
    queue_id=st.sampled_from(["0", "7", "-1", "65535", "65536", "x", "٣"]),
    entries=st.lists(st.tuples(_STEERING, st.sampled_from(["", "1", "5", "x"])), max_size=4),
    hosts=st.tuples(st.sampled_from([V4, V6, MAPPED]), st.sampled_from([V4, V6, MAPPED])),
    sys_flag=st.sampled_from([0, 1, 4, 8, 12]),
    body=st.sampled_from([b"", b"0"]),
    padding=st.sampled_from([0, 500, 32_300, 32_450]),
    most_bytes=st.sampled_from([400, 1_000, 4 << 20]),
)
def test_no_timer_record_is_made_that_a_wheel_could_not_place_and_deliver(
    topic: str,
    queue_id: str,
    entries: list[tuple[str, str]],
    hosts: tuple[Host, Host],
    sys_flag: int,
    body: bytes,
    padding: int,
    most_bytes: int,
) -> None:
    """One of them stops a stock broker's wheel for ever."""
    pairs = [("REAL_TOPIC", topic), ("DELAY", "5"), *entries, ("REAL_QID", queue_id)]
    pairs.append(("padding", "p" * padding))
    text = "".join(f"{name}\1{value}\2" for name, value in pairs).encode()
    message = level_record(
        text, body=body, born_host=hosts[0], store_host=hosts[1], sys_flag=sys_flag
    )
    record = encode_message(message)
    assert_agreement(record, 5)
    limits = RewriteLimits(record_max_bytes=most_bytes, commit_log_file_bytes=1 << 30)
    try:
        made = rewrite_record(record, placement(record, 5), limits).record
    except BadRecordError:
        return
    faults = timer_record_faults(decode_message_at(made), len(made), most_bytes)
    assert [what for _fault, what in faults] == []
