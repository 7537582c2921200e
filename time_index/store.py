# SPDX-License-Identifier: Apache-2.0
"""``TimeIndexStore``: messages for any time within the log's retention, and an index beside the log
that says which of them are due when.

Scheduling stores a record and its queue entry. The index is written when the store is flushed, and
never synced: queue and log tell all that it holds (docs/FORMAT.md, time index).
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import numpy as np

from message_store.base.clock import Clock
from message_store.base.errors import (
    BadFieldError,
    DelayLimitError,
    UnsupportedDelayError,
)
from message_store.columns.byte_column import Int64s, int64s
from message_store.columns.message_batch import MessageBatch
from message_store.engine.engine import made_or_let_go
from message_store.engine.other_levels import refuse_another_level_table
from message_store.engine.timed_engine import TimedEngine
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.message import Message, StoredMessage
from message_store.format.message_codec import decode_message_at, encode_message
from message_store.format.properties import TIME_INDEX_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.intake.batch import draft_batch
from message_store.intake.records import RecordForm, RecordMaker
from message_store.intake.rescheduling import finish_rescheduling, receipt_for, unfinished
from message_store.intake.store_intake import LiveIntake, Part
from message_store.interface.delay_store import (
    AfterMs,
    AtLevel,
    AtMs,
    BatchReceipt,
    Due,
    Finding,
    Receipt,
)
from message_store.interface.finding_rules import found_error, worst_first
from message_store.interface.promise_rules import (
    NO_LIMIT,
    BeyondMax,
    DelayLimit,
    require_kept,
    to_slot_end,
)
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.batch import FROM_WHEEL, redeliver
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.findings import floor_findings, undeliverable
from message_store.writing.recovery import Extent
from message_store.writing.settings import StoreSettings, require_kinds
from message_store.writing.store import LiveStore
from time_index.index import CANCELS, MESSAGES, TimeIndex, bucket_of
from time_index.record_kernel import read_facts
from time_index.search import Named, waiting

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
        require_kept(due_ms, now_ms)
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


def _refuse_before_recovery(live: LiveStore, extent: Extent) -> None:
    unfinished(live, TIME_INDEX_TOPIC)
    refuse_another_level_table(live, extent)


class TimeIndexStore(TimedEngine[StoredMessage]):
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
        self._index = TimeIndex.open(store)
        super().__init__(store, TimeIndexIntake(store, limit), alias=start_deliver_time_alias)

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

        def make() -> "TimeIndexStore":
            made = cls(store, limit, start_deliver_time_alias=start_deliver_time_alias)
            finish_rescheduling(made, TIME_INDEX_TOPIC)
            return made

        return made_or_let_go(store, TIME_INDEX_TOPIC, make)

    # --- time -------------------------------------------------------------------------------------

    def _place_queued(self) -> None:
        self._index.place_queued()

    def _turn(self, now_ms: int) -> LogDeliveries:
        """A killed process has appended all of it or nothing; each record names the one that it
        takes on, and so the next opening knows.
        """
        self._index.place_queued()
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
        self._index.place_queued()
        keep_from = min(self._index.first_offset(), self.live.first_of_others(TIME_INDEX_TOPIC))
        self.live.clean(now_ms, keep_from, lambda: None)

    def _find_next_due(self) -> int | None:
        return self._index.first_due_ms()

    # --- pending messages -----------------------------------------------------------------------

    def _pieces(self, wanted: WaitingFilter) -> Iterator[LogDeliveries]:
        return waiting(self._index, wanted)

    def _search(self, handle: RecallHandle, first_offset: int | None) -> Named:
        return Named(self._index, handle, first_offset)

    def _recall(self, target: StoredMessage, handle: RecallHandle) -> None:
        with self.live.all_or_broken():
            self._intake.cancel(target, handle.due_ms, self.clock.now_ms())
            self._index.take_out(bucket_of(handle.due_ms), int64s([target.commit_log_offset]))

    def _move(self, target: StoredMessage, handle: RecallHandle, due: Due) -> Receipt:
        at = target.commit_log_offset
        older = receipt_for(target, at, handle.due_ms, handle.broker_name)
        with self.live.all_or_broken():
            moved = self._intake.reschedule(older, target, due, self.clock.now_ms())
            self._index.take_out(bucket_of(handle.due_ms), int64s([at]))
        return moved

    # --- health and the end -----------------------------------------------------------------------

    def _found_at_opening(self) -> Iterable[Finding]:
        return self._index.losses

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
            yield found_error(
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
        yield found_error(
            f"commit log {offsets[row]}",
            f"a cancel is damaged: {facts.problems.get(row, 'it names no message')}",
            "a broker does not look at it",
            "cancel that message again, if it still waits; look at the disk",
        )
