# SPDX-License-Identifier: Apache-2.0
"""Source and target stores for the tests of verification, both written by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from message_store.files.store_root import StoreRoot
from migrate.progress import no_progress
from migrate.report.marker import read_settings
from migrate.verify.report import VerifyReport
from migrate.verify.source import PendingMessages
from migrate.verify.structure import read_reached
from migrate.verify.verify import VerifyOptions, compare_stores
from tests.independent import config_text
from tests.independent.level_store_builder import (
    T0,
    BuiltStore,
    LevelMessage,
    Placed,
    build_level_store,
    retry_message,
)
from tests.independent.raw_files import (
    CHECKPOINT_BYTES,
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
    java_hash,
    join_properties,
    tags_code_of,
)
from tests.independent.store_file_writer import encode_queue_unit, write_log, write_segments

NOW_MS = T0 + 600_123
LOG_FILE_BYTES = 4096
QUEUE_FILE_BYTES = 20 * 20
TIMER_FILE_BYTES = 8 * 52 + 20
WINDOW_SLOTS = 3600
REMOVED = {
    "DELAY",
    "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES",
    "TIMER_ROLL_LABEL",
    "TIMER_DEL_UNIQKEY",
    "__CRC32#",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
}

MESSAGES = [
    LevelMessage(level=3, body=b"overdue, the first", queue_id=2),
    LevelMessage(level=3, body=b"overdue, the second", store_timestamp_ms=T0 + 1000),
    LevelMessage(level=14, body=b"ten minutes", store_timestamp_ms=T0 + 500_500),
    LevelMessage(level=17, body=b"one hour", keys="k1 k2", tags=None, store_timestamp_ms=T0 + 1),
    LevelMessage(level=18, body=b"rolls", store_timestamp_ms=T0 + 2),
    LevelMessage(level=18, body=b"rolls too", tags="标签", store_timestamp_ms=T0 + 3_000),
    retry_message(level=16, body=b"again", unique_key="SAME", store_timestamp_ms=T0 + 4),
    retry_message(
        level=16, body=b"again", unique_key="SAME", reconsume_times=2, store_timestamp_ms=T0 + 5
    ),
    LevelMessage(level=16, body=b"no key", unique_key=None, store_timestamp_ms=T0 + 6),
    LevelMessage(level=16, body=b"twin", unique_key="TWIN", store_timestamp_ms=T0 + 7),
    LevelMessage(level=16, body=b"twin", unique_key="TWIN", store_timestamp_ms=T0 + 7),
    LevelMessage(
        level=17,
        body=bytes(range(256)) * 3,
        born_host=("2001:db8::1", 4567),
        store_timestamp_ms=T0 + 8,
        user_properties={"城市": "Zürich", "empty-ish": " "},
    ),
    LevelMessage(
        level=17,
        body=b"x" * 1500,
        compress_body=True,
        store_host=("2001:db8::2", 10911),
        ends_with_separator=True,
        topic="TopicB",
        queue_id=3,
        store_timestamp_ms=T0 + 9,
    ),
    LevelMessage(
        level=15,
        body=b"has what must go",
        extra_pairs=[
            ("TIMER_ROLL_TIMES", "3"),
            ("TIMER_OUT_MS", "5"),
            ("TIMER_DEL_UNIQKEY", "x"),
            ("INNER_MULTI_DISPATCH", "%LMQ%a"),
            ("INNER_MULTI_QUEUE_OFFSET", "7"),
            ("TIMER_DELAY_SEC", "9"),
        ],
        store_timestamp_ms=T0 + 10,
    ),
    *[
        LevelMessage(level=16, body=bytes([n]) * n, flag=n, store_timestamp_ms=T0 + 20 + n)
        for n in range(1, 20)
    ],
]


@attrs.define
class Converted:
    """A record of a target to be, with what leads to it."""

    record: RawRecord
    out_ms: int
    slot_ms: int
    flags: int = 1


@attrs.frozen
class Stores:
    source: BuiltStore
    target: Path
    pending: PendingMessages

    def verify(self, **changes: Any) -> VerifyReport:
        options = VerifyOptions(**changes)
        source, target = StoreRoot(self.source.root), StoreRoot(self.target)
        settings = read_settings(target)
        return compare_stores(
            self.pending,
            read_reached(target, settings),
            source,
            target,
            settings,
            spark=None,
            options=options,
            progress=no_progress,
        )


def make_stores(path: Path, messages: Sequence[LevelMessage] = MESSAGES, **facts: Any) -> Stores:
    """A source with these messages, and a target that is right in every byte."""
    built = build_level_store(path / "source", messages, **facts)
    waiting = [one for one in built.placed if isinstance(one.item, LevelMessage)]
    write_target(path / "target", convert(waiting))
    return Stores(built, path / "target", pending_of(waiting))


def pending_of(waiting: Sequence[Placed]) -> PendingMessages:
    rows = []
    for one in waiting:
        assert isinstance(one.item, LevelMessage)
        rows.append(
            (one.commit_log_offset, len(one.data), one.item.level, one.queue_offset, one.due_ms)
        )
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return PendingMessages(*(column.copy() for column in columns))


def write_time_ms(precision_ms: int = 1000) -> int:
    return NOW_MS // precision_ms * precision_ms


def convert(waiting: Sequence[Placed], precision_ms: int = 1000) -> list[Converted]:
    """The records in store order, overdue ones in the last slots before now."""
    now = write_time_ms(precision_ms)
    converted = []
    for one in waiting:
        assert one.record is not None
        assert one.due_ms is not None
        out_ms = -(-one.due_ms // precision_ms) * precision_ms - precision_ms
        slot_ms, flags = out_ms, 1
        if out_ms - now >= WINDOW_SLOTS * precision_ms:
            slot_ms, flags = now + (WINDOW_SLOTS - 5) * precision_ms, 3
        converted.append(Converted(timer_record(one.record, out_ms), out_ms, slot_ms, flags))
    overdue = sorted((one for one in converted if one.out_ms < now), key=lambda one: one.out_ms)
    for place, late in enumerate(reversed(overdue), start=1):
        late.slot_ms = now - place * precision_ms
    return converted


def timer_record(record: RawRecord, out_ms: int) -> RawRecord:
    pairs = [(name, value) for name, value in record.pairs if name not in REMOVED]
    pairs.append(("TIMER_OUT_MS", str(out_ms)))
    return attrs.evolve(
        record,
        topic=TIMER_TOPIC,
        queue_id=0,
        properties=join_properties(pairs, ending=record.properties.endswith(b"\x02")),
        store_timestamp_ms=NOW_MS,
        prepared_transaction_offset=0,
    )


def write_target(root: Path, messages: Sequence[Converted], precision_ms: int = 1000) -> None:
    pieces: dict[int, bytes] = {}
    queue = b""
    offset = 0
    for number, one in enumerate(messages):
        size = len(encode_record(one.record))
        left = LOG_FILE_BYTES - offset % LOG_FILE_BYTES
        offset += left if size + 8 > left else 0
        record = attrs.evolve(one.record, queue_offset=number, commit_log_offset=offset)
        pieces[offset] = encode_record(record)
        tags_code = tags_code_of(record.effective.get("TAGS"))
        queue += encode_queue_unit(QueueUnit(offset, size, tags_code))
        offset += size
    write_log(root / "commitlog", pieces, offset, LOG_FILE_BYTES)
    write_segments(root / "consumequeue" / TIMER_TOPIC / "0", queue, QUEUE_FILE_BYTES)
    end = _write_wheel(root, messages, pieces, precision_ms)
    _write_config(root / "config", messages, end, precision_ms)
    settings: dict[str, Any] = {
        "now_ms": NOW_MS,
        "precision_ms": precision_ms,
        "level_table": None,
        "offsets": "auto",
        "after_crash": False,
        "only_levels": [],
        "only_topics": [],
        "commit_log_file_bytes": LOG_FILE_BYTES,
        "queue_file_bytes": QUEUE_FILE_BYTES,
        "timer_log_file_bytes": TIMER_FILE_BYTES,
        "roll_window_slots": WINDOW_SLOTS,
    }
    (root / "delaywheel").mkdir()
    (root / "delaywheel" / "conversion.json").write_text(json.dumps({"conversion": settings}))


def change_settings(root: Path, **changes: Any) -> None:
    path = root / "delaywheel" / "conversion.json"
    settings = json.loads(path.read_text())["conversion"] | changes
    path.write_text(json.dumps({"conversion": settings}))


def list_bad_records(root: Path, *records: dict[str, Any]) -> None:
    """Let the target's report list these entries of level queues as quarantined."""
    names = ("level", "queue_offset", "commit_log_offset")
    lines = [json.dumps([0, *(record[name] for name in names), "bad"]) for record in records]
    (root / "delaywheel" / "bad-records.jsonl").write_text("\n".join([*lines, ""]))
    change_settings(root, bad_records_listed=len(records))


def _write_wheel(
    root: Path, messages: Sequence[Converted], pieces: dict[int, bytes], precision_ms: int
) -> int:
    log = b""
    slots: dict[int, Slot] = {}
    now = write_time_ms(precision_ms)
    for one, (offset, data) in zip(messages, pieces.items(), strict=True):
        left = TIMER_FILE_BYTES - len(log) % TIMER_FILE_BYTES
        if left < 52 + 16:
            log += struct.pack(">iqi", left, 0, MAGIC_BLANK).ljust(left, b"\0")
        units = one.slot_ms // precision_ms
        old = slots.get(units)
        unit = TimerUnit(
            position=len(log),
            size_bytes=52,
            previous_position=old.last_position if old else -1,
            magic=one.flags,
            write_time_ms=now,
            delay_ms=one.slot_ms - now,
            commit_log_offset=offset,
            record_size_bytes=len(data),
            topic_hash=java_hash(one.record.effective["REAL_TOPIC"]),
            reserved=0,
        )
        first, count = (old.first_position, old.unit_count + 1) if old else (len(log), 1)
        slots[units] = Slot(units % SLOT_COUNT, units, first, len(log), count, 0)
        log += encode_timer_unit(unit)
    write_segments(root / "timerlog", log, TIMER_FILE_BYTES)
    with (root / "timerwheel").open("wb") as file:
        file.truncate(WHEEL_BYTES)
        for slot in slots.values():
            file.seek(slot.index * 32)
            file.write(encode_slot(slot))
    return len(log)


def _write_config(
    directory: Path, messages: Sequence[Converted], end: int, precision_ms: int
) -> None:
    directory.mkdir()
    read_ms = write_time_ms(precision_ms) - 302_400 * precision_ms
    check = (read_ms, end, len(messages), len(messages), 0, NOW_MS, 1)
    content = struct.pack(">7q", *check).ljust(CHECKPOINT_BYTES, b"\0")
    (directory / "timercheck").write_bytes(content)
    topics = [one.record.effective["REAL_TOPIC"] for one in messages]
    counts = {topic: {"count": topics.count(topic), "timeStamp": NOW_MS} for topic in set(topics)}
    version = {"counter": 1, "stateVersion": 0, "timestamp": NOW_MS}
    metrics = {"dataVersion": version, "timingCount": counts}
    (directory / "timermetrics").write_text(json.dumps(metrics, separators=(",", ":")))
    text = config_text.topics_text(dict.fromkeys(topics, 4), "5.5")
    (directory / "topics.json").write_text(text, encoding="utf-8")
    readers = {topic: topic.partition("%RETRY%")[2] or "group_a" for topic in topics}
    begins = {f"{topic}@{group}": dict.fromkeys(range(4), 0) for topic, group in readers.items()}
    groups = sorted({"group_a", *readers.values()})
    text = config_text.consumer_offset_text(begins, "5.5")
    (directory / "consumerOffset.json").write_text(text, encoding="utf-8")
    text = config_text.subscription_group_text(groups, "5.5")
    (directory / "subscriptionGroup.json").write_text(text, encoding="utf-8")
