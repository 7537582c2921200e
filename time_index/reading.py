# SPDX-License-Identifier: Apache-2.0
"""Reads which messages are pending in a time index, without a trace, and beside an open store.

The log alone tells it, so one moment is shown: the messages of the topic that no later record
names. An entry of the queue that leads to no record that can be read is one of them, of unknown
due time. Limitation: the log is read whole from the first message of the queue on.
"""

from contextlib import suppress

import numpy as np

from message_store.base.errors import FormatError, SourceError
from message_store.columns.byte_column import Int64s
from message_store.files.log_row import open_log
from message_store.files.notes import LostNotes
from message_store.files.segments import SegmentReader
from message_store.files.small_files import is_directory, is_present
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX
from message_store.format.properties import TIME_INDEX_TOPIC
from message_store.kernels.log import WALKED, walk_window
from message_store.life.trace import record_at
from message_store.reading.commit_log import NO_TIME, LogWalk, read_store_times
from message_store.reading.consume_queue import QueueEntries, UnitArray, is_filled, read_queue
from message_store.reading.engine_choice import time_index_state
from message_store.reading.recovered_end import recovered_end
from message_store.redelivery.lineage import NAME_ROWS, PLACE, Names
from time_index.buckets import IndexFiles
from time_index.layouts import Units
from time_index.record_kernel import DUE, FOUND_ROWS, OFFSET, SIZE, messages_in

UNREAD_MS = 0
"""Stands for the due time of a record that cannot be read."""


def lost_messages_of(root: StoreRoot) -> LostNotes:
    """The notes of messages of one store that could not be delivered."""
    return LostNotes(root.own / "time-index-lost.json")


def has_time_index(root: StoreRoot) -> bool:
    """Whether a time index was ever here; a loss of power may have taken its queue."""
    has_queue = is_directory(root.consume_queues / TIME_INDEX_TOPIC)
    return has_queue or is_present(time_index_state(root))


def pending_in_time_index(root: StoreRoot) -> Units:
    """The pending messages, in the order of delivery; what cannot be read is due at
    ``UNREAD_MS``. Raises SourceError and FormatError.
    """
    if not has_time_index(root):
        return Units.none()
    queue, cancels = (read_queue(root.consume_queue(TIME_INDEX_TOPIC, each)) for each in range(2))
    messages, named = [np.empty((FOUND_ROWS, 0), np.int64)], [np.empty((NAME_ROWS, 0), np.int64)]
    walked = np.zeros(WALKED, np.int64)

    def visit(address: int, length: int, base: int, room: int) -> tuple[int, int]:
        walk_window(address, length, base, room, walked)
        messages.append(messages_in(address, int(walked[1]), base))
        named.append(Names.table_of(address, int(walked[1]), base))
        return int(walked[1]), int(walked[2])

    with open_log(root) as log:
        LogWalk(log, known_end=queue.indexed_end).run(_first_record(queue, log), visit)
        found, rows = np.concatenate(messages, axis=1), np.concatenate(named, axis=1)
        # Behind the end that recovery leaves, a delivery tells of nothing; a cancel does.
        counts = rows[PLACE] < recovered_end(root, log)
        counts |= np.isin(rows[PLACE], cancels.units["commit_log_offset"])
        names, found = Names(*rows[:, counts]), found[:, found[DUE] >= 0]
        unread = _unread(queue, log, found)
    units = Units(
        np.concatenate([found[DUE], np.full(len(unread), UNREAD_MS)]),
        np.concatenate([found[OFFSET], unread["commit_log_offset"]]).astype(np.int64),
        np.concatenate([found[SIZE], unread["size_bytes"]]).astype(np.int64),
    )
    return units.rows(~names.are_done(units.offsets, units.offsets)).in_order()


def gone_from_time_index(root: StoreRoot) -> int:
    """How many messages wait by the files of the index, and by the queue behind them, whose records
    lay before the log's first file. 0 where the files cannot be believed: an engine rebuilds them
    from the log.
    """
    files = IndexFiles(root)
    with suppress(FormatError, SourceError), open_log(root) as log:
        state, begin = files.read_state(), log.min_offset
        if state is None:
            return 0
        parts = [files.read(each) for each in state.buckets if each.first_offset < begin]
        queue = read_queue(root.consume_queue(TIME_INDEX_TOPIC, 0))
        queued = queue.slice(state.placed_end, queue.queue_max).commit_log_offset
        gone = np.concatenate([Units.together(parts).pending().offsets, queued])
        gone = gone[(gone >= 0) & (gone < begin)]
        if len(gone):
            start = max(state.log_end, begin)
            names = Names.read(log, start, LONG_MAX, known_end=start)
            return int((~names.are_done(gone, gone)).sum())
    return 0


def _first_record(queue: QueueEntries, log: SegmentReader) -> int:
    """Where the record of the first entry ever begins, and where the log does if that is damaged or
    gone. A queue without its first file may lack entries of messages that the log has.
    """
    offsets = queue.commit_log_offset
    is_first = len(offsets) > 0 and offsets[0] == offsets.min() and queue.first_queue_offset == 0
    if is_first and read_store_times(log, offsets[:1])[0] != NO_TIME:
        return max(int(offsets[0]), log.min_offset)
    return log.min_offset


def _unread(queue: QueueEntries, log: SegmentReader, found: Int64s) -> UnitArray:
    """The entries that lead to no record that can be read. Where a record without an entry says
    that it is theirs, the entry is damaged and not the record.
    """
    offsets = queue.commit_log_offset
    is_lost = is_filled(queue.units) & (offsets >= log.min_offset)
    is_lost &= ~np.isin(offsets, found[OFFSET])
    rows = np.flatnonzero(is_lost)
    if not len(rows):
        return queue.units[:0]
    others = np.setdiff1d(found[OFFSET], offsets)
    last = int(offsets[~is_lost].max(initial=0))
    near = others[: np.searchsorted(others, last) + len(rows)]  # behind them no entry was lost
    records = (record_at(log, int(offset)) for offset in near)
    known = {record.queue_offset for record in records if record is not None}
    is_theirs = np.isin(queue.first_queue_offset + rows, list(known))
    return queue.units[rows[~is_theirs]]
