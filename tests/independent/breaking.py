# SPDX-License-Identifier: Apache-2.0
"""Ways to break the files of a store, each one a function of its root."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tests.independent import raw_files
from tests.independent.raw_records import encode_record
from tests.independent.tiny_target import (
    LOG_FILE_BYTES,
    MESSAGES,
    WRITE_TIME_MS,
    TinyMessage,
    write_tiny_target,
)

Break = Callable[[Path], object]


def patch(name: str, position: int, data: bytes) -> Break:
    def apply(root: Path) -> None:
        with (root / name).open("r+b") as file:
            file.seek(position)
            file.write(data)

    return apply


def number(name: str, position: int, code: str, value: int) -> Break:
    return patch(name, position, struct.pack(">" + code, value))


def replace(name: str, old: bytes, new: bytes) -> Break:
    def apply(root: Path) -> None:
        data = (root / name).read_bytes()
        assert old in data
        (root / name).write_bytes(data.replace(old, new, 1))

    return apply


def delete(name: str) -> Break:
    return lambda root: (root / name).unlink()


def create(name: str, data: bytes = b"") -> Break:
    def apply(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)

    return apply


def truncate(name: str, count: int) -> Break:
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:count])


def slot_field(seconds: int, position: int, code: str, value: int) -> Break:
    index = (WRITE_TIME_MS // 1000 + seconds) % raw_files.SLOT_COUNT
    return number("timerwheel", index * 32 + position, code, value)


def field(index: int, **changes: Any) -> Break:
    """Rewrite a record of the same length with other fields."""

    def apply(root: Path) -> None:
        placed = list(raw_files.commit_log_records(root / "commitlog"))[index]
        data = encode_record(attrs.evolve(placed.record, **changes))
        path = (
            root
            / "commitlog"
            / raw_files.segment_name(placed.commit_log_offset // LOG_FILE_BYTES * LOG_FILE_BYTES)
        )
        content = bytearray(path.read_bytes())
        start = placed.commit_log_offset % LOG_FILE_BYTES
        assert len(data) == placed.size_bytes
        content[start : start + len(data)] = data
        path.write_bytes(content)

    return apply


def rename_property(index: int, old: bytes, new: bytes) -> Break:
    def apply(root: Path) -> None:
        placed = list(raw_files.commit_log_records(root / "commitlog"))[index]
        properties = placed.record.properties.replace(old, new)
        assert properties != placed.record.properties
        field(index, properties=properties)(root)

    return apply


def messages(change: dict[int, TinyMessage]) -> Break:
    """A store written consistently, but with these messages in it instead."""

    def apply(root: Path) -> None:
        shutil.rmtree(root)
        root.mkdir()
        write_tiny_target(root, [change.get(n, m) for n, m in enumerate(MESSAGES)])

    return apply


def blank_position(root: Path) -> int:
    inside = [
        one
        for one in raw_files.commit_log_records(root / "commitlog")
        if one.commit_log_offset < LOG_FILE_BYTES
    ]
    return inside[-1].commit_log_offset + inside[-1].size_bytes


def at_blank(name: str, position: int, data: bytes) -> Break:
    return lambda root: patch(name, blank_position(root) + position, data)(root)


def last_log_byte(root: Path) -> None:
    last = raw_files.segments(root / "commitlog")[-1]
    patch(f"commitlog/{last.name}", LOG_FILE_BYTES - 1, b"x")(root)
