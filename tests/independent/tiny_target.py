# SPDX-License-Identifier: Apache-2.0
"""A tiny converted store written by hand: twelve messages, one of each kind, over several files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from tests.independent.raw_files import QUEUE_UNIT_BYTES
from tests.independent.raw_records import TIMER_TOPIC, RawRecord, ip_bytes, join_properties
from tests.independent.target_writer import PlacedMessage, TargetShape, write_target

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


def _record(number: int, message: TinyMessage) -> RawRecord:
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
    shape = TargetShape(
        now_ms=NOW_MS,
        commit_log_file_bytes=log_file_bytes,
        queue_file_bytes=QUEUE_FILE_BYTES,
        timer_log_file_bytes=TIMER_FILE_BYTES,
    )
    placed = []
    for number, message in enumerate(MESSAGES if messages is None else messages):
        slot_s = message.out_s if message.slot_s is None else message.slot_s
        slot_time_ms = WRITE_TIME_MS + slot_s * 1000
        placed.append(PlacedMessage(_record(number, message), slot_time_ms, message.magic))
    write_target(root, placed, shape)
