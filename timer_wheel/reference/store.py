# SPDX-License-Identifier: Apache-2.0
"""``ReferenceWheelStore``: the reference wheel as an engine, on the files of a store.

It takes messages in as ``WheelStore`` does, and delivers them by ``TimerMessageStore``, one at a
time, in a broker's ways. It is for reading, for stepping, and as the oracle of ``WheelStore``; it
is slow. A kill delivers again what was delivered since the last flush, as in brokers. A refusal of
the disk is raised, and the store has to be opened again: brokers lose what is refused three times.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from message_store.base.clock import Clock
from message_store.base.errors import UnsupportedStoreError
from message_store.columns.byte_column import int64s
from message_store.engine.engine import made_or_let_go
from message_store.engine.timed_engine import NamedMessages
from message_store.files.store_root import StoreRoot
from message_store.format import properties as names
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import parse_long
from message_store.format.message import StoredMessage
from message_store.format.properties import TIMER_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.intake.rescheduling import refuse_unfinished
from message_store.interface.delay_store import Cancellation, Finding, Receipt
from message_store.interface.finding_rules import worst_first
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.findings import queue_findings
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from timer_wheel.format.checkpoint import TimerCheckpoint
from timer_wheel.format.timer_log import FLAG_DELETE, TIMER_UNIT
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS, floor_ms
from timer_wheel.reading.lost_messages import LostMessages
from timer_wheel.reading.ownership import read_active
from timer_wheel.reading.timeline import refuse_waiting_timeline
from timer_wheel.reference.files import (
    CheckFileOfStore,
    LogOfUnits,
    MetricsOfStore,
    QueueOfStore,
    RecordsOfStore,
    SlotsOfWheel,
    promised_ms,
)
from timer_wheel.reference.protocol import StoreFiles, TimerConfig
from timer_wheel.timer_message_store import AbstractStateService, TimerMessageStore
from timer_wheel.timers.intake import TimerIntake
from timer_wheel.timers.recall import Target
from timer_wheel.timers.store import TimerStore
from timer_wheel.wheel.settings import DEFAULT_MAX_DELAY_MS, WheelSettings

_DEFAULTS = StoreSettings()


class TurnClock:
    """The clock of a store, but for while it is turned: then it shows the time that is asked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_ms: int | None = None

    def now_ms(self) -> int:
        """The time, epoch milliseconds."""
        return self._clock.now_ms() if self._turned_ms is None else self._turned_ms

    def sleep_ms(self, duration_ms: float) -> None:
        """Come back when so much time has passed."""
        self._clock.sleep_ms(duration_ms)

    @contextmanager
    def turned_to(self, now_ms: int) -> Iterator[None]:
        """Show this time meanwhile."""
        self._turned_ms = now_ms
        try:
            yield
        finally:
            self._turned_ms = None


class ReferenceIntake(TimerIntake):
    """Stores messages and delete markers. What is due when it is stored gets a slot that is over:
    the services hand it on without a unit. (A broker stores it in its own topic, without a wheel.)
    """

    def _overdue_out_ms(self, now_ms: int) -> int:
        precision_ms = self.settings.precision_ms
        return max(floor_ms(now_ms, precision_ms) - precision_ms, 0)

    def _refuse_congestion(self, out: int, now_ms: int, more: int = 0) -> None:
        """No slot holds too much here."""


@attrs.frozen
class _Named:
    """The message of a handle, or what became of it."""

    _targets: list[Target]
    _fate: Cancellation

    def waiting(self) -> list[Target]:
        """The message, if it is pending."""
        return self._targets

    def past(self) -> Cancellation:
        """What became of it, if it is not."""
        return self._fate

    def count_alike(self, target: Target) -> int:
        """Only who reschedules asks. Raises UnsupportedStoreError."""
        raise UnsupportedStoreError("RocketMQ cannot reschedule a message; WheelStore can")


class TimersOfStore(TimerMessageStore):
    """The timers of a store whose flush waits for all: what its checkpoint names was put."""

    def load(self) -> None:
        """Recover. What was due when it was read has no unit: a broker would put it again. Where
        the timer log has lost what the checkpoint knows, a unit may be lost as well, and it does.
        """
        known = self.timer_checkpoint
        super().load()
        last = known.flush_position - TIMER_UNIT.size
        is_whole = last < 0 or self.timer_log.get_timer_message(last) is not None
        done = known.last_queue_offset if is_whole else 0
        while self.curr_queue_offset < done and self._was_over(self.curr_queue_offset, known):
            self.curr_queue_offset += 1
        self.commit_queue_offset = self.curr_queue_offset

    def _was_over(self, queue_offset: int, known: TimerCheckpoint) -> bool:
        """Whether the slot of an entry was over when the checkpoint was written."""
        unit = self.queue.unit(queue_offset)
        message = None if unit is None else self.message_store.get_message(*unit)
        if message is None or names.TIMER_OUT_MS not in message.properties:
            return unit is not None
        return parse_long(message.properties[names.TIMER_OUT_MS]) < known.last_read_time_ms


class ReferenceWheelStore(TimerStore):
    """``DelayStore`` by RocketMQ's own algorithm. Made by ``open``. ``timers`` is the algorithm,
    for whoever wants to step it; ``advance`` steps it until it waits for the clock.
    """

    def __init__(self, store: LiveStore, settings: WheelSettings) -> None:
        self.settings = settings
        root, precision_ms = store.root, settings.precision_ms
        self._log = LogOfUnits(root, store.settings.timer_log_file_bytes)
        self._wheel = SlotsOfWheel(root, precision_ms)
        self._turns = TurnClock(store.clock)
        self._records = RecordsOfStore(store, self._turns, precision_ms)
        self._metrics = MetricsOfStore(root)
        queue = store.queue(TIMER_TOPIC, 0)
        self._queue = QueueOfStore(queue)
        config = TimerConfig(precision_ms, settings.roll_window_slots, store.dialect)
        check_file = CheckFileOfStore(root)
        files = StoreFiles(
            self._queue, self._records, self._log, self._wheel, check_file, self._metrics
        )
        self.timers = TimersOfStore(config, self._turns, files)
        try:
            self.timers.load()
        except BaseException:
            self._let_go()
            raise
        self.timers.start()
        super().__init__(store, ReferenceIntake(store, queue, settings))

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        clock: Clock | None = None,
        levels: DelayLevels | None = None,
        dialect: Dialect = Dialect.ROCKETMQ_5_5,
        settings: StoreSettings = _DEFAULTS,
        precision_ms: int = DEFAULT_PRECISION_MS,
        max_delay_ms: int | None = DEFAULT_MAX_DELAY_MS,
        rules: WheelSettings | None = None,
    ) -> "ReferenceWheelStore":
        """Open the store at ``path``, and make it when nothing is there. ``rules`` are all settings
        of a wheel at once. A precision that is not that of the wheel loses messages, as in a
        broker. Raises as ``WheelStore.open``, and UnsupportedStoreError for a hierarchical wheel's.
        """
        wanted = WheelSettings.of_broker(
            "5.5.0", precision_ms=precision_ms, max_delay_ms=max_delay_ms
        )
        if rules is not None:
            wanted = rules.in_place_of(wanted)
        root = StoreRoot(Path(path))
        refuse_waiting_timeline(root)
        if read_active(root) is not None:
            raise UnsupportedStoreError(f"{path}: the store of a hierarchical wheel")
        store = LiveStore.open(
            path,
            clock=clock,
            dialect=dialect,
            settings=settings,
            level_table=levels,
            before_recovery=refuse_unfinished,
        )
        return made_or_let_go(store, TIMER_TOPIC, lambda: cls(store, wanted))

    # --- time -------------------------------------------------------------------------------------

    def _place_queued(self) -> None:
        """Let the first two services work, until they wait."""
        self._run(self.timers.services[:2])

    def _run(self, services: Iterable[AbstractStateService]) -> None:
        """Step services until each of them waits. One that is stopped in its midst never goes on.
        Raises TargetError.
        """
        self.live.log.require_unbroken()
        try:
            run_until_idle(services)
        except BaseException:
            self.live.log.break_off()
            raise

    def _turn(self, now_ms: int) -> LogDeliveries:
        """Step all services until each waits for the clock. A time before the last is none."""
        if floor_ms(now_ms, self.timers.precision_ms) >= self.timers.curr_write_time_ms:
            with self._turns.turned_to(now_ms):
                self._run(self.timers.services)
        puts = self._records.take_delivered()
        columns = zip(*(attrs.astuple(put) for put in puts), strict=True) if puts else ((), (), ())
        offsets, sizes, promised = columns
        return LogDeliveries(self.live, offsets, sizes, promised)

    def _clean(self, now_ms: int) -> None:
        first = self.live.first_of_others(TIMER_TOPIC)
        # Markers too: each takes messages that came later, and whose records stay.
        keep_from = min([first, *(message.commit_log_offset for message, _ in self._found())])
        if self.live.clean(now_ms, keep_from, self.timers.flush):
            self._log.delete_expired(self.live.log.min_offset)

    def _find_next_due(self) -> int | None:
        unplaced = [*self._without_units()]
        if self._log.has_deletes or any(map(is_marker, unplaced)):
            return min((due_ms for _, due_ms in self._messages()), default=None)
        precision_ms = self.timers.precision_ms
        slots = self._wheel.times_from(self.timers.curr_read_time_ms)
        first = [time_ms + precision_ms for time_ms in (next(slots, None),) if time_ms]
        return min([*(promised_ms(each, precision_ms) for each in unplaced), *first], default=None)

    # --- pending messages -----------------------------------------------------------------------

    def _without_units(self) -> Iterator[StoredMessage]:
        """What the services have in hand, and what of the queue they have not read."""
        timers = self.timers
        for request in [*timers.dequeue_put_queue, *timers.enqueue_put_queue]:
            if request.msg is not None:
                yield request.msg
        for offset in range(timers.curr_queue_offset, self._queue.max_offset):
            unit = self._queue.unit(offset)
            message = None if unit is None else self._records.get_message(*unit)
            if message is not None and names.TIMER_OUT_MS in message.properties:
                yield message

    def _on_wheel(self) -> Iterator[tuple[StoredMessage, int]]:
        """The records of all units, slot by slot and oldest first, with their flags."""
        for time_ms in [*self._wheel.times_from(self.timers.curr_read_time_ms)]:
            chain, position = [], self._wheel.get_slot(time_ms).last_pos
            while position != -1 and (unit := self._log.get_timer_message(position)) is not None:
                chain.append(unit)
                position = unit["previous_position"]
            for unit in reversed(chain):
                place = unit["commit_log_offset"], unit["record_size_bytes"]
                message = self._records.get_message(*place)
                if message is not None:
                    yield message, unit["magic"]

    def _found(self) -> list[tuple[StoredMessage, int]]:
        """Every message and marker that waits, with the flags of its unit if it has one."""
        return [(message, 0) for message in self._without_units()] + [*self._on_wheel()]

    def _messages(self) -> Iterator[tuple[StoredMessage, int]]:
        """Every message that waits and that no marker takes, and when it will be delivered."""
        precision_ms, found = self.timers.precision_ms, self._found()
        marked = {
            (message.properties[names.TIMER_DELETE_UNIQUE_KEY], promised_ms(message, precision_ms))
            for message, _ in found
            if is_marker(message)
        }
        for message, flags in found:
            if flags & FLAG_DELETE or is_marker(message):
                continue
            due_ms = promised_ms(message, precision_ms)
            key = self.timers.build_delete_key(message.real_topic, message.unique_key or "")
            if (key, due_ms) not in marked:
                yield message, due_ms

    def _pieces(self, wanted: WaitingFilter) -> Iterator[LogDeliveries]:
        found = [each for each in self._messages() if wanted.in_time(each[1])]
        sizes = int64s([self._size_of(message) for message, _ in found])
        offsets = int64s([message.commit_log_offset for message, _ in found])
        return iter(
            [LogDeliveries(self.live, offsets, sizes, int64s([due_ms for _, due_ms in found]))]
        )

    def _size_of(self, message: StoredMessage) -> int:
        head = self.live.log.head(message.commit_log_offset)
        return 0 if head is None else head["size_bytes"]

    # --- cancelling -------------------------------------------------------------------------------

    def cancel(self, receipt: Receipt | str) -> Cancellation:
        """As in every engine. Its time stands still meanwhile: the slot of a marker that is on its
        way must not end.
        """
        with self.live.reading(), self._turns.turned_to(self.clock.now_ms()):
            return super().cancel(receipt)

    def _marker_is_stored(self) -> None:
        """A marker is told by its unit."""

    def _search(self, handle: RecallHandle, first_offset: int | None) -> NamedMessages[Target]:
        """One marker is enough: it takes what has its key and slot, also what comes later. None
        gets into a slot that is over: its messages are as good as delivered. The write time may
        stand behind the clock, while what is overdue waits to be put.
        """
        precision_ms = self.timers.precision_ms
        now_ms = floor_ms(self._turns.now_ms(), precision_ms)
        write_time_ms = max(self.timers.curr_write_time_ms, now_ms)
        for message, due_ms in self._messages():
            slot_ms = due_ms - precision_ms
            if slot_ms >= write_time_ms and self._is_named(message, due_ms, handle):
                return _Named([Target(message, slot_ms, due_ms, (0, 0))], Cancellation.CANCELLED)
        return _Named([], self._fate(handle))

    def _was_recalled(self, target: Target, marker_offset: int | None) -> None:
        self._place_all()

    def _is_named(self, message: StoredMessage, due_ms: int, handle: RecallHandle) -> bool:
        is_it = (message.unique_key, message.real_topic) == (handle.unique_key, handle.topic)
        brokers_ms = due_ms - self.timers.precision_ms + 1
        return is_it and handle.due_ms in (due_ms, brokers_ms)

    def _fate(self, handle: RecallHandle) -> Cancellation:
        """What became of a message that does not wait, by all records of the timer queue."""
        outcome = Cancellation.NEVER_EXISTED
        for offset in range(self._queue.min_offset, self._queue.max_offset):
            unit = self._queue.unit(offset)
            message = None if unit is None else self._records.get_message(*unit)
            if message is None or names.TIMER_OUT_MS not in message.properties:
                continue
            if self._is_named(message, promised_ms(message, self.timers.precision_ms), handle):
                if is_marker(message):
                    return Cancellation.CANCELLED
                outcome = Cancellation.ALREADY_DELIVERED
        return outcome

    # --- health and the end -----------------------------------------------------------------------

    def _lost(self) -> LostMessages:
        return LostMessages(self.live.root)

    def _findings(self) -> list[Finding]:
        return worst_first([*self._lost().findings(), *queue_findings(self.live)])

    def flush(self) -> None:
        """Log, queues, timer log, slots and checkpoint, durably and in this order."""
        self.live.flush_all_next()  # the log does not tell a broker what was delivered
        super().flush()

    def _flush(self) -> None:
        store = self.live
        with store.reading():  # the checkpoint names nothing that is not on the disk
            self._place_all()
            store.sync_log()
            store.sync_queues()
            store.sync_or_break(self.timers.flush)  # a sync that failed succeeds the next time
            self._metrics.persist(self.timers.timer_checkpoint.counter, self.clock.now_ms())
        store.write_topics()
        store.write_checkpoint(durably=True)

    def _place_all(self) -> None:
        """Put what is overdue, or what lies behind it in the queue is not placed."""
        enqueue_put, enqueue_get, *_, dequeue_put = self.timers.services
        self._run((enqueue_put, enqueue_get, dequeue_put))

    def _end(self) -> None:
        self._place_all()
        self.live.sync_log()
        self.timers.shutdown()

    def _let_go(self) -> None:
        self._log.close()
        self._wheel.close()


def is_marker(message: StoredMessage) -> bool:
    """Whether it is a delete marker."""
    return names.TIMER_DELETE_UNIQUE_KEY in message.properties


def run_until_idle(services: Iterable[AbstractStateService]) -> None:
    """Step services, again and again, until each of them waits for the clock."""
    services = tuple(services)
    while any([_was_busy(service) for service in services]):  # noqa: C419, each is to be stepped
        pass


def _was_busy(service: AbstractStateService) -> bool:
    was_busy = False
    while service.step() == 0:
        was_busy = True
    return was_busy
