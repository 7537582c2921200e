# SPDX-License-Identifier: Apache-2.0
"""A backlog that 4.9.7 took, converted once, then opened by every 5.x: each message once, in time.

The brokers work at the same time on copies of one target, with the automatic creation of
topics and groups switched off: what the target does not bring along does not exist.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from tests.interop.account import Account, account, lateness
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge, Received, copy_store
from tests.interop.stages import (
    NO_AUTOMATIC_CREATION,
    SMALL_FILES,
    Backlog,
    Opened,
    convert,
    fill,
    now_ms,
    open_target,
)
from tests.interop.store_maker import read_still
from tests.interop.workload import TOPIC_TABLE, TOPICS, level_delays_ms, varied, with_levels

NEW: Final = ("5.3.3", "5.4.0", NEWEST, LAST)
MESSAGES: Final = 21_500
# Level 2 is overdue when the store is converted, the others are due in the 90 s after it is opened.
TABLE: Final = "1s 35s 80s 95s 105s 115s 125s 135s 145s 155s"
DELAYS: Final = level_delays_ms(TABLE)
GROUPS: Final = ("orders", "latecomers")

pytestmark = [pytest.mark.nightly, pytest.mark.interop("4.9.7", *NEW)]
each_new_version = pytest.mark.parametrize("version", NEW)


@attrs.frozen
class Journey:
    """All that happened, once for the whole module."""

    backlog: Backlog
    by_the_old: Sequence[Received]
    report: Mapping[str, Any]
    target: Path
    opened: Mapping[str, Opened]

    def account(self, received: list[Received]) -> Account:
        """Hold what the old broker and one new broker delivered against what was sent."""
        return account(self.backlog.sent, [*self.by_the_old, *received], DELAYS)


@pytest.fixture(scope="module")
def journey(make_broker: MakeBroker, scratch: Path) -> Journey:
    settings = {"messageDelayLevel": TABLE}
    old = make_broker("4.9.7", scratch / "old", settings=settings, topics=TOPIC_TABLE)
    messages = with_levels(varied(seed=7, count=MESSAGES), range(2, 11), seed=8, ordinary_every=20)
    backlog = fill(old, Judge(old, scratch / "old-judge"), messages, GROUPS)
    # Let some be overdue on a fast machine too.
    first_due_ms = backlog.sent[0].sent_ms + DELAYS[2]
    time.sleep(max(0, first_due_ms + 1_000 - now_ms()) / 1000)
    target = scratch / "target"
    report = convert(backlog.root, target, SMALL_FILES, "--level-table", TABLE)
    stores = {version: copy_store(target, scratch / f"target-{version}") for version in NEW}
    brokers = {
        version: make_broker(version, stores[version], settings=NO_AUTOMATIC_CREATION)
        for version in NEW
    }

    def open_one(version: str) -> Opened:
        judge = Judge(brokers[version], scratch / f"judge-{version}")
        return open_target(brokers[version], judge, GROUPS, report["converted"])

    with ThreadPoolExecutor(len(NEW)) as pool:
        opened = dict(zip(NEW, pool.map(open_one, NEW), strict=True))
    # What the old broker had delivered stands in its topics, received or not.
    by_the_old = read_still("4.9.7", settings, backlog.root, scratch, TOPICS)
    return Journey(backlog, by_the_old, report, target, opened)


def test_the_backlog_is_what_this_test_is_about(journey: Journey) -> None:
    logs = [*(journey.target / "commitlog").iterdir()]
    assert journey.report["converted"] >= 20_000
    assert journey.report["overdue"] > 0
    assert len(logs) > 10
    assert len([*(journey.target / "timerlog").iterdir()]) > 1


@each_new_version
def test_every_message_comes_once_never_early_and_as_it_was_sent(
    version: str, journey: Journey, tell: Tell
) -> None:
    opened = journey.opened[version]
    received = [*opened.received]
    late = lateness(journey.backlog.sent, received, DELAYS, due_after_ms=opened.opened_ms)
    tell(f"{version}, {len(received):,} of a 4.9.7 store, {len(NEW)} brokers at once: {late}")
    result = journey.account(received)
    assert result.faults == {}
    assert len(received) == journey.report["converted"]


@each_new_version
def test_a_group_that_attaches_after_everything_was_delivered_misses_nothing(
    version: str, journey: Journey
) -> None:
    received = [*journey.opened[version].received_by_the_latecomer]
    assert journey.account(received).faults == {}
