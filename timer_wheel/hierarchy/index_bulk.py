# SPDX-License-Identifier: Apache-2.0
"""The index of a hierarchical wheel made at once, from many messages that are known beforehand.

Each run of the timer queue becomes two sorted tables, of messages and of ids. Then one process
takes all tables into a new database. The result is what the engine would have written with its
hands at the beginning of time: every message stands in the hour wheel. A table is not the same
bytes twice (RocksDB puts its own marks into it), what stands in it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import attrs
import numpy as np
import rocksdict

from message_store.base.errors import TargetError
from message_store.columns.byte_column import Int64s
from timer_wheel.format.index_layouts import (
    BLOCK_KEY,
    BUCKET_BITS,
    ERA_BITS,
    FAMILIES,
    HOURS,
    ID_KEY,
    ID_ROW,
    NATIVE_ID,
    STATE,
    STATE_KEY,
    WAITING_ROW,
    IndexState,
    Rows,
)
from timer_wheel.hierarchy.index_db import database_options
from timer_wheel.hierarchy.waiting_rows import by_slot

_Pairs = Iterable[tuple[bytes, bytes]]


def write_waiting(path: Path, rows: Rows) -> None:
    """A table of messages for the hour wheel, in blocks by slot. Raises TargetError."""
    _write_table(
        path,
        (
            (
                BLOCK_KEY.encode(slot_ms=slot_ms, queue_offset=int(part["queue_offset"][0])),
                part.astype(WAITING_ROW.dtype).tobytes(),
            )
            for slot_ms, part in by_slot(rows, HOURS)
        ),
    )


def write_ids(path: Path, key_hashes: Int64s, queue_offsets: Int64s) -> None:
    """A table of ids, a block for each bucket of the hash; 0 is the hash of no key.

    Raises TargetError.
    """
    is_known = key_hashes != 0
    ids = np.empty(int(is_known.sum()), NATIVE_ID)
    ids["key_hash"], ids["queue_offset"] = key_hashes[is_known], queue_offsets[is_known]
    bucket = ids["key_hash"] & ((1 << BUCKET_BITS) - 1)
    era = ids["queue_offset"] >> ERA_BITS
    order = np.lexsort((ids["queue_offset"], bucket, era))
    ids, bucket, era = ids[order], bucket[order], era[order]
    is_first = np.ones(len(ids), bool)
    is_first[1:] = (bucket[1:] != bucket[:-1]) | (era[1:] != era[:-1])
    begins = np.flatnonzero(is_first).tolist()
    _write_table(
        path,
        (
            (
                ID_KEY.encode(
                    era=int(era[begin]),
                    bucket=int(bucket[begin]),
                    queue_offset=int(ids["queue_offset"][begin]),
                ),
                ids[begin:end].astype(ID_ROW.dtype).tobytes(),
            )
            for begin, end in pairwise([*begins, len(ids)])
        ),
    )


def _write_table(path: Path, pairs: _Pairs) -> None:
    """Pairs in order of their keys as a table; none make no file."""
    writer = None
    try:
        for key, value in pairs:
            if writer is None:
                writer = rocksdict.SstFileWriter(database_options())
                writer.open(str(path))
            writer[key] = value
        if writer is not None:
            writer.finish()
    except Exception as error:
        raise TargetError(f"{path}: cannot be written: {error}") from error


def make_index(path: Path, tables: Mapping[str, Sequence[Path]], state: IndexState) -> None:
    """A new database of these tables, by column family, of which ``state`` holds.

    The tables are copied and stay. Raises TargetError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        families = {name: database_options() for name in FAMILIES}
        database = rocksdict.Rdict(str(path), database_options(), families)
        for name, files in tables.items():
            if files:
                _take_in(database.get_column_family(name), files)
        options = rocksdict.WriteOptions()
        options.sync = True
        database.put(STATE_KEY, STATE.encode(**attrs.asdict(state)), options)
        database.flush()
        database.close()
    except Exception as error:
        raise TargetError(f"{path}: cannot be written: {error}") from error


def _take_in(family: rocksdict.Rdict, files: Sequence[Path]) -> None:
    """The tables as one: where their keys lie among each other, each look-up would look at all."""
    family.ingest_external_file([str(file) for file in files])
    family.compact_range(None, None)
    family.close()
