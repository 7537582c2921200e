# SPDX-License-Identifier: Apache-2.0
"""``TimeIndexStore``: messages for any time within the log's retention, and an index beside the log
that says which of them are due when.

Scheduling stores a record and its queue entry. The index is written when the store is flushed, and
never synced: queue and log tell all that it holds (docs/FORMAT.md, time index).
"""

from collections.abc import Iterator
from numbers import Integral
from pathlib import Path

import attrs
import numpy as np

from message_store.base.clock import Clock
from message_store.base.errors import (
    BadFieldError,
    DelayLimitError,
    SharedKeyError,
    UnsupportedDelayError,
)
from message_store.base.kinds import takes
from message_store.columns.byte_column import Int64s, int64s
from message_store.columns.message_batch import MessageBatch
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.message import Message, StoredMessage
from message_store.format.message_codec import decode_message_at, encode_message
from message_store.format.properties import TIME_INDEX_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.intake.batch import draft_batch
from message_store.intake.engine import Engine
from message_store.intake.records import RecordForm, RecordMaker
from message_store.intake.rescheduling import finish_rescheduling, receipt_for, unfinished
from message_store.intake.store_intake import LiveIntake, Part
from message_store.interface.delay_store import (
    AfterMs,
    AtLevel,
    AtMs,
    BatchReceipt,
    Cancellation,
    Due,
    Finding,
    Pending,
    Receipt,
    Severity,
    named_by,
)
from message_store.interface.finding_rules import worst_first
from message_store.interface.promise_rules import NO_LIMIT, BeyondMax, DelayLimit, to_slot_end
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.batch import FROM_WHEEL, redeliver
from message_store.redelivery.deliveries import LogDeliveries, pending_among
from message_store.writing.findings import floor_findings, undeliverable, warn_of_other_engines
from message_store.writing.recovery import Extent
from message_store.writing.settings import StoreSettings, require_kinds
from message_store.writing.store import LiveStore
from time_index.index import CANCELS, MESSAGES, TimeIndex, bucket_of
from time_index.record_kernel import read_facts
from time_index.search import Named, waiting, waiting_records

_CANCEL_BODY = b"cancel"


class TimeIndexIntake:
    """Stores messages and cancels; whoever calls holds the store's lock.

    A promise is to the millisecond. A delay longer than ``limit`` or the log's retention is refused
    or delivered at once. A cancel is a record of queue 1 that names the message's first record, as
    a delivery does: so recovery has no rule of its own for cancels.
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
        """Store a pending message for another time with the cancel of the older, in one append."""
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
        """Store many messages, or none if one cannot be kept: raises the error of the latest."""
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
        require_kinds(locals())
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

    @takes(now_ms=Integral)
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

    @takes(receipt=Receipt | str)
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

    @takes(receipt=Receipt | str, due=Due)
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


# --- the invariants -------------------------------------------------------------------------------


def check_time_index(index: TimeIndex) -> list[Finding]:
    """What is wrong, worst first."""
    index.place_queued()
    found = [*_in_buckets(index), *_in_cancels(index), *index.losses, *undelivered(index)]
    return worst_first([*found, *floor_findings(index.store)])


def undelivered(index: TimeIndex) -> list[Finding]:
    """What could not be delivered."""
    lost = [(each.commit_log_offset, each.reason) for each in index.lost.all()]
    return [undeliverable(*each, "a broker does not look at it") for each in lost]


def _in_buckets(index: TimeIndex) -> Iterator[Finding]:
    """Messages whose records are lost, or say another time than the index."""
    for start_ms in index.starts():
        units = index.look(start_ms)
        facts = read_facts(index.store.log, units.offsets, units.sizes)
        for row in np.flatnonzero(facts.due_ms != units.due_ms).tolist():
            why = facts.problems.get(row, f"its record says {facts.due_ms[row]}")
            yield Finding(
                Severity.ERROR,
                f"commit log {units.offsets[row]}",
                f"a message that waits for {units.due_ms[row]}: {why}",
                "a broker does not look at it",
                "look at the record; schedule its message again if it is still wanted",
            )


def _in_cancels(index: TimeIndex) -> Iterator[Finding]:
    """Cancels whose records name no message any more."""
    queue = index.store.queue(TIME_INDEX_TOPIC, CANCELS)
    units = queue.units(queue.min_offset, queue.max_offset)
    offsets, sizes = int64s(units["commit_log_offset"]), int64s(units["size_bytes"])
    facts = read_facts(index.store.log, offsets, sizes)
    for row in np.flatnonzero(~facts.is_fine | (facts.firsts == offsets)).tolist():
        yield Finding(
            Severity.ERROR,
            f"commit log {offsets[row]}",
            f"a cancel is damaged: {facts.problems.get(row, 'it names no message')}",
            "a broker does not look at it",
            "cancel that message again, if it still waits; look at the disk",
        )
