# SPDX-License-Identifier: Apache-2.0
"""Where placing goes on when a wheel is opened: which units of the timer log can be relied on, and
the queue offset behind the last of them.

What has no unit is placed, or placed again, from the queue; copies in the log tell what of it was
dealt with. So units that cannot be relied on are taken away, and cost nothing.
"""

from typing import TypeGuard

import numpy as np

from message_store.base.errors import FormatError
from message_store.columns.byte_column import int64s
from message_store.format.properties import TIMER_TOPIC
from message_store.writing.queue import LiveQueue
from message_store.writing.store import LiveStore
from timer_wheel.format.own_checkpoint import OwnCheckpoint
from timer_wheel.format.timer_due import FINEST_MS
from timer_wheel.timers.rows import read_facts
from timer_wheel.wheel.files import WheelFiles
from timer_wheel.wheel.log import LiveTimerLog


def has_torn_end(log: LiveTimerLog, store: LiveStore) -> bool:
    """Whether the last unit leads to no record that could be there."""
    last = log.last_unit()
    facts = read_facts(store.log, last.commit_log_offset, last.size_bytes, FINEST_MS)
    return not facts.is_there.all()


def goes_back(own: OwnCheckpoint | None, store: LiveStore) -> TypeGuard[OwnCheckpoint]:
    """Whether to begin where the last flush was, and find out from there what was done since. After
    an orderly end, which is one, that is where the wheel stands.
    """
    is_asked_for = not store.settings.repeat_after_kill
    return is_asked_for and own is not None and own.is_known


def was_left(own: OwnCheckpoint | None, log: LiveTimerLog, files: WheelFiles) -> bool:
    """Whether the last of us here did not end with a flush: it was killed, or lost power, and
    another engine then closed the store in order.
    """
    if own is None or not own.is_known:
        return False
    is_at_flush = own.flushed_hand_ms == files.found.last_read_time_ms
    return not is_at_flush or own.flushed_position != log.end


def has_lost_files(own: OwnCheckpoint | None, log: LiveTimerLog, store: LiveStore) -> bool:
    """Whether first files of the timer log are gone that retention did not take: the checkpoint
    says where the log begins, and the log still has records of messages before its first unit.
    """
    if own is None or not own.is_known or log.segments.min_offset <= own.log_begins:
        return False
    first = log.unit_at(log.segments.min_offset).commit_log_offset
    queue = store.queue(TIMER_TOPIC, 0)
    return bool(len(first)) and _first_behind(queue, int(first[0]) - 1) > queue.min_offset


def take_back_all(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """Take away every unit: all that the queue has is placed again, and copies in the log tell what
    was dealt with.
    """
    begin = log.segments.min_offset
    files.will_end_at(begin, place_from=store.queue(TIMER_TOPIC, 0).min_offset)
    log.cut(begin)


def take_back(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """After a crash: take away what cannot be relied on.

    Of what was written since the last flush a loss of power may leave any part: units that tell of
    deliveries, and not the deliveries. The queue has the messages, and they are placed again.
    """
    own = files.found_own
    files.forget_snapshots_beyond(log.end)
    if goes_back(own, store):
        _cut(log, store, files, max(own.flushed_position, log.segments.min_offset))
    _cut_what_the_log_lacks(log, store, files)


def _cut(log: LiveTimerLog, store: LiveStore, files: WheelFiles, position: int) -> None:
    """Let the log end here, having said so. A broker that finds a unit before the end goes on
    placing behind it, whatever the checkpoint says, and one that finds none where that says: none
    is looked for before the beginning of a file.
    """
    if position >= log.end:
        return
    place_from = None
    if position % log.file_bytes == 0:
        first = int(log.unit_at(position).commit_log_offset.min())
        place_from = _first_behind(store.queue(TIMER_TOPIC, 0), first - 1)
        for start in log.segments.starts:  # what is kept is on the disk before that says so
            log.segments.doubt(start)
        log.segments.sync()
    files.will_end_at(position, place_from=place_from)
    log.cut(position)


def _cut_what_the_log_lacks(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """Take away the units at the end whose records are not in the log, or which were written in
    part.
    """
    begin = min(files.found.flush_position, log.end) // log.file_bytes * log.file_bytes
    for rows in log.all_units(begin):
        facts = read_facts(store.log, rows.commit_log_offset, rows.size_bytes, FINEST_MS)
        is_old = (rows.commit_log_offset < store.log.min_offset) & (rows.size_bytes > 0)
        bad = np.flatnonzero(~facts.is_there & ~is_old)
        if len(bad):
            _cut(log, store, files, int(rows.position[bad[0]]))
            return


def take_back_to_gap(log: LiveTimerLog, store: LiveStore, files: WheelFiles) -> None:
    """Of a store that a broker left: take away the units behind the first message that has none,
    from the queue offset on that its checkpoint notes and from which it would place again.

    Such a message was in the broker's hands to be delivered at once, or is a timeline's, which
    leaves only delete markers to the wheel. The last unit alone would say that it was dealt with.
    """
    last, queue = log.last_unit(), store.queue(TIMER_TOPIC, 0)
    noted = max(files.found.master_queue_offset, queue.min_offset)
    entries = queue.units(noted, queue.max_offset)
    entries = entries[entries["commit_log_offset"] < last.commit_log_offset.max(initial=0)]
    for rows in log.all_units() if len(entries) else ():
        entries = entries[~np.isin(entries["commit_log_offset"], rows.commit_log_offset)]
    offsets = int64s(entries["commit_log_offset"])
    facts = read_facts(store.log, offsets, int64s(entries["size_bytes"]), FINEST_MS)
    passed_over = offsets[facts.is_fine]
    for rows in log.all_units() if len(passed_over) else ():
        behind = np.flatnonzero(rows.commit_log_offset > passed_over.min())
        if len(behind):
            _cut(log, store, files, int(rows.position[behind[0]]))
            return


def resume(queue: LiveQueue, log: LiveTimerLog, store: LiveStore) -> int:
    """The queue offset from which messages have no units: behind that of the last unit.

    Without any unit it is the beginning of the queue: a broker would go on where the checkpoint
    says, and lose with the timer log all that was on the wheel.
    """
    last = log.last_unit()
    if not len(last):
        return queue.min_offset
    offset = int(last.commit_log_offset[0])
    try:
        claimed = store.log.record(offset, int(last.size_bytes[0])).queue_offset
    except FormatError:  # damaged, or taken by retention
        return _first_behind(queue, offset)
    is_there = (queue.units(claimed, claimed + 1)["commit_log_offset"] == offset).any()
    return claimed + 1 if is_there else _first_behind(queue, offset)


def _first_behind(queue: LiveQueue, commit_log_offset: int) -> int:
    """The first entry of a record that lies behind this place in the log, by their order.

    What a record says of its own place in the queue is off where a broker rebuilt that.
    """
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        if int(queue.units(middle, middle + 1)["commit_log_offset"][0]) > commit_log_offset:
            high = middle
        else:
            low = middle + 1
    return low
