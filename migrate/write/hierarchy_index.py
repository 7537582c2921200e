# SPDX-License-Identifier: Apache-2.0
"""The index of a hierarchical wheel, made by the engine's own code when log and queue are written.

It is what the engine would have written with its hands at the beginning of time: every message
stands in the hour wheel.
"""

from contextlib import closing
from pathlib import Path

import numpy as np

from message_store.base.errors import DelayStoreError, PlanError, TargetError
from message_store.columns.byte_column import Int64s, int64s
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader
from message_store.kernels.raw_memory import address_of
from message_store.reading.record_reader import NOT_THERE, read_chunks
from migrate.plan.target_rows import TargetRows
from migrate.write.staging import Staging, clear, make_directory
from timer_wheel.format.index_layouts import HOURS, IndexState
from timer_wheel.format.older_slots import EXACT_MS, NO_OLDER_SLOTS
from timer_wheel.format.timer_due import TO_THE_MILLISECOND
from timer_wheel.hierarchy.id_index import IdIndex
from timer_wheel.hierarchy.index_db import IndexDb
from timer_wheel.hierarchy.waiting_rows import by_slot, rows_of
from timer_wheel.reading.ownership import Active, claim, guard, home, index_path
from timer_wheel.reading.record_kernel import FACT_COLUMNS, ID, read_timer_records
from timer_wheel.timers.rows import TimerFacts

_ROWS_AT_ONCE = 1 << 18


def seal_index(rows: TargetRows, staging: Staging) -> None:
    """Make the index in the staging directory, anew where an earlier try was stopped.

    The records are read once more, for their keys. Out times mean slots of the target's precision;
    later messages are kept to the millisecond. Raises SourceError, TargetError and PlanError.
    """
    store, precision_ms = staging.store, rows.settings.precision_ms
    clear(home(store))
    make_directory(home(store))
    with closing(IndexDb(index_path(store))) as db, open_log(store) as log:
        ids = IdIndex(db, 0)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            end = min(first + _ROWS_AT_ONCE, len(rows))
            queue_offsets = np.arange(first, end, dtype=np.int64)
            offsets, sizes = int64s(rows.offsets[first:end]), int64s(rows.sizes[first:end])
            facts = _read_facts(log, offsets, sizes)
            waiting = rows_of(queue_offsets, offsets, sizes, facts, precision_ms)
            changes = db.batch()
            for slot_ms, block in by_slot(waiting, HOURS):
                changes.put_block(HOURS.name, slot_ms, block)
            ids.add(facts.table[ID], queue_offsets)
            ids.put_all(changes)
            db.move(changes)
            ids.written(end)
        state = IndexState(
            precision_ms=TO_THE_MILLISECOND,
            slot_precision_ms=precision_ms,
            placed_end=len(rows),
            log_end=rows.log_end,
            hand_ms=0,
            minute_hand_ms=0,
            hour_hand_ms=0,
            ids_end=len(rows),
        )
        db.write(db.batch(), state)
    claim(store, Active(TO_THE_MILLISECOND, precision_ms))
    guard(store)


def require_index(directory: Path) -> None:
    """Raise TargetError on a disk on which RocksDB does not work. It needs locks and syncs of
    directories, which the rest of a conversion does without.
    """
    path = directory / "tried-index"
    try:
        IndexDb(path).close()
    except DelayStoreError as error:
        raise TargetError(
            f"{directory}: RocksDB does not work on this disk ({error}); convert to another disk,"
            " or without --to hierarchy"
        ) from error
    finally:
        clear(path)


def _read_facts(log: SegmentReader, offsets: Int64s, sizes: Int64s) -> TimerFacts:
    """What the records say, a column each. Raises PlanError for one that says nothing."""
    table = np.zeros((FACT_COLUMNS, len(offsets)), np.int64)
    for chunk in read_chunks(log, offsets, sizes.astype(np.int32)):
        rows = slice(chunk.first, chunk.end)
        is_there = chunk.buffer_offsets != NOT_THERE
        addresses = np.where(is_there, address_of(chunk.buffer) + chunk.buffer_offsets, -1)
        part = np.zeros((FACT_COLUMNS, len(addresses)), np.int64)
        older = NO_OLDER_SLOTS.columns()
        read_timer_records(addresses, sizes[rows], offsets[rows], EXACT_MS, True, *older, part)
        table[:, rows] = part
    facts = TimerFacts(table, {}, EXACT_MS)
    if not facts.is_fine.all():
        place = int(offsets[~facts.is_fine][0])
        raise PlanError(f"{log.directory}: what was written at {place} cannot be read")
    return facts
