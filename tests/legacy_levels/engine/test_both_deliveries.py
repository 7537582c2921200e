# SPDX-License-Identifier: Apache-2.0
"""Rules that hold however a level is delivered: synchronously and asynchronously."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest

import legacy_levels.engine.delivery
from legacy_levels import LevelRules
from legacy_levels.engine.rules import AsyncRules, LevelTimings
from message_store import AtLevel, Message, MessageBatch
from message_store.base.errors import TargetError
from message_store.format.dialect import Dialect
from message_store.interface.delay_store import Severity
from message_store.reading.consume_queue import UnitArray
from message_store.writing.queue import LiveQueue
from tests.legacy_levels.level_stores import SMALL, START_MS, Bench, message

LONG_TOPIC = "%RETRY%" + "g" * 150
WAYS = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
NEWER = [dialect for dialect in Dialect if dialect is not Dialect.ROCKETMQ_4_9]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


@WAYS
@pytest.mark.parametrize("poisoned", [0, 1, 2])
def test_a_record_that_says_no_topic_blocks_its_level_as_in_4_9(
    bench: Bench, poisoned: int, is_async: bool
) -> None:
    with bench.open() as store:
        for number in range(3):
            store.schedule(message(number), AtLevel(1))
        store.schedule(message(3), AtLevel(2))
    [path] = (bench.root / "commitlog").iterdir()
    text = path.read_bytes()
    place = -1
    for _ in range(poisoned + 1):
        place = text.index(b"REAL_TOPIC", place + 1)
    path.write_bytes(text[:place] + b"REAL_TOPIX" + text[place + 10 :])
    rules = LevelRules(poison="block", async_delivery=is_async)
    with bench.open(rules=rules) as store:
        before = [f"body {number}".encode() for number in range(poisoned)]
        assert bench.advance(store, 1_000) == before
        next_ms = store.next_due_ms()
        assert next_ms is not None
        assert next_ms > bench.clock.now_ms(), "nobody has to try without a pause"
        assert bench.advance(store, 4_000) == [b"body 3"]
        assert store.state.cursors[1].head == poisoned


@WAYS
def test_what_is_due_later_than_its_level_allows_is_due_now_where_brokers_deliver_it(
    bench: Bench, is_async: bool
) -> None:
    with bench.open() as store:
        store.schedule(message(1), AtLevel(18))
    bench.clock.tick(-86_400_000)
    rules = LevelRules(beyond_level="deliver", async_delivery=is_async)
    with bench.open(rules=rules) as store:
        assert store.next_due_ms() == bench.clock.now_ms()
        assert bench.advance(store) == [b"body 1"]
        assert store.next_due_ms() is None


@WAYS
@pytest.mark.parametrize("dialect", NEWER)
def test_a_store_of_5x_is_gone_on_with_as_one(
    bench: Bench, dialect: Dialect, is_async: bool
) -> None:
    """4.9 takes no long retry topics, and is what a new store is written for."""
    with bench.open(dialect=dialect) as store:
        store.schedule(message(0), AtLevel(1))
        assert bench.advance(store, 1_000) == [b"body 0"]
        store.schedule(message(1, LONG_TOPIC), AtLevel(1))
    with bench.open(rules=LevelRules(async_delivery=is_async)) as store:
        expected = {Dialect.ROCKETMQ_5_4: Dialect.ROCKETMQ_5_5}.get(
            dialect, dialect
        )  # as both write
        assert store.live.dialect is expected
        assert bench.advance(store, 1_000) == [b"body 1"]


@pytest.mark.parametrize("evidence", ["a wheel", "its timer queue", "abort", "topics"])
def test_what_4_9_does_not_know_tells_a_store_of_5x(bench: Bench, evidence: str) -> None:
    bench.open().close()
    assert bench.open().live.dialect is Dialect.ROCKETMQ_4_9
    other = Bench(bench.root.parent / "other")
    other.open().close()
    if evidence == "a wheel":
        (other.root / "timerwheel").write_bytes(b"")
    elif evidence == "its timer queue":
        (other.root / "consumequeue/rmq_sys_wheel_timer/0").mkdir(parents=True)
    elif evidence == "abort":
        (other.root / "abort").write_bytes(b"4711")
    else:
        text = b'{"topicConfigTable":{"T":{"topicName":"T","attributes":{}}}}'
        (other.root / "config/topics.json").write_bytes(text)
    with other.open() as store:
        assert store.live.dialect is Dialect.ROCKETMQ_5_5


@WAYS
def test_a_topic_too_long_for_4_9_waits_until_the_store_is_opened_for_5x(
    bench: Bench, is_async: bool
) -> None:
    rules = LevelRules(async_delivery=is_async)
    with bench.open(dialect=Dialect.ROCKETMQ_5_5) as store:
        held = store.schedule(message(1, LONG_TOPIC), AtLevel(1))
        store.schedule(message(2), AtLevel(1))
        store.schedule(message(3, LONG_TOPIC), AtLevel(1))
        recalled = store.schedule(message(4, LONG_TOPIC), AtLevel(1))
        store.schedule(message(5), AtLevel(2))
    for _ in range(2):
        with bench.open(dialect=Dialect.ROCKETMQ_4_9, rules=rules) as store:
            came = bench.advance(store, 1_000)
            store.schedule(message(6), AtLevel(1))
            assert bench.advance(store) == []
            assert held.unique_key in [each.unique_key for each in store.pending()]
            problems = [each for each in store.check() if each.severity is Severity.ERROR]
            assert problems
            assert all("too long" in each.problem for each in problems)
            came += bench.advance(store, 5_000)
            assert sorted(came) in ([b"body 2", b"body 5", b"body 6"], [b"body 6"])
            next_ms = store.next_due_ms()
            assert next_ms is not None
            assert next_ms > bench.clock.now_ms(), "nobody has to try without a pause"
            store.cancel(recalled)
    with bench.open(dialect=Dialect.ROCKETMQ_5_5, rules=rules) as store:
        assert bench.advance(store) == [b"body 1", b"body 3"]
        assert [each for each in store.check() if each.severity is Severity.ERROR] == []
    assert len(bench.bodies("TopicA")) == 4


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_sending_again_begins_as_these_brokers_do(
    bench: Bench, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_4_9 = version == "4.9.7"
    dialect = Dialect.ROCKETMQ_4_9 if is_4_9 else Dialect.ROCKETMQ_5_5
    tries: list[int] = []

    def refuse(*_args: object, **_more: object) -> None:
        tries.append(bench.clock.now_ms())
        raise TargetError("no room")

    rules = LevelRules.of_broker(version, async_delivery=True)
    rules = attrs.evolve(rules, timings=LevelTimings())
    with bench.open(dialect=dialect, rules=rules) as store:
        store.schedule(message(1), AtLevel(1))
        monkeypatch.setattr(legacy_levels.engine.delivery, "redeliver", refuse)
        for step_ms in (1_000, *[10] * 40):
            bench.advance(store, step_ms)
        monkeypatch.undo()
        bench.advance(store, 60_000)
    waits = np.diff(tries[:3]).tolist()
    assert waits == ([10, 100] if is_4_9 else [100, 200])


@pytest.mark.check
def test_sending_one_again_does_not_look_at_all_that_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    units = LiveQueue.units

    def count(queue: LiveQueue, from_offset: int, to_offset: int) -> UnitArray:
        nonlocal looked_at
        found = units(queue, from_offset, to_offset)
        looked_at += len(found)
        return found

    def refuse(*_args: object, **_more: object) -> None:
        raise TargetError("no room")

    waiting, failing = 30_000, 20
    rules = LevelRules(async_delivery=True, async_rules=AsyncRules(max_pending=failing))
    roomy = attrs.evolve(SMALL, commit_log_file_bytes=8 << 20, queue_file_bytes=20_000)
    with bench.open(rules=rules, settings=roomy) as store:
        store.schedule_batch(
            MessageBatch.of([Message("TopicA", b"")] * failing), np.full(failing, START_MS + 1_000)
        )
        bench.clock.tick(500)
        store.schedule_batch(
            MessageBatch.of([Message("TopicA", b"")] * waiting),
            np.full(waiting, START_MS + 1_500),
        )
        monkeypatch.setattr(legacy_levels.engine.delivery, "redeliver", refuse)
        assert bench.advance(store, 500) == []
        monkeypatch.undo()
        monkeypatch.setattr(LiveQueue, "units", count)
        assert len(bench.advance(store, 400)) == failing
        assert looked_at < waiting
        monkeypatch.undo()
        assert len(bench.advance(store, 100)) == waiting
