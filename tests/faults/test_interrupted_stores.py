# SPDX-License-Identifier: Apache-2.0
"""Stores that are stopped by something else than a disk: Ctrl-C between a delivery and
its account, a sync that fails once, a retention that takes the last record that was placed.
"""

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from legacy_levels import LevelStore
from legacy_levels.engine import delivery as level_delivery
from legacy_levels.engine.cursor import LevelCursor
from legacy_levels.engine.rules import LevelRules
from message_store import AfterMs, AtMs, Cancellation, DelayStore, ManualClock, Message
from message_store.base.errors import TargetError
from message_store.files.store_root import StoreRoot
from message_store.writing import store as live_store_module
from message_store.writing.queue import LiveQueue
from tests.faults.engines import (
    ENGINES,
    SMALL,
    abandon,
    open_hierarchy,
    open_levels,
    open_wheel,
)
from tests.simulation.simulated_disk import full_disk
from timer_wheel.hierarchy.hands import WaitingMessages
from timer_wheel.wheel.store import WheelStore
from timer_wheel.wheel.turn import Turning

START_MS = 1_793_000_000_000
HOUR_MS = 3_600_000


Open = Callable[[Path, ManualClock], DelayStore]

both_engines = pytest.mark.parametrize("opened", [open_levels, open_wheel], ids=["levels", "wheel"])


def raising(error: BaseException) -> Callable[..., Any]:
    def stop(*_args: object, **_keywords: object) -> None:
        raise error

    return stop


@pytest.mark.parametrize(
    ("opened", "owner", "name"),
    [
        (open_wheel, Turning, "_move_on"),
        (open_wheel, LiveQueue, "append"),
        (open_levels, LevelCursor, "delivered"),
        (open_levels, LiveQueue, "append"),
    ],
    ids=["wheel before its account", "wheel before queues", "levels before theirs", "levels too"],
)
def test_an_interrupt_in_a_delivery_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Open, owner: type, name: str
) -> None:
    clock = ManualClock(START_MS)
    store = opened(tmp_path / "store", clock)
    promised_ms = store.schedule(Message("orders", b"once"), AfterMs(1_000)).promised_ms
    store.flush()
    clock.tick(promised_ms - START_MS)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            store.advance(promised_ms)
    with pytest.raises(TargetError, match="open it again"):
        store.schedule(Message("orders", b"later"), AfterMs(1_000))
    store.close()
    with opened(tmp_path / "store", clock) as again:
        again.advance(promised_ms + 60_000)
        assert [each.body for each in again.topic("orders").read(0, 0)] == [b"once"]


@pytest.mark.parametrize("name", ["add", "_load", "_keep_fresh", "take_due", "written"])
def test_an_interrupt_while_messages_are_moved_in_memory_neither_loses_nor_repeats_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What has left one place may not have come to the other: nothing of that is written."""
    clock = ManualClock(START_MS)
    store = open_hierarchy(tmp_path, clock)
    bodies = [f"message {number}".encode() for number in range(6)]
    for number, body in enumerate(bodies):
        store.schedule(Message("orders", body), AfterMs([2_000, 5_000, 2 * HOUR_MS][number % 3]))
        if number == 2:
            store.flush()  # the first three stand in the database
            store.advance(START_MS)
    store.next_due_ms()  # and three in memory
    store.schedule(Message("orders", b"in the queue"), AfterMs(1_000))
    clock.tick(3_000)
    done = getattr(WaitingMessages, name)

    def do_and_stop(*given: Any) -> None:
        done(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WaitingMessages, name, do_and_stop)
        with pytest.raises(KeyboardInterrupt):
            store.flush() if name == "written" else store.advance(clock.now_ms())
    with pytest.raises(TargetError, match="open it again"):
        store.schedule(Message("orders", b"later"), AfterMs(1_000))
    store.close()
    with open_hierarchy(tmp_path, clock) as again:
        again.advance(clock.now_ms() + 3 * HOUR_MS)
        found = [each.body for each in again.topic("orders").read(0, 0)]
        assert sorted(found) == sorted([*bodies, b"in the queue"])


def test_what_an_interrupt_left_under_way_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asynchronous delivery starts nothing behind what never comes to an end."""
    clock, rules = ManualClock(START_MS), LevelRules(async_delivery=True)
    with LevelStore.open(tmp_path, clock=clock, settings=SMALL, rules=rules) as store:
        store.schedule(Message("orders", b"first"), AfterMs(1_000))
        clock.tick(1_000)
        with monkeypatch.context() as patch:
            patch.setattr(level_delivery, "redeliver", raising(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                store.advance(clock.now_ms())
        store.schedule(Message("orders", b"second"), AfterMs(1_000))
        clock.tick(1_000)
        found = [each.message.body for each in store.advance(clock.now_ms())]
        assert found == [b"first", b"second"]


@pytest.mark.parametrize("delay_ms", [1_000, 0, -1_500])
def test_what_waits_again_after_a_kill_can_be_taken_back_and_does_not_come_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay_ms: int
) -> None:
    """A wheel that repeats as brokers do does not know what the slot in hand has delivered."""
    clock, open_one = ManualClock(START_MS), ENGINES["wheel"].open
    store = open_one(tmp_path, clock, True)
    receipt = store.schedule(Message("orders", b"once"), AtMs(START_MS + delay_ms))
    clock.tick(receipt.promised_ms - START_MS)
    with monkeypatch.context() as patch:
        patch.setattr(Turning, "_move_on", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            store.advance(clock.now_ms())
    abandon(store)
    store = open_one(tmp_path, clock, True)
    assert len(list(store.pending())) == 1
    assert store.cancel(receipt) is Cancellation.CANCELLED
    abandon(store)
    with open_one(tmp_path, clock, True) as again:
        again.advance(clock.now_ms() + 60_000)
        assert [each.body for each in again.topic("orders").read(0, 0)] == [b"once"]
        assert list(again.pending()) == []


def test_nothing_is_taken_back_from_levels_that_are_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START_MS)
    store = open_levels(tmp_path / "store", clock)
    receipt = store.schedule(Message("orders", b"delivered"), AfterMs(1_000))
    clock.tick(receipt.promised_ms - START_MS)
    with monkeypatch.context() as patch:
        patch.setattr(LiveQueue, "append", raising(TargetError("no room")))
        with pytest.raises(TargetError, match="no room"):
            store.advance(clock.now_ms())
    with pytest.raises(TargetError, match="open it again"):
        store.cancel(receipt)
    store.close()
    with open_levels(tmp_path / "store", clock) as again:
        again.advance(clock.now_ms())
        assert again.cancel(receipt) is Cancellation.ALREADY_DELIVERED


@both_engines
def test_topics_that_could_not_be_written_are_written_by_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Open
) -> None:
    clock = ManualClock(START_MS)
    with opened(tmp_path / "store", clock) as store:
        store.schedule(Message("orders", b""), AfterMs(1_000))
        with monkeypatch.context() as patch:
            patch.setattr(live_store_module, "merge_topics", raising(TargetError("no room")))
            with pytest.raises(TargetError, match="no room"):
                store.flush()
        store.flush()
        topics = StoreRoot(tmp_path / "store").config_file("topics.json").read_text("utf-8")
        assert '"orders"' in topics


def test_a_wheel_finds_its_place_when_retention_took_the_last_record_that_was_flushed(
    tmp_path: Path,
) -> None:
    """A hundred hours without a flush, then a kill: the last unit that counts has no record."""
    clock = ManualClock(START_MS)
    store = WheelStore.open(tmp_path / "store", clock=clock, settings=SMALL)
    store.schedule(Message("orders", b"flushed"), AfterMs(1_000))
    store.advance(START_MS + 1_000)
    store.flush()
    for _ in range(25):
        clock.tick(4 * HOUR_MS)
        store.schedule(Message("orders", b"x" * 12_000), AfterMs(1_000))
        store.advance(clock.now_ms() + 1_000)
    waiting = [store.schedule(Message("orders", b"waits"), AfterMs(10 * HOUR_MS)) for _ in range(7)]
    store.advance(clock.now_ms() + 1_000)
    assert store.live.log.min_offset > 0
    abandon(store)
    with WheelStore.open(tmp_path / "store", clock=clock, settings=SMALL) as again:
        assert len(list(again.pending())) == len(waiting)
        assert len(again.advance(clock.now_ms() + 11 * HOUR_MS)) == len(waiting)


@pytest.mark.check
@pytest.mark.parametrize("is_torn", [False, True])
def test_wherever_a_close_is_stopped_equal_messages_on_a_wheel_are_each_delivered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_torn: bool
) -> None:
    """One has rolled right before a kill, the other is to roll in the next slot; and whoever opened
    the store after it is killed too, while it closes.
    """
    for full_at in itertools.count():
        folder, clock = tmp_path / str(full_at), ManualClock(START_MS)
        store = open_wheel(folder, clock, roll_window_slots=50)
        twin, due = Message("orders", b"twin", unique_key="TWIN"), AtMs(START_MS + 100_000)
        store.schedule(twin, due)
        assert len(store.advance(START_MS)) == 0
        store.schedule(twin, due)
        clock.tick(1_000)
        assert len(store.advance(clock.now_ms())) == 0
        store.flush()
        clock.tick(50_000)
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Turning, "_move_on", raising(KeyboardInterrupt()))
            store.advance(clock.now_ms())
        abandon(store)
        store = open_wheel(folder, clock, roll_window_slots=50)
        with full_disk(folder, full_at, is_torn=is_torn) as disk, suppress(TargetError):
            store.close()
        with open_wheel(folder, clock, roll_window_slots=50) as again:
            assert len(list(again.pending())) == 2, full_at
            clock.tick(60_000)
            again.advance(clock.now_ms())
            assert len(again.topic("orders").read(0, 0)) == 2, full_at
            assert list(again.pending()) == []
        if not disk.refused:
            break
    assert full_at > 5
