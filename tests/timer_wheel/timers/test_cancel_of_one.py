# SPDX-License-Identifier: Apache-2.0
"""A receipt cancels its message and no other that shares topic, time and key: also after a kill, in
another engine, in slots of another width, and behind rolls.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from message_store import AfterMs, Cancellation, ManualClock, Message, Receipt, Severity
from message_store.base.errors import SourceError
from message_store.interface.delay_store import Pending
from message_store.life.by_key import find_receipts
from message_store.writing.settings import StoreSettings
from migrate.look.pending import pending_messages
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.timers.store import TimerStore

START_MS = 1_793_000_000_000
DAY_MS = 86_400_000
SMALL = StoreSettings(commit_log_file_bytes=1 << 16, queue_file_bytes=20 * 50)

Open = Callable[[], TimerStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def openers(tmp_path: Path, clock: ManualClock) -> dict[str, Open]:
    path = tmp_path / "store"
    return {
        "wheel": lambda: WheelStore.open(path, clock=clock, settings=SMALL),
        "hierarchy": lambda: HierarchicalWheelStore.open(path, clock=clock, settings=SMALL),
        "tenths": lambda: WheelStore.open(
            path, clock=clock, settings=SMALL, precision_ms=100, on_precision_change="rebuild"
        ),
        "rolls": lambda: WheelStore.open(
            path, clock=clock, settings=SMALL, roll_window_slots=30, max_delay_ms=None
        ),
    }


def twins(store: TimerStore, delay_ms: int, count: int = 5) -> list[Receipt]:
    return [
        store.schedule(Message("orders", b"%d" % number, unique_key="K"), AfterMs(delay_ms))
        for number in range(count)
    ]


def left(store: TimerStore, receipts: list[Receipt]) -> list[int]:
    """Which of them wait."""
    waiting = sorted(each.due_ms for each in store.pending())
    assert len(set(waiting)) <= 1
    return [
        number
        for number, receipt in enumerate(receipts)
        if receipt.commit_log_offset in {each.commit_log_offset for each in store.pending()}
    ]


@pytest.mark.parametrize("first", ["wheel", "hierarchy"])
@pytest.mark.parametrize("second", ["wheel", "hierarchy", "tenths"])
@pytest.mark.parametrize("is_killed", [True, False])
def test_it_holds_for_whoever_opens_the_store_next(
    first: str, second: str, is_killed: bool, openers: dict[str, Open], clock: ManualClock
) -> None:
    store = openers[first]()
    receipts = twins(store, 90_000)
    if is_killed:
        store.flush()
    for number in (1, 4):
        assert store.cancel(receipts[number]) is Cancellation.CANCELLED
    if is_killed:
        store.abandon()
    else:
        store.close()
    with openers[second]() as again:
        assert left(again, receipts) == [0, 2, 3]
        assert again.cancel(receipts[4]) is Cancellation.CANCELLED
        assert again.cancel(receipts[3]) is Cancellation.CANCELLED
        assert left(again, receipts) == [0, 2]
        assert [each for each in again.check() if each.severity is not Severity.INFO] == []
        clock.tick(200_000)
        delivered = again.advance(clock.now_ms())
        assert [each.message.body for each in delivered] == [b"0", b"2"]
        answers = [again.cancel(receipt) for receipt in receipts]
    delivered_ones = (0, 2)
    for number, answer in enumerate(answers):
        wanted = Cancellation.CANCELLED
        if number in delivered_ones:
            wanted = Cancellation.ALREADY_DELIVERED
        assert answer is wanted, number


def test_it_holds_behind_rolls(openers: dict[str, Open], clock: ManualClock) -> None:
    with openers["rolls"]() as store:
        receipts = twins(store, 300_000)
        assert store.cancel(receipts[2]) is Cancellation.CANCELLED
        came = []
        for step in range(40):
            clock.tick(10_000)
            if step == 7:
                assert store.cancel(receipts[0]) is Cancellation.CANCELLED
            came += [each.message.body for each in store.advance(clock.now_ms())]
    assert came == [b"1", b"3", b"4"]


@pytest.mark.parametrize("engine", ["wheel", "hierarchy"])
def test_whoever_only_looks_sees_the_same(
    engine: str, openers: dict[str, Open], clock: ManualClock, tmp_path: Path
) -> None:
    with openers[engine]() as store:
        receipts = twins(store, 90_000)
        store.cancel(receipts[3])
        wanted = {receipts[number].commit_log_offset for number in (0, 1, 2, 4)}
    found = [
        each.commit_log_offset
        for each in pending_messages(tmp_path / "store", now_ms=START_MS)
        if isinstance(each, Pending)
    ]
    assert set(found) == wanted


def test_a_setting_that_no_wheel_has_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="precision_ms"):
        WheelStore.open(tmp_path / "store", precision_ms=300)
    with pytest.raises((ValueError, SourceError), match="precision_ms"):
        HierarchicalWheelStore.open(tmp_path / "store", precision_ms=7)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("widths_ms", [(1, 1_000, 1), (100, 500, 1_000), (100, 1_000, 1, 1_000)])
def test_a_receipt_that_was_found_between_two_widths_names_its_message(
    tmp_path: Path, clock: ManualClock, widths_ms: tuple[int, ...]
) -> None:
    """Its promise is neither that of the first slots nor that of today's."""

    def opened(width_ms: int) -> TimerStore:
        if width_ms == 1:
            return HierarchicalWheelStore.open(tmp_path, clock=clock, settings=SMALL)
        return WheelStore.open(
            tmp_path,
            clock=clock,
            settings=SMALL,
            precision_ms=width_ms,
            on_precision_change="rebuild",
        )

    for number in range(len(widths_ms)):
        with opened(widths_ms[0]) as store:
            due = AfterMs(7_303 + 10_000 * number)
            store.schedule(Message("orders", b"", unique_key=f"K{number}"), due)
    found: list[Receipt] = []
    for width_ms in widths_ms:
        with opened(width_ms) as store:
            found.append(find_receipts(store, f"K{len(found)}")[0])
    with opened(widths_ms[-1]) as store:
        for receipt in found:
            assert isinstance(store.reschedule(receipt, AfterMs(90_000)), Receipt)
        assert len(list(store.pending())) == len(found)


def test_what_would_stay_in_its_wider_slot_is_left_there_and_told_so(
    tmp_path: Path, clock: ManualClock
) -> None:
    with WheelStore.open(tmp_path, clock=clock, settings=SMALL, precision_ms=100) as store:
        receipt = store.schedule(Message("orders", b"", unique_key="K"), AfterMs(7_100))
    with WheelStore.open(
        tmp_path, clock=clock, settings=SMALL, precision_ms=1_000, on_precision_change="rebuild"
    ) as store:
        for delay_ms in (7_050, 7_500):
            moved = store.reschedule(receipt, AfterMs(delay_ms))
            assert isinstance(moved, Receipt)
            assert moved.promised_ms == START_MS + 8_000
            assert [each.due_ms for each in store.pending()] == [START_MS + 8_000]
            assert moved.commit_log_offset == receipt.commit_log_offset
