# SPDX-License-Identifier: Apache-2.0
"""What every engine on files does alike: it takes messages in, tells of itself, and is flushed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from message_store.base.errors import OptionsError, SourceError
from message_store.base.kinds import require_kind, takes
from message_store.columns.byte_column import Int64s
from message_store.columns.message_batch import MessageBatch
from message_store.files.unsynced import GroupSync
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import Message, StoredMessage
from message_store.intake.asked import asked_of_no_wheel
from message_store.intake.asked_batch import asked_by_batch
from message_store.intake.batch import due_times
from message_store.interface.delay_store import BatchReceipt, Due, Finding, Pending, Receipt
from message_store.interface.finding_rules import worst_first
from message_store.interface.waiting_messages import FILTER_KINDS, WaitingFilter
from message_store.writing.findings import queue_findings, warn_of_other_engines
from message_store.writing.store import EngineOnFiles, LiveStore

Made = TypeVar("Made")


class EngineIntake(Protocol):
    """How messages come into an engine; whoever calls holds the store's lock."""

    def schedule(self, message: Message | StoredMessage, due: Due, now_ms: int) -> Receipt:
        """Store a message for later."""

    def schedule_batch(self, batch: MessageBatch, due_ms: Int64s, now_ms: int) -> BatchReceipt:
        """Store many messages, or none when one of them cannot be kept."""


class Engine(EngineOnFiles, ABC):
    """``DelayStore`` as far as engines do not differ. One thread at a time works, the others wait.

    Who is made sets ``live``, ``_intake``, ``_group``, and whether ``put`` takes __STARTDELIVERTIME
    for a due time (``_alias``).
    """

    _intake: EngineIntake
    _group: GroupSync
    _alias: bool

    @property
    def levels(self) -> DelayLevels:
        """What ``AtLevel`` means."""
        return self.live.levels

    # --- scheduling -------------------------------------------------------------------------------

    def schedule(self, message: Message | StoredMessage, due: Due) -> Receipt:
        """Store a message for later."""
        live = self.live
        with live.lock:
            if live.is_closed:
                live.require_open()
            count = live.log.append_count
            try:  # all_or_broken, but for what entering it costs
                return self._intake.schedule(message, due, live.clock.now_ms())
            except BaseException:
                live.break_if_appended(count)
                require_kind("message", message, Message | StoredMessage)
                require_kind("due", due, Due)
                raise

    def schedule_batch(self, batch: MessageBatch, due_ms: Int64s) -> BatchReceipt:
        """Store many messages or none. Raises BadFieldError where the due times are not as many."""
        due_ms = due_times(batch, due_ms)
        with self.live.reading(), self.live.all_or_broken():
            return self._intake.schedule_batch(batch, due_ms, self.clock.now_ms())

    @takes(message=Message)
    def put(self, message: Message) -> Receipt:
        """Store a message for the time that its own properties ask for. Raises BadFieldError."""
        with self.live.reading():
            now_ms = self.clock.now_ms()
            asked = asked_of_no_wheel(message, now_ms, start_deliver_time_alias=self._alias)
            return self.schedule(asked.message, asked.due)

    @takes(batch=MessageBatch)
    def put_batch(self, batch: MessageBatch) -> BatchReceipt:
        """The same for many messages, all or none."""
        with self.live.reading(), self.live.all_or_broken():
            now_ms = self.clock.now_ms()
            asked = asked_by_batch(batch, now_ms, self.levels, start_deliver_time_alias=self._alias)
            return self._intake.schedule_batch(asked.batch, asked.due_ms, now_ms)

    # --- looking ----------------------------------------------------------------------------------

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
        """Pending messages that pass every filter; an engine that keeps no levels has none of any.
        Raises TargetError where what has come in is placed first.
        """
        wanted = WaitingFilter(topic, level, due_after_ms, due_before_ms, unique_key)
        with self.live.reading():
            return self._waiting(wanted)

    def check(self) -> list[Finding]:
        """Every invariant that does not hold, worst first."""
        with self.live.reading():
            return self._findings()

    def undelivered(self) -> list[Finding]:
        """What was due and could not be delivered, as ``check`` says it; costs nothing."""
        with self.live.reading():
            return self._undelivered()

    def found_at_opening(self) -> list[Finding]:
        """What was lost, or rebuilt, when the store was opened, as ``check`` says it; costs
        nothing.
        """
        with self.live.reading():
            return worst_first([*self._found_at_opening(), *queue_findings(self.live)])

    # --- the end ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when everything stored so far survives a loss of power; threads share the work."""
        self.live.require_open()
        self._group.run()

    def abandon(self) -> None:
        """Let go of everything without a last word, as a kill would."""
        self.live.abandon()

    # --- what each does in its own way; the lock is held ------------------------------------------

    @abstractmethod
    def _waiting(self, wanted: WaitingFilter) -> Iterator[Pending]:
        """Pending messages that pass."""

    @abstractmethod
    def _findings(self) -> list[Finding]:
        """What is wrong, worst first."""

    def _found_at_opening(self) -> Iterable[Finding]:
        """What an engine found of its own, beyond log and queues."""
        return ()

    @abstractmethod
    def _undelivered(self) -> list[Finding]:
        """What could not be delivered."""


def made_or_let_go(live: LiveStore, topic: str, make: Callable[[], Made]) -> Made:
    """The engine of ``topic`` that ``make`` makes of an open store; where that fails, the store is
    let go of.
    """
    try:
        made = make()
    except BaseException as error:
        if live.was_clean and isinstance(
            error, SourceError | OptionsError | ValueError | TypeError
        ):
            live.close()  # refused before anything was changed
        else:
            live.abandon()
        raise
    warn_of_other_engines(live, topic)
    return made
