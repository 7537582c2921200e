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
Change = Callable[[WheelStoreBuilder], object]


def timeline(
    change: Change | None = None,
    *,
    before: Change | None = None,
    held: tuple[int, ...] = (0, 1, 2),
    until_ms: int | None = NOW_MS - 1000,
    also: Callable[[Path], object] | None = None,
) -> Callable[[Path], object]:
    """Three messages that the timeline has read, of which it holds some; then what ``change`` puts,
    which it has not read.
    """

    def make(root: Path) -> None:
        builder = WheelStoreBuilder(root)
        for _ in range(3):
            builder.put(LATER_MS)
        if before is not None:
            before(builder)
        units = [builder.queue[number] for number in held]
        write_timeline(
            root / "rocksdbstore",
            [
                Entry(LATER_MS, f"K{number}", unit.commit_log_offset, unit.size_bytes)
                for number, unit in zip(held, units, strict=True)
            ],
            scan_offset=len(builder.queue),
            delivered_until_ms=until_ms,
        )
        if change is not None:
            change(builder)
        store = builder.stop(last_queue_offset=0, master_queue_offset=0)
        store.checkpoint.write_bytes((NOW_MS).to_bytes(8, "big").ljust(4096, b"\0"))
        if also is not None:
            also(root)

    return make


def overdue(builder: WheelStoreBuilder) -> None:
    builder.put(NOW_MS - 5_000, stored_ms=NOW_MS - 1_000)
    builder.deliver_from_timeline(3, stored_ms=NOW_MS - 900)


def without_record(builder: WheelStoreBuilder) -> None:
    number = builder.put(LATER_MS)
    offset = builder.queue[number].commit_log_offset
    builder.records[offset] = bytes(len(builder.records[offset]))


def without_table(root: Path) -> None:
    for path in (root / "rocksdbstore").glob("*.sst"):
        path.unlink()


ON = {"timerRocksDBEnable": "true"}


def conf(**settings: str) -> dict[str, Any]:
    return {"conf": ON | settings}


CASES = [
    Case(code="rocksdb-timeline", make=timeline(), says="3 messages wait"),
    Case(code="rocksdb-timeline", make=timeline(), options=conf(), says="timerRocksDBEnable"),
    Case(code="timeline-early", make=timeline(), says="3 messages"),
    Case(code="timeline-unreadable", make=timeline(also=without_table), says="RocksDB"),
    Case(
        code="timeline-switched-off",
        make=timeline(),
        options={"conf": {"brokerName": "a"}},
        says="3 messages wait in the timeline",
    ),
    Case(code="timeline-repeats", make=timeline(overdue), says="1 message was delivered"),
    Case(
        code="timeline-forgets",
        make=timeline(until_ms=None),
        options={"now_ms": LATER_MS + 60_000},
        says="3 messages",
    ),
    Case(
        code="timeline-no-key",
        make=timeline(lambda builder: builder.put(LATER_MS, key="")),
        says="first queue offset 3",
    ),
    Case(
        code="timeline-equal-keys",
        make=timeline(lambda builder: [builder.put(LATER_MS, key="A") for _ in range(3)]),
        says="2 messages",
    ),
    Case(code="timeline-stops", make=timeline(without_record), says="queue offset 3"),
    Case(
        code="timeline-stops",
        make=timeline(lambda builder: builder.put(LATER_MS)),
        options=conf(maxMessageSize="10"),
        says="queue offset 3",
    ),
    Case(
        code="timeline-lost",
        make=timeline(held=(0, 2)),
        says="in no database: 1 message before queue offset 3",
    ),
    Case(
        code="timeline-lost",
        make=timeline(before=lambda builder: builder.put(LATER_MS, key="")),
        says="first 3",
    ),
]
"""Everything about a timeline."""

CASES = [
    Case(code=case.code, make=case.make, says=case.says, options={"now_ms": NOW_MS, **case.options})
    for case in CASES
]
