# SPDX-License-Identifier: Apache-2.0
"""What every store on a wheel shares, however it finds the due messages: taking them in, delete
markers, opening.
"""

from abc import abstractmethod

from message_store.base.kinds import takes
from message_store.columns.message_batch import MessageBatch
from message_store.engine.timed_engine import TimedEngine
from message_store.format.message import Message
from message_store.format.properties import TIMER_DELETE_UNIQUE_KEY, TIMER_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.intake.asked import asked_by
from message_store.intake.asked_batch import asked_by_batch
from message_store.intake.rescheduling import finish_rescheduling, receipt_for
from message_store.interface.delay_store import BatchReceipt, Due, Finding, Receipt
from message_store.redelivery import lineage
from message_store.writing.store import LiveStore
from timer_wheel.reading.lost_messages import LostMessages
from timer_wheel.timers.intake import TimerIntake
from timer_wheel.timers.recall import Target


class TimerStore(TimedEngine[Target]):
    """``DelayStore`` over records of ``rmq_sys_wheel_timer`` and their queue."""

    _intake: TimerIntake

    def __init__(self, store: LiveStore, intake: TimerIntake) -> None:
        super().__init__(store, intake, alias=intake.settings.start_deliver_time_alias)

    # --- scheduling -------------------------------------------------------------------------------

    @takes(message=Message)
    def put(self, message: Message) -> Receipt:
        """Store a message for the time that its own properties ask for; one with
        TIMER_DEL_UNIQKEY is a delete marker.

        Raises BadFieldError for a property that cannot be read, UnsupportedDelayError for a delay
        beyond the limit.
        """
        with self.live.reading():
            now_ms = self.clock.now_ms()
            asked = asked_by(message, now_ms, start_deliver_time_alias=self._alias)
            with self.live.all_or_broken():
                receipt = self._intake.schedule(asked.message, asked.due, now_ms, asked.kept)
            if TIMER_DELETE_UNIQUE_KEY in dict(asked.kept):
                self._marker_is_stored()
            return receipt

    @takes(batch=MessageBatch)
    def put_batch(self, batch: MessageBatch) -> BatchReceipt:
        """The same for many messages, all or none; a delete marker is put by itself."""
        with self.live.reading(), self.live.all_or_broken():
            now_ms = self.clock.now_ms()
            asked = asked_by_batch(
                batch,
                now_ms,
                self.levels,
                start_deliver_time_alias=self._alias,
                keeps_times=True,
            )
            return self._intake.schedule_batch(asked.batch, asked.due_ms, now_ms, keeps_times=True)

    # --- pending messages -----------------------------------------------------------------------

    def _recall(self, target: Target, handle: RecallHandle) -> None:
        with self.live.all_or_broken():
            marker = self._intake.recall(target, self.clock.now_ms())
        self._was_recalled(target, marker.commit_log_offset)

    def _move(self, target: Target, handle: RecallHandle, due: Due) -> Receipt:
        first = lineage.first_offset(target.message)
        older = receipt_for(target.message, first, target.promised_ms, handle.broker_name)
        with self.live.all_or_broken():
            moved, marker = self._intake.reschedule(target, older, due, self.clock.now_ms())
        self._was_recalled(target, marker)
        return moved

    def finish_rescheduling(self) -> None:
        """See ``rescheduling``; lets go of the files where that fails. For whoever opens it."""
        try:
            finish_rescheduling(self, TIMER_TOPIC)
        except BaseException:
            self._let_go()
            raise

    def _undelivered(self) -> list[Finding]:
        return self._lost().findings()

    # --- what each does in its own way; the lock is held ------------------------------------------

    @abstractmethod
    def _marker_is_stored(self) -> None:
        """A user's own delete marker is in the queue."""

    @abstractmethod
    def _was_recalled(self, target: Target, marker_offset: int | None) -> None:
        """A delete marker of this message was stored at an offset, if it was."""

    @abstractmethod
    def _lost(self) -> LostMessages:
        """What was due and could not be delivered."""
