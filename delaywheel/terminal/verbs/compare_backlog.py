# SPDX-License-Identifier: Apache-2.0
"""Reads the backlog of a store for ``compare``, by the same columns that ``export`` writes."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from compare.workloads.recorded import backlog
from compare.workloads.workload import Workload
from message_store.base.clock import SystemClock
from message_store.columns.byte_column import Int64s, int64s
from message_store.files.store_root import StoreRoot
from migrate.table.pending_batches import pending_batches
from migrate.table.pending_table import LEVELS, WHEEL, TableOptions, pending_rows

if TYPE_CHECKING:
    from delaywheel.terminal.render.progress import StageProgress


def read_backlog_workload(
    store: Path, now_ms: int | None, most: int | None, progress: "StageProgress"
) -> tuple[Workload, tuple[str, ...]]:
    """The pending messages of a store, also after a crash, as a workload with their unique keys.

    Messages that cannot be read are left out. Raises SourceError where nothing can be read.
    """
    options = TableOptions(
        now_ms=SystemClock().now_ms() if now_ms is None else now_ms,
        after_crash=True,
        include_body=True,
        include_properties=False,
    )
    rows = {kind: pending_rows(store, kind, options) for kind in (LEVELS, WHEEL)}
    total = sum(map(len, rows.values()))
    root, pieces, done = StoreRoot(store), [], 0
    for kind, waiting in rows.items():
        for part in waiting.ranges():
            progress("reading the backlog", done, total)
            pieces += [_slim(batch) for batch in pending_batches(root, kind, part, options)]
            done += len(part)
            if most is not None and sum(len(piece) for piece in pieces) >= most:
                break
    table = pa.concat_tables(pieces).slice(0, most) if pieces else _NOTHING
    return backlog(
        source=str(store),
        store_ms=_numbers(table, "store_ms"),
        due_ms=_numbers(table, "due_ms"),
        level=_numbers(table, "level"),
        topics=table.column("topic").to_pylist(),
        body_bytes=_numbers(table, "body_bytes"),
        unique_keys=table.column("unique_key").to_pylist(),
    )


_SLIM = ("topic", "store_ms", "due_ms", "level", "unique_key")
_NOTHING = pa.table({name: pa.array([], pa.int64()) for name in (*_SLIM, "body_bytes")})


def _slim(batch: pa.RecordBatch) -> pa.Table:
    """The columns that matter, of the rows that can be read; of bodies only their lengths."""
    table = pa.Table.from_batches([batch])
    table = table.append_column("body_bytes", pc.binary_length(table.column("body")))
    is_readable = pc.is_valid(table.column("topic"))
    return table.select([*_SLIM, "body_bytes"]).filter(is_readable)


def _numbers(table: pa.Table, name: str) -> Int64s:
    return int64s(pc.fill_null(table.column(name), 0).to_numpy())
