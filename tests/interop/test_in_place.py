# SPDX-License-Identifier: Apache-2.0
"""A 4.9.7 backlog converted in place, opened by 5.x; and the old store retired, opened by 4.9.7.

One filled store, three copies, three brokers at the same time: two of 5.x on stores that were
converted in place (the second level by level), and 4.9.7 on a store of which some levels were
converted elsewhere and retired. The same of a store that 5.5.1 filled, each opened by 5.5.1.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from tests.interop.account import account, lateness, once
from tests.interop.broker import Broker
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge, Received, Sent, copy_store
from tests.interop.ours import delaywheel
from tests.interop.stages import SMALL_FILES, Backlog, convert, fill, now_ms
from tests.interop.workload import TOPIC_TABLE, TOPICS, level_delays_ms, varied, with_levels

MESSAGES: Final = 4_400
# Level 1 is overdue when the stores are opened; the others are due after that, unless the machine
# is very busy.
TABLE: Final = "5s 80s 100s 120s 135s 150s"
DELAYS: Final = level_delays_ms(TABLE)
LEVELS: Final = range(1, 7)
# What the retired store has given away; the other levels stay with its broker.
GIVEN_AWAY: Final = (2, 4, 6)
GROUP: Final = "orders"
FRESH: Final = "fresh"

Changes = Sequence[Mapping[str, Any]]

pytestmark = pytest.mark.nightly


@attrs.frozen
class Opened:
    """What two groups received from one broker: one that the old broker knew, and a new one."""

    opened_ms: int
    known: Sequence[Received]
    fresh: Sequence[Received]


@attrs.frozen
class Journey:
    """All that happened, once for the whole module."""

    backlog: Backlog
    versions: Mapping[str, str]
    changes: Mapping[str, Changes]
    opened: Mapping[str, Opened]

    @property
    def sent(self) -> dict[str, Sent]:
        return {each.unique_key: each for each in self.backlog.sent if each.accepted}

    def converted(self, way: str) -> int:
        return sum(report["converted"] for report in self.changes[way])

    def keys(self, wanted: Callable[[Sent], bool]) -> set[str]:
        return {key for key, each in self.sent.items() if wanted(each)}


def open_store(broker: Broker, judge: Judge, expect: int, everything: int) -> Opened:
    """Let a known group receive what is new to it, and then a new group all there is."""
    with broker:
        opened_ms = now_ms()
        with judge.consume(TOPICS, GROUP, expect=expect, deadline_s=240, settle_s=4) as consumer:
            known = consumer.wait()
        with judge.consume(
            TOPICS, FRESH, expect=everything, deadline_s=120, settle_s=4
        ) as consumer:
            fresh = consumer.wait()
    return Opened(opened_ms, once(known), once(fresh))


def in_place(store: Path, *options: object) -> dict[str, Any]:
    """Convert a store, or some levels of it, in place."""
    command = ["convert", "--in-place", store, "--level-table", TABLE, *options]
    done = delaywheel(*command, "--execute")
    assert done["state"] == "done"
    return dict(done)


def there_and_back_and_there(store: Path) -> Changes:
    """Convert in place, take it back, and convert again."""
    first = in_place(store)
    back = delaywheel("rollback", store, "--execute")
    assert (back["state"], back["messages"]) == ("rolled back", first["converted"])
    return [in_place(store)]


def level_by_level(store: Path) -> Changes:
    """Convert two levels and then a third; the others stay."""
    return [
        in_place(store, "--only-level", 2, "--only-level", 3),
        in_place(store, "--only-level", 5),
    ]


def give_away(store: Path) -> Changes:
    """Convert some levels into another store, and retire them."""
    target = store.with_name(f"{store.name}-target")
    options = [word for level in GIVEN_AWAY for word in ("--only-level", level)]
    report = convert(store, target, SMALL_FILES, "--level-table", TABLE, *options)
    done = delaywheel("retire", store, "--converted-to", target, "--execute")
    assert (done["state"], done["converted"]) == ("done", report["converted"])
    return [done]


def consumer_offsets(store: Path) -> dict[str, int]:
    """How far the known group is in each queue, as the broker wrote it (its keys are numbers)."""
    text = (store / "config" / "consumerOffset.json").read_text(encoding="utf-8")
    table = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))["offsetTable"]
    return {
        f"{topic}/{queue}": offset
        for topic in TOPICS
        for queue, offset in table.get(f"{topic}@{GROUP}", {}).items()
    }


WAYS: Final = {
    "there and back and there": there_and_back_and_there,
    "level by level": level_by_level,
    "given away": give_away,
}
*IN_PLACE, GIVEN = WAYS
OPENED_BY: Final = (("5.3.3", NEWEST, "4.9.7"), (LAST, LAST, LAST))
"""Which broker opens which copy; the last one has filled the store."""

each_way = pytest.mark.parametrize("way", IN_PLACE)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, id=each[-1], marks=pytest.mark.interop(*sorted({*each})))
        for each in OPENED_BY
    ],
)
def journey(request: pytest.FixtureRequest, make_broker: MakeBroker, scratch: Path) -> Journey:
    settings, versions = {"messageDelayLevel": TABLE}, dict(zip(WAYS, request.param, strict=True))
    here = scratch / f"filled-by-{versions[GIVEN]}"
    here.mkdir()
    old = make_broker(versions[GIVEN], here / "old", settings=settings, topics=TOPIC_TABLE)
    messages = with_levels(varied(seed=17, count=MESSAGES), [*LEVELS], seed=18, ordinary_every=8)
    backlog = fill(old, Judge(old, here / "old-judge"), messages, [GROUP], linger_s=3)
    before = consumer_offsets(backlog.root)
    stores = {way: copy_store(backlog.root, here / way) for way in WAYS}
    brokers = {way: make_broker(versions[way], stores[way], settings=settings) for way in WAYS}
    accepted = sum(each.accepted for each in backlog.sent)

    def go(way: str) -> tuple[Changes, Opened]:
        changes = WAYS[way](stores[way])
        assert consumer_offsets(stores[way]) == before
        gone = changes[0]["converted"] if way == GIVEN else 0
        judge = Judge(brokers[way], here / f"judge of {way}")
        new = accepted - gone - len(backlog.received)
        return changes, open_store(brokers[way], judge, new, accepted - gone)

    with ThreadPoolExecutor(len(WAYS)) as pool:
        ends = dict(zip(WAYS, pool.map(go, WAYS), strict=True))
    return Journey(
        backlog,
        versions,
        {way: changes for way, (changes, _opened) in ends.items()},
        {way: opened for way, (_changes, opened) in ends.items()},
    )


def test_the_backlog_is_what_this_test_is_about(journey: Journey) -> None:
    assert journey.converted(IN_PLACE[0]) >= 3_000
    assert journey.converted(IN_PLACE[1]) >= 1_500
    assert journey.converted(GIVEN) >= 1_500
    assert set(journey.changes[GIVEN][0]["stays"]) >= {"3", "5"}
    assert len(journey.backlog.received) > 400


@each_way
def test_every_message_comes_once_never_early_and_as_it_was_sent(
    way: str, journey: Journey, tell: Tell
) -> None:
    opened = journey.opened[way]
    late = lateness(journey.backlog.sent, opened.known, DELAYS, due_after_ms=opened.opened_ms)
    brokers = f"{journey.versions[GIVEN]} to {journey.versions[way]}"
    tell(f"{brokers}, {journey.converted(way):,} converted in place: {late}")
    everything = [*journey.backlog.received, *opened.known]
    assert account(journey.backlog.sent, everything, DELAYS).faults == {}


@each_way
def test_a_group_goes_on_where_it_was(way: str, journey: Journey) -> None:
    """What it had received from the old broker is not received again."""
    before = {each.unique_key for each in journey.backlog.received}
    after = {each.unique_key for each in journey.opened[way].known}
    assert before & after == set()


@each_way
def test_what_stood_in_the_topics_before_is_still_there(way: str, journey: Journey) -> None:
    """A new group receives all of it, the ordinary messages too, and nothing twice."""
    assert account(journey.backlog.sent, journey.opened[way].fresh, DELAYS).faults == {}


@each_way
def test_the_wheel_delivered_what_was_converted_and_the_levels_the_rest(
    way: str, journey: Journey
) -> None:
    by_wheel = [each for each in journey.opened[way].known if "TIMER_DEQUEUE_MS" in each.properties]
    assert len(by_wheel) == journey.converted(way)
    assert all("DELAY" not in each.properties for each in by_wheel)


def test_a_retired_store_delivers_nothing_that_was_converted_and_all_that_was_not(
    journey: Journey,
) -> None:
    opened = journey.opened[GIVEN]
    given_away = journey.keys(lambda each: each.message.delay_level in GIVEN_AWAY)
    assert {each.unique_key for each in opened.fresh} & given_away == set()
    kept = [each for each in journey.backlog.sent if each.unique_key not in given_away]
    assert account(kept, opened.fresh, DELAYS).faults == {}
    everything = [*journey.backlog.received, *opened.known]
    assert account(kept, everything, DELAYS).faults == {}
