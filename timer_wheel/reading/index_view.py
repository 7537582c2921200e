# SPDX-License-Identifier: Apache-2.0
"""The index of a hierarchical wheel that nobody has open, looked at without a trace: what stands in
it, and what it says of itself. Limitation: whole in memory, 36 bytes a message and 16 an id.
"""

from pathlib import Path

import attrs
import numpy as np

from message_store.base.errors import BadFieldError
from message_store.files.store_root import StoreRoot
from message_store.format.layout import Layout
from timer_wheel.format.index_layouts import (
    BLOCK_KEY,
    ID_KEY,
    ID_ROW,
    IDS,
    MARKS,
    NATIVE_ID,
    NATIVE_ROW,
    STATE,
    STATE_KEY,
    WAITING_ROW,
    WHEELS,
    IndexState,
    Rows,
)
from timer_wheel.reading.ownership import index_path
from timer_wheel.reading.rocksdb_view import FamilyView, open_families


@attrs.frozen(eq=False)
class IndexContent:
    """All rows of an index, in the order of the timer queue; ``slots_ms`` are the slots that the
    messages stand in, ``buckets`` what the ids' keys say of the lowest bits of their hash.

    ``state`` is None where nothing was ever said of the whole.
    """

    state: IndexState | None
    waiting: Rows
    slots_ms: np.ndarray[tuple[int], np.dtype[np.int64]]
    marks: Rows
    ids: Rows
    buckets: np.ndarray[tuple[int], np.dtype[np.int64]]


def read_index(root: StoreRoot) -> IndexContent:
    """The index of a hierarchical wheel's store.

    Raises SourceError for a database that cannot be read, BadFieldError for blocks that are none.
    """
    path = index_path(root)
    names = [wheel.name for wheel in WHEELS]
    with open_families(path, "default", *names, MARKS, IDS) as [whole, *wheels, of_marks, of_ids]:
        state = whole.get(STATE_KEY)
        waiting = [_blocks(view, path, BLOCK_KEY, WAITING_ROW, "slot_ms") for view in wheels]
        marks, _ = _blocks(of_marks, path, BLOCK_KEY, WAITING_ROW, "slot_ms")
        ids, buckets = _blocks(of_ids, path, ID_KEY, ID_ROW, "bucket")
    rows = np.concatenate([found for found, _ in waiting]).astype(NATIVE_ROW)
    slots_ms = np.concatenate([slots for _, slots in waiting])
    in_queue = np.argsort(rows["queue_offset"], kind="stable")
    ids_in_queue = np.argsort(ids["queue_offset"], kind="stable")
    return IndexContent(
        state=None if state is None else IndexState(**STATE.decode_at(state, 0)),
        waiting=rows[in_queue],
        slots_ms=slots_ms[in_queue],
        marks=marks.astype(NATIVE_ROW),
        ids=ids.astype(NATIVE_ID)[ids_in_queue],
        buckets=buckets[ids_in_queue],
    )


def _blocks(
    view: FamilyView, path: Path, key_layout: Layout, row_layout: Layout, of_key: str
) -> tuple[Rows, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The rows of a column family, and for each a number of its block's key."""
    content, numbers, counts = bytearray(), [], []
    for key, value in view.entries(b""):
        if len(key) != key_layout.size or len(value) % row_layout.size:
            raise BadFieldError("a block that is none", path=path, found=key.hex())
        content += value
        numbers.append(key_layout.decode_at(key, 0)[of_key])
        counts.append(len(value) // row_layout.size)
    rows = np.frombuffer(content, row_layout.dtype)
    return rows, np.repeat(np.array(numbers, np.int64), np.array(counts, np.int64))
