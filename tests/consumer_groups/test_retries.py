# SPDX-License-Identifier: Apache-2.0
"""Retries and dead letters, over every engine: RocketMQ's records, at the time of their level."""

from __future__ import annotations

import zlib
from pathlib import Path

import attrs
import pyarrow as pa
import pytest

from consumer_groups import ConsumerGroup, Received, consumer_group
from message_store import AfterMs, AtMs, ManualClock, Message, StoredMessage
from message_store.base.errors import BadFieldError, TooLongError, UnsupportedDelayError
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import Host
from message_store.format.message_codec import encode_message
from message_store.format.properties import decode_properties
from message_store.format.record_layout import SYS_BORN_HOST_IPV6
from tests.consumer_groups.group_bench import START_MS, GroupBench, texts
from tests.migrate.stops import Stopped
from timer_wheel import WheelStore

LEVELS = DelayLevels.parse()
SLOT_MS = 1_000
"""No engine promises later than this behind the due time."""


def only(group: ConsumerGroup, topic: str = "orders") -> Received:
    [message] = group.receive(topic)
    return message


def test_a_retry_is_received_after_its_level_with_all_it_had(bench: GroupBench) -> None:
    bench.deliver("a", tags="paid", keys=["k1", "k2"], properties={"own": "é"}, flag=7)
    group = bench.group()
    first = only(group)
    group.retry(first)
    bench.wait(LEVELS.delay_ms(3) - 1)
    assert group.receive("orders") == []
    bench.wait(1 + SLOT_MS)
    again = only(group)
    assert (again.topic, again.body, again.retries) == ("orders", b"a", 1)
    assert (again.tags, again.keys, again.properties["own"]) == ("paid", ("k1", "k2"), "é")
    assert again.unique_key == first.unique_key
    same = ("flag", "born_timestamp_ms", "born_host", "body_crc")
    assert [getattr(again.stored, name) for name in same] == [
        getattr(first.stored, name) for name in same
    ]


def test_the_record_of_a_retry_is_rocketmqs(bench: GroupBench) -> None:
    bench.deliver("a", queue_id=2)
    group = bench.group()
    first = only(group)
    group.retry(first)
    bench.wait(LEVELS.delay_ms(3) + SLOT_MS)
    [record] = bench.store.topic("%RETRY%billing").read(0, 0)
    assert (record.queue_id, record.reconsume_times) == (0, 1)
    assert record.properties["RETRY_TOPIC"] == "orders"
    assert record.properties["ORIGIN_MESSAGE_ID"] == first.stored.offset_message_id
    group.retry(only(group))
    bench.wait(LEVELS.delay_ms(4) + SLOT_MS)
    record = bench.store.topic("%RETRY%billing").read(0, 1)[0]
    assert record.reconsume_times == 2
    assert record.properties["RETRY_TOPIC"] == "orders"
    assert record.properties["ORIGIN_MESSAGE_ID"] == first.stored.offset_message_id


def test_sixteen_retries_at_their_levels_and_then_a_dead_letter(bench: GroupBench) -> None:
    bench.deliver("a")
    group = bench.group()
    for times in range(16):
        message = only(group)
        assert message.retries == times
        group.retry(message)
        bench.wait(LEVELS.delay_ms(min(3 + times, 18)) - 1)
        assert group.receive("orders") == []
        bench.wait(1 + SLOT_MS)
    group.retry(only(group))
    bench.wait(LEVELS.delay_ms(18) + SLOT_MS)
    assert group.receive("orders") == []
    [dead] = group.dead_letters()
    assert (dead.body, dead.topic, dead.retries) == (b"a", "orders", 17)
    assert dead.stored.topic == "%DLQ%billing"


def test_a_retry_may_have_a_time_of_its_own(bench: GroupBench) -> None:
    bench.deliver("a", "b")
    group = bench.group()
    a, b = group.receive("orders")
    group.retry(a, AfterMs(60_000))
    group.retry(b, AtMs(bench.clock.now_ms()))
    bench.store.advance(bench.clock.now_ms())
    assert bench.bodies(group) == ["b"]
    bench.wait(59_999)
    assert bench.bodies(group) == ["b"]  # its invisible time is over too
    bench.wait(1 + SLOT_MS)
    assert bench.bodies(group) == ["a"]


def test_retries_of_other_topics_are_left_for_who_asks_for_them(bench: GroupBench) -> None:
    bench.deliver("order")
    bench.deliver("bill", topic="bills")
    group = bench.group()
    group.retry(only(group))
    group.retry(only(group, "bills"))
    bench.wait(LEVELS.delay_ms(3) + SLOT_MS)
    order = only(group)
    bill = only(group, "bills")
    assert (order.body, bill.body, bill.topic) == (b"order", b"bill", "bills")
    group.ack(bill)
    bench.kill()
    group = bench.group()
    assert group.receive("bills") == []
    assert texts(group.receive("orders")) == ["order"]


def test_dead_letters_are_driven_back_once(bench: GroupBench) -> None:
    bench.deliver("a", "b")
    group = bench.group()
    for message in group.receive("orders"):
        group.reject(message)
    bench.store.advance(bench.clock.now_ms())
    assert texts(list(group.dead_letters())) == ["a", "b"]
    first, _ = group.dead_letters()
    group.redrive(first)
    group.redrive(first)
    bench.kill()
    group = bench.group()
    assert texts(list(group.dead_letters())) == ["b"]
    bench.store.advance(bench.clock.now_ms())
    again = only(group)
    assert (again.body, again.topic, again.retries) == (b"a", "orders", 0)
    group.ack(again)
    bench.wait(60_000)
    assert group.receive("orders") == []


def test_a_message_that_was_settled_is_not_given_back(bench: GroupBench) -> None:
    bench.deliver("a")
    group = bench.group()
    message = only(group)
    group.ack(message)
    group.retry(message)
    group.reject(message)
    bench.wait(60_000)
    assert group.receive("orders") == []
    assert list(group.dead_letters()) == []


def test_the_number_of_retries_can_be_set(bench: GroupBench) -> None:
    bench.deliver("a")
    group = bench.group(max_retries=0)
    group.retry(only(group))
    bench.store.advance(bench.clock.now_ms())
    assert texts(list(group.dead_letters())) == ["a"]


def test_a_kill_after_each_retry_loses_and_repeats_nothing(bench: GroupBench) -> None:
    bench.deliver(*"abc")
    for _ in range(4):
        group = bench.group()
        received = group.receive("orders")
        assert sorted(texts(received)) == ["a", "b", "c"]
        for message in received:
            group.retry(message, AfterMs(1_000))
        bench.kill()
        bench.wait(1_000 + SLOT_MS)
    assert sum(1 for _ in bench.store.pending()) == 0


def test_a_producer_s_property_takes_no_retry_elsewhere(bench: GroupBench) -> None:
    """A handler that forwards a retry with all its properties leaves these there."""
    bench.deliver("a", properties={"RETRY_TOPIC": "bills", "ORIGIN_MESSAGE_ID": "00" * 16})
    group = bench.group()
    group.retry(only(group))
    bench.wait(20_000)
    assert bench.bodies(group, "bills") == []
    assert bench.bodies(group) == ["a"]


@pytest.mark.parametrize("max_retries", [2, 5])
def test_an_engine_that_takes_no_long_delay_has_retries_and_dead_letters(
    max_retries: int, tmp_path: Path
) -> None:
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path, clock=clock, max_delay_ms=20_000) as store:
        store.schedule(Message("orders", b"a"), AtMs(START_MS))
        group = consumer_group(store, "billing", max_retries=max_retries)
        tries = 0
        while not list(group.dead_letters()):
            clock.tick(20_000)
            store.advance(clock.now_ms())
            for message in group.receive("orders"):
                group.retry(message)
                tries += 1
        assert tries == max_retries + 1
        with pytest.raises(UnsupportedDelayError):
            store.schedule(Message("orders", b"a"), AfterMs(30_000))


def test_a_group_whose_retries_no_topic_of_4_9_takes_is_refused(bench: GroupBench) -> None:
    with pytest.raises(BadFieldError, match="too long for its topics"):
        bench.group("g" * 121)
    assert bench.bodies(bench.group("g" * 120)) == []


def compressed(message: StoredMessage, body: bytes, kind: int) -> StoredMessage:
    return attrs.evolve(message, body=body, sys_flag=message.sys_flag | 1 | kind)


def test_a_compressed_body_is_decompressed(bench: GroupBench) -> None:
    bench.deliver("a")
    received = only(bench.group())
    stored = received.stored

    def body(stored_body: bytes, kind: int = 0) -> bytes:
        messages = [compressed(stored, stored_body, kind)]
        return received._replace(messages=messages, row=0).body

    def packed(codec: str, data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        return bytes(sink.getvalue())

    long = b"long " * 99
    assert body(zlib.compress(long)) == body(zlib.compress(long), 0x300) == long
    assert body(packed("lz4", long), 0x100) == body(packed("zstd", long), 0x200) == long
    for kind in (0, 0x100, 0x200, 0x300):
        with pytest.raises(BadFieldError, match="damaged"):
            body(b"none", kind)
    for codec, kind in (("lz4", 0x100), ("zstd", 0x200)):
        with pytest.raises(BadFieldError, match="too long"):
            body(packed(codec, bytes(5 << 20)), kind)
    with pytest.raises(BadFieldError, match="too long"):
        body(zlib.compress(bytes(5 << 20)))


@pytest.mark.parametrize("flags", [0x101, 0x201, 0x301, 0x3, 0x1, 0x0])
def test_what_a_body_is_stays_with_it(flags: int, bench: GroupBench) -> None:
    bench.deliver("a")
    record = attrs.evolve(only(bench.group()).stored, sys_flag=flags)
    receipt = bench.store.schedule(record, AfterMs(60_000))
    bench.store.reschedule(receipt, AfterMs(1_000))
    bench.wait(1_000 + SLOT_MS)
    again = only(bench.group())
    assert again.stored.sys_flag & 0x703 == flags
    bench.group().retry(again, AfterMs(1_000))
    bench.wait(1_000 + SLOT_MS)
    assert only(bench.group()).stored.sys_flag & 0x703 == flags


def test_a_retry_of_a_retry_has_each_property_once(bench: GroupBench) -> None:
    bench.deliver("a")
    group = bench.group()
    for level in (3, 4, 5):
        group.retry(only(group))
        bench.wait(LEVELS.delay_ms(level) + SLOT_MS)
    text = only(group).stored.properties_text
    names = [entry.partition(b"\1")[0] for entry in text.split(b"\2") if entry]
    assert len(names) == len(set(names)) == len(decode_properties(text))


# --- what no retry holds --------------------------------------------------------------------------


def test_what_is_too_long_for_a_retry_becomes_a_dead_letter(
    bench: GroupBench, caplog: pytest.LogCaptureFixture
) -> None:
    """Names are added with each retry; the handler would fail for ever."""
    bench.deliver("a", properties={"a": "x" * 32_500}, tags="t")
    group = bench.group()
    group.retry(only(group))
    bench.wait(SLOT_MS)
    [dead] = group.dead_letters()
    assert (dead.body, dead.topic) == (b"a", "orders")
    assert "a" not in dead.stored.properties
    assert "becomes a dead letter" in caplog.text
    assert "dead letter without properties" in caplog.text
    assert group.receive("orders") == []
    assert group.lag("orders").total == 0


def test_the_longest_record_becomes_a_dead_letter(tmp_path: Path) -> None:
    """A wheel reads records into a buffer of 4 MiB and a few bytes."""
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path / "store", clock=clock) as store:
        body = bytes(4 * 2**20 - 270)
        store.schedule(Message("orders", body, properties={"a": "b"}), AtMs(START_MS))
        store.advance(START_MS)
        with pytest.raises(TooLongError):
            store.schedule(Message("orders", body + bytes(100)), AtMs(START_MS))
        group = consumer_group(store, "billing")
        group.retry(only(group))
        clock.tick(SLOT_MS)
        store.advance(clock.now_ms())
        [dead] = group.dead_letters()
        assert dead.body == body
        assert group.lag("orders").total == 0


def test_what_a_broker_stored_oddly_is_retried(bench: GroupBench) -> None:
    """A property that is not UTF-8 stays as it is; an IPv4 address gets its own form."""
    bench.deliver("first")
    [first] = bench.group().receive("orders")
    odd = attrs.evolve(
        first.stored,
        queue_offset=1,
        born_host=Host(bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 1]), 80),
        sys_flag=SYS_BORN_HOST_IPV6,
        properties_text=b"a\x01\xff\x02b\x01c\x01d\x02UNIQ_KEY\x01q\x02",
    )
    live = bench.store.live
    assert live is not None
    with bench.store.lock:
        size_bytes = len(encode_message(odd))
        place = live.log.append(
            size_bytes, lambda at: encode_message(attrs.evolve(odd, commit_log_offset=at))
        )
        live.queue("orders", 0).append_one(place, size_bytes, 0)
    group = bench.group()
    group.ack(first)
    group.retry(only(group))
    bench.wait(LEVELS.delay_ms(3) + SLOT_MS)
    again = only(group)
    assert again.stored.properties_text.startswith(b"a\x01\xff\x02b\x01c\x01d\x02")
    assert str(again.stored.born_host) == "10.0.0.1:80"


# --- topics of retries and dead letters -----------------------------------------------------------

GIVEN_BACK_TOPICS = ("orders", "%DLQ%g1", "%RETRY%g1")


def filled(bench: GroupBench) -> None:
    """Each topic has messages of a producer, the others also what a group gave back."""
    bench.deliver("rejected", "retried")
    group = bench.group("g1")
    rejected, retried = group.receive("orders")
    group.reject(rejected)
    group.retry(retried, AfterMs(0))
    bench.wait(SLOT_MS)
    for topic in GIVEN_BACK_TOPICS:
        bench.deliver(f"1 {topic}", f"2 {topic}", topic=topic)


def all_of(bench: GroupBench, group: ConsumerGroup, topic: str, count: int) -> list[Received]:
    """What the group receives of a topic, so many at a time."""
    received: list[Received] = []
    while some := group.receive(topic, count, invisible_ms=10**9):
        received += some
    return received


def kill_inside(bench: GroupBench, group: ConsumerGroup, message: Received) -> ConsumerGroup:
    """The record of the retry is stored, and its acknowledgement is not written down."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group._table, "gave_back", lambda *_: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            group.retry(message, AfterMs(0))
    bench.kill()
    return bench.group(group.name)


@pytest.mark.parametrize("count", [1, 32])
@pytest.mark.parametrize("topic", GIVEN_BACK_TOPICS)
@pytest.mark.parametrize("name", ["g1", "g2"])
def test_what_is_retried_is_received_again_of_the_topic_that_was_asked_for(
    bench: GroupBench, name: str, topic: str, count: int
) -> None:
    """Of a topic with dead letters or retries too: those name the topic from which they came."""
    filled(bench)
    group = bench.group(name)
    first = all_of(bench, group, topic, count)
    assert {"1 " + topic, "2 " + topic} <= set(texts(first))
    ids = {each.body: each.properties.get("ORIGIN_MESSAGE_ID") for each in first}
    for times in (1, 2, 3):
        for message in first[:-1]:
            group.retry(message, AfterMs(0))
        group = kill_inside(bench, group, first[-1])
        bench.wait(SLOT_MS)
        for other in set(GIVEN_BACK_TOPICS) - {topic}:
            received = bench.bodies(group, other, invisible_ms=0)
            assert not {"1 " + topic, "2 " + topic} & set(received)
        again = all_of(bench, group, topic, count)
        assert sorted(texts(again)) == sorted(texts(first)), times
        assert {each.topic for each in again} == {topic}
        for each in again:
            known = ids[each.body]
            assert known in (None, each.properties["ORIGIN_MESSAGE_ID"])
        first = again
    group.ack(*first)
    assert all_of(bench, group, topic, count) == []


@pytest.mark.parametrize("topic", GIVEN_BACK_TOPICS[:2])
@pytest.mark.parametrize("name", ["g1", "g2"])
def test_what_is_rejected_is_driven_back_to_the_topic_that_was_asked_for(
    bench: GroupBench, name: str, topic: str
) -> None:
    filled(bench)
    group = bench.group(name)
    received = all_of(bench, group, topic, 32)
    for message in received:
        group.reject(message)
    bench.wait(SLOT_MS)
    for letter in group.dead_letters():
        group.redrive(letter)
    bench.wait(SLOT_MS)
    assert set(texts(received)) <= set(texts(all_of(bench, group, topic, 32)))


def test_a_dead_letter_that_was_received_as_a_message_is_driven_back_to_its_own_topic(
    bench: GroupBench,
) -> None:
    filled(bench)
    group = bench.group("g1")
    [letter, *_] = group.receive("%DLQ%g1")
    group.redrive(letter)
    bench.wait(SLOT_MS)
    assert "rejected" in bench.bodies(group)
