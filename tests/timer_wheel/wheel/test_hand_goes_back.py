# SPDX-License-Identifier: Apache-2.0
"""What was placed, cancelled or done by a hand that a loss of power, or a rebuild, puts back: the
units and marks of that hand are right no more, and the messages are what they were.
"""

from collections.abc import Iterable
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, AtMs, Cancellation, ManualClock, Message
from message_store.writing.settings import StoreSettings
from timer_wheel import WheelStore

START_MS = 1_793_000_000_000
DAY_MS = 86_400_000
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=1000, timer_log_file_bytes=20 * 52 + 30
)
FAITHFUL = attrs.evolve(SMALL, repeat_after_kill=True)


def open_store(path: Path, clock: ManualClock, settings: StoreSettings = FAITHFUL) -> WheelStore:
    return WheelStore.open(path, clock=clock, settings=settings, roll_window_slots=60)


def message(key: str) -> Message:
    return Message("orders", b"", unique_key=key)


def keys(found: Iterable[object]) -> list[str]:
    return [each.message.unique_key for each in found]  # type: ignore[attr-defined]


def waiting(store: WheelStore) -> list[str | None]:
    return [each.unique_key for each in store.pending()]


def with_one_delivered(path: Path, clock: ManualClock) -> WheelStore:
    store = open_store(path, clock)
    store.schedule(message("FIRST"), AfterMs(6_000))
    clock.tick(6_000)
    assert keys(store.advance(clock.now_ms())) == ["FIRST"]
    return store


class Flushed:
    """Log and queues as they are now: what a loss of power leaves of them."""

    def __init__(self, path: Path) -> None:
        found = [
            each for name in ("commitlog", "consumequeue") for each in (path / name).rglob("*")
        ]
        self._files = {each: each.read_bytes() for each in found if each.is_file()}

    def come_back(self) -> None:
        for path, content in self._files.items():
            path.write_bytes(content)


def test_what_was_put_behind_a_hand_comes_where_the_power_took_its_deliveries(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    store = with_one_delivered(tmp_path, clock)
    for key in ("A", "B", "C"):
        store.schedule(message(key), AtMs(START_MS))
    store.flush()
    flushed = Flushed(tmp_path)
    clock.tick(60_000)
    assert keys(store.advance(clock.now_ms())) == ["A", "B", "C"]
    store.abandon()
    flushed.come_back()
    again = open_store(tmp_path, clock)
    assert waiting(again) == ["A", "B", "C"]
    assert keys(again.advance(clock.now_ms())) == ["A", "B", "C"]
    assert not again.check()
    again.close()


def test_what_was_put_behind_a_hand_keeps_its_promise(tmp_path: Path) -> None:
    """It was due when that hand placed it, and not when it was stored."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    store.schedule(message("PLACED"), AfterMs(30_000))
    store.advance(clock.now_ms())
    store.schedule(message("OVERDUE"), AtMs(START_MS))
    store.schedule(message("LATER"), AfterMs(50_000))
    store.flush()
    flushed = Flushed(tmp_path)
    clock.tick(60_000)
    assert len(keys(store.advance(clock.now_ms()))) == 3
    store.abandon()
    flushed.come_back()
    clock.tick(-40_000)
    again = open_store(tmp_path, clock)
    assert keys(again.advance(START_MS + 20_000)) == ["OVERDUE"]
    assert keys(again.advance(START_MS + 49_999)) == ["PLACED"]
    assert keys(again.advance(START_MS + 60_000)) == ["LATER"]
    again.close()


@pytest.mark.parametrize("is_closed", [False, True], ids=["flushed", "closed"])
def test_what_was_delivered_and_flushed_is_not_repeated(tmp_path: Path, is_closed: bool) -> None:
    clock = ManualClock(START_MS)
    store = with_one_delivered(tmp_path, clock)
    store.flush()
    if is_closed:
        store.close()
        clock.tick(100)
        store = open_store(tmp_path, clock)
    store.schedule(message("OVERDUE"), AtMs(START_MS))
    store.flush()
    flushed = Flushed(tmp_path)
    clock.tick(100)
    assert keys(store.advance(clock.now_ms())) == ["OVERDUE"]
    store.abandon()
    flushed.come_back()
    clock.tick(60_000)
    again = open_store(tmp_path, clock)
    assert keys(again.advance(clock.now_ms())) == ["OVERDUE"]
    again.close()


def test_what_was_placed_and_delivered_since_the_flush_is_known_where_the_hand_goes_back(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    store.schedule(message("LOST"), AfterMs(20_000))
    store.advance(clock.now_ms())
    store.flush()
    cancelled = store.schedule(message("CANCELLED"), AfterMs(5_000))
    store.schedule(message("DELIVERED"), AfterMs(5_000))
    store.advance(clock.now_ms())
    assert store.cancel(cancelled) is Cancellation.CANCELLED
    clock.tick(8_000)
    assert keys(store.advance(clock.now_ms())) == ["DELIVERED"]
    kept = Flushed(tmp_path)
    clock.tick(20_000)
    assert keys(store.advance(clock.now_ms())) == ["LOST"]
    store.abandon()
    kept.come_back()
    again = open_store(tmp_path, clock)
    assert waiting(again) == ["LOST"]
    assert keys(again.advance(START_MS + 60_000)) == ["LOST"]
    again.close()


def test_a_marker_that_was_over_before_it_rolled_holds_nothing(tmp_path: Path) -> None:
    """One advance passes its slot and its end: it is not rolled, and no record ever names it."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock)
    cancelled = store.schedule(message("CANCELLED"), AfterMs(100_000))
    store.schedule(message("FAR"), AfterMs(300_000))
    for key, after_ms in (("X1", 58_000), ("X2", 70_000), ("X3", 90_000)):
        store.schedule(message(key), AfterMs(after_ms))
    store.advance(clock.now_ms())
    clock.tick(25_000)
    store.advance(clock.now_ms())
    assert store.cancel(cancelled) is Cancellation.CANCELLED
    store.advance(clock.now_ms())
    store.flush()
    clock.tick(125_000)
    assert keys(store.advance(clock.now_ms())) == ["X1", "X2", "X3"]
    clock.tick(60_000)
    assert not keys(store.advance(clock.now_ms()))
    store.abandon()
    again = open_store(tmp_path, clock)
    assert waiting(again) == ["FAR"]
    assert not keys(again.advance(clock.now_ms()))
    assert keys(again.advance(START_MS + 900_000)) == ["FAR"]
    again.close()


@pytest.mark.parametrize("settings", [SMALL, FAITHFUL], ids=["once", "repeats"])
def test_a_cancel_outlives_the_roll_of_its_marker_that_the_power_took(
    tmp_path: Path, settings: StoreSettings
) -> None:
    """The marker is parked earlier than its message, and behind the hand then."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock, settings)
    receipt = store.schedule(message("M"), AfterMs(100_000))
    store.advance(clock.now_ms())
    clock.tick(25_000)
    store.advance(clock.now_ms())
    assert store.cancel(receipt) is Cancellation.CANCELLED
    store.flush()
    flushed = Flushed(tmp_path)
    clock.tick(32_000)
    assert not keys(store.advance(clock.now_ms()))
    store.abandon()
    flushed.come_back()
    again = open_store(tmp_path, clock, settings)
    assert not waiting(again)
    assert not keys(again.advance(START_MS + 200_000))
    again.close()


def test_a_cancel_of_another_does_not_pass_a_marker_that_is_to_roll(tmp_path: Path) -> None:
    """After a rest of more than a ring, where a slot between the two holds the hand."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock, SMALL)
    receipt = store.schedule(message("M"), AfterMs(100_000))
    store.schedule(message("BETWEEN"), AfterMs(58_000))
    store.advance(clock.now_ms())
    clock.tick(25_000)
    store.advance(clock.now_ms())
    assert store.cancel(receipt) is Cancellation.CANCELLED
    store.flush()
    clock.tick(10 * DAY_MS)
    other = store.schedule(message("OTHER"), AfterMs(5_000))
    store.schedule(message("OVERDUE"), AtMs(START_MS))
    assert store.cancel(other) is Cancellation.CANCELLED
    store.close()
    again = open_store(tmp_path, clock, SMALL)
    assert sorted(map(str, waiting(again))) == ["BETWEEN", "OVERDUE"]
    assert sorted(keys(again.advance(clock.now_ms() + 200_000))) == ["BETWEEN", "OVERDUE"]
    again.close()


@pytest.mark.parametrize("is_killed_twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize(("before_ms", "after_ms"), [(100, 1_000), (1_000, 100), (500, 1_000)])
def test_a_rebuild_after_a_long_rest_knows_what_is_done_and_what_is_cancelled(
    tmp_path: Path, before_ms: int, after_ms: int, is_killed_twice: bool
) -> None:
    """None has a unit: an old message holds the hand, farther behind than brokers read."""
    clock = ManualClock(START_MS)

    def opened(precision_ms: int) -> WheelStore:
        return WheelStore.open(
            tmp_path,
            clock=clock,
            settings=SMALL,
            precision_ms=precision_ms,
            on_precision_change="rebuild",
        )

    store = opened(before_ms)
    store.schedule(message("OLD"), AfterMs(100_000))
    store.advance(clock.now_ms())
    store.flush()
    clock.tick(1_500)
    store.schedule(message("ONE"), AfterMs(79))
    receipt = store.schedule(message("CANCELLED"), AfterMs(5_000))
    assert store.cancel(receipt) is Cancellation.CANCELLED
    clock.tick(2_000)
    assert keys(store.advance(clock.now_ms())) == ["ONE"]
    store.abandon()
    clock.tick(8 * DAY_MS)
    again = opened(after_ms)
    if is_killed_twice:
        again.abandon()
        again = opened(after_ms)
    assert waiting(again) == ["OLD"]
    assert keys(again.advance(clock.now_ms() + 20 * DAY_MS)) == ["OLD"]
    again.close()
