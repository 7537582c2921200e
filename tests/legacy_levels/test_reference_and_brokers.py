# SPDX-License-Identifier: Apache-2.0
"""The reference against recorded traces of real brokers: it gets what a broker got, when it got it,
and delivers what the broker delivered, in its order, and saves the offsets that it saved.

A trace is a store of ``tests/fixtures``: the level queues with the times at which their records
were stored, the copies in the log, delayOffset.json, and the truth that was noted beside it.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import attrs
import pytest

from legacy_levels.delay_offsets import DelayOffsets, OffsetsChoice, read_delay_offsets
from legacy_levels.reference.protocol import CqUnit, MessageStoreConfig
from legacy_levels.schedule_message_service import ScheduleMessageService
from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from tests.independent.raw_files import commit_log_records, queue_units, read_range
from tests.independent.raw_records import RawRecord
from tests.independent.real_stores import LEVELS_49_CLEAN, LEVELS_55_CLEAN, RealStore

STEP_MS = 100
MARGIN_MS = 1_500
"""A broker's threads may be late by a look or two, and by more before its first deliveries."""


@attrs.define
class RecordedQueue:
    """A level queue as it was at a moment."""

    units: Sequence[CqUnit]
    max_offset: int
    min_offset: int = 0

    def get_index_buffer(self, offset: int) -> Sequence[CqUnit]:
        return self.units[offset : self.max_offset]


class RecordedBroker:
    """A ``BrokerStore`` without files: entries appear when their records were stored."""

    def __init__(self, real: RealStore, empty: Path) -> None:
        self.log = real.root / "commitlog"
        self.file_bytes = real.commit_log_file_bytes
        self.now = min(line.store_timestamp_ms or 1 << 62 for line in real.truth) - 2_000
        self.start = self.now
        self.empty = empty
        self.text = b""
        self.put: list[StoredMessage] = []
        self.units: dict[int, list[CqUnit]] = defaultdict(list)
        self.stored_ms: dict[int, list[int]] = defaultdict(list)
        for folder in (real.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX").iterdir():
            level = int(folder.name) + 1
            for unit in queue_units(folder):
                entry = CqUnit(unit.commit_log_offset, unit.size_bytes, unit.tags_code)
                message = self.look_message_by_offset(entry.pos, entry.size)
                self.units[level].append(entry)
                self.stored_ms[level].append(message.store_timestamp_ms)

    def now_ms(self) -> int:
        return self.now

    def nano_time_ms(self) -> int:
        return self.now - self.start

    def find_consume_queue(self, delay_level: int) -> RecordedQueue:
        end = bisect_right(self.stored_ms[delay_level], self.now)
        return RecordedQueue(self.units[delay_level], end)

    def look_message_by_offset(self, pos: int, size: int) -> StoredMessage:
        return decode_message_at(memoryview(read_range(self.log, self.file_bytes, pos, size)))

    def async_put_message(self, message: StoredMessage) -> "Future[bool]":
        self.put.append(message)
        answer: Future[bool] = Future()
        answer.set_result(True)
        return answer

    def load_config(self) -> DelayOffsets:
        return read_delay_offsets(self.empty, OffsetsChoice.NONE)

    def persist_config(self, text: bytes) -> None:
        self.text = text


def replay(real: RealStore, empty: Path, version: Dialect) -> tuple[RecordedBroker, dict[int, int]]:
    """Run until the broker was stopped; also the offsets of the levels then."""
    broker = RecordedBroker(real, empty)
    service = ScheduleMessageService(broker, MessageStoreConfig(version=version))
    assert service.load()
    service.start()
    while broker.now < real.stopped_ms:
        broker.now += STEP_MS
        service.run_due_tasks()
    service.shutdown()
    return broker, service.offset_table


def copies_of(real: RealStore) -> Mapping[str, list[RawRecord]]:
    """The delivered copies in a broker's log by unique key."""
    found: dict[str, list[RawRecord]] = defaultdict(list)
    for placed in commit_log_records(real.root / "commitlog"):
        record = placed.record
        is_copy = "DELAY" in record.effective and record.topic != "SCHEDULE_TOPIC_XXXX"
        if is_copy and "REAL_TOPIC" in record.effective:
            found[record.effective["UNIQ_KEY"]].append(record)
    return found


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "version"),
    [(LEVELS_49_CLEAN, Dialect.ROCKETMQ_4_9), (LEVELS_55_CLEAN, Dialect.ROCKETMQ_5_5)],
)
def test_the_reference_does_what_a_broker_did(
    tmp_path: Path, name: str, version: Dialect, real_store: Callable[[str], RealStore]
) -> None:
    real = real_store(name)
    broker, offsets = replay(real, tmp_path, version)
    saved = read_delay_offsets(real.root).offsets
    put: dict[int, list[StoredMessage]] = defaultdict(list)
    for message in broker.put:
        put[int(message.properties["DELAY"])].append(message)
    copies = copies_of(real)
    assert version is Dialect.ROCKETMQ_4_9 or saved.keys() == offsets.keys()
    assert sum(map(len, put.values())) > 500
    last_ms = max(line.delivered_store_timestamp_ms or 0 for line in real.truth)
    for level, units in broker.units.items():
        # What was due in the last moments depends on how late the broker's threads were.
        latest = [unit.tags_code < last_ms - MARGIN_MS for unit in units].count(True)
        assert latest <= saved.get(level, 0) <= offsets.get(level, 0)
        delivered = put[level][: saved.get(level, 0)]
        keys = [broker.look_message_by_offset(u.pos, u.size).unique_key for u in units]
        assert [message.unique_key for message in delivered] == keys[: len(delivered)]
        for message in delivered:
            assert message.unique_key is not None
            assert any(is_same(message, copy) for copy in copies[message.unique_key]), level


def is_same(message: StoredMessage, copy: RawRecord) -> bool:
    return (
        (message.topic, message.queue_id, message.body, message.flag, message.sys_flag)
        == (copy.topic, copy.queue_id, copy.body, copy.flag, copy.sys_flag)
        and message.prepared_transaction_offset == copy.prepared_transaction_offset == 0
        and message.born_timestamp_ms == copy.born_timestamp_ms
        and (message.born_host.ip, message.store_host.ip) == (copy.born_ip, copy.store_ip)
        and message.reconsume_times == copy.reconsume_times
        and message.properties == copy.effective
    )


@pytest.mark.check
def test_a_broker_s_offsets_are_the_same_bytes(
    tmp_path: Path, real_store: Callable[[str], RealStore]
) -> None:
    """Each level up to where the broker was when it was stopped; then the file is equal."""
    real = real_store(LEVELS_49_CLEAN)
    saved = read_delay_offsets(real.root).offsets
    broker = RecordedBroker(real, tmp_path)
    for level in broker.units:
        del broker.units[level][saved.get(level, 0) :]
        del broker.stored_ms[level][saved.get(level, 0) :]
    service = ScheduleMessageService(broker, MessageStoreConfig())
    service.start()
    while broker.now < real.stopped_ms + 60_000:
        broker.now += STEP_MS
        service.run_due_tasks()
    service.shutdown()
    assert broker.text == (real.root / "config" / "delayOffset.json").read_bytes()
