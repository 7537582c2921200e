# SPDX-License-Identifier: Apache-2.0
"""Exports the pending messages of a store as one Parquet file; needs no Spark.

One process reads the records once, front to back: a gigabyte takes seconds, less than the start of
a cluster. The file appears whole or not at all, and never replaces another.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from message_store.base.errors import OptionsError, TargetError
from message_store.base.printable import printable
from message_store.files.store_root import StoreRoot, require_outside
from migrate.look.choices import absent_choices, require_levels
from migrate.progress import Progress, no_progress
from migrate.table.pending_batches import pending_batches
from migrate.table.pending_table import (
    KINDS,
    LEVELS,
    TIME_INDEX,
    WHEEL,
    Condition,
    PendingRows,
    TableOptions,
    pending_rows,
)
from migrate.write.staging import new_file, target_errors

GROUP_ROWS = 131_072
GROUP_BYTES = 64 << 20
BOTH = "both"
SUFFIX = ".parquet"


@attrs.frozen
class ExportReport:
    """The exported messages, from each engine, and how many could not be read.
    ``warnings`` name topics and levels that were asked for and that the store never had.
    """

    store: str
    out: str
    exported: int
    levels: int
    wheel: int
    unreadable: int
    bytes_written: int
    warnings: tuple[str, ...] = ()
    time_index: int = 0

    def as_json(self) -> dict[str, Any]:
        """The JSON object that ``export --json`` prints; keys are a promise."""
        return attrs.asdict(self)


def check_out(store: Path, out: Path) -> None:
    """Raise what ``export_parquet`` would raise about the place of its file."""
    if out.suffix.lower() != SUFFIX:
        raise OptionsError(f"{out}: the file is written as Parquet; its name ends in {SUFFIX}")
    with target_errors(out):
        if out.exists():
            raise TargetError(f"{out}: is already there")
        if not out.parent.is_dir():
            raise TargetError(f"{out.parent}: no such directory")
    require_outside(out, store)


def export_parquet(
    store: Path,
    out: Path,
    *,
    options: TableOptions,
    conditions: Sequence[Condition] = (),
    what: str = BOTH,
    progress: Progress = no_progress,
) -> ExportReport:
    """Write the pending messages of ``what`` that meet all conditions: levels, wheel, time-index,
    or ``BOTH``, which means every engine's.

    The columns are those of the data sources (docs/SPARK.md). A record that cannot be read becomes
    a row with a ``problem``, whatever topic is asked for. Raises SourceError, UncleanStoreError,
    FormatError, OptionsError and TargetError.
    """
    check_out(store, out)
    kinds = KINDS if what == BOTH else (what,)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise OptionsError(f"levels, wheel or both, not {unknown[0]!r}")
    progress("plan", 0, 0)
    rows = {kind: pending_rows(store, kind, options, conditions) for kind in kinds}
    asked = {name: _asked(conditions, name) for name in ("topic", "level")}
    require_levels(
        StoreRoot(store), asked["level"], offsets=options.offsets, table=options.level_table
    )
    counts = dict.fromkeys(KINDS, 0)
    unreadable = 0
    with new_file(out) as file, _writer(file, store, options) as writer:
        for kind, batches in _batches(store, rows, options, conditions, progress):
            table = pa.Table.from_batches(batches)
            counts[kind] += table.num_rows
            for name, values in asked.items():
                values.difference_update(table.column(name).unique().to_pylist() if values else ())
            unreadable += table.num_rows - table.column("problem").null_count
            writer.write_table(table, row_group_size=table.num_rows)
    return ExportReport(
        store=str(store),
        out=str(out),
        exported=sum(counts.values()),
        levels=counts[LEVELS],
        wheel=counts[WHEEL],
        time_index=counts[TIME_INDEX],
        unreadable=unreadable,
        bytes_written=out.stat().st_size,
        warnings=tuple(
            absent_choices(
                StoreRoot(store), topics=sorted(asked["topic"]), levels=sorted(asked["level"])
            )
        ),
    )


def _asked(conditions: Sequence[Condition], name: str) -> set[Any]:
    """The values for which the conditions on a column ask one by one."""
    listed = [
        condition.value
        for condition in conditions
        if (condition.column, condition.operator) == (name, "in")
    ]
    return {value for values in listed for value in values}


def due_conditions(after_ms: int | None, before_ms: int | None) -> list[Condition]:
    """Due at ``after_ms`` or later, and before ``before_ms``."""
    bounds = ((">=", after_ms), ("<", before_ms))
    return [Condition("due_ms", operator, value) for operator, value in bounds if value is not None]


def _writer(file: Any, store: Path, options: TableOptions) -> Any:
    schema = options.schema.with_metadata(
        {
            "delaywheel.store": printable(str(StoreRoot(store).path)),  # Parquet takes UTF-8 alone
            "delaywheel.now_ms": str(options.now_ms),
        }
    )
    return pq.ParquetWriter(file, schema, compression="zstd")


def _batches(
    store: Path,
    rows: dict[str, PendingRows],
    options: TableOptions,
    conditions: Sequence[Condition],
    progress: Progress,
) -> Iterator[tuple[str, list[pa.RecordBatch]]]:
    """Batches of one kind, gathered into row groups."""
    total = sum(len(each) for each in rows.values())
    root, done = StoreRoot(store), 0
    progress("export", 0, total)
    for kind, waiting in rows.items():
        gathered: list[pa.RecordBatch] = []
        for part in waiting.ranges():
            batches = pending_batches(root, kind, part, options, conditions, keep_unreadable=True)
            for batch in batches:
                gathered.append(batch)
                if (
                    sum(int(each.num_rows) for each in gathered) >= GROUP_ROWS
                    or sum(int(each.nbytes) for each in gathered) >= GROUP_BYTES
                ):
                    yield kind, gathered
                    gathered = []
            done += len(part)
            progress("export", done, total)
        if gathered:
            yield kind, gathered
