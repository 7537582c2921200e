# SPDX-License-Identifier: Apache-2.0
"""``LevelStore``: RocketMQ's delay levels, on the files that its brokers write.

RocketMQ: ScheduleMessageService (4.9.7). A message is pending in the queue of its level, whose
entries hold due times, until it is appended to its real topic. A message due at once is put into
the level with the shortest delay and delivered immediately. A broker that takes over delivers it
after those in front. Limitations: a delay between two levels is rounded up to the longer one; a
delay beyond the longest level is refused.
"""

from collections.abc import Iterable, Iterator
from numbers import Integral
from pathlib import Path
from types import NoneType
from typing import Literal

import numpy as np

from legacy_levels.delay_offsets import OffsetsChoice, OffsetsFile, read_delay_offsets
from legacy_levels.engine.async_delivery import AsyncDelivery
from legacy_levels.engine.cancel import (
    Entry,
    Fate,
    entries_of_handle,
    entries_of_receipt,
    verdict,
)
from legacy_levels.engine.check import check_levels, of_opening, undelivered
from legacy_levels.engine.cursor import NEVER_MS
from legacy_levels.engine.delivery import LevelDelivery
from legacy_levels.engine.intake import LevelIntake
from legacy_levels.engine.offset_persistence import OffsetPersistence, neutralise
from legacy_levels.engine.rules import LevelRules
from legacy_levels.engine.state import (
    LevelState,
    open_levels,
    refuse_before_recovery,
    synced_entries_missing,
)
from legacy_levels.engine.waiting_records import iterate_pending, waiting_records
from legacy_levels.neutral_units import CANCELLED_BYTES
from message_store.base.clock import Clock
from message_store.base.errors import SharedKeyError
from message_store.base.kinds import takes
from message_store.engine.engine import Engine, made_or_let_go
from message_store.files.config_files import TOPICS, read_config
from message_store.files.small_files import is_ordinary_file, is_present, read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import LONG_MAX
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.intake.rescheduling import finish_rescheduling, receipt_for
from message_store.interface.delay_store import (
    Cancellation,
    Due,
    Finding,
    Pending,
    Receipt,
)
from message_store.interface.promise_rules import NO_LIMIT, BeyondMax, DelayLimit
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.recovery import Extent
from message_store.writing.settings import StoreSettings, require_kinds
from message_store.writing.store import LiveStore


def dialect_of(root: StoreRoot) -> Dialect:
    """The dialect to open a store with when nobody says one; 4.9 for a new one.

    Raises SourceError where the disk refuses.
    """
    offsets = read_delay_offsets(root.path, OffsetsChoice.NONE)
    files = (offsets.main, offsets.backup)
    written = [Dialect(file.dialect.value) for file in files if file.dialect is not None]
    newer = [dialect for dialect in written if dialect is not Dialect.ROCKETMQ_4_9]
    if newer:
        return newer[0]
    return Dialect.ROCKETMQ_5_5 if _was_of_5x(root, files) else Dialect.ROCKETMQ_4_9


def _was_of_5x(root: StoreRoot, files: tuple[OffsetsFile, ...]) -> bool:
    """Whether anything is there that brokers of 4.9 do not make."""
    return (
        any(file.data_version is not None for file in files)
        or is_present(root.timer_wheel)
        or is_present(root.timer_queue())
        or (is_ordinary_file(root.abort) and bool(read_small_file(root.abort)))
        or _topics_have_attributes(root)
    )


def _topics_have_attributes(root: StoreRoot) -> bool:
    table = read_config(root.path, TOPICS).value.get("topicConfigTable")
    topics = table.values() if isinstance(table, dict) else ()
    return any(isinstance(topic, dict) and "attributes" in topic for topic in topics)


_SETTINGS = StoreSettings()
_RULES = LevelRules()


class LevelStore(Engine):
    """``DelayStore`` over the delay levels of one store directory. Made by ``open``.

    ``state`` and ``live`` are what it is made of, for tools that look closer. A record that ``put``
    makes has DELAY alone: a broker of 5.x would delay one with TIMER_* a second time.
    """

    _intake: LevelIntake

    def __init__(
        self,
        state: LevelState,
        rounding: Literal["up", "exact"],
        limit: DelayLimit = NO_LIMIT,
        *,
        start_deliver_time_alias: bool = False,
    ) -> None:
        self.state = state
        self.live = state.live
        self._alias = start_deliver_time_alias
        self._intake = LevelIntake(state, rounding, limit)
        is_async = state.rules.async_delivery
        self._delivery = AsyncDelivery(state) if is_async else LevelDelivery(state)
        self._persistence = OffsetPersistence(
            state, self._delivery.offset_to_save, self._delivery.broker_offsets.copy
        )
        self._group = self.live.group(self._persistence.flush)
        self._first_call_ms: int | None = None
        self._last_look_ms: int | None = None
        self._last_clean_ms: int | None = None

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        clock: Clock | None = None,
        levels: DelayLevels | None = None,
        dialect: Dialect | None = None,
        settings: StoreSettings = _SETTINGS,
        rounding: Literal["up", "exact"] = "up",
        rules: LevelRules = _RULES,
        offsets: OffsetsChoice | str = OffsetsChoice.AUTO,
        max_delay_ms: int | None = None,
        beyond_max: BeyondMax = "refuse",
        start_deliver_time_alias: bool = False,
    ) -> "LevelStore":
        """Open the store at ``path`` for writing, and make it when nothing is there.

        ``levels`` is the level table (a broker's `messageDelayLevel`). ``dialect`` None takes what
        the store's files show, and 4.9 for a new one. ``rounding`` says what
        becomes of a delay that is no level's: up to the next, or refused. ``offsets`` chooses which
        of the two offset files to believe, whatever a broker would. A delay beyond the longest
        level, or beyond ``max_delay_ms``, is refused, or with ``beyond_max="deliver"`` delivered at
        once; a level is never too long. ``start_deliver_time_alias`` lets ``put`` take
        __STARTDELIVERTIME for a due time. Raises ValueError for settings that nothing can have,
        before anything is made. Raises StoreLockedError when somebody has it open, SourceError when
        it cannot be read, OptionsError when messages wait that the level table does not fit,
        TargetError when the disk refuses. A store that is refused stays as it was, to the byte.
        """
        require_kinds(locals(), dialect=(Dialect, NoneType), rules=LevelRules)
        choice = OffsetsChoice(offsets)
        limit = DelayLimit(max_delay_ms=max_delay_ms, beyond_max=beyond_max)
        if rounding not in ("up", "exact"):
            raise ValueError(f"'rounding' must be 'up' or 'exact': {rounding!r}")
        lacked: dict[int, int] = {}

        def look_first(live: LiveStore, extent: Extent) -> None:
            refuse_before_recovery(live, extent, rules, choice)
            lacked.update(synced_entries_missing(live))

        live = LiveStore.open(
            path,
            clock=clock,
            dialect=dialect or dialect_of(StoreRoot(path)),
            settings=settings,
            level_table=levels,
            before_recovery=look_first,
        )

        def make() -> "LevelStore":
            state = open_levels(live, rules, choice, lacked)
            store = cls(state, rounding, limit, start_deliver_time_alias=start_deliver_time_alias)
            finish_rescheduling(store, LEVEL_TOPIC)
            store._persistence.flush()
            return store

        return made_or_let_go(live, LEVEL_TOPIC, make)

    # --- out --------------------------------------------------------------------------------------

    @takes(now_ms=Integral)
    def advance(self, now_ms: int) -> LogDeliveries:
        """Move everything that is due at ``now_ms`` into its topic.

        Raises TargetError when the disk refuses; what was delivered before that is delivered.
        """
        now_ms = min(now_ms, LONG_MAX)
        with self.live.reading():
            self.live.log.require_unbroken()  # retention too would take what may not be on disk
            # First what may fail and can wait: an error then hides no deliveries.
            self._persistence.at_interval(now_ms)
            self._clean(now_ms)
            self.live.write_checkpoint()
            if not self._looks_at(now_ms):
                nothing = np.zeros(0, np.int64)
                return LogDeliveries(self.live, nothing, nothing, nothing)
            with self.live.all_or_broken():
                deliveries = self._delivery.deliver(now_ms)
                self._persistence.count(len(deliveries), self.live.clock.now_ms())
            return deliveries

    def _looks_at(self, now_ms: int) -> bool:
        """Whether a broker with these timings would look at its levels now."""
        if self._first_call_ms is None:
            self._first_call_ms = now_ms
        if self._last_look_ms is not None and now_ms < self._last_look_ms:
            self._last_look_ms = now_ms  # set back: a broker's next look is as far as it was
        if self._next_look_ms(now_ms) > now_ms:
            return False
        self._last_look_ms = now_ms
        return True

    def _next_look_ms(self, now_ms: int) -> int:
        """When the levels are looked at, at this time or after it. No look has to be waited for
        that a clock was set back from, and the first run comes once: a clock that is set back into
        its wait begins no other.
        """
        timings, has_looked = self.state.rules.timings, self._last_look_ms is not None
        for since_ms, wait_ms in (
            (None if has_looked else self._first_call_ms, timings.first_run_ms),
            (self._last_look_ms, timings.poll_ms),
        ):
            if since_ms is not None and since_ms <= now_ms < since_ms + wait_ms:
                now_ms = since_ms + wait_ms
        return now_ms

    def _clean(self, now_ms: int) -> None:
        """Let retention take what is old, at its interval."""
        last_ms, interval_ms = self._last_clean_ms, self.state.rules.timings.clean_ms
        if last_ms is not None and last_ms <= now_ms < last_ms + interval_ms:
            return
        keep_from = self.live.log.end
        if self.state.rules.spare_waiting:  # and whatever another engine may still want
            elsewhere = self.live.first_of_others(LEVEL_TOPIC)
            keep_from = min(self.state.first_waiting_log_offset(), elsewhere)
        with self._persistence.try_writing() as is_free:
            if not is_free:
                return  # the next call tries again
            self._last_clean_ms = now_ms
            if self.live.clean(now_ms, keep_from, self._persistence.make_known):
                for cursor in self.state.all_cursors.values():
                    cursor.queue_was_cut()

    def next_due_ms(self) -> int | None:
        """The earliest time at which ``advance`` would deliver something."""
        with self.live.reading():
            due_ms = self._delivery.next_due_ms()
            if due_ms == NEVER_MS:
                return None
            soonest_ms = max(due_ms, self.live.clock.now_ms())
            next_ms = self._next_look_ms(soonest_ms)
            return next_ms if next_ms > soonest_ms else due_ms

    # --- looking and cancelling -------------------------------------------------------------------

    def _waiting(self, wanted: WaitingFilter) -> Iterator[Pending]:
        return iterate_pending(self.state, wanted)

    def waiting_records(self) -> Iterator[LogDeliveries]:
        """The record and the due time of each message that waits, level by level, in pieces."""
        with self.live.reading():
            return waiting_records(self.state)

    @takes(receipt=Receipt | str)
    def cancel(self, receipt: Receipt | str) -> Cancellation:
        """Cancel the message of a receipt, or all that a handle names.

        The entry is neutralised, in a way that brokers pass over too.
        """
        with self.live.reading():
            self.live.log.require_unbroken()  # what looks as if it waits may have been delivered
            entries = self._entries(receipt)
            waiting = [entry for entry in entries if entry.fate is Fate.WAITS]
            self._neutralise_waiting(waiting)
            return Cancellation.CANCELLED if waiting else verdict(entries)

    def _entries(self, receipt: Receipt | str) -> list[Entry]:
        if isinstance(receipt, Receipt):
            return entries_of_receipt(self.state, receipt)
        return entries_of_handle(self.state, RecallHandle.parse(receipt))

    def _neutralise_waiting(self, entries: list[Entry]) -> None:
        """Neutralise these entries, which wait."""
        if entries:  # nothing in the log tells of a cancel
            self.live.flush_all_next()
            self._persistence.note_cancel()
        for entry in entries:
            cursor = self.state.all_cursors[entry.level]
            place = np.array([entry.queue_offset], np.int64)
            neutralise(self.state, cursor, place, CANCELLED_BYTES)
            cursor.forget(entry.queue_offset)
            self._delivery.forget(entry.level, entry.queue_offset)

    @takes(receipt=Receipt | str, due=Due)
    def reschedule(self, receipt: Receipt | str, due: Due) -> Receipt | Cancellation:
        """Let a pending message wait for another time.

        The new record is on disk before the older entry is neutralised, and that is on disk when
        this returns: nothing in the log tells of it. ``finish_rescheduling`` is for a stop between.
        Raises SharedKeyError where several pending messages share what names this one.
        """
        with self.live.reading():
            self.live.log.require_unbroken()
            entries = self._entries(receipt)
            waiting = [entry for entry in entries if entry.fate is Fate.WAITS]
            if not waiting:
                return verdict(entries)
            [entry, *others] = waiting
            message = self.live.log.record(entry.commit_log_offset, entry.size_bytes)
            if others:
                raise SharedKeyError(len(waiting), message.real_topic, message.unique_key or "")
            older = receipt_for(
                message,
                entry.commit_log_offset,
                entry.due_ms,
                self.live.settings.broker_name,
            )
            with self.live.all_or_broken():
                now_ms = self.live.clock.now_ms()
                moved = self._intake.reschedule(older, message, due, now_ms)
                self.live.sync_log()
                self._neutralise_waiting(waiting)
                self.live.sync_queues()
            return moved

    def _findings(self) -> list[Finding]:
        return check_levels(self.state, self._delivery)

    def _found_at_opening(self) -> Iterable[Finding]:
        return of_opening(self.state)

    def _undelivered(self) -> list[Finding]:
        return list(undelivered(self.state))

    def close(self) -> None:
        """Flush, and let go of the files; closing twice is fine."""
        self._persistence.close()
