# SPDX-License-Identifier: Apache-2.0
"""Everything that a stopped store's timers have still to do: on the wheel, in the queue in front of
it, in a timeline. What the log shows as done is left out.

A broker notes its place once a second. After a crash it repeats the second before: it delivers or
rolls again what it had done. A timeline notes its place every five minutes, and never for
messages that were overdue at the end of the queue. Delivered copies in the log tell what was done
(``copies``). The newest records may not stand in the queue yet, copies of rolled messages among
them. A starting broker reads those from the log, and so does this.

Of our own engines every record that was delivered or rolled since the last flush names its message:
no other copy counts. What they placed since then waits in the queue.

Limitations: the records since a broker's checkpoint are decoded one by one, some 20,000 a second. A
damaged one hides the rest of its log file.
"""

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.files.rocksdb.queues import has_queue_database
from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message import StoredMessage
from message_store.format.properties import TIMER_ROLL_LABEL
from message_store.reading.commit_log import (
    NO_TIME,
    first_store_times,
    read_prepared_offsets,
    read_store_times,
)
from message_store.reading.consume_queue import QueueEntries, read_queue
from message_store.reading.recovered_end import on_disk_until, recovered_end
from message_store.redelivery.lineage import NO_NAMES, Names, first_offset, first_offsets
from timer_wheel.format.checkpoint import LastFlush, TimerCheckpoint
from timer_wheel.format.timer_log import TimerUnits
from timer_wheel.format.wheel_math import Int64Array
from timer_wheel.reading.before_us import done_before_us
from timer_wheel.reading.copies import Copies, is_copy, is_roll, records_from
from timer_wheel.reading.delete_markers import Cancelled
from timer_wheel.reading.pending_timers import Blocking, PendingTimers, pending_records
from timer_wheel.reading.timeline import Timeline, read_timeline
from timer_wheel.reading.timer_queue import (
    NOTHING_TIMED,
    Timed,
    names_and_timed,
    resume_queue_offset,
    timed_messages,
    to_be_placed,
    waiting_in_queue,
)

_MARKS = 20_000
EARLY_MS = 10_000
"""By how much a copy may be older than the time of its message: a timeline delivers when a second
begins (`timerRocksDBPrecisionMs`), and a wheel does not place what is due before its slot is over.
"""


_NOTHING_NOTED = TimerCheckpoint(master_queue_offset=LONG_MAX)


@attrs.frozen(eq=False)
class LogSince:
    """What the newest part of the log holds.

    ``newest_ms`` is when the last record was stored that was decoded. ``not_in_queue`` are timed
    messages that their queue does not know, ``blocking`` those of them that will stop a broker.
    Recovery ends the log at ``log_end``.
    """

    copies: Copies
    newest_ms: int
    not_in_queue: PendingTimers
    blocking: Blocking
    log_end: int


def read_log_since(
    root: StoreRoot,
    commit_log: SegmentReader,
    since_ms: int,
    queue: QueueEntries,
    names_from: int = LONG_MAX,
    *,
    names_tell_all: bool = False,
) -> LogSince:
    """Read what was stored at or after ``since_ms``, and what the timer queue may not know. From
    ``names_from`` on every copy of ours names its message, whenever it was stored. With
    ``names_tell_all`` no other copy counts: kernels read these names, and nothing is decoded.

    The queue was read before, and only once. Else a message that a writer adds meanwhile is neither
    here nor there. Raises SourceError.
    """
    start = scan_start(queue, commit_log, LONG_MAX if names_tell_all else since_ms)
    tail = max(queue.indexed_end, _flushed_before(root, commit_log))
    first = min(start, tail)
    begin = max(min(names_from, first), commit_log.min_offset)
    copies, found, newest_ms = [], [], NO_TIME
    names, timed = NO_NAMES, NOTHING_TIMED
    if names_from < LONG_MAX:
        names, timed = _names_from_on(root, commit_log, begin)
    for message, size_bytes in () if names_tell_all else records_from(commit_log, first):
        newest_ms = max(newest_ms, message.store_timestamp_ms)
        offset = message.commit_log_offset
        if is_roll(message) and offset >= tail:
            found.append((message.queue_offset, offset, size_bytes, message))
        if is_copy(message):
            copies.append(message)
    by_names = timed_messages(commit_log, timed[:, timed[1] >= tail])
    not_in_queue, blocking = by_names if names_tell_all else to_be_placed(found)
    log_end = recovered_end(root, commit_log)
    counted = (each for each in copies if _counts(each, log_end))
    told = Copies(counted, names.before(log_end))
    return LogSince(told, newest_ms, not_in_queue, blocking, log_end)


def _names_from_on(root: StoreRoot, commit_log: SegmentReader, begin: int) -> tuple[Names, Timed]:
    """``names_and_timed`` to the end; damage is stepped over where recovery does that too."""
    known_end = on_disk_until(root, commit_log)
    return names_and_timed(commit_log, begin, known_end=0 if known_end == LONG_MAX else known_end)


def _counts(copy: StoredMessage, log_end: int) -> bool:
    """Whether a copy tells that its message is done. What recovery cuts does not, unless it is a
    roll that names nothing: such a one is listed in place of its message.
    """
    is_kept = copy.commit_log_offset < log_end
    return is_kept or (is_roll(copy) and first_offset(copy) == copy.commit_log_offset)


def still_to_do(
    timers: PendingTimers,
    units: TimerUnits,
    commit_log: SegmentReader,
    since: LogSince,
    cancelled_of: Callable[[PendingTimers], Cancelled],
    hand_ms: int = 0,
) -> tuple[PendingTimers, int]:
    """The rows that are not done yet (placed from the queue, delivered or rolled); and how many
    were, that a broker repeats whose hand is there.

    ``timers`` is all that a starting broker would find on the wheel and in the queue, where what
    was done before the checkpoint is not, and in the log alone. Copies that name nothing are taken
    from ``since``, each for one message, and none for one that was cancelled before.
    """
    is_done = (timers.position < 0) & _are_placed(timers, units)
    offsets = timers.commit_log_offset
    is_done |= since.copies.name(offsets)
    is_behind = offsets >= since.log_end
    if since.copies or is_behind.any():
        prepared = read_prepared_offsets(commit_log, offsets, timers.size_bytes)
        lineages = first_offsets(prepared, offsets)
        is_done |= since.copies.are_done(offsets, lineages)
        is_behind &= lineages < offsets  # what rolled to there waits again where it was before
    if not since.copies.name_all:
        recalled_at = cancelled_of(timers).recalled_at
        _take_copies(since, timers, commit_log, recalled_at, is_done)
    is_counted = is_done & ((timers.position < 0) | (timers.slot_time_ms >= hand_ms))
    return timers.rows(~is_done & ~is_behind), int(is_counted.sum())


def _take_copies(
    since: LogSince,
    timers: PendingTimers,
    commit_log: SegmentReader,
    recalled_at: Int64Array,
    is_done: NDArray[np.bool_],
) -> None:
    """Set ``is_done`` of the rows that a copy tells of. ``recalled_at`` says where in the log the
    delete marker of each is, ``LONG_MAX`` for none.
    """
    # What has no unit, or has lost it, may have rolled as well, and that long before its time.
    may_have_rolled = timers.is_roll | (timers.position < 0)
    may_be = timers.slot_time_ms < since.newest_ms + EARLY_MS
    if since.copies.have_rolled or since.copies.are_named:
        may_be |= may_have_rolled
    rows = np.flatnonzero(may_be & ~is_done)
    rows = rows[np.argsort(timers.commit_log_offset[rows], kind="stable")]
    records = pending_records(commit_log, timers.rows(rows))
    for row, rolls, message in zip(
        rows.tolist(), may_have_rolled[rows].tolist(), records, strict=True
    ):
        if message is not None:
            is_done[row] = since.copies.take(
                message, may_have_rolled=rolls, cancelled_at=int(recalled_at[row])
            )


def _are_placed(timers: PendingTimers, units: TimerUnits) -> NDArray[np.bool_]:
    """Which rows have a unit that leads to their record, with its size. Of a unit a loss of power
    may leave the first bytes alone: it leads to offset 0, where another message may lie.
    """
    wanted, found = (
        np.rec.fromarrays([offsets.astype(np.int64), sizes.astype(np.int64)])
        for offsets, sizes in (
            (timers.commit_log_offset, timers.size_bytes),
            (units.units["commit_log_offset"], units.units["record_size_bytes"]),
        )
    )
    return np.isin(wanted, found)


def scan_start(queue: QueueEntries, commit_log: SegmentReader, since_ms: int) -> int:
    """A place where a record begins, and before which nothing was stored at or after a time."""
    marks: Int64Array = queue.commit_log_offset[-_MARKS:]
    times = read_store_times(commit_log, marks, queue.size_bytes[-_MARKS:])
    is_known = times != NO_TIME
    known = [*first_store_times(commit_log), *zip(marks[is_known], times[is_known], strict=True)]
    before = itertools.takewhile(lambda mark: mark[1] < since_ms, sorted(known))
    return max((int(offset) for offset, _ in before), default=commit_log.min_offset)


def _flushed_before(root: StoreRoot, commit_log: SegmentReader) -> int:
    """Where a log file begins up to which the store's checkpoint says that all was on disk. It says
    nothing of queues in RocksDB, nor of what was stored since a clock was set back.
    """
    if has_queue_database(root.path):
        return commit_log.min_offset
    content = read_small_file(root.checkpoint)
    recover_from_ms = 0 if content is None else StoreCheckpoint.decode(content).recover_from_ms
    flushed, newest_ms = commit_log.min_offset, 0
    for begin, ms in first_store_times(commit_log):
        if not newest_ms <= ms <= recover_from_ms:
            break
        flushed, newest_ms = max(flushed, begin), ms
    return flushed


@attrs.frozen(eq=False)
class Outstanding:
    """Messages and delete markers that are pending, and what was left out of them.

    ``resume_queue_offset`` is where a broker reads the timer queue on; ``placed_again_count``
    entries behind that have units already, ``astray_count`` lead to no record. ``unplaced_count``
    messages before that have no units, though they were not due when the store was stopped.
    """

    timers: PendingTimers
    timeline: Timeline | None
    resume_queue_offset: int
    blocking: Blocking = ()
    done_already_count: int = 0
    expired_count: int = 0
    placed_again_count: int = 0
    astray_count: int = 0
    unplaced_count: int = 0

    @property
    def counts(self) -> dict[str, Any]:
        """All but the timers, as a ``WheelState`` names it."""
        return attrs.asdict(self, recurse=False, filter=lambda field, _: field.name != "timers")


def outstanding(
    root: StoreRoot,
    commit_log: SegmentReader,
    all_units: tuple[TimerUnits, TimerUnits],
    placed: PendingTimers,
    checkpoint: TimerCheckpoint,
    cancelled_of: Callable[[PendingTimers], Cancelled],
    *,
    flush: LastFlush | None,
) -> Outstanding:
    """What is on the wheel (``placed``), in the queue and in the timeline, and not yet done.

    ``all_units`` are those of the timer log that count, and all that lie there.
    What was done is looked for in the log after a crash, from the last ``flush`` on, and wherever
    there is a timeline: one that delivers what is overdue at the end of the queue does not write
    that down. Without a checkpoint, with which a broker places and delivers everything again, the
    queue is read behind the last unit, and the log tells what was done.
    """
    after_crash, hand_ms = flush is not None, checkpoint.last_read_time_ms
    (units, every), timeline = all_units, read_timeline(root)
    resume = first_unread = resume_queue_offset(root, commit_log, units, checkpoint)
    if len(units) and checkpoint == TimerCheckpoint():
        first_unread = resume_queue_offset(root, commit_log, units, _NOTHING_NOTED)
        after_crash = True
    names_from, tells_all = _names_from(flush, units, timeline)
    timers = placed if timeline is None else placed.followed_by(timeline.timers)
    if timeline is not None:
        scanned = min(timeline.scan_offset, read_queue(root.timer_queue()).queue_max)
        resume, first_unread = max(resume, scanned), max(first_unread, scanned)
    elif flush is not None and flush.is_ours:
        first_unread = _behind_last_unit(root, units)
    is_there = timers.commit_log_offset >= commit_log.min_offset
    expired_count = int((~is_there & ~timers.is_marker).sum())
    from_queue_offset = 0 if after_crash or timeline is not None else max(0, first_unread)
    queue = read_queue(root.timer_queue(), from_queue_offset=from_queue_offset)
    later, of_queue = every.units[len(units) :], (root, queue, commit_log, first_unread)
    waiting = waiting_in_queue(*of_queue, later=later, after_crash=after_crash)
    expired_count += waiting.expired_count if tells_all or not after_crash else 0
    again_count = 0 if after_crash else int(_are_placed(waiting.timers, units).sum())
    in_timeline = timers.rows(is_there & timers.is_in_timeline)
    timers = timers.rows(is_there & ~timers.is_in_timeline)
    timers = timers.followed_by(waiting.timers).followed_by(in_timeline)
    timers = _without_done_before_us(root, commit_log, timers, flush)
    since, done_count, first_ms = None, 0, _first_ms(timers)
    if after_crash:
        first_ms = min(first_ms, hand_ms, _parked_since_ms(placed, commit_log, hand_ms))
    if after_crash or (timeline is not None and first_ms <= newest_store_ms(root)):
        of = root, commit_log, first_ms, queue, names_from
        since = read_log_since(*of, names_tell_all=tells_all)
    blocking = waiting.blocking
    if since is not None and after_crash:
        timers, blocking = timers.followed_by(since.not_in_queue), blocking + since.blocking
    if timeline is not None or (after_crash and not tells_all):
        timers = _without_rolled(timers, commit_log)  # first: what came is the last of a series
    if since is not None:
        timers, done_count = still_to_do(timers, units, commit_log, since, cancelled_of, hand_ms)
    is_told = timeline is None and not after_crash  # else the log may tell that they are done
    unplaced = _unplaced_count(root, commit_log, units, resume) if is_told else 0
    counts = done_count, expired_count, again_count, waiting.astray_count, unplaced
    return Outstanding(timers, timeline, resume, blocking, *counts)


def _names_from(
    flush: LastFlush | None, units: TimerUnits, timeline: Timeline | None
) -> tuple[int, bool]:
    """From which commit log offset on names count, and whether they tell all that was done. Where
    the timer log lacks units that it had at the last flush, copies of a broker may tell of those.
    """
    if flush is None:
        return LONG_MAX, False
    if units.end_position < flush.position:
        return 0, False
    return flush.names_from, flush.is_ours and timeline is None


def _without_done_before_us(
    root: StoreRoot, commit_log: SegmentReader, timers: PendingTimers, flush: LastFlush | None
) -> PendingTimers:
    """The rows without those that a broker had done when our engine took the store over, where we
    were the last.
    """
    if flush is None or not flush.is_ours:
        return timers
    done = done_before_us(root)
    if len(done):
        done = done[done < recovered_end(root, commit_log)]
    return timers.rows(~np.isin(timers.commit_log_offset, done))


def _behind_last_unit(root: StoreRoot, units: TimerUnits) -> int:
    """The queue offset from which messages have no units: behind that of the last unit."""
    queue = read_queue(root.timer_queue())
    if not len(units):
        return queue.first_queue_offset
    last = int(units.units["commit_log_offset"][-1])
    found = np.flatnonzero(queue.commit_log_offset == last)
    row = int(found[-1]) + 1 if len(found) else np.searchsorted(queue.commit_log_offset, last)
    return queue.first_queue_offset + int(row)


def _unplaced_count(
    root: StoreRoot, commit_log: SegmentReader, units: TimerUnits, resume: int
) -> int:
    """How many messages between the last unit's and ``resume`` have no units. What was due when the
    newest record was stored may have been delivered at once, and needed none.
    """
    behind = _behind_last_unit(root, units)
    if not len(units) or behind >= resume:
        return 0
    queue = read_queue(root.timer_queue(), from_queue_offset=behind).slice(behind, resume)
    found = waiting_in_queue(root, queue, commit_log, behind).timers
    is_lost = ~found.is_marker & (found.slot_time_ms > newest_store_ms(root))
    return int((is_lost & ~_are_placed(found, units)).sum())


def _first_ms(timers: PendingTimers) -> int:
    """Before which time nothing can have been done of what is not on the wheel."""
    times = timers.slot_time_ms[timers.position < 0]
    return int(times.min()) - EARLY_MS if len(times) else np.iinfo(np.int64).max


def _parked_since_ms(placed: PendingTimers, commit_log: SegmentReader, hand_ms: int) -> int:
    """When the first message was stored that waits in the hand's slot by its time: where the clock
    was set back, copies of such have times before the hand.
    """
    parked = placed.rows(placed.is_roll & (placed.slot_time_ms <= hand_ms))
    times = read_store_times(commit_log, parked.commit_log_offset, parked.size_bytes)
    return int(times[times != NO_TIME].min(initial=LONG_MAX))


def newest_store_ms(root: StoreRoot) -> int:
    """When the last record of a cleanly stopped store was stored; the end of time if unknown."""
    content = read_small_file(root.checkpoint)
    known_ms = StoreCheckpoint.decode(content or b"").commit_log_timestamp_ms
    return known_ms or np.iinfo(np.int64).max


def _without_rolled(timers: PendingTimers, commit_log: SegmentReader) -> PendingTimers:
    """The rows without those that a timeline rolled: of equal time and key the last tells."""
    off_wheel = np.flatnonzero(timers.position < 0)
    times, counts = np.unique(timers.slot_time_ms[off_wheel], return_counts=True)
    is_shared = np.isin(timers.slot_time_ms[off_wheel], times[counts > 1])
    rows = off_wheel[is_shared]
    rows = rows[np.argsort(timers.commit_log_offset[rows], kind="stable")]
    is_superseded = np.zeros(len(timers), bool)
    known: dict[tuple[int, str | None], int] = {}
    chosen = timers.rows(rows)
    for row, out_ms, is_marker, message in zip(
        rows.tolist(),
        chosen.slot_time_ms.tolist(),
        chosen.is_marker.tolist(),
        pending_records(commit_log, chosen),
        strict=True,
    ):
        if message is None or is_marker:
            continue
        key = (out_ms, message.unique_key)
        if TIMER_ROLL_LABEL in message.properties and key in known:
            is_superseded[known[key]] = True
        known[key] = row
    return timers.rows(~is_superseded)
