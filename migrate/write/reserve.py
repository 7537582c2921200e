# SPDX-License-Identifier: Apache-2.0
"""Puts the log files of all tasks together: which attempts count, and what the reserve fills.

A record carries its number in the queue. Were one left out, all behind it would have another. So a
few messages are held back, the reserve. As many of them as were bad in a file are appended to it;
the last file takes the rest.
"""

import itertools
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import PlanError
from message_store.base.parallel import parallel_map
from message_store.files.array_room import new_array
from message_store.files.log_row import open_log
from message_store.files.segments import segment_name
from message_store.files.store_root import StoreRoot
from message_store.kernels.raw_memory import address_of
from message_store.reading.record_reader import read_chunks
from migrate.plan.plan import Plan
from migrate.plan.stored_plan import StoredPlan
from migrate.plan.target_rows import Arrangement, Runs, TargetRows, arrange
from migrate.write.large_files import FileStream
from migrate.write.log_file import (
    SIZES,
    TAGS_HASHES,
    TOPIC_HASHES,
    FileNote,
    SourceShare,
    is_written,
    read_bad,
    read_numbers,
    write_blank,
)
from migrate.write.publishing import is_publishing
from migrate.write.staging import clear, take_place, target_errors

Int64Array = NDArray[np.int64]


@attrs.frozen(eq=False)
class Written:
    """All records of a plan: the messages that cannot be converted, by their place in the plan, and
    what was written of each source into each file. ``rows`` is None where more are bad than the
    reserve holds: then another plan is made, without them. ``runs`` are the rows of each source.
    """

    bad: dict[int, str]
    shares: list[SourceShare]
    rows: TargetRows | None = None
    runs: Sequence[Runs] = ()


def usable_attempts(plan: StoredPlan, done: Callable[[int], None]) -> dict[int, FileNote]:
    """A whole attempt at each log file that has one. All others are removed. Raises TargetError.

    Their bytes are read, several files at once; ``done`` hears how many are right so far.
    """
    staging = plan.staging
    with target_errors(staging.attempts):
        names = sorted(os.listdir(staging.attempts))
    right, one_by_one = itertools.count(1), threading.Lock()

    def look(name: str) -> FileNote | None:
        attempt = staging.attempt(name)
        note = FileNote.read(attempt.note) if attempt.path.is_dir() else None
        if note is None or note.attempt != name or not is_written(plan, note, log_of(plan, note)):
            return None
        with one_by_one:
            done(next(right))
        return note

    found: dict[int, FileNote] = {}
    for name, note in zip(names, parallel_map(look, names), strict=True):
        if note is None or note.number in found:
            clear(staging.attempt(name).path)
        else:
            found[note.number] = note
    return found


def drop_losers(plan: StoredPlan, notes: Sequence[FileNote]) -> None:
    """Remove all attempts but those that count: they take room, and would be synced. One that is
    still at work finds its directory gone. Raises TargetError.
    """
    staging, winners = plan.staging, {note.attempt for note in notes}
    with target_errors(staging.attempts):
        names = sorted(set(os.listdir(staging.attempts)) - winners)
    for name in names:
        clear(staging.attempt(name).path)


def log_of(plan: StoredPlan, note: FileNote) -> Path:
    """Where the log file of an attempt is by now: with it, in its place, or published."""
    staging, name = plan.staging, _name_of(plan, note)
    places = [staging.attempt(note.attempt).log, staging.store.commit_log / name]
    return next((path for path in places if path.exists()), staging.target.commit_log / name)


def _name_of(plan: StoredPlan, note: FileNote) -> str:
    return segment_name(note.number * plan.settings.commit_log_file_bytes)


def finish_logs(plan: Plan, stored: StoredPlan, notes: Sequence[FileNote]) -> Written:
    """Append the reserve, unless it is published already, and say what was written.

    Raises PlanError where they do not count every message once, SourceError, TargetError.
    """
    staging = stored.staging
    reserve = _Reserve(stored)
    attempts = [staging.attempt(note.attempt) for note in notes]
    numbers = new_array((len(reserve.numbers), len(plan)), np.int32)
    np.concatenate([*map(read_numbers, attempts), reserve.numbers], axis=1, out=numbers)
    bad = {row: why for attempt in attempts for row, why in read_bad(attempt).items()}
    bad |= reserve.bad
    shares = [share for note in notes for share in note.shares] + reserve.shares
    counted = sum(count for each in shares for _topic, count, _queue_id in each.topics)
    if counted + len(bad) != len(plan):
        raise PlanError(
            f"{counted} messages were written and {len(bad)} are bad where the plan has {len(plan)}"
        )
    arrangement = arrange(plan, numbers[SIZES])
    if arrangement is None:
        return Written(bad, shares)
    if not is_publishing(staging):
        for note in notes:
            reserve.append(note, arrangement)
    columns = (numbers[row] for row in (SIZES, TAGS_HASHES, TOPIC_HASHES))
    rows = TargetRows.planned(plan, arrangement, *columns)
    runs = arrangement.runs(plan.cut, plan.settings.commit_log_file_bytes)
    return Written(bad, shares, rows, runs)


class _Reserve:
    """The messages that are written last: judged at once, appended when it is known where."""

    def __init__(self, plan: StoredPlan) -> None:
        self._plan = plan
        self._rows = range(plan.cut.reserve, plan.cut.files[-1])
        self.numbers = np.zeros((3, len(self._rows)), np.int32)
        self.bad: dict[int, str] = {}
        self.shares = [self._judge(*run) for run in plan.cut.runs(self._rows)]

    def _judge(self, source: int, first: int, end: int) -> SourceShare:
        """Make each record and throw it away, to know its size, or why it is bad."""
        plan, begin = self._plan, self._rows.start
        records, bytes_read = plan.rewriter(first, end), 0
        with open_log(StoreRoot(plan.sources[source])) as log:
            for chunk in read_chunks(log, records.source_offsets, records.source_sizes):
                scratch = np.empty(records.most_bytes(chunk), np.uint8)
                records.rewrite(chunk, address_of(scratch), len(scratch), 0, 0)
                bytes_read += chunk.buffer_bytes
        rows = slice(first - begin, end - begin)
        self.numbers[:, rows] = records.sizes, records.tags_hashes, records.topic_hashes
        self.bad |= {first + row: reason for row, reason in records.bad.items()}
        return SourceShare.of(records, source, bytes_read)

    def append(self, note: FileNote, arrangement: Arrangement) -> None:
        """Append to a log file what it takes of the reserve, and end it if another follows."""
        plan, file_bytes = self._plan, self._plan.settings.commit_log_file_bytes
        start = note.number * file_bytes
        first, end = np.searchsorted(arrangement.offsets, [start, start + file_bytes]).tolist()
        first += bisect_left(arrangement.messages[first:end], self._rows.start)
        is_last = note.number == plan.cut.file_count - 1
        if first == end and (is_last or not note.bad_count):
            return
        held = arrangement.messages[first:end]
        taken = range(int(held[0]), int(held[-1]) + 1) if first < end else range(0)
        with FileStream(log_of(plan, note), note.log_bytes) as stream:
            filled = note.log_bytes
            for run in plan.cut.runs(taken):
                for size_bytes, count in self._rewritten(stream, *run, start + filled, first):
                    filled += size_bytes
                    first += count
            if not is_last:
                write_blank(stream, file_bytes - filled)

    def _rewritten(
        self,
        stream: FileStream,
        source: int,
        first: int,
        end: int,
        position: int,
        queue_offset: int,
    ) -> Iterator[tuple[int, int]]:
        """Write some messages of one source; yields bytes and number of records of each chunk."""
        plan, begin = self._plan, self._rows.start
        records = plan.rewriter(first, end)
        with open_log(StoreRoot(plan.sources[source])) as log:
            for chunk in read_chunks(log, records.source_offsets, records.source_sizes):
                room = stream.room(records.most_bytes(chunk))
                written = records.rewrite(
                    chunk, address_of(room), len(room), position, queue_offset
                )
                stream.advance(written)
                count = int(np.count_nonzero(records.sizes[chunk.first : chunk.end]))
                position += written
                queue_offset += count
                yield written, count
        if not np.array_equal(records.sizes, self.numbers[SIZES, first - begin : end - begin]):
            raise PlanError(f"{plan.sources[source]}: its records changed while they were read")


def place_logs(plan: StoredPlan, notes: Sequence[FileNote]) -> None:
    """Give every log file its place among those to be published. Raises TargetError."""
    for note in notes:
        log = plan.staging.attempt(note.attempt).log
        if log.exists():
            take_place(log, plan.staging.store.commit_log / _name_of(plan, note))
