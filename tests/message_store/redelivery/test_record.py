# SPDX-License-Identifier: Apache-2.0
"""Redelivery in bulk is never a second truth: its bytes, queue units and refusals are the scalar
code's.
"""

from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import FormatError
from message_store.columns.byte_column import ByteColumn
from message_store.format import properties as names
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import string_hash
from message_store.format.message import StoredMessage
from message_store.format.message_codec import (
    body_crc,
    decode_message_at,
    encode_message,
)
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import (
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_IPV6,
    SYS_COMMIT,
    SYS_COMPRESSED,
    SYS_STORE_HOST_IPV6,
)
from message_store.redelivery.batch import (
    FROM_LEVEL,
    FROM_WHEEL,
    ROLLED,
    Measured,
    Rewrite,
    redeliver,
    redelivered,
)
from message_store.redelivery.destinations import HASH, DestinationTable
from message_store.redelivery.kernels import TAGS_CODE
from message_store.redelivery.record import (
    destination_of,
    redelivered_properties,
    tags_code_of,
)
from tests.message_store.log_in_memory import MemoryStoreFloor
from tests.message_store.strategies import hosts, int32s, int64s
from tests.message_store.vectors import CRC_PROPERTY, message
from timer_wheel.timers.timer_properties import wheel_stamps

NOW_MS = 1_793_000_000_123

#: Names that matter, and pieces of which they are made: near misses find what a prefix hides.
NAMES = [
    names.REAL_TOPIC, names.REAL_QUEUE_ID, names.TAGS, names.KEYS, names.UNIQUE_KEY, names.DELAY,
    names.TIMER_OUT_MS, names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES,
    names.CRC32, names.INNER_MULTI_DISPATCH, names.INNER_MULTI_QUEUE_OFFSET, "REAL_TOPI",
    "REAL_TOPICS", "TAG", "TIMER_ENQUEUE_MT", "X" * 16, "城市", "", "n" * 70,
]  # fmt: skip
TOPICS = [
    "TopicA", "TopicB", "%RETRY%group", "主题", "t" * 127, "t" * 128, "ü" * 63, "ü" * 64, "ü" * 127,
    "%RETRY%" + "g" * 248, "g" * 256, "a/b", "..", ".", "a\0b", names.HALF_TOPIC,
    names.LEVEL_TOPIC, names.TIMER_TOPIC, "with space",
]  # fmt: skip
QUEUE_IDS = [
    b"0", b"1", b"7", b"000000002", b"0000000002", b"+3", b"-1", b"x", b"2147483647", b"2147483648",
    b"\xff", "٣".encode(), b" 1", b"99999999999999999999",
]  # fmt: skip
VALUES = [b"", b"v", b"1", b"12", b"TagA", "标签".encode(), b"\xff\xfe", b"a\x01b", b"x" * 40]

good_topics = st.sampled_from(TOPICS[:4]).map(str.encode)
good_queues = st.sampled_from(QUEUE_IDS[:3])
entries = st.tuples(
    st.sampled_from(NAMES).map(str.encode),
    st.one_of(st.sampled_from(VALUES), st.binary(max_size=9)),
)


@st.composite
def properties_texts(draw: st.DrawFn) -> bytes:
    """Properties as a log may hold them: mostly deliverable, with every oddity besides."""
    pairs = draw(st.lists(entries, max_size=6))
    is_odd = draw(st.integers(0, 3)) == 0
    if not is_odd:
        pairs = [pair for pair in pairs if pair[0] not in (b"REAL_TOPIC", b"REAL_QID")]
    topic = st.sampled_from(TOPICS).map(str.encode) if is_odd else good_topics
    queue_id = st.sampled_from(QUEUE_IDS) if is_odd else good_queues
    pairs.insert(draw(st.integers(0, len(pairs))), (b"REAL_TOPIC", draw(topic)))
    pairs.insert(draw(st.integers(0, len(pairs))), (b"REAL_QID", draw(queue_id)))
    pieces = [name + b"\x01" + value for name, value in pairs]
    pieces = [piece.replace(b"\x02", b"") for piece in pieces]
    if draw(st.integers(0, 9)) == 0:
        pieces.insert(draw(st.integers(0, len(pieces))), draw(st.sampled_from([b"", b"loose"])))
    if draw(st.integers(0, 19)) == 0:
        pieces = []
    text = b"\x02".join(pieces)
    return text + b"\x02" * (draw(st.booleans()) and bool(pieces))


@st.composite
def waiting_messages(draw: st.DrawFn) -> StoredMessage:
    """A record that waits, whatever it looks like."""
    born, store = draw(hosts), draw(hosts)
    body = draw(st.one_of(st.binary(max_size=80), st.just(b"z" * 700)))
    flags = draw(st.sampled_from([0, 0, SYS_COMPRESSED, SYS_COMMIT, 0x300, 0x4, 0xC]))
    flags |= SYS_BORN_HOST_IPV6 * born.is_ipv6 | SYS_STORE_HOST_IPV6 * store.is_ipv6
    return StoredMessage(
        topic=draw(st.sampled_from([names.LEVEL_TOPIC, names.TIMER_TOPIC, "城市", ""])),
        body=body,
        body_crc=body_crc(body) if body else draw(int32s),
        properties_text=draw(properties_texts()),
        queue_id=draw(int32s),
        queue_offset=draw(int64s),
        commit_log_offset=0,
        born_timestamp_ms=draw(int64s),
        born_host=born,
        store_timestamp_ms=draw(int64s),
        store_host=store,
        flag=draw(int32s),
        sys_flag=flags,
        reconsume_times=draw(int32s),
        prepared_transaction_offset=draw(int64s),
        magic=draw(st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V2])),
    )


SUFFIXES = [
    b"", b"TIMER_ENQUEUE_MS\x017\x02TIMER_DEQUEUE_MS\x018\x02", b"A\x01b\x02",
]  # fmt: skip
rewrites = st.sampled_from(
    [
        FROM_LEVEL,
        FROM_WHEEL,
        ROLLED,
        Rewrite(takes_long_topics=False),
        Rewrite(dropped=["KEYS", "X" * 16, "城市"]),
    ]
)


def put_all(store: Any, messages: list[StoredMessage]) -> Any:
    """Into the log, each saying where it lies."""
    return store.put_all(
        lambda position, one=message: encode_message(attrs.evolve(one, commit_log_offset=position))
        for message in messages
    )


def one_by_one(
    store: Any, offsets: Any, sizes: Any, how: Rewrite, suffixes: list[bytes]
) -> tuple[list[int], list[int], dict[tuple[str, int], bytes]]:
    """The truth: the same by the scalar code, record after record, into a store that has them."""
    positions: list[int] = []
    bad: list[int] = []
    units: dict[tuple[str, int], bytes] = {}
    for row, (offset, size_bytes) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
        try:
            message = store.log.record(offset, size_bytes)
            if message.commit_log_offset != offset or len(encode_message(message)) != size_bytes:
                raise FormatError("not the record that was meant")
            where = destination_of(message, how)
            first = firsts(offsets, how)
            facts: dict[str, Any] = {"store_ms": NOW_MS, "suffix": suffixes[row]}
            facts["prepared_offset"] = 0 if first is None else int(first[row])
            size = len(redelivered(message, how, queue_offset=0, position=0, **facts))
            if size + 8 > store.log.file_bytes:
                raise FormatError("too large")
        except FormatError:
            bad.append(row)
            continue
        queue = store.queue(*where)
        at = store.log.put(bytes(size))
        record = redelivered(message, how, queue_offset=queue.max_offset, position=at, **facts)
        store.log.data[at : at + size] = np.frombuffer(record, np.uint8)
        unit = QUEUE_UNIT.encode(
            commit_log_offset=at, size_bytes=size, tags_code=tags_code_of(message)
        )
        units[where] = units.get(where, b"") + unit
        queue.max_offset += 1
        positions.append(at)
    return positions, bad, units


def firsts(offsets: Any, how: Rewrite) -> Any:
    """What is told of the first record of each of these, where they are placed again."""
    return offsets ^ 1 if how.topic is not None else None


def assert_same(make: "Any", offsets: Any, sizes: Any, how: Rewrite, suffixes: list[bytes]) -> None:
    """Both ways, from two equal stores, end in the same log and the same queues."""
    one, bulk = make(), make()
    positions, bad, units = one_by_one(one, offsets, sizes, how, suffixes)
    result = redeliver(
        bulk, offsets, sizes, how,
        suffixes=ByteColumn.of(suffixes), prepared_offsets=firsts(offsets, how), store_ms=NOW_MS,
    )  # fmt: skip
    assert result.positions.tolist() == positions
    assert [row for row, _ in result.bad] == bad
    assert sorted([*result.rows.tolist(), *bad]) == list(range(len(offsets)))
    assert bulk.log.end == one.log.end
    for position, size in zip(positions, result.sizes.tolist(), strict=True):
        ours = bulk.log.data[position : position + size].tobytes()
        assert ours == one.log.data[position : position + size].tobytes()
    queues = queue_bytes(bulk)
    if bad:  # what turns out to be damaged when it is copied had a queue by then
        queues = {key: entries for key, entries in queues.items() if entries}
    assert queues == units
    assert {(to.topic.decode(), to.queue_id): count for to, count in result.counts.items()} == {
        key: len(text) // QUEUE_UNIT.size for key, text in units.items()
    }


def memory_store(file_bytes: int = 1 << 20) -> Any:
    """A floor in memory, which is no LiveStore but does what a redelivery asks of one."""
    return MemoryStoreFloor(file_bytes)


def store_of(messages: list[StoredMessage], file_bytes: int = 1 << 20) -> Any:
    store = memory_store(file_bytes)
    put_all(store, messages)
    return store


def waiting(text: bytes, **changes: Any) -> StoredMessage:
    """A level's record of the usual shape, with changes."""
    return message(topic=names.LEVEL_TOPIC, queue_id=4, properties_text=text, **changes)


TO_A = b"REAL_TOPIC\x01TopicA\x02TAGS\x01TagA\x02REAL_QID\x013"


# --- one law: the same bytes ---------------------------------------------------------------------


@pytest.mark.check
@given(
    st.lists(st.tuples(waiting_messages(), st.sampled_from(SUFFIXES)), max_size=12),
    rewrites,
    st.sampled_from([2_000, 5_000, 1 << 20]),
)
def test_bulk_redelivery_is_the_scalar_one_byte_for_byte(
    rows: list[tuple[StoredMessage, bytes]], how: Rewrite, file_bytes: int
) -> None:
    messages = [message for message, _ in rows]
    suffixes = [suffix for _, suffix in rows]
    offsets, sizes = put_all(memory_store(file_bytes), messages)
    assert_same(lambda: store_of(messages, file_bytes), offsets, sizes, how, suffixes)


@pytest.mark.check
@given(st.data())
def test_what_was_measured_before_changes_nothing(data: st.DataObject) -> None:
    """In any order, of any of the records and of others, in several steps, with other lengths."""
    rows = data.draw(
        st.lists(st.tuples(waiting_messages(), st.sampled_from(SUFFIXES)), min_size=1, max_size=12)
    )
    how = data.draw(rewrites)
    messages, suffixes = [row[0] for row in rows], ByteColumn.of([row[1] for row in rows])
    one, other = store_of(messages), store_of(messages)
    offsets, sizes = put_all(memory_store(), messages)
    known = None
    some = st.lists(st.integers(0, len(rows) - 1), max_size=15)
    for chosen in data.draw(st.lists(some, max_size=3)):
        lengths = suffixes.lengths[chosen] + data.draw(st.sampled_from([0, 0, 1]))
        known = Measured.of(other, offsets[chosen], sizes[chosen], lengths, how, known=known)
    wanted = data.draw(some)
    offsets, sizes, suffixes = offsets[wanted], sizes[wanted], suffixes.take(wanted)
    expected = redeliver(one, offsets, sizes, how, suffixes=suffixes, store_ms=NOW_MS)
    found = redeliver(other, offsets, sizes, how, suffixes=suffixes, store_ms=NOW_MS, known=known)
    assert found.positions.tolist() == expected.positions.tolist()
    assert found.rows.tolist() == expected.rows.tolist()
    assert [row for row, _ in found.bad] == [row for row, _ in expected.bad]
    assert found.counts == expected.counts
    assert (other.log.end, other.log.data.tobytes()) == (one.log.end, one.log.data.tobytes())
    assert queue_bytes(other) == queue_bytes(one)


@pytest.mark.parametrize(
    ("how", "log_begins", "is_used"),
    [(FROM_LEVEL, 0, True), (ROLLED, 0, False), (FROM_LEVEL, 1, False)],
)
def test_what_is_known_by_other_rules_or_of_files_that_are_gone_is_not_used(
    how: Rewrite, log_begins: int, is_used: bool
) -> None:
    messages = [waiting(TO_A), waiting(TO_A)]
    offsets, sizes = put_all(memory_store(), messages)
    store = store_of(messages)
    known = Measured.of(store, offsets, sizes, np.zeros(2, np.int64), how)
    known.found[TAGS_CODE] = 4_711  # which shows wherever it is used
    store.log.min_offset = log_begins
    redeliver(store, offsets, sizes, FROM_LEVEL, store_ms=NOW_MS, known=known)
    [units] = [queue.units for queue in store.queues.values()]
    assert (units["tags_code"] == 4_711).all() == is_used


def test_a_table_that_grows_goes_on_from_what_is_known() -> None:
    """It has room for 256 destinations at first; what is known stays as it was."""
    text = "REAL_TOPIC\x01T{}\x02REAL_QID\x010"
    messages = [waiting(text.format(number % 600).encode()) for number in range(900)]
    one, other = store_of(messages), store_of(messages)
    offsets, sizes = put_all(memory_store(), messages)
    lengths = np.zeros(len(messages), np.int64)
    known = None
    for count in (200, 700):
        known = Measured.of(
            other, offsets[:count], sizes[:count], lengths[:count], FROM_LEVEL, known=known
        )
    assert known is not None
    assert len(known.table) == 600
    before = known.table.rows.copy(), known.found.copy()
    expected = redeliver(one, offsets, sizes, FROM_LEVEL, store_ms=NOW_MS)
    found = redeliver(other, offsets, sizes, FROM_LEVEL, store_ms=NOW_MS, known=known)
    assert found.counts == expected.counts
    assert queue_bytes(other) == queue_bytes(one)
    assert other.log.data.tobytes() == one.log.data.tobytes()
    assert (known.table.rows == before[0]).all()
    assert (known.found == before[1]).all()


def test_a_body_that_is_damaged_is_found_though_its_record_is_known() -> None:
    messages = [waiting(TO_A, body=b"x" * 50), waiting(TO_A, body=b"y" * 50)]
    store = store_of(messages)
    offsets, sizes = put_all(memory_store(), messages)
    known = Measured.of(store, offsets, sizes, np.zeros(2, np.int64), FROM_LEVEL)
    store.log.data[int(offsets[0]) + 100] ^= 1
    found = redeliver(store, offsets, sizes, FROM_LEVEL, store_ms=NOW_MS, known=known)
    assert [row for row, _ in found.bad] == [0]
    assert found.rows.tolist() == [1]


def queue_bytes(store: Any) -> dict[Any, bytes]:
    return {key: queue.units.tobytes() for key, queue in store.queues.items()}


@pytest.mark.check
@given(st.data())
def test_damage_anywhere_is_what_the_scalar_code_says_it_is(data: st.DataObject) -> None:
    messages = data.draw(st.lists(waiting_messages(), min_size=1, max_size=6))
    offsets, sizes = put_all(memory_store(5_000), messages)
    end = int(offsets[-1] + sizes[-1])
    place = st.integers(0, end + 50)
    damage = data.draw(st.lists(st.tuples(place, st.integers(0, 255)), max_size=4))
    row = st.integers(0, len(messages) - 1)
    for wrong in data.draw(st.lists(row, max_size=2)):
        number = st.one_of(st.integers(-200, end + 200), int64s)
        offsets[wrong] = data.draw(st.one_of(st.just(int(offsets[wrong])), number))
        sizes[wrong] = data.draw(st.one_of(st.just(int(sizes[wrong])), number))

    def make() -> Any:
        store = store_of(messages, 5_000)
        for at, value in damage:
            store.log.data[at] = value
        return store

    assert_same(make, offsets, sizes, FROM_WHEEL, [b""] * len(messages))


@given(properties_texts(), rewrites, st.sampled_from(SUFFIXES))
def test_what_stays_of_the_properties_reads_the_same_and_ends_the_same(
    text: bytes, how: Rewrite, suffix: bytes
) -> None:
    before = names.split_entries(text)
    after = names.split_entries(redelivered_properties(text, how, suffix))
    kept = [pair for pair in before if pair[0] not in how.dropped_names]
    assert after == kept + names.split_entries(suffix)
    if text and after:
        new = redelivered_properties(text, how, suffix)
        if b"\x02\x02" not in text:  # an empty entry has no name by which it could be left out
            assert new.endswith(b"\x02") == text.endswith(b"\x02")


# --- what becomes of a record --------------------------------------------------------------------


def test_a_delivered_copy_differs_in_its_place_and_nothing_else() -> None:
    source = waiting(
        TO_A + b"\x02DELAY\x015",
        flag=9,
        sys_flag=SYS_COMPRESSED | SYS_COMMIT,
        reconsume_times=2,
        prepared_transaction_offset=77,
    )
    record = redelivered(source, FROM_LEVEL, queue_offset=8, position=9, store_ms=NOW_MS)
    assert decode_message_at(record) == attrs.evolve(
        source,
        topic="TopicA",
        queue_id=3,
        queue_offset=8,
        commit_log_offset=9,
        store_timestamp_ms=NOW_MS,
        prepared_transaction_offset=0,
    )


def test_a_checksum_of_the_old_record_and_old_queue_offsets_stay_behind() -> None:
    text = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02" + TO_A + b"\x02INNER_MULTI_QUEUE_OFFSET\x017\x02"
    assert redelivered_properties(text + CRC_PROPERTY, FROM_LEVEL) == TO_A + b"\x02"


@pytest.mark.parametrize(
    ("topic", "magic"),
    [
        ("t" * 127, MAGIC_V1),
        ("t" * 128, MAGIC_V2),
        ("t" * 255, MAGIC_V2),
        # 64 characters: Java stays at version 1 and writes a length that reads back as negative.
        ("ü" * 64, MAGIC_V2),
        ("ü" * 63, MAGIC_V1),
    ],
)
def test_a_long_topic_makes_it_version_2(topic: str, magic: int) -> None:
    source = waiting(b"REAL_QID\x010\x02REAL_TOPIC\x01" + topic.encode())
    copy = decode_message_at(
        redelivered(source, FROM_LEVEL, queue_offset=0, position=0, store_ms=NOW_MS)
    )
    assert (copy.topic, copy.magic) == (topic, magic)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no REAL_TOPIC"),
        (b"REAL_TOPIC\x01TopicA", "no REAL_QID"),
        (b"REAL_TOPIC\x01\x02REAL_QID\x010", "no REAL_TOPIC"),
        (b"REAL_TOPIC\x01TopicA\x02REAL_QID\x01x", "not a whole number"),
        (b"REAL_TOPIC\x01TopicA\x02REAL_QID\x01-1", "no queue"),
        (b"REAL_TOPIC\x01TopicA\x02REAL_QID\x01\xff", "not UTF-8"),
        (b"REAL_TOPIC\x01\xff\x02REAL_QID\x010", "not UTF-8"),
        (b"REAL_TOPIC\x01../x\x02REAL_QID\x010", "no directory"),
        (b"REAL_TOPIC\x01..\x02REAL_QID\x010", "no directory"),
        (b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010", "half message"),
        (b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010", "the levels' own"),
        (b"REAL_TOPIC\x01" + b"t" * 256 + b"\x02REAL_QID\x010", "no directory"),
        (b"REAL_TOPIC\x01TopicA\x02REAL_QID\x010\x02X\x01" + b"x" * 32_700, "too long"),
    ],
)
def test_what_can_go_nowhere_comes_back_with_the_reason_and_the_rest_goes(
    text: bytes, reason: str
) -> None:
    store = memory_store()
    offsets, sizes = put_all(store, [waiting(TO_A), waiting(text), waiting(TO_A)])
    stamps = wheel_stamps(np.array([1, 2, 3]), NOW_MS)
    result = redeliver(store, offsets, sizes, FROM_LEVEL, suffixes=stamps, store_ms=NOW_MS)
    [(row, error)] = result.bad
    assert row == 1
    assert reason in str(error)
    assert result.rows.tolist() == [0, 2]
    last = store.log.record(int(result.positions[1]), int(result.sizes[1]))
    assert last.properties["TIMER_ENQUEUE_MS"] == "3"
    assert [key for key, queue in store.queues.items() if len(queue.units)] == [("TopicA", 3)]


def test_a_store_of_4_9_refuses_what_only_a_record_of_version_2_can_hold() -> None:
    store = memory_store()
    store.dialect = Dialect.ROCKETMQ_4_9
    text = b"REAL_QID\x010\x02REAL_TOPIC\x01" + b"t" * 128
    offsets, sizes = put_all(store, [waiting(text)])
    result = redeliver(store, offsets, sizes, FROM_LEVEL, store_ms=NOW_MS)
    assert "4.9" in str(result.bad[0][1])
    assert len(result.rows) == 0


def test_where_a_message_goes_and_its_tag_cannot_be_dropped() -> None:
    with pytest.raises(ValueError, match="REAL_TOPIC"):
        Rewrite(dropped=["REAL_TOPIC"])


def test_nothing_to_redeliver_is_nothing_appended() -> None:
    store = memory_store()
    none = np.empty(0, np.int64)
    result = redeliver(store, none, none, FROM_LEVEL, store_ms=NOW_MS)
    assert (len(result.positions), result.bad, result.counts, store.log.end) == (0, [], {}, 0)


# --- queues --------------------------------------------------------------------------------------


def test_queue_units_carry_java_s_hash_of_the_tag() -> None:
    store = memory_store()
    tags = ["TagA", "标签", "polygenelubricants", "\N{GRINNING FACE}", None]
    offsets, sizes = put_all(
        store,
        [
            waiting(b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02TAGS\x01" + (tag or "").encode())
            for tag in tags
        ],
    )
    redeliver(store, offsets, sizes, FROM_LEVEL, store_ms=NOW_MS)
    units = store.queue("T", 0).units
    assert units["tags_code"].tolist() == [string_hash(tag or "") for tag in tags]


def test_more_destinations_than_the_table_has_room_for_at_first() -> None:
    store = memory_store(1 << 20)
    texts = [
        b"REAL_TOPIC\x01topic%d\x02REAL_QID\x01%d" % (number % 700, number % 3)
        for number in range(3_000)
    ]
    offsets, sizes = put_all(store, [waiting(text) for text in texts])
    result = redeliver(store, offsets, sizes, FROM_LEVEL, store_ms=NOW_MS)
    assert len(result.counts) == 2_100
    for number in (0, 1_699, 2_999):
        copy = store.log.record(int(result.positions[number]), int(result.sizes[number]))
        assert (copy.topic, copy.queue_id) == (f"topic{number % 700}", number % 3)
        unit = store.queue(copy.topic, copy.queue_id)
        place = copy.queue_offset - unit.first
        assert unit.units["commit_log_offset"][place] == result.positions[number]


def test_topics_that_share_a_hash_do_not_mix() -> None:
    elsewhere = DestinationTable()
    elsewhere.number_of(b"orders", 1)
    table = DestinationTable()
    table.number_of(b"alerts", 1)
    table.rows[0, HASH] = elsewhere.rows[0, HASH]
    table.grow()
    assert table.number_of(b"orders", 1) == 1
    assert table.number_of(b"orders", 1) == 1
    assert table.number_of(b"orders", 2) == 2
    assert [one.topic for one in table.destinations()] == [b"alerts", b"orders", b"orders"]


# --- the wheel's rounds --------------------------------------------------------------------------


def test_a_round_drops_the_old_stamps_and_counts_one_more() -> None:
    store = memory_store()
    timer = TO_A + b"\x02TIMER_OUT_MS\x01170\x02"
    old = b"TIMER_ENQUEUE_MS\x011\x02TIMER_DEQUEUE_MS\x012\x02TIMER_ROLL_TIMES\x0141\x02"
    messages = [waiting(old + timer + b"DELAY\x015\x02"), waiting(timer)]
    offsets, sizes = put_all(store, messages)
    stamps = wheel_stamps(np.array([5_000, 6_000]), NOW_MS, np.array([42, 1]))
    result = redeliver(store, offsets, sizes, ROLLED, suffixes=stamps, store_ms=NOW_MS)
    for row, (enqueued, times) in enumerate([(5_000, 42), (6_000, 1)]):
        copy = store.log.record(int(result.positions[row]), int(result.sizes[row]))
        assert (copy.topic, copy.queue_id) == (names.TIMER_TOPIC, 0)
        assert copy.properties_text == timer + (
            b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02TIMER_ROLL_TIMES\x01%d\x02"
            % (enqueued, NOW_MS, times)
        )


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2)), max_size=30), st.booleans())
def test_stamps_are_the_properties_of_each_row(
    rows: list[tuple[int, int]], is_rolled: bool
) -> None:
    enqueued, rolled = (np.array([row[which] for row in rows], np.int64) for which in (0, 1))
    expected = [
        f"TIMER_ENQUEUE_MS\x01{one}\x02TIMER_DEQUEUE_MS\x01{NOW_MS}\x02"
        + (f"TIMER_ROLL_TIMES\x01{times}\x02" if is_rolled else "")
        for one, times in rows
    ]
    stamps = wheel_stamps(enqueued, NOW_MS, rolled if is_rolled else None)
    assert [text.decode() for text in stamps] == expected
