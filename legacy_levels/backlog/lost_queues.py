# SPDX-License-Identifier: Apache-2.0
"""Level queues that lost files: all of them, or the first or last ones.

The log still has the records, unless retention took them. Two kinds of evidence:

- A queue without any file, or whose files hold nothing. A broker makes a level's directory with its
  first message, so a missing one mostly means an unused level. The level's delivery offset, or
  records of it in the newest part of the log, show that the level was used. Limitation: a level
  without an offset that was last used before that part of the log counts as unused.
- A queue that is shorter than at the last flush, or that begins behind its offset. Only the marks
  of ``delaywheel`` show this; a store that only brokers used has none.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import numpy as np

from legacy_levels.backlog.queues import LevelQueue, levels_with_queue, open_level_queues
from legacy_levels.copies.log_notes import take_notes
from legacy_levels.delay_offsets import OffsetsChoice, read_delay_offsets
from legacy_levels.delivery_marks import FLUSHED_NAME, LATEST_NAME, DeliveryMark, read_mark
from legacy_levels.neutral_units import is_message
from message_store.base.errors import FormatError
from message_store.base.parallel import parallel_map
from message_store.base.printable import counted
from message_store.files.log_row import open_log
from message_store.files.segments import list_directories, list_segments
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.reading.consume_queue import (
    FILES_SCANNED_FOR_THE_END,
    UnitArray,
    is_filled,
    read_last_entry,
    read_queue,
)
from message_store.reading.indexed_end import RECENT_BYTES, find_indexed_end
from message_store.reading.recovered_end import on_disk_until

_ENTRIES = ("entry", "entries")


@attrs.frozen
class CutQueue:
    """A level's queue that lacks ``count`` entries, and how that shows."""

    level: int
    directory: Path
    count: int
    problem: str

    def __str__(self) -> str:
        return f"{self.directory}: {self.problem}"


def cut_queues(
    store: StoreRoot, queues: Iterable[LevelQueue], mark: DeliveryMark | None
) -> tuple[CutQueue, ...]:
    """The queues that were longer at the flush of a ``mark``, or begin behind their offset; in
    order of level. The mark is read before the queues, which may grow. A queue without any file is
    one of ``gone_queues``.
    """
    if mark is None:
        return ()
    cuts = (_cut(store, mark, queue) for queue in queues)
    return tuple(cut for cut in cuts if cut is not None)


def _cut(store: StoreRoot, mark: DeliveryMark, queue: LevelQueue) -> CutQueue | None:
    level, directory = queue.level, store.level_queue(queue.level)
    if (count := mark.ends.get(level, 0) - queue.queue_max) > 0:
        problem = f"the queue of level {level} has lost its last {counted(count, *_ENTRIES)}"
        return CutQueue(level, directory, count, problem)
    stored = max(mark.offsets.get(level, 0), queue.stored_offset or 0)
    if (count := queue.queue_min - stored) > 0 and level in mark.ends:
        problem = f"the queue of level {level} lacks {counted(count, *_ENTRIES)} from its offset on"
        return CutQueue(level, directory, count, problem)
    return None


def cut_queues_of(store: StoreRoot) -> tuple[CutQueue, ...]:
    """The same, for those who have not read the queues; none where they cannot be told."""
    mark = read_mark(store.path, FLUSHED_NAME)
    if mark is None:
        return ()
    offsets = read_delay_offsets(store.path, OffsetsChoice.NONE)
    try:
        return cut_queues(store, open_level_queues(store.path, offsets), mark)
    except FormatError:
        return ()


_NEWEST_ENTRIES = 4_096
"""With the log's newest part some 60 ms of a store in whose levels a million messages wait
(measured).
"""


@attrs.frozen
class GoneQueue:
    """A level whose queue is not there, and how that shows."""

    level: int
    directory: Path
    evidence: str

    def __str__(self) -> str:
        return f"{self.directory}: the queue of level {self.level} {self.evidence}"


def gone_queues(store: StoreRoot, *, is_held: bool = False) -> tuple[GoneQueue, ...]:
    """The levels of a store whose queue has no file, though one was there, in order of level.

    None where no queue of any topic is left: then a broker makes all of them anew. So does one that
    kept them in RocksDB and was killed, of those that were not flushed. ``is_held`` says that the
    caller keeps writers out. Raises SourceError where the disk refuses.
    """
    if store.lacks_newest_entries or not list_directories(store.consume_queues):
        return ()
    # A writer may be at work. What shows that a queue was there is read before the queues, so that
    # a queue that is made meanwhile is found. It has a directory before it has a file.
    was_stopped_cleanly = store.was_stopped_cleanly
    is_at_rest = is_held or not store.is_in_use()
    tables = read_delay_offsets(store.path, OffsetsChoice.NONE).by_choice().values()
    marks = [read_mark(store.path, name) for name in (FLUSHED_NAME, LATEST_NAME)]
    used = {level for mark in marks if mark for level, end in mark.ends.items() if end}
    there = levels_with_queue(store.path)
    offsets = _used_offsets(tables, there)
    has_files = [level for level in there if list_segments(store.level_queue(level))]
    lost = dict.fromkeys(has_files, "has no entry")
    filled = [level for level in has_files if len(read_last_entry(store.level_queue(level)))]
    evidence = {
        level: "has no file left"
        for level in there
        if level not in has_files and (is_at_rest or level in offsets or level in used)
    }
    for level, offset in offsets.items():
        if level not in filled:
            known = f"where delayOffset.json has its offset {offset:,}"
            evidence.setdefault(level, f"{lost.get(level, 'is gone')}, {known}")
    flushed = marks[0].ends if marks[0] else {}
    for level, end in flushed.items():
        if end and level not in there:
            entries = counted(end, *_ENTRIES)
            evidence.setdefault(level, f"is gone, where the last flush knew of {entries}")
    if was_stopped_cleanly or is_at_rest:  # else a level may be used since for the first time
        for level in sorted(_levels_in_log(store, filled)):
            if level not in filled:
                known = "where the log has records of it"
                evidence.setdefault(level, f"{lost.get(level, 'is gone')}, {known}")
    return tuple(
        GoneQueue(level, store.level_queue(level), evidence[level]) for level in sorted(evidence)
    )


def _used_offsets(tables: Iterable[Mapping[int, int]], there: list[int]) -> Mapping[int, int]:
    """Where levels stood that were delivered from, as far as one of the offset files tells; a
    number beyond every level is nobody's.
    """
    highest = max([DelayLevels.parse().max_level, *there])
    used: dict[int, int] = {}
    for table in tables:
        for level, offset in table.items():
            if 1 <= level <= highest and offset > 0:
                used[level] = max(used.get(level, 0), offset)
    return used


def _levels_in_log(store: StoreRoot, levels: list[int]) -> set[int]:
    """Levels of records in the newest part of the log to which none of these levels' queues leads.

    Only below the newest record that any queue knows, and in what was on the disk before a kill:
    what lies behind that, none may know yet.
    """
    newest = parallel_map(lambda level: _newest_entries(store.level_queue(level)), levels)
    with open_log(store) as log:
        places = [units["commit_log_offset"].astype(np.int64) for units in newest]
        end = min(find_indexed_end(store.path, log).log_offset, on_disk_until(store, log))
        # Of a queue that is longer than what was read of it, nothing is known before that.
        firsts = [int(at.min()) for at in places if len(at) >= _NEWEST_ENTRIES]
        lowest = max([log.min_offset, end - RECENT_BYTES, *firsts])
        queued = np.concatenate([np.empty(0, np.int64), *places])
        starts = np.append(queued, log.min_offset)
        starts = starts[(starts >= lowest) & (starts < end)]
        if not len(starts):
            return set()
        notes = take_notes(log, int(starts.min()), known_end=end, stop_at=end).level_records
        is_unknown = ~np.isin(notes.commit_log_offset, queued) & (notes.queue_id >= 0)
        return {int(queue_id) + 1 for queue_id in np.unique(notes.queue_id[is_unknown])}


def _newest_entries(directory: Path) -> UnitArray:
    """The newest entries of a level's queue that stand for messages."""
    first = list_segments(directory)[-FILES_SCANNED_FOR_THE_END:][0].start_offset // QUEUE_UNIT.size
    try:
        units = read_queue(directory, from_queue_offset=first).units
    except FormatError:  # a queue that cannot be told is not one that is lost
        return np.empty(0, QUEUE_UNIT.dtype)
    newest: UnitArray = units[is_message(units) & is_filled(units)][-_NEWEST_ENTRIES:]
    return newest.copy()  # a view would hold all that was read
