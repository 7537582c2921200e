# SPDX-License-Identifier: Apache-2.0
"""What engines of timed messages do alike, however they find the due ones.

A message waits in a queue. It is placed where its time leads to it when anything is asked for.
"""

from abc import abstractmethod
from collections.abc import Iterator
from numbers import Integral
from typing import Generic, Protocol, TypeVar

from message_store.base.errors import SharedKeyError
from message_store.base.kinds import takes
from message_store.engine.engine import Engine, EngineIntake
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation, Due, Pending, Receipt, named_by
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.deliveries import LogDeliveries, pending_among
from message_store.writing.store import LiveStore

LATEST_ADVANCE_MS = 2**62 + 2**61
"""Later than every promise; what is asked for beyond it would only overflow."""

T = TypeVar("T")


class NamedMessages(Protocol[T]):
    """What a handle or a receipt names."""

    def waiting(self) -> list[T]:
        """The messages that are pending, one for each cancel that is needed to take all of them."""

    def past(self) -> Cancellation:
        """What became of a message that is not pending."""

    def count_alike(self, target: T) -> int:
        """How many pending messages a cancel of this one would take."""


class TimedEngine(Engine, Generic[T]):
    """``DelayStore`` over a queue of records that say when they are due."""

    def __init__(self, store: LiveStore, intake: EngineIntake, *, alias: bool) -> None:
        self.live = store
        self._intake = intake
        self._alias = alias
        self._next_due: int | None = None
        self._next_due_known_at = -1  # the log's append_count then
        self._group = store.group(self._flush)
        self._is_closed = False

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
            named = self._named(handle, first_offset)
            if named is None:
                return Cancellation.NEVER_EXISTED
            targets = named.waiting()
            for target in targets:
                self._recall(target, handle)
            return Cancellation.CANCELLED if targets else named.past()

    @takes(receipt=Receipt | str, due=Due)
    def reschedule(self, receipt: Receipt | str, due: Due) -> Receipt | Cancellation:
        """Let a pending message wait for another time. Raises TargetError, and SharedKeyError where
        several pending messages share what names this one.
        """
        handle, first_offset = named_by(receipt)
        with self.live.reading():
            named = self._named(handle, first_offset)
            if named is None:
                return Cancellation.NEVER_EXISTED
            targets = named.waiting()
            if not targets:
                return named.past()
            if (count := max(len(targets), named.count_alike(targets[0]))) > 1:
                raise SharedKeyError(count, handle.topic, handle.unique_key)
            return self._move(targets[0], handle, due)

    def _named(self, handle: RecallHandle, first_offset: int | None) -> NamedMessages[T] | None:
        if handle.broker_name != self.live.settings.broker_name:
            return None
        self.live.log.require_unbroken()  # what looks as if it waits may have been delivered
        self._place_queued()
        return self._search(handle, first_offset)

    # --- the end ----------------------------------------------------------------------------------

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
    def _search(self, handle: RecallHandle, first_offset: int | None) -> NamedMessages[T]:
        """The messages that a handle names; a receipt also tells the first record."""

    @abstractmethod
    def _recall(self, target: T, handle: RecallHandle) -> None:
        """Cancel a pending message, which is named so."""

    @abstractmethod
    def _move(self, target: T, handle: RecallHandle, due: Due) -> Receipt:
        """Let a pending message, which is named so, wait for another time."""

    @abstractmethod
    def _flush(self) -> None:
        """Make everything durable; the lock is held by ``close`` only."""

    def _end(self) -> None:
        """Leave nothing to do for whoever opens the store next."""

    def _let_go(self) -> None:
        """Give the files back."""
