# SPDX-License-Identifier: Apache-2.0
"""The wheel keeps the contract at each of its precisions, by files that an independent reader
reads.
"""

from pathlib import Path

import pytest

from message_store import Clock, DelayStore, StoredMessage
from message_store.format.message import Host
from message_store.interface.promise_rules import to_slot_end
from message_store.writing.settings import StoreSettings
from tests.contract.delay_store_contract import DelayStoreContract
from tests.contract.durable_store_contract import DurableStoreContract
from tests.independent.raw_files import queue_units, record_at
from tests.independent.raw_records import RawRecord
from timer_wheel import WheelStore
from timer_wheel.timers.store import TimerStore
from timer_wheel.wheel import waiting

DAY_MS = 86_400_000
LOG_FILE_BYTES = 1 << 20
SMALL = StoreSettings(
    commit_log_file_bytes=LOG_FILE_BYTES,
    queue_file_bytes=20 * 50,
    timer_log_file_bytes=20 * 52 + 30,
)
"""Queue files of fifty entries and timer log files of twenty units, so that borders are crossed."""


def stored_message(raw: RawRecord) -> StoredMessage:
    """An independently read record as the value that the contract speaks of."""
    return StoredMessage(
        topic=raw.topic,
        body=raw.body,
        body_crc=raw.body_crc or 0,
        properties_text=raw.properties,
        queue_id=raw.queue_id,
        queue_offset=raw.queue_offset,
        commit_log_offset=raw.commit_log_offset,
        born_timestamp_ms=raw.born_timestamp_ms,
        born_host=Host(raw.born_ip, raw.born_port),
        store_timestamp_ms=raw.store_timestamp_ms,
        store_host=Host(raw.store_ip, raw.store_port),
        flag=raw.flag,
        sys_flag=raw.sys_flag,
        reconsume_times=raw.reconsume_times,
        prepared_transaction_offset=raw.prepared_transaction_offset,
        magic=raw.magic or 0,
    )


class Wheel(DelayStoreContract):
    precision_ms = 1000

    def promise(self, due_ms: int, now_ms: int) -> int:
        return to_slot_end(self.precision_ms, max_delay_ms=3 * DAY_MS)(due_ms, now_ms)

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return WheelStore.open(folder, clock=clock, precision_ms=self.precision_ms, settings=SMALL)

    def abandon(self, store: DelayStore) -> None:
        assert isinstance(store, WheelStore)
        store.abandon()

    def consumed(self, store: DelayStore, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """All messages of a queue, read around the store."""
        assert isinstance(store, TimerStore)
        root = store.live.root.path
        units = queue_units(root / "consumequeue" / topic / str(queue_id))
        log = root / "commitlog"
        records = [record_at(log, LOG_FILE_BYTES, unit.commit_log_offset) for unit in units]
        assert [unit.size_bytes for unit in units] == [record.total_size for record in records]
        return [stored_message(record) for record in records]


class TestSeconds(Wheel, DurableStoreContract):
    pass


@pytest.mark.nightly
class TestHalves(Wheel, DurableStoreContract):
    precision_ms = 500


@pytest.mark.nightly
class TestFifths(Wheel, DurableStoreContract):
    precision_ms = 200


@pytest.mark.nightly
class TestTenths(Wheel, DurableStoreContract):
    precision_ms = 100


class TestNothingIsTooLong(Wheel):
    """Beyond the limit a message is delivered at once, as the manual of 5.0 says."""

    def promise(self, due_ms: int, now_ms: int) -> int:
        rule = to_slot_end(1000, max_delay_ms=3_600_000, beyond_max="deliver")
        return rule(due_ms, now_ms)

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return WheelStore.open(
            folder, clock=clock, max_delay_ms=3_600_000, beyond_max="deliver", settings=SMALL
        )


class TestShortRounds(Wheel, DurableStoreContract):
    """A window of six slots: nearly everything rolls. A listing goes slot by slot."""

    @pytest.fixture(autouse=True)
    def slot_by_slot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waiting, "_SLOTS_AT_ONCE", 1)

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return WheelStore.open(folder, clock=clock, roll_window_slots=6, settings=SMALL)
