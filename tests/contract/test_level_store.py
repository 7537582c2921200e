# SPDX-License-Identifier: Apache-2.0
"""The levels keep the contract, in both dialects, by files that an independent reader reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from legacy_levels import LevelRules, LevelStore
from message_store import Clock, DelayLevels, DelayStore, MemoryStore, StoredMessage
from message_store.base.errors import StoreLockedError
from message_store.engine.engine import Engine
from message_store.format.dialect import Dialect
from message_store.format.message import Host
from message_store.interface.promise_rules import to_level
from message_store.writing.settings import StoreSettings
from tests.contract.delay_store_machine import DelayStoreMachine
from tests.contract.durable_store_contract import DurableStoreContract
from tests.contract.naive_store import Model
from tests.independent.raw_files import queue_units, record_at
from tests.independent.raw_records import RawRecord

LEVELS = DelayLevels.parse()
LOG_FILE_BYTES = 1 << 20
SMALL_FILES = StoreSettings(commit_log_file_bytes=LOG_FILE_BYTES, queue_file_bytes=20 * 50)
"""Queue files of fifty entries, so that borders are crossed."""


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


def consumed_from_files(store: DelayStore, topic: str, queue_id: int) -> list[StoredMessage]:
    """All messages of a queue, read around the store."""
    assert isinstance(store, Engine)
    root = store.live.root.path
    units = queue_units(root / "consumequeue" / topic / str(queue_id))
    records = [record_at(root / "commitlog", LOG_FILE_BYTES, u.commit_log_offset) for u in units]
    assert [unit.size_bytes for unit in units] == [record.total_size for record in records]
    return [stored_message(record) for record in records]


class Levels(DurableStoreContract):
    dialect = Dialect.ROCKETMQ_4_9
    how = LevelRules()

    def promise(self, due_ms: int, now_ms: int) -> int:
        return to_level(LEVELS)(due_ms, now_ms)

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return LevelStore.open(
            folder, clock=clock, dialect=self.dialect, settings=SMALL_FILES, rules=self.how
        )

    def abandon(self, store: DelayStore) -> None:
        assert isinstance(store, LevelStore)
        store.abandon()

    def consumed(self, store: DelayStore, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        return consumed_from_files(store, topic, queue_id)


class TestLevelsOf49(Levels):
    pass


@pytest.mark.check
class TestLevelsOf55(Levels):
    dialect = Dialect.ROCKETMQ_5_5


class TestAsynchronousLevels(Levels):
    dialect = Dialect.ROCKETMQ_5_3
    how = LevelRules(async_delivery=True)


class LevelMachine(DelayStoreMachine):
    durable = True
    how = LevelRules()

    def promise(self, due_ms: int, now_ms: int) -> int:
        return to_level(LEVELS)(due_ms, now_ms)

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return LevelStore.open(folder, clock=clock, settings=SMALL_FILES, rules=self.how)

    def make_model(self, clock: Clock) -> Model:
        return MemoryStore(clock, promise=self.promise, levels=LEVELS)

    def abandon(self, store: DelayStore) -> None:
        assert isinstance(store, LevelStore)
        store.abandon()


class StrictLevelMachine(LevelMachine):
    def promise(self, due_ms: int, now_ms: int) -> int:
        return to_level(LEVELS, rounding="exact")(due_ms, now_ms)

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        return LevelStore.open(folder, clock=clock, settings=SMALL_FILES, rounding="exact")


class AsyncLevelMachine(LevelMachine):
    how = LevelRules(async_delivery=True)


# The long runs are those of test_engine_machines.
for machine in (LevelMachine, StrictLevelMachine, AsyncLevelMachine):
    machine.TestCase.settings = settings(max_examples=8, deadline=None)

TestLevelMachine = LevelMachine.TestCase
TestStrictLevelMachine = StrictLevelMachine.TestCase
TestAsyncLevelMachine = AsyncLevelMachine.TestCase


def test_a_store_that_is_open_cannot_be_opened_again(tmp_path: Path) -> None:
    one = LevelStore.open(tmp_path / "store", settings=SMALL_FILES)
    with one, pytest.raises(StoreLockedError):
        LevelStore.open(tmp_path / "store", settings=SMALL_FILES)
