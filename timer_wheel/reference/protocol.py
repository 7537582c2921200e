# SPDX-License-Identifier: Apache-2.0
"""What ``TimerMessageStore`` stands on: its values, and the small protocol of log, queue and files.

Names are RocketMQ's in snake case: TimerRequest, Slot, CountDownLatch, PutMessageStatus.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage
from timer_wheel.format.checkpoint import TimerCheckpoint
from timer_wheel.format.timer_log import FLAG_DELETE, FLAG_ROLL


@attrs.frozen
class Slot:
    """One slot: its time in milliseconds, the oldest and the newest unit, and how many."""

    time_ms: int = -1
    first_pos: int = -1
    last_pos: int = -1
    num: int = 0
    magic: int = 0


@attrs.frozen
class TimerConfig:
    """What `MessageStoreConfig` says: ``precision_ms`` timerPrecisionMs, ``roll_window_slots``
    timerRollWindowSlot (in a broker's bounds), ``skip_unknown_error`` timerSkipUnknownError,
    ``retry_until_success`` timerEnableRetryUntilSuccess; ``dialect`` is the version.
    """

    precision_ms: int = 1000
    roll_window_slots: int = 2 * 24 * 3600
    dialect: Dialect = Dialect.ROCKETMQ_5_5
    skip_unknown_error: bool = False
    retry_until_success: bool = False

    @property
    def window_ms(self) -> int:
        """The roll window in milliseconds."""
        return self.roll_window_slots * self.precision_ms


PUT_OK, PUT_NEED_RETRY, PUT_NO_RETRY = range(3)


class PutMessageStatus(enum.Enum):
    """The answers to a put that are told apart, and what `TimerMessageStore#doPut` makes of them.

    Of Java's others five are tried again, two are not.
    """

    PUT_OK = "stored", PUT_OK
    MESSAGE_ILLEGAL = "no message", PUT_NO_RETRY
    PROPERTIES_SIZE_EXCEEDED = "too long", PUT_NO_RETRY
    SERVICE_NOT_AVAILABLE = "refused", PUT_NEED_RETRY
    UNKNOWN_ERROR = "unknown", PUT_NEED_RETRY

    def outcome(self, *, skips_unknown: bool) -> int:
        """PUT_OK, PUT_NEED_RETRY or PUT_NO_RETRY; an unknown error may be skipped."""
        is_skipped = skips_unknown and self is PutMessageStatus.UNKNOWN_ERROR
        return PUT_NO_RETRY if is_skipped else self.value[1]


@attrs.frozen
class MessageExtBrokerInner:
    """What is put: a message as it waited, its new topic and queue, and the properties set."""

    source: StoredMessage
    topic: str
    queue_id: int
    properties: tuple[tuple[str, str], ...]
    is_roll: bool


class CountDownLatch:
    """How many requests are still under way."""

    def __init__(self, count: int) -> None:
        self.count = count

    def count_down(self) -> None:
        """One less."""
        self.count -= 1


@attrs.define(eq=False)
class TimerRequest:
    """One message on its way: its record's offset and size, its time, and the unit's magic.

    ``queue_offset`` is one past its own. ``delete_list`` is shared by all requests of a slot.
    """

    offset_py: int
    size_py: int
    delay_time: int
    enqueue_time: int
    magic: int
    msg: StoredMessage | None = None
    queue_offset: int = 0
    delete_list: set[str] = attrs.field(factory=set)
    succ: bool = False
    _latch: CountDownLatch | None = None
    _released: bool = False

    @classmethod
    def of_unit(cls, unit: Mapping[str, int], delete_list: set[str]) -> "TimerRequest":
        """The request that a unit of the timer log makes."""
        place = unit["commit_log_offset"], unit["record_size_bytes"]
        write_ms = unit["write_time_ms"]
        times = write_ms + unit["delay_ms"], write_ms
        return cls(*place, *times, unit["magic"], delete_list=delete_list)

    @property
    def is_roll(self) -> bool:
        """Whether its unit is to roll. (Java: needRoll.)"""
        return self.magic & FLAG_ROLL != 0

    @property
    def is_delete(self) -> bool:
        """Whether its unit is a delete marker. (Java: needDelete.)"""
        return self.magic & FLAG_DELETE != 0

    def set_latch(self, latch: CountDownLatch) -> None:
        """Whom to tell when it is done."""
        self._latch = latch

    def set_msg(self, msg: StoredMessage) -> None:
        """Its record was read."""
        self.msg = msg

    def set_enqueue_time(self, enqueue_time: int) -> None:
        """When it was placed, in milliseconds."""
        self.enqueue_time = enqueue_time

    def idempotent_release(self, *, succ: bool = True) -> None:
        """Say whether it is done, and count down once: a second try counts no more latch down."""
        self.succ = succ
        if not self._released and self._latch is not None:
            self._released = True
            self._latch.count_down()


# --- the protocol ---------------------------------------------------------------------------------


class ConsumeQueue(Protocol):
    """Queue 0 of rmq_sys_wheel_timer."""

    @property
    def min_offset(self) -> int:
        """The queue offset of its first entry."""

    @property
    def max_offset(self) -> int:
        """The queue offset behind the last entry."""

    def unit(self, queue_offset: int) -> tuple[int, int] | None:
        """Where the entry's record lies in the commit log, and its size; None outside."""


class MessageStore(Protocol):
    """The commit log with its queues."""

    def get_message(self, offset_py: int, size_py: int) -> StoredMessage | None:
        """The record that lies there; None where none can be read. One that outgrew the buffer of
        maxMessageSize + 100 bytes is skipped, and lost (5.4 and later). 5.3 stops at it for
        ever: raises BadFieldError.
        """

    def put_message(self, message: MessageExtBrokerInner) -> PutMessageStatus:
        """Append a record and its queue entry."""


class TimerLog(Protocol):
    """The timer log: units of 52 bytes, by the fields of ``TIMER_UNIT``, in files of one size."""

    @property
    def flushed_where(self) -> int:
        """Up to where it is durable."""

    @property
    def file_size(self) -> int:
        """The size of each file in bytes."""

    def files(self) -> Sequence[int]:
        """The position at which each file begins."""

    def append(self, unit: bytes) -> int:
        """Put a unit at the end; its position, or -1 where the disk refuses."""

    def get_timer_message(self, position: int) -> dict[str, int] | None:
        """The fields at a position before the end of the log; None where there are none."""

    def read_raw(self, position: int) -> dict[str, int] | None:
        """The same, also behind the end, where the files hold anything."""

    def truncate_dirty_files(self, position: int) -> None:
        """Let the log end there."""

    def flush(self) -> None:
        """Make it durable."""


class TimerWheel(Protocol):
    """The slots, in memory until they are flushed."""

    def get_slot(self, time_ms: int) -> Slot:
        """The slot that holds this time; an empty one where its index holds another time."""

    def put_slot(self, time_ms: int, first_pos: int, last_pos: int, num: int, magic: int) -> None:
        """Let the slot of this time lead to these units."""

    def revise_slot(self, time_ms: int, last_pos: int) -> None:
        """Let it lead to this unit last; where it held another time, to this unit alone."""

    def check_phy_pos(self, time_start_ms: int, max_offset: int) -> int:
        """The first unit of all slots from a time on whose last lies behind ``max_offset``."""

    def flush(self) -> None:
        """Make them durable."""


class CheckpointFile(Protocol):
    """`timercheck`."""

    def read(self) -> TimerCheckpoint:
        """What it says; zeros where it is missing."""

    def write(self, checkpoint: TimerCheckpoint) -> None:
        """Let it say this."""


class TimerMetrics(Protocol):
    """`timermetrics`."""

    def add_and_get(self, message: StoredMessage, value: int) -> None:
        """Count a message of its REAL_TOPIC onto the wheel, or off."""


@attrs.frozen(eq=False)
class StoreFiles:
    """All of it, of one store."""

    queue: ConsumeQueue
    message_store: MessageStore
    timer_log: TimerLog
    timer_wheel: TimerWheel
    checkpoint_file: CheckpointFile
    timer_metrics: TimerMetrics
