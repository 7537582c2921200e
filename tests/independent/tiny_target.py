# SPDX-License-Identifier: Apache-2.0
"""A tiny converted store written by hand: twelve messages, one of each kind, over several files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import attrs

from tests.independent import config_text
from tests.independent.raw_files import (
    CHECKPOINT_BYTES,
    QUEUE_UNIT_BYTES,
    SLOT_COUNT,
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
    ip_bytes,
    java_hash,
    join_properties,
    tags_code_of,
)
from tests.independent.store_file_writer import encode_queue_unit, write_log, write_segments

NOW_MS = 1_700_000_000_123
WRITE_TIME_MS = 1_700_000_000_000
LOG_FILE_BYTES = 2048
QUEUE_FILE_BYTES = 5 * QUEUE_UNIT_BYTES
TIMER_FILE_BYTES = 4 * 52 + 20
CHECK_ARGUMENTS: dict[str, Any] = {
    "now_ms": NOW_MS,
    "commit_log_file_bytes": LOG_FILE_BYTES,
    "queue_file_bytes": QUEUE_FILE_BYTES,
    "timer_log_file_bytes": TIMER_FILE_BYTES,
}


@attrs.frozen(kw_only=True)
class TinyMessage:
    """OUT and slot time count in seconds from the write time."""

    out_s: int
    slot_s: int | None = None
    topic: str = "TopicA"
    queue_id: int = 0
    tags: str | None = "TagA"
    unique_key: str | None = "K1"
    magic: int = 1
    sys_flag: int = 0
    body: bytes = bytes(100)


MESSAGES = [
    TinyMessage(out_s=60),
    TinyMessage(out_s=-7200, slot_s=-3600),
    TinyMessage(out_s=-10, slot_s=-1, topic="%RETRY%g", queue_id=0),
    TinyMessage(out_s=-3000, slot_s=-1800, topic="TopicB", queue_id=3),
    TinyMessage(out_s=60, tags=None, unique_key=None),
    TinyMessage(out_s=0, sys_flag=0x10),
    TinyMessage(out_s=3 * 86_400, slot_s=86_400, magic=3),
    TinyMessage(out_s=2 * 86_400, slot_s=2 * 86_400 - 1, magic=3, tags="标签"),
    TinyMessage(out_s=2 * 86_400 - 2),
    TinyMessage(out_s=60, topic="TopicB"),
    TinyMessage(out_s=61),
    TinyMessage(out_s=2 * 86_400 - 3, body=b""),
]


def _record(number: int, offset: int, message: TinyMessage) -> RawRecord:
    pairs = [
        ("REAL_TOPIC", message.topic),
        ("UNIQ_KEY", message.unique_key),
        ("TAGS", message.tags),
        ("REAL_QID", str(message.queue_id)),
        ("TIMER_OUT_MS", str(WRITE_TIME_MS + message.out_s * 1000)),
    ]
    return RawRecord(
        topic=TIMER_TOPIC,
        body=message.body,
        properties=join_properties(
            [(name, value) for name, value in pairs if value is not None], ending=bool(number % 2)
        ),
        queue_offset=number,
        commit_log_offset=offset,
        sys_flag=message.sys_flag,
        born_ip=ip_bytes("2001::1" if message.sys_flag & 0x10 else "10.1.2.3"),
        store_timestamp_ms=NOW_MS,
    )


def write_tiny_target(
    root: Path,
    messages: list[TinyMessage] | None = None,
    log_file_bytes: int = LOG_FILE_BYTES,
) -> None:
    """A store that is right in every byte (when the messages are placed rightly)."""
    messages = MESSAGES if messages is None else messages
    pieces: dict[int, bytes] = {}
    queue = b""
    offset = 0
    for number, message in enumerate(messages):
        size = len(encode_record(_record(number, 0, message)))
        left = log_file_bytes - offset % log_file_bytes
        offset += left if size + 8 > left else 0
        pieces[offset] = encode_record(_record(number, offset, message))
        queue += encode_queue_unit(QueueUnit(offset, size, tags_code_of(message.tags)))
        offset += size
    write_log(root / "commitlog", pieces, offset, log_file_bytes)
    write_segments(root / "consumequeue" / TIMER_TOPIC / "0", queue, QUEUE_FILE_BYTES)
    _write_wheel(root, messages, pieces)
    _write_config(root / "config", messages)


def _write_wheel(root: Path, messages: list[TinyMessage], pieces: dict[int, bytes]) -> None:
    log = b""
    slots: dict[int, Slot] = {}
    for message, (offset, data) in zip(messages, pieces.items(), strict=True):
        if TIMER_FILE_BYTES - len(log) % TIMER_FILE_BYTES < 52 + 16:
            left = TIMER_FILE_BYTES - len(log) % TIMER_FILE_BYTES
            log += struct.pack(">iqi", left, 0, MAGIC_BLANK).ljust(left, b"\0")
        slot_s = message.out_s if message.slot_s is None else message.slot_s
        units = WRITE_TIME_MS // 1000 + slot_s
        old = slots.get(units)
        position = len(log)
        unit = TimerUnit(
            position=position,
            size_bytes=52,
            previous_position=old.last_position if old else -1,
            magic=message.magic,
            write_time_ms=WRITE_TIME_MS,
            delay_ms=slot_s * 1000,
            commit_log_offset=offset,
            record_size_bytes=len(data),
            topic_hash=java_hash(message.topic),
            reserved=0,
        )
        log += encode_timer_unit(unit)
        first, count = (old.first_position, old.unit_count + 1) if old else (position, 1)
        slots[units] = Slot(units % SLOT_COUNT, units, first, position, count, 0)
    if log:
        write_segments(root / "timerlog", log, TIMER_FILE_BYTES)
    with (root / "timerwheel").open("wb") as file:
        file.truncate(WHEEL_BYTES)
        for slot in slots.values():
            file.seek(slot.index * 32)
            file.write(encode_slot(slot))
    check = (WRITE_TIME_MS - 302_400_000, len(log), len(messages), len(messages), 0, NOW_MS, 1)
    (root / "config").mkdir()
    (root / "config" / "timercheck").write_bytes(
        struct.pack(">7q", *check).ljust(CHECKPOINT_BYTES, b"\0")
    )


def _write_config(directory: Path, messages: list[TinyMessage]) -> None:
    topics = sorted({message.topic for message in messages})
    counts = {
        topic: {"count": sum(m.topic == topic for m in messages), "timeStamp": NOW_MS}
        for topic in topics
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": NOW_MS}
    metrics = {"dataVersion": version, "timingCount": counts}
    offsets = {f"{topic}@g": dict.fromkeys(range(4), 0) for topic in topics}
    for name, text in [
        ("timermetrics", json.dumps(metrics, separators=(",", ":"))),
        ("topics.json", config_text.topics_text(dict.fromkeys(topics, 4), "5.5")),
        ("consumerOffset.json", config_text.consumer_offset_text(offsets, "5.5")),
        ("subscriptionGroup.json", config_text.subscription_group_text(["g"], "5.5")),
    ]:
        (directory / name).write_text(text, encoding="utf-8")
