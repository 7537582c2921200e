# SPDX-License-Identifier: Apache-2.0
"""Reads a converted store as a broker delivers from it: wheel, slots, chains, records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.independent.raw_files import (
    TIMER_UNIT_BYTES,
    Slot,
    TimerUnit,
    read_range,
    record_at,
    segments,
    wheel_slots,
)
from tests.independent.raw_records import BadRecordError, RawRecord, body_sha1

ROLL = 2

_SYSTEM_PROPERTY_TEXT = """
KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION
TRACE_ON UNIQ_KEY EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME INSTANCE_ID CLUSTER
TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES CHECK_IMMUNITY_TIME_IN_SECONDS
CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME MSG_TYPE BORN_HOST
BORN_TIMESTAMP TRACE_CONTEXT __transactionId__ __CRC32# __STARTDELIVERTIME
INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET INNER_NUM INNER_BASE
TIMER_DELIVER_MS TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_OUT_MS TIMER_ROLL_TIMES
TIMER_ROLL_LABEL TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL
"""
SYSTEM_PROPERTY_NAMES = frozenset(_SYSTEM_PROPERTY_TEXT.split())


def user_properties_of(record: RawRecord) -> dict[str, str]:
    """What the producer's own code had put on the message."""
    return {
        name: value for name, value in record.effective.items() if name not in SYSTEM_PROPERTY_NAMES
    }


@attrs.frozen
class TargetMessage:
    """A message the wheel will deliver, with the unit that leads to it."""

    record: RawRecord
    unit: TimerUnit
    slot_time_ms: int

    @property
    def out_ms(self) -> int:
        return int(self.record.effective["TIMER_OUT_MS"])

    @property
    def is_rolled(self) -> bool:
        return bool(self.unit.magic & ROLL)

    @property
    def topic(self) -> str:
        return self.record.effective["REAL_TOPIC"]

    @property
    def queue_id(self) -> int:
        return int(self.record.effective["REAL_QID"])

    @property
    def unique_key(self) -> str | None:
        return self.record.effective.get("UNIQ_KEY")

    @property
    def tags(self) -> str | None:
        return self.record.effective.get("TAGS")

    @property
    def keys(self) -> str | None:
        return self.record.effective.get("KEYS")

    @property
    def user_properties(self) -> dict[str, str]:
        return user_properties_of(self.record)

    @property
    def body_sha1(self) -> str:
        return body_sha1(self.record)


def read_target(path: Path, *, precision_ms: int = 1000) -> list[TargetMessage]:
    """Every message in the order the wheel reaches it; BadRecordError on a broken reference.

    File sizes are taken from the first files. A store without a timer log holds nothing.
    """
    log_bytes = _file_bytes(path / "commitlog")
    timer_bytes = _file_bytes(path / "timerlog")
    if timer_bytes == 0:
        return []
    messages = []
    for slot in sorted(wheel_slots(path / "timerwheel"), key=lambda slot: slot.time_units):
        for unit in reversed(list(_chain(path / "timerlog", timer_bytes, slot))):
            record = record_at(path / "commitlog", log_bytes, unit.commit_log_offset)
            if record.total_size != unit.record_size_bytes:
                raise BadRecordError(f"timer unit at {unit.position}: record of another size")
            messages.append(TargetMessage(record, unit, slot.time_units * precision_ms))
    return messages


def _chain(timer_log: Path, file_bytes: int, slot: Slot) -> Iterator[TimerUnit]:
    """From the slot's last unit back to its first, as delivery walks."""
    position = slot.last_position
    while position != -1:
        data = read_range(timer_log, file_bytes, position, TIMER_UNIT_BYTES)
        if len(data) < TIMER_UNIT_BYTES:
            raise BadRecordError(f"slot {slot.index}: no timer unit at {position}")
        unit = TimerUnit(position, *struct.unpack(">iqiqiqiiq", data))
        if unit.previous_position >= position:
            raise BadRecordError(f"timer unit at {position} points to {unit.previous_position}")
        yield unit
        position = unit.previous_position


def _file_bytes(directory: Path) -> int:
    files = segments(directory)
    return files[0].stat().st_size if files else 0
