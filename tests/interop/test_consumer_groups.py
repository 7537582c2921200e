# SPDX-License-Identifier: Apache-2.0
"""A consumer group changes hands between ours and the official Java client, on stock brokers.

Acknowledged messages stay done, others are received, retries come from their topic with the topic
to which they were sent, and dead letters lie in theirs.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from pathlib import Path
from typing import Final, cast

import pytest

from consumer_groups import GroupStore, consumer_group
from legacy_levels import LevelStore
from message_store import AtMs, DelayLevels, Message, SystemClock
from message_store.files.config_files import read_consumer_offsets
from message_store.format.dialect import Dialect
from message_store.writing.settings import StoreSettings
from tests.interop.conftest import MakeBroker
from tests.interop.jars import NEWEST
from tests.interop.judge import Judge, Received
from tests.interop.stages import NO_AUTOMATIC_CREATION
from tests.interop.workload import Outgoing
from timer_wheel import WheelStore

TOPIC: Final = "orders"
GROUP: Final = "billing"
FILES: Final = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=40_000, broker_name="judge-a"
)
SOON: Final = "1s 2s 6s 8s"
LATER: Final = "1s 2s 90s 120s"
"""Level tables: a group's first retry takes the third."""
CLOCK: Final = SystemClock()
ENGINES: Final = (("levels", "4.9.7"), ("levels", NEWEST), ("wheel", NEWEST))

pytestmark = [pytest.mark.nightly, pytest.mark.interop("4.9.7", NEWEST)]
each_engine = pytest.mark.parametrize(("engine", "version"), ENGINES)


def open_store(engine: str, version: str, root: Path, table: str) -> GroupStore:
    levels = DelayLevels.parse(table)
    if engine == "levels":
        dialect = Dialect.ROCKETMQ_4_9 if version.startswith("4.") else Dialect.ROCKETMQ_5_5
        return LevelStore.open(root, levels=levels, dialect=dialect, settings=FILES)
    return cast(GroupStore, WheelStore.open(root, levels=levels, settings=FILES))


def sha1(number: int) -> str:
    return hashlib.sha1(body(number)).hexdigest()


def body(number: int) -> bytes:
    return b"order %d" % number


def numbers(received: list[Received]) -> Counter[int]:
    known = {sha1(number): number for number in range(100)}
    return Counter(known[each.body_sha1] for each in received)


@each_engine
def test_a_java_consumer_goes_on_with_a_group_of_ours(
    engine: str, version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """Of twenty messages 0 to 4 and 9 are acknowledged, 5 and 6 retried, 7 and 8 dead."""
    root = tmp_path / "store"
    with open_store(engine, version, root, SOON) as store:
        for number in range(20):
            message = Message(TOPIC, body(number), tags="paid", keys=str(number))
            store.schedule(message, AtMs(CLOCK.now_ms()))
        store.advance(CLOCK.now_ms() + 1_000)
        group = consumer_group(store, GROUP)
        received = group.receive(TOPIC, max_messages=20)
        group.ack(*received[:5], received[9])
        for message_5_or_6 in received[5:7]:
            group.retry(message_5_or_6)
        for message_7_or_8 in received[7:9]:
            group.reject(message_7_or_8)
        store.advance(CLOCK.now_ms() + 1_000)
    assert read_consumer_offsets(root)[TOPIC, GROUP] == {0: 10}

    with make_broker(
        version, root, settings={"messageDelayLevel": SOON, **NO_AUTOMATIC_CREATION}
    ) as broker:
        judge = Judge(broker, tmp_path / "judge")
        with judge.consume([TOPIC], GROUP, expect=12, settle_s=2) as consumption:
            consumed = consumption.wait()
        with judge.consume([f"%DLQ%{GROUP}"], GROUP, expect=2) as consumption:
            dead = consumption.wait()
    assert numbers(consumed) == Counter([5, 6, *range(10, 20)])
    retries = [each for each in consumed if each.is_retry]
    assert numbers(retries) == Counter([5, 6])
    assert {each.topic for each in consumed} == {TOPIC}
    assert {(each.reconsume_times, each.tags) for each in retries} == {(1, "paid")}
    assert numbers(dead) == Counter([7, 8])
    assert {each.properties["RETRY_TOPIC"] for each in dead} == {TOPIC}


@each_engine
def test_our_group_goes_on_with_one_of_a_java_consumer(
    engine: str, version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """The consumer returns some messages, and the broker is stopped before those come back."""
    root = tmp_path / "store"
    with open_store(engine, version, root, LATER):
        pass
    settings = {"messageDelayLevel": LATER}
    with make_broker(version, root, settings=settings, topics={TOPIC: 1}) as broker:
        judge = Judge(broker, tmp_path / "judge")
        first = judge.send([Outgoing(number, TOPIC, body(number)) for number in range(30)])
        with judge.consume([TOPIC], GROUP, expect=30, return_one_in=3) as consumption:
            consumed = consumption.wait()
        later = judge.send([Outgoing(number, TOPIC, body(number)) for number in range(30, 40)])
    assert all(each.accepted for each in [*first, *later])
    returned = set(numbers([each for each in consumed if each.returned]))
    assert returned

    # A broker keeps retries in its levels, whatever its wheel is for.
    with open_store("levels", version, root, LATER) as store:
        group = consumer_group(store, GROUP)
        received = group.receive(TOPIC, max_messages=100)
        assert Counter(each.body for each in received) == Counter(map(body, range(30, 40)))
        group.ack(*received)
        store.advance(CLOCK.now_ms() + 90_000)
        retries = group.receive(TOPIC, max_messages=100)
        assert Counter(each.body for each in retries) == Counter(map(body, returned))
        assert {(each.topic, each.retries) for each in retries} == {(TOPIC, 1)}
        group.ack(*retries)
        assert group.lag(TOPIC).total == group.lag(f"%RETRY%{GROUP}").total == 0

    with make_broker(version, root, settings=settings) as again:
        judge = Judge(again, tmp_path / "judge-again")
        with judge.consume([TOPIC], GROUP) as consumption:
            time.sleep(5)
            assert consumption.stop() == []
