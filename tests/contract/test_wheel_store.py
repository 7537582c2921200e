# SPDX-License-Identifier: Apache-2.0
"""The wheel keeps the contract at each of its precisions, and agrees with the model step by step."""

from pathlib import Path


from message_store import Clock, DelayStore
from message_store.promise_rules import to_slot_end
from message_store.store_settings import StoreSettings
from tests.contract.delay_store_contract import DelayStoreContract
from tests.contract.delay_store_machine import DelayStoreMachine
from tests.contract.durable_store_contract import DurableStoreContract
from tests.contract.naive_store import Model
from timer_wheel import WheelStore

DAY_MS = 86_400_000
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=20 * 100, timer_log_file_bytes=52 * 20 + 30
)


class Wheel:
    precision_ms = 1000
    max_delay_ms = 3 * DAY_MS

    def promise(self, due_ms: int, now_ms: int) -> int:
        return to_slot_end(self.precision_ms, max_delay_ms=self.max_delay_ms)(due_ms, now_ms)

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return WheelStore.open(
            folder,
            clock=clock,
            precision_ms=self.precision_ms,
            max_delay_ms=self.max_delay_ms,
            settings=SMALL,
        )

    def abandon(self, store: DelayStore) -> None:
        assert isinstance(store, WheelStore)
        store.abandon()


class TestSeconds(Wheel, DurableStoreContract):
    pass


class TestHundredths(Wheel, DurableStoreContract):
    precision_ms = 100


class TestFifths(Wheel, DurableStoreContract):
    precision_ms = 200


class TestHalves(Wheel, DurableStoreContract):
    precision_ms = 500
