# SPDX-License-Identifier: Apache-2.0
"""A wheel made anew for slots of another width: receipts stay good, what was cancelled stays so,
and nothing comes early, also where the timer log is damaged or lost afterwards.
"""

import shutil
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from message_store import AtMs, Cancellation, ManualClock, Message, Receipt
from message_store.files.store_root import StoreRoot
from tests.faults.engines import open_hierarchy, open_wheel
from timer_wheel import WheelStore, read_wheel_store
from timer_wheel.format.timer_log import TIMER_UNIT
from timer_wheel.format.wheel_math import PRECISIONS_MS

START_MS = 1_793_000_000_137
DELAYS_MS = (1_250, 1_900, 2_005, 5_850, 5_900, 61_037)
QUICK = ((1_000, 100), (200, 500))
CHANGES = [
    pytest.param(*change, marks=() if change in QUICK else pytest.mark.check)
    for change in permutations(PRECISIONS_MS, 2)
]
Damage = Callable[[Path], None]


def open_with(path: Path, clock: ManualClock, precision_ms: int) -> WheelStore:
    return WheelStore.open(
        path, clock=clock, precision_ms=precision_ms, on_precision_change="rebuild"
    )


def put(store: WheelStore, key: str, due_ms: int) -> Receipt:
    return store.schedule(Message("orders", b"", unique_key=key), AtMs(due_ms))


def filled(path: Path, clock: ManualClock, precision_ms: int) -> dict[str, Receipt]:
    """Messages that wait, as many that were cancelled, and one that was delivered."""
    with open_with(path, clock, precision_ms) as store:
        store.advance(clock.now_ms())
        receipts = {"CAME": put(store, "CAME", START_MS + 100)}
        clock.tick(1_100)
        assert len(store.advance(clock.now_ms())) == 1
        for delay_ms in DELAYS_MS:
            receipts[f"K{delay_ms}"] = put(store, f"K{delay_ms}", START_MS + delay_ms)
            gone = put(store, f"NO{delay_ms}", START_MS + delay_ms)
            assert store.cancel(gone) is Cancellation.CANCELLED
            receipts[f"NO{delay_ms}"] = gone
    return receipts


def deliver_all(store: WheelStore, clock: ManualClock) -> dict[str, int]:
    """When each message came; none may come twice."""
    came: dict[str, int] = {}
    while (next_ms := store.next_due_ms()) is not None:
        clock.tick(max(0, next_ms - clock.now_ms()))
        for each in store.advance(clock.now_ms()):
            assert each.message.unique_key not in came
            came[each.message.unique_key or ""] = clock.now_ms()
    return came


def keep_all(path: Path) -> None:
    """No damage."""


def lose_the_timer_log(path: Path) -> None:
    shutil.rmtree(path / "timerlog")


def tear_the_first_unit(path: Path) -> None:
    with min((path / "timerlog").iterdir()).open("r+b") as file:
        file.write(bytes(TIMER_UNIT.size))


@pytest.mark.parametrize("damage", [keep_all, lose_the_timer_log, tear_the_first_unit])
@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_nothing_comes_early_and_what_was_cancelled_never(
    tmp_path: Path, old: int, new: int, damage: Damage
) -> None:
    clock = ManualClock(START_MS)
    receipts = filled(tmp_path, clock, old)
    open_with(tmp_path, clock, new).close()
    damage(tmp_path)
    with open_with(tmp_path, clock, new) as store:
        came = deliver_all(store, clock)
    assert came.keys() == {f"K{delay_ms}" for delay_ms in DELAYS_MS}
    for key, came_ms in came.items():
        assert 0 <= came_ms - receipts[key].promised_ms < new


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_receipt_is_answered_as_before_the_change(tmp_path: Path, old: int, new: int) -> None:
    """Also by its handle alone; and what is cancelled then is found by no broker."""
    clock = ManualClock(START_MS)
    receipts = filled(tmp_path, clock, old)
    with open_with(tmp_path, clock, new) as store:
        later = put(store, "LATER", START_MS + 70_000)
        assert store.cancel(receipts["CAME"]) is Cancellation.ALREADY_DELIVERED
        for delay_ms in DELAYS_MS:
            assert store.cancel(receipts[f"NO{delay_ms}"]) is Cancellation.CANCELLED
        for number, delay_ms in enumerate(DELAYS_MS):
            receipt = receipts[f"K{delay_ms}"]
            asked = receipt.handle if number % 2 else receipt
            assert store.cancel(asked) is Cancellation.CANCELLED
        assert [each.unique_key for each in store.pending()] == ["LATER"]
    root = StoreRoot(tmp_path)
    state = read_wheel_store(
        root, now_ms=clock.now_ms(), precision_ms=new, topic_in_delete_key=None
    )
    assert len(state.pending) == 1
    with open_with(tmp_path, clock, new) as store:
        assert deliver_all(store, clock).keys() == {"LATER"}
        assert store.cancel(later) is Cancellation.ALREADY_DELIVERED


@pytest.mark.parametrize("wheel_ms", PRECISIONS_MS)
@pytest.mark.parametrize("first", [1, 100])
def test_a_receipt_of_a_hierarchical_wheel_is_good_for_a_wheel_in_files(
    tmp_path: Path, first: int, wheel_ms: int
) -> None:
    clock = ManualClock(START_MS)
    with open_hierarchy(tmp_path, clock, precision_ms=first) as store:
        receipts = [
            store.schedule(Message("orders", b"", unique_key=f"K{ms}"), AtMs(START_MS + ms))
            for ms in DELAYS_MS
        ]
    with open_wheel(tmp_path, clock, precision_ms=wheel_ms) as wheel:
        answers = {wheel.cancel(receipt) for receipt in receipts}
        assert answers == {Cancellation.CANCELLED}
        assert len(wheel.advance(START_MS + 3_600_000)) == 0


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_hierarchical_wheel_delivers_nothing_early_where_the_timer_log_was_lost(
    tmp_path: Path, old: int, new: int
) -> None:
    clock = ManualClock(START_MS)
    receipts = filled(tmp_path, clock, old)
    open_with(tmp_path, clock, new).close()
    shutil.rmtree(tmp_path / "timerlog")
    came: dict[str, int] = {}
    with open_hierarchy(tmp_path, clock) as store:
        while (next_ms := store.next_due_ms()) is not None:
            clock.tick(max(0, next_ms - clock.now_ms()))
            for each in store.advance(clock.now_ms()):
                came[each.message.unique_key or ""] = clock.now_ms()
    assert came.keys() == {f"K{delay_ms}" for delay_ms in DELAYS_MS}
    for key, came_ms in came.items():
        assert came_ms >= receipts[key].promised_ms
