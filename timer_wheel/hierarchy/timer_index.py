# SPDX-License-Identifier: Apache-2.0
"""The index of one store at work: from the timer queue into wheels, marks and ids, and from memory
into the database.

The database is as old as the last flush, or younger if many messages were stored since. After a
kill the queue and the log tell the rest.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import attrs
import numpy as np

from message_store.base.errors import DelayStoreError, FormatError, TargetError
from message_store.base.printable import counted
from message_store.columns.byte_column import Int64s, int64s
from message_store.format.properties import TIMER_TOPIC
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import found_error
from message_store.redelivery.lineage import Names
from message_store.writing.store import LiveStore
from timer_wheel.format.index_layouts import IndexState, Newest, Rows
from timer_wheel.format.older_slots import EXACT_MS, NO_OLDER_SLOTS, OlderSlots
from timer_wheel.hierarchy.hands import Hands, WaitingMessages, Writing
from timer_wheel.hierarchy.id_index import SPILL, IdIndex
from timer_wheel.hierarchy.index_db import DamagedIndexError, IndexBatch, IndexDb
from timer_wheel.hierarchy.recall_marks import HierarchyMarks, wait_for_slot_ends
from timer_wheel.hierarchy.taken_over import TakenOver
from timer_wheel.hierarchy.waiting_rows import is_marker, is_stored_again, rows_of
from timer_wheel.reading.lost_messages import LostMessages
from timer_wheel.reading.ownership import void_index
from timer_wheel.reading.record_kernel import ID
from timer_wheel.timers.recall import odd_markers
from timer_wheel.timers.rows import Bools, TimerFacts, read_facts

_PIECE = 1 << 17
_MANY = 1 << 20
_MUCH_LOG_BYTES = 256 << 20
_PROBLEMS_KEPT = 1_000


@attrs.frozen(eq=False)
class Batch:
    """Changes of the database and what follows, as of one moment; numbers ascend."""

    number: int
    changes: IndexBatch
    state: IndexState
    newest: Newest
    writing: Writing
    marks: int
    ids_end: int | None


class TimerIndex:
    """Everything that a hierarchical wheel knows of its pending messages.

    ``placed_end`` is the queue offset up to which every entry is known here, or is done;
    ``hand_ms`` the last time for which messages were delivered; ``losses`` what was met in the
    queue that is no message, ``lost`` messages that nobody can deliver, those of earlier owners
    too; ``is_writing`` says that a batch is on its way to the database, until when nothing may be
    taken out of that; ``older`` are the slots of the wheel that the store was. Whoever calls
    anything holds the store's lock.
    """

    def __init__(
        self,
        store: LiveStore,
        db: IndexDb,
        state: IndexState,
        older: OlderSlots = NO_OLDER_SLOTS,
    ) -> None:
        self.store = store
        self.db = db
        self.queue = store.queue(TIMER_TOPIC, 0)
        self.precision_ms = state.precision_ms
        self.slot_precision_ms = state.slot_precision_ms
        self.placed_end = state.placed_end
        self.hand_ms = state.hand_ms
        self.waiting = WaitingMessages(db, Hands(state.minute_hand_ms, state.hour_hand_ms))
        self.marks = HierarchyMarks()
        self.ids = IdIndex(db, state.ids_end)
        self.losses: deque[Finding] = deque(maxlen=_PROBLEMS_KEPT)
        self.lost = LostMessages(store.root)
        self.is_writing = False
        self.older = older
        self._written_log_end = state.log_end
        self._batches = 0
        self._last_written = 0
        db.tell_damage(self._void)

    @contextmanager
    def whole_or_broken(self) -> Iterator[None]:
        """Around what moves messages in memory from one place to another.

        Stopped half way by what nobody foresees, Ctrl-C or no memory, some may be in neither place,
        or in both: nothing more is taken, or written to the database, until the store is opened
        again and finds them in the queue. What is refused in our own words has moved nothing.
        """
        try:
            yield
        except DamagedIndexError:
            self.store.log.break_off()
            raise
        except DelayStoreError:
            raise
        except BaseException:
            self.store.log.break_off()
            raise

    def _void(self) -> None:
        """Let the next opening rebuild the index, also after a kill, or meet the damage itself."""
        with suppress(TargetError):
            void_index(self.store.root)

    # --- from the queue ---------------------------------------------------------------------------

    def place_queued(self, known: TakenOver | None = None, names: Names | None = None) -> None:
        """Take in all that the queue holds, but for what a wheel had settled that is ``known``, and
        for what these ``names`` of the log tell to be done.
        """
        if self.placed_end < self.queue.max_offset:
            with self.whole_or_broken():
                self._place_queued(known, names)

    def _place_queued(self, known: TakenOver | None, names: Names | None) -> None:
        while self.placed_end < self.queue.max_offset:
            first = max(self.placed_end, self.queue.min_offset)
            # Our retention places first, and takes entries only with their records.
            if first > self.placed_end and self.store.log.min_offset <= self._written_log_end:
                self.losses.append(_gone(self.placed_end, first))
            units = self.queue.units(first, min(self.queue.max_offset, first + _PIECE))
            queue_offsets = first + np.arange(len(units), dtype=np.int64)
            offsets, sizes = int64s(units["commit_log_offset"]), int64s(units["size_bytes"])
            waits = np.ones(len(units), bool) if known is None else known.may_wait(queue_offsets)
            facts = self.facts(offsets, sizes, keys=True)
            if names is not None:
                waits &= ~names.are_done(offsets, facts.lineages(offsets))
            self._place(queue_offsets, offsets, sizes, facts, waits)
            self.placed_end = first + len(units)

    def _place(
        self, queue_offsets: Int64s, offsets: Int64s, sizes: Int64s, facts: TimerFacts, waits: Bools
    ) -> None:
        rows = rows_of(queue_offsets, offsets, sizes, facts, self.slot_precision_ms)
        for row, error in facts.problems.items():
            self._tell(int(queue_offsets[row]), error)
        self.lost.lose(offsets, facts.problems.items())
        if cancels := odd_markers(offsets, facts):
            self.lost.cancels.add(cancels)
        self.ids.add(np.where(facts.is_fine, facts.table[ID], 0), queue_offsets)
        waits = waits & facts.is_fine
        marks = waits & is_marker(rows)
        self.marks.take_in(rows[marks], facts.rows(marks))
        self.waiting.add(rows[waits & ~marks])

    def reload_ids(self) -> None:
        """Bring to memory the ids of entries that the database does not have, but knows else."""
        first = max(self.ids.stored_end, self.queue.min_offset)
        for begin in range(first, self.placed_end, _PIECE):
            units = self.queue.units(begin, min(self.placed_end, begin + _PIECE))
            places = int64s(units["commit_log_offset"]), int64s(units["size_bytes"])
            facts = self.facts(*places, keys=True)
            queue_offsets = begin + np.arange(len(units), dtype=np.int64)
            self.ids.add(np.where(facts.is_fine, facts.table[ID], 0), queue_offsets)

    def facts(self, offsets: Int64s, sizes: Int64s, *, keys: bool = False) -> TimerFacts:
        """What the records at these places of the log say."""
        return read_facts(self.store.log, offsets, sizes, EXACT_MS, keys=keys)

    def facts_of(self, rows: Rows, *, keys: bool = False) -> TimerFacts:
        """What the records of these rows say."""
        places = int64s(rows["commit_log_offset"]), int64s(rows["size_bytes"])
        return self.facts(*places, keys=keys)

    def are_done(self, rows: Rows, names: Names) -> Bools:
        """Which of these messages are done, as these names of the log tell."""
        offsets = int64s(rows["commit_log_offset"])
        lineages, again = offsets.copy(), np.flatnonzero(is_stored_again(rows))
        lineages[again] = self.facts_of(rows[again]).lineages(offsets[again])
        return names.are_done(offsets, lineages)

    def pending_offsets(self) -> Int64s:
        """Commit log offsets of all pending records, ascending."""
        found = [np.empty(0, np.int64)]
        for rows in self.waiting.parts():
            offsets = int64s(rows["commit_log_offset"])
            if len(self.marks):
                offsets = offsets[~self.marks.take_away(offsets, self.facts_of(rows, keys=True))]
            found.append(offsets)
        return np.unique(np.concatenate(found))

    def _tell(self, queue_offset: int, error: FormatError) -> None:
        self.losses.append(
            found_error(
                f"timer queue {queue_offset}",
                f"an entry that is no timed message: {error}",
                "a broker stops placing at it, or passes over it",
                "it was passed over; look at the record",
            )
        )

    def waits_for_slot_ends(self) -> bool:
        """Whether a pending message was promised for the end of a slot of today's width."""
        return wait_for_slot_ends(self.store.log, self.waiting.parts(), self.marks)

    def set_widths(self, precision_ms: int, slot_precision_ms: int) -> None:
        """Let promises be so wide from now on, durably. Raises TargetError."""
        self.precision_ms, self.slot_precision_ms = precision_ms, slot_precision_ms
        self.write_now(durably=True)

    def delivered_until(self, now_ms: int) -> None:
        """Messages were delivered for all times up to this one."""
        self.hand_ms = max(self.hand_ms, now_ms)
        self.marks.pass_by(now_ms)

    @property
    def marked_from_ms(self) -> int:
        """Markers of an earlier time have no target left: nothing waits behind the hand."""
        first_ms = self.waiting.first_ms()
        return self.hand_ms if first_ms is None else min(self.hand_ms, first_ms)

    # --- into the database ------------------------------------------------------------------------

    def prepare(self, *, tidies: bool = False) -> Batch:
        """What brings the database to this moment; to be written when the log is as far. Entries
        that were not placed yet are left to the next turn, or to an opening.

        ``tidies`` leaves nothing in memory alone. Markers that are over go in any case.
        """
        self.is_writing = True
        changes = self.db.batch()
        writing = self.waiting.put_all(changes, self.placed_end)
        state, ids_end = self.state(), None
        if len(self.marks.rows):
            self.marks.drop_old(changes, self.marked_from_ms)
        marks = self.marks.put_new(changes)
        if tidies or self.ids.in_memory > SPILL:
            ids_end = self.placed_end
            state = attrs.evolve(state, ids_end=ids_end)
            self.ids.put_all(changes)
            self.ids.drop_before(self.queue.min_offset, changes)
        log = self.store.log
        newest = Newest(log.last_start, log.head_checksum(log.last_start))
        self._batches += 1
        return Batch(self._batches, changes, state, newest, writing, marks, ids_end)

    def state(self) -> IndexState:
        """What holds at this moment."""
        hands = self.waiting.hands
        return IndexState(
            precision_ms=self.precision_ms,
            slot_precision_ms=self.slot_precision_ms,
            placed_end=self.placed_end,
            log_end=self.store.log.end,
            hand_ms=self.hand_ms,
            minute_hand_ms=hands.minute_ms,
            hour_hand_ms=hands.hour_ms,
            ids_end=self.ids.stored_end,
        )

    def write(self, batch: Batch, *, durably: bool) -> None:
        """Give the batch to the database; whoever calls holds no lock, but is within
        ``LiveStore.sync_or_break``, so that one at a time writes. Raises TargetError.

        A close may overtake a flush that has prepared an older batch: that one is not written. The
        later batch was prepared without knowing whether the older would be, and has all of it.
        """
        if batch.number < self._last_written:
            return
        try:
            self.db.write(batch.changes, batch.state, None if durably else batch.newest)
        except DamagedIndexError:
            self.store.log.break_off()
            raise
        self._last_written = batch.number

    def written(self, batch: Batch) -> None:
        """The batch was written."""
        with self.whole_or_broken():
            self._written_log_end = batch.state.log_end
            self.waiting.written(batch.writing)
            self.marks.written(batch.marks)
            if batch.ids_end is not None:
                self.ids.written(batch.ids_end)
            self.is_writing = False

    def relieve(self) -> None:
        """Let the database take what is in memory when it is much, or when the log has grown so
        that it would take long to find there what was delivered. Not durably: whoever finds the
        database ahead of a log that has lost its end makes it again.
        """
        is_much = self.waiting.in_memory > _MANY
        is_much |= self.store.log.end - self._written_log_end > _MUCH_LOG_BYTES
        if is_much and not self.is_writing:
            self.write_now(durably=False)

    def write_now(self, *, durably: bool, tidies: bool = False) -> None:
        """Bring the database to this moment. Raises TargetError."""
        batch = self.prepare(tidies=tidies)
        self.store.sync_or_break(lambda: self.write(batch, durably=durably))
        self.written(batch)


def _gone(first: int, end: int) -> Finding:
    return found_error(
        f"timer queue {first}",
        f"{counted(end - first, 'entry is gone that was', 'entries are gone that were')}"
        " never looked at",
        "nobody finds the messages that they led to",
        "find out what was removed; the log may still have the messages",
    )
