# SPDX-License-Identifier: Apache-2.0
"""Writes a converted store by hand, one message at a time, from messages already placed."""

from __future__ import annotations

import collections
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import attrs

from tests.independent import config_text
from tests.independent.raw_files import (
    CHECKPOINT_BYTES,
    SLOT_BYTES,
    SLOT_COUNT,
    TIMER_BLANK_BYTES,
    TIMER_UNIT_BYTES,
    WHEEL_BYTES,
    QueueUnit,
    Slot,
    TimerUnit,
    encode_slot,
    encode_timer_unit,
)
from tests.independent.raw_records import (
    MAGIC_BLANK,
    TIMER_TOPIC,
    RawRecord,
    encode_record,
    java_hash,
    tags_code_of,
)
from tests.independent.store_file_writer import encode_queue_unit, write_log, write_segments

HALF_WHEEL_SLOTS = 302_400


@attrs.frozen
class PlacedMessage:
    """A record (still without its offsets), its slot and its unit's magic: 1, or 3 to roll."""

    record: RawRecord
    slot_time_ms: int
    magic: int = 1


@attrs.frozen(kw_only=True)
class TargetShape:
    now_ms: int
    precision_ms: int = 1000
    commit_log_file_bytes: int = 64 * 1024
    queue_file_bytes: int = 2000
    timer_log_file_bytes: int = 5200

    @property
    def write_time_ms(self) -> int:
        return self.now_ms // self.precision_ms * self.precision_ms


def write_target(root: Path, messages: Sequence[PlacedMessage], shape: TargetShape) -> None:
    """Every file of a store with a ready wheel; the order is that of the messages."""
    pieces: dict[int, bytes] = {}
    queue = b""
    offset = 0
    for number, message in enumerate(messages):
        size = len(encode_record(message.record))
        left = shape.commit_log_file_bytes - offset % shape.commit_log_file_bytes
        offset += left if size + 8 > left else 0
        record = attrs.evolve(message.record, queue_offset=number, commit_log_offset=offset)
        pieces[offset] = encode_record(record)
        tags_code = tags_code_of(record.effective.get("TAGS"))
        queue += encode_queue_unit(QueueUnit(offset, size, tags_code))
        offset += size
    write_log(root / "commitlog", pieces, offset, shape.commit_log_file_bytes)
    write_segments(root / "consumequeue" / TIMER_TOPIC / "0", queue, shape.queue_file_bytes)
    timer_log, slots = _timer_log_and_slots(messages, pieces, shape)
    if timer_log:
        write_segments(root / "timerlog", timer_log, shape.timer_log_file_bytes)
    with (root / "timerwheel").open("wb") as file:
        file.truncate(WHEEL_BYTES)
        for slot in slots.values():
            file.seek(slot.index * SLOT_BYTES)
            file.write(encode_slot(slot))
    _write_config(root / "config", messages, len(timer_log), shape)


def _timer_log_and_slots(
    messages: Sequence[PlacedMessage], pieces: dict[int, bytes], shape: TargetShape
) -> tuple[bytes, dict[int, Slot]]:
    log = bytearray()
    slots: dict[int, Slot] = {}
    for message, (offset, data) in zip(messages, pieces.items(), strict=True):
        left = shape.timer_log_file_bytes - len(log) % shape.timer_log_file_bytes
        if left < TIMER_UNIT_BYTES + TIMER_BLANK_BYTES:
            log += struct.pack(">iqi", left, 0, MAGIC_BLANK).ljust(left, b"\0")
        units = message.slot_time_ms // shape.precision_ms
        old = slots.get(units)
        unit = TimerUnit(
            position=len(log),
            size_bytes=TIMER_UNIT_BYTES,
            previous_position=old.last_position if old else -1,
            magic=message.magic,
            write_time_ms=shape.write_time_ms,
            delay_ms=message.slot_time_ms - shape.write_time_ms,
            commit_log_offset=offset,
            record_size_bytes=len(data),
            topic_hash=java_hash(message.record.effective["REAL_TOPIC"]),
            reserved=0,
        )
        log += encode_timer_unit(unit)
        first, count = (old.first_position, old.unit_count + 1) if old else (unit.position, 1)
        slots[units] = Slot(units % SLOT_COUNT, units, first, unit.position, count, 0)
    return bytes(log), slots


def _write_config(
    directory: Path, messages: Sequence[PlacedMessage], timer_log_end: int, shape: TargetShape
) -> None:
    read_ms = shape.write_time_ms - HALF_WHEEL_SLOTS * shape.precision_ms
    check = (read_ms, timer_log_end, len(messages), len(messages), 0, shape.now_ms, 1)
    counts = collections.Counter(one.record.effective["REAL_TOPIC"] for one in messages)
    metrics = {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": shape.now_ms},
        "timingCount": {
            topic: {"count": count, "timeStamp": shape.now_ms} for topic, count in counts.items()
        },
    }
    offsets = {f"{topic}@g": dict.fromkeys(range(4), 0) for topic in counts}
    directory.mkdir()
    (directory / "timercheck").write_bytes(
        struct.pack(">7q", *check).ljust(CHECKPOINT_BYTES, b"\0")
    )
    for name, text in [
        ("timermetrics", json.dumps(metrics, separators=(",", ":"))),
        ("topics.json", config_text.topics_text(dict.fromkeys(counts, 4), "5.5")),
        ("consumerOffset.json", config_text.consumer_offset_text(offsets, "5.5")),
        ("subscriptionGroup.json", config_text.subscription_group_text(["g"], "5.5")),
    ]:
        (directory / name).write_text(text, encoding="utf-8")
