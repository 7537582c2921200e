# SPDX-License-Identifier: Apache-2.0
"""Converted stores at their edges: everything rolls, or the target is opened an hour late.

Their sources are generated, not sent: the order of the day is many messages, and due times that a
broker would not have waited for.
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
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import NEWEST
from tests.interop.judge import Judge, Received, copy_store
from tests.interop.ours import delaywheel, delaywheel_lines
from tests.interop.stages import SMALL_FILES, convert, now_ms

NEW: Final = ("5.3.3", "5.4.0", "5.5.0")
HOUR_MS: Final = 3_600_000
ROLLING: Final = 200_000
LARGER_FILES: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "mappedFileSizeTimerLog": 10 << 20,
}


@attrs.frozen
class Generated:
    """A generated source, its conversion, and what waited in it."""

    target: Path
    waiting: Sequence[Mapping[str, Any]]
    report: Mapping[str, Any]

    @property
    def topics(self) -> list[str]:
        """Where the messages go."""
        return sorted({each["topic"] for each in self.waiting})

    def faults(self, received: Sequence[Received]) -> dict[str, int]:
        """Count what is missing, repeated, strange or early; {} is right."""
        due = {each["unique_key"]: each["due_ms"] for each in self.waiting}
        found = Counter(each.unique_key for each in received)
        counts = {
            "missing": len(due.keys() - found.keys()),
            "repeated": sum(1 for times in found.values() if times > 1),
            "unexpected": len(found.keys() - due.keys()),
            "early": sum(1 for r in received if r.stored_ms < due.get(r.unique_key, 0)),
        }
        return {fault: count for fault, count in counts.items() if count}

    def lateness(self, received: Sequence[Received], due_after_ms: int) -> Lateness:
        """Return how late what was due after the opening was stored."""
        due = {each["unique_key"]: each["due_ms"] for each in self.waiting}
        waits = [(r.stored_ms, due[r.unique_key]) for r in received if r.unique_key in due]
        late = sorted(stored - at for stored, at in waits if at >= due_after_ms)
        return Lateness(late[len(late) // 2], late[len(late) * 99 // 100], late[-1])


def generate(
    folder: Path, messages: int, level: int, generated_ms: int, settings: Mapping[str, object],
    *options: object,
) -> Generated:  # fmt: skip
    folder.mkdir()
    source, target = folder / "source", folder / "target"
    delaywheel(
        "generate", source, "--messages", messages, "--body-bytes", 100, "--levels", level,
        "--topics", 3, "--seed", 5, "--now", generated_ms, "--commit-log-file-bytes", 64 << 20,
    )  # fmt: skip
    waiting = delaywheel_lines("pending", source)
    return Generated(target, waiting, convert(source, target, settings, *options))


@pytest.mark.matrix
@pytest.mark.interop(NEWEST)
def test_many_messages_beyond_the_roll_window_come_once(
    make_broker: MakeBroker, scratch: Path, tell: Tell
) -> None:
    settings = {**LARGER_FILES, "timerRollWindowSlot": 20}
    # Level 5 is a minute: due one to two minutes from now.
    store = generate(scratch / "rolling", ROLLING, 5, now_ms() + 60_000, settings)
    assert store.report["rolled"] == ROLLING
    broker = make_broker(NEWEST, store.target, settings=settings)
    with broker:
        opened_ms = now_ms()
        judge = Judge(broker, scratch / "rolling-judge")
        with judge.consume(
            store.topics, "rolling", expect=ROLLING, deadline_s=300, settle_s=5
        ) as consumer:
            received = once(consumer.wait())
    tell(f"{NEWEST}, {len(received)} rolled messages: {store.lateness(received, opened_ms)} late")
    assert store.faults(received) == {}


@pytest.fixture(scope="module")
def opened_late(make_broker: MakeBroker, scratch: Path) -> tuple[Generated, dict[str, Any]]:
    # Level 14 is ten minutes: all due an hour to fifty minutes ago, as was the conversion.
    an_hour_ago = now_ms() - HOUR_MS
    store = generate(scratch / "late", 5_000, 14, an_hour_ago, SMALL_FILES, "--now", an_hour_ago)
    brokers = {
        version: make_broker(version, copy_store(store.target, scratch / f"late-{version}"))
        for version in NEW
    }

    def open_one(version: str) -> list[Received]:
        judge = Judge(brokers[version], scratch / f"late-judge-{version}")
        with (
            brokers[version],
            judge.consume(
                store.topics, "late", expect=5_000, deadline_s=120, settle_s=4
            ) as consumer,
        ):
            return once(consumer.wait())

    with ThreadPoolExecutor(len(NEW)) as pool:
        return store, dict(zip(NEW, pool.map(open_one, NEW), strict=True))


@pytest.mark.matrix
@pytest.mark.interop(*NEW)
@pytest.mark.parametrize("version", NEW)
def test_a_target_opened_an_hour_late_delivers_everything_once(
    version: str, opened_late: tuple[Generated, dict[str, Any]]
) -> None:
    store, received = opened_late
    topics = json.loads((store.target / "config" / "topics.json").read_text(encoding="utf-8"))
    assert {*store.topics} <= topics["topicConfigTable"].keys()
    assert store.report["overdue"] == 0
    assert store.faults(received[version]) == {}
