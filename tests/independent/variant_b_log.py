# SPDX-License-Identifier: Apache-2.0
"""Strict reading of a converted store's log, queue and timer log: every byte has its reason."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.independent.raw_files import (
    QUEUE_UNIT_BYTES,
    TIMER_BLANK_BYTES,
    TIMER_UNIT_BYTES,
    PlacedRecord,
    QueueUnit,
    TimerUnit,
    first_nonzero,
    read_range,
    record_at,
    segment_name,
    segments,
)
from tests.independent.raw_records import MAGIC_BLANK, BadRecordError

COMMIT_LOG_BLANK_BYTES = 8


def check_row_of_files(directory: Path, file_bytes: int, problems: list[str]) -> list[Path]:
    """Files named by their first offset from 0 on, each of exactly `file_bytes`, nothing else."""
    files = segments(directory)
    if directory.is_dir():
        known = {path.name for path in files}
        strays = sorted(path for path in directory.iterdir() if path.name not in known)
        problems += [f"{path}: not a file of this directory" for path in strays]
    for number, path in enumerate(files):
        if path.name != segment_name(number * file_bytes):
            problems.append(f"{path}: the name should be {segment_name(number * file_bytes)}")
        if path.stat().st_size != file_bytes:
            problems.append(f"{path}: {path.stat().st_size} bytes instead of {file_bytes}")
    return files


def _check_tail(path: Path, end: int, what: str, problems: list[str]) -> None:
    position = first_nonzero(path, end)
    if position is not None:
        problems.append(f"{path}: byte {position} is not zero, {what} end at {end}")


def read_commit_log(log: Path, file_bytes: int, problems: list[str]) -> list[PlacedRecord]:
    """All records; stops at the first position that is neither record, blank nor end."""
    records: list[PlacedRecord] = []
    files = check_row_of_files(log, file_bytes, problems)
    for number, path in enumerate(files):
        is_last = number == len(files) - 1
        position = 0
        while True:
            head = read_range(log, file_bytes, number * file_bytes + position, 8)
            size, magic = struct.unpack(">ii", head) if len(head) == 8 else (0, 0)
            if magic in (0, MAGIC_BLANK):
                break
            placed = _record(log, file_bytes, number * file_bytes + position, problems)
            if placed is None:
                return records
            records.append(placed)
            position += size
            if position + COMMIT_LOG_BLANK_BYTES > file_bytes:
                problems.append(f"{path}: no room for the blank after {position}")
        left = file_bytes - position
        if position == 0 and number:
            problems.append(f"{path}: a log file without records")
        if is_last:
            _check_tail(path, position, "records", problems)
        elif (size, magic) != (left, MAGIC_BLANK):
            problems.append(f"{path}: no blank of {left} bytes at {position}")
        else:
            _check_tail(path, position + COMMIT_LOG_BLANK_BYTES, "records and blank", problems)
    return records


def _record(log: Path, file_bytes: int, offset: int, problems: list[str]) -> PlacedRecord | None:
    try:
        record = record_at(log, file_bytes, offset)
    except BadRecordError as error:
        problems.append(f"commit log {offset}: {error}")
        return None
    assert record.total_size is not None
    if record.commit_log_offset != offset:
        problems.append(f"commit log {offset}: PHYSICALOFFSET is {record.commit_log_offset}")
    return PlacedRecord(offset, record.total_size, record)


def read_queue(directory: Path, file_bytes: int, problems: list[str]) -> list[QueueUnit]:
    """All units of a queue that begins at index 0; zeros must follow, files be just enough."""
    files = check_row_of_files(directory, file_bytes, problems)
    units: list[QueueUnit] = []
    for path in files:
        data = path.read_bytes()
        end = 0
        while end + QUEUE_UNIT_BYTES <= len(data):
            unit = QueueUnit(*struct.unpack_from(">qiq", data, end))
            if unit.size_bytes <= 0:
                break
            units.append(unit)
            end += QUEUE_UNIT_BYTES
        if end < file_bytes:
            if path != files[-1]:
                problems.append(f"{path}: only {end} bytes of units in a file that is not the last")
            _check_tail(path, end, "units", problems)
        if end == 0 and path != files[0]:
            problems.append(f"{path}: a queue file without units")
    return units


def read_timer_log(directory: Path, file_bytes: int, problems: list[str]) -> list[TimerUnit]:
    """All units; a file is left with a 16-byte blank exactly when unit and blank do not fit."""
    files = check_row_of_files(directory, file_bytes, problems)
    units: list[TimerUnit] = []
    for number, path in enumerate(files):
        data = path.read_bytes()
        end = 0
        while end + TIMER_UNIT_BYTES + TIMER_BLANK_BYTES <= len(data):
            unit = TimerUnit(
                number * file_bytes + end, *struct.unpack_from(">iqiqiqiiq", data, end)
            )
            if unit.size_bytes != TIMER_UNIT_BYTES:
                break
            units.append(unit)
            end += TIMER_UNIT_BYTES
        left = file_bytes - end
        blank = struct.pack(">iqi", left, 0, MAGIC_BLANK)
        if end == 0:
            problems.append(f"{path}: a timer log file without units")
        if path == files[-1]:
            _check_tail(path, end, "units", problems)
        elif left >= TIMER_UNIT_BYTES + TIMER_BLANK_BYTES:
            problems.append(f"{path}: units end at {end}, more would fit")
        elif data[end : end + TIMER_BLANK_BYTES] != blank:
            problems.append(f"{path}: no blank of {left} bytes at {end}")
        else:
            _check_tail(path, end + TIMER_BLANK_BYTES, "units and blank", problems)
    return units
