# SPDX-License-Identifier: Apache-2.0
"""What every store of timed messages shares, however it finds the due ones: taking them in,
questions and answers, opening and closing.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Protocol, TypeVar

from message_store.base.errors import SharedKeyError, SourceError
from message_store.base.kinds import takes
from message_store.columns.message_batch import MessageBatch
from message_store.format.message import Message
from message_store.format.properties import TIMER_DELETE_UNIQUE_KEY, TIMER_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.intake.asked import asked_by
from message_store.intake.asked_batch import asked_by_batch
from message_store.intake.engine import Engine
from message_store.intake.rescheduling import finish_rescheduling, receipt_for
from message_store.interface.delay_store import (
    BatchReceipt,
    Cancellation,
    Due,
    Finding,
    Pending,
    Receipt,
    named_by,
)
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery import lineage
from message_store.redelivery.deliveries import LogDeliveries, pending_among
from message_store.writing.findings import warn_of_other_engines
from message_store.writing.store import LiveStore
from timer_wheel.timers.intake import TimerIntake
from timer_wheel.timers.lost_messages import LostMessages
from timer_wheel.timers.recall import Target
from timer_wheel.timers.timer_properties import LATEST_ADVANCE_MS

Made = TypeVar("Made")


class NamedMessages(Protocol):
    """What a handle or a receipt names."""

    def waiting(self) -> list[Target]:
        """The messages that are pending, one for each marker that is needed to take all of them."""

    def past(self) -> Cancellation:
        """What became of a message that is not pending."""

    def count_alike(self, target: Target) -> int:
        """How many pending messages a delete marker of this one would cancel."""


class TimerStore(Engine):
    """``DelayStore`` over records of ``rmq_sys_wheel_timer`` and their queue."""

    _intake: TimerIntake

    def __init__(self, store: LiveStore, intake: TimerIntake) -> None:
        self.live = store
        self._intake = intake
        self._alias = intake.settings.start_deliver_time_alias
        self._next_due: int | None = None
        self._next_due_known_at = -1  # the log's append_count then
        self._group = store.group(self._flush)
        self._is_closed = False

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

    # --- time -------------------------------------------------------------------------------------

    @takes(now_ms=Integral)
    def advance(self, now_ms: int) -> LogDeliveries:
        """Move everything that is due at ``now_ms`` into its topic."""
        now_ms = min(now_ms, LATEST_ADVANCE_MS)
        with self.live.reading():
            self.live.log.require_unbroken()
            self._next_due_known_at = -1
            if self._has_old_files(now_ms):  # first what may fail: it would hide deliveries
                self._clean(now_ms)
            with self.live.all_or_broken():
                return self._turn(now_ms)

    def _has_old_files(self, now_ms: int) -> bool:
        log = self.live.log
        if self.live.retention.kept is not None:
            return True
        if len(log.segments.starts) < 2:
            return False
        return log.store_time_ms(log.min_offset) + self.live.settings.retention_ms <= now_ms

    def next_due_ms(self) -> int | None:
        """The earliest time at which ``advance`` would deliver something.

        As with all that looks for pending messages, those that have come in are placed first, which
        writes: raises TargetError.
        """
        with self.live.reading():
            count = self.live.log.append_count
            if self._next_due_known_at != count:
                self._place_queued()
                self._next_due, self._next_due_known_at = self._find_next_due(), count
            return self._next_due

    # --- pending messages -----------------------------------------------------------------------

    def _waiting(self, wanted: WaitingFilter) -> Iterator[Pending]:
        self._place_queued()
        if wanted.level is not None:
            return iter(())
        return pending_among(self.live, self._pieces(wanted), wanted)

    def waiting_records(self) -> Iterator[LogDeliveries]:
        """The record and the promise of each message that waits, in pieces. Raises TargetError: see
        ``next_due_ms``.
        """
        with self.live.reading():
            self._place_queued()
            return self._pieces(WaitingFilter())

    @takes(receipt=Receipt | str)
    def cancel(self, receipt: Receipt | str) -> Cancellation:
        """Cancel the messages that a receipt or a handle names. Raises TargetError."""
        handle, first_offset = named_by(receipt)
        with self.live.reading():
            if handle.broker_name != self.live.settings.broker_name:
                return Cancellation.NEVER_EXISTED
            self._place_queued()
            search = self._search(handle, first_offset)
            targets = search.waiting()
            if not targets:
                return search.past()
            for target in targets:
                with self.live.all_or_broken():
                    marker = self._intake.recall(target, self.clock.now_ms())
                self._was_recalled(target, marker.commit_log_offset)
            return Cancellation.CANCELLED

    @takes(receipt=Receipt | str, due=Due)
    def reschedule(self, receipt: Receipt | str, due: Due) -> Receipt | Cancellation:
        """Let a pending message wait for another time. Raises TargetError."""
        handle, first_offset = named_by(receipt)
        with self.live.reading():
            if handle.broker_name != self.live.settings.broker_name:
                return Cancellation.NEVER_EXISTED
            self.live.log.require_unbroken()
            self._place_queued()
            search = self._search(handle, first_offset)
            targets = search.waiting()
            if not targets:
                return search.past()
            if (count := max(len(targets), search.count_alike(targets[0]))) > 1:
                raise SharedKeyError(count, handle.topic, handle.unique_key)
            message = targets[0].message
            first = lineage.first_offset(message)
            older = receipt_for(message, first, handle.due_ms, handle.broker_name)
            with self.live.all_or_broken():
                moved = self._intake.reschedule(targets[0], older, due, self.clock.now_ms())
            self._was_recalled(targets[0], moved[1])
            return moved[0]

    def finish_rescheduling(self) -> None:
        """See ``rescheduling``; lets go of the files where that fails. For whoever opens it."""
        try:
            finish_rescheduling(self, TIMER_TOPIC)
        except BaseException:
            self._let_go()
            raise

    # --- health and the end -----------------------------------------------------------------------

    def _undelivered(self) -> list[Finding]:
        return self._lost().findings()

    def close(self) -> None:
        """Place what can be placed, flush, and let go of the files; closing twice is fine."""
        with self.live.lock:
            if self._is_closed or self.live.is_closed:
                return
            try:
                self._is_closed = True
                if not self.live.log.is_broken:
                    self.live.sync_log()  # what says what was delivered must not outlive it
                    self._end()
                    self._flush()
                self.live.close()
            finally:
                self.live.abandon()
                self._let_go()

    def abandon(self) -> None:
        """Let go of everything without a last word, as a kill would."""
        with self.live.lock:
            if self.live.is_closed:
                return
            self._is_closed = True
            self.live.abandon()
            self._let_go()

    # --- what each does in its own way; the lock is held ------------------------------------------

    @abstractmethod
    def _marker_is_stored(self) -> None:
        """A user's own delete marker is in the queue."""

    @abstractmethod
    def _place_queued(self) -> None:
        """Take in what the queue holds."""

    @abstractmethod
    def _turn(self, now_ms: int) -> LogDeliveries:
        """Deliver what is due."""

    @abstractmethod
    def _clean(self, now_ms: int) -> None:
        """Delete old files; a pending message keeps its record's."""

    @abstractmethod
    def _find_next_due(self) -> int | None:
        """When the first message that waits is due, or a time before."""

    @abstractmethod
    def _pieces(self, wanted: WaitingFilter) -> Iterator[LogDeliveries]:
        """What is pending now, is due when it is asked for and may pass, in pieces."""

    @abstractmethod
    def _search(self, handle: RecallHandle, first_offset: int | None) -> NamedMessages:
        """The messages that a handle names; a receipt also tells the first record."""

    @abstractmethod
    def _was_recalled(self, target: Target, marker_offset: int | None) -> None:
        """A delete marker of this message was stored at an offset, if it was."""

    @abstractmethod
    def _lost(self) -> LostMessages:
        """What was due and could not be delivered."""

    @abstractmethod
    def _flush(self) -> None:
        """Make everything durable; the lock is held by ``close`` only."""

    @abstractmethod
    def _end(self) -> None:
        """Leave nothing to do for whoever opens the store next."""

    @abstractmethod
    def _let_go(self) -> None:
        """Give the files back."""


def made_or_let_go(store: LiveStore, make: Callable[[], Made]) -> Made:
    """What ``make`` makes of an open store; where that fails, the store is let go of."""
    try:
        made = make()
    except BaseException as error:
        if store.was_clean and isinstance(error, SourceError | ValueError | TypeError):
            store.close()  # refused before anything was changed
        else:
            store.abandon()
        raise
    warn_of_other_engines(store, TIMER_TOPIC)
    return made
