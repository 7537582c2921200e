# SPDX-License-Identifier: Apache-2.0
"""The protocol of ``TimerMessageStore`` on the files of a store: queue, records, timer log, slots,
checkpoint and metrics.

RocketMQ: TimerLog, TimerWheel, TimerCheckpoint and TimerMetrics (5.3.3; the same in 5.5.0). Records
are written as ``WheelStore`` writes them, by the scalar code. They name the first record of their
message, which no broker reads. So ``WheelStore`` may take the store over.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Sequence

import attrs

from message_store.base.clock import Clock
from message_store.base.errors import BadFieldError, FormatError, TargetError, disk_errors
from message_store.files.live_segments import LiveSegments
from message_store.files.small_files import (
    InPlaceFile,
    make_directories,
    read_small_file,
    replace_file,
)
from message_store.files.store_root import StoreRoot
from message_store.format import properties as names
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import LONG_MAX, parse_long
from message_store.format.message import StoredMessage
from message_store.format.message_rules import MAX_MESSAGE_BYTES
from message_store.format.record_layout import MAGIC_BLANK
from message_store.redelivery.lineage import first_offset
from message_store.redelivery.record import (
    FROM_WHEEL,
    ROLLED,
    destination_of,
    redelivered,
    tags_code_of,
)
from message_store.writing.queue import LiveQueue
from message_store.writing.store import LiveStore
from timer_wheel.format.checkpoint import (
    TIMER_CHECKPOINT_NAME,
    TimerCheckpoint,
    encode_timer_checkpoint,
    read_timer_checkpoint,
)
from timer_wheel.format.metrics import (
    TIMER_METRICS_NAME,
    TimerMetrics,
    TopicCount,
    decode_timer_metrics,
    encode_timer_metrics,
)
from timer_wheel.format.timer_log import FLAG_DELETE, TIMER_BLANK, TIMER_UNIT
from timer_wheel.format.wheel_file import SLOT, WHEEL_FILE_BYTES, read_slots
from timer_wheel.format.wheel_math import WHEEL_SLOTS, floor_ms, slot_index
from timer_wheel.reference.protocol import MessageExtBrokerInner, PutMessageStatus, Slot

_NO_SLOT = Slot()


@attrs.frozen(eq=False)
class QueueOfStore:
    """The timer queue of a store."""

    _queue: LiveQueue

    @property
    def min_offset(self) -> int:
        """The queue offset of its first entry."""
        return self._queue.min_offset

    @property
    def max_offset(self) -> int:
        """The queue offset behind the last entry."""
        return self._queue.max_offset

    def unit(self, queue_offset: int) -> tuple[int, int] | None:
        """Where the entry's record lies in the commit log, and its size; None outside."""
        if not self.min_offset <= queue_offset < self.max_offset:
            return None
        (entry,) = self._queue.units(queue_offset, queue_offset + 1)
        return int(entry["commit_log_offset"]), int(entry["size_bytes"])


@attrs.frozen
class Put:
    """One delivery: where its record lies, its size, and the time it was promised for."""

    commit_log_offset: int
    size_bytes: int
    promised_ms: int


class RecordsOfStore:
    """The commit log and the queues of a store. ``take_delivered`` says what was put since."""

    def __init__(self, store: LiveStore, clock: Clock, precision_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._precision_ms = precision_ms
        self._delivered: list[Put] = []

    def get_message(self, offset_py: int, size_py: int) -> StoredMessage | None:
        """The record that lies there; None where none can be read. Raises BadFieldError when it is
        larger than the buffer. See the protocol.
        """
        if size_py > MAX_MESSAGE_BYTES + 100:
            if self._store.dialect is Dialect.ROCKETMQ_5_3:
                raise BadFieldError("a record larger than the buffer", found=size_py)
            return None
        try:
            return self._store.log.record(offset_py, size_py)
        except FormatError:
            return None

    def put_message(self, message: MessageExtBrokerInner) -> PutMessageStatus:
        """Append a record and its queue entry. Raises TargetError where the disk refuses: a broker
        would try three times, and then lose it.
        """
        store, source = self._store, message.source
        how = ROLLED if message.is_roll else FROM_WHEEL
        suffix = "".join(f"{name}\x01{value}\x02" for name, value in message.properties).encode()
        try:
            topic, queue_id = destination_of(source, how)
        except FormatError:
            return PutMessageStatus.MESSAGE_ILLEGAL
        queue = store.queue(topic, queue_id)

        def make(position: int) -> bytes:
            return redelivered(
                source,
                how,
                queue_offset=queue.max_offset,
                position=position,
                store_ms=self._clock.now_ms(),
                suffix=suffix,
                prepared_offset=~first_offset(source),
            )

        try:
            size_bytes = len(make(0))
            with store.all_or_broken():
                offset = store.log.append(size_bytes, make)
                queue.append_one(offset, size_bytes, tags_code_of(source))
        except FormatError:
            return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        if not message.is_roll:
            store.remember_topic(topic, queue_id)
            self._delivered.append(Put(offset, size_bytes, promised_ms(source, self._precision_ms)))
        return PutMessageStatus.PUT_OK

    def take_delivered(self) -> list[Put]:
        """What was delivered since the last call, in order."""
        delivered, self._delivered = self._delivered, []
        return delivered


def promised_ms(message: StoredMessage, precision_ms: int) -> int:
    """When a message was promised for: the end of its slot, or when it was stored overdue. One that
    rolled was not: its record may be stored late.
    """
    end_ms = (
        floor_ms(parse_long(message.properties[names.TIMER_OUT_MS]), precision_ms) + precision_ms
    )
    has_rolled = names.TIMER_ROLL_TIMES in message.properties
    return end_ms if has_rolled else max(end_ms, message.store_timestamp_ms)


class LogOfUnits:
    """The timer log. ``has_deletes`` says whether a delete marker may be on the wheel."""

    def __init__(self, root: StoreRoot, file_bytes: int) -> None:
        self._segments = LiveSegments(root.timer_log, file_bytes, root=root.path)
        for start in self._segments.starts:  # a killed process may have synced none of it
            self._segments.doubt(start)
        self._end = self.flushed_where = self._segments.end_offset
        self.has_deletes = self._end > 0

    @property
    def file_size(self) -> int:
        """The size of each file in bytes."""
        return self._segments.file_bytes

    def files(self) -> Sequence[int]:
        """The position at which each file begins."""
        return tuple(self._segments.starts)

    def append(self, unit: bytes) -> int:
        """Put a unit at the end; its position. A file ends where no unit and blank fit any more.
        Raises TargetError, where Java says -1. RocketMQ: TimerLog#append.
        """
        left = self.file_size - self._end % self.file_size
        if len(unit) + TIMER_BLANK.size > left:
            blank = TIMER_BLANK.encode(size_bytes=left, reserved=0, magic=MAGIC_BLANK)
            self._segments.write_at(self._end, blank)
            self._end += left
        self._segments.write_at(self._end, unit)
        self.has_deletes |= bool(TIMER_UNIT.decode_at(unit, 0)["magic"] & FLAG_DELETE)
        self._end += len(unit)
        return self._end - len(unit)

    def get_timer_message(self, position: int) -> dict[str, int] | None:
        """The fields at a position before the end of the log; None where there are none. A link
        that does not lead to before the unit leads nowhere: a broker never gets to its end.
        """
        unit = self.read_raw(position) if position + TIMER_UNIT.size <= self._end else None
        if unit is not None and unit["previous_position"] >= position:
            unit["previous_position"] = -1
        return unit

    def read_raw(self, position: int) -> dict[str, int] | None:
        """The same, also behind the end, where the files hold anything."""
        rest = self.file_size - position % self.file_size
        is_inside = self._segments.min_offset <= position < self._segments.end_offset
        if position < 0 or not is_inside:
            return None
        found = self._segments.read_at(position, min(rest, TIMER_UNIT.size))
        return TIMER_UNIT.decode_at(found.ljust(TIMER_UNIT.size, b"\0"), 0)

    def truncate_dirty_files(self, position: int) -> None:
        """Let the log end there. Java leaves what lies behind; here it becomes zeros."""
        self._end = self.flushed_where = position
        self._segments.zero_from(position)

    def flush(self) -> None:
        """Make it durable; a call moves ``flushed_where`` to the end of one file, as it does in
        RocketMQ: MappedFileQueue#flush. Raises TargetError.
        """
        self._segments.sync()
        next_file = self.flushed_where - self.flushed_where % self.file_size + self.file_size
        self.flushed_where = min(self._end, next_file)

    def delete_expired(self, commit_log_min: int) -> None:
        """Remove the oldest files whose last unit leads before the commit log, never the last.
        RocketMQ: MappedFileQueue#deleteExpiredFileByOffsetForTimerLog, every 30 s.
        """
        last_unit = (self.file_size - TIMER_BLANK.size) // TIMER_UNIT.size * TIMER_UNIT.size
        for start in self.files()[:-1]:
            unit = self.read_raw(start + last_unit - TIMER_UNIT.size)
            if unit is None or unit["commit_log_offset"] >= commit_log_min:
                return
            self._segments.delete_before(start + self.file_size)

    def close(self) -> None:
        """Give the files back."""
        self._segments.close()


class SlotsOfWheel:
    """The slots in memory, by index; the file gets those that changed."""

    def __init__(self, root: StoreRoot, precision_ms: int) -> None:
        self._path = root.timer_wheel
        self._precision_ms = precision_ms
        self._slots: dict[int, Slot] = {}
        self._times: list[int] = []
        self._dirty: set[int] = set()
        self._file: InPlaceFile | None = None
        found = read_slots(self._path)
        self._has_length = found is not None
        if found is not None:
            for index, row in zip(found.index.tolist(), found.slots.tolist(), strict=True):
                self._keep(index, Slot(row[0] * precision_ms, *row[1:]))

    def _keep(self, index: int, slot: Slot) -> None:
        old = self._slots.get(index)
        if old is None or old.time_ms != slot.time_ms:
            if old is not None:
                self._times.remove(old.time_ms)
            insort(self._times, slot.time_ms)
        self._slots[index] = slot

    def times_from(self, time_ms: int) -> Iterator[int]:
        """The times of all slots in use from a time on, in order."""
        return iter(self._times[bisect_left(self._times, time_ms) :])

    def get_slot(self, time_ms: int) -> Slot:
        """The slot that holds this time; an empty one where its index holds another time."""
        units = time_ms // self._precision_ms
        slot = self._slots.get(units % WHEEL_SLOTS)
        if slot is None or slot.time_ms != units * self._precision_ms:
            return _NO_SLOT
        return slot

    def put_slot(self, time_ms: int, first_pos: int, last_pos: int, num: int, magic: int) -> None:
        """Let the slot of this time lead to these units."""
        precision_ms = self._precision_ms
        index, slot_ms = slot_index(time_ms, precision_ms), floor_ms(time_ms, precision_ms)
        self._keep(index, Slot(slot_ms, first_pos, last_pos, num, magic))
        self._dirty.add(index)

    def revise_slot(self, time_ms: int, last_pos: int) -> None:
        """Let it lead to this unit last; where it held another time, to this unit alone. Its count
        stays what it was, even that of another time.
        """
        slot, raw = self.get_slot(time_ms), self._slots.get(slot_index(time_ms, self._precision_ms))
        first_pos = last_pos if slot.time_ms == -1 else slot.first_pos
        num, magic = (raw.num, raw.magic) if raw is not None else (0, 0)
        self.put_slot(time_ms, first_pos, last_pos, num, magic)

    def check_phy_pos(self, time_start_ms: int, max_offset: int) -> int:
        """The first unit of all slots from a time on whose last lies behind ``max_offset``."""
        end_ms = time_start_ms + WHEEL_SLOTS * self._precision_ms
        return min(
            (
                slot.first_pos
                for slot in self._slots.values()
                if time_start_ms <= slot.time_ms < end_ms and slot.last_pos > max_offset
            ),
            default=LONG_MAX,
        )

    def flush(self) -> None:
        """Write what changed, durably. Raises TargetError."""
        if self._file is None:
            self._file = InPlaceFile(self._path)
        if not self._has_length:
            self._file.write(b"\0", at=WHEEL_FILE_BYTES - 1, durably=True)
            self._has_length = True
        for index in sorted(self._dirty):
            slot = self._slots[index]
            content = SLOT.encode(
                time_units=slot.time_ms // self._precision_ms,
                first_position=slot.first_pos,
                last_position=slot.last_pos,
                unit_count=slot.num,
                magic=slot.magic,
            )
            self._file.write(content, at=index * SLOT.size, durably=index == max(self._dirty))
        self._dirty.clear()

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()


class CheckFileOfStore:
    """`config/timercheck`, without our own part: whoever opens the store next takes it over."""

    def __init__(self, root: StoreRoot) -> None:
        self._root = root

    def read(self) -> TimerCheckpoint:
        """What it says; zeros where it is missing."""
        return read_timer_checkpoint(self._root)

    def write(self, checkpoint: TimerCheckpoint) -> None:
        """Let it say this, durably. Raises TargetError."""
        with disk_errors(TargetError, self._root.config, "made"):
            make_directories(self._root.config)
        file = InPlaceFile(self._root.config_file(TIMER_CHECKPOINT_NAME))
        try:
            file.write(encode_timer_checkpoint(checkpoint), durably=True)
        finally:
            file.close()


class MetricsOfStore:
    """`config/timermetrics`: how many messages of each topic are on the wheel."""

    def __init__(self, root: StoreRoot) -> None:
        self._path = root.config_file(TIMER_METRICS_NAME)
        content = read_small_file(self._path)
        known = {} if content is None else decode_timer_metrics(content).topics
        self.counts = Counter({topic: count.count for topic, count in known.items()})

    def add_and_get(self, message: StoredMessage, value: int) -> None:
        """Count a message of its REAL_TOPIC onto the wheel, or off."""
        if names.REAL_TOPIC in message.properties:
            self.counts[message.properties[names.REAL_TOPIC]] += value

    def persist(self, counter: int, now_ms: int) -> None:
        """Write the counts. Raises TargetError."""
        topics = {topic: TopicCount(count, now_ms) for topic, count in sorted(self.counts.items())}
        text = encode_timer_metrics(TimerMetrics(topics, counter, 0, now_ms))
        replace_file(self._path, text.encode())
