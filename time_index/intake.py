# SPDX-License-Identifier: Apache-2.0
"""How messages come into a time index: as records of its topic, with entries of queue 0.

A cancel is a record of queue 1 that names the message's first record, as a delivery does. So the
rule of recovery says nothing of cancels: what a later record names waits no more.
"""

import attrs
import numpy as np

from message_store.base.errors import DelayLimitError, UnsupportedDelayError
from message_store.columns.byte_column import Int64s
from message_store.columns.message_batch import MessageBatch
from message_store.format.message import Message, StoredMessage
from message_store.format.message_codec import decode_message_at, encode_message
from message_store.format.properties import TIME_INDEX_TOPIC
from message_store.intake.batch import draft_batch
from message_store.intake.records import RecordForm, RecordMaker
from message_store.intake.store_intake import LiveIntake, Part
from message_store.interface.delay_store import AfterMs, AtLevel, AtMs, BatchReceipt, Due, Receipt
from message_store.interface.promise_rules import DelayLimit, to_slot_end
from message_store.writing.store import LiveStore
from time_index.index import CANCELS, MESSAGES

_CANCEL_BODY = b"cancel"


class TimeIndexIntake:
    """Stores messages and cancels; whoever calls holds the store's lock.

    A promise is to the millisecond. A delay longer than ``limit`` or the log's retention is refused
    or delivered at once.
    """

    def __init__(self, store: LiveStore, limit: DelayLimit) -> None:
        self._store = store
        self._queue = store.queue(TIME_INDEX_TOPIC, MESSAGES)
        self._cancels = store.queue(TIME_INDEX_TOPIC, CANCELS)
        self._form = RecordForm.of(store.dialect, store.settings)
        self._intake = LiveIntake(store, TIME_INDEX_TOPIC, self._form)
        self._maker = RecordMaker(TIME_INDEX_TOPIC, self._form)
        retention_ms, asked_ms = store.settings.retention_ms, limit.max_delay_ms
        self._most_ms = retention_ms if asked_ms is None else min(asked_ms, retention_ms)
        self._is_by_retention = self._most_ms == retention_ms
        self._delivers_beyond = limit.beyond_max == "deliver"
        self._promise = to_slot_end(1, max_delay_ms=self._most_ms, beyond_max=limit.beyond_max)

    def schedule(self, message: Message | StoredMessage, due: Due, now_ms: int) -> Receipt:
        """Store a message for later."""
        due_ms, promised_ms = self._place(due, now_ms)
        return self._intake.store(
            message, self._queue, due_ms, promised_ms, now_ms, None, promised_ms
        )

    def reschedule(self, older: Receipt, message: StoredMessage, due: Due, now_ms: int) -> Receipt:
        """Store a pending message again for another time, with the cancel of the older one behind
        it, in one append.
        """
        due_ms, promised_ms = self._place(due, now_ms)
        times = due_ms, promised_ms, now_ms
        cancels = [self._cancel_part(message, older.promised_ms, now_ms)]
        return self._intake.store_again(
            older, message, self._queue, *times, None, promised_ms, cancels
        )[0]

    def _place(self, due: Due, now_ms: int) -> tuple[int, int]:
        """When a message is asked for, and when it is promised."""
        match due:
            case AtMs():
                due_ms = due.due_ms
            case AfterMs():
                due_ms = now_ms + due.delay_ms
            case AtLevel():
                due_ms = now_ms + self._store.levels.asked(due.level)[1]
        return due_ms, self._promised(due_ms, now_ms)

    def _promised(self, due_ms: int, now_ms: int) -> int:
        if now_ms < 0:
            raise UnsupportedDelayError(f"the clock says {now_ms}: nothing waits before 1970")
        if due_ms <= now_ms:
            return now_ms
        try:
            return self._promise(due_ms, now_ms)
        except DelayLimitError as error:
            if not self._is_by_retention:
                raise
            raise DelayLimitError(f"{error}: the log's retention (retention_ms)") from None

    def schedule_batch(self, batch: MessageBatch, due_ms: Int64s, now_ms: int) -> BatchReceipt:
        """Store many messages, or none when one of them cannot be kept: raises the error of the
        latest.
        """
        promised_ms = np.maximum(due_ms, now_ms)
        if self._delivers_beyond:
            promised_ms[promised_ms - now_ms > self._most_ms] = now_ms
        if len(due_ms):
            latest = int(np.argmax(due_ms))
            try:
                self._promised(int(due_ms[latest]), now_ms)
            except UnsupportedDelayError as error:
                raise error.of_row(latest) from None
        records = draft_batch(
            batch, system_topic=TIME_INDEX_TOPIC, out_ms=promised_ms, form=self._form
        )
        self._intake.require_room(records.sizes)
        offsets = records.append(self._store.log, self._queue, now_ms)
        self._intake.topics.remember_all(batch)
        broker_name = self._store.settings.broker_name
        return records.receipt(due_ms, promised_ms, offsets, broker_name)

    def cancel(self, message: StoredMessage, due_ms: int, now_ms: int) -> None:
        """Store the record that cancels a pending message."""
        self._intake.store_together([self._cancel_part(message, due_ms, now_ms)])

    def _cancel_part(self, message: StoredMessage, due_ms: int, now_ms: int) -> Part:
        queue = self._cancels
        marker = Message(topic=message.real_topic, body=_CANCEL_BODY, unique_key=message.unique_key)
        place = queue.max_offset
        named = ~message.commit_log_offset

        def make(at: int) -> tuple[bytes, int]:
            record, _, tags_code, _ = self._maker.record(
                marker, None, due_ms, (), CANCELS, place, lambda _size: at, now_ms, now_ms
            )
            stored = decode_message_at(record)
            stored = attrs.evolve(stored, prepared_transaction_offset=named)
            return encode_message(stored), tags_code

        return queue, make
