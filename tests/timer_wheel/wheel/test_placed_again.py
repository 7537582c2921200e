# SPDX-License-Identifier: Apache-2.0
"""Copies that went round again come in the order in which their messages were scheduled, also where
no unit of the timer log tells any more that anything rolled; and where nothing can have, no record
is looked at for it.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, AtMs, ManualClock, Message
from message_store.writing.settings import StoreSettings
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.wheel import log as module
from timer_wheel.wheel.live_timers import LiveTimers
from timer_wheel.wheel.log import PlacedAgain

START_MS = 1_793_000_000_000
DUE_MS = START_MS + 100_000
UNIT_BYTES = 52
SETTINGS = StoreSettings(
    commit_log_file_bytes=1 << 16,
    queue_file_bytes=1000,
    timer_log_file_bytes=UNIT_BYTES + 30,  # a unit a file, so that single ones can go
)
DAY_MS = 86_400_000

Make = Callable[..., WheelStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def make(tmp_path: Path, clock: ManualClock) -> Iterator[Make]:
    opened = []

    def make(**how: object) -> WheelStore:
        wanted = {"clock": clock, "settings": SETTINGS, "roll_window_slots": 50} | how
        opened.append(WheelStore.open(tmp_path / "store", **wanted))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def timers_of(store: WheelStore) -> LiveTimers:
    return store._timers  # to see what it knows of units that no interface tells


def with_a_copy_behind_a_younger_message(make: Make, clock: ManualClock) -> WheelStore:
    """Both are due together. The first has rolled, and late: its copy lies behind the second."""
    store = make()
    store.schedule(Message("orders", b"0"), AtMs(DUE_MS))
    assert len(store.advance(START_MS)) == 0
    clock.tick(60_000)
    store.schedule(Message("orders", b"1"), AtMs(DUE_MS))
    assert len(store.advance(clock.now_ms())) == 0
    offsets = [each.commit_log_offset for each in store.pending()]
    assert len(offsets) == 2
    return store


def first_rolls(store: WheelStore) -> int:
    """Behind the unit of what rolled first, which is the only one that says so."""
    return store.live.settings.timer_log_file_bytes


def bodies(store: WheelStore, clock: ManualClock) -> list[bytes]:
    clock.tick(DUE_MS + 1_000 - clock.now_ms())
    return [each.message.body for each in store.advance(clock.now_ms())]


def test_while_its_unit_tells_that_it_rolled(make: Make, clock: ManualClock) -> None:
    store = with_a_copy_behind_a_younger_message(make, clock)
    assert timers_of(store).has_rolled
    assert bodies(store, clock) == [b"0", b"1"]


def test_when_retention_takes_the_unit_while_the_store_is_open(
    make: Make, clock: ManualClock
) -> None:
    store = with_a_copy_behind_a_younger_message(make, clock)
    timers_of(store).log.segments.delete_before(first_rolls(store))
    assert bodies(store, clock) == [b"0", b"1"]


@pytest.mark.parametrize("ends", ["close", "abandon"])
def test_when_retention_took_the_unit_before_the_store_was_opened(
    make: Make, clock: ManualClock, ends: str
) -> None:
    store = with_a_copy_behind_a_younger_message(make, clock)
    store.flush()
    timers_of(store).log.segments.delete_before(first_rolls(store))
    getattr(store, ends)()
    store = make()
    assert not timers_of(store).has_rolled
    assert bodies(store, clock) == [b"0", b"1"]


@pytest.mark.parametrize("ends", ["close", "abandon"])
def test_when_the_timer_log_is_lost_and_all_is_placed_anew(
    make: Make, clock: ManualClock, ends: str
) -> None:
    store = with_a_copy_behind_a_younger_message(make, clock)
    store.flush()
    getattr(store, ends)()
    shutil.rmtree(store.live.root.timer_log)
    store = make()
    assert len(store.advance(clock.now_ms())) == 0  # both get their slots again
    assert not timers_of(store).has_rolled
    assert bodies(store, clock) == [b"0", b"1"]


def test_when_the_wheel_was_made_anew_for_wider_slots(make: Make, clock: ManualClock) -> None:
    clock.tick(500)  # so that a coarser slot ends behind both
    with_a_copy_behind_a_younger_message(
        lambda **how: make(precision_ms=500, roll_window_slots=100, **how), clock
    ).close()
    wider = {"precision_ms": 1_000, "on_precision_change": "rebuild"}
    make(**wider).close()
    store = make(precision_ms=1_000)
    assert not timers_of(store).has_rolled
    assert bodies(store, clock) == [b"0", b"1"]


def test_when_the_copy_is_of_a_hierarchical_wheel(
    make: Make, clock: ManualClock, tmp_path: Path
) -> None:
    """It stores again what outlives the retention of the log, and its units tell of no roll."""
    days_4 = START_MS + 4 * DAY_MS
    settings = attrs.evolve(SETTINGS, commit_log_file_bytes=1 << 14, retention_ms=DAY_MS)
    path = tmp_path / "store"
    with HierarchicalWheelStore.open(
        path, clock=clock, settings=settings, precision_ms=1_000, max_delay_ms=None
    ) as hierarchical:
        hierarchical.schedule(Message("orders", b"0", unique_key="0"), AtMs(days_4))
        hierarchical.schedule(Message("others", b"x" * 9_000), AfterMs(1_000))
        clock.tick(5 * 3_600_000)  # the delivery begins a second file
        hierarchical.advance(clock.now_ms())
        hierarchical.schedule(Message("orders", b"1", unique_key="1"), AtMs(days_4))
        places = {"0": 0, "1": 1}
        while places["0"] < places["1"]:
            hierarchical.schedule(Message("others", b"x" * 1_000), AfterMs(1_000))
            clock.tick(3_600_000)
            hierarchical.advance(clock.now_ms())
            assert clock.now_ms() < days_4 - DAY_MS
            found = hierarchical.pending(topic="orders")
            places = {str(each.unique_key): each.commit_log_offset for each in found}
    settings = attrs.evolve(settings, retention_ms=30 * DAY_MS)
    store = make(settings=settings, roll_window_slots=700_000)
    assert not timers_of(store).has_rolled
    clock.tick(days_4 + 1_000 - clock.now_ms())
    assert [each.message.body for each in store.advance(clock.now_ms())] == [b"0", b"1"]


# --- and what it costs ----------------------------------------------------------------------------


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each look was at."""
    looks: list[int] = []

    def look(addresses: object, sizes: "list[int]") -> bool:
        looks.append(len(sizes))
        return False

    monkeypatch.setattr(module, "is_any_to_be_read", look)
    return looks


def test_what_was_placed_since_the_store_was_opened_is_not_looked_at(
    make: Make, clock: ManualClock, looked: list[int]
) -> None:
    store = make()
    for _ in range(3):
        store.schedule(Message("orders", b"0"), AfterMs(5_000))
    assert len(store.advance(clock.now_ms())) == 0
    clock.tick(6_000)
    assert len(store.advance(clock.now_ms())) == 3
    assert looked == []


def test_what_was_on_the_wheel_when_the_store_was_opened_is_looked_at(
    make: Make, clock: ManualClock, looked: list[int]
) -> None:
    store = make()
    store.schedule(Message("orders", b"0"), AfterMs(5_000))
    store.close()
    store = make()
    store.schedule(Message("orders", b"1"), AfterMs(5_000))
    store.schedule(Message("orders", b"2"), AfterMs(9_000))
    clock.tick(6_000)
    assert len(store.advance(clock.now_ms())) == 2
    clock.tick(6_000)
    assert len(store.advance(clock.now_ms())) == 1
    assert looked == [2]


def test_nothing_is_known_before_the_store_is_open() -> None:
    assert PlacedAgain().known_from > 1 << 62
