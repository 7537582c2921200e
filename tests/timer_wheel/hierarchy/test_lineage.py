# SPDX-License-Identifier: Apache-2.0
"""What a hierarchical wheel delivers or rolls names the first record of its message: equal messages
come once each, whatever write a kill prevents, whatever retention took and wherever the index is.
"""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from message_store import AtMs, Cancellation, ManualClock, Message, Receipt, Severity
from message_store.columns.byte_column import int64s
from message_store.files.store_root import StoreRoot
from message_store.format.message import StoredMessage
from message_store.format.properties import TIMER_TOPIC
from message_store.reading.engine_choice import hierarchy_mark
from message_store.redelivery.batch import FROM_WHEEL, redeliver
from message_store.redelivery.lineage import first_offset
from message_store.writing.settings import StoreSettings
from tests.simulation.simulated_disk import Killed, full_disk
from timer_wheel import HierarchicalWheelStore
from timer_wheel.hierarchy import turn as hierarchy_turn
from timer_wheel.reading.ownership import index_path, read_active
from timer_wheel.reading.wheel_reader import read_wheel_store

START_MS = 1_793_000_000_000
HOUR_MS = 3_600_000
SMALL = StoreSettings(commit_log_file_bytes=16 << 10, queue_file_bytes=1_000)
FORGETFUL = attrs.evolve(SMALL, commit_log_file_bytes=4 << 10, retention_ms=6 * HOUR_MS)
NEAR_MS, FAR_MS = START_MS + 5_000, START_MS + 30 * HOUR_MS


def open_store(
    path: Path, clock: ManualClock, settings: StoreSettings = SMALL
) -> HierarchicalWheelStore:
    return HierarchicalWheelStore.open(path, clock=clock, settings=settings)


def lose_index(path: Path) -> None:
    shutil.rmtree(index_path(StoreRoot(path)), ignore_errors=True)


def put_equal(store: HierarchicalWheelStore, key: str, due_ms: int, count: int) -> list[Receipt]:
    message = Message("orders", b"body", unique_key=key)
    return [store.schedule(message, AtMs(due_ms)) for _ in range(count)]


def roll(store: HierarchicalWheelStore) -> None:
    """What is far from due gets a younger record, as if all log files were old."""
    now_ms = store.live.clock.now_ms()
    store._index.place_queued()
    store._index.waiting.reach(now_ms)
    store._renewal._renew(store.live.log.end, now_ms)


def delivered(store: HierarchicalWheelStore) -> list[StoredMessage]:
    return list(store.topic("orders").read(0, 0, 10_000))


def keys(store: HierarchicalWheelStore) -> Counter[str]:
    return Counter(each.unique_key or "" for each in delivered(store))


def accounted(store: HierarchicalWheelStore) -> Counter[str]:
    """What was delivered, and what waits."""
    assert [each for each in store.check() if each.severity is Severity.ERROR] == []
    return keys(store) + Counter(each.unique_key or "" for each in store.pending())


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rolls", [0, 1, 2])
def test_a_delivered_record_names_the_first_of_its_message(tmp_path: Path, rolls: int) -> None:
    clock = ManualClock(START_MS)
    with open_store(tmp_path, clock) as store:
        receipts = put_equal(store, "far", FAR_MS, 3)
        for _ in range(rolls):
            roll(store)
            for each in store.pending():
                message = store.live.log.record(each.commit_log_offset, each.size_bytes)
                assert first_offset(message) in {one.commit_log_offset for one in receipts}
        clock.tick(40 * HOUR_MS)
        assert len(store.advance(clock.now_ms())) == 3
        assert [first_offset(each) for each in delivered(store)] == [
            each.commit_log_offset for each in receipts
        ]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_was_due_at_once_keeps_its_time_when_the_clock_is_set_back(
    tmp_path: Path, is_cancelled: bool
) -> None:
    """The time of its record is its promise, and a younger record has another. Found by random
    runs.
    """
    clock = ManualClock(START_MS)
    with open_store(tmp_path, clock) as store:
        [far] = put_equal(store, "far", FAR_MS, 1)
        [due] = put_equal(store, "due", START_MS - 1, 1)
        if is_cancelled:
            assert store.cancel(due) is Cancellation.CANCELLED
        clock.tick(-3 * HOUR_MS)
        roll(store)
        waits = [] if is_cancelled else [due.promised_ms]
        assert sorted(each.due_ms for each in store.pending()) == [*waits, far.promised_ms]
        clock.tick(3 * HOUR_MS)
        assert len(store.advance(clock.now_ms())) == len(waits)


def test_the_name_outlives_the_first_record(tmp_path: Path) -> None:
    """Retention takes its file, and that of the next record too."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock, FORGETFUL)
    firsts = {each.commit_log_offset for each in put_equal(store, "far", FAR_MS, 3)}
    roots = []
    for _ in range(2):
        for _ in range(2):
            put_equal(store, "soon", clock.now_ms() + 1_000, 20)
            clock.tick(7 * HOUR_MS)
            store.advance(clock.now_ms())
        roots.append(store.live.log.min_offset)
    assert max(firsts) < roots[0] < roots[1]
    store.abandon()
    lose_index(tmp_path)
    with open_store(tmp_path, clock, FORGETFUL) as store:
        assert len(list(store.pending())) == 3
        clock.tick(10 * HOUR_MS)
        store.advance(clock.now_ms())
        came = [each for each in delivered(store) if each.unique_key == "far"]
        assert {first_offset(each) for each in came} == firsts
        assert len(came) == 3


def test_a_cancel_outlives_the_first_record_of_its_marker(tmp_path: Path) -> None:
    """The database still has where that was; nothing is damaged."""
    clock = ManualClock(START_MS)
    with open_store(tmp_path, clock, FORGETFUL) as store:
        [taken] = put_equal(store, "taken", FAR_MS, 1)
        assert store.cancel(taken) is Cancellation.CANCELLED
        put_equal(store, "far", FAR_MS, 1)
    store = open_store(tmp_path, clock, FORGETFUL)
    for _ in range(3):
        put_equal(store, "soon", clock.now_ms() + 1_000, 20)
        clock.tick(7 * HOUR_MS)
        store.advance(clock.now_ms())
    assert store.live.log.min_offset > taken.commit_log_offset
    store.abandon()
    with open_store(tmp_path, clock, FORGETFUL) as store:
        assert store.check() == []
        assert store.cancel(taken) is Cancellation.CANCELLED
        assert [each.message.unique_key for each in store.advance(FAR_MS)] == ["far"]


# --- kills ----------------------------------------------------------------------------------------


Act = Callable[[HierarchicalWheelStore, ManualClock], object]


def roll_twice(store: HierarchicalWheelStore, _: ManualClock) -> None:
    roll(store)
    roll(store)


def deliver(store: HierarchicalWheelStore, clock: ManualClock) -> None:
    store.advance(clock.now_ms())


def roll_and_deliver(store: HierarchicalWheelStore, clock: ManualClock) -> None:
    roll(store)
    store.flush()
    roll(store)
    store.advance(FAR_MS)


def close(store: HierarchicalWheelStore, clock: ManualClock) -> None:
    store.advance(clock.now_ms())
    store.close()


ACTS: list[Act] = [deliver, roll_twice, roll_and_deliver, close]
QUICK = (deliver,)
BY_TIER = [act if act in QUICK else pytest.param(act, marks=pytest.mark.check) for act in ACTS]


def prepared(path: Path, *, rolls: int) -> tuple[ManualClock, Counter[str]]:
    """A store with equal messages of which some were delivered, some rolled and one cancelled, and
    what will have been delivered in the end.
    """
    clock = ManualClock(START_MS)
    with open_store(path, clock) as store:
        put_equal(store, "near", NEAR_MS, 2)
        far = put_equal(store, "far", FAR_MS, 2)
        for _ in range(rolls):
            roll(store)
        assert len(store.advance(NEAR_MS)) == 2  # ahead of the clock: more of them follow
        taken = put_equal(store, "taken", FAR_MS, 1)
        assert store.cancel(taken[0]) is Cancellation.CANCELLED
    store = open_store(path, clock)
    put_equal(store, "near", NEAR_MS, 2)
    far += put_equal(store, "far", FAR_MS, 2)
    store.flush()
    put_equal(store, "near", NEAR_MS, 1)
    store.abandon()
    clock.tick(6_000)
    return clock, Counter(near=5, far=len(far))


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "index lost"])
@pytest.mark.parametrize("rolls", [0, 2], ids=["first records", "rolled twice"])
@pytest.mark.parametrize("act", BY_TIER)
def test_equal_messages_that_are_killed_at_each_write_come_once_each(
    tmp_path: Path, act: Act, rolls: int, is_lost: bool
) -> None:
    clock, expected = prepared(tmp_path / "prepared", rolls=rolls)
    for number in itertools.count():
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "prepared", path)
        store = open_store(path, clock)
        with full_disk(path, number, is_kill=True) as disk, suppress(Killed):
            act(store, clock)
        store.abandon()
        assert_each_comes_once(path, clock, expected, is_lost=is_lost)
        shutil.rmtree(path)
        if not disk.refused:
            break


@pytest.mark.check
@pytest.mark.parametrize("is_lost", [False, True], ids=["", "index lost"])
@pytest.mark.parametrize("act", ACTS)
def test_equal_messages_of_which_an_opening_is_killed_at_each_write_come_once_each(
    tmp_path: Path, act: Act, is_lost: bool
) -> None:
    clock, expected = prepared(tmp_path / "prepared", rolls=1)
    store = open_store(tmp_path / "prepared", clock)
    act(store, clock)
    store.abandon()
    for number in itertools.count(step=3):  # those in between write the same files
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "prepared", path)
        if is_lost:
            lose_index(path)
        with full_disk(path, number, is_kill=True) as disk, suppress(Killed):
            open_store(path, clock).abandon()
        assert_each_comes_once(path, clock, expected, is_lost=False)
        shutil.rmtree(path)
        if not disk.refused:
            break


def assert_each_comes_once(
    path: Path, clock: ManualClock, expected: Counter[str], *, is_lost: bool
) -> None:
    if is_lost:
        lose_index(path)
    else:
        assert_a_reader_agrees(path, clock, expected)
    store = open_store(path, clock)
    assert accounted(store) == expected
    store.advance(FAR_MS)
    assert keys(store) == expected
    store.abandon()
    with open_store(path, clock) as store:
        assert len(store.advance(FAR_MS)) == 0
        assert accounted(store) == expected


def assert_a_reader_agrees(path: Path, clock: ManualClock, expected: Counter[str]) -> None:
    with open_store(path, clock) as store:
        came = keys(store)
    state = read_wheel_store(StoreRoot(path), now_ms=clock.now_ms(), topic_in_delete_key=None)
    assert len(state.pending) == (expected - came).total()


def test_a_message_that_rolled_and_was_delivered_is_looked_for_nowhere(tmp_path: Path) -> None:
    """The database still has its first record, in an hour far away, and two later ones name it."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    put_equal(store, "far", FAR_MS, 2)
    store.flush()
    roll(store)
    put_equal(store, "farther", FAR_MS + 20 * HOUR_MS, 2)
    roll(store)
    assert len(store.advance(FAR_MS)) == 2
    store.abandon()
    with open_store(tmp_path, clock) as store:
        assert accounted(store) == Counter(far=2, farther=2)
        [offsets] = {tuple(sorted(each.commit_log_offset for each in store.pending()))}
        units = store.live.queue(TIMER_TOPIC, 0).units(0, 100)
        assert list(offsets) == int64s(units["commit_log_offset"])[-2:].tolist()


# --- stores of earlier versions -------------------------------------------------------------------


def nameless(*given: Any, **more: Any) -> Any:
    """How earlier versions delivered."""
    if given[3] is FROM_WHEEL:
        del more["prepared_offsets"]
    return redeliver(*given, **more)


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "index lost"])
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.check)])
def test_a_store_of_an_earlier_version_delivers_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, end: str, is_lost: bool
) -> None:
    """Its deliveries name nothing. They are matched once, whatever is lost later."""
    path = tmp_path / "store"
    with monkeypatch.context() as patch:
        patch.setattr(hierarchy_turn, "redeliver", nameless)
        clock, expected = prepared(path, rolls=1)
        store = open_store(path, clock)
        assert len(store.advance(clock.now_ms())) == 3
        put_equal(store, "near", NEAR_MS + 20_000, 1)
        put_equal(store, "late", NEAR_MS + 20_000, 1)
        store.close() if end == "closed" else store.abandon()
    expected += Counter(near=1, late=1)
    mark = hierarchy_mark(StoreRoot(path))
    facts = json.loads(mark.read_bytes())
    assert facts.pop("names") is True
    mark.write_text(json.dumps(facts))
    for number in itertools.count(step=step):
        copy = tmp_path / str(number)
        shutil.copytree(path, copy)
        if is_lost:
            lose_index(copy)
        with full_disk(copy, number, is_kill=True) as disk, suppress(Killed):
            open_store(copy, clock).abandon()
        assert_each_comes_once(copy, clock, expected, is_lost=is_lost)
        active = read_active(StoreRoot(copy))
        assert active is not None
        assert active.names
        assert_each_comes_once(copy, clock, expected, is_lost=True)
        shutil.rmtree(copy)
        if not disk.refused:
            break
