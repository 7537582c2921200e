# SPDX-License-Identifier: Apache-2.0
"""How messages come into any wheel: as records of ``rmq_sys_wheel_timer`` and entries of its queue,
no more. Placing comes later, in bulk.
"""

from abc import ABC, abstractmethod
from typing import Literal, Protocol

import numpy as np

from message_store.base.errors import UnsupportedDelayError
from message_store.columns.byte_column import Int64s
from message_store.columns.message_batch import MessageBatch
from message_store.format.message import Message, StoredMessage
from message_store.format.properties import TIMER_TOPIC
from message_store.intake.batch import draft_batch
from message_store.intake.records import RecordForm
from message_store.intake.store_intake import LiveIntake
from message_store.interface.delay_store import AfterMs, AtLevel, AtMs, BatchReceipt, Due, Receipt
from message_store.interface.promise_rules import LATEST_MS, require_kept, to_slot_end
from message_store.writing.queue import LiveQueue
from message_store.writing.store import LiveStore
from timer_wheel.format.wheel_math import floor_ms, out_ms
from timer_wheel.timers.recall import Target, marker_for


class IntakeSettings(Protocol):
    """What the settings of any wheel say of what comes in."""

    @property
    def precision_ms(self) -> int:
        """How wide a promise is."""

    @property
    def max_delay_ms(self) -> int | None:
        """The longest delay; None for no limit."""

    @property
    def beyond_max(self) -> Literal["refuse", "deliver"]:
        """What becomes of a longer one."""

    @property
    def start_deliver_time_alias(self) -> bool:
        """Whether __STARTDELIVERTIME is a due time."""


class TimerIntake(ABC):
    """Stores messages and delete markers for one wheel; whoever calls holds the store's lock."""

    def __init__(self, store: LiveStore, queue: LiveQueue, settings: IntakeSettings) -> None:
        self.settings = settings
        self._store = store
        self._queue = queue
        self._levels = store.levels
        self._form = RecordForm.of(store.dialect, store.settings)
        self._intake = LiveIntake(store, TIMER_TOPIC, self._form)
        self._promise = to_slot_end(
            settings.precision_ms,
            max_delay_ms=settings.max_delay_ms,
            beyond_max=settings.beyond_max,
        )
        self._precision_ms = settings.precision_ms
        self._is_limited = False

    # --- one at a time ----------------------------------------------------------------------------

    def schedule(
        self,
        message: Message | StoredMessage,
        due: Due,
        now_ms: int,
        extra: tuple[tuple[str, str], ...] = (),
    ) -> Receipt:
        """Store a message for later; ``extra`` are properties that its record gets as well."""
        due_ms, promised_ms, out = self._place(due, now_ms)
        if self._is_limited:
            self._refuse_congestion(out, now_ms)
        return self._intake.store(
            message, self._queue, due_ms, promised_ms, now_ms, None, out, extra
        )

    def _place(self, due: Due, now_ms: int) -> tuple[int, int, int]:
        """When a message is asked for, when it is promised, and its out time."""
        match due:  # by class alone, the commonest first: patterns with fields cost twice as much
            case AtMs():
                due_ms = due.due_ms
            case AfterMs():
                due_ms = now_ms + due.delay_ms
            case AtLevel():
                due_ms = now_ms + self._levels.asked(due.level)[1]
        promised_ms = now_ms if due_ms <= now_ms else self._promise(due_ms, now_ms)
        if promised_ms == now_ms:
            out = self._overdue_out_ms(now_ms)
        else:
            if due_ms >= LATEST_MS or now_ms < 0:
                require_kept(due_ms, now_ms)
            out = promised_ms - self._precision_ms
        return due_ms, promised_ms, out

    @property
    def recall_width_ms(self) -> int:
        """How wide the times are that a delete marker does not tell apart."""
        return self._precision_ms

    def reschedule(
        self, target: Target, older: Receipt, due: Due, now_ms: int
    ) -> tuple[Receipt, int | None]:
        """Store a pending message again for another time, with the delete marker of the older one
        behind it, in one append. Returns the new receipt, and where the marker is.

        A marker cancels all messages of its key in its slot. So what would stay in its slot is left
        alone, or goes to the next one where it would be too early: a message that was already due.
        """
        width_ms = self.recall_width_ms
        due_ms, promised_ms, out = self._place(due, now_ms)
        if floor_ms(out, width_ms) == floor_ms(target.out_ms, width_ms):
            if due_ms <= max(older.promised_ms, now_ms):
                return older._replace(due_ms=min(due_ms, older.promised_ms)), None
            later = AtMs(floor_ms(out, width_ms) + width_ms + 1)
            _, promised_ms, out = self._place(later, now_ms)
        if self._is_limited:
            self._refuse_congestion(out, now_ms)
        by_topic = self._store.dialect.topic_in_delete_key
        marker, extra = marker_for(target, topic_in_delete_key=by_topic)
        queue = self._queue
        cancels = [self._intake.cancel_part(marker, queue, target.out_ms, extra, now_ms)]
        times = due_ms, promised_ms, now_ms
        receipt, offsets = self._intake.store_again(
            older, target.message, queue, *times, None, out, cancels
        )
        return receipt, offsets[-1]

    def recall(self, target: Target, now_ms: int) -> Receipt:
        """Store the delete marker of a message."""
        by_topic = self._store.dialect.topic_in_delete_key
        marker, properties = marker_for(target, topic_in_delete_key=by_topic)
        out = target.out_ms
        return self._intake.store(marker, self._queue, out, out, now_ms, None, out, properties)

    @abstractmethod
    def _overdue_out_ms(self, now_ms: int) -> int:
        """The out time of what is due when it is stored."""

    @abstractmethod
    def _refuse_congestion(self, out: int, now_ms: int, more: int = 0) -> None:
        """Refuse what goes where too much is already; asked only where there is a limit."""

    # --- many at once -----------------------------------------------------------------------------

    def schedule_batch(
        self, batch: MessageBatch, due_ms: Int64s, now_ms: int, *, keeps_times: bool = False
    ) -> BatchReceipt:
        """Store many messages, or none when one of them cannot be kept. ``keeps_times``: their
        properties may be those that asked for a time.
        """
        promised_ms, outs = self._promises(due_ms, now_ms)
        if self._is_limited:
            slots, counts = np.unique(outs, return_counts=True)
            for out, count in zip(slots.tolist(), counts.tolist(), strict=True):
                self._refuse_congestion(out, now_ms, count - 1)
        records = draft_batch(
            batch,
            system_topic=TIMER_TOPIC,
            out_ms=outs,
            form=self._form,
            keeps_times=keeps_times,
        )
        self._intake.require_room(records.sizes)
        offsets = records.append(self._store.log, self._queue, now_ms)
        self._intake.topics.remember_all(batch)
        broker_name = self._store.settings.broker_name
        return records.receipt(due_ms, promised_ms, offsets, broker_name)

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
            require_kept(due_ms, now_ms)
        except UnsupportedDelayError as error:
            raise error.of_row(row) from None
