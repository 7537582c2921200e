# SPDX-License-Identifier: Apache-2.0
"""Messages that were taken back, those above all that were due when they were stored: what whoever
takes over finds of them, a broker or we, wherever the process was killed.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from message_store import AfterMs, AtMs, Cancellation, ManualClock, Message, Receipt
from message_store.files.store_root import StoreRoot
from tests.faults.broker_view import look_as_a_broker
from tests.independent.raw_files import timer_units
from tests.simulation.simulated_disk import Killed
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.reading.wheel_reader import read_wheel_store
from timer_wheel.wheel.files import WheelFiles
from timer_wheel.wheel.live_timers import LiveTimers
from timer_wheel.wheel.log import LiveTimerLog

START_MS = 1_793_000_000_000


def killed(*_given: object, **_named: object) -> None:
    raise Killed


def with_one_recalled(path: Path, clock: ManualClock) -> tuple[WheelStore, Receipt]:
    """Two messages that are due at once, one of them taken back, none of them placed; the hand is
    two slots behind.
    """
    store = WheelStore.open(path, clock=clock)
    store.advance(clock.now_ms())
    clock.tick(2_000)
    store.schedule(Message("orders", b"", unique_key="STAYS"), AtMs(0))
    receipt = store.schedule(Message("orders", b"", unique_key="TAKEN"), AtMs(0))
    assert store.cancel(receipt) is Cancellation.CANCELLED
    return store, receipt


STEPS: dict[str, tuple[type, str]] = {
    "before the checkpoint": (WheelFiles, "save"),
    "after it": (LiveTimers, "write_metrics"),
}


@pytest.mark.parametrize("late_ms", [0, 300, 1_000, 5_000])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_broker_does_not_find_it_once_its_unit_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_ms: int, step: tuple[type, str]
) -> None:
    """A marker counts in its own slot only, and that slot may not have been read."""
    clock = ManualClock(START_MS + 437)
    store, _ = with_one_recalled(tmp_path, clock)
    clock.tick(late_ms)
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(*step, killed)
        store.advance(clock.now_ms())
        store.flush()
    store.abandon()
    assert "TAKEN" not in look_as_a_broker(tmp_path, clock.now_ms()).keys
    # The cancel gave them their units, in the slot of its own moment.
    slots = [unit.slot_time_ms // 1000 for unit in timer_units(tmp_path / "timerlog")]
    assert slots == [START_MS // 1000 + 2] * 3


ENDS: dict[str, Callable[[WheelStore], None]] = {
    "closed": WheelStore.close,
    "killed": WheelStore.abandon,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize(
    "step",
    [None, (LiveTimerLog, "append"), (WheelFiles, "announce"), (WheelFiles, "save")],
    ids=["no kill", "before units", "before their announcement", "before the checkpoint"],
)
def test_we_never_deliver_it_wherever_we_were_killed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[type, str] | None,
    end: Callable[[WheelStore], None],
) -> None:
    clock = ManualClock(START_MS + 437)
    store, receipt = with_one_recalled(tmp_path, clock)
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        if step is not None:
            patch.setattr(*step, killed)
        store.advance(clock.now_ms())
    store.abandon()
    for _ in range(3):
        store = WheelStore.open(tmp_path, clock=clock)
        assert list(store.pending()) == []
        assert store.cancel(receipt) is Cancellation.CANCELLED
        assert list(store.advance(clock.now_ms())) == []
        end(store)
        clock.tick(700)
    with WheelStore.open(tmp_path, clock=clock) as store:
        delivered = [each.unique_key for each in store.topic("orders").read(0, 0, 10)]
    assert delivered == ["STAYS"]


def test_a_broker_that_comes_late_does_not_find_what_was_taken_back_just_before_the_kill(
    tmp_path: Path,
) -> None:
    """It passes over a marker that waits in the queue and is past its time."""
    clock = ManualClock(START_MS)
    store = WheelStore.open(tmp_path, clock=clock)
    receipt = store.schedule(Message("orders", b"", unique_key="TAKEN"), AfterMs(5_000))
    assert store.cancel(receipt) is Cancellation.CANCELLED
    store.abandon()
    assert look_as_a_broker(tmp_path, START_MS + 60_000).keys == []


def test_a_late_broker_does_not_find_what_was_due_when_stored_and_cancelled(
    tmp_path: Path,
) -> None:
    """The cancel gave message and marker their units."""
    clock = ManualClock(START_MS + 437)
    store, _ = with_one_recalled(tmp_path, clock)
    store.abandon()
    clock.tick(1_000)
    assert look_as_a_broker(tmp_path, clock.now_ms()).keys == ["STAYS"]
    with WheelStore.open(tmp_path, clock=clock) as store:
        assert [each.message.unique_key for each in store.advance(clock.now_ms())] == ["STAYS"]
    assert look_as_a_broker(tmp_path, clock.now_ms()).keys == []


@pytest.mark.parametrize(
    "open_store", [WheelStore.open, HierarchicalWheelStore.open], ids=["wheel", "hierarchy"]
)
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_readers_find_what_was_scheduled_again_after_a_cancel(
    tmp_path: Path, open_store: Callable[..., WheelStore | HierarchicalWheelStore], end: str
) -> None:
    """Of four equal messages the last is pending; a marker takes only what lies before it."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock=clock)
    for _ in range(3):
        receipt = store.schedule(Message("orders", b"", unique_key="K"), AfterMs(5_000))
        assert store.cancel(receipt) is Cancellation.CANCELLED
    last = store.schedule(Message("orders", b"", unique_key="K"), AfterMs(5_000))
    if end == "closed":
        store.close()
    else:
        store.abandon()
    root = StoreRoot(tmp_path)
    state = read_wheel_store(root, now_ms=START_MS, topic_in_delete_key=None)
    offsets = state.pending.commit_log_offset.tolist()
    assert offsets == [last.commit_log_offset]
    assert len(state.cancelled) == 3


def test_a_broker_drops_what_was_scheduled_again_after_a_cancel(tmp_path: Path) -> None:
    """The limit that docs/ENGINES.md names: a broker's markers take all of their slot and key."""
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path, clock=clock) as store:
        receipt = store.schedule(Message("orders", b"", unique_key="K"), AfterMs(5_000))
        store.cancel(receipt)
        store.schedule(Message("orders", b"", unique_key="K"), AfterMs(5_000))
    assert look_as_a_broker(tmp_path, START_MS).keys == []
    with WheelStore.open(tmp_path, clock=clock) as store:
        assert len(store.advance(START_MS + 60_000)) == 1
