# SPDX-License-Identifier: Apache-2.0
"""How messages come into a wheel: as records of ``rmq_sys_wheel_timer`` and entries of its queue,
no more. Placing comes later, in bulk.
"""

import random

import numpy as np

from message_store.byte_column import Int64s
from message_store.consume_queue import QUEUE_UNIT
from message_store.delay_store import AfterMs, AtLevel, AtMs, BatchReceipt, Due, Receipt
from message_store.errors import UnsupportedDelayError
from message_store.live_store import LiveStore
from message_store.message import Message
from message_store.message_batch import MessageBatch
from message_store.promise_rules import to_slot_end
from message_store.properties import TIMER_TOPIC
from message_store.scheduled_batch import BatchDraft, draft_batch
from message_store.scheduled_records import Draft, RecordForm, draft
from message_store.waiting_topics import WaitingTopics
from timer_wheel.live_timers import LiveTimers
from timer_wheel.recall import Target, marker_for
from timer_wheel.timer_due import overdue_out_ms
from timer_wheel.timer_properties import require_kept
from timer_wheel.wheel_math import out_ms
from timer_wheel.wheel_settings import WheelSettings

_NO_LIMIT = 2**31 - 1


class WheelIntake:
    """Stores messages and delete markers for one wheel; whoever calls holds the store's lock."""

    def __init__(self, store: LiveStore, timers: LiveTimers, settings: WheelSettings) -> None:
        self.settings = settings
        self._store = store
        self._timers = timers
        self._levels = store.levels
        self._broker_name = store.settings.broker_name
        self._form = RecordForm(
            closes_properties=store.dialect.closes_properties,
            store_host=store.settings.store_host,
        )
        self._promise = to_slot_end(
            settings.precision_ms,
            max_delay_ms=settings.max_delay_ms,
            beyond_max=settings.beyond_max,
        )
        self._is_limited = settings.congest_num_each_slot < _NO_LIMIT
        self._topics = WaitingTopics(store)
        self._dice = random.Random()

    def due_ms(self, due: Due, now_ms: int) -> int:
        """The time that is asked for."""
        match due:  # by class alone, the commonest first: patterns with fields cost twice as much
            case AtMs():
                return due.due_ms
            case AfterMs():
                return now_ms + due.delay_ms
            case AtLevel():
                return now_ms + self._levels.delay_ms(self._levels.clamp(due.level))

    # --- one at a time ----------------------------------------------------------------------------

    def schedule(
        self, message: Message, due_ms: int, now_ms: int, extra: tuple[tuple[str, str], ...] = ()
    ) -> Receipt:
        """Store a message for later; ``extra`` are properties that its record gets as well."""
        promised_ms = now_ms if due_ms <= now_ms else self._promise(due_ms, now_ms)
        if promised_ms == now_ms:
            out = self._overdue_out_ms(now_ms)
        else:
            require_kept(due_ms)
            out = promised_ms - self.settings.precision_ms
        if self._is_limited:
            self._refuse_congestion(out, now_ms)
        record = draft(message, system_topic=TIMER_TOPIC, out_ms=out, extra=extra, form=self._form)
        offset = self._append(record, now_ms)
        self._topics.remember(message.topic, message.queue_id)
        key = record.unique_key
        return Receipt(key, message.topic, due_ms, promised_ms, offset, self._broker_name)

    def recall(self, target: Target, now_ms: int) -> None:
        """Store the delete marker of a message."""
        by_topic = self._store.dialect.topic_in_delete_key
        marker, names_target = marker_for(target, topic_in_delete_key=by_topic)
        record = draft(
            marker,
            system_topic=TIMER_TOPIC,
            out_ms=target.out_ms,
            extra=(names_target,),
            form=self._form,
        )
        self._append(record, now_ms)

    def _overdue_out_ms(self, now_ms: int) -> int:
        return overdue_out_ms(now_ms, self._timers.wheel.hand_ms, self.settings.precision_ms)

    def _append(self, record: Draft, now_ms: int) -> int:
        queue, log = self._timers.queue, self._store.log
        queue_offset, offset = queue.max_offset, log.place_for(record.size_bytes)
        log.put(record.record(0, queue_offset, offset, now_ms), offset)
        queue.append_one(offset, record.size_bytes, record.tags_code)
        return offset

    # --- flow control -----------------------------------------------------------------------------

    def _refuse_congestion(self, out: int, now_ms: int, more: int = 0) -> None:
        """Refuse some of what goes to a slot that holds much, as a broker does: fewer, the fuller
        it is, until it holds twice its limit. ``more`` go there before this one.
        """
        limit = self.settings.congest_num_each_slot
        self._timers.settle(now_ms)
        held = self._timers.wheel.unit_count(out - out % self.settings.precision_ms) + more
        if held <= limit:
            return
        odds = 1000 * (held - limit) / (limit + 0.1)
        if held >= 2 * limit or self._dice.randrange(1000) > odds:
            raise UnsupportedDelayError(f"its slot holds {held:,} messages, the limit is {limit:,}")

    # --- many at once -----------------------------------------------------------------------------

    def schedule_batch(self, batch: MessageBatch, due_ms: Int64s, now_ms: int) -> BatchReceipt:
        """Store many messages, or none when one of them cannot be kept."""
        promised_ms, outs = self._promises(due_ms, now_ms)
        if self._is_limited:
            slots, counts = np.unique(outs, return_counts=True)
            for out, count in zip(slots.tolist(), counts.tolist(), strict=True):
                self._refuse_congestion(out, now_ms, count - 1)
        records = draft_batch(batch, system_topic=TIMER_TOPIC, out_ms=outs, form=self._form)
        offsets = self._append_batch(records, now_ms)
        self._topics.remember_all(batch)
        return BatchReceipt(
            unique_keys=records.unique_keys,
            topics=batch.topic,
            due_ms=due_ms,
            promised_ms=promised_ms,
            commit_log_offsets=offsets,
            broker_name=self._broker_name,
        )

    def _promises(self, due_ms: Int64s, now_ms: int) -> tuple[Int64s, Int64s]:
        """The promise of each due time, and its out time."""
        settings = self.settings
        at_once = due_ms <= now_ms
        if settings.max_delay_ms is not None:
            too_long = np.flatnonzero(due_ms - now_ms > settings.max_delay_ms)
            if len(too_long) and settings.beyond_max == "refuse":
                self._refuse_row(int(too_long[0]), int(due_ms[too_long[0]]), now_ms)
            at_once[too_long] = True
        if len(due_ms):
            latest = int(np.argmax(np.where(at_once, 0, due_ms)))
            if not at_once[latest]:
                self._refuse_row(latest, int(due_ms[latest]), now_ms)
        outs = out_ms(np.maximum(due_ms, 1), settings.precision_ms)
        promised_ms = np.where(at_once, now_ms, outs + settings.precision_ms)
        return promised_ms, np.where(at_once, self._overdue_out_ms(now_ms), outs)

    def _refuse_row(self, row: int, due_ms: int, now_ms: int) -> None:
        """Raise UnsupportedDelayError, which names the row, where its time cannot be kept."""
        try:
            self._promise(due_ms, now_ms)
            require_kept(due_ms)
        except UnsupportedDelayError as error:
            raise error.of_row(row) from None

    def _append_batch(self, records: BatchDraft, now_ms: int) -> Int64s:
        queue, count = self._timers.queue, len(records)
        queue_offsets = queue.max_offset + np.arange(count, dtype=np.int64)
        fill = records.bind(np.zeros(count, np.int64), queue_offsets, now_ms)
        offsets = self._store.log.append_rows(records.sizes, fill)
        units = np.empty(count, QUEUE_UNIT.dtype)
        units["commit_log_offset"] = offsets
        units["size_bytes"] = records.sizes
        units["tags_code"] = records.tags_codes
        queue.append(units)
        return offsets
