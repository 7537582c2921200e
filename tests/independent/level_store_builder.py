# SPDX-License-Identifier: Apache-2.0
"""Writes small level stores by hand, broken ones too; the input of table tests.

first, second = LevelMessage(level=3, body=b"one"), LevelMessage(level=3, body=b"two")
built = build_level_store(tmp_path / "store", [first, second, DeliveredCopy(of=first)],
                          offsets={3: 1})
built.of(second).due_ms
"""

from __future__ import annotations

import collections
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import attrs

from tests.independent import config_text
from tests.independent.config_text import Dialect
from tests.independent.level_messages import (
    AUTO,
    DEFAULT_LEVEL_TABLE,
    T0,
    DeliveredCopy,
    Item,
    LevelMessage,
    Message,
    OrdinaryMessage,
    RawBytes,
    delivered_record,
    is_dispatched,
    level_delays_ms,
    record_of,
    retry_message,
)
from tests.independent.raw_files import (
    CHECKPOINT_BYTES,
    QUEUE_UNIT_BYTES,
    QueueUnit,
)
from tests.independent.raw_records import (
    SCHEDULE_TOPIC,
    RawRecord,
    encode_record,
    tags_code_of,
)
from tests.independent.store_file_writer import (
    encode_queue_unit,
    write_ext,
    write_log,
    write_segments,
)

__all__ = [
    "AUTO",
    "T0",
    "BuiltStore",
    "DeliveredCopy",
    "LevelMessage",
    "OrdinaryMessage",
    "Placed",
    "RawBytes",
    "build_level_store",
    "level_delays_ms",
    "retry_message",
]

NO_OFFSETS: Mapping[int, int] = MappingProxyType({})

Queue = tuple[str, int]
OffsetsFile = Mapping[int, int] | bytes | None


@attrs.frozen(eq=False)
class Placed:
    """Where an item went. `queue_offset` is None for what has no place in any queue."""

    item: Item
    commit_log_offset: int
    data: bytes
    record: RawRecord | None = None
    queue_offset: int | None = None
    due_ms: int | None = None
    unit: QueueUnit | None = None

    @property
    def queue(self) -> Queue:
        assert self.record is not None
        return self.record.topic, self.record.queue_id


@attrs.frozen(eq=False)
class BuiltStore:
    root: Path
    placed: list[Placed]
    delays_ms: dict[int, int]
    log_end: int

    def of(self, item: Item) -> Placed:
        return next(placed for placed in self.placed if placed.item is item)

    def waiting(self, level: int) -> list[Placed]:
        """The messages put into a level, in queue order, indexed or not."""
        return [
            placed
            for placed in self.placed
            if isinstance(placed.item, LevelMessage) and placed.item.level == level
        ]


def build_level_store(
    root: Path,
    items: Sequence[Item],
    *,
    dialect: Dialect = "4.9",
    level_table: str = DEFAULT_LEVEL_TABLE,
    offsets: OffsetsFile = NO_OFFSETS,
    backup_offsets: OffsetsFile | Literal["same"] = "same",
    commit_log_file_bytes: int = 64 * 1024,
    queue_file_bytes: int = 100 * QUEUE_UNIT_BYTES,
    indexed_items: int | None = None,
    level_queue_ends: Mapping[int, int] = NO_OFFSETS,
    queue_ext: bool = False,
    drop_log_files: int = 0,
    topics: Mapping[str, int] | None = None,
    consumer_offsets: Mapping[str, Mapping[int, int]] | None = None,
    groups: Sequence[str] | None = None,
    abort: bool = False,
    lock: bool = True,
    checkpoint: bool = True,
) -> BuiltStore:
    """Write a store root that a broker of `dialect` could have left.

    `offsets` is delayOffset.json: level to queue index, or exact bytes, or None for no file;
    `backup_offsets` is its .bak. `indexed_items`: only the first so many items are in queues;
    `level_queue_ends`: level to the number of units its queue keeps. `queue_ext`: tags codes are
    addresses into consumequeue_ext. `drop_log_files`: so many oldest log files are gone. `topics`
    (queue counts), `consumer_offsets` and `groups` replace what follows from the items.
    """
    delays = level_delays_ms(level_table)
    placed, log_end = _place(items, dialect, delays, commit_log_file_bytes, indexed_items)
    root.mkdir(parents=True)
    pieces = {one.commit_log_offset: one.data for one in placed}
    write_log(root / "commitlog", pieces, log_end, commit_log_file_bytes)
    for path in sorted((root / "commitlog").iterdir())[:drop_log_files]:
        path.unlink()
    ends = {(SCHEDULE_TOPIC, level - 1): end for level, end in level_queue_ends.items()}
    for queue, units in _queues(placed).items():
        kept = units[: ends.get(queue, len(units))]
        place = Path(queue[0], str(queue[1]))
        if queue_ext:
            kept = write_ext(root / "consumequeue_ext" / place, kept, _store_times_ms(placed))
        data = b"".join(map(encode_queue_unit, kept))
        write_segments(root / "consumequeue" / place, data, queue_file_bytes)
    config_text.write_config(
        root / "config",
        _real_queue_lengths(placed),
        dialect=dialect,
        level_count=len(delays),
        topics=topics,
        consumer_offsets=consumer_offsets,
        groups=groups,
    )
    _write_offsets(root / "config" / "delayOffset.json", offsets, dialect)
    backup = offsets if backup_offsets == "same" else backup_offsets
    _write_offsets(root / "config" / "delayOffset.json.bak", backup, dialect)
    if abort:
        (root / "abort").write_bytes(b"" if dialect == "4.9" else b"12345")
    if lock:
        (root / "lock").write_bytes(b"lock")
    if checkpoint:
        _write_checkpoint(root / "checkpoint", placed)
    return BuiltStore(root, placed, delays, log_end)


def _place(
    items: Sequence[Item],
    dialect: Dialect,
    delays: dict[int, int],
    file_bytes: int,
    indexed_items: int | None,
) -> tuple[list[Placed], int]:
    placed: list[Placed] = []
    next_offsets: collections.Counter[Queue] = collections.Counter()
    log_offset = 0
    for number, item in enumerate(items):
        if isinstance(item, RawBytes):
            record, due_ms, size = None, None, len(item.data)
        else:
            record, due_ms = _record_and_due(item, number, dialect, delays, placed)
            size = len(encode_record(record))
        left = file_bytes - log_offset % file_bytes
        if size + 8 > left:
            log_offset += left
            assert size + 8 <= file_bytes, "a record must fit into one log file"
        if record is None:
            assert isinstance(item, RawBytes)
            placed.append(Placed(item, log_offset, item.data))
        else:
            is_known = indexed_items is None or number < indexed_items
            placed.append(
                _placed(item, record, log_offset, due_ms, next_offsets, is_known=is_known)
            )
        log_offset += size
    return placed, log_offset


def _record_and_due(
    item: Item, number: int, dialect: Dialect, delays: dict[int, int], placed: list[Placed]
) -> tuple[RawRecord, int | None]:
    if isinstance(item, DeliveredCopy):
        waiting = next(one for one in placed if one.item is item.of)
        assert waiting.record is not None
        time_ms = item.store_timestamp_ms
        if time_ms is None:
            time_ms = (waiting.due_ms or 0) + 5
        named = [~one.commit_log_offset for one in placed if one.item is item.names]
        record = delivered_record(waiting.record, time_ms, dialect)
        return attrs.evolve(record, prepared_transaction_offset=sum(named)), None
    assert isinstance(item, Message)
    record = attrs.evolve(record_of(item, number, dialect), **item.record_fields)
    if not isinstance(item, LevelMessage):
        return record, None
    return record, record.store_timestamp_ms + delays[min(item.level, len(delays))]


def _placed(
    item: Item,
    record: RawRecord,
    log_offset: int,
    due_ms: int | None,
    next_offsets: collections.Counter[Queue],
    *,
    is_known: bool,
) -> Placed:
    assert isinstance(item, Message | DeliveredCopy)
    queue = (record.topic, record.queue_id)
    dispatched = is_dispatched(record)
    queue_offset = next_offsets[queue] if dispatched else None
    next_offsets[queue] += dispatched
    record = attrs.evolve(record, queue_offset=queue_offset or 0, commit_log_offset=log_offset)
    if isinstance(item, Message):
        record = attrs.evolve(record, **item.record_fields)
    data = encode_record(record)
    if item.damage is not None:
        damaged = item.damage(data)
        assert len(damaged) == len(data), "damage must keep the length"
        data = damaged
    tags_code = tags_code_of(record.effective.get("TAGS")) if due_ms is None else due_ms
    unit = QueueUnit(log_offset, len(data), tags_code)
    if isinstance(item, Message):
        unit = attrs.evolve(unit, **item.unit_fields)
    is_in_queue = is_known and item.indexed and dispatched
    return Placed(
        item, log_offset, data, record, queue_offset, due_ms, unit if is_in_queue else None
    )


def _queues(placed: list[Placed]) -> dict[Queue, list[QueueUnit]]:
    queues: dict[Queue, list[QueueUnit]] = {}
    for one in placed:
        if one.unit is not None:
            queues.setdefault(_real_queue(one), []).append(one.unit)
    return queues


def _real_queue(one: Placed) -> Queue:
    """The queue a broker would have used, whatever wrong fields the record was given."""
    if isinstance(one.item, LevelMessage):
        return SCHEDULE_TOPIC, one.item.level - 1
    return one.queue


def _real_queue_lengths(placed: list[Placed]) -> dict[Queue, int]:
    """Length of every real topic's queue, 0 for those where nothing has arrived yet."""
    lengths: dict[Queue, int] = {}
    for one in placed:
        if isinstance(one.item, Message):
            lengths.setdefault((one.item.topic, one.item.queue_id), 0)
        if one.unit is not None and not isinstance(one.item, LevelMessage):
            lengths[one.queue] = lengths.get(one.queue, 0) + 1
    return lengths


def _store_times_ms(placed: list[Placed]) -> dict[int, int]:
    return {one.commit_log_offset: one.record.store_timestamp_ms for one in placed if one.record}


def _write_checkpoint(path: Path, placed: list[Placed]) -> None:
    newest = max(_store_times_ms(placed).values(), default=0)
    path.write_bytes(struct.pack(">3q", newest, newest, newest).ljust(CHECKPOINT_BYTES, b"\0"))


def _write_offsets(path: Path, offsets: OffsetsFile, dialect: Dialect) -> None:
    if isinstance(offsets, bytes):
        path.write_bytes(offsets)
    elif offsets is not None:
        path.write_text(config_text.delay_offset_text(offsets, dialect), encoding="utf-8")
