# SPDX-License-Identifier: Apache-2.0
"""Which of equal messages a wheel has dealt with is known after a kill: a delivery names its
message; what a broker did is told by its copies once, and written down.
"""

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from message_store import AtMs, ManualClock, Message
from message_store.base.errors import SourceError
from message_store.interface.delay_store import Delivered
from message_store.redelivery.batch import redeliver
from tests.simulation.simulated_disk import Killed, full_disk
from timer_wheel import WheelStore
from timer_wheel.format.checkpoint import OWN_PLACES
from timer_wheel.reading.before_us import DEALT_WITH_NAME
from timer_wheel.wheel import turn

START_MS = 1_793_000_000_000
TWIN = Message("orders", b"twin", unique_key="TWIN")


def opened(path: Path, clock: ManualClock) -> WheelStore:
    return WheelStore.open(path, clock=clock)


def keys(found: object) -> list[str]:
    return [each.message.unique_key for each in found]  # type: ignore[attr-defined]


def put(store: WheelStore, message: Message, delay_ms: int) -> int:
    return store.schedule(message, AtMs(START_MS + delay_ms)).commit_log_offset


def waiting(store: WheelStore) -> list[int]:
    return sorted(each.commit_log_offset for each in store.pending())


def deliver_one_of_each_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process died in the midst of a slot."""
    in_order: Callable[..., np.ndarray[tuple[int], np.dtype[np.int64]]] = turn._in_order
    monkeypatch.setattr(turn, "_in_order", lambda due, chosen: in_order(due, chosen)[:1])


def test_which_of_equal_messages_was_delivered_is_known_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START_MS)
    store = opened(tmp_path, clock)
    first, second = (put(store, TWIN, 2_500) for _ in range(2))
    store.flush()
    clock.tick(4_000)
    with monkeypatch.context() as patch:
        deliver_one_of_each_slot(patch)
        [delivered] = store.advance(clock.now_ms())
    assert delivered.message.prepared_transaction_offset == ~first
    for _ in range(3):
        store.abandon()
        store = opened(tmp_path, clock)
        assert waiting(store) == [second]
    [delivered] = store.advance(clock.now_ms())
    assert delivered.message.prepared_transaction_offset == ~second
    store.abandon()
    with opened(tmp_path, clock) as store:
        assert waiting(store) == []


@pytest.mark.check
def test_a_rolled_message_names_its_first_record_at_every_step(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = WheelStore.open(tmp_path, clock=clock, roll_window_slots=20)
    first = put(store, TWIN, 45_000)
    came: list[Delivered] = []
    for step in range(60):
        clock.tick(1_000)
        came += store.advance(clock.now_ms())
        if step % 7 != 6:  # what was placed since is placed again, and rolls from then
            store.flush()
        store.abandon()
        store = WheelStore.open(tmp_path, clock=clock, roll_window_slots=20)
    [delivered] = came
    assert delivered.message.properties["TIMER_ROLL_TIMES"] >= "2"
    assert delivered.message.prepared_transaction_offset == ~first
    assert waiting(store) == []
    store.close()


def left_by_a_broker(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ManualClock, int]:
    """A store in which one of two equal messages was delivered, without a name, by somebody whose
    checkpoint has nothing of ours and is older; and the offset of the one that waits.
    """
    clock = ManualClock(START_MS)
    store = opened(path, clock)
    put(store, TWIN, 2_500)
    second = put(store, TWIN, 2_500)
    put(store, Message("orders", b"later", unique_key="LATER"), 60_500)
    store.flush()
    checkpoint = path / "config" / "timercheck"
    content = checkpoint.read_bytes()[: OWN_PLACES[0]].ljust(4096, b"\0")
    clock.tick(4_000)

    def nameless(*given: object, **named: object) -> object:
        return redeliver(*given, **{**named, "prepared_offsets": None})  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        deliver_one_of_each_slot(patch)
        patch.setattr(turn, "redeliver", nameless)
        assert len(store.advance(clock.now_ms())) == 1
    store.abandon()
    checkpoint.write_bytes(content)
    return clock, second


@pytest.mark.check
def test_what_a_broker_delivered_is_matched_once_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in itertools.count():
        path = tmp_path / str(number)
        clock, second = left_by_a_broker(path, monkeypatch)
        with full_disk(path, number, is_kill=True) as disk, suppress(Killed):
            opened(path, clock).abandon()
        store = opened(path, clock)
        waits = waiting(store)
        assert len(waits) == 2, number
        assert waits[0] == second, number
        assert keys(store.advance(clock.now_ms())) == ["TWIN"], number
        store.abandon()
        store = opened(path, clock)
        assert waiting(store) == waits[1:], number
        store.close()
        assert not (path / "delaywheel" / DEALT_WITH_NAME).exists()
        if not disk.refused:
            break
    assert number > 5


def test_what_is_written_down_of_a_broker_is_not_matched_with_an_equal_message_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, second = left_by_a_broker(tmp_path, monkeypatch)
    store = opened(tmp_path, clock)
    assert (tmp_path / "delaywheel" / DEALT_WITH_NAME).exists()
    assert keys(store.advance(clock.now_ms())) == ["TWIN"]
    for _ in range(2):
        store.abandon()
        store = opened(tmp_path, clock)
        assert second not in waiting(store)
    store.close()


def test_damage_to_what_was_written_down_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, _ = left_by_a_broker(tmp_path, monkeypatch)
    opened(tmp_path, clock).abandon()
    path = tmp_path / "delaywheel" / DEALT_WITH_NAME
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(SourceError, match=f"{DEALT_WITH_NAME}: damaged"):
        opened(tmp_path, clock)


@pytest.mark.check
@pytest.mark.parametrize("precision_ms", [1000, 100])
def test_what_is_due_before_the_hand_comes_on_time_and_once(
    tmp_path: Path, precision_ms: int
) -> None:
    """A clock that was far ahead is set right: the hand stays, and nothing waits for it."""
    clock = ManualClock(START_MS)
    store = WheelStore.open(tmp_path, clock=clock, precision_ms=precision_ms)
    store.advance(START_MS + 30 * 86_400_000)
    came = []
    for _ in range(2):
        put(store, TWIN, 2_500)
    put(store, Message("orders", b"later", unique_key="LATER"), 60_500)
    for step in range(70):
        for each in store.advance(clock.now_ms()):
            late_ms = clock.now_ms() - each.promised_ms
            assert 0 <= late_ms < 1_000
            came.append(each.message.unique_key)
        if step % 3 == 0:
            store.flush()
        store.abandon()
        store = WheelStore.open(tmp_path, clock=clock)
        clock.tick(1_000)
    assert came == ["TWIN", "TWIN", "LATER"]
    assert waiting(store) == []
    store.close()
