# SPDX-License-Identifier: Apache-2.0
"""Reads a stopped store's hierarchical wheel without a trace: its index, and which messages are
pending. The words are those of a wheel's reader: slots of a millisecond, each message in the one
before its promise.

Limitation: the index is read whole, 36 bytes a message and 16 an id. So are the records of what the
queue holds beyond the index.
"""

from functools import partial
from pathlib import Path

import attrs
import numpy as np

from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import int64s
from message_store.files.log_row import open_log
from message_store.files.rocksdb.manifest import read_manifest
from message_store.files.rocksdb.view import FamilyView, open_families
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.layout import Layout
from message_store.reading.consume_queue import read_queue
from message_store.reading.recovered_end import recovered_end
from timer_wheel.format.checkpoint import TimerCheckpoint
from timer_wheel.format.index_layouts import (
    BATCHES_KEY,
    BLOCK_KEY,
    FAMILIES,
    ID_KEY,
    ID_ROW,
    LAST_BATCH_KEY,
    NATIVE_ID,
    NATIVE_ROW,
    STATE,
    STATE_KEY,
    WAITING_ROW,
    IndexState,
    Rows,
    known_batches,
    part_apart,
)
from timer_wheel.format.timer_due import due_times, was_due_when_stored
from timer_wheel.format.timer_log import FLAG_DEFAULT, FLAG_DELETE, FLAG_ROLL, read_units
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS
from timer_wheel.reading.delete_markers import Cancelled, cancelled
from timer_wheel.reading.outstanding import EARLY_MS, read_log_since, still_to_do
from timer_wheel.reading.ownership import index_path, read_active
from timer_wheel.reading.pending_timers import NOT_IN_QUEUE, PendingTimers
from timer_wheel.reading.state import WheelState
from timer_wheel.reading.timer_queue import refuse_lost_beginning, waiting_in_queue

_BEHIND_LAST_BATCH = LAST_BATCH_KEY + b"\0"


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

    Raises SourceError for a database that cannot be read, BadFieldError for blocks that are none,
    and for a manifest or a column family of another moment than the rest.
    """
    path = index_path(root)
    with open_families(path, "default", *FAMILIES) as [whole, *families]:
        *wheels, of_marks, of_ids = families
        known = known_batches(whole.get(BATCHES_KEY))
        last = {
            name: view.get(LAST_BATCH_KEY) for name, view in zip(FAMILIES, families, strict=True)
        }
        if (wrong := part_apart(known, last, read_manifest(path))) is not None:
            raise BadFieldError("not of the same moment as the state", path=path, found=wrong)
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
    for key, value in view.entries(_BEHIND_LAST_BATCH):
        if len(key) != key_layout.size or len(value) % row_layout.size:
            raise BadFieldError("a block that is none", path=path, found=key.hex())
        content += value
        numbers.append(key_layout.decode_at(key, 0)[of_key])
        counts.append(len(value) // row_layout.size)
    rows = np.frombuffer(content, row_layout.dtype)
    return rows, np.repeat(np.array(numbers, np.int64), np.array(counts, np.int64))


SLOT_MS = 1


def read_hierarchy(root: StoreRoot, *, after_crash: bool) -> WheelState:
    """What a hierarchical wheel holds; ``after_crash`` leaves out what the log shows as done since
    its index was written. Raises SourceError and FormatError, also for a message that stands in the
    index twice: a damaged manifest leads to blocks of two times.
    """
    content, active = _believed(root, read_index(root)), read_active(root)
    again = np.diff(content.waiting["queue_offset"]) == 0
    if again.any():
        queue_offset = int(content.waiting["queue_offset"][1:][again][0])
        what = "a message that stands there twice"
        raise BadFieldError(what, path=index_path(root), found=queue_offset)
    slot_ms = DEFAULT_PRECISION_MS if active is None else active.slot_precision_ms
    placed_end = 0 if content.state is None else content.state.placed_end
    hand_ms = 0 if content.state is None else content.state.hand_ms
    rest = read_queue(root.timer_queue(), from_queue_offset=max(0, placed_end))
    after_crash |= len(rest) > 0  # a close places all: this is an older version of the index
    with SegmentReader(root.timer_log) as log, open_log(root) as commit_log:
        in_index = _timers(content.waiting).followed_by(_timers(content.marks, FLAG_DELETE))
        is_there = in_index.commit_log_offset >= commit_log.min_offset
        queue = read_queue(root.timer_queue()) if after_crash else rest
        refuse_lost_beginning(root, commit_log)
        waiting = waiting_in_queue(root, queue, commit_log, placed_end, after_crash=after_crash)
        timers, in_queue = in_index.rows(is_there), waiting.timers
        in_queue = in_queue.rows(~np.isin(in_queue.commit_log_offset, timers.commit_log_offset))
        timers = timers.followed_by(_by_promise(in_queue, slot_ms))
        done_count = 0
        if after_crash:
            first_ms = int(timers.slot_time_ms.min(initial=hand_ms)) - EARLY_MS
            names_from = 0 if content.state is None else content.state.log_end
            tell_all = content.state is not None and active is not None and active.names
            since = read_log_since(
                root, commit_log, first_ms, queue, names_from, names_tell_all=tell_all
            )
            unknown = ~np.isin(since.not_in_queue.commit_log_offset, timers.commit_log_offset)
            timers = timers.followed_by(_by_promise(since.not_in_queue.rows(unknown), slot_ms))
            units, of = read_units(log, 0), partial(_cancelled, commit_log=commit_log)
            timers, done_count = still_to_do(timers, units, commit_log, since, of)
        timers = attrs.evolve(timers, position=np.maximum(timers.position, 0))
        is_cancelled = _cancelled(timers, commit_log).recalled
    return WheelState(
        precision_ms=SLOT_MS,
        checkpoint=TimerCheckpoint(last_read_time_ms=hand_ms),
        read_time_ms=hand_ms,
        resume_queue_offset=placed_end,
        unit_count=len(in_index),
        slots_used=len(np.unique(content.slots_ms)),
        pending=timers.rows(~(is_cancelled | timers.is_marker)),
        markers=timers.rows(timers.is_marker),
        cancelled=timers.rows(is_cancelled),
        recalled_by_topic_count=0,
        done_already_count=done_count,
        expired_count=int((~is_there & ~in_index.is_marker).sum()) + waiting.expired_count,
        blocking=waiting.blocking,
        shared_positions=int64s([]),
        timeline=None,
        astray_count=waiting.astray_count,
    )


def _believed(root: StoreRoot, content: IndexContent) -> IndexContent:
    """The index, or an empty one where it is ahead of what recovery leaves of the log: an engine
    rebuilds it from log and queue.
    """
    with open_log(root) as commit_log:
        if content.state is None or content.state.log_end <= recovered_end(root, commit_log):
            return content
    none = {each.name: getattr(content, each.name)[:0] for each in attrs.fields(IndexContent)[1:]}
    return IndexContent(state=None, **none)


def _cancelled(timers: PendingTimers, commit_log: SegmentReader) -> Cancelled:
    """What was cancelled, by the times in the records."""
    position, flags = np.maximum(timers.position, 0), timers.flags | FLAG_ROLL
    by_record = attrs.evolve(timers, position=position, flags=flags)
    return cancelled(by_record, commit_log, now_ms=0, precision_ms=SLOT_MS)


def _timers(rows: Rows, flags: int = 0) -> PendingTimers:
    count = len(rows)
    return PendingTimers(
        position=np.full(count, -1, np.int64),  # any of them may have rolled
        queue_offset=np.full(count, NOT_IN_QUEUE, np.int64),
        slot_time_ms=int64s(rows["due_ms"]) - SLOT_MS,
        flags=np.full(count, FLAG_DEFAULT | flags, np.int64),
        commit_log_offset=int64s(rows["commit_log_offset"]),
        size_bytes=int64s(rows["size_bytes"]),
    )


def _by_promise(in_queue: PendingTimers, slot_ms: int) -> PendingTimers:
    """The same rows in the slots before their promises; what is due at once keeps its out time."""
    out_ms = in_queue.slot_time_ms
    slots = due_times(out_ms, out_ms, slot_ms) - SLOT_MS
    return attrs.evolve(in_queue, slot_time_ms=np.where(was_due_when_stored(out_ms), out_ms, slots))
