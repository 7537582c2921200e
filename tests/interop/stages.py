# SPDX-License-Identifier: Apache-2.0
"""A backlog's journey in stages: an old broker fills a store, we convert it, a new one opens it."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tests.interop.account import once
from tests.interop.broker import FRAGMENT, Broker
from tests.interop.judge import Judge, Received, Sent
from tests.interop.ours import delaywheel, write_settings
from tests.interop.workload import TOPICS, Outgoing

# Small files, so that a small backlog spans several of each kind.
SMALL_FILES: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 40_000,
    "mappedFileSizeTimerLog": 102_400,
}
NO_AUTOMATIC_CREATION: Final[Mapping[str, object]] = {
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
}


@attrs.frozen
class Backlog:
    """A stopped old broker's store, what it accepted, and what its consumers had received."""

    root: Path
    sent: Sequence[Sent]
    received: Sequence[Received]


@attrs.frozen
class Opened:
    """What consumers of one new broker received; `opened_ms` is when it was ready."""

    opened_ms: int
    received: Sequence[Received]
    received_by_the_latecomer: Sequence[Received]


def now_ms() -> int:
    """Read the clock that the brokers on this machine share with us."""
    return time.time_ns() // 1_000_000


def fill(
    broker: Broker,
    judge: Judge,
    messages: Sequence[Outgoing],
    groups: Sequence[str],
    *,
    linger_s: float = 0.0,
    return_one_in: int = 0,
    killed: bool = False,
) -> Backlog:
    """Send everything to an old broker whose groups consume meanwhile; stop or kill it.

    The first group's deliveries are returned; the others only make themselves known.
    """
    broker.start()
    consumers = [
        judge.consume(TOPICS, group, deadline_s=600, return_one_in=return_one_in if i == 0 else 0)
        for i, group in enumerate(groups)
    ]
    sent = judge.send(messages, threads=8)
    time.sleep(linger_s)
    if killed:
        broker.kill()
        received = [each.stop() for each in consumers]
    else:
        # Groups that are still connected hold the newest offsets: they leave before the broker.
        received = [each.stop() for each in consumers]
        broker.stop()
    return Backlog(broker.store_root, sent, once(received[0]))


def merge(
    sources: Sequence[Path], target: Path, settings: Mapping[str, object], *options: object
) -> dict[str, Any]:
    """Convert several stores into one target by the command line."""
    conf = write_settings(target.with_name(f"{target.name}.conf"), settings)
    words = [*sources, target, "--merge", "--target-conf", conf]
    report: dict[str, Any] = delaywheel("convert", *words, *options)
    assert (target / FRAGMENT).is_file()
    return report


def convert(
    source: Path, target: Path, settings: Mapping[str, object], *options: object
) -> dict[str, Any]:
    """Convert by the command line; the target's fragment then says how to open it."""
    command = conversion(source, target, settings)
    report: dict[str, Any] = delaywheel(*command, *options)
    assert (target / FRAGMENT).is_file()
    return report


def conversion(source: Path, target: Path, settings: Mapping[str, object]) -> list[object]:
    """Return the words of the command that converts for a broker with these settings."""
    conf = write_settings(target.with_name(f"{target.name}.conf"), settings)
    return ["convert", source, target, "--target-conf", conf]


def open_target(broker: Broker, judge: Judge, groups: Sequence[str], expect: int) -> Opened:
    """Open a converted store and let the first group receive `expect` messages as they come.

    The second group, if any, attaches when the first has everything, and asks for the end of the
    queues: it gets the messages only because the store knows it.
    """
    with broker:
        opened_ms = now_ms()
        with judge.consume(
            TOPICS, groups[0], expect=expect, deadline_s=240, settle_s=4
        ) as consumer:
            received = consumer.wait()
        latecomer: list[Received] = []
        for group in groups[1:]:
            with judge.consume(
                TOPICS, group, expect=expect, deadline_s=240, settle_s=2, start_at="last"
            ) as consumer:
                latecomer = consumer.wait()
    return Opened(opened_ms, once(received), once(latecomer))
