# SPDX-License-Identifier: Apache-2.0
"""``ReferenceLevelStore``: ScheduleMessageService on a store directory, as an engine.

It binds the reference to the same log and queues that ``LevelStore`` works on. It is for tests,
races and teaching. It keeps a broker's rules: a kill repeats deliveries, and an entry that is not
due holds back all entries behind it. Limitations: no cancel, because RocketMQ has none for
levels; no retention; ``check`` finds nothing.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from numbers import Integral
from pathlib import Path
from typing import NoReturn, Self, overload

import attrs
import numpy as np

from legacy_levels.delay_offsets import DelayOffsets, OffsetsWriter, read_delay_offsets
from legacy_levels.engine.cursor import NEVER_MS
from legacy_levels.engine.rules import AsyncRules, LevelTimings
from legacy_levels.engine.store import dialect_of
from legacy_levels.engine.waiting_records import pending_in_level
from legacy_levels.reference.protocol import CqUnit, MessageStoreConfig
from legacy_levels.schedule_message_service import ScheduleMessageService
from message_store.base.clock import Clock
from message_store.base.errors import (
    BadFieldError,
    FormatError,
    SourceError,
    TargetError,
    UnsupportedStoreError,
)
from message_store.base.kinds import takes
from message_store.columns.byte_column import ByteColumn, Int64s, int64s
from message_store.columns.message_batch import MessageBatch
from message_store.engine.engine import Engine, made_or_let_go
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.message import Message, StoredMessage
from message_store.format.message_codec import encode_message
from message_store.format.message_rules import RETRY_TOPIC_MAX_BYTES
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import MAGIC_V2, TOPIC_MAX_CHARS_V1
from message_store.intake.batch import draft_batch
from message_store.intake.records import RecordForm
from message_store.intake.rescheduling import refuse_unfinished
from message_store.intake.store_intake import LiveIntake
from message_store.interface.delay_store import (
    AfterMs,
    AtLevel,
    AtMs,
    BatchReceipt,
    Due,
    Finding,
    Pending,
    Receipt,
)
from message_store.interface.promise_rules import to_level
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.deliveries import LogDeliveries
from message_store.redelivery.record import (
    FROM_LEVEL,
    redelivered_properties,
    tags_code_of,
    topic_problem,
)
from message_store.writing.queue import LiveQueue
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore

_UNITS_AT_ONCE = 256
_SETTINGS = StoreSettings()
_TIMINGS = LevelTimings()


@attrs.frozen
class Looks:
    """What the service has looked at.

    ``positions`` are the queue offsets at which each level was looked at last; ``due_ms`` are due
    times of entries that were not delivered, by the commit log offsets of their records.
    """

    positions: dict[int, int] = attrs.field(factory=dict)
    due_ms: dict[int, int] = attrs.field(factory=dict)

    def at_unit(self, level: int, queue_offset: int, unit: CqUnit) -> None:
        """An entry is looked at."""
        self.positions[level] = queue_offset
        self.due_ms[unit.pos] = unit.tags_code


class FileUnits(Sequence[CqUnit]):
    """The entries of a level queue from an offset to the end of its file, read piece by piece.

    ``looks`` is told of each that is looked at, and of the end once all were.
    """

    def __init__(self, queue: LiveQueue, first: int, looks: Looks) -> None:
        units_a_file = queue.segments.file_bytes // QUEUE_UNIT.size
        file_end = first - first % units_a_file + units_a_file
        is_inside = queue.min_offset <= first < queue.max_offset
        self._queue, self._first = queue, first
        self._stop = min(file_end, queue.max_offset) if is_inside else first
        self._looks = looks

    def __len__(self) -> int:
        return self._stop - self._first

    @overload
    def __getitem__(self, index: int) -> CqUnit: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CqUnit]: ...
    def __getitem__(self, index: int | slice) -> CqUnit | Sequence[CqUnit]:
        return [*self][index]

    def __iter__(self) -> Iterator[CqUnit]:
        for start in range(self._first, self._stop, _UNITS_AT_ONCE):
            units = self._queue.units(start, min(start + _UNITS_AT_ONCE, self._stop))
            for offset, unit in enumerate(map(CqUnit._make, units.tolist()), start):
                self._looks.at_unit(self._queue.queue_id + 1, offset, unit)
                yield unit
        self._looks.positions[self._queue.queue_id + 1] = self._stop


@attrs.frozen
class LevelQueue:
    """``ConsumeQueue`` over a queue that is open for writing."""

    queue: LiveQueue
    looks: Looks

    @property
    def min_offset(self) -> int:
        """The oldest entry whose record the log still has."""
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """One past the newest entry."""
        return self.queue.max_offset

    def get_index_buffer(self, offset: int) -> Sequence[CqUnit]:
        """The entries from ``offset`` to the end of its file."""
        return FileUnits(self.queue, offset, self.looks)


class LiveBroker:
    """``BrokerStore`` over a store that is open for writing; the store's lock is the caller's.

    ``deliveries`` are offset, size and due time of what was put since they were taken, ``refused``
    is why the disk refused a message, by its first record, that it has not taken since.
    """

    def __init__(self, live: LiveStore) -> None:
        self.live = live
        self.looks = Looks()
        self.deliveries: list[tuple[int, int, int]] = []
        self.refused: dict[int, TargetError] = {}
        self._now_ms = live.clock.now_ms()
        self._nano_time_ms = 0
        self._writer: OffsetsWriter | None = None

    def set_time(self, now_ms: int) -> None:
        """Let the broker's clock say so; what nobody sets goes on only when this goes forward."""
        self._nano_time_ms += max(0, now_ms - self._now_ms)
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The time of the call that is running."""
        return self._now_ms

    def nano_time_ms(self) -> int:
        """How much time went by since the opening."""
        return self._nano_time_ms

    def find_consume_queue(self, delay_level: int) -> LevelQueue:
        """The queue of a level."""
        return LevelQueue(self.live.queue(LEVEL_TOPIC, delay_level - 1), self.looks)

    def look_message_by_offset(self, pos: int, size: int) -> StoredMessage | None:
        """The record there, if it is whole."""
        try:
            return self.live.log.record(pos, size)
        except FormatError:
            return None

    def async_put_message(self, message: StoredMessage) -> Future[bool]:
        """Append at once: the answer is known on return. Raises BadFieldError for a bad topic."""
        answer: Future[bool] = Future()
        if problem := topic_problem(message.topic, FROM_LEVEL):
            raise BadFieldError(problem, found=message.topic[:64])
        topic_bytes = len(message.topic.encode())
        is_long = topic_bytes > TOPIC_MAX_CHARS_V1
        if topic_bytes > RETRY_TOPIC_MAX_BYTES or (
            is_long and not self.live.dialect.knows_long_topics
        ):
            answer.set_result(False)  # MESSAGE_ILLEGAL
            return answer
        try:
            self._append(attrs.evolve(message, magic=MAGIC_V2) if is_long else message)
        except TargetError as error:
            self.refused[message.commit_log_offset] = error
            answer.set_exception(error)
        else:
            self.refused.pop(message.commit_log_offset, None)
            answer.set_result(True)
        return answer

    def _append(self, message: StoredMessage) -> None:
        """Log first, then the queue of its topic. Raises TargetError."""
        live = self.live
        queue = live.queue(message.topic, message.queue_id)
        draft = attrs.evolve(
            message,
            queue_offset=queue.max_offset,
            store_timestamp_ms=max(live.clock.now_ms(), self._now_ms),
            properties_text=redelivered_properties(message.properties_text, FROM_LEVEL),
        )
        size_bytes = len(encode_message(draft))
        with live.all_or_broken():
            offset = live.log.append(
                size_bytes,
                lambda position: encode_message(attrs.evolve(draft, commit_log_offset=position)),
            )
            queue.append_one(offset, size_bytes, tags_code_of(draft))
        live.remember_topic(message.topic, message.queue_id)
        due_ms = self.looks.due_ms.pop(message.commit_log_offset, self._now_ms)
        self.deliveries.append((offset, size_bytes, due_ms))

    def take_deliveries(self) -> LogDeliveries:
        """What was put since the last call."""
        columns = np.array(self.deliveries, np.int64).reshape(-1, 3).T
        self.deliveries = []
        return LogDeliveries(self.live, *columns)

    def load_config(self) -> DelayOffsets | None:
        """The offsets of the files, as a broker chooses between them."""
        root = self.live.root.path
        try:
            found = read_delay_offsets(root)
        except SourceError:
            return None
        self._writer = OffsetsWriter(root, self.live.dialect, found, self._now_ms)
        return found

    def persist_config(self, text: bytes) -> None:
        """Write the offsets, durably, behind the deliveries they name. Raises TargetError."""
        if self._writer is not None and text != self._writer.text:
            self.live.sync_log()
            self._writer.write(text, is_durable=True)


class ReferenceIntake:
    """Stores messages one by one; one that is due at once waits in the shortest level."""

    def __init__(self, live: LiveStore) -> None:
        self._live = live
        self._rule = to_level(live.levels)
        form = RecordForm.of(live.dialect, live.settings)
        form = attrs.evolve(form, born_host=live.settings.store_host)
        self._intake = LiveIntake(live, LEVEL_TOPIC, form)

    def schedule(self, message: Message | StoredMessage, due: Due, now_ms: int) -> Receipt:
        """Store a message for later."""
        table = self._live.levels
        match due:
            case AtLevel():
                level, delay_ms = table.asked(due.level)
                due_ms = now_ms + delay_ms
            case AfterMs() | AtMs():
                due_ms = due.due_ms if isinstance(due, AtMs) else now_ms + due.delay_ms
                if due_ms > now_ms:
                    delay_ms = self._rule(due_ms, now_ms) - now_ms
                    level = table.smallest_not_shorter(delay_ms) or table.max_level
                else:
                    level, delay_ms = table.shortest_level, 0
        queue = self._live.queue(LEVEL_TOPIC, level - 1)
        promised_ms = now_ms + max(0, delay_ms)
        return self._intake.store(message, queue, due_ms, promised_ms, now_ms, level, None)

    def schedule_batch(self, batch: MessageBatch, due_ms: Int64s, now_ms: int) -> BatchReceipt:
        """Store many, or none when one of them cannot be stored."""
        for due in due_ms.tolist():
            if due > now_ms:
                self._rule(due, now_ms)
        draft = draft_batch(batch, system_topic=LEVEL_TOPIC, delay_levels=int64s([1] * len(batch)))
        self._intake.require_room(draft.sizes)
        receipts = [
            self.schedule(batch.message(row), AtMs(max(0, due)), now_ms)
            for row, due in enumerate(due_ms.tolist())
        ]
        return BatchReceipt(
            unique_keys=ByteColumn.of(receipt.unique_key for receipt in receipts),
            topics=batch.topic,
            due_ms=due_ms,
            promised_ms=int64s([receipt.promised_ms for receipt in receipts]),
            commit_log_offsets=int64s([receipt.commit_log_offset for receipt in receipts]),
            broker_name=self._live.settings.broker_name,
        )


class ReferenceLevelStore(Engine):
    """``DelayStore`` over ScheduleMessageService, one message at a time. Made by ``open``.

    ``service`` is the reference, ``live`` the store on which it works, for those who step through.
    """

    def __init__(self, live: LiveStore, config: MessageStoreConfig) -> None:
        self.live = live
        self._broker = LiveBroker(live)
        self.service = ScheduleMessageService(self._broker, config)
        self._intake = ReferenceIntake(live)
        self._alias = False
        self._group = live.group(self._flush)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        clock: Clock | None = None,
        levels: DelayLevels | None = None,
        dialect: Dialect | None = None,
        settings: StoreSettings = _SETTINGS,
        timings: LevelTimings = _TIMINGS,
        async_rules: AsyncRules | None = None,
    ) -> Self:
        """Open the store at ``path``, and make it when nothing is there.

        ``timings`` say how often levels are looked at: by default at every ``advance``, with
        ``BROKER_TIMINGS`` as brokers do. ``async_rules`` turns asynchronous delivery on. Raises as
        ``LevelStore.open``, and SourceError where a broker would not start on delayOffset.json.
        """
        live = LiveStore.open(
            path,
            clock=clock,
            dialect=dialect or dialect_of(StoreRoot(path)),
            settings=settings,
            level_table=levels,
            before_recovery=refuse_unfinished,
        )
        limits = async_rules or AsyncRules()
        config = MessageStoreConfig(
            version=live.dialect,
            message_delay_level=live.levels.text(),
            flush_delay_offset_interval=timings.persist_offsets_ms,
            enable_schedule_async_deliver=async_rules is not None,
            schedule_async_deliver_max_pending_limit=limits.max_pending,
            schedule_async_deliver_max_resend_num2_blocked=limits.blocked_after,
            first_delay_time=timings.first_run_ms,
            delay_for_a_while=timings.poll_ms,
        )
        return made_or_let_go(live, LEVEL_TOPIC, lambda: cls._started(live, config))

    @classmethod
    def _started(cls, live: LiveStore, config: MessageStoreConfig) -> Self:
        """The engine of an open store. Raises SourceError."""
        store = cls(live, config)
        if not store.service.load():
            path = live.root.path
            raise SourceError(f"{path}: a broker does not start on its delayOffset.json")
        store.service.start()
        return store

    # --- out --------------------------------------------------------------------------------------

    @takes(now_ms=Integral)
    def advance(self, now_ms: int) -> LogDeliveries:
        """Let every task run whose time has come, until none gets further. Raises TargetError where
        the disk refuses a message, unless deliveries are asynchronous: those try again.
        """
        with self.live.reading():
            self.live.log.require_unbroken()
            self._broker.set_time(now_ms)
            before: dict[int, int] | None = None
            while before != self._broker.looks.positions:
                before = dict(self._broker.looks.positions)
                self.service.run_due_tasks()
            refused = next(iter(self._broker.refused.values()), None)
            if refused is not None and not self.service.config.enable_schedule_async_deliver:
                raise refused  # what was delivered beside it is told by the next call
            return self._broker.take_deliveries()

    def next_due_ms(self) -> int | None:
        """When the first level is to be looked at that has something due then."""
        with self.live.reading():
            now_ms = max(self._broker.now_ms(), self.live.clock.now_ms())
            due_ms = min(self._head_ms(level) for level in self.service.delay_level_table)
            if due_ms == NEVER_MS:
                return None
            waits_ms = [at_ms - self._broker.nano_time_ms() for at_ms, _ in self.service.tasks]
            earliest_ms = self._broker.now_ms() + max(0, min(waits_ms, default=0))
            return max(earliest_ms, now_ms if due_ms <= now_ms else due_ms)

    def _head_ms(self, level: int) -> int:
        """When the entry is due at which a level goes on; never at the end of its queue."""
        queue, now_ms = self.live.queue(LEVEL_TOPIC, level - 1), self.live.clock.now_ms()
        for unit in queue.units(self._position(level), self._position(level) + 1):
            due_ms = int(unit["tags_code"])
            return due_ms if due_ms <= now_ms + self.service.delay_level_table[level] else now_ms
        return NEVER_MS

    def _position(self, level: int) -> int:
        queue = self.live.queue(LEVEL_TOPIC, level - 1)
        stored = self.service.offset_table.get(level, 0)
        return max(self._broker.looks.positions.get(level, stored), queue.min_offset)

    # --- looking ----------------------------------------------------------------------------------

    def _waiting(self, wanted: WaitingFilter) -> Iterator[Pending]:
        """Level by level, all at once."""
        found = []
        for level in self.service.delay_level_table:
            if wanted.level not in (None, level):
                continue
            queue = self.live.queue(LEVEL_TOPIC, level - 1)
            for pos, size, due_ms in queue.units(self._position(level), queue.max_offset).tolist():
                message = self._broker.look_message_by_offset(pos, size)
                if message is not None and wanted.in_time(due_ms) and wanted.passes(message):
                    found.append(pending_in_level(message, level, due_ms, size))
        return iter(found)

    def cancel(self, receipt: Receipt | str) -> NoReturn:
        """RocketMQ cannot cancel in delay levels. Raises UnsupportedStoreError."""
        raise UnsupportedStoreError("RocketMQ cannot cancel in delay levels; LevelStore can")

    def reschedule(self, receipt: Receipt | str, due: Due) -> NoReturn:
        """RocketMQ cannot reschedule a message. Raises UnsupportedStoreError."""
        raise UnsupportedStoreError("RocketMQ cannot reschedule a message; LevelStore can")

    def _findings(self) -> list[Finding]:
        """Nothing: brokers do not look."""
        return []

    _undelivered = _findings

    # --- durability and the end -------------------------------------------------------------------

    def flush(self) -> None:
        """Log, queues and offsets, durably and in this order."""
        self.live.flush_all_next()  # nothing in the log tells the offsets
        super().flush()

    def _flush(self) -> None:
        self.live.flush()
        with self.live.reading():
            self.service.persist()

    def close(self) -> None:
        """Flush, and let go of the files; closing twice is fine."""
        with self.live.lock:
            try:
                if not self.live.is_closed and not self.live.log.is_broken:
                    self.live.flush()
                    self.service.shutdown()
                self.live.close()
            finally:
                self.live.abandon()
