# SPDX-License-Identifier: Apache-2.0
"""The fast form of ``TimerMessageStore.enqueue`` and ``do_enqueue``: from queue to slots, and out.

Units are appended in the order of the queue. An entry that is to be delivered before its slot gets
none: a broker that takes over resumes behind the last unit.
"""

from pathlib import Path

import numpy as np

from message_store.columns.byte_column import Int64s, int64s
from message_store.format.properties import TIMER_TOPIC
from message_store.writing.store import LiveStore
from timer_wheel.format.checkpoint import UNKNOWN, OwnCheckpoint
from timer_wheel.format.older_slots import NO_OLDER_SLOTS, OlderSlots
from timer_wheel.format.timer_due import (
    OVERDUE_MARK_MS,
    promised_times,
    was_due_when_stored,
    write_times,
)
from timer_wheel.format.timer_log import (
    FLAG_DEFAULT,
    FLAG_DELETE,
    FLAG_ROLL,
    NO_POSITION,
    TIMER_UNIT,
)
from timer_wheel.format.wheel_math import (
    WHEEL_SLOTS,
    effective_read_time_ms,
    floor_ms,
    needs_roll,
    roll_slot_ms,
)
from timer_wheel.reading.lost_messages import LostMessages
from timer_wheel.timers.rows import Bools, TimerFacts, TimerRows, Unplaced, read_facts
from timer_wheel.timers.unit_kernels import (
    FLAGS,
    LOG_OFFSET,
    POSITION,
    SIZE,
    SLOT_TIME,
    TOPIC_HASH,
    WRITE_TIME,
)
from timer_wheel.wheel.files import WheelFiles
from timer_wheel.wheel.log import KnownSlot, LiveTimerLog, PlacedAgain
from timer_wheel.wheel.metrics import LiveMetrics
from timer_wheel.wheel.slots import LiveWheel

EVERYTHING = 2**40
"""More entries than any queue has."""


_PIECE = 1 << 17
ROUND_SLOTS = WHEEL_SLOTS - 1
"""How many slots from the hand on may hold pending messages. The next one would share its index on
the ring with the slot before the hand, which holds units of messages that are done.
"""
_NOTHING: Int64s = np.empty(0, np.int64)


class LiveTimers:
    """The timers of one store: wheel, timer log, and how far the timer queue is placed.

    ``placed_end``: the queue offset up to which each entry has its unit or needs none.
    ``done``: sorted commit log offsets of messages on the wheel that were delivered or cancelled
    before their slot is over. ``names_from``: records from this commit log offset on name them.
    ``early``: units of messages that are due before their slot is over.
    ``unhung``: units in slots to come that no chain leads to, while those above them are there.
    ``has_rolled``: whether a message was ever due beyond a round, as far as units and checkpoint
    tell; slots up to ``parked_until_ms`` may hold its units.
    ``placed_again``: which messages may have several units, whatever those tell.
    ``log_begins``: units before this timer log position are superseded.
    ``older``: slots of another width, from before the wheel was rebuilt.
    ``foreign_until``: before this commit log offset others may have delivered, who name nothing.
    ``mended_units``: how many units contradicted their records.
    ``lost``: messages that nobody can deliver, and damaged delete markers.
    """

    def __init__(
        self,
        store: LiveStore,
        log: LiveTimerLog,
        wheel: LiveWheel,
        files: WheelFiles,
        window_slots: int,
        *,
        log_begins: int = 0,
        foreign_until: int = 0,
        older: OlderSlots = NO_OLDER_SLOTS,
    ) -> None:
        self.store = store
        self.log = log
        self.wheel = wheel
        self.files = files
        self.window_slots = window_slots
        self.queue = store.queue(TIMER_TOPIC, 0)
        self.metrics = LiveMetrics(store.root, store.log, was_clean=store.was_clean)
        self.placed_end = 0
        self.done: Int64s = _NOTHING
        self.early = TimerRows.empty()
        self.unhung = TimerRows.empty()
        self.has_rolled = False
        self.parked_until_ms = 0
        self.placed_again = PlacedAgain()
        self.log_begins = log_begins
        self.older = older
        self.foreign_until = foreign_until
        self.mended_units = 0
        self.lost = LostMessages(store.root)
        self.names_from = store.log.end
        self._first_needed = 0

    @property
    def precision_ms(self) -> int:
        """The width of a slot."""
        return self.wheel.precision_ms

    # --- how it begins ----------------------------------------------------------------------------

    def begin(
        self, wheel: LiveWheel, *, has_rolled: bool, early: TimerRows, unhung: TimerRows
    ) -> None:
        """Take what the units of the timer log tell when the store is opened. A damaged unit may
        have lost its flag to roll; our own checkpoint says whether there are any.
        """
        self.wheel, self.early, self.unhung = wheel, early, unhung
        own = self.files.found_own
        if own is not None and own.parked_until_ms != UNKNOWN:
            self.parked_until_ms = own.parked_until_ms
        elif has_rolled:
            self.parked_until_ms = wheel.hand_ms + WHEEL_SLOTS * self.precision_ms
        self.has_rolled = has_rolled or self.parked_until_ms >= wheel.hand_ms

    def resume_at(self, queue_offset: int) -> None:
        """Entries before this queue offset have their units, or need none."""
        self.placed_end = queue_offset

    def mark_done_all_but(self, waiting: Int64s) -> None:
        """Take every entry of the queue for done, except those of the records at these commit log
        offsets; the hand moves before the first of them.
        """
        rest = self.unplaced(EVERYTHING).rows
        waits = np.isin(rest.commit_log_offset, waiting)
        self.done = np.unique(rest.commit_log_offset[~waits])
        first_ms = int(rest.slot_time_ms[waits].min(initial=self.wheel.hand_ms))
        hand_ms = max(floor_ms(first_ms, self.precision_ms), self.precision_ms)
        self.wheel = LiveWheel(self.precision_ms, hand_ms)

    def remember_older(self, older: OlderSlots) -> None:
        """The slots that there were before, on this wheel and then on a hierarchical one, from
        which on all that is delivered is named.
        """
        self.older = older
        self.foreign_until = max(older.untils[:-1], default=0)

    def set_names_from(self, names_from: int) -> None:
        """Records from this commit log offset on name what is done of the wheel."""
        self.names_from = names_from

    def opened(self) -> None:
        """The store is open: of units from here on it is known which are placed once more."""
        self.placed_again.know_from(self.log.end)

    def with_wheel(
        self,
        wheel: LiveWheel,
        window_slots: int,
        *,
        older: OlderSlots,
        log_begins: int,
        early: TimerRows | None = None,
    ) -> "LiveTimers":
        """The same queue on a wheel of another width; ``early`` is what was placed there already
        and is due before its slot is over.
        """
        made = LiveTimers(
            self.store,
            self.log,
            wheel,
            self.files,
            window_slots,
            log_begins=log_begins,
            foreign_until=self.foreign_until,
            older=older,
        )
        made.placed_end, made.has_rolled = self.placed_end, self.has_rolled
        made.parked_until_ms = self.parked_until_ms
        if early is not None:
            made.metrics.forget()
            made.early = early
        return made

    # --- what the queue holds ---------------------------------------------------------------------

    def unplaced(self, limit: int = _PIECE, *, keys: bool = False) -> Unplaced:
        """The first entries without units, or some of many; on demand with recall keys."""
        return self.queued(max(self.placed_end, self.queue.min_offset), limit, keys=keys)

    def queued(self, first: int, limit: int, *, keys: bool = False) -> Unplaced:
        """The entries from a queue offset on, so many at the most, as if they had no units."""
        units = self.queue.units(first, min(self.queue.max_offset, first + limit))
        rows = TimerRows.empty(len(units))
        rows.table[POSITION] = NO_POSITION
        rows.table[LOG_OFFSET] = units["commit_log_offset"]
        rows.table[SIZE] = units["size_bytes"]
        facts = self.facts(rows, keys=keys)
        rows.table[SLOT_TIME] = np.where(facts.is_fine, facts.out_ms, 0)
        rows.table[TOPIC_HASH] = facts.topic_hash
        rows.table[FLAGS] = np.where(facts.is_marker, FLAG_DEFAULT | FLAG_DELETE, FLAG_DEFAULT)
        return Unplaced(rows, facts, first)

    def plan(self, rows: TimerRows, is_message: Bools, now_ms: int) -> None:
        """Give each message of the rows a slot that the hand comes to, and each row its placing
        time, and place nothing.
        """
        now_ms = max(now_ms, self.wheel.hand_ms)
        self._plan(rows, is_message, now_ms)
        self._park(rows, is_message, now_ms)

    def _plan(self, rows: TimerRows, is_message: Bools, now_ms: int) -> None:
        """Give each message its slot, and each row its placing time."""
        write_ms = floor_ms(now_ms, self.precision_ms)
        out_ms = rows.slot_time_ms
        rolls = is_message & needs_roll(out_ms, write_ms, self.precision_ms, self.window_slots)
        rolls &= ~was_due_when_stored(out_ms)  # its copy would be promised for when that is stored
        if rolls.any():
            parked = roll_slot_ms(out_ms, write_ms, self.precision_ms, self.window_slots)
            rows.table[SLOT_TIME] = np.where(rolls, parked, out_ms)
            self._are_to_roll(rows, rolls)
        rows.table[WRITE_TIME] = write_times(rows.slot_time_ms, now_ms, self.precision_ms)

    # --- placing ----------------------------------------------------------------------------------

    def place_queued(self, now_ms: int) -> None:
        """Place what the queue holds, up to the first message that the slots cannot take as it is:
        one that is due at once or is done, or whose slot the hand has passed, or would come
        round to, or that a broker which starts now would not read.
        """
        now_ms = max(now_ms, self.wheel.hand_ms)
        while self.placed_end < self.queue.max_offset:
            found = self.unplaced()
            if not len(found):
                break
            self._plan(found.rows, found.facts.is_fine, now_ms)
            stop = self._first_unfit(found, now_ms)
            self._place(found.first(stop))
            if stop < len(found):
                break

    def _first_unfit(self, found: Unplaced, now_ms: int) -> int:
        slot_ms, hand_ms = found.rows.slot_time_ms, self.wheel.hand_ms
        first_read_ms = effective_read_time_ms(hand_ms, now_ms, self.precision_ms)
        fits = (slot_ms >= first_read_ms) & ~was_due_when_stored(slot_ms)
        fits &= slot_ms - hand_ms < ROUND_SLOTS * self.precision_ms
        if len(self.done):
            fits &= ~np.isin(found.rows.commit_log_offset, self.done)
        misfits = np.flatnonzero(~fits)
        return int(misfits[0]) if len(misfits) else len(found)

    def place_rest(self, found: Unplaced, is_done: Bools, is_recalled: Bools, now_ms: int) -> None:
        """Place entries of which some are done: those get units before the hand, except cancelled
        messages and their delete markers.

        The others keep their slots, also if they are due (``place_all``). The hand never moves
        back: those whose slot it has passed wait in its own slot, and are delivered by their time.
        """
        rows, hand_ms = found.rows, self.wheel.hand_ms
        is_done = is_done | ~found.facts.is_fine
        waiting_ms = np.maximum(rows.slot_time_ms, self.precision_ms)  # a slot of time 0 is none
        rows.table[SLOT_TIME] = np.where(is_done, rows.slot_time_ms, waiting_ms)
        self.plan(rows, ~is_done, now_ms)
        # A marker and its target stay in their slot: a target has no copy in the log by which
        # whoever opens the store after a kill could tell that it is done, and for a broker,
        # which may begin where the hand was before, markers count in their own slots only.
        stays = (rows.is_marker | is_recalled) & is_done & found.facts.is_fine
        stays &= ~self._would_oust(rows, ~is_done)
        self._put_behind(rows, is_done & ~stays, max(now_ms, hand_ms))
        self._place(found)
        is_early = ~is_done & was_due_when_stored(rows.slot_time_ms)
        self.early = TimerRows.together([self.early, rows.rows(is_early)])
        is_over = is_done & (rows.slot_time_ms < self.wheel.hand_ms)
        self.done = np.setdiff1d(self.done, rows.commit_log_offset[is_over])

    def place_waiting(self, found: Unplaced, waits: Bools, now_ms: int) -> None:
        """Place those of these entries that wait, and the last of all, which tells where placing
        goes on: before the hand where it is done. No slot of a pending message is behind the hand.
        """
        rows, now_ms = found.rows, max(now_ms, self.wheel.hand_ms)
        waiting_ms = np.maximum(rows.slot_time_ms, self.precision_ms)  # a slot of time 0 is none
        rows.table[SLOT_TIME] = np.where(waits, waiting_ms, rows.slot_time_ms)
        self.plan(rows, waits, now_ms)
        self._put_behind(rows, ~waits, now_ms)
        stays = waits & found.facts.is_there
        stays[np.flatnonzero(found.facts.is_there)[-1:]] = True
        self._place(found, stays)
        self.early = rows.rows(waits & was_due_when_stored(rows.slot_time_ms))
        self.done = _NOTHING

    def _would_oust(self, rows: TimerRows, waits: Bools) -> Bools:
        """Which rows are in a past slot whose index on the ring belongs to a pending slot. A broker
        that replays the timer log would let them replace it.
        """
        is_over = rows.slot_time_ms < self.wheel.hand_ms
        index = rows.slot_time_ms // self.precision_ms % WHEEL_SLOTS
        is_held = self.wheel.slots["time_units"][index] >= self.wheel.hand_ms // self.precision_ms
        return is_over & (is_held | np.isin(index, index[waits]))

    def _put_behind(self, rows: TimerRows, chosen: Bools, now_ms: int) -> None:
        """Give these rows the slot right before the hand, whose index on the ring no pending slot
        has, and the mark of overdue units. Here the mark only says that they are not pending.
        """
        past_ms = self.wheel.hand_ms - self.precision_ms + OVERDUE_MARK_MS
        rows.table[SLOT_TIME, chosen] = past_ms
        rows.table[WRITE_TIME] = write_times(rows.slot_time_ms, now_ms, self.precision_ms)

    def _park(self, rows: TimerRows, waits: Bools, now_ms: int) -> None:
        """Let messages outside a round of the hand roll: from the last slot if they are too far
        away, from the hand's slot, as overdue, if they lie before it.
        """
        hand_ms = self.wheel.hand_ms
        last_ms = hand_ms + (ROUND_SLOTS - 1) * self.precision_ms
        is_behind = waits & (rows.slot_time_ms < hand_ms)
        is_beyond = waits & (rows.slot_time_ms >= last_ms + self.precision_ms)
        is_parked = is_behind | is_beyond
        if not is_parked.any():
            return
        rows.table[SLOT_TIME, is_behind] = hand_ms + OVERDUE_MARK_MS
        is_marked = was_due_when_stored(rows.slot_time_ms[is_beyond])
        rows.table[SLOT_TIME, is_beyond] = last_ms + is_marked * OVERDUE_MARK_MS
        rows.table[WRITE_TIME] = write_times(rows.slot_time_ms, now_ms, self.precision_ms)
        self._are_to_roll(rows, is_parked)

    def _are_to_roll(self, rows: TimerRows, chosen: Bools) -> None:
        self.has_rolled = True
        until_ms = int(rows.slot_time_ms[chosen].max())
        self.parked_until_ms = max(self.parked_until_ms, until_ms)
        rows.table[FLAGS] |= np.where(chosen, FLAG_ROLL, 0)

    def _place(self, found: Unplaced, chosen: Bools | None = None) -> None:
        """Append the units of these next entries, or of some of them; sets their positions."""
        if not len(found):
            return
        chosen = found.facts.is_there if chosen is None else chosen
        self.files.announce(found.end)
        rows = found.rows.rows(chosen)
        slots = self.wheel.slots_of(rows.slot_time_ms)
        try:
            self.log.append(rows, self.wheel)
        except BaseException:
            self.wheel.put_back(rows.slot_time_ms, slots)
            if self.log.is_broken:
                self.store.log.break_off()
            raise
        found.rows.table[POSITION, chosen] = rows.position
        self.placed_end = found.end
        self.placed_again.note(found.facts)
        self.metrics.placed(rows)

    # --- reading slots ----------------------------------------------------------------------------

    def in_slots(self, slots: Int64s, known: KnownSlot | None = None) -> TimerRows:
        """The pending rows of these slots, which are given in units of the precision."""
        rows, _ = self.log.walk(self.wheel, slots, known)
        if len(self.done) and len(rows):
            rows = rows.rows(~np.isin(rows.commit_log_offset, self.done))
        return rows

    def are_waiting(self, rows: TimerRows) -> Bools:
        """Which of these units wait."""
        ahead_ms = rows.slot_time_ms - self.wheel.hand_ms
        waits = (ahead_ms >= 0) & (ahead_ms < WHEEL_SLOTS * self.precision_ms)
        return waits & ~np.isin(rows.commit_log_offset, self.done)

    def due_rows(self, now_ms: int, known: KnownSlot | None = None) -> TimerRows:
        """What lies in the slots that are over at a time, and in no earlier one."""
        return self.in_slots(self.wheel.used_slots(floor_ms(now_ms, self.precision_ms)), known)

    def promised_ms(self, rows: TimerRows, facts: TimerFacts) -> Int64s:
        """When each row is due: by its slot or, if that is not its last, by its record."""
        times = np.where(rows.is_roll, facts.out_ms, rows.slot_time_ms)
        return promised_times(times, facts.store_ms, self.precision_ms)

    def believe_records(self, rows: TimerRows, facts: TimerFacts) -> TimerRows:
        """The rows; where a slot is before the time that the record tells, as ones that roll."""
        is_early = facts.is_fine & ~rows.is_roll & ~was_due_when_stored(rows.slot_time_ms)
        is_early &= rows.slot_time_ms < floor_ms(facts.out_ms, self.precision_ms)
        if not is_early.any():
            return rows
        self.count_mended(int(is_early.sum()))
        rows = TimerRows(rows.table.copy())
        rows.table[FLAGS] |= np.where(is_early, FLAG_ROLL, 0)
        return rows

    def facts(self, rows: TimerRows, *, keys: bool = False) -> TimerFacts:
        """What the records of these rows say; recall keys only if they are asked for."""
        offsets, sizes = rows.commit_log_offset, rows.size_bytes
        return read_facts(
            self.store.log, offsets, sizes, self.precision_ms, keys=keys, older=self.older
        )

    def count_mended(self, count: int) -> None:
        """Count units that contradicted their records."""
        self.mended_units += count

    # --- what is done -----------------------------------------------------------------------------

    def mark_done(self, rows: TimerRows) -> None:
        """Note that rows are done which stay in their slots."""
        self.done = np.union1d(self.done, rows.commit_log_offset)
        self.early = self.early.rows(~np.isin(self.early.commit_log_offset, self.done))

    def mark_records_done(self, commit_log_offsets: Int64s) -> None:
        """The same for the records at these offsets, wherever their units are."""
        self.done = np.union1d(self.done, commit_log_offsets)

    def all_on_wheel_waits(self) -> None:
        """Forget what was done on the wheel: all that is there is pending. The queue may hold
        other messages that are done, and those are remembered.
        """
        units = self.queue.units(max(self.placed_end, self.queue.min_offset), self.queue.max_offset)
        self.done = self.done[np.isin(self.done, int64s(units["commit_log_offset"]))]

    def pass_slots(self, until_ms: int) -> None:
        """Move the hand on: all slots before this time are done."""
        if len(self.done):
            unhung = self.unhung.rows(self.unhung.slot_time_ms < until_ms)
            rows, _ = self.log.walk(self.wheel, self.wheel.used_slots(until_ms))
            over = TimerRows.together([rows, unhung]).commit_log_offset
            self.done = self.done[~np.isin(self.done, over)]
        if len(self.early):
            self.early = self.early.rows(self.early.slot_time_ms >= until_ms)
        self.wheel.move_hand(until_ms)

    def write_metrics(self, *, durably: bool = False) -> None:
        """Bring the metrics file up to date."""
        metrics = self.metrics
        if not metrics.is_known:
            metrics.count_anew(self.log.all_units(), self.wheel.hand_ms, self.done)
        if metrics.is_new or (durably and not metrics.is_durable):
            self.files.write_metrics(metrics.counts, durably=durably)
            metrics.written(durably=durably)

    def save(self, own: OwnCheckpoint | None = None) -> None:
        """Write the checkpoint, with this for our own part of it."""
        self.files.save(self.wheel.hand_ms, self.placed_end, own)

    def save_durably(self) -> None:
        """The same where log and units are on disk and the wheel's file may not be: the hand, and
        what is done of the slots ahead of it, are known from then on. Raises TargetError.
        """
        self.save()
        own, known = self.state_to_flush(), self.files.checkpoint
        unsynced = self.files.begin_checkpoint_sync(
            known.flush_position, own, known.last_queue_offset
        )
        self.store.sync_or_break(unsynced.finish)

    def state_to_flush(self) -> OwnCheckpoint:
        """What holds now and, once all that was written so far is on disk, holds there."""
        if not len(self.done):
            self.names_from = self.store.log.end
        return OwnCheckpoint(
            flushed_hand_ms=self.wheel.hand_ms,
            names_from=self.names_from,
            precision_ms=self.precision_ms,
            log_begins=self.log_begins,
            flushed_position=self.log.end,
            foreign_until=self.foreign_until,
            parked_until_ms=self.parked_until_ms,
            older=self.older,
        )

    def delete_expired(self, commit_log_min: int) -> list[Path]:
        """Take away the files of the timer log that lead to no record. Raises TargetError."""
        try:
            return self.log.delete_expired(commit_log_min)
        finally:
            self.log_begins = self.log.segments.min_offset

    def keep_from(self) -> int:
        """The commit log offset before which no pending message has its record."""
        waiting = self.unplaced(1)
        first = [self.store.log.end]
        if len(waiting):
            first.append(int(waiting.rows.commit_log_offset[0]))
        for rows in self.log.all_units(self._first_needed):
            needed = np.flatnonzero(rows.slot_time_ms >= self.wheel.hand_ms)
            if len(needed):
                self._first_needed = int(rows.position[needed[0]])
                first.append(int(rows.commit_log_offset[needed[0]]))
                break
            self._first_needed = int(rows.position[-1]) + TIMER_UNIT.size  # the hand only goes on
        return min(first)
