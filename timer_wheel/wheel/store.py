# SPDX-License-Identifier: Apache-2.0
"""``WheelStore``: the fast form of ``ReferenceWheelStore``, on the files of a broker's wheel.

Scheduling stores a record of ``rmq_sys_wheel_timer`` and its queue entry, no more. ``advance``
places the queue's entries in bulk, reads the slots that are over, delivers, and rolls messages that
are farther away than the wheel looks. A stock broker opens what this leaves and goes on with it,
and the other way about (docs/FORMAT.md, timer wheel).
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Literal

import numpy as np

from message_store.base.clock import Clock
from message_store.base.errors import UnsupportedDelayError
from message_store.base.printable import counted
from message_store.columns.byte_column import Int64s, int64s
from message_store.engine.engine import made_or_let_go
from message_store.files.small_files import is_present
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import INT_MAX
from message_store.format.properties import TIMER_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import found_error, found_warning, worst_first
from message_store.interface.promise_rules import BeyondMax
from message_store.interface.waiting_messages import WaitingFilter
from message_store.reading.engine_choice import hierarchy_mark
from message_store.redelivery.deliveries import LogDeliveries
from message_store.redelivery.lineage import Names
from message_store.writing.findings import floor_findings
from message_store.writing.settings import StoreSettings, require_kinds
from message_store.writing.store import LiveStore
from timer_wheel.format.timer_due import overdue_out_ms
from timer_wheel.format.wheel_math import DEFAULT_PRECISION_MS, DEFAULT_ROLL_WINDOW_SLOTS
from timer_wheel.reading.before_us import forget_dealt_with
from timer_wheel.reading.copies import Copies
from timer_wheel.reading.lost_messages import LostMessages
from timer_wheel.reading.timeline import refuse_waiting_timeline
from timer_wheel.timers.copies_in_log import copies_in_log
from timer_wheel.timers.intake import TimerIntake
from timer_wheel.timers.recall import RecallMarks, Target
from timer_wheel.timers.rows import Bools, TimerRows
from timer_wheel.timers.store import TimerStore
from timer_wheel.wheel.leaving import place_all, place_markers
from timer_wheel.wheel.live_timers import EVERYTHING, LiveTimers
from timer_wheel.wheel.opening import open_timers, refuse_before_recovery
from timer_wheel.wheel.recall_search import Search, find_markers
from timer_wheel.wheel.recovery import were_dealt_with
from timer_wheel.wheel.settings import DEFAULT_MAX_DELAY_MS, WheelSettings
from timer_wheel.wheel.turn import Turning
from timer_wheel.wheel.unit_repair import are_other_kinds, repair_finding, right_places
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
    """The timers of an open store, taken over where a hierarchical wheel has, or had, them."""
    if not is_present(hierarchy_mark(store.root)):
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
        slots = {"roll_window_slots": int, "congest_num_each_slot": int, "snapshots": bool}
        require_kinds(locals(), rules=(WheelSettings, NoneType), **slots)
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

        return made_or_let_go(store, TIMER_TOPIC, make)

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
        self.live.sync_or_break(self._timers.log.segments.sync)
        self._timers.save_durably()

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

    def _found_at_opening(self) -> Iterable[Finding]:
        return _of_opening(self._timers)

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


_SLOTS_AT_ONCE = 4096


# --- the invariants -------------------------------------------------------------------------------


def check_wheel(timers: LiveTimers, known: Sequence[Finding]) -> list[Finding]:
    """What is wrong, worst first; ``known`` was noticed before."""
    of_losses = [*_of_opening(timers), *floor_findings(timers.store)]
    return worst_first([*known, *of_losses, *_in_queue(timers), *_on_wheel(timers)])


def _of_opening(timers: LiveTimers) -> list[Finding]:
    """What was damaged when the store was opened."""
    of_checkpoint = [_checkpoint_finding()] if timers.files.is_damaged else []
    of_units = [repair_finding(timers.mended_units)] if timers.mended_units else []
    return [*of_checkpoint, *of_units]


def _in_queue(timers: LiveTimers) -> list[Finding]:
    rest = timers.unplaced(EVERYTHING)
    return [
        found_error(
            f"timer queue {rest.queue_offset + row}",
            f"an entry that is no timed message: {error}",
            "a broker stops placing at it, or passes over it",
            "advance passes over it; look at the record",
        )
        for row, error in rest.facts.problems.items()
    ]


def _on_wheel(timers: LiveTimers) -> list[Finding]:
    """Links that lead astray, messages with two units, records that are missing or of another kind
    than their units say, and units that no chain reaches.
    """
    found = []
    other_kinds = 0
    slots = timers.wheel.used_slots()
    seen = [np.empty(0, np.int64)]
    for begin in range(0, len(slots), _SLOTS_AT_ONCE):
        rows, astray = timers.log.walk(timers.wheel, slots[begin : begin + _SLOTS_AT_ONCE])
        if astray:
            found.append(_chain_finding(astray))
        facts = timers.facts(rows)
        other_kinds += int(are_other_kinds(rows, facts).sum())
        seen.append(rows.commit_log_offset)
        known = right_places(timers, rows, facts)
        other_kinds += len(known)
        found += [
            _record_finding(int(rows.position[row]), error)
            for row, error in facts.problems.items()
            if row not in known
        ]
    if other_kinds:
        found.append(repair_finding(other_kinds))
    places, counts = np.unique(np.concatenate(seen), return_counts=True)
    found += map(_twice_finding, places[counts > 1].tolist())
    out_of_reach = _out_of_reach(timers, places)
    return [*found, _link_finding(out_of_reach)] if len(out_of_reach) else found


def _out_of_reach(timers: LiveTimers, seen: Int64s) -> TimerRows:
    """Undelivered messages in slots to come that no chain reaches: the log has no copy of them, and
    no marker cancels them.
    """
    hand_ms = timers.wheel.hand_ms
    known = np.sort(np.concatenate([seen, timers.done]))  # once, and not for every file
    parts = [TimerRows.empty()]
    for rows in timers.log.all_units():
        is_it = (rows.slot_time_ms >= hand_ms) & ~rows.is_marker
        is_it &= rows.commit_log_offset >= timers.store.log.min_offset
        is_it &= ~_are_among(rows.commit_log_offset, known)
        parts.append(rows.rows(is_it))
    rows = TimerRows.together(parts)
    if not len(rows):
        return rows
    marks = find_markers(timers, hand_ms)
    is_cancelled = marks.take_away(rows.commit_log_offset, timers.facts(rows, keys=True))
    log, may_have_rolled = timers.store.log, np.ones(len(rows), bool)
    names = Names.since(log, log.min_offset)
    copies = Copies(copies_in_log(log, log.min_offset, timers.foreign_until))
    is_done = were_dealt_with(timers, rows, names, copies, may_have_rolled)
    return rows.rows(~is_done & ~is_cancelled)


def _are_among(values: Int64s, ordered: Int64s) -> Bools:
    """Which of the values are in an array that is in order; ``np.isin`` would sort it again."""
    first = np.searchsorted(ordered, values, "left")
    found: Bools = np.searchsorted(ordered, values, "right") > first
    return found


def _checkpoint_finding() -> Finding:
    return found_warning(
        "config/timercheck",
        "the wheel's checkpoint was damaged when the store was opened",
        "a broker believes it: it loses messages, or delivers some again",
        "none is needed: what was written is known, or was found out from the log",
    )


def _link_finding(rows: TimerRows) -> Finding:
    count = counted(len(rows), "message is", "messages are")
    return found_error(
        f"timerlog {int(rows.position[0])}",
        f"{count} in a slot to come, but no link leads there",
        "what no link leads to is not delivered",
        "close the store, take timerlog away, open the store: all is placed again from the queue",
    )


def _chain_finding(astray: int) -> Finding:
    return found_error(
        "timerlog",
        f"{astray} links of slots lead to no unit of the same slot",
        "what lies behind them is not delivered",
        "schedule again what is missing",
    )


def _record_finding(position: int, error: Exception) -> Finding:
    return found_error(
        f"timerlog {position}",
        f"a message on the wheel whose record cannot be delivered: {error}",
        "a broker drops it without a word, or stops at it for ever",
        "schedule it again",
    )


def _twice_finding(offset: int) -> Finding:
    return found_error(
        f"commit log {offset}",
        "a message that is on the wheel twice",
        "a broker delivers it twice",
        "none is needed for this store: it is delivered once",
    )
