# SPDX-License-Identifier: Apache-2.0
"""THE interface: what every engine promises, and the values it speaks.

``WheelStore``, ``LevelStore`` and ``MemoryStore`` keep this contract; whoever holds one of them
need not know which. Times are epoch milliseconds. A store reads its clock only to stamp records, so
``advance`` can be driven through a simulated week in a second.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import index
from typing import TYPE_CHECKING, NamedTuple, Protocol

import attrs

from message_store.format.message import Message, StoredMessage
from message_store.format.recall_handle import RecallHandle

if TYPE_CHECKING:
    from message_store.columns.byte_column import ByteColumn, Int64s
    from message_store.columns.message_batch import MessageBatch, StoredBatch
    from message_store.interface.queued_messages import QueuePart


@attrs.frozen
class AtLevel:
    """Due after the delay of one of the store's levels, counted from 1."""

    level: int

    def __attrs_post_init__(self) -> None:  # a validator takes three times as long
        if index(self.level) < 1:
            raise ValueError(f"'level' must be >= 1: {self.level}")


@attrs.frozen
class AfterMs:
    """Due so many milliseconds after it is stored."""

    delay_ms: int

    def __attrs_post_init__(self) -> None:
        if index(self.delay_ms) < 0:
            raise ValueError(f"'delay_ms' must be >= 0: {self.delay_ms}")


@attrs.frozen
class AtMs:
    """Due at this time; a time that is past is promised for now."""

    due_ms: int

    def __attrs_post_init__(self) -> None:
        if index(self.due_ms) < 0:
            raise ValueError(f"'due_ms' must be >= 0: {self.due_ms}")


Due = AtLevel | AfterMs | AtMs
"""When a message is wanted. Every engine takes every kind."""


class Receipt(NamedTuple):
    """The answer of ``schedule``: the message is stored, and this is when it will be delivered.

    ``due_ms`` is the time asked for. ``promised_ms`` is the time that the engine can keep, never
    before it: the level's due time, or the end of the wheel's slot. (One exception, which has to be
    asked for: an engine set to deliver at once what lies beyond its limit promises that for now.)

    A tuple, because one is made in every ``schedule``: a frozen attrs class takes twice as long.
    """

    unique_key: str
    topic: str
    due_ms: int
    promised_ms: int
    commit_log_offset: int
    broker_name: str

    @property
    def handle(self) -> str:
        """The text by which another process can cancel the message; made on each access."""
        return RecallHandle(self.topic, self.broker_name, self.promised_ms, self.unique_key).text()


receipt_of: Callable[[tuple[str, str, int, int, int, str]], Receipt] = partial(
    tuple.__new__, Receipt
)
"""A receipt from its fields in their order, in half of the time that naming its class takes."""


def named_by(receipt: Receipt | str) -> tuple[RecallHandle, int | None]:
    """The handle of a receipt, or of its text; and where the first record of the one message is
    that a receipt names, None for a text. Raises BadFieldError for text that is no handle.
    """
    if isinstance(receipt, str):
        return RecallHandle.parse(receipt), None
    return RecallHandle.parse(receipt.handle), receipt.commit_log_offset


@attrs.frozen(eq=False)
class BatchReceipt:
    """The answer of ``schedule_batch``: a column for each field of a receipt, a row a message.

    Handles are not kept but made, by ``receipt``: few are ever asked for.
    """

    unique_keys: ByteColumn
    topics: ByteColumn
    due_ms: Int64s
    promised_ms: Int64s
    commit_log_offsets: Int64s
    broker_name: str

    def __len__(self) -> int:
        return len(self.due_ms)

    def receipt(self, row: int) -> Receipt:
        """The receipt of one message, as ``cancel`` takes it."""
        return Receipt(
            unique_key=self.unique_keys[row].decode(),
            topic=self.topics[row].decode(),
            due_ms=int(self.due_ms[row]),
            promised_ms=int(self.promised_ms[row]),
            commit_log_offset=int(self.commit_log_offsets[row]),
            broker_name=self.broker_name,
        )


@attrs.frozen
class Delivered:
    """A message that has reached its topic.

    ``message`` is the record as a consumer sees it. ``promised_ms`` is what its receipt said.
    """

    message: StoredMessage
    promised_ms: int

    @property
    def lateness_ms(self) -> int:
        """How long after the promise it was stored in its topic."""
        return self.message.store_timestamp_ms - self.promised_ms


class Deliveries(Protocol):
    """The messages that one ``advance`` delivered, in order: cheap until looked into.

    A sequence over the log and not a list of objects, because making the objects costs twenty times
    the delivery itself. Valid until the store is closed, or until retention deletes the log files
    that it leads into: looking into it then raises StoreClosedError, or TruncatedRecordError.
    What ``to_batch`` has made stays.
    """

    def __len__(self) -> int:
        """How many; costs nothing."""

    def __getitem__(self, index: int) -> Delivered:
        """One of them; raises IndexError like a list, negative indices count from the end."""

    def __iter__(self) -> Iterator[Delivered]:
        """All of them, each made when it is asked for."""

    def to_batch(self) -> StoredBatch:
        """All of them as columns, without an object for any."""


@attrs.frozen
class Pending:
    """A pending message.

    ``topic`` and ``queue_id`` are where it will go; ``level`` is None where the engine keeps free
    due times; ``due_ms`` is when the engine will deliver it.
    """

    unique_key: str | None
    topic: str
    queue_id: int
    tags: str | None
    keys: tuple[str, ...]
    level: int | None
    due_ms: int
    size_bytes: int
    commit_log_offset: int


class Cancellation(enum.Enum):
    """The outcome of a ``cancel``."""

    CANCELLED = "cancelled"
    ALREADY_DELIVERED = "already delivered"
    NEVER_EXISTED = "never existed"


class Severity(enum.Enum):
    """How bad a finding is: worth knowing, will hurt later, loses or repeats messages."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@attrs.frozen
class Finding:
    """One thing that ``check`` noticed.

    ``where`` names a file and offset or a level; ``effect`` is what a broker does about it;
    ``remedy`` is what a person should do. ``code`` is a short name that stays, for programs; empty
    where there is none.
    """

    severity: Severity
    where: str
    problem: str
    effect: str
    remedy: str
    code: str = ""


class TopicReader(Protocol):
    """A topic as a consumer sees it."""

    def read(
        self, queue_id: int, from_offset: int, max_messages: int = 32
    ) -> Sequence[StoredMessage]:
        """The messages of one queue from a queue offset on, in order.

        Fewer than ``max_messages``, or none, where the queue ends. Raises FormatError for a record
        that is damaged.
        """

    def queued(
        self,
        queue_id: int,
        from_offset: int,
        max_entries: int = 32,
        tags_codes: Collection[int] | None = None,
    ) -> QueuePart:
        """The same messages, of at most so many entries of the queue, decoded only as far as
        somebody looks at them. A record that is damaged is in none of them.

        With ``tags_codes``, entries with another tags code may be skipped, and do not count.
        """

    def ranges(self) -> Mapping[int, tuple[int, int]]:
        """The queues that have messages: queue id to the first queue offset and the end."""


class DelayStore(Protocol):
    """A durable store that takes messages now and delivers each into its topic when it is due.

    - Every message is delivered once, by the first ``advance(now_ms)`` with
      ``now_ms >= promised_ms``, and never by an earlier one. Among equal promises, in the order of
      scheduling. What is asked for a time that is past is promised for now.
    - After ``schedule`` returns, killing the process loses nothing; after ``flush``, losing power
      loses nothing. Opening a store that was killed repeats no delivery.
    - One process writes to a store at a time; its methods may be called from several threads.
    - Every method raises StoreClosedError after ``close``. Where the disk refuses, those that write
      raise TargetError; what returned before that stays as it is.
    """

    def schedule(self, message: Message, due: Due) -> Receipt:
        """Store a message for later.

        Raises UnsupportedDelayError for a time that the engine cannot keep, and BadFieldError for a
        message that no record can hold. Nothing is stored then.
        """

    def schedule_batch(self, batch: MessageBatch, due_ms: Int64s) -> BatchReceipt:
        """Store many messages, the row at ``i`` due at ``due_ms[i]``; all of them or none.

        The same as scheduling them one by one with ``AtMs``, in one go. Raises as ``schedule``.
        """

    def put(self, message: Message) -> Receipt:
        """Store a message for the time that its own properties ask for, as brokers do for clients:
        DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS (docs/ENGINES.md). One that asks
        for nothing is due now.

        Raises BadFieldError for a property that cannot be read; and as ``schedule``.
        """

    def put_batch(self, batch: MessageBatch) -> BatchReceipt:
        """The same for many messages: all of them are stored or none.

        Raises as ``put``, and BadFieldError for a delete marker, which is put by itself.
        """

    def advance(self, now_ms: int) -> Deliveries:
        """Move everything that is due at ``now_ms`` into its topic.

        Between two calls of ``schedule`` a second call with the same time, or with an earlier one,
        delivers nothing. When it returns, the deliveries are as durable as a ``schedule``.
        """

    def next_due_ms(self) -> int | None:
        """The earliest time at which ``advance`` would deliver something; None when nothing waits.

        Never later than the earliest promise; it may be earlier where the engine works in steps.
        Right after ``advance(now_ms)`` it is later than ``now_ms``.
        """

    def pending(
        self,
        *,
        topic: str | None = None,
        level: int | None = None,
        due_after_ms: int | None = None,
        due_before_ms: int | None = None,
        unique_key: str | None = None,
    ) -> Iterator[Pending]:
        """The pending messages that pass every given filter, in unspecified order.

        ``due_after_ms`` is inclusive and ``due_before_ms`` exclusive. Read lazily, while others may
        schedule and deliver. A message that is pending throughout is listed once, one that was
        delivered before never. Any other is listed once or not at all: one that is scheduled or
        delivered meanwhile, and one that rolls while retention deletes its older record.
        """

    def cancel(self, receipt: Receipt | str) -> Cancellation:
        """Cancel a pending message, by its receipt or by the receipt's handle.

        ``CANCELLED`` means that it will not be delivered, also after a kill; so it is the answer to
        a second call too. A handle cannot tell messages apart that share topic, promised time and
        unique key, and cancels all of them. A message whose record is damaged counts as one that
        never existed: it is not pending, and when it is due ``undelivered`` tells of it. Raises
        BadFieldError for text that is no handle.
        """

    def reschedule(self, receipt: Receipt | str, due: Due) -> Receipt | Cancellation:
        """Let a pending message wait for another time; returns its new receipt, or what became of a
        message that is not pending.

        The older receipt names nothing pending any more. A kill leaves the message at its old time
        or at its new one, never at both or neither. A message that would stay in its slot of a
        wheel is left as it is; the receipt says so. Raises UnsupportedDelayError as ``schedule``,
        and SharedKeyError where several pending messages share what names this one. Nothing is
        changed then.
        """

    def topic(self, name: str) -> TopicReader:
        """A topic's queues, for reading; one that has no messages reads as empty."""

    def check(self) -> list[Finding]:
        """Every invariant that does not hold, worst first. Never raises for damage."""

    def flush(self) -> None:
        """Come back when everything stored so far survives a loss of power."""

    def close(self) -> None:
        """Flush, and let go of the files; closing twice is fine."""

    def __enter__(self) -> DelayStore:
        """The store itself."""

    def __exit__(self, *_: object) -> None:
        """Close."""
