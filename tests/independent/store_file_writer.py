# SPDX-License-Identifier: Apache-2.0
"""Files of fixed size in a row, written by hand: commit log, consume queues, queue extensions."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import attrs

from tests.independent.raw_files import QueueUnit, segment_name
from tests.independent.raw_records import MAGIC_BLANK

EXT_FILE_BYTES = 4096
EXT_UNIT_BYTES = 20
EXT_END_BYTES = 4


def encode_queue_unit(unit: QueueUnit) -> bytes:
    return struct.pack(">qiq", *attrs.astuple(unit))


def write_log(directory: Path, pieces: Mapping[int, bytes], log_end: int, file_bytes: int) -> None:
    """Records by log offset; a file that is not the last ends with its blank."""
    directory.mkdir(parents=True)
    for start in range(0, log_end or 1, file_bytes):
        data = b"".join(
            piece for offset, piece in pieces.items() if start <= offset < start + file_bytes
        )
        if start + file_bytes < log_end:
            data += struct.pack(">ii", file_bytes - len(data), MAGIC_BLANK)
        _write_file(directory / segment_name(start), data, file_bytes)


def write_segments(directory: Path, data: bytes, file_bytes: int) -> None:
    """One run of bytes cut into files; at least one file."""
    directory.mkdir(parents=True)
    for start in range(0, len(data) or 1, file_bytes):
        _write_file(directory / segment_name(start), data[start : start + file_bytes], file_bytes)


def _write_file(path: Path, data: bytes, file_bytes: int) -> None:
    """`data` and zeros up to the file's length, the zeros as a hole."""
    with path.open("wb") as file:
        file.write(data)
        file.truncate(file_bytes)


def write_ext(
    directory: Path, units: list[QueueUnit], store_times_ms: Mapping[int, int]
) -> list[QueueUnit]:
    """Move the tags codes into ext units; gives the queue units that point there."""
    data = b""
    moved = []
    for unit in units:
        left = EXT_FILE_BYTES - len(data) % EXT_FILE_BYTES
        if left < EXT_UNIT_BYTES + EXT_END_BYTES:
            data += struct.pack(">h", -1).ljust(left, b"\0")
        address = len(data) - (1 << 63)
        time_ms = store_times_ms.get(unit.commit_log_offset, 0)
        data += struct.pack(">hqqh", EXT_UNIT_BYTES, unit.tags_code, time_ms, 0)
        moved.append(attrs.evolve(unit, tags_code=address))
    write_segments(directory, data, EXT_FILE_BYTES)
    return moved
