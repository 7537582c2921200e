# SPDX-License-Identifier: Apache-2.0
"""The whole store of a DLedger member as an ordinary one: all topics, queues and offsets. So is one
whose parts lie in several places.

Records get new offsets, because no heads stand between them. Queues keep theirs, so that consumers
continue where they were. The engine of the levels then does what a broker's recovery does. It also
finds in the log what was delivered, since a follower's offsets are behind. All of that happens in a
directory of its own, which becomes the target as the last step.
"""

import os
import secrets
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import attrs
import numpy as np

from legacy_levels.delay_offsets import read_delay_offsets
from legacy_levels.engine.store import LevelStore
from message_store.base.clock import SystemClock
from message_store.base.errors import (
    OptionsError,
    OtherEngineWarning,
    SourceError,
    TargetError,
    UnsupportedStoreError,
)
from message_store.files.dledger import member_directory
from message_store.files.live_segments import LiveSegments
from message_store.files.log_row import open_log
from message_store.files.rocksdb.queues import queue_database, refuse_queue_database
from message_store.files.segments import Segment, SegmentReader, holds_queues, list_directories
from message_store.files.small_files import (
    is_ordinary_file,
    make_directories,
    read_extents,
    read_small_file,
    replace_file,
    sync_directory,
)
from message_store.files.store_root import StoreRoot, require_apart
from message_store.format.delay_levels import DelayLevels
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.reading.consume_queue import is_filled, is_pre_blank
from message_store.reading.indexed_end import find_indexed_end
from message_store.reading.unfinished_change import refuse_unfinished_change
from message_store.writing.queue_set import usual_queue_bytes
from message_store.writing.settings import StoreSettings
from migrate.plain.moved_records import MovedRecords, move_records
from migrate.progress import Progress, no_progress
from migrate.source.condition import require_stopped
from migrate.source.level_delays import level_table_of
from migrate.write.large_files import write_sparse
from migrate.write.staging import clear, sync_tree, take_place, target_errors
from timer_wheel.format.timer_log import FLAG_DEFAULT, TIMER_UNIT
from timer_wheel.reading.timeline import read_timeline, timeline_directory

_FOREVER_MS = 10**15
_KNOWN_FLAGS = 0xF
_OTHER_QUEUES = ("consumequeue_ext", "batchconsumequeue")


@attrs.frozen
class PlainReport:
    """What was copied: records of the log, entries of ``queues`` consume queues."""

    source: str
    target: str
    records: int
    queues: int
    entries: int
    recovered_entries: int

    def as_json(self) -> dict[str, Any]:
        """The JSON object."""
        return attrs.asdict(self)


def make_plain(
    source: Path,
    target: Path,
    *,
    after_crash: bool = False,
    level_table: DelayLevels | None = None,
    progress: Progress = no_progress,
) -> PlainReport:
    """Copy the store of a DLedger member to ``target``, which is missing or empty, as the store of
    an ordinary broker. The source is only read.

    Raises SourceError for a store that cannot be read as a whole, UncleanStoreError for one that
    was not stopped cleanly unless ``after_crash``, OptionsError for one that is no member's, and
    TargetError. Stopped before its end it leaves no target, but a directory ``.NAME.….unfinished``.
    """
    root, target = StoreRoot(source), Path(os.path.realpath(target))
    _refuse(root, target, after_crash=after_crash)
    with root.shared_lock():
        staged = StoreRoot(target.with_name(f".{target.name}.{secrets.token_hex(6)}.unfinished"))
        try:
            made = _make(root, staged, target, level_table, progress)
            sync_tree(staged.path)
            take_place(staged.path, target)
            with target_errors(target):
                sync_directory(target.parent)
        except BaseException:
            clear(staged.path)
            raise
    return made


def _refuse(root: StoreRoot, target: Path, *, after_crash: bool) -> None:
    root.require_readable()
    root.require_log()
    if queue_database(root.path) is not None:
        refuse_queue_database(root.path, "only those of pending messages are read; use `convert`")
    if member_directory(root.path) is None and not root.places.elsewhere:
        raise OptionsError(f"{root.path}: is an ordinary store already; copy it with `cp -a`")
    refuse_unfinished_change(root)
    require_stopped(root, after_crash=after_crash)
    refused = [root.path / name for name in _OTHER_QUEUES if holds_queues(root.path / name)]
    if read_timeline(root) is not None:
        refused.append(timeline_directory(root))
    for path in refused:
        raise UnsupportedStoreError(
            f"{path}: other files name offsets of the log besides, which are not converted;"
            " convert the levels into a fresh store (--levels-only) instead"
        )
    with target_errors(target):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise TargetError(f"{target}: is not empty")
    require_apart(root, target)


def _make(
    root: StoreRoot,
    staged: StoreRoot,
    target: Path,
    level_table: DelayLevels | None,
    progress: Progress,
) -> PlainReport:
    table = level_table or level_table_of(root.path, read_delay_offsets(root.path))
    with target_errors(staged.path):
        make_directories(staged.path)
        make_directories(staged.commit_log)
    staged.mark_open(b"")
    with open_log(root) as log:
        segments = LiveSegments(staged.commit_log, log.file_bytes)
        try:
            known_end = find_indexed_end(root.path, log).log_offset
            moved = move_records(log, segments, known_end, progress)
        finally:
            segments.close()
        counts = [
            _move_queue(queue, staged.consume_queues / topic.name / queue.name, moved, log)
            for topic in list_directories(root.consume_queues)
            for queue in list_directories(topic)
        ]
        _move_timers(root, staged, moved, log.min_offset)
        settings = StoreSettings(
            commit_log_file_bytes=log.file_bytes,
            queue_file_bytes=usual_queue_bytes(root) or StoreSettings().queue_file_bytes,
            retention_ms=_FOREVER_MS,
        )
    _copy_small_files(root, staged)
    progress("recover", 0, 1)
    with catch_warnings():
        simplefilter("ignore", OtherEngineWarning)  # nothing is to be delivered
        store = LevelStore.open(staged.path, clock=SystemClock(), levels=table, settings=settings)
    with store:
        recovered = store.live.recovery.dispatched
    progress("recover", 1, 1)
    return PlainReport(
        source=str(root.path),
        target=str(target),
        records=moved.count,
        queues=len(counts),
        entries=sum(counts),
        recovered_entries=recovered,
    )


def _move_queue(queue: Path, place: Path, moved: MovedRecords, log: SegmentReader) -> int:
    """Copy a queue whose entries lead to where the records are now; returns how many there are."""
    count = 0
    with SegmentReader(queue) as reader:
        for segment in reader.segments:
            units = _units_of(reader, segment)
            rows = np.flatnonzero(is_filled(units) & ~is_pre_blank(units))
            if (lost := moved.follow(units, rows, log.min_offset)) is not None:
                ordinal = segment.start_offset // QUEUE_UNIT.size + lost
                raise SourceError(
                    f"{queue}: entry {ordinal:,} leads to no record; take another member's store"
                )
            count += len(rows)
            used = (
                int(np.flatnonzero(units["size_bytes"])[-1]) + 1 if units["size_bytes"].any() else 0
            )
            content = [(0, units[:used].tobytes())] if used else []
            write_sparse(place / segment.path.name, segment.length_bytes, content)
    return count


def _units_of(reader: SegmentReader, segment: Segment) -> np.ndarray[Any, np.dtype[np.void]]:
    length = segment.length_bytes // QUEUE_UNIT.size * QUEUE_UNIT.size
    return np.frombuffer(bytearray(reader.read_at(segment.start_offset, length)), QUEUE_UNIT.dtype)


def _move_timers(root: StoreRoot, staged: StoreRoot, moved: MovedRecords, log_min: int) -> None:
    """Copy wheel and timer log, whose units lead to where the records are now. Slots name positions
    in the timer log, which stay; so do the wheel's own checkpoint and metrics.
    """
    with SegmentReader(root.timer_log) as reader:
        for segment in reader.segments:
            content = bytearray(reader.read_at(segment.start_offset, segment.length_bytes))
            units = np.frombuffer(content, TIMER_UNIT.dtype, len(content) // TIMER_UNIT.size)
            flags = units["magic"]
            rows = np.flatnonzero(
                (units["size_bytes"] == TIMER_UNIT.size)
                & (flags & ~_KNOWN_FLAGS == 0)  # a blank may be as long as a unit
                & (flags & FLAG_DEFAULT != 0)
            )
            if (lost := moved.follow(units, rows, log_min)) is not None:
                position = segment.start_offset + lost * TIMER_UNIT.size
                raise SourceError(
                    f"{segment.path}: the unit at {position:,} leads to no record; take another"
                    " member's store"
                )
            place = staged.timer_log / segment.path.name
            write_sparse(place, segment.length_bytes, [(0, bytes(content))])
    for path in sorted(root.path.glob(f"{root.timer_wheel.name}*")):
        size_bytes = path.stat().st_size
        pieces = read_extents(path, size_bytes, "a wheel") or []
        copied = [(at, bytes(piece)) for at, piece in pieces]
        write_sparse(staged.path / path.name, size_bytes, copied)


def _copy_small_files(root: StoreRoot, staged: StoreRoot) -> None:
    """Copy configuration and checkpoint. The key index is left out: it names offsets of the log."""
    files = [path for path in (*root.config.iterdir(), root.checkpoint) if is_ordinary_file(path)]
    for path in files:
        content = read_small_file(path)
        if content is not None:
            replace_file(staged.path / path.relative_to(root.path), content, is_durable=False)
