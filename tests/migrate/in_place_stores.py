# SPDX-License-Identifier: Apache-2.0
"""Stores for changes in place: how one is asked for, what one holds, and stops at every change."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from migrate.in_place.convert import convert_in_place
from migrate.in_place.plan import InPlaceReport
from migrate.settings import ConvertOptions
from tests.independent.raw_files import queue_units_by_index, record_at, segments
from tests.independent.raw_records import RawRecord

TIMER_QUEUE = "consumequeue/rmq_sys_wheel_timer/0"


class Stopped(BaseException):
    """The process ends here, as far as the code under test can tell."""


def ask(store: Path, now_ms: int, **more: Any) -> ConvertOptions:
    return ConvertOptions(source=store, target=store, now_ms=now_ms, **more)


def do(store: Path, now_ms: int, **more: Any) -> InPlaceReport:
    return convert_in_place(ask(store, now_ms, **more), execute=True)


def plan(store: Path, now_ms: int, **more: Any) -> InPlaceReport:
    return convert_in_place(ask(store, now_ms, **more))


def tree(store: Path) -> dict[str, tuple[str, int]]:
    """Digest and permissions of every file of a store but delaywheel's own, and every directory."""
    found = {}
    for path in sorted(store.rglob("*")):
        name = path.relative_to(store).as_posix()
        if name == "delaywheel" or name.startswith("delaywheel/"):
            continue
        digest = ""
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha1").hexdigest()
        found[name] = digest, path.stat().st_mode & 0o7777
    return found


@attrs.frozen
class Appended:
    """A timer record that waits for the broker, with its place in the queue."""

    queue_offset: int
    commit_log_offset: int
    record: RawRecord

    @property
    def out_ms(self) -> int:
        return int(self.record.effective["TIMER_OUT_MS"])


def timer_records(store: Path) -> list[Appended]:
    """What the timer queue leads to; each record is checked with its entry."""
    if not (store / TIMER_QUEUE).is_dir():
        return []
    file_bytes = segments(store / "commitlog")[0].stat().st_size
    found = []
    for index, unit in sorted(queue_units_by_index(store / TIMER_QUEUE).items()):
        record = record_at(store / "commitlog", file_bytes, unit.commit_log_offset)
        assert record.total_size == unit.size_bytes
        assert (record.topic, record.queue_id) == ("rmq_sys_wheel_timer", 0)
        assert (record.queue_offset, record.commit_log_offset) == (index, unit.commit_log_offset)
        assert "DELAY" not in record.effective
        found.append(Appended(index, unit.commit_log_offset, record))
    return found


def offsets_text(offsets: Sequence[tuple[int, int]]) -> bytes:
    """A delayOffset.json of 4.9."""
    pairs = ",".join(f"{level}:{offset}" for level, offset in offsets)
    return f'{{\n\t"offsetTable":{{{pairs}\n\t}}\n}}'.encode()
