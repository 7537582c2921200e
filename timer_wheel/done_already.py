# SPDX-License-Identifier: Apache-2.0
"""After a crash: which rows of a wheel the log shows as dealt with since the last checkpoint.

A broker writes down its place once a second. What it delivered and placed in the second before a
crash it repeats when it starts again: the slots in hand (a message delivered twice, or rolled twice
and so delivered twice later) and what had left the queue. Copies are matched as a multiset of all
that survives delivery and rolling, each with a message that lies before it in the log.

Limitations: records stored since the checkpoint are decoded one by one, some 20,000 a second; a
damaged place hides the rest of its log file.
"""

import hashlib
import itertools
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator

import numpy as np

from message_store.commit_log import NO_TIME, first_store_times, read_store_times
from message_store.consume_queue import read_queue
from message_store.message import StoredMessage
from message_store.properties import (
    REAL_TOPIC,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
)
from message_store.record_layout import head_layout
from message_store.segment_files import SegmentReader
from message_store.store_root import StoreRoot
from timer_wheel.pending_timers import PendingTimers, pending_records, record_at
from timer_wheel.timer_checkpoint import TimerCheckpoint
from timer_wheel.timer_log import TimerUnits
from timer_wheel.wheel_math import Int64Array

_MARKS = 20_000
_CHANGING = frozenset({TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES})


def still_to_do(
    timers: PendingTimers,
    units: TimerUnits,
    root: StoreRoot,
    commit_log: SegmentReader,
    checkpoint: TimerCheckpoint,
) -> PendingTimers:
    """The rows that were not yet dealt with: placed from the queue, delivered or rolled.

    ``timers`` is all that a starting broker would find, placed and waiting; what was done before
    the ``checkpoint`` is not among it. Raises SourceError.
    """
    placed = units.units["commit_log_offset"].astype(np.int64)
    is_done = (timers.position < 0) & np.isin(timers.commit_log_offset, placed)
    start = _scan_start(root, commit_log, checkpoint.last_read_time_ms)
    copies, newest_ms = _copies_since(commit_log, start)
    may_be = np.flatnonzero(~is_done & (timers.slot_time_ms < newest_ms)) if copies else ()
    rows = sorted(may_be, key=lambda row: int(timers.commit_log_offset[row]))
    chosen = timers.rows(np.array(rows, np.int64))
    for row, is_roll, message in zip(
        rows, chosen.is_roll.tolist(), pending_records(commit_log, chosen), strict=True
    ):
        if message is None:
            continue
        found = copies.get(_identity(message, is_roll=is_roll))
        while found and found[0] <= message.commit_log_offset:
            found.popleft()
        if found:
            found.popleft()
            is_done[row] = True
    return timers.rows(~is_done)


def _copies_since(commit_log: SegmentReader, offset: int) -> tuple[dict[Hashable, deque[int]], int]:
    """Where the log holds copies that a wheel made, by what they are copies of; and its last time.

    Places of equal copies are in order.
    """
    copies: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    newest_ms = NO_TIME
    for message in _records_from(commit_log, offset):
        newest_ms = max(newest_ms, message.store_timestamp_ms)
        is_roll = message.topic == TIMER_TOPIC
        made_by_wheel = TIMER_DEQUEUE_MS in message.properties
        if made_by_wheel and (is_roll or message.topic == message.properties.get(REAL_TOPIC)):
            copies[_identity(message, is_roll=is_roll)].append(message.commit_log_offset)
    return copies, newest_ms


def _identity(message: StoredMessage, *, is_roll: bool) -> Hashable:
    """All that survives; the real topic and queue are among the properties."""
    properties = message.properties.items()
    return (
        is_roll,
        message.born_timestamp_ms,
        message.flag,
        message.reconsume_times,
        hashlib.blake2b(message.body, digest_size=16).digest(),
        frozenset((name, value) for name, value in properties if name not in _CHANGING),
    )


def _scan_start(root: StoreRoot, commit_log: SegmentReader, since_ms: int) -> int:
    """A place where a record begins, and before which nothing was stored at or after a time."""
    queue = read_queue(root.timer_queue())
    marks: Int64Array = queue.commit_log_offset[-_MARKS:]
    times = read_store_times(commit_log, marks, queue.size_bytes[-_MARKS:])
    is_known = times != NO_TIME
    known = [*first_store_times(commit_log), *zip(marks[is_known], times[is_known], strict=True)]
    before = itertools.takewhile(lambda mark: mark[1] < since_ms, sorted(known))
    return max((int(offset) for offset, _ in before), default=commit_log.min_offset)


def _records_from(commit_log: SegmentReader, offset: int) -> Iterator[StoredMessage]:
    head = head_layout(0)
    for segment in commit_log.segments:
        place = max(offset, segment.start_offset)
        end = segment.start_offset + segment.length_bytes
        while place + head.size <= end:
            size_bytes = head.decode_at(commit_log.read_at(place, head.size), 0)["size_bytes"]
            message = record_at(commit_log, place, size_bytes) if size_bytes > 0 else None
            if message is None or message.commit_log_offset != place:
                break
            yield message
            place += size_bytes
