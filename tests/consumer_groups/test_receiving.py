# SPDX-License-Identifier: Apache-2.0
"""What a group receives, over every engine: each message until it is acknowledged, and no other."""

from __future__ import annotations

import pytest

from consumer_groups import Lag, consumer_group, group_names, run_consumers
from message_store import AfterMs, AtMs, ManualClock, MemoryStore, Message
from message_store.base.errors import BadFieldError, StoreClosedError
from message_store.files.config_files import (
    CONSUMER_OFFSETS,
    encode_consumer_offsets,
    read_consumer_offsets,
    read_groups,
)
from message_store.format.message_rules import UNDELIVERABLE_TOPICS
from tests.consumer_groups.group_bench import START_MS, GroupBench, texts


def test_a_message_is_received_once_while_it_is_in_flight(bench: GroupBench) -> None:
    bench.deliver("a", "b")
    group = bench.group()
    assert bench.bodies(group) == ["a", "b"]
    assert bench.bodies(group) == []
    bench.wait(29_999)
    assert bench.bodies(group) == []
    bench.wait(1)
    assert bench.bodies(group) == ["a", "b"]


def test_what_is_acknowledged_is_not_received_again(bench: GroupBench) -> None:
    bench.deliver("a", "b", "c")
    group = bench.group()
    _, b, _ = group.receive("orders")
    group.ack(b)
    group.ack(b)
    bench.wait(30_000)
    assert bench.bodies(group) == ["a", "c"]


def test_groups_do_not_see_each_other(bench: GroupBench) -> None:
    bench.deliver("a")
    bench.group("billing").ack(*bench.group("billing").receive("orders"))
    assert bench.bodies(bench.group("mailing")) == ["a"]


def test_all_queues_of_a_topic_are_read(bench: GroupBench) -> None:
    for queue_id in (0, 3, 7):
        bench.deliver(f"in {queue_id}", queue_id=queue_id)
    assert sorted(bench.bodies(bench.group())) == ["in 0", "in 3", "in 7"]


def test_no_more_than_was_asked_for(bench: GroupBench) -> None:
    bench.deliver(*"abcdefg")
    group = bench.group()
    taken = [bench.bodies(group, max_messages=3) for _ in range(4)]
    assert taken == [["a", "b", "c"], ["d", "e", "f"], ["g"], []]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_kill_repeats_what_was_not_acknowledged_and_nothing_else(
    bench: GroupBench, flushed: bool
) -> None:
    bench.deliver(*"abcdefgh")
    group = bench.group()
    received = group.receive("orders")
    group.ack(received[0], received[1])
    if flushed:
        bench.store.flush()
    group.ack(received[4], received[6])
    bench.kill()
    assert bench.bodies(bench.group()) == ["c", "d", "f", "h"]
    bench.kill()
    group = bench.group()
    received = group.receive("orders")
    assert texts(received) == ["c", "d", "f", "h"]
    group.ack(*received)
    bench.reopen()
    assert bench.bodies(bench.group()) == []
    bench.deliver("later")
    assert bench.bodies(bench.group()) == ["later"]


def test_a_close_leaves_the_offset_of_the_first_message_that_is_not_done(bench: GroupBench) -> None:
    bench.deliver(*"abcd")
    group = bench.group()
    received = group.receive("orders")
    group.ack(received[0], received[1], received[3])
    bench.reopen()
    root = bench.folder
    assert read_consumer_offsets(root)["orders", "billing"] == {0: 2}
    assert "billing" in read_groups(root)
    assert bench.bodies(bench.group()) == ["c"]


def test_a_tag_filter_skips_for_good(bench: GroupBench) -> None:
    for tag in ("paid", "sent", "lost", None):
        bench.deliver(str(tag), tags=tag)
    group = bench.group()
    received = group.receive("orders", tags="paid || sent")
    assert texts(received) == ["paid", "sent"]
    group.ack(*received)
    assert group.lag("orders") == Lag(0, 0)
    bench.reopen()
    assert bench.bodies(bench.group()) == []


def test_tags_of_one_hash_are_told_apart(bench: GroupBench) -> None:
    bench.deliver("a", tags="Aa")
    bench.deliver("b", tags="BB")  # Java's hash of both is 2112
    assert bench.bodies(bench.group(), tags="BB") == ["b"]


def test_a_filter_that_skips_much_goes_on_in_the_next_call(bench: GroupBench) -> None:
    for number in range(40):
        bench.deliver(*[str(number)] * 50, tags="other")
    bench.deliver("mine", tags="mine")
    group, received = bench.group(), []
    for _ in range(4):
        received += bench.bodies(group, tags="mine")
    assert received == ["mine"]


def test_lag_counts_what_is_ready_and_what_is_in_flight(bench: GroupBench) -> None:
    bench.deliver(*"abcde")
    group = bench.group()
    assert group.lag("orders") == Lag(5, 0)
    first, second = group.receive("orders", max_messages=2)
    assert group.lag("orders") == Lag(3, 2)
    group.ack(second)
    assert group.lag("orders") == Lag(3, 1)
    group.ack(first)
    assert group.lag("orders").total == 3
    assert group.lag("nothing") == Lag(0, 0)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("first", "abcd"),
        ("last", ""),
        (AtMs(START_MS + 1), "cd"),
        (AtMs(START_MS), "abcd"),
        (AtMs(START_MS + 99_999), ""),
        ({0: 3}, "d"),
        ({0: 99}, ""),
        ({5: 0}, "ef"),
    ],
    ids=str,
)
@pytest.mark.parametrize("killed", [False, True])
def test_seek_goes_on_where_it_is_told(
    bench: GroupBench, position: object, expected: str, killed: bool
) -> None:
    bench.deliver(*"ab")
    bench.wait(10_000)
    bench.deliver(*"cd")
    group = bench.group()
    group.ack(*group.receive("orders"))
    bench.deliver(*"ef")
    bench.store.flush()
    group.seek("orders", position)  # type: ignore[arg-type]
    if killed:
        bench.kill()
    later = "" if expected in ("", "ef") and position != {5: 0} else "ef"
    if position == {5: 0}:
        later = ""
    assert "".join(bench.bodies(bench.group())) == expected + later


@pytest.mark.parametrize(
    ("start", "expected"), [("first", "abc"), ("last", "c"), (AtMs(START_MS + 5_000), "bc")]
)
def test_a_new_group_begins_where_it_is_told(
    bench: GroupBench, start: object, expected: str
) -> None:
    bench.deliver("a")
    bench.wait(10_000)
    bench.deliver("b")
    group = bench.group(start=start)
    assert bench.bodies(group) == list(expected[:-1])
    bench.kill()
    bench.deliver("c")
    assert bench.bodies(bench.group()) == list(expected)


def test_an_ordered_group_gives_a_queue_to_one_at_a_time(bench: GroupBench) -> None:
    bench.deliver(*"abcd")
    bench.deliver("x", queue_id=1)
    group = bench.group(ordered=True)
    first = [m for m in group.receive("orders", max_messages=2) if m.stored.queue_id == 0]
    assert texts(first) in (["a", "b"], ["a"])
    assert bench.bodies(group) in (["x"], [])
    group.ack(*first[:-1])
    group.retry(first[-1])
    assert "c" not in bench.bodies(group)
    bench.wait(1_000)
    received = [m for m in group.receive("orders") if m.stored.queue_id == 0]
    assert texts(received)[0] == texts(first)[-1]
    assert texts(received) == sorted(texts(received))


def test_a_closed_store_says_so(bench: GroupBench) -> None:
    bench.deliver("a")
    group = bench.group()
    [message] = group.receive("orders")
    bench.store.close()
    for call in (
        lambda: group.receive("orders"),
        lambda: group.ack(message),
        lambda: group.retry(message),
        lambda: bench.group(),
    ):
        with pytest.raises(StoreClosedError):
            call()


@pytest.mark.parametrize("name", ["", "a b", "a@b", "a/b", "x" * 200, "a\1"])
def test_names_that_no_group_can_have(bench: GroupBench, name: str) -> None:
    with pytest.raises(BadFieldError):
        bench.group(name)


def test_a_group_has_its_options_once(bench: GroupBench) -> None:
    assert bench.group(max_retries=3) is bench.group(max_retries=3)
    with pytest.raises(ValueError, match="other options"):
        bench.group(max_retries=4)


def test_a_store_in_memory_has_groups_too() -> None:
    clock = ManualClock(START_MS)
    with MemoryStore(clock) as store:
        store.schedule(Message("orders", b"a"), AtMs(START_MS))
        store.advance(START_MS)
        group = consumer_group(store, "billing")
        [message] = group.receive("orders")
        group.retry(message)
        clock.tick(10_000)
        store.advance(clock.now_ms())
        [again] = group.receive("orders")
        assert (again.body, again.topic, again.retries) == (b"a", "orders", 1)
        group.ack(again)
        assert group.lag("orders").total == 0


@pytest.mark.parametrize("topic", sorted(UNDELIVERABLE_TOPICS))
def test_no_group_receives_of_a_topic_that_an_engine_keeps_for_itself(
    bench: GroupBench, topic: str
) -> None:
    """Each retry would be one more message of it."""
    bench.store.schedule(Message("orders", b"a"), AfterMs(60_000))
    group = bench.group()
    for name in (topic, topic):
        with pytest.raises(BadFieldError, match="no group can receive"):
            group.receive(name)
    with pytest.raises(BadFieldError, match="no group can receive"):
        run_consumers(bench.store, {(topic, group): print})
    bench.reopen()
    assert group_names(bench.store) == []
    if topic not in (".", ".."):
        path = bench.folder / "config" / CONSUMER_OFFSETS  # a broker's entry makes no difference
        path.parent.mkdir(exist_ok=True)
        bench.store.close()
        path.write_bytes(encode_consumer_offsets({(topic, "billing"): {0: 0}}))
        bench.store = bench.opened()
        with pytest.raises(BadFieldError, match="no group can receive"):
            bench.group().receive(topic)
