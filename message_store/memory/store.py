# SPDX-License-Identifier: Apache-2.0
"""The whole interface over one sorted list, in memory.

It is the model against which the engines are tested, and a delay queue for programs whose messages
need not outlive their process.

Limitation: it keeps every message it was given, also delivered ones, as long as it lives.
"""

import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING

import attrs
from sortedcontainers import SortedKeyList

from message_store.base.clock import Clock, SystemClock
from message_store.base.closed_on_exit import ClosedOnExit
from message_store.base.companions import Companions
from message_store.base.errors import SharedKeyError, StoreClosedError
from message_store.base.kinds import require_kind, takes
from message_store.format import properties as names
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import LOCAL_HOST, Message, StoredMessage
from message_store.format.message_codec import body_crc, encode_message
from message_store.format.recall_handle import RecallHandle
from message_store.format.record_layout import MAGIC_V1, MAGIC_V2, TOPIC_MAX_CHARS_V1
from message_store.intake.asked import asked_of_no_wheel
from message_store.intake.records import kept_entries, require_storable
from message_store.interface.delay_store import (
    AfterMs,
    AtLevel,
    AtMs,
    BatchReceipt,
    Cancellation,
    Delivered,
    Due,
    Finding,
    Pending,
    Receipt,
)
from message_store.interface.message_life import Event, TraceStep
from message_store.interface.promise_rules import PromiseRule, exact
from message_store.interface.queued_messages import QueuePart
from message_store.interface.waiting_messages import FILTER_KINDS

if TYPE_CHECKING:
    from message_store.columns.byte_column import Int64s
    from message_store.columns.message_batch import MessageBatch, StoredBatch

Queues = dict[int, list[StoredMessage]]


@attrs.frozen(eq=False)
class MemoryDeliveries:
    """The messages that one ``advance`` delivered; see ``Deliveries``."""

    _messages: tuple[StoredMessage, ...]
    _promised_ms: tuple[int, ...]

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> Delivered:
        return Delivered(self._messages[index], self._promised_ms[index])

    def __iter__(self) -> Iterator[Delivered]:
        return map(Delivered, self._messages, self._promised_ms)

    def to_batch(self) -> "StoredBatch":
        """The same as columns."""
        from message_store.columns.message_batch import StoredBatch

        return StoredBatch.of(self._messages)


@attrs.frozen(eq=False)
class MemoryTopic:
    """A topic's queues; see ``TopicReader``."""

    _queues: Mapping[int, list[StoredMessage]]

    def read(
        self, queue_id: int, from_offset: int, max_messages: int = 32
    ) -> tuple[StoredMessage, ...]:
        """A part of one queue, in order."""
        start = max(0, from_offset)
        return tuple(self._queues.get(queue_id, ())[start : start + max_messages])

    def queued(
        self,
        queue_id: int,
        from_offset: int,
        max_entries: int = 32,
        tags_codes: Collection[int] | None = None,
    ) -> QueuePart:
        """The same, which are decoded already: there are no entries with tags codes."""
        messages = self.read(queue_id, from_offset, max_entries)
        return QueuePart(messages, max(0, from_offset) + len(messages), {})

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Where each queue begins and ends."""
        return {queue_id: (0, len(queue)) for queue_id, queue in sorted(self._queues.items())}


@attrs.frozen(eq=False)
class MemoryTopics:
    """Every topic that something was delivered to, or that was asked for."""

    _topics: dict[str, Queues] = attrs.field(factory=dict, init=False)

    def append(self, message: StoredMessage) -> StoredMessage:
        """Put a message at the end of its queue; answers it with its ordinal there."""
        queues = self._topics.setdefault(message.topic, {})
        queue = queues.setdefault(message.queue_id, [])
        queue.append(attrs.evolve(message, queue_offset=len(queue)))
        return queue[-1]

    def reader(self, name: str) -> MemoryTopic:
        """A topic's queues, also those of later deliveries."""
        return MemoryTopic(self._topics.setdefault(name, {}))


BROKER_NAME = "memory"
"""The broker name in its recall handles."""


@attrs.define(eq=False)
class _Entry:
    """One message that was scheduled, and what became of it; ``fate`` is None while it waits."""

    receipt: Receipt
    message: StoredMessage
    size_bytes: int
    first_offset: int
    fate: Cancellation | None = None
    delivered: StoredMessage | None = None

    @property
    def turn(self) -> tuple[int, int]:
        """By promise, and among equal promises by placing."""
        return self.receipt.promised_ms, self.receipt.commit_log_offset


class MemoryStore(ClosedOnExit):
    """``DelayStore`` without files: pending messages are sorted by promise and order of placing.

    ``promise`` is what it promises for a due time (to the millisecond, if not told otherwise),
    ``levels`` what ``AtLevel`` means, ``clock`` stamps what it stores.
    ``start_deliver_time_alias`` lets ``put`` take __STARTDELIVERTIME for a due time.

    >>> from message_store.base.clock import ManualClock
    >>> with MemoryStore(ManualClock(1_000)) as store:
    ...     receipt = store.schedule(Message("orders", b"cancel 42"), AfterMs(90_000))
    ...     [delivered.message.body for delivered in store.advance(receipt.promised_ms)]
    [b'cancel 42']
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        promise: PromiseRule = exact,
        levels: DelayLevels | None = None,
        start_deliver_time_alias: bool = False,
    ) -> None:
        self.clock = clock or SystemClock()
        self.levels = levels or DelayLevels.parse()
        self.companions = Companions()
        self._promise = promise
        self._alias = start_deliver_time_alias
        self._waiting = SortedKeyList(key=lambda entry: entry.turn)
        self._entries: dict[RecallHandle, list[_Entry]] = defaultdict(list)
        self._topics = MemoryTopics()
        self._log_end = 0
        self._closed = False
        self.lock = threading.RLock()

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self.lock:
            if self._closed:
                raise StoreClosedError("the store is closed")
            yield

    @property
    def live(self) -> None:
        """It has no files."""
        return None

    @takes(message=Message | StoredMessage, due=Due)
    def schedule(self, message: Message | StoredMessage, due: Due) -> Receipt:
        """Keep a message for later."""
        with self._open():
            now_ms = self.clock.now_ms()
            entry = self._entry(message, self._due_ms(due, now_ms), now_ms, self._log_end)
            self._place([entry])
            return entry.receipt

    def schedule_batch(self, batch: "MessageBatch", due_ms: "Int64s") -> BatchReceipt:
        """Keep many messages, or none when one of them cannot be kept."""
        from message_store.intake.batch import due_times

        due_ms = due_times(batch, due_ms)
        with self._open():
            return self._keep_batch(batch, due_ms, self.clock.now_ms())

    @takes(message=Message)
    def put(self, message: Message) -> Receipt:
        """Keep a message for the time that its properties ask for."""
        with self._open():
            now_ms = self.clock.now_ms()
            asked = asked_of_no_wheel(message, now_ms, start_deliver_time_alias=self._alias)
            return self.schedule(asked.message, asked.due)

    def put_batch(self, batch: "MessageBatch") -> BatchReceipt:
        """The same for many messages, all or none."""
        from message_store.columns.message_batch import MessageBatch
        from message_store.intake.asked_batch import asked_by_batch

        require_kind("batch", batch, MessageBatch)
        with self._open():
            now_ms = self.clock.now_ms()
            asked = asked_by_batch(batch, now_ms, self.levels, start_deliver_time_alias=self._alias)
            return self._keep_batch(asked.batch, asked.due_ms, now_ms)

    def _keep_batch(self, batch: "MessageBatch", due_ms: "Int64s", now_ms: int) -> BatchReceipt:
        from message_store.columns.byte_column import ByteColumn, int64s
        from message_store.intake.batch import draft_batch

        offset = self._log_end
        levels = int64s([1] * len(batch))
        checked = draft_batch(batch, system_topic=names.LEVEL_TOPIC, delay_levels=levels)
        entries = []
        for row, due, key in zip(range(len(batch)), due_ms, checked.unique_keys, strict=True):
            message = attrs.evolve(batch.message(row), unique_key=key.decode())
            entry = self._entry(message, int(due), now_ms, offset)
            entries.append(entry)
            offset += entry.size_bytes
        self._place(entries)
        receipts = [entry.receipt for entry in entries]
        return BatchReceipt(
            unique_keys=ByteColumn.of(receipt.unique_key for receipt in receipts),
            topics=batch.topic,
            due_ms=int64s([receipt.due_ms for receipt in receipts]),
            promised_ms=int64s([receipt.promised_ms for receipt in receipts]),
            commit_log_offsets=int64s([receipt.commit_log_offset for receipt in receipts]),
            broker_name=BROKER_NAME,
        )

    def _entry(
        self, message: Message | StoredMessage, due_ms: int, now_ms: int, commit_log_offset: int
    ) -> _Entry:
        promised_ms = now_ms if due_ms <= now_ms else self._promise(due_ms, now_ms)
        if isinstance(message, StoredMessage):
            record = attrs.evolve(
                message,
                properties_text=names.join_entries(kept_entries(message)),
                commit_log_offset=commit_log_offset,
                store_timestamp_ms=now_ms,
            )
            unique_key = record.unique_key or ""
        else:  # what engines refuse is refused here too
            unique_key = require_storable(message, system_topic=names.LEVEL_TOPIC, delay_level=1)
            record = _record(message, unique_key, now_ms, commit_log_offset)
        receipt = Receipt(
            unique_key, message.topic, due_ms, promised_ms, commit_log_offset, BROKER_NAME
        )
        return _Entry(receipt, record, len(encode_message(record)), commit_log_offset)

    def _due_ms(self, due: Due, now_ms: int) -> int:
        match due:
            case AtLevel(level):
                return now_ms + self.levels.delay_ms(self.levels.clamp(level))
            case AfterMs(delay_ms):
                return now_ms + delay_ms
            case AtMs(due_ms):
                return due_ms

    def _place(self, entries: list[_Entry]) -> None:
        # First what refuses a time that no handle can tell: nothing is kept then.
        handles = [RecallHandle.parse(entry.receipt.handle) for entry in entries]
        for entry, handle in zip(entries, handles, strict=True):
            self._waiting.add(entry)
            self._entries[handle].append(entry)
            self._log_end += entry.size_bytes

    @takes(now_ms=Integral)
    def advance(self, now_ms: int) -> MemoryDeliveries:
        """Move what is due at ``now_ms`` into its topic."""
        with self._open():
            stamp_ms = self.clock.now_ms()
            due: list[_Entry] = list(self._waiting.irange_key(max_key=(now_ms, self._log_end)))
            del self._waiting[: len(due)]
            return MemoryDeliveries(
                tuple(self._deliver(entry, stamp_ms) for entry in due),
                tuple(entry.receipt.promised_ms for entry in due),
            )

    def _deliver(self, entry: _Entry, stamp_ms: int) -> StoredMessage:
        message = attrs.evolve(
            entry.message, commit_log_offset=self._log_end, store_timestamp_ms=stamp_ms
        )
        self._log_end += entry.size_bytes
        entry.fate = Cancellation.ALREADY_DELIVERED
        entry.delivered = self._topics.append(message)
        return entry.delivered

    def next_due_ms(self) -> int | None:
        """The earliest promise."""
        with self._open():
            return self._waiting[0].receipt.promised_ms if self._waiting else None

    @takes(**FILTER_KINDS)
    def pending(
        self,
        *,
        topic: str | None = None,
        level: int | None = None,
        due_after_ms: int | None = None,
        due_before_ms: int | None = None,
        unique_key: str | None = None,
    ) -> Iterator[Pending]:
        """The pending messages that pass every filter, in order of due time; no level is kept."""
        first = None if due_after_ms is None else (due_after_ms, -1)
        last = None if due_before_ms is None else (due_before_ms, -1)
        with self._open():
            entries = [] if level is not None else list(self._waiting.irange_key(first, last))
        return (
            _pending(entry)
            for entry in entries
            if topic in (None, entry.receipt.topic)
            and unique_key in (None, entry.receipt.unique_key)
        )

    @takes(receipt=Receipt | str)
    def cancel(self, receipt: Receipt | str) -> Cancellation:
        """Cancel the message of a receipt, or all that a handle names."""
        with self._open():
            entries = self._named(receipt)
            waiting = [entry for entry in entries if entry.fate is None]
            for entry in waiting:
                self._cancel_entry(entry)
        return Cancellation.CANCELLED if waiting else _verdict(entries)

    def _named(self, receipt: Receipt | str) -> list[_Entry]:
        text = receipt if isinstance(receipt, str) else receipt.handle
        entries = self._entries.get(RecallHandle.parse(text), [])
        if isinstance(receipt, Receipt):
            return [
                entry
                for entry in entries
                if entry.receipt.commit_log_offset == receipt.commit_log_offset
            ]
        return entries

    def _cancel_entry(self, entry: _Entry) -> None:
        self._waiting.remove(entry)
        entry.fate = Cancellation.CANCELLED

    @takes(receipt=Receipt | str, due=Due)
    def reschedule(self, receipt: Receipt | str, due: Due) -> Receipt | Cancellation:
        """Let a pending message wait for another time. Raises SharedKeyError where several pending
        messages share what names this one.
        """
        with self._open():
            entries = self._named(receipt)
            waiting = [entry for entry in entries if entry.fate is None]
            if not waiting:
                return _verdict(entries)
            [entry, *others] = waiting
            if others:
                shared = entry.receipt
                raise SharedKeyError(len(waiting), shared.topic, shared.unique_key)
            now_ms = self.clock.now_ms()
            moved = self._entry(entry.message, self._due_ms(due, now_ms), now_ms, self._log_end)
            moved.first_offset = entry.first_offset
            self._place([moved])
            self._cancel_entry(entry)
            return moved.receipt

    @takes(unique_key=str)
    def trace(self, unique_key: str) -> list[TraceStep]:
        """What became of every message with a unique key, in order."""
        with self._open():
            found = [entry for entries in self._entries.values() for entry in entries]
            found = [entry for entry in found if entry.receipt.unique_key == unique_key]
            found.sort(key=lambda entry: entry.receipt.commit_log_offset)
            lives: dict[str, int] = {}
            steps = [step for entry in found for step in _steps(entry, lives)]
            return sorted(steps, key=lambda step: step.record.commit_log_offset)

    @takes(name=str)
    def topic(self, name: str) -> MemoryTopic:
        """A topic's queues, for reading."""
        with self._open():
            return self._topics.reader(name)

    def check(self) -> list[Finding]:
        """Nothing to find: what has no files has no damage."""
        with self._open():
            return []

    def flush(self) -> None:
        """Come back at once: nothing here survives a loss of power."""
        with self._open():
            pass

    def close(self) -> None:
        """Take no more calls; closing twice is fine."""
        with self.lock:
            self._closed = True
            self.companions.let_go()


def _verdict(entries: list[_Entry]) -> Cancellation:
    """What became of messages that wait no more."""
    if not entries:
        return Cancellation.NEVER_EXISTED
    delivered = any(entry.fate is Cancellation.ALREADY_DELIVERED for entry in entries)
    return Cancellation.ALREADY_DELIVERED if delivered else Cancellation.CANCELLED


def _record(
    message: Message, unique_key: str, now_ms: int, commit_log_offset: int
) -> StoredMessage:
    """The record that a consumer will see, its place in the topic still open."""
    own = {
        names.KEYS: " ".join(message.keys),
        names.UNIQUE_KEY: unique_key,
        names.TAGS: message.tags or "",
    }
    entries = [*message.properties.items(), *((k, v) for k, v in own.items() if v)]
    return StoredMessage(
        topic=message.topic,
        body=message.body,
        body_crc=body_crc(message.body),
        properties_text=names.encode_properties(entries),
        queue_id=message.queue_id,
        queue_offset=0,
        commit_log_offset=commit_log_offset,
        born_timestamp_ms=now_ms,
        born_host=LOCAL_HOST,
        store_timestamp_ms=now_ms,
        store_host=LOCAL_HOST,
        flag=message.flag,
        magic=MAGIC_V1 if len(message.topic.encode()) <= TOPIC_MAX_CHARS_V1 else MAGIC_V2,
    )


def _steps(entry: _Entry, lives: dict[str, int]) -> Iterator[TraceStep]:
    """The steps of one entry; ``lives`` knows the life of each delivered message by its id."""
    message, topic = entry.message, entry.receipt.topic
    life = lives.get(message.properties.get(names.ORIGIN_MESSAGE_ID, ""), entry.first_offset)
    event = Event.SCHEDULED
    if topic.startswith(names.RETRY_PREFIX):
        event = Event.RETRIED
    elif topic.startswith(names.DEAD_LETTER_PREFIX):
        event = Event.REJECTED
    elif entry.first_offset != entry.receipt.commit_log_offset:
        event = Event.RESCHEDULED
    yield TraceStep(event, message, life)
    if entry.fate is Cancellation.CANCELLED:
        yield TraceStep(Event.CANCELLED, message, life)
    if entry.delivered is not None:
        lives[entry.delivered.offset_message_id] = life
        is_dead = event is Event.REJECTED
        yield TraceStep(Event.DEAD if is_dead else Event.DELIVERED, entry.delivered, life)


def _pending(entry: _Entry) -> Pending:
    return Pending(
        unique_key=entry.receipt.unique_key,
        topic=entry.message.topic,
        queue_id=entry.message.queue_id,
        tags=entry.message.tags,
        keys=entry.message.keys,
        level=None,
        due_ms=entry.receipt.promised_ms,
        size_bytes=entry.size_bytes,
        commit_log_offset=entry.receipt.commit_log_offset,
    )
