# SPDX-License-Identifier: Apache-2.0
"""The files of a store root read in the plainest way: logs, queues, timer log, wheel, config."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from tests.independent.raw_records import (
    MAGIC_BLANK,
    BadRecordError,
    RawRecord,
    decode_record,
)

QUEUE_UNIT_BYTES = 20
TIMER_UNIT_BYTES = 52
TIMER_BLANK_BYTES = 16
SLOT_BYTES = 32
SLOT_COUNT = 2 * 7 * 86_400
WHEEL_BYTES = SLOT_COUNT * SLOT_BYTES
CHECKPOINT_BYTES = 4096
_ZERO_PAGE = bytes(4096)


@attrs.frozen
class PlacedRecord:
    commit_log_offset: int
    size_bytes: int
    record: RawRecord


@attrs.frozen
class QueueUnit:
    commit_log_offset: int
    size_bytes: int
    tags_code: int


@attrs.frozen
class TimerUnit:
    """A unit of the timer log; `position` is where it was found."""

    position: int
    size_bytes: int
    previous_position: int
    magic: int
    write_time_ms: int
    delay_ms: int
    commit_log_offset: int
    record_size_bytes: int
    topic_hash: int
    reserved: int

    @property
    def slot_time_ms(self) -> int:
        return self.write_time_ms + self.delay_ms


@attrs.frozen
class Slot:
    index: int
    time_units: int
    first_position: int
    last_position: int
    unit_count: int
    magic: int


@attrs.frozen
class TimerCheck:
    last_read_time_ms: int
    flush_position: int
    last_queue_offset: int
    master_queue_offset: int
    state_version: int
    timestamp_ms: int
    counter: int


def segment_name(offset: int) -> str:
    return f"{offset:020d}"


def segments(directory: Path) -> list[Path]:
    """The files of a log or queue in order; none when the directory is absent."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [directory / name for name in sorted(names) if re.fullmatch(r"\d{20}", name)]


def read_range(directory: Path, file_bytes: int, offset: int, count: int) -> bytes:
    """Bytes at a logical offset, all inside one file; fewer when the file or its end is missing."""
    path = directory / segment_name(offset - offset % file_bytes)
    if offset < 0 or count < 0 or not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(offset % file_bytes)
        return file.read(count)


def first_nonzero(path: Path, start: int = 0) -> int | None:
    """Position of the first byte that is not zero, holes skipped; None when all are zero."""
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        position = start
        while position < length:
            try:
                position = max(position, os.lseek(file.fileno(), position, os.SEEK_DATA))
            except OSError:
                return None
            file.seek(position)
            piece = file.read(min(1 << 16, length - position))
            left = piece.lstrip(b"\0")
            if left:
                return position + len(piece) - len(left)
            position += len(piece)
    return None


def record_at(log: Path, file_bytes: int, offset: int, *, check_crc: bool = True) -> RawRecord:
    """The record that begins at `offset`; BadRecordError when there is none."""
    head = read_range(log, file_bytes, offset, 4)
    if len(head) < 4:
        raise BadRecordError(f"no record at {offset}")
    (size,) = struct.unpack(">i", head)
    return decode_record(read_range(log, file_bytes, offset, size), check_crc=check_crc)


def commit_log_records(log: Path, *, check_crc: bool = True) -> Iterator[PlacedRecord]:
    """All records from the first file on, across blanks, until the first byte that is no record."""
    for path in segments(log):
        file_bytes = path.stat().st_size
        position = 0
        while True:
            offset = int(path.name) + position
            head = read_range(log, file_bytes, offset, 8) if position < file_bytes else b""
            if len(head) < 8:
                return
            size, magic = struct.unpack(">ii", head)
            if magic == MAGIC_BLANK:
                break
            try:
                record = record_at(log, file_bytes, offset, check_crc=check_crc)
            except BadRecordError:
                return
            yield PlacedRecord(offset, size, record)
            position += size


def queue_units_by_index(directory: Path) -> dict[int, QueueUnit]:
    """Units of a queue up to the first empty one; index 0 is in the file named 0."""
    units: dict[int, QueueUnit] = {}
    for path in segments(directory):
        data = path.read_bytes()
        whole = data[: len(data) // QUEUE_UNIT_BYTES * QUEUE_UNIT_BYTES]
        first = int(path.name) // QUEUE_UNIT_BYTES
        for index, fields in enumerate(struct.iter_unpack(">qiq", whole), first):
            unit = QueueUnit(*fields)
            if unit.commit_log_offset < 0 or unit.size_bytes <= 0:
                return units
            units[index] = unit
    return units


def queue_units(directory: Path) -> list[QueueUnit]:
    return list(queue_units_by_index(directory).values())


def timer_units(directory: Path) -> Iterator[TimerUnit]:
    """Units of the timer log in order, across blanks, until the first that is none."""
    for path in segments(directory):
        data = path.read_bytes()
        position = 0
        while True:
            if len(data) - position < TIMER_BLANK_BYTES:
                return
            if struct.unpack_from(">i", data, position + 12)[0] == MAGIC_BLANK:
                break
            if len(data) - position < TIMER_UNIT_BYTES:
                return
            fields = struct.unpack_from(">iqiqiqiiq", data, position)
            if fields[0] != TIMER_UNIT_BYTES or not 0 <= fields[2] <= 0xF:
                return
            yield TimerUnit(int(path.name) + position, *fields)
            position += TIMER_UNIT_BYTES


def encode_timer_unit(unit: TimerUnit) -> bytes:
    return struct.pack(">iqiqiqiiq", *attrs.astuple(unit)[1:])


def wheel_slots(path: Path) -> Iterator[Slot]:
    """Every slot of the wheel file that is not all zeros, in file order."""
    position = first_nonzero(path)
    data = path.read_bytes()
    while position is not None and position < len(data):
        start = position - position % SLOT_BYTES
        if any(data[start : start + SLOT_BYTES]):
            yield Slot(start // SLOT_BYTES, *struct.unpack_from(">qqqii", data, start))
        position = start + SLOT_BYTES
        while data.startswith(_ZERO_PAGE, position):
            position += len(_ZERO_PAGE)


def encode_slot(slot: Slot) -> bytes:
    return struct.pack(">qqqii", *attrs.astuple(slot)[1:])


def read_timer_check(path: Path) -> TimerCheck:
    return TimerCheck(*struct.unpack_from(">7q", path.read_bytes()))


def parse_fastjson(text: str) -> Any:
    """JSON as a broker writes it: keys that are whole numbers may stand without quotes."""
    return json.loads(re.sub(r"([{,]\s*)(-?\d+)(\s*:)", r'\1"\2"\3', text))


def read_config(root: Path, name: str) -> Any:
    """A file under config/; None when it is absent."""
    path = root / "config" / name
    return parse_fastjson(path.read_text(encoding="utf-8")) if path.is_file() else None
