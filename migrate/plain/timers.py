# SPDX-License-Identifier: Apache-2.0
"""The wheel of a store whose records have new offsets: the units of its timer log lead to these.

Slots name positions in the timer log, which stay. So do the wheel's own checkpoint and metrics.
"""

import numpy as np

from message_store.base.errors import SourceError
from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_extents
from message_store.files.store_root import StoreRoot
from migrate.plain.moved_records import NOWHERE, MovedRecords
from migrate.write.large_files import write_sparse
from timer_wheel.format.timer_log import FLAG_DEFAULT, TIMER_UNIT

_KNOWN_FLAGS = 0xF


def move_timers(root: StoreRoot, staged: StoreRoot, moved: MovedRecords, log_min: int) -> None:
    """Copy wheel and timer log; below ``log_min`` retention has taken the records.

    Raises SourceError for a unit that leads to no record, and TargetError.
    """
    with SegmentReader(root.timer_log) as reader:
        for segment in reader.segments:
            content = bytearray(reader.read_at(segment.start_offset, segment.length_bytes))
            count = len(content) // TIMER_UNIT.size
            units = np.frombuffer(content, TIMER_UNIT.dtype, count)
            flags = units["magic"]
            rows = np.flatnonzero(
                (units["size_bytes"] == TIMER_UNIT.size)
                & (flags & ~_KNOWN_FLAGS == 0)  # a blank may be as long as a unit
                & (flags & FLAG_DEFAULT != 0)
            )
            offsets = units["commit_log_offset"][rows].astype(np.int64)
            places = moved.places(offsets)
            is_kept = offsets < log_min
            if (lost := rows[(places == NOWHERE) & ~is_kept]).size:
                position = segment.start_offset + int(lost[0]) * TIMER_UNIT.size
                raise SourceError(
                    f"{segment.path}: the unit at {position:,} leads to no record; take another"
                    " member's store"
                )
            units["commit_log_offset"][rows] = np.where(is_kept, offsets, places)
            place = staged.timer_log / segment.path.name
            write_sparse(place, segment.length_bytes, [(0, bytes(content))])
    for path in sorted(root.path.glob(f"{root.timer_wheel.name}*")):
        size_bytes = path.stat().st_size
        pieces = read_extents(path, size_bytes, "a wheel") or []
        copied = [(at, bytes(piece)) for at, piece in pieces]
        write_sparse(staged.path / path.name, size_bytes, copied)
