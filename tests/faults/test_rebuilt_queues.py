# SPDX-License-Identifier: Apache-2.0
"""A queue whose files are lost is rebuilt from a log with a damaged record: where offsets, marks
and indexes count by places, the entries behind that keep theirs.
"""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from legacy_levels.backlog.backlog import read_backlog
from legacy_levels.backlog.lost_queues import gone_queues
from legacy_levels.engine.store import LevelStore
from message_store import AfterMs, Cancellation, DelayStore, ManualClock, Message, Receipt
from message_store.base.errors import OptionsError
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.properties import LEVEL_TOPIC
from message_store.reading.consume_queue import is_neutral, read_queue
from migrate.look.pending import pending_messages
from migrate.report.report import BadRecord
from tests.faults.engines import OPEN, SMALL, abandon

START_MS = 1_793_000_000_000
ENGINES = pytest.mark.parametrize("engine", OPEN)
NEAR_MS, FAR_MS = 5_000, 3_600_000  # of a level each
MAGICS = b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"


def put_one(store: DelayStore, key: str, after_ms: int) -> Receipt:
    return store.schedule(Message("orders", b"x" * 300, unique_key=key), AfterMs(after_ms))


def put(store: DelayStore, name: str, count: int, after_ms: int) -> list[str]:
    keys = [f"{name}{number:02}" for number in range(count)]
    for key in keys:
        put_one(store, key, after_ms)
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
    lose_queues(path)
    again = OPEN[engine](path, clock)
    assert Counter(each.unique_key for each in again.pending()) == Counter(waits)
    assert Counter(advance(again, clock, 2 * FAR_MS)) == Counter(waits)
    again.close()


def lose_queues(path: Path) -> None:
    """Take away the queues in which messages wait."""
    for topic in (path / "consumequeue").iterdir():
        if topic.name != "orders":
            shutil.rmtree(topic)


def looked_at(path: Path, clock: ManualClock) -> Counter[str | None]:
    """The unique keys of what a listing shows as pending."""
    listed = pending_messages(path, now_ms=clock.now_ms())
    return Counter(each.unique_key for each in listed if not isinstance(each, BadRecord))


@ENGINES
@pytest.mark.parametrize("is_closed", [False, True], ids=["killed", "closed"])
def test_a_message_that_was_rescheduled_waits_for_one_time(
    engine: str, is_closed: bool, tmp_path: Path
) -> None:
    """Of a level the queue alone shows a cancel, but the newer record names the older one."""
    clock, path = ManualClock(START_MS), tmp_path / "store"
    store = OPEN[engine](path, clock)
    near = [put_one(store, f"N{number}", NEAR_MS) for number in range(3)]
    far = [put_one(store, f"F{number}", FAR_MS) for number in range(3)]
    store.reschedule(near[1], AfterMs(FAR_MS))
    store.flush()
    moved = store.reschedule(far[1], AfterMs(NEAR_MS))
    assert isinstance(moved, Receipt)
    store.reschedule(moved, AfterMs(FAR_MS // 2))
    put_one(store, "Q", FAR_MS)
    store.close() if is_closed else abandon(store)
    lose_queues(path)
    keys = {"N0", "N1", "N2", "F0", "F1", "F2", "Q"}
    assert looked_at(path, clock) == Counter(keys)
    again = OPEN[engine](path, clock)
    assert Counter(advance(again, clock, NEAR_MS + 1_000)) == Counter(["N0", "N2"])
    again.close()
    again = OPEN[engine](path, clock)
    rest = Counter(keys - {"N0", "N2"})
    assert Counter(each.unique_key for each in again.pending()) == rest
    assert Counter(advance(again, clock, 2 * FAR_MS)) == rest
    again.close()


@ENGINES
@pytest.mark.parametrize("is_closed", [False, True], ids=["killed", "closed"])
def test_what_was_cancelled_before_the_offset_of_a_lost_queue_is_not_shown(
    engine: str, is_closed: bool, tmp_path: Path
) -> None:
    """The opening goes on from where the levels stood, and so does a listing."""
    clock, path = ManualClock(START_MS), tmp_path / "store"
    store = OPEN[engine](path, clock)
    store.flush()
    store.cancel(put_one(store, "C", NEAR_MS))
    put(store, "N", 3, NEAR_MS)
    for _ in range(3):  # the levels save their offsets every ten seconds
        advance(store, clock, 10_000)
    waits = put(store, "P", 2, NEAR_MS)
    store.close() if is_closed else abandon(store)
    lose_queues(path)
    assert looked_at(path, clock) == Counter(waits)
    again = OPEN[engine](path, clock)
    assert Counter(each.unique_key for each in again.pending()) == Counter(waits)
    assert Counter(advance(again, clock, 2 * NEAR_MS)) == Counter(waits)
    again.close()


def lose_level(path: Path, level: int) -> None:
    """Take away the queue of a level."""
    shutil.rmtree(path / "consumequeue" / LEVEL_TOPIC / str(level - 1))


def test_records_tell_of_others_before_them_that_a_lost_queue_had(tmp_path: Path) -> None:
    """A reschedule makes the queues durable, before any mark knows of their entries."""
    clock, path = ManualClock(START_MS), tmp_path / "store"
    store = OPEN["levels"](path, clock)
    put_one(store, "M0", FAR_MS)
    moved = put_one(store, "M1", 60_000)
    put_one(store, "N", 1_000)
    store.reschedule(moved, AfterMs(FAR_MS))
    advance(store, clock, 1_100)
    abandon(store)
    lose_level(path, 17)
    assert looked_at(path, clock) == Counter(["M0", "M1"])
    again = OPEN["levels"](path, clock)
    assert Counter(each.unique_key for each in again.pending()) == Counter(["M0", "M1"])
    again.close()


@pytest.mark.parametrize("is_closed", [False, True], ids=["killed", "closed"])
def test_a_lost_queue_is_read_with_the_table_of_its_day(tmp_path: Path, is_closed: bool) -> None:
    """No entry shows the delay any more; by another table messages would be early."""
    table, short = DelayLevels.parse("1s 5s 10m"), DelayLevels.parse("1s 5s")
    clock, path = ManualClock(START_MS), tmp_path / "store"
    store = LevelStore.open(path, clock=clock, settings=SMALL, levels=table)
    put(store, "N", 2, NEAR_MS)
    put(store, "F", 2, 600_000)
    store.flush()
    advance(store, clock, NEAR_MS + 1_000)
    store.flush()
    store.close() if is_closed else abandon(store)
    lose_level(path, 3)
    for other in (None, short):
        with pytest.raises(OptionsError, match=r"10m|level 3"):
            read_backlog(path, after_crash=True, level_table=other)
        with pytest.raises(OptionsError, match=r"10m|level 3"):
            LevelStore.open(path, clock=clock, settings=SMALL, levels=other)
    found = read_backlog(path, after_crash=True, level_table=table)
    assert found.due_ms.tolist() == [START_MS + 600_000] * 2


def test_what_was_moved_elsewhere_stays_away_though_a_mark_is_older(tmp_path: Path) -> None:
    """Neither an older mark nor the place of a record in the log brings it back."""
    clock, path = ManualClock(START_MS), tmp_path / "store"
    store = OPEN["levels"](path, clock)
    put(store, "F", 2, FAR_MS)
    store.flush()
    put(store, "Q", 2, FAR_MS)
    abandon(store)
    lose_level(path, 17)
    for each in (path / "config").glob("delayOffset.json*"):
        each.unlink()
    for moved in range(5):
        note = path / "delaywheel/backup-1/change.json"
        note.parent.mkdir(exist_ok=True)
        note.write_text(json.dumps({"state": "done", "report": {"offsets": {"17": moved}}}))
        found = read_backlog(path, after_crash=True)
        assert found.total("pending") == 4 - moved


def test_a_replaced_message_was_cancelled_and_not_delivered(tmp_path: Path) -> None:
    """What became of it is told by the entry that the rebuilt queue gets."""
    clock, path = ManualClock(START_MS), tmp_path / "store"
    store = OPEN["levels"](path, clock)
    older = put_one(store, "K", NEAR_MS)
    store.reschedule(older, AfterMs(FAR_MS))
    put_one(store, "Q", FAR_MS)
    abandon(store)
    lose_queues(path)
    again = OPEN["levels"](path, clock)
    assert again.cancel(older) is Cancellation.CANCELLED
    assert not [each for each in again.check() if "delivered" in each.text]
    again.close()


@ENGINES
@pytest.mark.parametrize("is_closed", [False, True], ids=["killed", "closed"])
def test_what_was_flushed_is_shown_though_its_queue_is_gone(
    engine: str, is_closed: bool, tmp_path: Path
) -> None:
    """The topic's queue is there, and leads to newer records; an empty level has no queue."""
    clock, path = ManualClock(START_MS), tmp_path / "store"
    store = OPEN[engine](path, clock)
    waits = put(store, "F", 2, FAR_MS)
    put(store, "N", 2, NEAR_MS)
    store.flush()
    advance(store, clock, 2 * NEAR_MS)
    waits += put(store, "Q", 2, FAR_MS)
    store.flush()
    waits += put(store, "R", 2, FAR_MS)
    store.close() if is_closed else abandon(store)
    lose_queues(path)
    assert looked_at(path, clock) == Counter(waits)
    if engine == "levels":
        gone = {each.level for each in gone_queues(StoreRoot(path))}
        assert gone == {2, 17}
        assert read_backlog(path, after_crash=True).total("pending") == len(waits)
    again = OPEN[engine](path, clock)
    assert Counter(each.unique_key for each in again.pending()) == Counter(waits)
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


@pytest.mark.parametrize("is_gone", [False, True], ids=["older", "gone"])
def test_offsets_that_are_older_than_the_mark_bring_nothing_back(
    is_gone: bool, tmp_path: Path
) -> None:
    """A kill came between the two, and the queue is of before the cancels, as a loss of power may
    leave it.
    """
    clock, path = ManualClock(START_MS), tmp_path / "store"
    table, queues = path / "config/delayOffset.json", path / f"consumequeue/{LEVEL_TOPIC}"
    store = OPEN["levels"](path, clock)
    cancelled = [put_one(store, f"C{number}", FAR_MS) for number in range(3)]
    waits = put(store, "P", 3, FAR_MS)
    store.flush()
    older_table, older = table.read_bytes(), shutil.copytree(queues, tmp_path / "older")
    for receipt in cancelled:
        assert store.cancel(receipt) is Cancellation.CANCELLED
    advance(store, clock, 1_000)
    store.flush()
    abandon(store)
    shutil.rmtree(queues)
    shutil.copytree(older, queues)
    table.unlink() if is_gone else table.write_bytes(older_table)
    assert looked_at(path, clock) == Counter(waits)
    again = OPEN["levels"](path, clock)
    assert Counter(each.unique_key for each in again.pending()) == Counter(waits)
    again.close()
