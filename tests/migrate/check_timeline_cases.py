# SPDX-License-Identifier: Apache-2.0
"""Stores whose timers are in the RocksDB timeline of 5.4 and newer, with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.migrate.check_case import Case
from tests.timer_wheel.timeline_database import Entry, write_timeline
from tests.timer_wheel.wheel_store_builder import NOW_MS, WheelStoreBuilder

LATER_MS = NOW_MS + 3_600_000


def timeline(also: Callable[[Path], object] | None = None) -> Callable[[Path], object]:
    """Three messages that the timeline has read and holds; then what ``also`` does to the store."""

    def make(root: Path) -> None:
        builder = WheelStoreBuilder(root)
        for _ in range(3):
            builder.put(LATER_MS)
        write_timeline(
            root / "rocksdbstore",
            [
                Entry(LATER_MS, f"K{number}", unit.commit_log_offset, unit.size_bytes)
                for number, unit in enumerate(builder.queue)
            ],
            scan_offset=len(builder.queue),
            delivered_until_ms=NOW_MS - 1000,
        )
        store = builder.stop(last_queue_offset=0, master_queue_offset=0)
        store.checkpoint.write_bytes((NOW_MS).to_bytes(8, "big").ljust(4096, b"\0"))
        if also is not None:
            also(root)

    return make


def without_table(root: Path) -> None:
    for path in (root / "rocksdbstore").glob("*.sst"):
        path.unlink()


ON = {"timerRocksDBEnable": "true"}


def conf(**settings: str) -> dict[str, Any]:
    return {"conf": ON | settings}


CASES = [
    Case(code="rocksdb-timeline", make=timeline(), says="3 messages wait"),
    Case(code="timeline-forgets-recalls", make=timeline(), says="3 messages wait"),
    Case(code="rocksdb-timeline", make=timeline(), options=conf(), says="timerRocksDBEnable"),
    Case(code="timeline-unreadable", make=timeline(also=without_table), says="RocksDB"),
    Case(
        code="timeline-switched-off",
        make=timeline(),
        options={"conf": {"brokerName": "a"}},
        says="3 messages wait in the timeline",
    ),
]
"""Everything about a timeline."""

CASES = [
    Case(code=case.code, make=case.make, says=case.says, options={"now_ms": NOW_MS, **case.options})
    for case in CASES
]
