# SPDX-License-Identifier: Apache-2.0
"""Recovery at the opening of a store: find the end of the log, and complete the queues.

The log is walked, with every checksum, from an offset before which everything is known to be whole
and in its queues. It ends before the first bytes that are no record. Everything behind is zeroed:
the rest of a torn append would be valid again behind the next one. Each record goes to its queue
unless that has it.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

import attrs
import numpy as np

from message_store.base.errors import FormatError, SourceError
from message_store.base.printable import shell_word
from message_store.files.segments import segment_name
from message_store.files.store_root import StoreRoot
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import LONG_MAX
from message_store.format.properties import LEVEL_TOPIC, LMQ_PREFIX
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import (
    HEAD_V4_V4,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_RECORD_BYTES,
)
from message_store.kernels.dispatch import FOUND_LENGTH, walk_file
from message_store.kernels.log import FILE_ENDS
from message_store.reading.consume_queue import is_pre_blank
from message_store.reading.indexed_end import RECENT_BYTES
from message_store.reading.recovered_end import recovery_start
from message_store.writing.checkpoint import LiveCheckpoint
from message_store.writing.dispatch import Dispatcher
from message_store.writing.log import PUBLISHED_LAST_BYTES, LiveLog
from message_store.writing.queue import LiveQueue
from message_store.writing.queue_set import QueueSet
from message_store.writing.topics import LoweredOffset, lower_group_offsets

SAVED_NAME = "commitlog-behind"
"""In front of the offset where the log ended: what was cut off behind it."""

_BEGIN = HEAD_V4_V4.part("size_bytes", "magic")
_ENTRIES_LOOKED_AT = 4_096
_ENTRIES_AT_ONCE = 64


@attrs.frozen
class Recovery:
    """What recovery found and did: it walked the log from ``start`` to ``end``.

    ``dispatched`` entries were missing in their queues, ``repaired`` were torn, ``cut`` led to
    records behind the log's end; ``zeroed_bytes`` behind it were not zero. Whole records among them
    are in the file ``saved``. The files of the log that begin at ``lost_files`` held nothing.
    Consumer offsets were ``lowered`` to the end of a queue that has lost its own.
    """

    start: int
    end: int
    dispatched: int = 0
    repaired: int = 0
    cut: int = 0
    zeroed_bytes: int = 0
    saved: Path | None = None
    lost_files: tuple[int, ...] = ()
    lowered: tuple[LoweredOffset, ...] = ()


@attrs.frozen
class Extent:
    """The log before recovery: walked from ``start`` and whole up to ``end``.

    Its last record begins at ``last_start``, -1 when the walk met none. Queues have to be compared
    with the log from ``dispatch_from`` on; those in ``doubted`` may have entries that lead nowhere.
    ``lost_files`` are where files of it begin that hold nothing.
    """

    start: int
    end: int
    last_start: int
    is_clean: bool
    is_known_end: bool
    dispatch_from: int
    doubted: "tuple[NewestRecord, ...]"
    lost_files: tuple[int, ...] = ()


@attrs.frozen
class NewestRecord:
    """The newest record that a queue's entries lead to: where it begins, -1 without one, and where
    it ends. ``is_doubted`` says that the queue has lost a part, or has other entries behind.
    """

    queue: LiveQueue
    start: int
    end: int
    is_doubted: bool


def survey(
    log: LiveLog, queues: QueueSet, checkpoint: LiveCheckpoint, was_clean: bool, noted_end: int
) -> Extent:
    """Find where the log ends, and change nothing.

    Where no note says how long the queues were, or an older one (``noted_end``), as in a store that
    a broker left, they are compared with the log's last 8 MiB: zeros in place of entries look as if
    nothing had been there.

    An entry of a queue tells how far the log goes only if a record of that queue begins there: a
    damaged entry would end the log anywhere. Raises SourceError when the log is damaged where it
    was known to be whole: all records behind the damage would be lost silently.
    """
    log.end_at(log.segments.found_end)  # a short last file was lengthened by zeros
    known = [_newest_record(log, queue) for queue in queues if queue.min_offset < queue.max_offset]
    own = [one for one in known if not one.queue.topic.startswith(LMQ_PREFIX)]
    newest_end, last_known = max(((one.end, one.start) for one in own), default=(-1, -1))
    if was_clean and newest_end >= 0:
        start, last_start = newest_end, last_known
    else:
        start, last_start = _unclean_start(log, queues, checkpoint.at_opening), -1
    # What was not stopped cleanly is looked at harder behind what is known to be on disk.
    synced = LONG_MAX if was_clean else checkpoint.synced_offset
    lost = [
        each
        for each in log.segments.holes()
        if each < start - start % log.file_bytes and _holds_nothing(log, each)
    ]
    last_synced = checkpoint.synced_offset
    if last_synced < 0 and not checkpoint.nothing_was_synced:  # brokers before 5.5 note none
        last_synced = last_known
    end, last_record, stepped_over = _find_end(log, start, synced, last_synced)
    is_noted = noted_end == end if was_clean else noted_end >= 0
    doubted = _doubted(log, known, end, are_ends_known=was_clean and is_noted)
    dispatch_from = min([start, *(max(record.end, log.min_offset) for record in doubted)])
    extent = Extent(
        start,
        end,
        last_record if last_record >= 0 else last_start,
        was_clean,
        start == newest_end,
        dispatch_from if is_noted else min(dispatch_from, _recent(log, queues, end)),
        doubted,
        (*lost, *stepped_over),
    )
    _refuse_damage(log, queues, checkpoint, extent)
    return extent


def recover(
    log: LiveLog,
    queues: QueueSet,
    levels: DelayLevels,
    extent: Extent,
    lost: Collection[tuple[str, int]],
    root: StoreRoot,
    dialect: Dialect | None,
) -> Recovery:
    """Give the log its end and every queue the entries that it lacks.

    Queues in ``lost``, by topic and queue id, are compared with the whole log. Whole records behind
    the log's end are copied into a file of the store's own. ``levels`` gives the due times of level
    entries. Consumer offsets behind the end of a queue are lowered to it, in the way of writing
    ``dialect``, unless that is None. Raises TargetError.
    RocketMQ: DefaultMessageStore#recover and CommitLog#recoverAbnormally (4.9.7).
    """
    end = extent.end
    saved = _save_records_behind(log, queues, end, root.own)
    zeroed_bytes = log.segments.zero_from(end)
    log.end_at(end, extent.last_start if extent.last_start >= 0 else _last_known(queues, end))
    for start in extent.lost_files:
        if log.next_record(start) >= start + log.file_bytes:  # a broker would end the log here
            log.write_blank(start)
    cut = 0
    for queue in queues:
        if queue.end_position > end or queue.needs_repair:
            cut += queue.cut(end)
            queue.correct_min_offset(log.min_offset)
    doubted = {(one.queue.topic, one.queue.queue_id): one.end for one in extent.doubted}
    new_from = extent.start if extent.is_clean else 0
    dispatcher = Dispatcher(log, queues, levels, doubted, lost=lost, new_from=new_from)
    start = extent.dispatch_from
    if not dispatcher.run(start, end):
        start = log.min_offset
        dispatcher.run(start, end)
    elif lost:
        dispatcher.run(log.min_offset, end, only=lost)
    if not extent.is_clean:
        _mark_unsynced(log, queues, start)
    return Recovery(
        start,
        end,
        dispatcher.dispatched,
        dispatcher.repaired,
        cut,
        zeroed_bytes=zeroed_bytes,
        saved=saved,
        lost_files=extent.lost_files,
        lowered=() if dialect is None else lower_group_offsets(root, queues, dialect),
    )


# --- where to begin -------------------------------------------------------------------------------


def _newest_record(log: LiveLog, queue: LiveQueue, log_end: int = LONG_MAX) -> NewestRecord:
    """Look through a queue from its end for an entry that leads to a record of this queue, before
    ``log_end``.

    The head of the record is compared, so that a damaged body takes no part in it. What was
    neutralised tells nothing. A queue of multi-dispatch leads to records of other queues.
    """
    is_doubted = queue.needs_repair
    is_of_others = queue.topic.startswith(LMQ_PREFIX)
    first = max(queue.min_offset, queue.max_offset - _ENTRIES_LOOKED_AT)
    for high in range(queue.max_offset, first, -_ENTRIES_AT_ONCE):
        low = max(first, high - _ENTRIES_AT_ONCE)
        units = queue.units(low, high)
        is_blank = is_pre_blank(units)
        for index in range(len(units) - 1, -1, -1):
            offset, size_bytes, _ = units[index].tolist()
            head = log.head(offset)
            is_short = 0 < size_bytes < SMALLEST_RECORD_BYTES
            if is_blank[index] or (is_short and head is None):
                continue
            if (
                head is not None
                and head["size_bytes"] == size_bytes
                and (is_of_others or head["queue_id"] == queue.queue_id)
                and (is_of_others or head["queue_offset"] == low + index)
                and log.holds(offset, size_bytes)
                and offset + size_bytes <= log_end
            ):
                return NewestRecord(queue, offset, offset + size_bytes, is_doubted)
            is_doubted = True
    return NewestRecord(queue, -1, -1, is_doubted)


def _doubted(
    log: LiveLog, known: Sequence[NewestRecord], end: int, *, are_ends_known: bool
) -> tuple[NewestRecord, ...]:
    """The queues that may lack entries, with their newest records before the log's ``end``: what
    they know of records behind a hole, where the log ends, they have to forget. One that ends where
    a file ends may have lost the file behind that.
    """
    return tuple(
        record if record.end <= end else _newest_record(log, record.queue, end)
        for record in known
        if record.is_doubted or (record.queue.ends_with_file and not are_ends_known)
    )


def _unclean_start(log: LiveLog, queues: QueueSet, checkpoint: StoreCheckpoint) -> int:
    """Where to begin after a crash; without entries in queues at the beginning of the log."""
    if not any(queue.max_offset * QUEUE_UNIT.size > queue.segments.min_offset for queue in queues):
        return log.min_offset
    begun = [(start, log.store_time_ms(start)) for start in log.segments.starts]
    is_record = partial(_is_record, log)
    return recovery_start(checkpoint, begun, is_record, log.min_offset, log.file_bytes)


def _recent(log: LiveLog, queues: QueueSet, end: int) -> int:
    """Where a record begins 8 MiB before the log's end, or the last one before that to which a
    queue leads; else where that file begins.
    """
    wanted = max(end - RECENT_BYTES, log.min_offset)
    starts = [queue.last_record_until(wanted) for queue in queues]
    near = max((start for start in starts if start >= log.min_offset), default=log.min_offset)
    file_start = max(wanted - wanted % log.file_bytes, log.min_offset)
    return near if near > file_start and _is_record(log, near) else file_start


def _is_record(log: LiveLog, offset: int) -> bool:
    """Whether a whole record begins here."""
    if not log.store_time_ms(offset):
        return False
    size_bytes = int.from_bytes(log.segments.read_at(offset, 4), "big", signed=True)
    try:
        log.record(offset, size_bytes)
    except FormatError:
        return False
    return True


# --- where it ends --------------------------------------------------------------------------------


def _holds_nothing(log: LiveLog, offset: int) -> bool:
    """Whether nothing was ever begun at this offset of the log. A file system alone may say of a
    file with records that it takes no blocks yet.
    """
    return not any(log.segments.read_at(offset, PUBLISHED_LAST_BYTES))


def _find_end(
    log: LiveLog, start: int, synced: int, last_synced: int
) -> tuple[int, int, tuple[int, ...]]:
    """The end of the whole records from ``start`` on, the last one's offset, or -1, and the files
    that were stepped over.

    A file that begins with nothing is lost, and no end of the log, if it was on the disk: before
    ``last_synced``, where the last record begins that was. Any other ends the log: a loss of power
    leaves such files, and nothing behind them was promised.
    """
    segments, end, last, lost = log.segments, start, -1, []
    walked = np.zeros(FOUND_LENGTH, np.int64)
    while start < segments.found_end:
        file_start = start - start % segments.file_bytes
        following = file_start + segments.file_bytes
        if _holds_nothing(log, start):
            if start > file_start or file_start >= last_synced:
                break
            lost.append(file_start)
        else:
            address = segments.address_of_file(file_start)
            found_bytes = min(segments.file_bytes, segments.found_end - file_start)
            count = walk_file(address, start - file_start, found_bytes, file_start, synced, walked)
            if count:
                end, last = file_start + int(walked[0]), file_start + int(walked[2])
            if walked[1] != FILE_ENDS or following >= segments.found_end:
                break
            end = following  # the next file was made before the last one was said to end
        start = following
    return end, last, tuple(each for each in lost if each < end)


def _refuse_damage(
    log: LiveLog, queues: QueueSet, checkpoint: LiveCheckpoint, extent: Extent
) -> None:
    """Raise SourceError when the log ends where it cannot have ended."""
    synced, end = checkpoint.at_opening.queue_commit_log_offset, extent.end
    if extent.is_clean and _goes_beyond_the_files(log, end):
        file_start = end - end % log.file_bytes
        path, way = log.segments.directory / segment_name(file_start), ""
        if log.segments.found_end - file_start < log.file_bytes:  # else nobody knows its length
            way = f", or `truncate -s {log.file_bytes} {shell_word(str(path))}` to go on without it"
        raise SourceError(
            f"{path}: the record at {end} was cut short; take its file from a backup{way}; nothing"
            " was changed"
        )
    is_short = extent.start <= synced and end <= synced and _is_record(log, synced)
    has_lost_all = end == log.min_offset and any(queue.end_position > end for queue in queues)
    may_have_lost_all = checkpoint.nothing_was_synced and not extent.is_clean
    # After an orderly end nothing lies behind what the newest entry leads to; where there is none,
    # a whole record may.
    is_broken_off = extent.is_clean and not extent.is_known_end and log.next_record(end) >= 0
    if is_short or is_broken_off or (has_lost_all and not may_have_lost_all):
        if not log.segments.starts:
            raise SourceError(
                f"{log.segments.directory}: no commit log file is there, but consume queues are;"
                " take the commit log from a backup; nothing was changed"
            )
        raise SourceError(
            f"{log.segments.directory}: damaged at {end}: no whole record begins there, and the log"
            " goes on behind it; nothing was changed"
        )


def _goes_beyond_the_files(log: LiveLog, offset: int) -> bool:
    """Whether a record begins here of which the last file had only a part: none is written so."""
    room_bytes = log.segments.found_end - offset
    if not _BEGIN.size <= room_bytes < log.file_bytes:
        return False
    begin = _BEGIN.decode_at(log.segments.read_at(offset, _BEGIN.size), 0)
    return begin["magic"] in (MAGIC_V1, MAGIC_V2) and begin["size_bytes"] > room_bytes


def _save_records_behind(
    log: LiveLog, queues: Iterable[LiveQueue], end: int, directory: Path
) -> Path | None:
    """Copy what lies behind the log's end where a queue knows of whole records there, before it is
    made zeros.

    A loss of power leaves such records, of which nobody was told that they are durable. So does
    damage to one record of a store that was killed. An append that was stopped before it published
    its first record leaves some too, but no entry of a queue leads to them.
    """
    is_known = any(queue.end_position > end for queue in queues)
    if not is_known or log.next_record(end) < 0:
        return None
    name = f"{SAVED_NAME}-{end}"
    taken = [path.name for path in directory.glob(f"{name}*")]
    path = directory / (name if name not in taken else f"{name}-{len(taken)}")
    log.segments.save_from(end, path)
    return path


def _last_known(queues: Iterable[LiveQueue], end: int) -> int:
    """The newest record to which a queue leads, where the walk has met none."""
    starts = [0]
    for queue in queues:
        if 0 < queue.end_position <= end:
            [unit] = queue.units(queue.max_offset - 1, queue.max_offset).tolist()
            starts.append(unit[0] if unit[1] > 1 else 0)
    return max(starts)


def _mark_unsynced(log: LiveLog, queues: Iterable[LiveQueue], start: int) -> None:
    """Let the next sync include what a killed process wrote: it may be in memory only. A cancel
    writes into any entry of a level that waits.
    """
    for file_start in log.segments.starts:
        if file_start + log.file_bytes > start:
            log.segments.doubt(file_start)
    for queue in queues:
        for file_start in reversed(queue.segments.starts):
            queue.segments.doubt(file_start)
            if queue.topic == LEVEL_TOPIC:
                continue
            first = file_start // QUEUE_UNIT.size
            if any(unit[0] < start for unit in queue.units(first, first + 1).tolist()):
                break  # files before this one were on disk with that part of the log
