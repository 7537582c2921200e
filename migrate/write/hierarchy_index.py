# SPDX-License-Identifier: Apache-2.0
"""The index of a hierarchical wheel: two tables for each run of messages, and one database of all.

What an index knows of a record is noted while the record is in memory: none is read a second time.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from message_store.columns.byte_column import Int64s
from message_store.files.small_files import sync_file
from message_store.kernels.raw_memory import address_of
from migrate.plan.target_rows import TargetRows
from migrate.write.staging import Staging, clear, target_errors
from timer_wheel.format.index_layouts import FLAG_ALWAYS, HOURS, IDS, NATIVE_ROW, IndexState, Rows
from timer_wheel.format.older_slots import NO_OLDER_SLOTS
from timer_wheel.format.timer_due import TO_THE_MILLISECOND, due_times
from timer_wheel.hierarchy.index_bulk import make_index, write_ids, write_waiting
from timer_wheel.reading.ownership import Active, claim, guard, home, index_path
from timer_wheel.timers.record_kernel import FACT_COLUMNS, ID, read_timer_records

INDEX_FAMILIES = (HOURS.name, IDS)
"""The column families that a conversion fills."""


def key_hashes(
    block: NDArray[np.uint8], origin: int, offsets: Int64s, sizes: Int64s, precision_ms: int
) -> Int64s:
    """The hash of each record's unique key, 0 for none, in a block that begins at log offset
    ``origin``.
    """
    facts = np.zeros((FACT_COLUMNS, len(offsets)), np.int64)
    addresses = address_of(block) + offsets - origin
    older = NO_OLDER_SLOTS.columns()
    read_timer_records(addresses, sizes, offsets, precision_ms, True, *older, facts)
    return np.array(facts[ID])


def index_rows(
    first: int,
    outs_ms: Int64s,
    offsets: Int64s,
    sizes: Int64s,
    topic_hashes: NDArray[np.int32],
    *,
    now_ms: int,
    precision_ms: int,
) -> Rows:
    """The messages as the engine reads them from their records, from queue offset ``first`` on."""
    rows = np.empty(len(offsets), NATIVE_ROW)
    rows["due_ms"] = due_times(outs_ms, np.full(len(offsets), now_ms), precision_ms)
    rows["queue_offset"] = first + np.arange(len(offsets))
    rows["commit_log_offset"] = offsets
    rows["size_bytes"] = sizes
    rows["topic_hash"] = topic_hashes
    rows["flags"] = FLAG_ALWAYS
    return rows


def write_tables(
    staging: Staging, number: int, rows: Rows, hashes: Int64s, *, durably: bool = False
) -> list[tuple[Path, Path]]:
    """Write the tables of a run of messages, of ids only where there are any; returns where each
    lies and its place. Raises TargetError.
    """
    places = [staging.index_table(number, family) for family in INDEX_FAMILIES]
    waiting, ids = map(staging.unplaced, places)
    write_waiting(waiting, rows)
    write_ids(ids, hashes, rows["queue_offset"].astype(np.int64))
    written = [each for each in zip((waiting, ids), places, strict=True) if each[0].exists()]
    for path, _place in written if durably else ():
        with target_errors(path):
            sync_file(path)
    return written


def tables_of(staging: Staging) -> dict[str, list[Path]]:
    """All tables by column family; messages without a key have none of ids."""
    return {family: sorted(staging.tables.glob(f"*.{family}.sst")) for family in INDEX_FAMILIES}


def seal_index(rows: TargetRows, staging: Staging) -> None:
    """Make the index in the staging directory, anew where an earlier try was stopped.

    Out times mean slots of the target's precision; later messages are kept to the
    millisecond. Raises TargetError.
    """
    store, precision_ms = staging.store, rows.settings.precision_ms
    clear(home(store))
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
    make_index(index_path(store), tables_of(staging), state)
    claim(store, Active(TO_THE_MILLISECOND, precision_ms))
    guard(store)
