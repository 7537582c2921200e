# SPDX-License-Identifier: Apache-2.0
"""How RocketMQ's ``TimerMessageStore`` recovers, in its names: recover, revise, and where to go on.

The timer log is the truth. A part of ``timer_message_store.py``, which calls ``recover``.
"""

from message_store.format.message import StoredMessage
from message_store.format.record_layout import MAGIC_BLANK
from timer_wheel.format.checkpoint import TimerCheckpoint
from timer_wheel.format.timer_log import TIMER_UNIT
from timer_wheel.format.wheel_math import effective_read_time_ms
from timer_wheel.reference.protocol import (
    ConsumeQueue,
    MessageStore,
    StoreFiles,
    TimerLog,
    TimerWheel,
)

_STEPS_BACK = 20_000


def recover(
    files: StoreFiles, known: TimerCheckpoint, now_ms: int, precision_ms: int
) -> tuple[int, int]:
    """Bring slots up to the timer log; the slot to be read next, and the queue entry.

    The last unit says where enqueueing goes on, and the checkpoint only lowers that. Slots a
    wheel's length behind are never read: their messages are lost. RocketMQ: #recover.
    """
    log, wheel, queue = files.timer_log, files.timer_wheel, files.queue
    begin = known.flush_position - (log.file_size if log.files() else 0)
    process_offset = recover_and_revise(log, wheel, begin, check_timer_log=True)
    log.flush()
    last = revise_queue_offset(log, files.message_store, queue, process_offset)
    next_offset = known.last_queue_offset if last == -1 else last + 1
    next_offset = min(next_offset, known.master_queue_offset)
    # Since 5.3.2; before, an offset outside the queue was believed.
    next_offset = min(max(next_offset, queue.min_offset), queue.max_offset)
    read_time_ms = effective_read_time_ms(known.last_read_time_ms, now_ms, precision_ms)
    min_first = wheel.check_phy_pos(read_time_ms, process_offset)
    if min_first < process_offset:  # slots lead behind a timer log that was cut
        recover_and_revise(log, wheel, min_first, check_timer_log=False)
    return read_time_ms, next_offset


def recover_and_revise(
    timer_log: TimerLog, timer_wheel: TimerWheel, begin_offset: int, *, check_timer_log: bool
) -> int:
    """Hang the units into their slots, from the beginning of the file that holds ``begin_offset``
    on; the position at which they end. With ``check_timer_log`` the log ends there from now on.
    """
    files = timer_log.files()
    if not files:
        return 0
    position = max((start for start in files if start <= begin_offset), default=files[0])
    read = timer_log.read_raw if check_timer_log else timer_log.get_timer_message
    while (unit := read(position)) is not None:
        if unit["magic"] == MAGIC_BLANK:
            next_file = position - position % timer_log.file_size + timer_log.file_size
            if next_file not in files:
                break
            position = next_file
            continue
        if unit["size_bytes"] != TIMER_UNIT.size or not is_magic_ok(unit["magic"]):
            break
        timer_wheel.revise_slot(unit["write_time_ms"] + unit["delay_ms"], position)
        position += TIMER_UNIT.size
    if check_timer_log:
        timer_log.truncate_dirty_files(position)
    return position


def is_magic_ok(magic: int) -> bool:
    """Whether these are flags of a unit; 0 passes as well."""
    return magic | 0xF == 0xF


def revise_queue_offset(
    timer_log: TimerLog, store: MessageStore, queue: ConsumeQueue, process_offset: int
) -> int:
    """The queue offset of the last unit's message; -1 where there is no unit, or no record.

    What the record says may be too high: its entry is looked for from there downwards.
    """
    unit = timer_log.read_raw(process_offset - TIMER_UNIT.size)
    if unit is None:
        return -1
    place = unit["commit_log_offset"], unit["record_size_bytes"]
    message: StoredMessage | None = store.get_message(*place)
    if message is None:
        return -1
    lowest = max(message.queue_offset - _STEPS_BACK, -1)
    for offset in range(message.queue_offset, lowest, -1):
        if queue.unit(offset) == place:
            return offset
    return message.queue_offset
