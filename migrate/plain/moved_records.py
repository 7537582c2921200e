# SPDX-License-Identifier: Apache-2.0
"""Copies the records of a log into an ordinary one, and remembers where each went."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import SourceError
from message_store.files.live_segments import LiveSegments
from message_store.files.segments import SegmentReader
from message_store.format.record_layout import (
    MAGIC_BLANK,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_IPV6,
    SYS_STORE_HOST_IPV6,
)
from message_store.kernels.batch import place_records
from message_store.kernels.cache import kernel
from message_store.kernels.log import (
    AT_LOG_OFFSET,
    AT_PREPARED,
    AT_SIZE,
    AT_SYS_FLAG,
    IPV6_EXTRA,
    PARTS,
    RECORD,
    entry_head_bytes,
    prepared_offset_at,
    record_at,
)
from message_store.kernels.raw_memory import address_of, copy_bytes, load_i32, store_i32, store_i64
from message_store.reading.commit_log import LogWalk
from message_store.reading.consume_queue import UnitArray
from migrate.progress import Progress

Int64Array = NDArray[np.int64]

_FIRST_ROWS = 1 << 16
NOWHERE = -1

OFFSET, SIZE, PREPARED = range(3)
"""Columns of a listed record: where it begins, its length, its prepared transaction offset."""
COLUMNS = 3
COUNT, STOPPED_AT, WHY = range(3)


@kernel("void(int64, int64, int64, int64, int64[:,::1], int64[::1])")
def list_window(
    buffer: int, length: int, base: int, file_room: int, rows: Any, results: Any
) -> None:
    """List the whole records from the start of a buffer, as ``kernels.log.walk_window`` walks it.

    ``rows`` has a row for each record that the buffer can hold. ``results`` gets how many there
    are, where the walk stopped, and why.
    """
    parts = np.zeros(PARTS, np.int64)
    place, count = 0, 0
    while True:
        at = place + entry_head_bytes(buffer + place, length - place, base + place)
        record = buffer + at
        why = record_at(record, length - at, file_room - at, base + at, parts.ctypes.data)
        if why != RECORD:
            break
        rows[count, OFFSET] = base + at
        rows[count, SIZE] = load_i32(record + AT_SIZE)
        rows[count, PREPARED] = prepared_offset_at(record)
        place = at + rows[count, SIZE]
        count += 1
    results[COUNT], results[STOPPED_AT], results[WHY] = count, place, why


@kernel("void(int64, int64, int64[:,::1], int64[::1], int64[::1], int64, int64)")
def put_records(
    buffer: int, base: int, rows: Any, positions: Any, prepared: Any, start: int, out: int
) -> None:
    """Copy listed records to their ``positions``, in memory at ``out`` for the log from ``start``
    on. Each says where it is then, and has the prepared offset that is given. Where a record begins
    a file, a blank ends the one before.
    """
    end = start
    for row in range(len(rows)):
        position, size = positions[row], rows[row, SIZE]
        if position > end:
            store_i32(out + end - start, position - end)
            store_i32(out + end - start + 4, MAGIC_BLANK)
        record = out + position - start
        copy_bytes(record, buffer + rows[row, OFFSET] - base, size)
        sys_flag = load_i32(record + AT_SYS_FLAG)
        extra = IPV6_EXTRA if sys_flag & SYS_BORN_HOST_IPV6 else 0
        extra += IPV6_EXTRA if sys_flag & SYS_STORE_HOST_IPV6 else 0
        store_i64(record + AT_LOG_OFFSET, position)
        store_i64(record + AT_PREPARED + extra, prepared[row])
        end = position + size


class MovedRecords:
    """Where records were and where they are, in the order of the log: 24 bytes a record."""

    def __init__(self) -> None:
        self._rows = np.zeros((3, _FIRST_ROWS), np.int64)
        self.count = 0

    def add(self, offsets: Int64Array, sizes: Int64Array, positions: Int64Array) -> None:
        """Records behind all that were added before."""
        end = self.count + len(offsets)
        if end > self._rows.shape[1]:
            rows = np.zeros((3, 2 * end), np.int64)
            rows[:, : self.count] = self._rows[:, : self.count]
            self._rows = rows
        self._rows[:, self.count : end] = offsets, sizes, positions
        self.count = end

    def places(self, offsets: Int64Array) -> Int64Array:
        """Where these bytes of records are now; NOWHERE for what is in no record."""
        old, sizes, new = self._rows[:, : self.count]
        if not self.count:
            return np.full(len(offsets), NOWHERE, np.int64)
        row = np.maximum(np.searchsorted(old, offsets, "right") - 1, 0)
        into = offsets - old[row]
        places: Int64Array = np.where((into >= 0) & (into < sizes[row]), new[row] + into, NOWHERE)
        return places

    def follow(self, units: UnitArray, rows: Int64Array, log_min: int) -> int | None:
        """Let these rows of queue entries or timer units lead to where their records are now; those
        below ``log_min``, which retention has taken, stay. Returns the first row that leads to no
        record, or None.
        """
        offsets = units["commit_log_offset"][rows].astype(np.int64)
        places, is_kept = self.places(offsets), offsets < log_min
        units["commit_log_offset"][rows] = np.where(is_kept, offsets, places)
        lost = rows[(places == NOWHERE) & ~is_kept]
        return int(lost[0]) if lost.size else None

    def named(self, prepared: Int64Array) -> Int64Array:
        """Prepared transaction offsets as they are now: of a half message, or (its complement) of
        the record that one of our copies names. Those of lost records stay.
        """
        is_named = prepared < 0
        places = self.places(np.where(is_named, ~prepared, prepared))
        named: Int64Array = np.where(is_named, ~places, places)
        return np.where((prepared == 0) | (places == NOWHERE), prepared, named)


def move_records(
    log: SegmentReader, target: LiveSegments, known_end: int, progress: Progress
) -> MovedRecords:
    """Copy every record of a log, in order, into the empty row ``target``, from the offset on at
    which the log begins: what was before it stays before it.

    Raises SourceError where a record cannot be read: nothing may be left out. Raises TargetError.
    """
    moved, walk = MovedRecords(), LogWalk(log, known_end=known_end)
    rows, results = np.zeros((0, COLUMNS), np.int64), np.zeros(3, np.int64)
    end = log.min_offset
    whole = max(log.end_offset - end, 1)

    def visit(address: int, length: int, base: int, room: int) -> tuple[int, int]:
        nonlocal rows, end
        capacity = length // SMALLEST_RECORD_BYTES + 1
        if len(rows) < capacity:
            rows = np.zeros((capacity, COLUMNS), np.int64)
        list_window(address, length, base, room, rows, results)
        listed = rows[: results[COUNT]]
        positions = np.zeros(len(listed), np.int64)
        sizes = np.ascontiguousarray(listed[:, SIZE])
        if len(listed):
            begin = end
            end = place_records(sizes, begin, target.file_bytes, positions)
            moved.add(listed[:, OFFSET], sizes, positions)
            content = np.zeros(end - begin, np.uint8)
            prepared = moved.named(listed[:, PREPARED])
            put_records(address, base, listed, positions, prepared, begin, address_of(content))
            target.write_at(begin, content.data)
            progress("copy", base - log.min_offset, whole)
        return int(results[STOPPED_AT]), int(results[WHY])

    walk.run(log.min_offset, visit)
    if walk.damaged_places:
        raise SourceError(
            f"{log.directory.parent}: no record begins at log offset {walk.damaged_places[0]},"
            " where one should; take another member's store"
        )
    progress("copy", whole, whole)
    return moved
