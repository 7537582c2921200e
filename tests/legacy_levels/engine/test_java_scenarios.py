# SPDX-License-Identifier: Apache-2.0
"""What RocketMQ's own tests of its delay levels check, asked of ours.

`docs/COMPATIBILITY.md` says which of their scenarios is which test.
"""

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from legacy_levels.engine.store import LevelStore
from message_store.base.clock import ManualClock
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.message import Message
from message_store.format.properties import LEVEL_TOPIC
from message_store.interface.delay_store import AfterMs, AtLevel
from message_store.writing.settings import StoreSettings

NOW_MS = 1_700_000_000_000
TINY = StoreSettings(commit_log_file_bytes=32 << 10, queue_file_bytes=16_000)
DIALECTS = pytest.mark.parametrize("dialect", [Dialect.ROCKETMQ_4_9, Dialect.ROCKETMQ_5_5])


def open_levels(
    folder: Path, table: str, clock: ManualClock, dialect: Dialect = Dialect.ROCKETMQ_4_9
) -> LevelStore:
    levels = DelayLevels.parse(table)
    return LevelStore.open(folder, clock=clock, levels=levels, dialect=dialect, settings=TINY)


@pytest.mark.parametrize("levels", [2, 18])
@DIALECTS
def test_offsets_of_levels_without_messages_are_corrected_to_zero(
    tmp_path: Path, levels: int, dialect: Dialect
) -> None:
    dice = random.Random(levels)
    numbers = [dice.randrange(-(2**63), 2**63) for _ in range(levels)]
    table = ",".join(f"{level}:{number}" for level, number in enumerate(numbers, start=1))
    offsets = tmp_path / "config" / "delayOffset.json"
    offsets.parent.mkdir()
    offsets.write_text(f'{{"offsetTable":{{{table}}}}}')
    clock = ManualClock(NOW_MS)
    with open_levels(tmp_path, " ".join(["5s"] * levels), clock, dialect) as store:
        found = {each.level: each.corrected_offset for each in store.state.corrections}
        assert found == dict.fromkeys(range(1, levels + 1), 0)
        store.schedule(Message("t", b"first"), AtLevel(levels))
        clock.tick(5_000)
        assert [each.message.body for each in store.advance(clock.now_ms())] == [b"first"]


@DIALECTS
def test_what_was_persisted_is_loaded_and_corrected_to_what_is_there(
    tmp_path: Path, dialect: Dialect
) -> None:
    clock = ManualClock(NOW_MS)
    with open_levels(tmp_path, "5s 8s", clock, dialect) as store:
        for _ in range(3):
            store.schedule(Message("t", b"x"), AtLevel(1))
        clock.tick(5_000)
        assert len(store.advance(clock.now_ms())) == 3
    with open_levels(tmp_path, "5s 8s", clock, dialect) as store:
        assert store.state.found.offset_of(1) == 3
        assert store.state.corrections == []
    text = (tmp_path / "config" / "delayOffset.json").read_text()
    shutil.rmtree(tmp_path / "delaywheel")  # as a broker leaves it: no marks know better
    (tmp_path / "config" / "delayOffset.json").write_text(text.replace("1:3", "1:300"))
    with open_levels(tmp_path, "5s 8s", clock, dialect) as store:
        assert [each.corrected_offset for each in store.state.corrections] == [3]


@DIALECTS
def test_a_level_above_the_table_waits_in_the_last_one_and_then_stands_in_its_topic(
    tmp_path: Path, dialect: Dialect
) -> None:
    clock = ManualClock(NOW_MS)
    message = Message("orders", b"later", tags="tag", keys=("key",), queue_id=3)
    with open_levels(tmp_path, "5s 8s", clock, dialect) as store:
        receipt = store.schedule(message, AtLevel(3))
        assert receipt.promised_ms == NOW_MS + 8_000
        assert [each.level for each in store.pending()] == [2]
        assert (tmp_path / "consumequeue" / LEVEL_TOPIC / "1").is_dir()
        assert len(store.advance(NOW_MS + 7_999)) == 0
        assert len(store.topic("orders").read(3, 0)) == 0
        clock.tick(8_000)
        assert len(store.advance(clock.now_ms())) == 1
        [found] = store.topic("orders").read(3, 0)
        assert (found.body, found.tags, found.keys) == (b"later", "tag", ("key",))
        assert (found.queue_id, found.queue_offset) == (3, 0)


def test_the_due_time_is_the_store_time_and_the_delay_of_the_level(tmp_path: Path) -> None:
    with open_levels(tmp_path, "5s 10s", ManualClock(NOW_MS)) as store:
        for level, delay_ms in ((1, 5_000), (2, 10_000)):
            receipt = store.schedule(Message("t", b"x"), AtLevel(level))
            assert receipt.due_ms == receipt.promised_ms == NOW_MS + delay_ms
            queue = store.live.queue(LEVEL_TOPIC, level - 1)
            assert queue.units(0, 1)["tags_code"].tolist() == [NOW_MS + delay_ms]


def test_an_empty_table_of_offsets_is_every_level_at_its_beginning(tmp_path: Path) -> None:
    offsets = tmp_path / "config" / "delayOffset.json"
    offsets.parent.mkdir()
    offsets.write_text('{"offsetTable":{}}')
    with open_levels(tmp_path, "5s 8s", ManualClock(NOW_MS)) as store:
        assert store.state.found.offsets == {}
        assert store.state.corrections == []


def test_ten_thousand_messages_of_four_levels_over_32_queues_are_all_there(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    body = b"Each of ten thousand, in small files"
    with open_levels(tmp_path, "1s 5s 10s", clock) as store:
        for number in range(10_000):
            level = number % 4
            due = AtLevel(level) if level else AfterMs(0)
            store.schedule(Message("AAA", body, tags="TAG1", queue_id=number % 32), due)
        came: Counter[int] = Counter()
        for seconds in (0, 1, 5, 10, 20):
            came[seconds] = len(store.advance(NOW_MS + seconds * 1_000))
        assert came == {0: 2_500, 1: 2_500, 5: 2_500, 10: 2_500, 20: 0}
        found = [
            each for queue_id in range(32) for each in store.topic("AAA").read(queue_id, 0, 10_000)
        ]
        assert len(found) == 10_000
        assert {each.body for each in found} == {body}
        assert len(list((tmp_path / "commitlog").iterdir())) > 10
