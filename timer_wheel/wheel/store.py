# SPDX-License-Identifier: Apache-2.0
"""``WheelStore``: the fast form of ``ReferenceWheelStore``, on the files of a broker's wheel.

Scheduling stores a record of ``rmq_sys_wheel_timer`` and its queue entry, no more. ``advance``
places the queue's entries in bulk, reads the slots that are over, delivers, and rolls messages that
are farther away than the wheel looks. A stock broker opens what this leaves and goes on with it,
and the other way about (docs/FORMAT.md, timer wheel).
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from message_store.base.clock import Clock
from message_store.base.errors import UnsupportedDelayError
from message_store.base.printable import counted
from message_store.columns.byte_column import Int64s, int64s
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import INT_MAX
from message_store.format.properties import TIMER_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Finding
from message_store.interface.promise_rules import BeyondMax
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from timer_wheel.format.timer_due import overdue_out_ms
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS, DEFAULT_ROLL_WINDOW_SLOTS
from timer_wheel.reading.ownership import read_active
from timer_wheel.reading.timeline import refuse_waiting_timeline
from timer_wheel.timers.intake import TimerIntake
from timer_wheel.timers.lost_messages import LostMessages
from timer_wheel.timers.recall import RecallMarks, Target
from timer_wheel.timers.store import TimerStore, made_or_let_go
from timer_wheel.wheel.check import check_wheel
from timer_wheel.wheel.leaving import place_all, place_markers
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.opening import open_timers, refuse_before_recovery
from timer_wheel.wheel.recall_search import Search, find_markers
from timer_wheel.wheel.recovery import forget_dealt_with
from timer_wheel.wheel.settings import DEFAULT_MAX_DELAY_MS, WheelSettings
from timer_wheel.wheel.turn import Turning
from timer_wheel.wheel.waiting import next_due_ms, waiting

_NO_LIMIT = 2**31 - 1


class WheelIntake(TimerIntake):
    """Stores messages and delete markers for one wheel; whoever calls holds the store's lock."""

    def __init__(self, store: LiveStore, timers: LiveTimers, settings: WheelSettings) -> None:
        super().__init__(store, timers.queue, settings)
        self._timers = timers
        self._limit = settings.congest_num_each_slot
        self._is_limited = self._limit < _NO_LIMIT
        self._dice = random.Random()

    def _overdue_out_ms(self, now_ms: int) -> int:
        return overdue_out_ms(now_ms, self._timers.wheel.hand_ms, self.settings.precision_ms)

    def _refuse_congestion(self, out: int, now_ms: int, more: int = 0) -> None:
        """Refuse some messages for a full slot, as a broker does, and all at twice its limit.
        ``more`` go there before this one.
        """
        limit = self._limit
        self._timers.place_queued(now_ms)
        held = self._timers.wheel.unit_count(out - out % self.settings.precision_ms) + more
        if held <= limit:
            return
        odds = 1000 * (held - limit) / (limit + 0.1)
        if held >= 2 * limit or self._dice.randrange(1000) > odds:
            told = counted(held, "message")
            raise UnsupportedDelayError(f"its slot holds {told}, the limit is {limit:,}")


_DEFAULTS = StoreSettings()


def _begin(
    store: LiveStore, precision_ms: int | None, wheel: WheelSettings
) -> tuple[LiveTimers, WheelSettings]:
    """The timers of an open store, taken over where a hierarchical wheel has them."""
    if read_active(store.root) is None:
        return open_timers(store, precision_ms, wheel)
    from timer_wheel.handover.to_wheel import hand_over

    return hand_over(store, precision_ms, wheel)


class WheelStore(TimerStore):
    """``DelayStore`` on a timer wheel. Made by ``open``.

    A message is promised for the end of the slot that holds its time, at most a slot's width later.
    ``levels`` are what ``AtLevel`` means, ``settings`` what was set about the wheel.

    Limitations: one thread at a time works, the others wait. To a broker a delete marker names a
    slot and a key: it takes all messages that share them, also those that a receipt spared here and
    those that were scheduled behind the cancel (docs/ENGINES.md).
    """

    def __init__(self, store: LiveStore, timers: LiveTimers, settings: WheelSettings) -> None:
        self.settings = settings
        self._timers = timers
        self._turning = Turning(store, timers)
        self._marks: RecallMarks | None = None
        super().__init__(store, WheelIntake(store, timers, settings))

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
        rules: WheelSettings | None = None,
        roll_window_slots: int = DEFAULT_ROLL_WINDOW_SLOTS,
        max_delay_ms: int | None = DEFAULT_MAX_DELAY_MS,
        beyond_max: BeyondMax = "refuse",
        start_deliver_time_alias: bool = False,
        congest_num_each_slot: int = INT_MAX,
        snapshots: bool = False,
        on_precision_change: Literal["refuse", "rebuild"] = "refuse",
    ) -> "WheelStore":
        """Open the store at ``path``, or make it. A hierarchical wheel is taken over: its messages
        are delivered at the ends of their slots, up to ``precision_ms`` later than was promised.

        ``precision_ms`` None is that of the wheel that is there, or 1000. The last seven are those
        of ``WheelSettings``, and ``rules`` is all at once. Raises ValueError and OptionsError for
        wrong settings, before anything is made. Raises StoreLockedError, and SourceError for a
        store that cannot be written to, with another precision, or with a RocksDB timeline in use.
        """
        wheel = WheelSettings(
            precision_ms=DEFAULT_PRECISION_MS if precision_ms is None else precision_ms,
            roll_window_slots=roll_window_slots,
            max_delay_ms=max_delay_ms,
            beyond_max=beyond_max,
            start_deliver_time_alias=start_deliver_time_alias,
            congest_num_each_slot=congest_num_each_slot,
            snapshots=snapshots,
            on_precision_change=on_precision_change,
        )
        if rules is not None:
            wheel = rules.in_place_of(wheel)
            precision_ms = rules.precision_ms if precision_ms is None else precision_ms
        refuse_waiting_timeline(StoreRoot(Path(path)))
        store = LiveStore.open(
            path,
            clock=clock,
            dialect=dialect,
            settings=settings,
            level_table=levels,
            before_recovery=refuse_before_recovery,
        )

        def make() -> "WheelStore":
            opened = cls(store, *_begin(store, precision_ms, wheel))
            opened.finish_rescheduling()
            return opened

        return made_or_let_go(store, make)

    # --- time -------------------------------------------------------------------------------------

    def _place_queued(self) -> None:
        self._timers.place_queued(self.clock.now_ms())

    def _turn(self, now_ms: int) -> LogDeliveries:
        return self._turning.turn(now_ms, self._recall_marks())

    def _clean(self, now_ms: int) -> None:
        elsewhere = self.live.first_of_others(TIMER_TOPIC)  # what of it came is not known here
        keep_from = min(self._timers.keep_from(), elsewhere)
        timers = self._timers
        if self.live.clean(now_ms, keep_from, self._make_known):
            self.live.retention.attempt(lambda: timers.delete_expired(self.live.log.min_offset))

    def _make_known(self) -> None:
        """Let the checkpoint say durably what was delivered, before records of it are deleted."""
        timers = self._timers
        own = timers.state_to_flush()
        self.live.sync_or_break(timers.log.segments.sync)
        known = timers.files.checkpoint  # of the flush, which synced the wheel's file as well
        unsynced = timers.files.begin_checkpoint_sync(
            known.flush_position, own, known.last_queue_offset
        )
        self.live.sync_or_break(unsynced.finish)

    def _find_next_due(self) -> int | None:
        return next_due_ms(self._timers, self._recall_marks())

    def _recall_marks(self) -> RecallMarks:
        """The delete markers, looked for when they are first needed."""
        if self._marks is None:
            self._marks = find_markers(self._timers, self._timers.wheel.hand_ms)
        return self._marks

    def _marker_is_stored(self) -> None:
        self._marks = None
        self._place_marker()

    def _place_marker(self) -> None:
        timers, now_ms = self._timers, self.clock.now_ms()
        timers.place_queued(now_ms)
        if timers.placed_end < timers.queue.max_offset:
            rest = timers.unplaced(EVERYTHING, keys=True)
            place_markers(timers, rest, now_ms, self._recall_marks)

    # --- pending messages -----------------------------------------------------------------------

    def _pieces(self, wanted: WaitingFilter) -> Iterator[LogDeliveries]:
        return waiting(self._timers, self._recall_marks(), wanted)

    def unplaced_offsets(self) -> Int64s:
        """Where the records lie that wait in the queue for their place on the wheel."""
        with self.live.reading():
            queue = self._timers.queue
            first = max(self._timers.placed_end, queue.min_offset)
            return int64s(queue.units(first, queue.max_offset)["commit_log_offset"])

    def _search(self, handle: RecallHandle, first_offset: int | None) -> Search:
        return Search(self._timers, self._recall_marks(), handle, first_offset)

    def _was_recalled(self, target: Target, marker_offset: int | None) -> None:
        if marker_offset is not None:
            self._recall_marks().remember(
                target.recall_key, target.out_ms, marker_offset, target.first_offset
            )
        self._place_marker()

    # --- health and the end -----------------------------------------------------------------------

    def _lost(self) -> LostMessages:
        return self._timers.lost

    def _findings(self) -> list[Finding]:
        return check_wheel(self._timers, self._timers.lost.findings())

    def _flush(self) -> None:
        """Log, queues, timer log, wheel, checkpoints, in this order."""
        timers, store = self._timers, self.live
        with self.live.reading():
            store.log.require_unbroken()
            own, known = timers.state_to_flush(), timers.files.own
            all_waits = not len(timers.done)
            placed_end = timers.placed_end
        store.sync_log()
        store.sync_queues()
        with self.live.reading():
            timers.files.write_wheel(timers.wheel, timers.log.end)
            position = timers.log.end
            unsynced = timers.log.segments.begin_sync()
        store.sync_or_break(unsynced.finish)
        # Nobody waits for a disk with the lock held: it may take as long as many slots are wide.
        with self.live.reading():
            unsynced = timers.files.begin_wheel_sync()
        store.sync_or_break(unsynced.finish)
        with self.live.reading():
            if timers.files.own is not known:  # retention went by in between, and knew more
                own = timers.files.own
            unsynced = timers.files.begin_checkpoint_sync(position, own, placed_end)
        store.sync_or_break(unsynced.finish)
        if all_waits:
            forget_dealt_with(store.root)
        with self.live.reading():
            # After a crash they are counted anew, after a close they are believed.
            timers.write_metrics(durably=self._is_closed)
            self._timers.lost.save()
        store.write_topics()
        store.write_checkpoint(durably=True)

    def _end(self) -> None:
        place_all(self._timers, self.clock.now_ms(), self._recall_marks)

    def _let_go(self) -> None:
        self._timers.log.segments.close()
        self._timers.files.close()
