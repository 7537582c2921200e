# SPDX-License-Identifier: Apache-2.0
"""``WheelStore``: messages for any time, on the files of a broker's timer wheel.

Scheduling stores a record of ``rmq_sys_wheel_timer`` and its queue entry, no more. ``advance``
places in bulk what the queue holds, takes the slots that are over, delivers, and sends round again
what is farther away than the wheel looks. A stock broker opens what this leaves and goes on with
it, and the other way about (docs/FORMAT.md, timer wheel).
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from message_store.byte_column import Int64s, int64s
from message_store.clock import Clock
from message_store.consume_queue import QUEUE_UNIT
from message_store.delay_levels import DelayLevels
from message_store.delay_store import (
    AfterMs,
    AtLevel,
    AtMs,
    BatchReceipt,
    Cancellation,
    Due,
    Finding,
    Pending,
    Receipt,
)
from message_store.dialect import Dialect
from message_store.errors import TargetError, UnsupportedDelayError
from message_store.live_store import LiveStore
from message_store.live_topics import LiveTopic
from message_store.log_deliveries import LogDeliveries
from message_store.message import Message
from message_store.message_batch import MessageBatch
from message_store.promise_rules import to_slot_end
from message_store.properties import TIMER_TOPIC
from message_store.recall_handle import RecallHandle
from message_store.scheduled_batch import draft_batch
from message_store.scheduled_records import RecordForm, draft
from message_store.store_settings import StoreSettings
from message_store.waiting_topics import WaitingTopics
from timer_wheel.live_timers import LiveTimers
from timer_wheel.recall import RecallMarks, Search, Target, marker_for, pending_markers
from timer_wheel.timer_due import overdue_out_ms
from timer_wheel.timer_properties import asked_by, require_kept
from timer_wheel.turning import Turning
from timer_wheel.waiting import Filter, next_due_ms, waiting
from timer_wheel.wheel_check import check_wheel
from timer_wheel.wheel_math import out_ms
from timer_wheel.wheel_opening import open_timers
from timer_wheel.wheel_settings import WheelSettings

_DEFAULTS = StoreSettings()


class WheelStore:
    """``DelayStore`` on a timer wheel. Made by ``open``.

    A message is promised for the end of the slot that holds its time, at most a slot's width later.
    ``levels`` are what ``AtLevel`` means, ``settings`` what was set about the wheel.

    Limitations: one thread at a time works, the others wait. A delete marker names a topic, a slot
    and a key, so that ``cancel`` takes back all messages that share them, also by a receipt.
    """

    def __init__(self, store: LiveStore, timers: LiveTimers, settings: WheelSettings) -> None:
        self.settings = settings
        self.levels = store.levels
        self._store = store
        self._timers = timers
        self._clock = store.clock
        self._form = RecordForm(
            closes_properties=store.dialect.closes_properties,
            store_host=store.settings.store_host,
        )
        self._turning = Turning(store, timers)
        self._topics = WaitingTopics(store)
        self._marks: RecallMarks | None = None
        self._next_due: int | None = None
        self._knows_next_due = False
        self._promise = to_slot_end(
            settings.precision_ms,
            max_delay_ms=settings.max_delay_ms,
            beyond_max=settings.beyond_max,
        )
        self._group = store.group(self._flush)
        self._is_closed = False
        self._dice = random.Random()

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        clock: Clock | None = None,
        precision_ms: int | None = None,
        levels: DelayLevels | None = None,
        dialect: Dialect = Dialect.ROCKETMQ_5_5,
        settings: StoreSettings = _DEFAULTS,
        **wheel: Any,
    ) -> "WheelStore":
        """Open the store at ``path``, and make it when nothing is there.

        ``precision_ms`` is that of the wheel that is there, or 1000, when it is None. ``wheel``
        takes what ``WheelSettings`` has. Raises StoreLockedError when somebody has it open,
        SourceError for one that cannot be written to, or whose wheel has another precision.
        """
        store = LiveStore.open(
            path, clock=clock, dialect=dialect, settings=settings, level_table=levels
        )
        try:
            timers, chosen = open_timers(store, precision_ms, wheel)
            return cls(store, timers, chosen)
        except BaseException:
            store.abandon()
            raise

    @property
    def live(self) -> LiveStore:
        """The log and the queues that it stands on."""
        return self._store

    @contextmanager
    def _use(self) -> Iterator[None]:
        with self._store.lock:
            self._store.require_open()
            yield

    # --- scheduling -------------------------------------------------------------------------------

    def schedule(self, message: Message, due: Due) -> Receipt:
        """Store a message for later."""
        with self._use():
            now_ms = self._clock.now_ms()
            return self._schedule(message, self._due_ms(due, now_ms), now_ms, ())

    def put(self, message: Message) -> Receipt:
        """Store a message for the time that its own properties say, as a broker's clients do:
        DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, and as they say it.

        Raises BadFieldError for a property that cannot be read, UnsupportedDelayError for a delay
        beyond the limit.
        """
        with self._use():
            now_ms = self._clock.now_ms()
            alias = self.settings.start_deliver_time_alias
            asked = asked_by(message, now_ms, start_deliver_time_alias=alias)
            due_ms = self._due_ms(asked.due, now_ms)
            receipt = self._schedule(asked.message, due_ms, now_ms, asked.kept)
            self._marks = None if asked.kept else self._marks
            return receipt

    def _due_ms(self, due: Due, now_ms: int) -> int:
        match due:
            case AtLevel(level):
                return now_ms + self.levels.delay_ms(self.levels.clamp(level))
            case AfterMs(delay_ms):
                return now_ms + delay_ms
            case AtMs(due_ms):
                return due_ms

    def _schedule(
        self, message: Message, due_ms: int, now_ms: int, extra: tuple[tuple[str, str], ...]
    ) -> Receipt:
        promised_ms = now_ms if due_ms <= now_ms else self._promise(due_ms, now_ms)
        if promised_ms == now_ms:
            out = self._overdue_out_ms(now_ms)
        else:
            require_kept(due_ms)
            out = promised_ms - self.settings.precision_ms
        self._refuse_congestion(out)
        record = draft(message, system_topic=TIMER_TOPIC, out_ms=out, extra=extra, form=self._form)
        offset = self._append(record, now_ms)
        self._topics.remember(message.topic, message.queue_id)
        broker_name = self._store.settings.broker_name
        handle = RecallHandle(message.topic, broker_name, promised_ms, record.unique_key).text()
        return Receipt(record.unique_key, message.topic, due_ms, promised_ms, offset, handle)

    def _overdue_out_ms(self, now_ms: int) -> int:
        return overdue_out_ms(now_ms, self._timers.wheel.hand_ms, self.settings.precision_ms)

    def _append(self, record: Any, now_ms: int) -> int:
        queue, log = self._timers.queue, self._store.log
        queue_offset, size_bytes = queue.max_offset, record.size_bytes
        offset = log.append(
            size_bytes, lambda position: record.record(0, queue_offset, position, now_ms)
        )
        try:
            queue.append_one(offset, size_bytes, record.tags_code)
        except TargetError:
            log.break_off()  # it holds what its queue does not know
            raise
        self._knows_next_due = False
        return offset

    def _refuse_congestion(self, out: int) -> None:
        """Refuse some of what goes to a slot that holds much, as a broker does: fewer, the fuller
        it is, until it holds twice its limit.
        """
        limit = self.settings.congest_num_each_slot
        held = self._timers.wheel.unit_count(out - out % self.settings.precision_ms)
        if held <= limit:
            return
        odds = 1000 * (held - limit) / (limit + 0.1)
        if held >= 2 * limit or self._dice.randrange(1000) > odds:
            raise UnsupportedDelayError(f"its slot holds {held:,} messages, the limit is {limit:,}")

    def schedule_batch(self, batch: MessageBatch, due_ms: Int64s) -> BatchReceipt:
        """Store many messages, or none when one of them cannot be kept."""
        due_ms = int64s(due_ms)
        if due_ms.shape != (len(batch),):
            raise ValueError(f"{len(batch)} messages and due times of the shape {due_ms.shape}")
        with self._use():
            now_ms = self._clock.now_ms()
            promised_ms, outs = self._promises(due_ms, now_ms)
            for out in np.unique(outs).tolist() if self._is_limited else ():
                self._refuse_congestion(out)
            records = draft_batch(batch, system_topic=TIMER_TOPIC, out_ms=outs, form=self._form)
            offsets = self._append_batch(records, now_ms)
            self._topics.remember_all(batch)
        return BatchReceipt(
            unique_keys=records.unique_keys,
            topics=batch.topic,
            due_ms=due_ms,
            promised_ms=promised_ms,
            commit_log_offsets=offsets,
            broker_name=self._store.settings.broker_name,
        )

    @property
    def _is_limited(self) -> bool:
        return self.settings.congest_num_each_slot < 2**31 - 1

    def _promises(self, due_ms: Int64s, now_ms: int) -> tuple[Int64s, Int64s]:
        """The promise of each due time, and its out time."""
        settings = self.settings
        at_once = due_ms <= now_ms
        if settings.max_delay_ms is not None:
            too_long = np.flatnonzero(due_ms - now_ms > settings.max_delay_ms)
            if len(too_long) and settings.beyond_max == "refuse":
                self._promise(int(due_ms[too_long[0]]), now_ms)  # raises
            at_once[too_long] = True
        if len(due_ms):
            require_kept(int(due_ms[~at_once].max(initial=0)))
        outs = out_ms(np.maximum(due_ms, 1), settings.precision_ms)
        promised_ms = np.where(at_once, now_ms, outs + settings.precision_ms)
        return promised_ms, np.where(at_once, self._overdue_out_ms(now_ms), outs)

    def _append_batch(self, records: Any, now_ms: int) -> Int64s:
        queue, count = self._timers.queue, len(records)
        queue_offsets = queue.max_offset + np.arange(count, dtype=np.int64)
        fill = records.bind(np.zeros(count, np.int64), queue_offsets, now_ms)
        offsets = self._store.log.append_rows(records.sizes, fill)
        units = np.empty(count, QUEUE_UNIT.dtype)
        units["commit_log_offset"] = offsets
        units["size_bytes"] = records.sizes
        units["tags_code"] = records.tags_codes
        try:
            queue.append(units)
        except TargetError:
            self._store.log.break_off()
            raise
        self._knows_next_due = False
        return offsets

    # --- time -------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> LogDeliveries:
        """Move everything that is due at ``now_ms`` into its topic."""
        with self._use():
            self._knows_next_due = False
            log_end = self._store.log.end
            try:
                deliveries = self._turning.turn(now_ms, self._recall_marks())
            except TargetError:
                if self._store.log.end != log_end:
                    self._store.log.break_off()  # what was delivered is not known to be
                raise
            self._clean(now_ms)
            return deliveries

    def _clean(self, now_ms: int) -> None:
        """Take away old files; what waits keeps its record's."""
        log = self._store.log
        retention_ms = self._store.settings.retention_ms
        if (
            len(log.segments.starts) < 2
            or log.store_time_ms(log.min_offset) + retention_ms > now_ms
        ):
            return
        if self._store.clean(now_ms, self._timers.keep_from()):
            self._timers.log.delete_expired(log.min_offset)

    def next_due_ms(self) -> int | None:
        """The earliest time at which ``advance`` would deliver something."""
        with self._use():
            if not self._knows_next_due:
                self._timers.settle(self._clock.now_ms())
                self._next_due = next_due_ms(self._timers, self._recall_marks())
                self._knows_next_due = True
            return self._next_due

    def _recall_marks(self) -> RecallMarks:
        """The delete markers, looked for when they are first needed."""
        if self._marks is None:
            self._marks = RecallMarks()
            for facts in pending_markers(self._timers):
                self._marks.add(facts)
        return self._marks

    # --- what waits -------------------------------------------------------------------------------

    def pending(
        self,
        *,
        topic: str | None = None,
        level: int | None = None,
        due_after_ms: int | None = None,
        due_before_ms: int | None = None,
        unique_key: str | None = None,
    ) -> Iterator[Pending]:
        """What waits and passes every filter, slot after slot; no level is kept."""
        with self._use():
            self._timers.settle(self._clock.now_ms())
            wanted = Filter(topic, due_after_ms, due_before_ms, unique_key)
            marks = self._recall_marks()
        return iter(()) if level is not None else waiting(self._timers, marks, wanted)

    def cancel(self, receipt: Receipt | str) -> Cancellation:
        """Take back the messages that a receipt or a handle names."""
        text = receipt if isinstance(receipt, str) else receipt.handle
        handle = RecallHandle.parse(text)
        with self._use():
            if handle.broker_name != self._store.settings.broker_name:
                return Cancellation.NEVER_EXISTED
            self._timers.settle(self._clock.now_ms())
            search = Search(self._timers, handle)
            target = search.waiting()
            if target is None:
                return search.past()
            if target.recall_key not in self._recall_marks():
                self._recall(target)
            return Cancellation.CANCELLED

    def _recall(self, target: Target) -> None:
        by_topic = self._store.dialect.topic_in_delete_key
        marker, names_target = marker_for(target, topic_in_delete_key=by_topic)
        record = draft(
            marker,
            system_topic=TIMER_TOPIC,
            out_ms=target.out_ms,
            extra=(names_target,),
            form=self._form,
        )
        self._append(record, self._clock.now_ms())
        self._recall_marks().remember(target.recall_key, target.out_ms)

    def topic(self, name: str) -> LiveTopic:
        """A topic's queues, for reading."""
        with self._use():
            return self._store.topic(name)

    # --- health and the end -----------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Every invariant that does not hold, worst first."""
        with self._use():
            return check_wheel(self._timers, self._turning.losses)

    def flush(self) -> None:
        """Come back when everything stored so far survives a loss of power."""
        self._store.require_open()
        self._group.run()

    def _flush(self) -> None:
        """Log, queues, timer log, wheel, checkpoints, in this order."""
        timers, store = self._timers, self._store
        with self._use():
            store.log.require_unbroken()
            own = timers.state_to_flush()
        store.sync_log()
        store.sync_queues()
        with self._use():
            timers.files.write_wheel(timers.wheel, timers.log.end)
            position = timers.log.end
            unsynced = timers.log.segments.begin_sync()
        unsynced.finish()
        with self._use():
            timers.files.sync_wheel()
            timers.files.sync_checkpoint(position, own)
            timers.write_metrics()
        store.write_topics()
        store.write_checkpoint(durably=True)

    def close(self) -> None:
        """Place what can be placed, flush, and let go of the files; closing twice is fine."""
        with self._store.lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if not self._store.log.is_broken:
                    self._timers.place_all(self._clock.now_ms())
                    self._flush()
                self._store.close()
            finally:
                self._store.abandon()
                self._let_go()

    def abandon(self) -> None:
        """Let go of everything without a last word, as a kill would."""
        with self._store.lock:
            self._is_closed = True
            self._store.abandon()
            self._let_go()

    def _let_go(self) -> None:
        self._timers.log.segments.close()
        self._timers.files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
