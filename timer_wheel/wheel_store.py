# SPDX-License-Identifier: Apache-2.0
"""``WheelStore``: messages for any time, on the files of a broker's timer wheel.

Scheduling stores a record of ``rmq_sys_wheel_timer`` and its queue entry, no more. ``advance``
places in bulk what the queue holds, takes the slots that are over, delivers, and sends round again
what is farther away than the wheel looks. A stock broker opens what this leaves and goes on with
it, and the other way about (docs/FORMAT.md, timer wheel).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from message_store.byte_column import Int64s, int64s
from message_store.clock import Clock
from message_store.delay_levels import DelayLevels
from message_store.delay_store import (
    BatchReceipt,
    Cancellation,
    Due,
    Finding,
    Pending,
    Receipt,
)
from message_store.dialect import Dialect
from message_store.errors import SourceError
from message_store.live_store import LiveStore
from message_store.live_topics import LiveTopic
from message_store.log_deliveries import LogDeliveries
from message_store.message import Message
from message_store.message_batch import MessageBatch
from message_store.recall_handle import RecallHandle
from message_store.store_root import StoreRoot
from message_store.store_settings import StoreSettings
from timer_wheel.live_timers import LiveTimers
from timer_wheel.recall import RecallMarks, Search, pending_markers
from timer_wheel.timeline_refusal import refuse_waiting_timeline
from timer_wheel.timer_properties import asked_by
from timer_wheel.turning import Turning
from timer_wheel.waiting import Filter, next_due_ms, waiting
from timer_wheel.wheel_check import check_wheel
from timer_wheel.wheel_intake import WheelIntake
from timer_wheel.wheel_opening import open_timers
from timer_wheel.wheel_settings import WheelSettings

_DEFAULTS = StoreSettings()


class WheelStore:
    """``DelayStore`` on a timer wheel. Made by ``open``.

    A message is promised for the end of the slot that holds its time, at most a slot's width later.
    ``levels`` are what ``AtLevel`` means, ``settings`` what was set about the wheel.

    Limitations: one thread at a time works, the others wait. A delete marker names a topic, a slot
    and a key, so that ``cancel`` takes back all messages that share them, also by a receipt.
    """

    def __init__(self, store: LiveStore, timers: LiveTimers, settings: WheelSettings) -> None:
        self.settings = settings
        self.levels = store.levels
        self._store = store
        self._timers = timers
        self._clock = store.clock
        self._intake = WheelIntake(store, timers, settings)
        self._turning = Turning(store, timers)
        self._marks: RecallMarks | None = None
        self._next_due: int | None = None
        self._knows_next_due = False
        self._group = store.group(self._flush)
        self._is_closed = False

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        clock: Clock | None = None,
        precision_ms: int | None = None,
        levels: DelayLevels | None = None,
        dialect: Dialect = Dialect.ROCKETMQ_5_5,
        settings: StoreSettings = _DEFAULTS,
        **wheel: Any,
    ) -> "WheelStore":
        """Open the store at ``path``, and make it when nothing is there.

        ``precision_ms`` is that of the wheel that is there, or 1000, when it is None. ``wheel``
        takes what ``WheelSettings`` has. Raises StoreLockedError when somebody has it open,
        SourceError for one that cannot be written to, whose wheel has another precision, or whose
        messages wait in a broker's RocksDB timeline.
        """
        refuse_waiting_timeline(StoreRoot(Path(path)))
        store = LiveStore.open(
            path, clock=clock, dialect=dialect, settings=settings, level_table=levels
        )
        try:
            timers, chosen = open_timers(store, precision_ms, wheel)
            return cls(store, timers, chosen)
        except BaseException as error:
            if store.was_clean and isinstance(error, SourceError | ValueError | TypeError):
                store.close()  # refused before anything was changed
            else:
                store.abandon()
            raise

    @property
    def live(self) -> LiveStore:
        """The log and the queues that it stands on."""
        return self._store

    @contextmanager
    def _use(self) -> Iterator[None]:
        with self._store.lock:
            self._store.require_open()
            yield

    # --- scheduling -------------------------------------------------------------------------------

    def schedule(self, message: Message, due: Due) -> Receipt:
        """Store a message for later."""
        store = self._store
        with store.lock:
            store.require_open()
            now_ms = self._clock.now_ms()
            self._knows_next_due = False
            count = store.log.append_count
            try:  # all_or_broken, but for what entering it costs
                return self._intake.schedule(message, self._intake.due_ms(due, now_ms), now_ms)
            except BaseException:
                store.doubt_what_follows(count)
                raise

    def put(self, message: Message) -> Receipt:
        """Store a message for the time that its own properties say, as a broker's clients do:
        DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, and as they say it.

        Raises BadFieldError for a property that cannot be read, UnsupportedDelayError for a delay
        beyond the limit.
        """
        with self._use(), self._store.all_or_broken():
            now_ms = self._clock.now_ms()
            alias = self.settings.start_deliver_time_alias
            asked = asked_by(message, now_ms, start_deliver_time_alias=alias)
            due_ms = self._intake.due_ms(asked.due, now_ms)
            self._knows_next_due = False
            self._marks = None if asked.kept else self._marks
            return self._intake.schedule(asked.message, due_ms, now_ms, asked.kept)

    def schedule_batch(self, batch: MessageBatch, due_ms: Int64s) -> BatchReceipt:
        """Store many messages, or none when one of them cannot be kept."""
        due_ms = int64s(due_ms)
        if due_ms.shape != (len(batch),):
            raise ValueError(f"{len(batch)} messages and due times of the shape {due_ms.shape}")
        with self._use(), self._store.all_or_broken():
            self._knows_next_due = False
            return self._intake.schedule_batch(batch, due_ms, self._clock.now_ms())

    # --- time -------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> LogDeliveries:
        """Move everything that is due at ``now_ms`` into its topic."""
        with self._use():
            self._knows_next_due = False
            self._clean(now_ms)  # first what may fail and can wait: it would hide deliveries
            with self._store.all_or_broken():
                return self._turning.turn(now_ms, self._recall_marks())

    def _clean(self, now_ms: int) -> None:
        """Take away old files; what waits keeps its record's."""
        log = self._store.log
        retention_ms = self._store.settings.retention_ms
        if (
            len(log.segments.starts) < 2
            or log.store_time_ms(log.min_offset) + retention_ms > now_ms
        ):
            return
        if self._store.clean(now_ms, self._timers.keep_from()):
            self._timers.log.delete_expired(log.min_offset)

    def next_due_ms(self) -> int | None:
        """The earliest time at which ``advance`` would deliver something."""
        with self._use():
            if not self._knows_next_due:
                self._timers.settle(self._clock.now_ms())
                self._next_due = next_due_ms(self._timers, self._recall_marks())
                self._knows_next_due = True
            return self._next_due

    def _recall_marks(self) -> RecallMarks:
        """The delete markers, looked for when they are first needed."""
        if self._marks is None:
            self._marks = RecallMarks()
            for facts in pending_markers(self._timers):
                self._marks.add(facts)
        return self._marks

    # --- what waits -------------------------------------------------------------------------------

    def pending(
        self,
        *,
        topic: str | None = None,
        level: int | None = None,
        due_after_ms: int | None = None,
        due_before_ms: int | None = None,
        unique_key: str | None = None,
    ) -> Iterator[Pending]:
        """What waits and passes every filter, slot after slot; no level is kept."""
        with self._use():
            self._timers.settle(self._clock.now_ms())
            wanted = Filter(topic, due_after_ms, due_before_ms, unique_key)
            marks = self._recall_marks()
        return iter(()) if level is not None else waiting(self._timers, marks, wanted)

    def cancel(self, receipt: Receipt | str) -> Cancellation:
        """Take back the messages that a receipt or a handle names."""
        text = receipt if isinstance(receipt, str) else receipt.handle
        handle = RecallHandle.parse(text)
        with self._use():
            if handle.broker_name != self._store.settings.broker_name:
                return Cancellation.NEVER_EXISTED
            self._timers.settle(self._clock.now_ms())
            search = Search(self._timers, handle)
            target = search.waiting()
            if target is None:
                return search.past()
            if target.recall_key not in self._recall_marks():
                self._knows_next_due = False
                with self._store.all_or_broken():
                    self._intake.recall(target, self._clock.now_ms())
                self._recall_marks().remember(target.recall_key, target.out_ms)
            return Cancellation.CANCELLED

    def topic(self, name: str) -> LiveTopic:
        """A topic's queues, for reading."""
        with self._use():
            return self._store.topic(name)

    # --- health and the end -----------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Every invariant that does not hold, worst first."""
        with self._use():
            return check_wheel(self._timers, self._turning.losses)

    def flush(self) -> None:
        """Come back when everything stored so far survives a loss of power."""
        self._store.require_open()
        self._group.run()

    def _flush(self) -> None:
        """Log, queues, timer log, wheel, checkpoints, in this order."""
        timers, store = self._timers, self._store
        with self._use():
            store.log.require_unbroken()
            own = timers.state_to_flush()
        store.sync_log()
        store.sync_queues()
        with self._use():
            timers.files.write_wheel(timers.wheel, timers.log.end)
            position = timers.log.end
            unsynced = timers.log.segments.begin_sync()
        store.finish(unsynced.finish)
        with self._use():
            store.finish(timers.files.sync_wheel)
            store.finish(lambda: timers.files.sync_checkpoint(position, own))
            timers.write_metrics()
        store.write_topics()
        store.write_checkpoint(durably=True)

    def close(self) -> None:
        """Place what can be placed, flush, and let go of the files; closing twice is fine."""
        with self._store.lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if not self._store.log.is_broken:
                    self._store.sync_log()  # units that say what was delivered must not outlive it
                    self._timers.place_all(self._clock.now_ms())
                    self._flush()
                self._store.close()
            finally:
                self._store.abandon()
                self._let_go()

    def abandon(self) -> None:
        """Let go of everything without a last word, as a kill would."""
        with self._store.lock:
            self._is_closed = True
            self._store.abandon()
            self._let_go()

    def _let_go(self) -> None:
        self._timers.log.segments.close()
        self._timers.files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
