# SPDX-License-Identifier: Apache-2.0
"""Reads what an engine left on disk without the product: what each topic holds, and whether log and
queues agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import attrs

from tests.independent.raw_files import (
    commit_log_records,
    queue_units_by_index,
    segments,
)
from tests.independent.raw_records import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    BadRecordError,
    RawRecord,
    decode_record,
)

SYSTEM_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, "rmq_sys_time_index")
_USUAL_BYTES = 4_096


@attrs.frozen
class Found:
    """A record in a queue of a topic that people consume."""

    topic: str
    queue_id: int
    queue_offset: int
    name: str
    body: str
    store_timestamp_ms: int
    commit_log_offset: int


def delivered(store: Path) -> Iterator[Found]:
    """What consumers would find, queue by queue; BadRecordError for what they could not read. What
    retention took is not there any more.
    """
    begin = log_begin(store)
    with ExitStack() as files:
        log = {int(path.name): files.enter_context(path.open("rb"))
               for path in segments(store / "commitlog")}  # fmt: skip
        file_bytes = os.fstat(log[begin].fileno()).st_size if log else 0
        for topic, queue_id, directory in queues(store):
            if topic in SYSTEM_TOPICS:
                continue
            for ordinal, unit in queue_units_by_index(directory).items():
                if unit.commit_log_offset < begin:
                    continue
                found = _found(_record_bytes(log, file_bytes, unit.commit_log_offset))
                place = found.topic, found.queue_id, found.queue_offset
                if place != (topic, queue_id, ordinal):
                    raise BadRecordError(f"{directory} unit {ordinal} leads to a record of {place}")
                yield attrs.evolve(found, commit_log_offset=unit.commit_log_offset)


def _record_bytes(log: Mapping[int, BinaryIO], file_bytes: int, offset: int) -> bytes:
    """The record that begins at an offset of the log, or as much as there is of it."""
    position = offset % file_bytes if file_bytes else 0
    file = log.get(offset - position)
    if file is None:
        raise BadRecordError(f"no record at {offset}")
    data = os.pread(file.fileno(), _USUAL_BYTES, position)
    size_bytes = int.from_bytes(data[:4], "big", signed=True)
    if size_bytes > len(data):
        data = os.pread(file.fileno(), size_bytes, position)
    return data[: max(0, size_bytes)]


@lru_cache(1 << 12)
def _found(data: bytes) -> Found:
    """What a record is to its consumers; the same bytes are decoded once."""
    record = decode_record(data)
    return Found(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.effective["UNIQ_KEY"],
        record.body.decode(),
        record.store_timestamp_ms,
        -1,
    )


def log_begin(store: Path) -> int:
    """Where the log begins that retention left."""
    files = segments(store / "commitlog")
    return int(files[0].name) if files else 0


def queues(store: Path) -> Iterator[tuple[str, int, Path]]:
    """Every consume queue: topic, queue id, directory."""
    root = store / "consumequeue"
    for topic in sorted(root.iterdir()) if root.is_dir() else ():
        for directory in sorted(topic.iterdir()):
            yield topic.name, int(directory.name), directory


def disagreements(store: Path) -> list[str]:
    """Records whose queue does not lead to them, and queues that are longer than what leads back.

    A unit of one or two bytes at a record's end is a message that its level passes over: it was
    taken back, or delivered out of turn.
    """
    units = {
        (topic, queue_id): queue_units_by_index(directory)
        for topic, queue_id, directory in queues(store)
    }
    begin = log_begin(store)
    unexplained = {
        (*queue, ordinal)
        for queue, known in units.items()
        for ordinal, unit in known.items()
        if unit.commit_log_offset >= begin
    }
    wrong = []
    for placed in commit_log_records(store / "commitlog"):
        record, offset = placed.record, placed.commit_log_offset
        place = record.topic, record.queue_id, record.queue_offset
        unit = units.get(place[:2], {}).get(place[2])
        leads_to = None if unit is None else (unit.commit_log_offset, unit.size_bytes)
        right = [(offset + placed.size_bytes - size, size) for size in (placed.size_bytes, 1, 2)]
        if leads_to not in right:
            wrong.append(f"record {place} at {offset}: its unit is {unit}")
        if record.commit_log_offset != offset:
            wrong.append(f"record at {offset} says that it is at {record.commit_log_offset}")
        unexplained.discard(place)
    return wrong + [f"unit {place} without a record" for place in sorted(unexplained)]


def copies(store: Path, topic: str) -> list[RawRecord]:
    """All records of one topic in the log, in order."""
    found = commit_log_records(store / "commitlog")
    return [placed.record for placed in found if placed.record.topic == topic]
