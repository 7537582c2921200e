# SPDX-License-Identifier: Apache-2.0
"""A wheel whose messages lie about a ring apart, because nobody advanced it for long or a clock was
far ahead: after a close a broker finds all that waits, at every precision.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from message_store import AtMs, Cancellation, DelayStore, ManualClock, Message, Receipt
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from timer_wheel import pending_records, read_wheel_store
from timer_wheel.format.wheel_math import PRECISIONS_MS, WHEEL_SLOTS

START_MS = 1_793_000_000_000
WIDEST_WINDOW = 604_740


def found_by_a_broker(path: Path, now_ms: int, precision_ms: int) -> Counter[str]:
    root = StoreRoot(path)
    state = read_wheel_store(root, now_ms=now_ms, precision_ms=precision_ms)
    with SegmentReader(root.commit_log) as log:
        records = pending_records(log, state.pending)
        return Counter(each.unique_key or "" for each in records if each is not None)


def keys_of(store: DelayStore) -> Counter[str]:
    return Counter(each.unique_key or "" for each in store.pending())


def put(store: DelayStore, key: str, due_ms: int) -> Receipt:
    return store.schedule(Message("orders", b"", unique_key=key), AtMs(due_ms))


def open_at(path: Path, clock: ManualClock, precision_ms: int) -> DelayStore:
    from timer_wheel import WheelStore

    return WheelStore.open(
        path,
        clock=clock,
        precision_ms=precision_ms,
        roll_window_slots=WIDEST_WINDOW,
        max_delay_ms=None,
    )


@pytest.mark.parametrize("precision_ms", PRECISIONS_MS)
def test_what_was_delivered_after_a_long_rest_takes_no_slot_of_what_waits(
    tmp_path: Path, precision_ms: int
) -> None:
    clock = ManualClock(START_MS)
    store = open_at(tmp_path, clock, precision_ms)
    store.advance(START_MS)
    ring_ms, due_ms = WHEEL_SLOTS * precision_ms, START_MS + 3_600_000
    put(store, "OVERDUE", 0)  # keeps the others from being placed
    put(store, "FAR", due_ms + ring_ms)
    put(store, "NEAR", due_ms)
    clock.tick(ring_ms * 9 // 10)
    assert len(store.advance(clock.now_ms())) == 2
    assert keys_of(store) == Counter(["FAR"])
    store.close()
    assert found_by_a_broker(tmp_path, clock.now_ms(), precision_ms) == Counter(["FAR"])


@pytest.mark.parametrize("precision_ms", PRECISIONS_MS)
def test_what_was_delivered_by_a_clock_that_was_set_right_takes_no_slot_of_what_waits(
    tmp_path: Path, precision_ms: int
) -> None:
    clock = ManualClock(START_MS)
    store = open_at(tmp_path, clock, precision_ms)
    ring_ms, ahead_ms = WHEEL_SLOTS * precision_ms, 2 * WHEEL_SLOTS * precision_ms
    clock.tick(ahead_ms)
    store.advance(clock.now_ms())
    far_ms = START_MS + ahead_ms + 86_400_000 // (1_000 // precision_ms)
    put(store, "FAR", far_ms + precision_ms)
    store.advance(clock.now_ms())
    near_ms = far_ms - ring_ms + precision_ms  # the slot before has FAR's place on the ring
    clock.tick(near_ms - 5 * precision_ms - clock.now_ms())
    put(store, "NEAR", near_ms + precision_ms)
    put(store, "NOW", 0)
    assert len(store.advance(clock.now_ms())) == 1
    store.close()
    assert found_by_a_broker(tmp_path, clock.now_ms(), precision_ms) == Counter(["NEAR", "FAR"])


@pytest.mark.parametrize("precision_ms", PRECISIONS_MS)
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_is_put_when_nobody_advanced_for_rounds_is_found_by_a_broker(
    tmp_path: Path, precision_ms: int, is_cancelled: bool
) -> None:
    """A broker that starts reads no slot farther back than half a ring."""
    clock = ManualClock(START_MS)
    store = open_at(tmp_path, clock, precision_ms)
    put(store, "DONE", START_MS + 5_000)
    cancelled = put(store, "CANCELLED", START_MS + 86_400_000)
    assert len(store.advance(START_MS + 7_000)) == 1
    assert store.cancel(cancelled) is Cancellation.CANCELLED
    clock.tick(3 * WHEEL_SLOTS * precision_ms)
    now_ms = clock.now_ms()
    waits = {"SOON": 5_000, "OVERDUE": -5_000, "FAR": (WIDEST_WINDOW + 60) * precision_ms}
    for key, ahead_ms in waits.items():
        put(store, key, now_ms + ahead_ms)
    if is_cancelled:
        assert store.cancel(put(store, "BACK", now_ms + 5_000)) is Cancellation.CANCELLED
    store.close()
    assert found_by_a_broker(tmp_path, now_ms, precision_ms) == Counter(waits.keys())
    store = open_at(tmp_path, clock, precision_ms)
    assert keys_of(store) == Counter(waits.keys())
    clock.tick(waits["FAR"] + precision_ms)
    came = store.advance(clock.now_ms())
    assert [each.message.unique_key for each in came] == ["OVERDUE", "SOON", "FAR"]
    store.close()


@pytest.mark.check
@pytest.mark.parametrize("precision_ms", PRECISIONS_MS)
@pytest.mark.parametrize("turn", range(8))
def test_any_history_about_a_ring_apart_leaves_a_broker_all_that_waits(
    tmp_path: Path, precision_ms: int, turn: int, seed: int
) -> None:
    """Messages, some cancelled, whose slots have one place on the ring or neighbouring ones."""
    chance, clock = random.Random(f"{seed}-{turn}-{precision_ms}"), ManualClock(START_MS)
    ring_ms = WHEEL_SLOTS * precision_ms
    store = open_at(tmp_path, clock, precision_ms)
    for number in range(40):
        match chance.randrange(6):
            case 0:
                clock.tick(chance.choice([precision_ms, ring_ms // 3, ring_ms * 9 // 10]))
                store.advance(clock.now_ms())
            case 1:
                put(store, f"NOW{number}", 0)
            case 2:
                store.close()
                found = found_by_a_broker(tmp_path, clock.now_ms(), precision_ms)
                store = open_at(tmp_path, clock, precision_ms)
                assert found == keys_of(store)
            case _:
                slot_ms = START_MS + chance.randrange(3) * precision_ms
                rounds = (clock.now_ms() - START_MS) // ring_ms + chance.choice([1, 1, 2])
                message = Message("orders", b"", unique_key=f"K{number}")
                receipt = store.schedule(message, AtMs(slot_ms + rounds * ring_ms))
                if chance.randrange(4) == 0:
                    store.cancel(receipt)
    store.close()
