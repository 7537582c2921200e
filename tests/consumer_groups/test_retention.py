# SPDX-License-Identifier: Apache-2.0
"""Retention takes the records of messages that a handler works on: what it decides holds."""

from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from consumer_groups import ConsumerGroup, GroupStore, consumer_group
from message_store import AfterMs, ManualClock, Message
from message_store.writing.settings import StoreSettings
from tests.faults.engines import OPEN

SETTINGS = StoreSettings(commit_log_file_bytes=8192, queue_file_bytes=200, retention_ms=60_000)


def let_come(store: GroupStore, clock: ManualClock, topic: str, key: str, body: bytes) -> None:
    store.schedule(Message(topic, body, unique_key=key), AfterMs(1_000))
    clock.tick(5_000)
    store.advance(clock.now_ms())


def meanwhile(group: ConsumerGroup, what: str) -> None:
    if what == "receive":
        group.ack(*group.receive("orders", 1))
    if what == "lag":
        group.lag("orders")


@pytest.mark.parametrize("what", ["nothing", "receive", "lag"])
@pytest.mark.parametrize("engine", OPEN)
def test_what_is_given_back_without_its_record_is_stored_once(
    engine: str, what: str, tmp_path: Path
) -> None:
    clock = ManualClock(1_793_000_000_000)
    store = cast(GroupStore, OPEN[engine](tmp_path / "store", clock, SETTINGS))
    group = consumer_group(store, "billing")
    for key in ("RETRIED", "REJECTED", "DONE"):
        store.schedule(Message("orders", b"x", unique_key=key), AfterMs(1_000))
    clock.tick(2_000)
    store.advance(clock.now_ms())
    for number in range(11):
        let_come(store, clock, "orders", f"B{number}", b"x" * 1_500)
    retried, rejected, done = group.receive("orders", 3, invisible_ms=60_000)
    for number in range(4):
        let_come(store, clock, "filler", f"F{number}", b"x" * 700)
    meanwhile(group, what)
    for _ in range(2):  # the second time nothing is left to be given back
        group.retry(retried)
        group.reject(rejected)
        group.ack(done)
    came: Counter[str | None] = Counter()
    for _ in range(5):
        clock.tick(10_000)
        store.advance(clock.now_ms())
        found = group.receive("orders", 100)
        came.update(each.unique_key for each in found)
        group.ack(*found)
    assert (came["RETRIED"], came["REJECTED"], came["DONE"]) == (1, 0, 0)
    assert [each.unique_key for each in group.dead_letters()] == ["REJECTED"]
    store.close()
