# SPDX-License-Identifier: Apache-2.0
"""Stores that real brokers left are finished by our engines, and a broker reads what became of it.

The engines deliver what waits in simulated time, each message at its due time, and close. Then a
broker of the same version opens the store as a slave, which changes nothing, and RocketMQ's own
client reads every topic.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import attrs
import pytest

from legacy_levels.engine.store import LevelStore
from message_store.base.clock import ManualClock
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.interface.delay_store import DelayStore
from message_store.writing.settings import StoreSettings
from tests.independent.real_stores import (
    ALL_STORES,
    LEVELS_551_CLEAN,
    WHEEL_551_CLEAN,
    RealStore,
    TruthLine,
    unpack,
)
from tests.interop.account import user_properties
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Received
from tests.interop.store_maker import RETRY_TOPIC, read_still
from tests.interop.workload import TOPICS
from timer_wheel.wheel.store import WheelStore

STORES: Final = (*ALL_STORES, LEVELS_551_CLEAN, WHEEL_551_CLEAN)
DIALECTS: Final = {
    "4.9.7": Dialect.ROCKETMQ_4_9,
    NEWEST: Dialect.ROCKETMQ_5_5,
    LAST: Dialect.ROCKETMQ_5_5,
}
DEFAULT_BYTES: Final = StoreSettings()
LEVELS: Final = DelayLevels.parse()
PRECISION_MS: Final = 1000
STEP_MS: Final = 600_000
# A broker takes nothing that is due later than in three days.
FOUR_DAYS_MS: Final = 4 * 86_400_000
# The fixtures are older than a broker keeps files, and it is four in the morning some time.
KEPT_FOR_EVER: Final = {"fileReservedTime": 1_000_000}

Row = tuple[object, ...]

pytestmark = pytest.mark.filterwarnings("ignore::message_store.base.errors.OtherEngineWarning")


@attrs.frozen
class Finished:
    """A fixture, what the engines delivered from it and promised for which time, and what a broker
    then reads in the topics.
    """

    store: RealStore
    delivered: Counter[tuple[object, ...]]
    read: list[Received]


def open_engines(store: RealStore, clock: ManualClock) -> Iterator[DelayStore]:
    """Open each engine that the store needs, one after the other."""
    config: Mapping[str, int] = store.about["config"]
    settings = StoreSettings(
        commit_log_file_bytes=store.commit_log_file_bytes,
        queue_file_bytes=store.queue_file_bytes,
        timer_log_file_bytes=config.get(
            "mappedFileSizeTimerLog", DEFAULT_BYTES.timer_log_file_bytes
        ),
        retention_ms=10**12,
    )
    dialect = DIALECTS[store.about["version"]]
    if "timerRollWindowSlot" in config:
        window = config["timerRollWindowSlot"]
        with WheelStore.open(
            store.root, clock=clock, dialect=dialect, settings=settings, roll_window_slots=window
        ) as wheel:
            yield wheel
    with LevelStore.open(store.root, clock=clock, dialect=dialect, settings=settings) as levels:
        yield levels


def finish(name: str, scratch: Path) -> Finished:
    store = unpack(name, scratch / name / "store")
    delivered: Counter[tuple[object, ...]] = Counter()
    clock = ManualClock(store.stopped_ms)
    for engine in open_engines(store, clock):
        while (next_ms := engine.next_due_ms()) is not None:
            assert next_ms < store.stopped_ms + FOUR_DAYS_MS
            clock.tick(max(next_ms - clock.now_ms(), STEP_MS))
            for each in engine.advance(clock.now_ms()):
                delivered[each.message.unique_key, each.message.topic, each.promised_ms] += 1
        clock.tick(store.stopped_ms - clock.now_ms())
    settings = {
        "mappedFileSizeCommitLog": store.commit_log_file_bytes,
        "mappedFileSizeConsumeQueue": store.queue_file_bytes,
        **store.about["config"],
        **KEPT_FOR_EVER,
    }
    topics = [*TOPICS, RETRY_TOPIC]
    read = read_still(store.about["version"], settings, store.root, scratch / name, topics)
    return Finished(store, delivered, read)


@pytest.fixture(scope="module")
def finished(scratch: Path) -> Mapping[str, Finished]:
    with ThreadPoolExecutor(3) as pool:
        each = pool.map(lambda name: finish(name, scratch), STORES)
        return dict(zip(STORES, each, strict=True))


def due_ms(line: TruthLine) -> int:
    if line.timer_out_ms is not None:
        return line.timer_out_ms + PRECISION_MS
    assert line.store_timestamp_ms is not None
    assert line.level is not None
    return line.store_timestamp_ms + LEVELS.delay_ms(line.level)


@pytest.mark.nightly
@pytest.mark.interop(*DIALECTS)
@pytest.mark.parametrize("name", STORES)
def test_what_waited_is_delivered_at_its_time_and_nothing_else(
    name: str, finished: Mapping[str, Finished]
) -> None:
    found = finished[name]
    waited: Counter[tuple[object, ...]] = Counter(
        (line.unique_key, line.topic, due_ms(line))
        for line in found.store.truth
        if line.state == "pending"
    )
    assert sum(waited.values()) > 300
    assert list((found.delivered - waited).elements())[:5] == []
    assert list((waited - found.delivered).elements())[:5] == []


@pytest.mark.nightly
@pytest.mark.interop(*DIALECTS)
@pytest.mark.parametrize("name", STORES)
def test_a_broker_then_reads_every_message_once_and_as_it_was_sent(
    name: str, finished: Mapping[str, Finished]
) -> None:
    found = finished[name]
    wanted = Counter(
        row_of_truth(line)
        for line in found.store.truth
        if line.state in ("pending", "delivered", "normal")
    )
    rows = Counter(row_of(each) for each in found.read)
    assert list((rows - wanted).elements())[:5] == []
    assert list((wanted - rows).elements())[:5] == []


def row_of_truth(line: TruthLine) -> Row:
    return (
        line.topic,
        line.queue_id,
        line.unique_key,
        line.tags,
        line.keys,
        tuple(sorted(line.user_properties.items())),
        line.body_sha1,
        line.born_timestamp_ms,
    )


def row_of(each: Received) -> Row:
    return (
        each.topic,
        each.queue_id,
        each.unique_key,
        each.tags,
        each.keys,
        tuple(sorted(user_properties(each.properties).items())),
        each.body_sha1,
        each.born_ms,
    )
