# SPDX-License-Identifier: Apache-2.0
"""What an opening of ours keeps of a timer log after a crash: the units up to the last flush. The
queue has the messages of the others. A listing goes by the same units, and so it shows the same.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX
from message_store.reading.commit_log import NO_TIME, read_store_times
from message_store.reading.consume_queue import read_queue
from timer_wheel.format.checkpoint import LastFlush
from timer_wheel.format.timer_log import TIMER_UNIT, TimerUnits
from timer_wheel.format.wheel_math import Int64Array

Units: TypeAlias = NDArray[np.void]
NO_UNITS: Units = np.empty(0, TIMER_UNIT.dtype)


def kept_units(
    root: StoreRoot, units: TimerUnits, commit_log: SegmentReader, flush: LastFlush
) -> TimerUnits:
    """The units that count: none where first files of the timer log are missing, and none from the
    first on whose record is not in the log. Where the queue lacks the entry of a message that was
    placed since the flush, the later units are all that is known, and count too.
    """
    begins = units.file_starts[:1] > flush.log_begins
    offsets = units.units["commit_log_offset"].astype(np.int64)
    queued = read_queue(root.timer_queue()).commit_log_offset
    if begins.any() and (queued < offsets[:1].min(initial=LONG_MAX)).any():
        return units.until(0)
    later = offsets[len(units.until(flush.position)) :]
    is_whole = _are_there(units, commit_log, len(units) - len(later))
    is_in_log = is_whole & (later >= commit_log.min_offset)
    kept = units
    if np.isin(later[is_in_log], queued).all():
        kept = units.until(flush.position)
    first = kept.index_of_file(min(flush.checkpoint.flush_position, kept.end_position))
    torn = np.flatnonzero(~_are_there(kept, commit_log, first))
    return kept.until(int(kept.positions[first + torn[0]])) if len(torn) else kept


def _are_there(units: TimerUnits, commit_log: SegmentReader, first: int) -> NDArray[np.bool_]:
    """Of which units from one on the log has the record, or had it before retention."""
    rows = units.units[first:]
    offsets, sizes = (
        rows[name].astype(np.int64) for name in ("commit_log_offset", "record_size_bytes")
    )
    is_there = read_store_times(commit_log, offsets, sizes) != NO_TIME
    return np.asarray(is_there | ((offsets < commit_log.min_offset) & (sizes > 0)))


def rows_of(units: Units, offsets: Int64Array, sizes: Int64Array) -> Int64Array:
    """Which unit leads to each of these records, with its size; -1 where none does."""
    rows = np.flatnonzero(np.isin(units["commit_log_offset"].astype(np.int64), offsets))
    chosen = units[rows]
    pairs = zip(
        chosen["commit_log_offset"].tolist(), chosen["record_size_bytes"].tolist(), strict=True
    )
    known = dict(zip(pairs, rows.tolist(), strict=True))
    wanted = zip(offsets.tolist(), sizes.tolist(), strict=True)
    return np.array([known.get(pair, -1) for pair in wanted], np.int64)
