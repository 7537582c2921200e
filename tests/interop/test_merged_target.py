# SPDX-License-Identifier: Apache-2.0
"""Several brokers' backlogs merged into one target, and one new broker in the place of the old
ones: what waited in each comes once, at its time, to the topics where it belongs.

One store is that of a real 4.9.7. Two are generated: all of the one is overdue, all of the other
rolls before it comes.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from tests.interop.account import account, once
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.generated import generate
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge, Received, copy_store
from tests.interop.ours import delaywheel, delaywheel_lines
from tests.interop.stages import SMALL_FILES, Backlog, fill, merge, now_ms
from tests.interop.workload import TOPIC_TABLE, TOPICS, level_delays_ms, varied, with_levels

OLD: Final = "4.9.7"
NEW: Final = ("5.3.3", NEWEST, LAST)
GROUP: Final = "orders"
DELAYS: Final = level_delays_ms("1s 5s 10s 30s 1m 2m 3m")
HOUR_MS: Final = 3_600_000
SENT, OVERDUE, ROLLING = 300, 700, 500
SETTINGS: Final[Mapping[str, object]] = {**SMALL_FILES, "timerRollWindowSlot": 20}

pytestmark = [pytest.mark.nightly, pytest.mark.interop(OLD, *NEW)]


@attrs.frozen
class Opened:
    """What waited, by who knows it, and what each new broker delivered of the merged target."""

    old: Backlog
    generated: Sequence[Mapping[str, Any]]
    report: Mapping[str, Any]
    received: Mapping[str, Sequence[Received]]


@pytest.fixture(scope="module")
def opened(make_broker: MakeBroker, scratch: Path) -> Opened:
    broker = make_broker(OLD, scratch / "old", topics=TOPIC_TABLE)
    messages = with_levels(varied(11, SENT), [6, 7], seed=4)
    old = fill(broker, Judge(broker, scratch / "old-judge"), messages, [GROUP])
    # Converted as of now: what rolls then rolls, however long a slow machine takes for the rest.
    now = now_ms()
    overdue = generate(scratch / "overdue", OVERDUE, level=5, generated_ms=now - HOUR_MS, seed=6)
    rolling = generate(scratch / "rolling", ROLLING, level=5, generated_ms=now + 120_000, seed=7)
    sources, target = [old.root, overdue, rolling], scratch / "merged"
    report = merge(sources, target, SETTINGS, "--now", now)
    delaywheel("verify", *sources, target)
    waiting = [*delaywheel_lines("pending", overdue), *delaywheel_lines("pending", rolling)]
    topics = sorted({*TOPICS, *(line["topic"] for line in waiting)})
    brokers = {
        version: make_broker(version, copy_store(target, scratch / f"merged-{version}"))
        for version in NEW
    }

    def open_one(version: str) -> list[Received]:
        broker = brokers[version]
        judge = Judge(broker, scratch / f"judge-{version}")
        expect = SENT + OVERDUE + ROLLING
        with (
            broker,
            judge.consume(topics, GROUP, expect=expect, deadline_s=420, settle_s=4) as consumer,
        ):
            return once(consumer.wait())

    with ThreadPoolExecutor(len(NEW)) as pool:
        received = dict(zip(NEW, pool.map(open_one, NEW), strict=True))
    return Opened(old, waiting, report, received)


def waiting_for(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Who it is: generated stores number their messages alike, so a unique key is not enough."""
    who = line["unique_key"], line["topic"], line["queue_id"], line["tags"]
    return (*who, " ".join(line["keys"]))


@pytest.mark.parametrize("version", NEW)
def test_one_broker_delivers_once_what_waited_in_three(
    version: str, opened: Opened, tell: Tell
) -> None:
    received, sent = opened.received[version], opened.old.sent
    assert [one["converted"] for one in opened.report["sources"]] == [SENT, OVERDUE, ROLLING]
    keys = {each.unique_key for each in sent}
    of_the_old = [each for each in received if each.unique_key in keys]
    assert account(sent, of_the_old, DELAYS).faults == {}

    due_ms = {waiting_for(line): line["due_ms"] for line in opened.generated}
    assert len(due_ms) == OVERDUE + ROLLING
    others = {
        (each.unique_key, each.topic, each.queue_id, each.tags, each.keys or ""): each
        for each in received
        if each.unique_key not in keys
    }
    assert others.keys() == due_ms.keys()
    assert len(of_the_old) + len(others) == len(received)
    assert [who for who, each in others.items() if each.stored_ms < due_ms[who]] == []
    rolled = [each for each in others.values() if "TIMER_ROLL_TIMES" in each.properties]
    assert len(rolled) >= ROLLING
    tell(f"{version}, {len(received):,} of a merged target, of which {len(rolled)} rolled")
