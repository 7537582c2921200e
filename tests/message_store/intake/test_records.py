# SPDX-License-Identifier: Apache-2.0
"""A record that waits is the one that the strict codec makes of the same fields, and what no broker
could deliver is refused before anything is written.
"""

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from message_store.base.errors import BadFieldError
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import string_hash
from message_store.format.message import Host, Message, StoredMessage
from message_store.format.message_codec import body_crc, decode_message_at, encode_message
from message_store.format.message_rules import RESERVED_PROPERTIES, SizeLimits
from message_store.format.properties import LEVEL_TOPIC, TIMER_TOPIC, encode_properties
from message_store.format.record_layout import PROPERTIES_MAX_BYTES
from message_store.intake.records import MOST_FRAMES, RecordForm, RecordMaker
from message_store.writing.settings import StoreSettings
from tests.message_store import vectors
from tests.message_store.drafts import Draft, draft
from tests.message_store.strategies import hosts, int32s, int64s, waiting_messages

NOW_MS = 1_700_000_000_123
OUT_MS = 1_700_003_600_000
FORM = RecordForm(store_host=vectors.STORE, born_host=vectors.BORN)
VECTOR = Message("TopicA", b"hello", tags="TagA", unique_key="0A0102030001")


def entries_of(message: Message, delay_level: int | None, out_ms: int | None) -> dict[str, str]:
    """The properties in their order, spelled out."""
    entries = {"REAL_TOPIC": message.topic, "UNIQ_KEY": message.unique_key or ""}
    if delay_level is not None:
        entries["DELAY"] = str(delay_level)
    if keys := " ".join(message.keys):
        entries["KEYS"] = keys
    if message.tags:
        entries["TAGS"] = message.tags
    entries |= message.properties
    entries["REAL_QID"] = str(message.queue_id)
    if out_ms is not None:
        entries["TIMER_OUT_MS"] = str(out_ms)
    return entries


def level(message: Message, form: RecordForm = FORM) -> Draft:
    return draft(message, system_topic=LEVEL_TOPIC, delay_level=5, form=form)


def timed(message: Message, form: RecordForm = FORM) -> Draft:
    return draft(message, system_topic=TIMER_TOPIC, out_ms=OUT_MS, form=form)


# --- the bytes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "place", "vector"),
    [
        (level(VECTOR, attrs.evolve(FORM, closes_properties=False)), (4, 7, 1234), "level, 4.9"),
        (level(VECTOR), (4, 7, 1234), "level, 5.3"),
        (timed(VECTOR), (0, 42, 5678), "timer"),
    ],
    ids=["level, 4.9", "level, 5.3", "timer"],
)
def test_the_records_are_those_that_a_broker_has_read(
    made: Draft, place: tuple[int, int, int], vector: str
) -> None:
    expected = bytes.fromhex(vectors.VECTORS[vector][1])
    assert made.record(*place, NOW_MS, born_ms=1_700_000_000_000) == expected
    assert made.size_bytes == len(expected)
    assert made.tags_code == 2_598_919


@example(Message("t" * 127, b"", unique_key="K"), None, (vectors.STORE, vectors.STORE), True)
@example(Message("%RETRY%" + "g" * 248, b"", unique_key="K"), 18, (vectors.STORE,) * 2, False)
@given(waiting_messages(), st.none() | st.integers(1, 30), st.tuples(hosts, hosts), st.booleans())
def test_a_record_is_what_the_strict_codec_makes_of_the_same_fields(
    message: Message, delay_level: int | None, hosts: tuple[Host, Host], closed: bool
) -> None:
    born, store = hosts
    form = RecordForm(closes_properties=closed, born_host=born, store_host=store)
    out_ms = OUT_MS if delay_level is None else None
    system_topic = TIMER_TOPIC if delay_level is None else LEVEL_TOPIC
    made = draft(
        message, system_topic=system_topic, delay_level=delay_level, out_ms=out_ms, form=form
    )
    entries = entries_of(message, delay_level, out_ms)
    expected = StoredMessage(
        topic=system_topic,
        body=message.body,
        body_crc=body_crc(message.body),
        properties_text=encode_properties(entries.items(), closed=closed),
        queue_id=3,
        queue_offset=11,
        commit_log_offset=2**40,
        born_timestamp_ms=NOW_MS,
        born_host=born,
        store_timestamp_ms=NOW_MS,
        store_host=store,
        flag=message.flag,
        sys_flag=16 * born.is_ipv6 | 32 * store.is_ipv6,
    )
    record = made.record(3, 11, 2**40, NOW_MS)
    assert record == encode_message(expected)
    assert decode_message_at(record) == expected
    assert (made.size_bytes, made.unique_key) == (len(record), message.unique_key)
    assert made.tags_code == string_hash(message.tags or "")


@given(
    data=st.data(),
    messages=st.lists(waiting_messages(), min_size=2, max_size=6),
    born_host=hosts,
    store_host=hosts,
)
def test_what_a_maker_keeps_from_one_record_never_shows_in_another(
    data: st.DataObject, messages: list[Message], born_host: Host, store_host: Host
) -> None:
    form = RecordForm(born_host=born_host, store_host=store_host)
    kept = RecordMaker(LEVEL_TOPIC, form)
    for message in data.draw(st.lists(st.sampled_from(messages), max_size=12)):
        wanted = data.draw(st.sampled_from([1, 18, None])), data.draw(st.sampled_from([None, 7]))
        moments = data.draw(st.tuples(*[st.integers(0, 1)] * 2))
        given = (message, *wanted, (), 3, 4, lambda size_bytes: size_bytes, *moments)
        assert kept.record(*given) == RecordMaker(LEVEL_TOPIC, form).record(*given)


def test_a_maker_keeps_only_so_many_topics() -> None:
    maker = RecordMaker(LEVEL_TOPIC, FORM)
    for number in range(2 * MOST_FRAMES + 10):
        message = attrs.evolve(VECTOR, topic=f"t{number}")
        record = maker.record(message, 5, None, (), 0, 0, lambda _: 0, NOW_MS, NOW_MS)[0]
        assert b"REAL_TOPIC\x01t%d\x02" % number in record
    assert len(maker._frames) <= MOST_FRAMES


def test_a_given_key_goes_before_the_messages_own_and_a_new_one_comes_last() -> None:
    plain = attrs.evolve(VECTOR, unique_key=None)
    made = [level(plain), level(VECTOR), draft(VECTOR, system_topic=LEVEL_TOPIC, unique_key="B")]
    keys = [decode_message_at(each.record(0, 0, 0, NOW_MS)).unique_key for each in made]
    assert keys == [each.unique_key for each in made]
    assert len(keys[0] or "") == 32
    assert keys[1:] == ["0A0102030001", "B"]


def test_what_the_engine_adds_stands_behind_the_users_own() -> None:
    message = attrs.evolve(VECTOR, properties={"a": "b"})
    made = draft(
        message,
        system_topic=TIMER_TOPIC,
        out_ms=OUT_MS,
        extra=[("TIMER_DEL_UNIQKEY", "K"), ("TIMER_ROLL_TIMES", "1")],
    )
    names = list(decode_message_at(made.record(0, 0, 0, NOW_MS)).properties)
    assert names[3:] == ["a", "TIMER_DEL_UNIQKEY", "TIMER_ROLL_TIMES", "REAL_QID", "TIMER_OUT_MS"]


@given(out_ms=int64s)
def test_any_out_time_is_written_as_a_number_of_digits(out_ms: int) -> None:
    if out_ms < 0:
        with pytest.raises(BadFieldError, match="before 1970"):
            draft(VECTOR, system_topic=TIMER_TOPIC, out_ms=out_ms)
        return
    made = draft(VECTOR, system_topic=TIMER_TOPIC, out_ms=out_ms)
    stored = decode_message_at(made.record(0, 0, 0, NOW_MS))
    assert stored.properties["TIMER_OUT_MS"] == str(out_ms)


# --- what is refused ------------------------------------------------------------------------------


def refused(message: Message, problem: str, form: RecordForm = FORM) -> None:
    for make in (level, timed):
        with pytest.raises(BadFieldError, match=problem):
            make(message, form)


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_a_property_that_steers_delivery_is_refused_by_name(name: str) -> None:
    refused(attrs.evolve(VECTOR, properties={"fine": "1", name: "1"}), f"the property {name} ")


@pytest.mark.parametrize("name", ["__STARTDELIVERTIME", "delay", "TIMER_", "TAG", "WAIT"])
def test_a_property_of_another_name_is_the_users(name: str) -> None:
    made = level(attrs.evolve(VECTOR, properties={name: "1"}))
    assert decode_message_at(made.record(0, 0, 0, NOW_MS)).properties[name] == "1"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"topic": "a/b"}, "slash"),
        ({"topic": ".."}, "nobody may deliver"),
        ({"topic": "."}, "nobody may deliver"),
        ({"topic": "../x"}, "slash"),
        ({"topic": "a b"}, "space"),
        ({"topic": "a\0"}, "control character"),
        ({"topic": "a\x7f"}, "control character"),
        ({"topic": "a\x01b"}, "0x01"),
        ({"topic": "t" * 128}, "name is too long .*127 bytes, found 128"),
        ({"topic": "ü" * 64}, "name is too long .*127 bytes, found 128"),
        ({"topic": "%RETRY%" + "g" * 249}, "name is too long .*255 bytes, found 256"),
        ({"topic": "%RETRY%" + "ü" * 61}, "not plain ASCII"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "nobody may deliver"),
        ({"topic": "rmq_sys_wheel_timer"}, "nobody may deliver"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, "nobody may deliver"),
        ({"topic": "\ud800"}, "a topic that is not Unicode"),
        ({"tags": "a\x02b"}, "tags with a control character 0x01 or 0x02"),
        ({"tags": "\ud800"}, "tags that is not Unicode"),
        ({"keys": ("a\x01",)}, "keys with a control character"),
        ({"unique_key": "a b"}, "unique key with a space"),
        ({"unique_key": "a\x02"}, "unique key with a control character"),
        ({"properties": {"a\x01": "b"}}, "a property name with a control character"),
        ({"properties": {"a": "b\x02"}}, "a property value with a control character"),
        ({"properties": {"a": "b\ud800"}}, "a property value that is not Unicode"),
        ({"properties": {"": "b"}}, "without name or value"),
        ({"properties": {"a": ""}}, "without name or value"),
        ({"queue_id": 65_536}, "no such queue .*0 to 65535, found 65536"),
        ({"flag": 2**31}, "flag beyond 32 bits"),
        ({"flag": -(2**31) - 1}, "flag beyond 32 bits"),
        ({"properties": {"a": "x" * 40_000}}, "properties too long"),
        ({"tags": "x" * 40_000}, "properties too long"),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, "body too long .*4194304 bytes, found 4194305"),
    ],
    ids=str,
)
def test_what_cannot_be_stored_or_delivered_is_refused(
    changes: dict[str, object], problem: str
) -> None:
    refused(attrs.evolve(VECTOR, **changes), problem)  # type: ignore[arg-type]


def test_the_topic_of_a_4_9_broker_is_never_longer_than_127_bytes() -> None:
    message = attrs.evolve(VECTOR, topic="%RETRY%" + "g" * 121)
    assert level(message).size_bytes > 0
    refused(message, "at most 127 bytes", attrs.evolve(FORM, retry_topic_max_bytes=127))


@pytest.mark.parametrize(
    ("dialect", "is_closed", "longest"),
    [(Dialect.ROCKETMQ_4_9, False, 127), (Dialect.ROCKETMQ_5_3, True, 255)],
)
def test_a_stores_form_is_that_of_its_brokers(
    dialect: Dialect, is_closed: bool, longest: int
) -> None:
    form = RecordForm.of(dialect, StoreSettings(store_host=vectors.STORE))
    assert (form.closes_properties, form.retry_topic_max_bytes) == (is_closed, longest)
    assert form.store_host == vectors.STORE


def test_properties_leave_room_for_what_delivery_adds() -> None:
    def properties_bytes(value_bytes: int) -> int:
        made = timed(attrs.evolve(VECTOR, properties={"a": "x" * value_bytes}))
        return len(decode_message_at(made.record(0, 0, 0, NOW_MS)).properties_text)

    longest = SizeLimits.of(1000).properties - properties_bytes(1) + 1
    assert properties_bytes(longest) == PROPERTIES_MAX_BYTES - 150
    with pytest.raises(BadFieldError, match="properties too long"):
        properties_bytes(longest + 1)


def test_a_body_as_long_as_allowed_waits_in_a_level_but_not_in_a_wheel() -> None:
    """A wheel reads whole records into a buffer that is hardly longer, also those that roll."""
    form = attrs.evolve(FORM, max_message_bytes=10_000)
    message = attrs.evolve(VECTOR, body=bytes(10_000))
    assert level(message, form).size_bytes > 10_000
    with pytest.raises(BadFieldError, match="longer than a timer wheel reads"):
        timed(message, form)
    around = timed(VECTOR, form).size_bytes - len(VECTOR.body)
    room = 10_000 + 100 - 150
    assert timed(attrs.evolve(VECTOR, body=bytes(room - around)), form).size_bytes == room
    with pytest.raises(BadFieldError, match=f"at most {room} bytes, found {room + 1}"):
        timed(attrs.evolve(VECTOR, body=bytes(room - around + 1)), form)


@given(flag=int32s)
def test_every_flag_of_32_bits_is_kept(flag: int) -> None:
    made = level(attrs.evolve(VECTOR, flag=flag))
    assert decode_message_at(made.record(0, 0, 0, NOW_MS)).flag == flag
