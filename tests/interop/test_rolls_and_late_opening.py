# SPDX-License-Identifier: Apache-2.0
"""Converted stores at their edges: everything rolls, or the target is opened an hour late.

Their sources are generated, not sent: what matters here is many messages, and due times that no
broker would have waited for.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.interop.account import lateness_of
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.generated import Converted, faults, generate, receive
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge, Received, copy_store
from tests.interop.stages import SMALL_FILES, convert, now_ms

NEW: Final = ("5.3.3", "5.4.0", NEWEST, LAST)
HOUR_MS: Final = 3_600_000
LATE: Final = 5_000
ROLLING: Final = 200_000
ROLLING_SETTINGS: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "mappedFileSizeTimerLog": 10 << 20,
    "timerRollWindowSlot": 20,
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "version",
    [pytest.param(version, marks=pytest.mark.interop(version)) for version in (NEWEST, LAST)],
)
def test_many_messages_beyond_the_roll_window_come_once(
    version: str, make_broker: MakeBroker, scratch: Path, tell: Tell
) -> None:
    here = scratch / version
    here.mkdir()
    # Level 5 is a minute, so due in two to three minutes: not within the window before the store
    # is generated and converted, on a slow machine too.
    generated_ms = now_ms() + 120_000
    source = generate(here / "rolling", ROLLING, level=5, generated_ms=generated_ms)
    target = here / "rolling-target"
    store = Converted(source, target, convert(source, target, ROLLING_SETTINGS))
    assert store.report["rolled"] == ROLLING
    broker = make_broker(version, store.target)
    received = receive(broker, Judge(broker, here / "rolling-judge"), store.topics, ROLLING)

    waiting = store.waiting()
    due = {each["unique_key"]: each["due_ms"] for each in waiting}
    late = lateness_of(due, received)
    tell(f"{version}, {len(received):,} messages that rolled every 10 to 20 s: {late}")
    assert len(waiting) == ROLLING
    assert min(int(r.properties["TIMER_ROLL_TIMES"]) for r in received) >= 1
    assert faults(waiting, received) == {}


@pytest.fixture(scope="module")
def opened_late(
    make_broker: MakeBroker, scratch: Path
) -> tuple[Converted, Mapping[str, list[Received]]]:
    # Level 14 is ten minutes. Converted an hour ago: nothing was overdue then, all of it is now.
    an_hour_ago = now_ms() - HOUR_MS
    source = generate(scratch / "late", LATE, level=14, generated_ms=an_hour_ago)
    target = scratch / "late-target"
    report = convert(source, target, SMALL_FILES, "--now", an_hour_ago)
    store = Converted(source, target, report)
    brokers = {
        version: make_broker(version, copy_store(store.target, scratch / f"late-{version}"))
        for version in NEW
    }

    def open_one(version: str) -> list[Received]:
        judge = Judge(brokers[version], scratch / f"late-judge-{version}")
        return receive(brokers[version], judge, store.topics, LATE)

    with ThreadPoolExecutor(len(NEW)) as pool:
        return store, dict(zip(NEW, pool.map(open_one, NEW), strict=True))


@pytest.mark.nightly
@pytest.mark.interop(*NEW)
@pytest.mark.parametrize("version", NEW)
def test_a_target_opened_an_hour_late_delivers_everything_once(
    version: str, opened_late: tuple[Converted, Mapping[str, list[Received]]]
) -> None:
    store, received = opened_late
    waiting = store.waiting()
    assert (len(waiting), store.report["overdue"]) == (LATE, 0)
    assert faults(waiting, received[version]) == {}
