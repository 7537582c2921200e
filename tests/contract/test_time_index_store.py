# SPDX-License-Identifier: Apache-2.0
"""The time index keeps the contract, to the millisecond and within the log's retention."""

from pathlib import Path

from message_store import Clock, DelayStore, StoredMessage
from message_store.interface.promise_rules import to_slot_end
from message_store.writing.settings import StoreSettings
from tests.contract.durable_store_contract import DurableStoreContract
from tests.contract.test_wheel_store import LOG_FILE_BYTES, stored_message
from tests.independent.raw_files import queue_units, record_at
from time_index import TimeIndexStore

SMALL = StoreSettings(commit_log_file_bytes=LOG_FILE_BYTES, queue_file_bytes=20 * 50)


class TestTimeIndex(DurableStoreContract):
    def promise(self, due_ms: int, now_ms: int) -> int:
        return to_slot_end(1, max_delay_ms=SMALL.retention_ms)(due_ms, now_ms)

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return TimeIndexStore.open(folder, clock=clock, settings=SMALL)

    def abandon(self, store: DelayStore) -> None:
        assert isinstance(store, TimeIndexStore)
        store.abandon()

    def consumed(self, store: DelayStore, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """All messages of a queue, read around the store."""
        assert isinstance(store, TimeIndexStore)
        root = store.live.root.path
        units = queue_units(root / "consumequeue" / topic / str(queue_id))
        records = [
            record_at(root / "commitlog", LOG_FILE_BYTES, unit.commit_log_offset) for unit in units
        ]
        assert [unit.size_bytes for unit in units] == [record.total_size for record in records]
        return [stored_message(record) for record in records]
