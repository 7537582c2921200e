# SPDX-License-Identifier: Apache-2.0
"""A queue whose files are lost is rebuilt from a log with a damaged record: where offsets, marks
and indexes count by places, the entries behind that keep theirs.
"""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from message_store import AfterMs, DelayStore, ManualClock, Message
from message_store.reading.consume_queue import is_neutral, read_queue
from tests.faults.engines import OPEN, abandon

START_MS = 1_793_000_000_000
ENGINES = pytest.mark.parametrize("engine", OPEN)
NEAR_MS, FAR_MS = 5_000, 3_600_000  # of a level each
MAGICS = b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"


def put(store: DelayStore, name: str, count: int, after_ms: int) -> list[str]:
    keys = [f"{name}{number:02}" for number in range(count)]
    for key in keys:
        store.schedule(Message("orders", b"x" * 300, unique_key=key), AfterMs(after_ms))
    return keys


def damage_record(path: Path, key: str, *, is_newest: bool = False) -> None:
    """Let the magic code of the first, or the newest, record of a message be none."""
    [log] = (path / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    word = b"UNIQ_KEY\x01" + key.encode() + b"\x02"
    there = data.rfind(word) if is_newest else data.find(word)
    magic = max(data.rfind(code, 0, there) for code in MAGICS)
    data[magic : magic + 4] = b"\0\0\0\1"
    log.write_bytes(data)


def advance(store: DelayStore, clock: ManualClock, by_ms: int) -> list[str | None]:
    clock.tick(by_ms)
    return [each.message.unique_key for each in store.advance(clock.now_ms())]


@ENGINES
@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "damaged"])
def test_what_waits_is_delivered_once_and_what_was_cancelled_never(
    engine: str, is_damaged: bool, tmp_path: Path
) -> None:
    """The record that is damaged is of a message that was delivered: nobody needs it."""
    clock, path = ManualClock(START_MS), tmp_path / "store"
    store = OPEN[engine](path, clock)
    put(store, "D", 6, NEAR_MS)
    advance(store, clock, NEAR_MS + 1_000)
    waits = put(store, "P", 12, FAR_MS)
    for number in range(
        6 if engine != "levels" else 0
    ):  # of a level's cancel the queue tells alone
        store.cancel(
            store.schedule(Message("orders", b"", unique_key=f"C{number}"), AfterMs(FAR_MS))
        )
    store.flush()
    waits += put(store, "Q", 3, FAR_MS)
    abandon(store)
    if is_damaged:
        damage_record(path, "D03")
    for topic in (path / "consumequeue").iterdir():
        if topic.name != "orders":
            shutil.rmtree(topic)
    again = OPEN[engine](path, clock)
    assert Counter(each.unique_key for each in again.pending()) == Counter(waits)
    assert Counter(advance(again, clock, 2 * FAR_MS)) == Counter(waits)
    again.close()


@ENGINES
def test_a_topic_gets_no_entry_that_no_consumer_can_take(engine: str, tmp_path: Path) -> None:
    """A broker reads its queue as it stands: what is behind the damage moves, as in its rebuild."""
    clock, path = ManualClock(START_MS), tmp_path / "store"
    store = OPEN[engine](path, clock)
    keys = put(store, "K", 20, NEAR_MS)
    advance(store, clock, NEAR_MS + 1_000)
    put(store, "LATER", 1, FAR_MS)
    store.flush()
    abandon(store)
    damage_record(path, "K03", is_newest=True)
    shutil.rmtree(path / "consumequeue" / "orders")
    for _ in range(3):  # and none a second time, by whoever opens it next
        store = OPEN[engine](path, clock)
        assert not [
            each for each in store.check() if "though the store had been closed" in str(each)
        ]
        store.close()
        units = read_queue(path / "consumequeue" / "orders" / "0").units
        assert not is_neutral(units).any()
        assert len(units) == len(keys) - 1
