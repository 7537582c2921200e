# SPDX-License-Identifier: Apache-2.0
"""Tables of messages, written as new stores without Spark: staged in parts, committed, checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from message_store.files.store_root import StoreRoot
from migrate.settings import TargetSettings
from migrate.table.pending_batches import pending_batches
from migrate.table.pending_table import WHEEL, TableOptions, pending_rows
from migrate.table.wheel_commit import begin_write, commit_rows
from migrate.table.wheel_staging import StagedRows, WriteRun, stage_rows
from tests.independent.variant_b_checker import check_target
from tests.migrate.conversions import SMALL

NOW_MS = 1_700_000_000_500
MAP = pa.map_(pa.string(), pa.string())


def messages(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Rows with all that a message can have, overdue, soon, and beyond the roll window."""
    spread = (-5_000_000, -1, 0, 1, 999, 1_000, 3_600_000, 86_400_000 * 40)
    return [
        {
            "topic": f"Topic{number % 3}" if number % 5 else "%RETRY%group",
            "body": bytes([number % 256]) * (1 + number % 50),
            "due_ms": NOW_MS + spread[number % len(spread)] + number,
            "queue_id": number % 4,
            "tags": None if number % 2 else f"Tag{number % 7}",
            "keys": [f"k{number}", "ключ"] if number % 3 else None,
            "unique_key": f"U{number}",
            "properties": [("имя", f"v{number}")] if number % 4 else [],
            "flag": number - 10,
        }
        for number in range(first, first + count)
    ]


def batch_of(rows: Sequence[dict[str, Any]], **types: pa.DataType) -> pa.RecordBatch:
    known = {"due_ms": pa.int64(), "queue_id": pa.int32(), "flag": pa.int32(), "body": pa.binary()}
    known |= {"properties": MAP, "keys": pa.list_(pa.string()), **types}
    names = list(rows[0])
    arrays = [pa.array([row[name] for row in rows], known.get(name, pa.string())) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names)


def run_for(target: Path, name: str = "run", settings: TargetSettings = SMALL) -> WriteRun:
    return WriteRun(target, name, NOW_MS, settings)


def staged(run: WriteRun, parts: Sequence[Sequence[dict[str, Any]]]) -> list[StagedRows]:
    """Each part as a task of two batches would stage it."""
    found = []
    for number, rows in enumerate(parts):
        half = len(rows) // 2
        batches = [batch_of(piece) for piece in (rows[:half], rows[half:]) if piece]
        found.append(stage_rows(run, number, iter(batches)))
    return found


def write(
    target: Path, parts: Sequence[Sequence[dict[str, Any]]], *, overwrite: bool = False, **how: Any
) -> dict[str, Any]:
    run = run_for(target, **how)
    begin_write(run, overwrite=overwrite)
    return commit_rows(run, staged(run, parts), overwrite=overwrite)


def read(target: Path) -> list[dict[str, Any]]:
    """The rows of a written store, by our own reader, in the order of its log."""
    options = TableOptions(now_ms=NOW_MS, include_body=True, precision_ms=SMALL.precision_ms)
    rows = pending_rows(target, WHEEL, options)
    batches = pending_batches(StoreRoot(target), WHEEL, rows, options)
    return pa.Table.from_batches(list(batches), options.schema).to_pylist()  # type: ignore[no-any-return]


def problems(target: Path, settings: TargetSettings = SMALL) -> list[str]:
    """What the independent checker finds wrong."""
    return check_target(
        target,
        now_ms=NOW_MS,
        precision_ms=settings.precision_ms,
        roll_window_slots=settings.roll_window_slots,
        commit_log_file_bytes=settings.commit_log_file_bytes,
        queue_file_bytes=settings.queue_file_bytes,
        timer_log_file_bytes=settings.timer_log_file_bytes,
    )


def assert_holds(target: Path, wanted: Sequence[dict[str, Any]]) -> None:
    """The store is sound in every byte, and its messages are these, in this order."""
    assert problems(target) == []
    found = read(target)
    assert [row["problem"] for row in found] == [None] * len(wanted)
    for row, message in zip(found, wanted, strict=True):
        due_ms = -(-message["due_ms"] // SMALL.precision_ms) * SMALL.precision_ms
        assert {name: row[name] for name in message} == {**message, "due_ms": due_ms}
