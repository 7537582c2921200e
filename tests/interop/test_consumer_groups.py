# SPDX-License-Identifier: Apache-2.0
"""A consumer group changes hands between ours and the official Java client, on stock brokers.

Acknowledged messages stay done, others are received, retries come from their topic with the topic
to which they were sent, and dead letters lie in theirs. Where either side is killed, what it had
not written down is received again, and nothing is lost.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from consumer_groups import consumer_group
from message_store import AtMs, Message, SystemClock
from message_store.files.config_files import read_consumer_offsets
from tests.interop.conftest import MakeBroker
from tests.interop.group_process import (
    ACKNOWLEDGED,
    COUNT,
    GROUPS,
    RECEIVED,
    REJECTED_NUMBER,
    RETRIED,
    RETRIED_NUMBERS,
    TOPIC,
    body,
    open_store,
)
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge, Received
from tests.interop.ours import ROOT
from tests.interop.stages import NO_AUTOMATIC_CREATION
from tests.interop.workload import Outgoing

GROUP: Final = "billing"
SOON: Final = "1s 2s 6s 8s"
LATER: Final = "1s 2s 90s 120s"
"""Level tables: a group's first retry takes the third."""
CLOCK: Final = SystemClock()
ENGINES: Final = (("levels", "4.9.7"), ("levels", NEWEST), ("wheel", LAST))
KILLS: Final = (
    ("levels", "4.9.7", "gave_back", False),
    ("levels", "4.9.7", "schedule", True),
    ("levels", LAST, "schedule", False),
    ("wheel", LAST, "gave_back", True),
)
"""Where a process of ours is killed, and whether we open the store once more before the broker."""

pytestmark = [pytest.mark.nightly, pytest.mark.interop("4.9.7", NEWEST, LAST)]
each_engine = pytest.mark.parametrize(("engine", "version"), ENGINES)


def sha1(number: int) -> str:
    return hashlib.sha1(body(number)).hexdigest()


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


@pytest.mark.parametrize(("engine", "version", "killed_at", "is_opened_again"), KILLS)
def test_a_java_consumer_goes_on_with_groups_of_a_killed_process(
    engine: str,
    version: str,
    killed_at: str,
    is_opened_again: bool,
    make_broker: MakeBroker,
    tmp_path: Path,
) -> None:
    """A broker knows consumerOffset.json alone. We also know the journal, and write it there."""
    root = tmp_path / "store"
    spec = {"engine": engine, "version": version, "root": str(root), "table": SOON}
    command = [sys.executable, "-m", "tests.interop.group_process"]
    killed = subprocess.run(
        [*command, json.dumps({**spec, "killed_at": killed_at})], cwd=ROOT, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    is_stored = killed_at == "gave_back"
    if is_opened_again:
        with open_store(engine, version, root, SOON) as store:
            for name in GROUPS:
                consumer_group(store, name).lag(TOPIC)
        offsets = {RECEIVED: 0, ACKNOWLEDGED: 8, RETRIED: 7 + is_stored}
    else:
        offsets = {RECEIVED: 0, ACKNOWLEDGED: 5, RETRIED: 5}
    known = read_consumer_offsets(root)
    assert {name: known[TOPIC, name][0] for name in GROUPS} == offsets

    retries = {RETRIED: set(RETRIED_NUMBERS[: 1 + is_stored])}
    settings = {"messageDelayLevel": SOON, **NO_AUTOMATIC_CREATION}
    with make_broker(version, root, settings=settings) as broker:
        judge = Judge(broker, tmp_path / "judge")
        for name, offset in offsets.items():
            given_back = retries.get(name, set())
            expect = COUNT - offset + len(given_back)
            with judge.consume([TOPIC], name, expect=expect, settle_s=2) as consumption:
                consumed = consumption.wait()
            came = {
                is_retry: numbers([each for each in consumed if each.is_retry is is_retry])
                for is_retry in (False, True)
            }
            assert came == {False: Counter(range(offset, COUNT)), True: Counter(given_back)}, name
        with judge.consume([f"%DLQ%{RETRIED}"], RETRIED, expect=1) as consumption:
            # A broker repeats what was delivered since delayOffset.json was written last.
            assert set(numbers(consumption.wait())) == {REJECTED_NUMBER}


@pytest.mark.parametrize("version", ["4.9.7", LAST])
def test_our_group_goes_on_where_a_java_consumer_and_its_broker_were_killed(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """The consumer has acknowledged some, returned some, and holds others in its hands."""
    root = tmp_path / "store"
    with open_store("levels", version, root, LATER):
        pass
    settings = {"messageDelayLevel": LATER, "flushConsumerOffsetInterval": 500}
    broker = make_broker(version, root, settings=settings, topics={TOPIC: 1}).start()
    judge = Judge(broker, tmp_path / "judge")
    sent = judge.send([Outgoing(number, TOPIC, body(number)) for number in range(30)])
    with judge.consume([TOPIC], GROUP, return_one_in=3, hold_after=20) as consumption:
        give_up = time.monotonic() + 60
        while len(consumption.so_far()) < 20 or not offset_of(root):
            assert time.monotonic() < give_up
            time.sleep(0.2)
        consumed = consumption.so_far()
    broker.kill()
    offset, at = offset_of(root), {each.message.number: each.queue_offset for each in sent}
    returned = set(numbers([each for each in consumed if each.returned]))
    acknowledged = set(numbers([each for each in consumed if not each.returned]))
    assert returned
    assert offset

    with open_store("levels", version, root, LATER) as store:
        group = consumer_group(store, GROUP)
        received = Counter(each.body for each in group.receive(TOPIC, max_messages=100))
        assert received == Counter(body(each) for each in at if at[each] >= offset)
        store.advance(CLOCK.now_ms() + 90_000)
        retries = group.receive(TOPIC, max_messages=100)
        again = Counter(each.body for each in retries)
        assert again.keys() <= set(map(body, returned))
        assert {(each.topic, each.retries) for each in retries} == {(TOPIC, 1)}
        assert max(again.values()) == 1
        done = {body(each) for each in acknowledged if at[each] < offset}
        assert done | received.keys() | again.keys() == set(map(body, range(30)))


def offset_of(root: Path) -> int:
    """The offset that the broker wrote down last; 0 for none."""
    return read_consumer_offsets(root).get((TOPIC, GROUP), {}).get(0, 0)
