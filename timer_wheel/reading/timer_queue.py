# SPDX-License-Identifier: Apache-2.0
"""The queue in front of the wheel, and the log behind its end: where placing resumes, and which
messages are yet to be placed.

Every timed message is first a record of ``rmq_sys_wheel_timer`` with an entry in queue 0. The last
unit of the timer log decides where a starting broker resumes placing, not the checkpoint. The
checkpoint's master offset can only lower it.
"""

from collections.abc import Iterable

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError, SourceError
from message_store.files.segments import SegmentReader
from message_store.files.small_files import is_directory
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX, parse_long
from message_store.format.message import StoredMessage
from message_store.format.properties import TIMER_DELETE_UNIQUE_KEY, TIMER_OUT_MS, TIMER_TOPIC
from message_store.kernels.log import WALKED, walk_window
from message_store.kernels.raw_memory import address_of
from message_store.reading.commit_log import LogWalk
from message_store.reading.consume_queue import QueueEntries, read_queue
from message_store.reading.record_reader import NOT_THERE, read_chunks
from message_store.reading.recovered_end import recovered_end
from message_store.redelivery.lineage import NAME_ROWS, Names
from message_store.writing.losses import StoreEnds, noted_begin, told_as_beheaded
from timer_wheel.format.checkpoint import TimerCheckpoint
from timer_wheel.format.older_slots import NO_OLDER_SLOTS
from timer_wheel.format.timer_log import (
    FLAG_DEFAULT,
    FLAG_DELETE,
    TIMER_UNIT,
    TimerUnits,
    slot_time_ms,
)
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS
from timer_wheel.reading.kept_units import NO_UNITS, Units, rows_of
from timer_wheel.reading.pending_timers import Blocking, PendingTimers, leads_astray, record_at
from timer_wheel.reading.record_kernel import (
    FACT_COLUMNS,
    FINE,
    IS_MARKER,
    MARKER_WITHOUT_KEY,
    MESSAGE,
    OUT_MS,
    STATUS,
    TIMED_ROWS,
    find_timed,
    read_timer_records,
)

Timed = NDArray[np.int64]
"""Records of the timer topic: their queue offsets, log offsets and sizes, a column each."""

NOTHING_TIMED: Timed = np.empty((TIMED_ROWS, 0), np.int64)

SEARCHED_ENTRIES = 20_000
"""How far down the queue a broker looks for the entry of the last unit's record."""


def resume_queue_offset(
    root: StoreRoot, commit_log: SegmentReader, units: TimerUnits, checkpoint: TimerCheckpoint
) -> int:
    """The queue offset from which a broker that starts places messages of the timer queue.

    RocketMQ: TimerMessageStore#recover (5.5.0). Raises FormatError and SourceError.
    """
    resume = noted_queue_offset(root, commit_log, units, checkpoint)
    if not is_directory(root.timer_queue()):
        return resume
    queue = read_queue(root.timer_queue(), from_queue_offset=max(0, resume))
    return min(max(resume, queue.queue_min), queue.queue_max)


def noted_queue_offset(
    root: StoreRoot, commit_log: SegmentReader, units: TimerUnits, checkpoint: TimerCheckpoint
) -> int:
    """The same, before it is moved into the queue: beyond its end where the queue lost entries."""
    placed = _last_placed(root, commit_log, units)
    resume = checkpoint.last_queue_offset if placed is None else placed + 1
    return min(resume, checkpoint.master_queue_offset)


def _last_placed(root: StoreRoot, commit_log: SegmentReader, units: TimerUnits) -> int | None:
    """The queue offset of the last unit's message; None if unit or record cannot be read. The queue
    is searched: after a rebuild a record's own queue offset is off by some.
    """
    if not len(units) or int(units.positions[-1]) + TIMER_UNIT.size != units.end_position:
        return None
    offset = int(units.units["commit_log_offset"][-1])
    size_bytes = int(units.units["record_size_bytes"][-1])
    record = record_at(commit_log, offset, size_bytes)
    if record is None:
        return None
    claimed = record.queue_offset
    lowest = max(0, claimed + 1 - SEARCHED_ENTRIES)
    queue = read_queue(root.timer_queue(), from_queue_offset=lowest).slice(lowest, claimed + 1)
    found = np.flatnonzero((queue.commit_log_offset == offset) & (queue.size_bytes == size_bytes))
    return queue.first_queue_offset + int(found[-1]) if len(found) else claimed


def refuse_lost_beginning(root: StoreRoot, commit_log: SegmentReader) -> None:
    """Raise SourceError as an opening does where the queue lost its first files, by our own note,
    though the log has their records (``losses.refuse_lost_beginnings``).
    """
    queue = read_queue(root.timer_queue())
    noted = noted_begin(StoreEnds.read(root), TIMER_TOPIC, 0)
    if noted is None or not len(queue) or queue.queue_min <= noted:
        return
    first = int(queue.commit_log_offset[0])
    _, timed = names_and_timed(commit_log, commit_log.min_offset, stop=first, known_end=first)
    if timed.size:
        raise SourceError(told_as_beheaded(root.timer_queue(), queue.queue_min, noted))


@attrs.frozen(eq=False)
class Waiting:
    """What is to be placed from the queue, and the entries that stop a broker. ``astray_count``
    others are wrong (``leads_astray``), ``expired_count`` lead to what lay before the log begins.
    """

    timers: PendingTimers
    blocking: Blocking
    astray_count: int
    expired_count: int


def waiting_in_queue(
    root: StoreRoot,
    queue: QueueEntries,
    commit_log: SegmentReader,
    from_queue_offset: int,
    *,
    later: Units = NO_UNITS,
    after_crash: bool = False,
) -> Waiting:
    """The messages from an offset of the timer queue on.

    The slot time of each is the TIMER_OUT_MS of its record. An entry whose record is not there is
    skipped, as a broker does, unless a ``later`` unit, which does not count, tells its slot, and no
    loss of power took it: then the record is damaged. One whose TIMER_OUT_MS is missing or no
    number keeps a broker from placing anything behind it.
    """
    queue = queue.slice(from_queue_offset, queue.queue_max)
    is_expired = (queue.commit_log_offset >= 0) & (queue.commit_log_offset < commit_log.min_offset)
    rows = np.flatnonzero(~queue.is_pre_blank & ~is_expired)
    offsets, sizes = queue.commit_log_offset[rows], queue.size_bytes[rows]
    queue_offsets = queue.first_queue_offset + rows
    waiting, others = _usual_rows(commit_log, queue_offsets, offsets, sizes)
    placed = rows_of(later, offsets[others], sizes[others])
    if (placed >= 0).any():
        placed[offsets[others] >= recovered_end(root, commit_log)] = -1
    found, astray_count = [], 0
    for at, row in enumerate(others.tolist()):
        offset, size_bytes = int(offsets[row]), int(sizes[row])
        record = record_at(commit_log, offset, size_bytes)
        if record is not None:
            placed[at] = -1
            found.append((int(queue_offsets[row]), offset, size_bytes, record))
        elif placed[at] < 0:
            astray_count += leads_astray(commit_log, offset, size_bytes, after_crash=after_crash)
    unread, told = others[placed >= 0], later[placed[placed >= 0]]
    unusual, blocking = to_be_placed(found)
    columns = (queue_offsets[unread], slot_time_ms(told), offsets[unread], sizes[unread])
    damaged = _rows(told["magic"].astype(np.int64), *columns)
    waiting = waiting.followed_by(unusual).followed_by(damaged)
    order = np.argsort(waiting.queue_offset, kind="stable")
    return Waiting(waiting.rows(order), blocking, astray_count, int(is_expired.sum()))


def names_and_timed(
    commit_log: SegmentReader, begin: int, *, stop: int = LONG_MAX, known_end: int = 0
) -> tuple[Names, Timed]:
    """What the log says from one place to another: the names, and the records of the timer topic.
    Records begin at both. Damage below ``known_end`` is stepped over. One walk: what a writer adds
    meanwhile is in neither or in both.
    """
    walked = np.zeros(WALKED, np.int64)
    names, timed = [np.empty((NAME_ROWS, 0), np.int64)], [NOTHING_TIMED]

    def visit(address: int, length: int, base: int, room: int) -> tuple[int, int]:
        walk_window(address, length, base, room, walked)
        whole = address, int(walked[1]), base
        names.append(Names.table_of(*whole))
        found = np.empty((TIMED_ROWS, find_timed(*whole, NOTHING_TIMED)), np.int64)
        find_timed(*whole, found)
        timed.append(found)
        return int(walked[1]), int(walked[2])

    LogWalk(commit_log, known_end=known_end).run(begin, visit, stop_at=stop)
    return Names(*np.concatenate(names, axis=1)), np.concatenate(timed, axis=1)


def timed_messages(commit_log: SegmentReader, timed: Timed) -> tuple[PendingTimers, Blocking]:
    """Records that ``names_and_timed`` found, as ``waiting_in_queue`` has those of the queue."""
    queue_offsets, offsets, sizes = timed
    waiting, unusual = _usual_rows(commit_log, queue_offsets, offsets, sizes)
    places = timed[:, unusual].T.tolist()
    records = ((*each, record_at(commit_log, *each[1:])) for each in places)
    others, blocking = to_be_placed(each for each in records if each[-1] is not None)
    waiting = waiting.followed_by(others)
    return waiting.rows(np.argsort(waiting.commit_log_offset, kind="stable")), blocking


def _usual_rows(
    commit_log: SegmentReader,
    queue_offsets: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> tuple[PendingTimers, NDArray[np.int64]]:
    """The rows of the records that the kernel understands, and where those are that it does not."""
    facts = _facts(commit_log, offsets, sizes)
    is_usual = (facts[STATUS] == FINE) & (facts[IS_MARKER] != MARKER_WITHOUT_KEY)
    columns = (queue_offsets, facts[OUT_MS], offsets, sizes)
    is_marker = facts[IS_MARKER, is_usual] != MESSAGE
    flags = FLAG_DEFAULT | FLAG_DELETE * is_marker
    return _rows(flags, *(each[is_usual] for each in columns)), np.flatnonzero(~is_usual)


def _rows(
    flags: NDArray[np.int64],
    queue_offset: NDArray[np.int64],
    slot_time_ms: NDArray[np.int64],
    commit_log_offset: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
) -> PendingTimers:
    """Rows that have no unit."""
    position = np.full(len(flags), -1, np.int64)
    columns = (position, queue_offset, slot_time_ms, flags, commit_log_offset, size_bytes)
    return PendingTimers(*(each.astype(np.int64) for each in columns))


def _facts(
    commit_log: SegmentReader, offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """What the records of these entries say, in the columns of ``record_kernel``."""
    table = np.zeros((FACT_COLUMNS, len(offsets)), np.int64)
    order = np.argsort(offsets, kind="stable")
    ranked, their_sizes = offsets[order].astype(np.int64), sizes[order].astype(np.int32)
    for chunk in read_chunks(commit_log, ranked, their_sizes):
        part = slice(chunk.first, chunk.end)
        is_there = chunk.buffer_offsets != NOT_THERE
        addresses = np.where(is_there, address_of(chunk.buffer) + chunk.buffer_offsets, -1)
        told = np.zeros((FACT_COLUMNS, len(addresses)), np.int64)
        read_timer_records(
            addresses,
            their_sizes[part].astype(np.int64),
            ranked[part],
            DEFAULT_PRECISION_MS,
            False,
            *NO_OLDER_SLOTS.columns(),
            told,
        )
        table[:, order[part]] = told
    return table


def to_be_placed(
    records: Iterable[tuple[int, int, int, StoredMessage]],
) -> tuple[PendingTimers, Blocking]:
    """Records of the timer topic as rows that wait in the queue; and those that stop a broker.

    Before each come its queue offset, its place in the log and its size in bytes.
    """
    rows = []
    blocking = []
    for queue_offset, offset, size_bytes, record in records:
        try:
            out_ms = parse_long(record.properties.get(TIMER_OUT_MS, ""))
        except BadFieldError:
            blocking.append((queue_offset, offset))
            continue
        is_marker = TIMER_DELETE_UNIQUE_KEY in record.properties
        flags = FLAG_DEFAULT | FLAG_DELETE * is_marker
        rows.append((-1, queue_offset, out_ms, flags, offset, size_bytes))
    columns = np.array(rows, np.int64).reshape(-1, 6).T
    return PendingTimers(*columns), tuple(blocking)
