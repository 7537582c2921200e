# SPDX-License-Identifier: Apache-2.0
"""The consume queues of the delay levels: the entries of each from its delivery offset on."""

from pathlib import Path

import attrs
import numpy as np

from legacy_levels.delay_offsets import DelayOffsets, OffsetsChoice
from legacy_levels.neutral_units import is_neutral
from message_store.base.parallel import parallel_map
from message_store.files.array_room import new_array, row_blocks
from message_store.files.segments import Segment, SegmentReader, list_directories
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.reading.consume_queue import (
    BoolArray,
    Int64Array,
    QueueEntries,
    is_filled,
    is_pre_blank,
    read_last_entry,
    read_queue,
    resolve_tags_codes,
)

HISTORY_ENTRIES = 1_024
"""So many delivered entries before the offset are kept as evidence of the level's delay."""
_SAMPLED_RUNS, _SAMPLED_ENTRIES = 16, 200
"""Runs of so many entries tell how long the records of a queue are; a run is a page."""


@attrs.frozen(eq=False)
class LevelQueue:
    """One level's queue from its corrected offset to its end.

    ``stored_offset`` is what delayOffset.json says, None when it does not name the level;
    ``entries`` are those not yet delivered by that, ``due_ms`` when each is due as the queue says
    it (``due_is_unknown`` where an extension address leads nowhere). ``history`` are entries before
    them. ``neutral_ends`` are, of units that a hole in the queue hides behind its end, the places
    in the log where the records of cancelled or delivered messages end. ``ends_with_file``: its
    last entry is the last one of a file, and the next file may be lost.
    """

    level: int
    queue_min: int
    queue_max: int
    stored_offset: int | None
    entries: QueueEntries
    history: QueueEntries
    due_ms: Int64Array
    due_is_unknown: BoolArray
    neutral_ends: Int64Array = attrs.field(factory=lambda: np.empty(0, np.int64))
    ends_with_file: bool = False

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def from_queue_offset(self) -> int:
        """The stored offset, moved into the queue as a broker corrects it."""
        return self.entries.first_queue_offset

    @property
    def to_queue_offset(self) -> int:
        """The queue's end."""
        return self.queue_max

    @property
    def queue_offset(self) -> Int64Array:
        """The queue offset of each entry."""
        return np.arange(self.from_queue_offset, self.to_queue_offset, dtype=np.int64)

    @property
    def misfits(self) -> tuple[Segment, ...]:
        """Files of a wrong length."""
        return self.entries.misfits

    @property
    def is_damaged(self) -> bool:
        """Whether units in the middle hold nothing, or some lie behind the end."""
        return self.entries.is_damaged

    def is_expired(self, log_min: int) -> BoolArray:
        """Entries that a broker skips: their record was lost with the oldest log files, their
        message was cancelled or delivered out of turn, or they only fill the queue before its
        first message.
        """
        is_expired = new_array(len(self), np.bool_)
        for rows in row_blocks(len(self)):
            units = self.entries.units[rows]
            is_gone = is_filled(units) & (units["commit_log_offset"] < log_min)
            is_expired[rows] = is_gone | is_neutral(units) | is_pre_blank(units)
        return is_expired


def open_level_queues(
    root: Path, offsets: DelayOffsets, *, queue_file_bytes: int | None = None
) -> tuple[LevelQueue, ...]:
    """The level queues that have a directory, in order of level.

    Raises FormatError where a queue cannot be told (a file in the row is missing).
    """

    def open_one(level: int) -> LevelQueue:
        stored = offsets.offsets.get(level)
        return open_level_queue(root, level, stored, queue_file_bytes=queue_file_bytes)

    return tuple(parallel_map(open_one, levels_with_queue(root)))


def estimate_backlog(root: Path, offsets: DelayOffsets) -> tuple[int, int]:
    """About how many messages wait, by the ends of the queues, and how many bytes their records
    are together, by entries here and there: some KB are read. Raises SourceError.
    """
    messages = size_bytes = 0
    for level in levels_with_queue(root):
        directory = StoreRoot(root).level_queue(level)
        last = read_last_entry(directory)
        count = last.queue_max - max(offsets.offset_of(level), last.queue_min)
        if count > 0:
            messages += count
            size_bytes += int(_usual_bytes(directory, last.queue_max - count, count) * count)
    return messages, size_bytes


def _usual_bytes(directory: Path, first: int, count: int) -> float:
    """How long records are on average, by runs of entries spread over the queue."""
    units = np.zeros(min(_SAMPLED_ENTRIES, count), QUEUE_UNIT.dtype)
    begins = np.linspace(first, first + count - len(units), _SAMPLED_RUNS).astype(np.int64)
    sizes = [np.empty(0, np.int64)]
    with SegmentReader(directory) as reader:
        for begin in np.unique(begins).tolist():
            read_bytes = reader.read_into(begin * QUEUE_UNIT.size, units.view(np.uint8).data)
            there = units[: read_bytes // QUEUE_UNIT.size]
            there = there[is_filled(there) & ~is_pre_blank(there)]
            sizes.append(there["size_bytes"].astype(np.int64))
    sampled = np.concatenate(sizes)
    return float(sampled.mean()) if len(sampled) else 0.0


def levels_with_queue(root: Path) -> list[int]:
    """The levels that have a queue directory. Raises SourceError where it cannot be looked for."""
    names = [path.name for path in list_directories(StoreRoot(root).consume_queues / LEVEL_TOPIC)]
    return sorted(
        int(name) + 1 for name in names if name.isascii() and name.isdigit() and len(name) < 10
    )


def open_level_queue(
    root: Path, level: int, stored_offset: int | None, *, queue_file_bytes: int | None = None
) -> LevelQueue:
    """One level's queue; an empty one when it has no directory. Raises FormatError as above."""
    store = StoreRoot(root)
    directory = store.level_queue(level)
    wanted = max(stored_offset or 0, 0)

    def read_before(offset: int) -> QueueEntries:
        first = max(offset - HISTORY_ENTRIES, 0)
        return read_queue(directory, file_bytes=queue_file_bytes, from_queue_offset=first)

    read = read_before(wanted)
    if wanted > read.queue_max:  # an offset beyond the queue is its end
        read = read_before(read.queue_max)
    offset = min(max(wanted, read.queue_min), read.queue_max)
    entries = read.slice(offset, read.queue_max)
    ext_directory = store.consume_queue_ext(LEVEL_TOPIC, level - 1)
    due_ms, due_is_unknown = resolve_tags_codes(entries, ext_directory)
    return LevelQueue(
        level=level,
        queue_min=read.queue_min,
        queue_max=read.queue_max,
        stored_offset=stored_offset,
        entries=entries,
        history=read.slice(read.first_queue_offset, offset),
        due_ms=due_ms,
        due_is_unknown=due_is_unknown,
        neutral_ends=_neutral_ends_behind(directory, read, queue_file_bytes),
        ends_with_file=_ends_with_file(directory, read, queue_file_bytes),
    )


def _ends_with_file(directory: Path, queue: QueueEntries, queue_file_bytes: int | None) -> bool:
    if not queue.queue_max:
        return False
    with SegmentReader(directory, queue_file_bytes) as files:
        return queue.queue_max * QUEUE_UNIT.size % files.file_bytes == 0


def _neutral_ends_behind(
    directory: Path, queue: QueueEntries, queue_file_bytes: int | None
) -> Int64Array:
    """What ``LevelQueue.neutral_ends`` are; without damage nothing is read."""
    ends = [np.empty(0, np.int64)]
    if queue.is_damaged:
        with SegmentReader(directory, queue_file_bytes) as files:
            position = queue.queue_max * QUEUE_UNIT.size
            for segment in files.segments:
                first = max(position, segment.start_offset)
                rest_bytes = segment.start_offset + segment.length_bytes - first
                units = np.zeros(max(rest_bytes, 0) // QUEUE_UNIT.size, QUEUE_UNIT.dtype)
                files.read_into(first, units.view(np.uint8).data)
                units = units[is_neutral(units) & is_filled(units)]
                ends.append(units["commit_log_offset"].astype(np.int64) + units["size_bytes"])
    return np.concatenate(ends)


def queued_by_choice(root: Path, offsets: DelayOffsets) -> dict[OffsetsChoice, int]:
    """How many messages a broker would deliver, some of them again, from each table that the two
    offset files can give, and from none.
    """
    ends = {}
    for level in levels_with_queue(root):
        directory = StoreRoot(root).level_queue(level)
        end = read_queue(directory, from_queue_offset=LONG_MAX)
        ends[level] = end.queue_min, end.queue_max
    return {
        choice: sum(
            last - min(max(table.get(level, 0), first), last)
            for level, (first, last) in ends.items()
        )
        for choice, table in offsets.by_choice().items()
    }
