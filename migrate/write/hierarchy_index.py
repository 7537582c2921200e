# SPDX-License-Identifier: Apache-2.0
"""The index of a hierarchical wheel: two tables for each part, and one database of all tables.

A part writes its tables while it has its records in memory, so no record is read a second time.
"""

import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from message_store.columns.byte_column import Int64s
from message_store.files.small_files import read_small_file
from message_store.kernels.raw_memory import address_of
from migrate.plan.plan import Plan
from migrate.write.staging import Staging, clear, replaced
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
) -> int:
    """Write a part's tables; returns a CRC of both. Raises TargetError."""
    waiting, ids = (staging.index_table(number, family) for family in INDEX_FAMILIES)
    with replaced(waiting, durably=durably) as path:
        write_waiting(path, rows)
    with replaced(ids, durably=durably) as path:
        write_ids(path, hashes, rows["queue_offset"].astype(np.int64))
    return tables_crc(staging, number)


def tables_crc(staging: Staging, number: int) -> int:
    """The CRC of a part's tables as they lie there. Raises SourceError."""
    crc = 0
    for family in INDEX_FAMILIES:
        crc = zlib.crc32(read_small_file(staging.index_table(number, family)) or b"", crc)
    return crc


def tables_of(staging: Staging, part_count: int) -> dict[str, list[Path]]:
    """The tables of all parts, by column family; a part without a key has none of ids."""
    return {
        family: [
            path
            for number in range(part_count)
            if (path := staging.index_table(number, family)).exists()
        ]
        for family in INDEX_FAMILIES
    }


def seal_index(plan: Plan, staging: Staging) -> None:
    """Make the index in the staging directory, anew where an earlier try was stopped.

    Out times mean slots of the plan's precision; later messages are kept to the millisecond. Raises
    TargetError.
    """
    store, precision_ms = staging.store, plan.settings.precision_ms
    clear(home(store))
    state = IndexState(
        precision_ms=TO_THE_MILLISECOND,
        slot_precision_ms=precision_ms,
        placed_end=len(plan),
        log_end=plan.log.end_offset,
        hand_ms=0,
        minute_hand_ms=0,
        hour_hand_ms=0,
        ids_end=len(plan),
    )
    make_index(index_path(store), tables_of(staging, len(plan.log.parts)), state)
    claim(store, Active(TO_THE_MILLISECOND, precision_ms))
    guard(store)
