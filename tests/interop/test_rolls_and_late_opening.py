# SPDX-License-Identifier: Apache-2.0
"""Converted stores at their edges: everything rolls, or the target is opened an hour late.

Their sources are generated, not sent: what matters here is many messages, and due times that no
broker would have waited for.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from tests.interop.account import Lateness, once
from tests.interop.broker import Broker
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import NEWEST
from tests.interop.judge import Judge, Received, copy_store
from tests.interop.ours import delaywheel, delaywheel_lines
from tests.interop.stages import SMALL_FILES, convert, now_ms

NEW: Final = ("5.3.3", "5.4.0", "5.5.0")
HOUR_MS: Final = 3_600_000
LATE: Final = 5_000
ROLLING: Final = 200_000
ROLLING_SETTINGS: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "mappedFileSizeTimerLog": 10 << 20,
    "timerRollWindowSlot": 20,
}


@attrs.frozen
class Converted:
    """A generated source, its conversion, and what the conversion said."""

    source: Path
    target: Path
    report: Mapping[str, Any]

    @property
    def topics(self) -> list[str]:
        """Where the messages go, as the target's own route table has it."""
        topics = json.loads((self.target / "config" / "topics.json").read_text(encoding="utf-8"))
        return sorted(topics["topicConfigTable"])

    def waiting(self) -> list[dict[str, Any]]:
        """List what waited in the source, a line a message."""
        return delaywheel_lines("pending", self.source)


def generate_and_convert(
    folder: Path,
    messages: int,
    level: int,
    generated_ms: int,
    settings: Mapping[str, object],
    *options: object,
) -> Converted:
    folder.mkdir()
    source, target = folder / "source", folder / "target"
    delaywheel(
        "generate", source, "--messages", messages, "--body-bytes", 100, "--levels", level,
        "--topics", 3, "--seed", 5, "--now", generated_ms, "--commit-log-file-bytes", 64 << 20,
    )  # fmt: skip
    return Converted(source, target, convert(source, target, settings, *options))


def receive(broker: Broker, judge: Judge, topics: Sequence[str], expect: int) -> list[Received]:
    with broker, judge.consume(topics, "fresh", expect=expect, deadline_s=300) as consumer:
        return once(consumer.wait())


def faults(waiting: Sequence[Mapping[str, Any]], received: Sequence[Received]) -> dict[str, int]:
    """Count what is missing, repeated, strange or early; {} is right."""
    due = {each["unique_key"]: each["due_ms"] for each in waiting}
    found = Counter(each.unique_key for each in received)
    counts = {
        "missing": len(due.keys() - found.keys()),
        "repeated": sum(1 for times in found.values() if times > 1),
        "unexpected": len(found.keys() - due.keys()),
        "early": sum(1 for r in received if r.stored_ms < due.get(r.unique_key, 0)),
    }
    return {fault: count for fault, count in counts.items() if count}


@pytest.mark.matrix
@pytest.mark.interop(NEWEST)
def test_many_messages_beyond_the_roll_window_come_once(
    make_broker: MakeBroker, scratch: Path, tell: Tell
) -> None:
    # Level 5 is a minute: due one and a half to two and a half minutes from now.
    generated_ms = now_ms() + 90_000
    store = generate_and_convert(scratch / "rolling", ROLLING, 5, generated_ms, ROLLING_SETTINGS)
    assert store.report["rolled"] == ROLLING
    broker = make_broker(NEWEST, store.target)
    received = receive(broker, Judge(broker, scratch / "rolling-judge"), store.topics, ROLLING)

    waiting = store.waiting()
    due = {each["unique_key"]: each["due_ms"] for each in waiting}
    late = sorted(r.stored_ms - due[r.unique_key] for r in received if r.unique_key in due)
    measured = Lateness(late[len(late) // 2], late[len(late) * 99 // 100], late[-1])
    tell(f"{NEWEST}, {len(received)} messages that rolled every 10 to 20 s: {measured} late")
    assert len(waiting) == ROLLING
    assert min(int(r.properties["TIMER_ROLL_TIMES"]) for r in received) >= 1
    assert faults(waiting, received) == {}


@pytest.fixture(scope="module")
def opened_late(
    make_broker: MakeBroker, scratch: Path
) -> tuple[Converted, Mapping[str, list[Received]]]:
    # Level 14 is ten minutes. Converted an hour ago: nothing was overdue then, all of it is now.
    an_hour_ago = now_ms() - HOUR_MS
    store = generate_and_convert(
        scratch / "late", LATE, 14, an_hour_ago, SMALL_FILES, "--now", an_hour_ago
    )
    brokers = {
        version: make_broker(version, copy_store(store.target, scratch / f"late-{version}"))
        for version in NEW
    }

    def open_one(version: str) -> list[Received]:
        judge = Judge(brokers[version], scratch / f"late-judge-{version}")
        return receive(brokers[version], judge, store.topics, LATE)

    with ThreadPoolExecutor(len(NEW)) as pool:
        return store, dict(zip(NEW, pool.map(open_one, NEW), strict=True))


@pytest.mark.matrix
@pytest.mark.interop(*NEW)
@pytest.mark.parametrize("version", NEW)
def test_a_target_opened_an_hour_late_delivers_everything_once(
    version: str, opened_late: tuple[Converted, Mapping[str, list[Received]]]
) -> None:
    store, received = opened_late
    waiting = store.waiting()
    assert (len(waiting), store.report["overdue"]) == (LATE, 0)
    assert faults(waiting, received[version]) == {}
