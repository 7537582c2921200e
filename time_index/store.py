# SPDX-License-Identifier: Apache-2.0
"""``TimeIndexStore``: messages for any time within the log's retention, and an index beside the log
that says which of them are due when.

Scheduling stores a record and its queue entry. The index is written when the store is flushed, and
never synced: queue and log tell all that it holds (docs/FORMAT.md, time index).
"""

from collections.abc import Iterator
from pathlib import Path

from message_store.base.clock import Clock
from message_store.base.errors import BadFieldError, SharedKeyError
from message_store.columns.byte_column import int64s
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage
from message_store.format.properties import TIME_INDEX_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.intake.engine import Engine
from message_store.intake.rescheduling import finish_rescheduling, receipt_for, unfinished
from message_store.interface.delay_store import (
    Cancellation,
    Due,
    Finding,
    Pending,
    Receipt,
    named_by,
)
from message_store.interface.promise_rules import NO_LIMIT, BeyondMax, DelayLimit
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.batch import FROM_WHEEL, redeliver
from message_store.redelivery.deliveries import LogDeliveries, pending_among
from message_store.writing.findings import warn_of_other_engines
from message_store.writing.recovery import Extent
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from time_index.check import check_time_index, undelivered
from time_index.index import TimeIndex, bucket_of
from time_index.intake import TimeIndexIntake
from time_index.search import Named, waiting, waiting_records

_DEFAULTS = StoreSettings()
_LATEST_ADVANCE_MS = 2**62
"""Later than every promise; what is asked for beyond it would only overflow."""


def _refuse_before_recovery(live: LiveStore, _extent: Extent) -> None:
    unfinished(live, TIME_INDEX_TOPIC)


class TimeIndexStore(Engine):
    """``DelayStore`` on a time index. Made by ``open``.

    A message is promised for the millisecond that is asked for, within ``settings.retention_ms``.
    ``levels`` are what ``AtLevel`` means.

    Limitations: one thread at a time works, the others wait. No broker reads the index: only
    this engine delivers what is pending here.
    """

    _intake: TimeIndexIntake

    def __init__(
        self,
        store: LiveStore,
        limit: DelayLimit = NO_LIMIT,
        *,
        start_deliver_time_alias: bool = False,
    ) -> None:
        self.live = store
        self._index = TimeIndex.open(store)
        self._intake = TimeIndexIntake(store, limit)
        self._alias = start_deliver_time_alias
        self._group = store.group(self._flush)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        clock: Clock | None = None,
        levels: DelayLevels | None = None,
        dialect: Dialect = Dialect.ROCKETMQ_5_5,
        settings: StoreSettings = _DEFAULTS,
        max_delay_ms: int | None = None,
        beyond_max: BeyondMax = "refuse",
        start_deliver_time_alias: bool = False,
    ) -> "TimeIndexStore":
        """Open the store at ``path``, and make it when nothing is there.

        A delay longer than ``max_delay_ms``, or than the log's retention where that is shorter, is
        refused, or with ``beyond_max="deliver"`` delivered at once. ``start_deliver_time_alias``
        lets ``put`` take __STARTDELIVERTIME for a due time.

        Raises ValueError for settings that nothing can have, before anything is made. Raises
        StoreLockedError when somebody has it open, SourceError for one that cannot be written to,
        BadFieldError for ``repeat_after_kill``: there is no broker whose way that were.
        """
        limit = DelayLimit(max_delay_ms=max_delay_ms, beyond_max=beyond_max)
        if settings.repeat_after_kill:
            raise BadFieldError(
                "repeat_after_kill: a time index never repeats", expected=False, found=True
            )
        store = LiveStore.open(
            path,
            clock=clock,
            dialect=dialect,
            settings=settings,
            level_table=levels,
            before_recovery=_refuse_before_recovery,
        )
        try:
            made = cls(store, limit, start_deliver_time_alias=start_deliver_time_alias)
            finish_rescheduling(made, TIME_INDEX_TOPIC)
        except BaseException:
            store.abandon()
            raise
        warn_of_other_engines(store, TIME_INDEX_TOPIC)
        return made

    # --- time -------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> LogDeliveries:
        """Move everything that is due at ``now_ms`` into its topic."""
        now_ms = min(now_ms, _LATEST_ADVANCE_MS)
        with self.live.reading():
            self.live.log.require_unbroken()
            self._index.place_queued()
            self._clean(now_ms)  # first what may fail: it would hide deliveries
            with self.live.all_or_broken():
                return self._deliver(now_ms)

    def _deliver(self, now_ms: int) -> LogDeliveries:
        """A killed process has appended all of it or nothing; each record names the one that it
        takes on, and so the next opening knows.
        """
        index, due = self._index, self._index.due(now_ms)
        if not len(due):
            return LogDeliveries(self.live, *3 * [int64s([])])
        done = redeliver(
            self.live,
            due.offsets,
            due.sizes,
            FROM_WHEEL,
            prepared_offsets=~due.offsets,
            store_ms=max(self.live.clock.now_ms(), now_ms),
        )
        index.drop_due(now_ms)
        index.lost.lose(due.offsets, done.bad)
        index.relieve()
        return LogDeliveries(self.live, done.positions, done.sizes, due.due_ms[done.rows])

    def _clean(self, now_ms: int) -> None:
        """Let retention remove old files, but for those with pending messages."""
        log, settings = self.live.log, self.live.settings
        is_any_old = self.live.retention.kept is not None or (
            len(log.segments.starts) > 1
            and log.store_time_ms(log.min_offset) + settings.retention_ms <= now_ms
        )
        if is_any_old:
            keep_from = min(self._index.first_offset(), self.live.first_of_others(TIME_INDEX_TOPIC))
            self.live.clean(now_ms, keep_from, lambda: None)

    def next_due_ms(self) -> int | None:
        """The earliest promise."""
        with self.live.reading():
            self._index.place_queued()
            return self._index.first_due_ms()

    # --- pending messages -----------------------------------------------------------------------

    def _waiting(self, wanted: WaitingFilter) -> Iterator[Pending]:
        self._index.place_queued()
        if wanted.level is not None:
            return iter(())
        return pending_among(self.live, waiting(self._index, wanted), wanted)

    def waiting_records(self) -> Iterator[LogDeliveries]:
        """The record and the promise of each message that waits, in pieces."""
        with self.live.reading():
            self._index.place_queued()
            return waiting_records(self._index)

    def cancel(self, receipt: Receipt | str) -> Cancellation:
        """Cancel the message of a receipt, or all that a handle names."""
        handle, first_offset = named_by(receipt)
        with self.live.reading():
            messages = self._pending_of(handle, first_offset)
            if isinstance(messages, Cancellation):
                return messages
            for message in messages:
                with self.live.all_or_broken():
                    self._intake.cancel(message, handle.due_ms, self.live.clock.now_ms())
                    offsets = int64s([message.commit_log_offset])
                    self._index.take_out(bucket_of(handle.due_ms), offsets)
            return Cancellation.CANCELLED

    def _pending_of(
        self, handle: RecallHandle, first_offset: int | None
    ) -> list[StoredMessage] | Cancellation:
        """The pending messages of a handle, or what became of those that it names."""
        if handle.broker_name != self.live.settings.broker_name:
            return Cancellation.NEVER_EXISTED
        self.live.log.require_unbroken()
        self._index.place_queued()
        named = Named(handle, first_offset)
        return named.pending(self._index) or named.fate(self._index)

    def reschedule(self, receipt: Receipt | str, due: Due) -> Receipt | Cancellation:
        """Let a pending message wait for another time. Raises SharedKeyError where several pending
        messages share what names this one.
        """
        handle, first_offset = named_by(receipt)
        with self.live.reading():
            messages = self._pending_of(handle, first_offset)
            if isinstance(messages, Cancellation):
                return messages
            if len(messages) > 1:
                raise SharedKeyError(len(messages), handle.topic, handle.unique_key)
            [message] = messages
            at = message.commit_log_offset
            older = receipt_for(message, at, handle.due_ms, handle.broker_name)
            with self.live.all_or_broken():
                now_ms = self.live.clock.now_ms()
                moved = self._intake.reschedule(older, message, due, now_ms)
                self._index.take_out(bucket_of(handle.due_ms), int64s([at]))
            return moved

    # --- health and the end -----------------------------------------------------------------------

    def _findings(self) -> list[Finding]:
        return check_time_index(self._index)

    def _undelivered(self) -> list[Finding]:
        return undelivered(self._index)

    def _flush(self) -> None:
        """Log, queues, index, checkpoint, in this order; the index is not waited for."""
        self.live.sync_log()
        self.live.sync_queues()
        with self.live.reading():
            self._index.save()
            self._index.lost.save()
        self.live.write_topics()
        self.live.write_checkpoint(durably=True)

    def close(self) -> None:
        """Flush, and let go of the files; closing twice is fine."""
        with self.live.lock:
            if self.live.is_closed:
                return
            try:
                if not self.live.log.is_broken:
                    self._flush()
                self.live.close()
            finally:
                self.live.abandon()
