# SPDX-License-Identifier: Apache-2.0
"""A broker that takes a wheel over, in time or late, delivers nothing that was cancelled. It passes
over a delete marker in the queue whose time is over, and obeys none that it rolls from a later slot
than the marker's own.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from message_store import AtMs, Cancellation, ManualClock, Message
from message_store.writing.settings import StoreSettings
from tests.faults.broker_view import look_as_a_broker
from timer_wheel import WheelStore

START_MS = 1_793_000_000_437
DUE = AtMs(START_MS + 60_000)
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 14, queue_file_bytes=1_000, timer_log_file_bytes=52 * 20 + 30
)


def open_wheel(path: Path, clock: ManualClock) -> WheelStore:
    return WheelStore.open(path, clock=clock, settings=SMALL)


def behind_one_that_is_due(path: Path, clock: ManualClock) -> WheelStore:
    """What is due at once gets no unit before it is delivered."""
    store = open_wheel(path, clock)
    store.schedule(Message("orders", b"", unique_key="DUE"), AtMs(START_MS - 5))
    receipt = store.schedule(Message("orders", b"", unique_key="CANCELLED"), DUE)
    assert store.cancel(receipt) is Cancellation.CANCELLED
    return store


def put_as_a_marker(path: Path, clock: ManualClock) -> WheelStore:
    store = open_wheel(path, clock)
    store.schedule(Message("orders", b"", unique_key="DUE"), AtMs(START_MS - 5))
    store.schedule(Message("orders", b"", unique_key="CANCELLED"), DUE)
    asked = {"TIMER_DEL_UNIQKEY": "CANCELLED", "TIMER_DELIVER_MS": str(DUE.due_ms)}
    store.put(Message("orders", b"", unique_key="MARKER", properties=asked))
    return store


def killed_before_a_flush(path: Path, clock: ManualClock) -> WheelStore:
    """Opening takes the units away that nobody had synced."""
    store = open_wheel(path, clock)
    receipt = store.schedule(Message("orders", b"", unique_key="CANCELLED"), DUE)
    store.advance(START_MS)
    store.cancel(receipt)
    clock.tick(200_000)
    assert not len(store.advance(clock.now_ms()))
    store.abandon()
    return open_wheel(path, clock)


def of_a_slot_that_is_over(path: Path, clock: ManualClock) -> WheelStore:
    """The clock was set back: a close let the message wait in the slot in hand."""
    store = open_wheel(path, clock)
    clock.tick(200_000)
    store.advance(clock.now_ms())
    clock.tick(-200_000)
    receipt = store.schedule(Message("orders", b"", unique_key="CANCELLED"), DUE)
    store.schedule(Message("orders", b"", unique_key="DUE"), DUE)
    store.close()
    store = open_wheel(path, clock)
    assert store.cancel(receipt) is Cancellation.CANCELLED
    return store


@pytest.mark.parametrize("keys", [["WAITS", "CANCELLED"], ["CANCELLED", "WAITS"]])
def test_a_listing_that_is_open_goes_on_behind_a_unit_that_a_cancel_puts_away(
    tmp_path: Path, keys: list[str]
) -> None:
    clock = ManualClock(START_MS)
    with open_wheel(tmp_path, clock) as store:
        clock.tick(200_000)
        store.advance(clock.now_ms())
        clock.tick(-200_000)
        messages = [Message("orders", b"", unique_key=key) for key in keys]
        receipts = {each.unique_key: store.schedule(each, DUE) for each in messages}
    with open_wheel(tmp_path, clock) as store:
        listing = store.pending()
        assert store.cancel(receipts["CANCELLED"]) is Cancellation.CANCELLED
        store.schedule(Message("orders", b"", unique_key="LATER"), DUE)
        assert [each.unique_key for each in listing] == ["WAITS"]


@pytest.mark.parametrize("end", ["killed", "flushed", "closed"])
@pytest.mark.parametrize(
    "make",
    [behind_one_that_is_due, put_as_a_marker, killed_before_a_flush, of_a_slot_that_is_over],
    ids=lambda make: make.__name__,
)
def test_a_broker_delivers_nothing_that_was_cancelled(
    tmp_path: Path, make: Callable[[Path, ManualClock], WheelStore], end: str
) -> None:
    clock = ManualClock(START_MS)
    store = make(tmp_path, clock)
    pending = [each.unique_key for each in store.pending()]
    if end == "flushed":
        store.flush()
    if end == "closed":
        store.close()
    else:
        store.abandon()
    for late_ms in (0, 300_000):
        view = look_as_a_broker(tmp_path, clock.now_ms() + late_ms, recovers_queues=end != "closed")
        assert view.wrong == []
        assert view.keys == pending
    with open_wheel(tmp_path, clock) as again:
        delivered = again.advance(clock.now_ms() + 300_000)
        assert [each.message.unique_key for each in delivered] == pending
