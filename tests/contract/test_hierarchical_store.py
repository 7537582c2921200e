# SPDX-License-Identifier: Apache-2.0
"""The hierarchical wheel keeps the contract, to the millisecond and by slots."""

from pathlib import Path

import pytest

from message_store import Clock, DelayStore, StoredMessage
from message_store.interface.promise_rules import to_slot_end
from message_store.writing.settings import StoreSettings
from tests.contract.delay_store_contract import DelayStoreContract
from tests.contract.durable_store_contract import DurableStoreContract
from tests.contract.test_wheel_store import DAY_MS, LOG_FILE_BYTES, stored_message
from tests.independent.raw_files import queue_units, record_at
from timer_wheel import HierarchicalWheelStore

SMALL = StoreSettings(commit_log_file_bytes=LOG_FILE_BYTES, queue_file_bytes=20 * 50)


def to_the_millisecond(due_ms: int, now_ms: int) -> int:
    """The rule once more: two times of a hundred are kept a little later."""
    to_slot_end(1, max_delay_ms=40 * DAY_MS)(due_ms, now_ms)
    return due_ms + {1: 2, 2: 1}.get(due_ms % 100, 0)


class Hierarchy(DelayStoreContract):
    precision_ms = 1

    def promise(self, due_ms: int, now_ms: int) -> int:
        if self.precision_ms == 1:
            return to_the_millisecond(due_ms, now_ms)
        return to_slot_end(self.precision_ms, max_delay_ms=40 * DAY_MS)(due_ms, now_ms)

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return HierarchicalWheelStore.open(
            folder, clock=clock, precision_ms=self.precision_ms, settings=SMALL
        )

    def abandon(self, store: DelayStore) -> None:
        assert isinstance(store, HierarchicalWheelStore)
        store.abandon()

    def consumed(self, store: DelayStore, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """All messages of a queue, read around the store."""
        assert isinstance(store, HierarchicalWheelStore)
        root = store.live.root.path
        units = queue_units(root / "consumequeue" / topic / str(queue_id))
        records = [
            record_at(root / "commitlog", LOG_FILE_BYTES, unit.commit_log_offset) for unit in units
        ]
        assert [unit.size_bytes for unit in units] == [record.total_size for record in records]
        return [stored_message(record) for record in records]


class TestMilliseconds(Hierarchy, DurableStoreContract):
    pass


@pytest.mark.check
class TestSeconds(Hierarchy, DurableStoreContract):
    precision_ms = 1_000


@pytest.mark.nightly
class TestTenths(Hierarchy):
    precision_ms = 100
