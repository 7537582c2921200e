# SPDX-License-Identifier: Apache-2.0
"""One flipped bit in any byte that tells of a wheel: nothing is lost, nothing comes early or twice,
whatever the precision and however the store was left.
"""

import functools
import random
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from message_store import AfterMs, Cancellation, ManualClock, Message, Receipt, Severity
from message_store.files.store_root import StoreRoot
from tests.faults.damage import copy_store, flip
from tests.faults.engines import SMALL
from tests.helpers.tiers import by_turns
from timer_wheel import WheelStore
from timer_wheel.format.checkpoint import OWN_CHECKPOINT, OWN_PLACES, TIMER_CHECKPOINT
from timer_wheel.format.wheel_math import PRECISIONS_MS

START_MS = 1_793_000_000_000
BROKERS_BYTES = range(TIMER_CHECKPOINT.size)
OUR_BYTES = [at for place in OWN_PLACES for at in range(place, place + OWN_CHECKPOINT.size)]


class Left:
    """A store as it was left: what its messages were promised for, and what was cancelled."""

    def __init__(self, path: Path, precision_ms: int, *, is_killed: bool) -> None:
        self.path, self.precision_ms = path, precision_ms
        self.clock = ManualClock(START_MS)
        store = self.open(path)
        store.advance(START_MS)
        self.receipts = [self._put(store, number) for number in range(12)]
        self.clock.tick(precision_ms * 4)
        assert len(store.advance(self.clock.now_ms())) > 1
        self.cancelled = self.receipts.pop(8)
        assert store.cancel(self.cancelled) is Cancellation.CANCELLED
        store.flush()
        if is_killed:
            self.receipts.append(self._put(store, 20))
            self.clock.tick(precision_ms * 2)
            assert len(store.advance(self.clock.now_ms())) > 0
            store.abandon()
        else:
            store.close()
        self.left_ms = self.clock.now_ms()

    def open(self, path: Path) -> WheelStore:
        return WheelStore.open(
            path, clock=self.clock, settings=SMALL, precision_ms=self.precision_ms
        )

    def _put(self, store: WheelStore, number: int) -> Receipt:
        message = Message("orders", b"", unique_key=f"K{number}")
        return store.schedule(message, AfterMs((number + 1) * self.precision_ms * 3 // 2))

    def copy(self, to: Path) -> Path:
        copy_store(self.path, to)
        self.clock = ManualClock(self.left_ms)
        return to


Made = Callable[[int, bool], Left]


@pytest.fixture(scope="module")
def left(
    tmp_path_factory: pytest.TempPathFactory,
) -> Made:
    @functools.cache
    def made(precision_ms: int, is_killed: bool) -> Left:
        path = tmp_path_factory.mktemp("left") / "store"
        return Left(path, precision_ms, is_killed=is_killed)

    return made


def assert_all_come_once_and_not_early(left: Left, path: Path) -> None:
    """Each message comes once, none before its time; what was cancelled does not come."""
    promised = {each.unique_key: each.promised_ms for each in left.receipts}
    with left.open(path) as store:
        while (next_ms := store.next_due_ms()) is not None:
            left.clock.tick(max(0, next_ms - left.clock.now_ms()))
            for each in store.advance(left.clock.now_ms()):
                assert left.clock.now_ms() >= promised[each.message.unique_key or ""]
        keys = [each.unique_key or "" for each in store.topic("orders").read(0, 0, 99)]
        assert Counter(keys) == Counter(promised.keys())
        assert [each for each in store.check() if each.severity is Severity.ERROR] == []


@pytest.mark.parametrize(
    ("at", "precision_ms", "is_killed"),
    by_turns([*BROKERS_BYTES, *OUR_BYTES[::3]], product(PRECISIONS_MS, (False, True))),
)
def test_a_bit_of_the_wheels_checkpoint_costs_nothing(
    left: Made,
    tmp_path: Path,
    at: int,
    precision_ms: int,
    is_killed: bool,
    seed: int,
) -> None:
    store = left(precision_ms, is_killed)
    path = store.copy(tmp_path / "store")
    flip(StoreRoot(path).config_file("timercheck"), at, random.Random(seed + at).randrange(8))
    assert_all_come_once_and_not_early(store, path)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("at", [2, 3, 5, 7, OWN_PLACES[0] + 60, OWN_PLACES[1] + 85])
def test_a_bit_of_the_hand_or_of_our_part_costs_nothing(
    left: Made, tmp_path: Path, at: int, is_killed: bool
) -> None:
    store = left(1_000, is_killed)
    path = store.copy(tmp_path / "store")
    flip(StoreRoot(path).config_file("timercheck"), at, 0)
    if at >= OWN_PLACES[0]:
        with store.open(path) as again:
            assert any(each.where == "config/timercheck" for each in again.check())
        with store.open(path) as again:
            assert again.check() == []
    assert_all_come_once_and_not_early(store, path)


def test_a_hand_that_no_clock_has_shown_is_not_believed_of_a_broker(tmp_path: Path) -> None:
    store = Left(tmp_path / "left", 1_000, is_killed=False)
    check = StoreRoot(store.path).config_file("timercheck")
    check.write_bytes(check.read_bytes()[: OWN_PLACES[0]].ljust(4_096, b"\0"))
    flip(check, 3, 1)
    assert_all_come_once_and_not_early(store, store.path)
