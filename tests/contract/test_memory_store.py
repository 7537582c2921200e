# SPDX-License-Identifier: Apache-2.0
"""The model keeps the contract, whatever rule it is given, and agrees with a plain dict."""

import copy
from pathlib import Path

import numpy as np
import pytest

from message_store import (
    AfterMs,
    AtMs,
    Cancellation,
    Clock,
    DelayLevels,
    DelayStore,
    ManualClock,
    MemoryStore,
    Message,
    MessageBatch,
)
from message_store.base.errors import BadFieldError
from message_store.interface.promise_rules import exact, to_level, to_slot_end
from tests.contract.delay_store_contract import DelayStoreContract
from tests.contract.delay_store_machine import DelayStoreMachine
from tests.contract.durable_store_contract import DurableStoreContract
from tests.contract.naive_store import Model, NaiveStore

LEVELS = DelayLevels.parse()
DAY_MS = 86_400_000


class Exact:
    def promise(self, due_ms: int, now_ms: int) -> int:
        return exact(due_ms, now_ms)


class Slots:
    def promise(self, due_ms: int, now_ms: int) -> int:
        return to_slot_end(1_000, max_delay_ms=3 * DAY_MS)(due_ms, now_ms)


class FineSlots:
    def promise(self, due_ms: int, now_ms: int) -> int:
        return to_slot_end(100, max_delay_ms=DAY_MS, beyond_max="deliver")(due_ms, now_ms)


class Levels:
    def promise(self, due_ms: int, now_ms: int) -> int:
        return to_level(LEVELS)(due_ms, now_ms)


class StrictLevels:
    def promise(self, due_ms: int, now_ms: int) -> int:
        return to_level(LEVELS, rounding="exact")(due_ms, now_ms)


class MemoryContract(DelayStoreContract):
    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return MemoryStore(clock, promise=self.promise, levels=LEVELS)


class TestExact(Exact, MemoryContract):
    pass


@pytest.mark.nightly
class TestSlots(Slots, MemoryContract):
    pass


@pytest.mark.nightly
class TestFineSlots(FineSlots, MemoryContract):
    pass


class TestLevels(Levels, MemoryContract):
    pass


class TestOneLifeAfterTheOther(Slots, DurableStoreContract):
    """What a durable store owes, tried on memory that a new object inherits."""

    heirs: dict[Path, MemoryStore]

    @pytest.fixture(autouse=True)
    def no_heirs(self) -> None:
        self.heirs = {}

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        if folder in self.heirs:
            self.heirs[folder] = copy.copy(self.heirs[folder])
            self.heirs[folder]._closed = False
        else:
            self.heirs[folder] = MemoryStore(clock, promise=self.promise)
        return self.heirs[folder]

    def abandon(self, store: DelayStore) -> None:
        store.close()


def test_a_receipt_takes_back_its_own_message_and_a_handle_all_that_it_names() -> None:
    """What is equal in topic, time and key is told apart by its place in the log."""
    store = MemoryStore(ManualClock(0))
    receipts = [
        store.schedule(Message("orders", b"%d" % number, unique_key="K"), AfterMs(10))
        for number in range(4)
    ]
    assert len({receipt.handle for receipt in receipts}) == 1
    assert store.cancel(receipts[1]) is Cancellation.CANCELLED
    assert len(list(store.pending())) == 3
    assert [each.message.body for each in store.advance(10)] == [b"0", b"2", b"3"]
    assert store.cancel(receipts[0]) is Cancellation.ALREADY_DELIVERED
    assert store.cancel(receipts[1]) is Cancellation.CANCELLED
    assert store.cancel(receipts[1].handle) is Cancellation.ALREADY_DELIVERED
    anew = [store.schedule(Message("orders", b"", unique_key="K"), AtMs(20)) for _ in range(3)]
    assert store.cancel(anew[0].handle) is Cancellation.CANCELLED
    assert list(store.pending()) == []


@pytest.mark.parametrize(
    "bad",
    [
        Message("orders", b"", properties={"DELAY": "3"}),
        Message("orders", b"", properties={"TIMER_OUT_MS": "3"}),
        Message("../orders", b""),
        Message("SCHEDULE_TOPIC_XXXX", b""),
        Message("orders", b"", unique_key="no spaces"),
        Message("orders", bytes(4 * 1024 * 1024 + 1)),
    ],
    ids=["level", "timer", "path", "system topic", "unique key", "body"],
)
def test_what_an_engine_refuses_the_model_refuses_too(bad: Message) -> None:
    store = MemoryStore(ManualClock(0))
    with pytest.raises(BadFieldError):
        store.schedule(bad, AfterMs(10))
    with pytest.raises(BadFieldError, match="row 1: "):
        store.schedule_batch(MessageBatch.of([Message("orders", b""), bad]), np.full(2, 10))
    assert list(store.pending()) == []


def test_what_no_handle_can_tell_is_refused_and_does_not_wait() -> None:
    store = MemoryStore(ManualClock(1))
    with pytest.raises(BadFieldError, match="64 bits"):
        store.schedule(Message("orders", b""), AfterMs(2**63 - 1))
    assert store.next_due_ms() is None


class MemoryMachine(DelayStoreMachine):
    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return MemoryStore(clock, promise=self.promise, levels=LEVELS)

    def make_model(self, clock: Clock) -> Model:
        return NaiveStore(clock, self.promise, LEVELS)


class ExactMachine(Exact, MemoryMachine):
    pass


class SlotMachine(Slots, MemoryMachine):
    pass


class FineSlotMachine(FineSlots, MemoryMachine):
    pass


class LevelMachine(Levels, MemoryMachine):
    pass


class StrictLevelMachine(StrictLevels, MemoryMachine):
    pass


TestExactMachine = ExactMachine.TestCase
TestSlotMachine = SlotMachine.TestCase
TestFineSlotMachine = FineSlotMachine.TestCase
TestLevelMachine = LevelMachine.TestCase
TestStrictLevelMachine = StrictLevelMachine.TestCase
