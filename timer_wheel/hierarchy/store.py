# SPDX-License-Identifier: Apache-2.0
"""``HierarchicalWheelStore``: messages for any time, on wheels of hours, minutes and seconds in a
database.

Scheduling stores a record of ``rmq_sys_wheel_timer`` and its queue entry, as on any wheel. The
database is an index over that queue, written in batches when the store is flushed
(docs/FORMAT.md, hierarchical wheel).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from message_store.base.clock import Clock
from message_store.base.errors import BadFieldError, DelayStoreError
from message_store.columns.byte_column import Int64s, int64s
from message_store.engine.engine import made_or_let_go
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.properties import TIMER_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import found_error, found_warning, worst_first
from message_store.interface.promise_rules import BeyondMax
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.findings import floor_findings
from message_store.writing.settings import StoreSettings, require_kinds
from message_store.writing.store import LiveStore
from timer_wheel.format.index_layouts import Rows
from timer_wheel.format.timer_due import TO_THE_MILLISECOND, at_once_out_ms, fine_promise_ms
from timer_wheel.handover.to_hierarchy import refuse_before_recovery
from timer_wheel.hierarchy.index_db import DamagedIndexError
from timer_wheel.hierarchy.opening import (
    DEFAULT_MAX_DELAY_MS,
    HierarchySettings,
    open_index,
)
from timer_wheel.hierarchy.search import (
    Named,
    first_due_ms,
    waiting_in_parts,
    waiting_with_key,
)
from timer_wheel.hierarchy.taken_over import damage_of_taken_over
from timer_wheel.hierarchy.timer_index import TimerIndex
from timer_wheel.hierarchy.turn import HierarchyTurn, Renewal
from timer_wheel.reading.lost_messages import LostMessages
from timer_wheel.reading.timeline import refuse_waiting_timeline
from timer_wheel.timers.intake import TimerIntake
from timer_wheel.timers.recall import Target
from timer_wheel.timers.store import TimerStore


class HierarchyIntake(TimerIntake):
    """Stores messages and delete markers; whoever calls holds the store's lock."""

    def __init__(self, store: LiveStore, index: TimerIndex, settings: HierarchySettings) -> None:
        super().__init__(store, index.queue, settings)
        if settings.precision_ms == TO_THE_MILLISECOND:
            to_slot_end = self._promise

            def to_millisecond(due_ms: int, now_ms: int) -> int:
                promised_ms = to_slot_end(due_ms, now_ms)
                return promised_ms if promised_ms == now_ms else int(fine_promise_ms(promised_ms))

            self._promise = to_millisecond

    @property
    def recall_width_ms(self) -> int:
        """How wide the times are that a delete marker does not tell apart."""
        return TO_THE_MILLISECOND

    def _overdue_out_ms(self, now_ms: int) -> int:
        return at_once_out_ms(now_ms)

    def _refuse_congestion(self, out: int, now_ms: int, more: int = 0) -> None:
        """No slot is ever too full: nothing is linked one by one."""

    def _promises(self, due_ms: Int64s, now_ms: int) -> tuple[Int64s, Int64s]:
        if self.settings.precision_ms != TO_THE_MILLISECOND:
            return super()._promises(due_ms, now_ms)
        promised_ms, _ = super()._promises(due_ms, now_ms)
        at_once = promised_ms == now_ms
        fine_ms = fine_promise_ms(promised_ms)
        outs = np.where(at_once, self._overdue_out_ms(now_ms), fine_ms - 1)
        return np.where(at_once, now_ms, fine_ms), outs


_DEFAULTS = StoreSettings()


class HierarchicalWheelStore(TimerStore):
    """``DelayStore`` on wheels in a database. Made by ``open``.

    A message is promised for the millisecond that is asked for, or for the end of a slot where
    ``settings.precision_ms`` says so. ``levels`` are what ``AtLevel`` means.

    Limitations: one thread at a time works, the others wait. A handle names a topic, a time and a
    key: ``cancel`` withdraws all pending messages that share them. Messages that were due when
    stored share a time with others of the same tenth of a second. A broker does not start on this
    store: open it with ``WheelStore`` first, which makes it a broker's.
    """

    def __init__(self, store: LiveStore, index: TimerIndex, settings: HierarchySettings) -> None:
        self.settings = settings
        self._index = index
        self._turning = HierarchyTurn(index)
        self._renewal = Renewal(index)
        super().__init__(store, HierarchyIntake(store, index, settings))

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
        max_delay_ms: int | None = DEFAULT_MAX_DELAY_MS,
        beyond_max: BeyondMax = "refuse",
        start_deliver_time_alias: bool = False,
    ) -> "HierarchicalWheelStore":
        """Open the store at ``path``, and make it when nothing is there; one that was a wheel's is
        taken over.

        ``precision_ms`` is the one that the store was made with, or 1, when it is None. The last
        three are those of ``HierarchySettings``. Raises ValueError for a setting that nothing can
        have, before anything is made. Raises StoreLockedError when somebody has it open,
        SourceError for one that cannot be written to, whose messages were promised for coarser
        slots, or wait in a broker's RocksDB timeline, BadFieldError for ``repeat_after_kill``:
        there is no broker whose way that were.
        """
        require_kinds(locals())
        wheel = HierarchySettings(
            precision_ms=TO_THE_MILLISECOND if precision_ms is None else precision_ms,
            max_delay_ms=max_delay_ms,
            beyond_max=beyond_max,
            start_deliver_time_alias=start_deliver_time_alias,
        )
        if settings.repeat_after_kill:
            raise BadFieldError(
                "repeat_after_kill: a hierarchical wheel never repeats", expected=False, found=True
            )
        refuse_waiting_timeline(StoreRoot(Path(path)))
        store = LiveStore.open(
            path,
            clock=clock,
            dialect=dialect,
            settings=settings,
            level_table=levels,
            before_recovery=refuse_before_recovery,
        )

        def make() -> "HierarchicalWheelStore":
            index, chosen = open_index(store, precision_ms, wheel)
            opened = cls(store, index, chosen)
            opened.finish_rescheduling()
            return opened

        return made_or_let_go(store, TIMER_TOPIC, make)

    @property
    def slot_precision_ms(self) -> int:
        """The width of slot that an out time means which is a multiple of 100."""
        return self._index.slot_precision_ms

    # --- time -------------------------------------------------------------------------------------

    def _place_queued(self) -> None:
        self._index.place_queued()

    def _turn(self, now_ms: int) -> LogDeliveries:
        return self._turning.turn(now_ms)

    def _clean(self, now_ms: int) -> None:
        self._renewal.clean(now_ms)

    def _find_next_due(self) -> int | None:
        return first_due_ms(self._index)

    def _marker_is_stored(self) -> None:
        """It becomes one when it is taken in from the queue."""

    # --- pending messages -----------------------------------------------------------------------

    def _pieces(self, wanted: WaitingFilter) -> Iterator[LogDeliveries]:
        if wanted.unique_key is not None:
            return iter([waiting_with_key(self._index, wanted)])
        return waiting_in_parts(self._index, wanted)

    def unplaced_offsets(self) -> Int64s:
        """Where the records lie that wait in the queue for their place in the index."""
        with self.live.reading():
            queue = self._index.queue
            first = max(self._index.placed_end, queue.min_offset)
            return int64s(queue.units(first, queue.max_offset)["commit_log_offset"])

    def _search(self, handle: RecallHandle, first_offset: int | None) -> Named:
        return Named.by(self._index, handle, first_offset)

    def _was_recalled(self, target: Target, marker_offset: int | None) -> None:
        self._index.place_queued()

    # --- health and the end -----------------------------------------------------------------------

    def _lost(self) -> LostMessages:
        return self._index.lost

    def _found_at_opening(self) -> Iterable[Finding]:
        return self._index.losses

    def _findings(self) -> list[Finding]:
        return check_hierarchy(self._index)

    def _flush(self) -> None:
        """Log, queues, database, checkpoint, in this order."""
        index, store = self._index, self.live
        with self.live.reading():
            store.log.require_unbroken()
            batch = index.prepare(tidies=self._is_closed)
        store.sync_log()
        store.sync_queues()
        store.sync_or_break(lambda: index.write(batch, durably=True))
        with self.live.reading():
            index.written(batch)
            index.lost.save()
        store.write_topics()
        store.write_checkpoint(durably=True)

    def _end(self) -> None:
        self._index.place_queued()

    def abandon(self) -> None:
        """Let go of everything without a last word, as a kill would, whatever the disk says."""
        with suppress(DelayStoreError):
            super().abandon()

    def _let_go(self) -> None:
        self._index.db.close()


# --- the invariants -------------------------------------------------------------------------------


def check_hierarchy(index: TimerIndex) -> list[Finding]:
    """What is wrong, worst first."""
    store = index.store
    found = [*index.losses, *index.lost.findings(), *floor_findings(store)]
    damage = damage_of_taken_over(store.root)
    if damage is not None:
        found.append(
            found_warning(
                "delaywheel/hierarchy/taken-over",
                damage,
                "a broker does not look at it; an index that is lost cannot be made again, and"
                " some old cancels are reported as delivered",
                "close the store, open it with WheelStore, close that, and open it with"
                " HierarchicalWheelStore again: the file is written anew",
            )
        )
    try:
        index.place_queued()
        found += _in_index(index)
    except DamagedIndexError as error:
        found.append(
            found_error(
                str(index.db.path),
                f"the index cannot be read: {error}",
                "a broker does not look at it",
                "close the store and open it again: the index is made anew from the queue",
            )
        )
    return worst_first(found)


def _in_index(index: TimerIndex) -> Iterator[Finding]:
    """Messages that stand in it twice, that the queue does not have, or whose records are lost."""
    seen = [np.empty(0, np.int64)]
    for rows in index.waiting.parts():
        seen.append(int64s(rows["queue_offset"]))
        yield from _unlike_queue(index, rows)
        facts = index.facts_of(rows)
        for row, error in facts.problems.items():
            yield _finding(rows, row, f"a message whose record cannot be delivered: {error}")
    places, counts = np.unique(np.concatenate(seen), return_counts=True)
    for place in places[counts > 1].tolist():
        yield found_error(
            f"timer queue {place}",
            "a message that stands in the index twice",
            "it would be delivered twice",
            "remove delaywheel/hierarchy/index while the store is closed: it is made anew",
        )


def _unlike_queue(index: TimerIndex, rows: Rows) -> Iterator[Finding]:
    """Rows that the timer queue says otherwise about."""
    order = np.argsort(rows["queue_offset"], kind="stable")
    rows = rows[order]
    if not len(rows):
        return
    offsets = int64s(rows["queue_offset"])
    first = int(offsets[0])
    units = index.queue.units(first, int(offsets[-1]) + 1)
    # Files before the first were deleted, and their entries with them.
    begin = max(first, min(int(offsets[-1]) + 1, index.queue.max_offset) - len(units))
    places = offsets - begin
    is_there = (places >= 0) & (places < len(units))
    same = np.zeros(len(rows), bool)
    chosen = units[places[is_there]]
    same[is_there] = (chosen["commit_log_offset"] == rows["commit_log_offset"][is_there]) & (
        chosen["size_bytes"] == rows["size_bytes"][is_there]
    )
    for row in np.flatnonzero(~same).tolist():
        yield _finding(rows, row, "a message that the timer queue does not have at its place")


def _finding(rows: Rows, row: int, problem: str) -> Finding:
    return found_error(
        f"index, timer queue {int(rows['queue_offset'][row])}",
        problem,
        "it is not delivered, or not as it should be",
        "remove delaywheel/hierarchy/index while the store is closed: it is made anew",
    )
