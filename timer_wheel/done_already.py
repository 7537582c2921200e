# SPDX-License-Identifier: Apache-2.0
"""After a crash: what the log knows of a wheel that its checkpoint and its queue do not.

A broker writes down its place once a second. What it delivered and placed in the second before a
crash it repeats when it starts again: the slots in hand (a message delivered twice, or rolled twice
and so delivered twice later) and what had left the queue. The timeline of 5.4 and newer is written
down every five minutes, and never for what was overdue when it was read from the end of the queue.
Copies are matched as a multiset of all that survives delivery and rolling, each with a message that
lies before it in the log. And the newest records may not stand in the queue yet, among them the
copies of what has just rolled: a starting broker reads those from the log, and so does this.

Limitations: records stored since the checkpoint are decoded one by one, some 20,000 a second; a
damaged place hides the rest of its log file.
"""

import hashlib
import itertools
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping

import attrs
import numpy as np

from message_store.commit_log import NO_TIME, first_store_times, read_store_times
from message_store.consume_queue import QueueEntries, read_queue
from message_store.message import StoredMessage
from message_store.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_LABEL,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
)
from message_store.record_layout import head_layout
from message_store.segment_files import SegmentReader
from message_store.small_files import read_small_file
from message_store.store_checkpoint import StoreCheckpoint
from message_store.store_root import StoreRoot
from timer_wheel.pending_timers import PendingTimers, pending_records, record_at
from timer_wheel.timer_log import TimerUnits
from timer_wheel.timer_queue import to_be_placed
from timer_wheel.wheel_math import Int64Array

_MARKS = 20_000
_CHANGING = frozenset({TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_ROLL_LABEL})
EARLY_MS = 10_000
"""By how much a copy may be older than the time of its message: a timeline delivers when a second
begins (`timerRocksDBPrecisionMs`), and a wheel does not place what is due before its slot is over.
"""


@attrs.frozen(eq=False)
class LogSince:
    """What the newest part of the log holds.

    ``copies`` says where copies lie that a wheel made, in order, by what they are copies of;
    ``newest_ms`` is when the last record was stored. ``not_in_queue`` are timed messages that their
    queue does not know, ``blocking_queue_offsets`` those of them that will stop a broker.
    """

    copies: Mapping[Hashable, deque[int]]
    newest_ms: int
    not_in_queue: PendingTimers
    blocking_queue_offsets: tuple[int, ...]


def read_log_since(root: StoreRoot, commit_log: SegmentReader, since_ms: int) -> LogSince:
    """Read what was stored at or after ``since_ms``, and what the timer queue may not know.

    Raises SourceError.
    """
    queue = read_queue(root.timer_queue())
    start = _scan_start(queue, commit_log, since_ms)
    tail = max(queue.indexed_end, _flushed_before(root, commit_log))
    copies: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    newest_ms = NO_TIME
    not_in_queue = []
    for message, size_bytes in _records_from(commit_log, min(start, tail)):
        newest_ms = max(newest_ms, message.store_timestamp_ms)
        offset = message.commit_log_offset
        is_timed = message.topic == TIMER_TOPIC
        if is_timed and offset >= tail:
            not_in_queue.append((message.queue_offset, offset, size_bytes, message))
        if _is_copy(message, is_timed=is_timed):
            copies[_identity(message, is_roll=is_timed)].append(offset)
    return LogSince(copies, newest_ms, *to_be_placed(not_in_queue))


def still_to_do(
    timers: PendingTimers, units: TimerUnits, commit_log: SegmentReader, since: LogSince
) -> tuple[PendingTimers, int]:
    """The rows that were not yet dealt with (placed from the queue, delivered or rolled); and how
    many were.

    ``timers`` is all that a starting broker would find on the wheel and in the queue, where what
    was done before the checkpoint is not; what only the log has comes behind. Copies that are
    matched are taken from ``since``.
    """
    timers = timers.followed_by(since.not_in_queue)
    placed = units.units["commit_log_offset"].astype(np.int64)
    is_done = (timers.position < 0) & np.isin(timers.commit_log_offset, placed)
    copies = since.copies
    is_in_time = timers.slot_time_ms < since.newest_ms + EARLY_MS
    may_be = np.flatnonzero(~is_done & is_in_time) if copies else ()
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
    return timers.rows(~is_done), int(is_done.sum())


def _is_copy(message: StoredMessage, *, is_timed: bool) -> bool:
    """Whether a wheel made the record, or a timeline, which takes the real topic away again."""
    properties = message.properties
    if TIMER_DEQUEUE_MS in properties:
        return is_timed or message.topic == properties.get(REAL_TOPIC)
    return TIMER_OUT_MS in properties and REAL_TOPIC not in properties


def _identity(message: StoredMessage, *, is_roll: bool) -> Hashable:
    """All that survives, with the real topic and queue wherever the record has them."""
    properties = dict(message.properties)
    topic = properties.pop(REAL_TOPIC, message.topic)
    queue_id = properties.pop(REAL_QUEUE_ID, str(message.queue_id))
    return (
        is_roll,
        topic,
        queue_id,
        message.born_timestamp_ms,
        message.flag,
        message.reconsume_times,
        hashlib.blake2b(message.body, digest_size=16).digest(),
        frozenset(pair for pair in properties.items() if pair[0] not in _CHANGING),
    )


def _scan_start(queue: QueueEntries, commit_log: SegmentReader, since_ms: int) -> int:
    """A place where a record begins, and before which nothing was stored at or after a time."""
    marks: Int64Array = queue.commit_log_offset[-_MARKS:]
    times = read_store_times(commit_log, marks, queue.size_bytes[-_MARKS:])
    is_known = times != NO_TIME
    known = [*first_store_times(commit_log), *zip(marks[is_known], times[is_known], strict=True)]
    before = itertools.takewhile(lambda mark: mark[1] < since_ms, sorted(known))
    return max((int(offset) for offset, _ in before), default=commit_log.min_offset)


def _flushed_before(root: StoreRoot, commit_log: SegmentReader) -> int:
    """Where a log file begins up to which the store's checkpoint says that all was on disk."""
    content = read_small_file(root.checkpoint)
    recover_from_ms = 0 if content is None else StoreCheckpoint.decode(content).recover_from_ms
    begins = [begin for begin, ms in first_store_times(commit_log) if ms <= recover_from_ms]
    return max([commit_log.min_offset, *begins])


def _records_from(commit_log: SegmentReader, offset: int) -> Iterator[tuple[StoredMessage, int]]:
    """The records from a place on where one begins, each with its size in bytes."""
    head = head_layout(0)
    for segment in commit_log.segments:
        place = max(offset, segment.start_offset)
        end = segment.start_offset + segment.length_bytes
        while place + head.size <= end:
            size_bytes = head.decode_at(commit_log.read_at(place, head.size), 0)["size_bytes"]
            message = record_at(commit_log, place, size_bytes) if size_bytes > 0 else None
            if message is None or message.commit_log_offset != place:
                break
            yield message, size_bytes
            place += size_bytes
