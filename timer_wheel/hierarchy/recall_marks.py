# SPDX-License-Identifier: Apache-2.0
"""The delete markers of a hierarchical wheel: their keys in memory, their places in the database.

A marker counts until the time of its target has passed, and while any pending message may be its
target. If a clock is behind the hand, such a message is behind the hand too. A marker's key stands
for out time, topic and unique key. It cancels the messages of one handle and no others, or the one
message of a receipt.
"""

from collections.abc import Iterable

import numpy as np

from message_store.columns.byte_column import Int64s, int64s
from message_store.files.notes import LostMessage
from message_store.writing.log import LiveLog
from timer_wheel.format.index_layouts import MARKS, SECONDS, Rows
from timer_wheel.format.older_slots import EXACT_MS
from timer_wheel.format.timer_due import FINEST_MS
from timer_wheel.format.wheel_math import PRECISIONS_MS
from timer_wheel.hierarchy.index_db import IndexBatch, IndexDb
from timer_wheel.hierarchy.waiting_rows import by_slot, marker_times, no_rows, together
from timer_wheel.timers.recall import RecallMarks, why_damaged
from timer_wheel.timers.rows import Bools, TimerFacts, read_facts


class HierarchyMarks(RecallMarks):
    """The recall keys of all markers whose time is not over."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = no_rows()
        self._unwritten = 0

    def take_in(self, rows: Rows, facts: TimerFacts) -> None:
        """Remember markers that are new in the queue."""
        if not len(rows):
            return
        self._remember(rows, facts)
        self.rows = together([self.rows, rows])
        self._unwritten += len(rows)

    def _remember(self, rows: Rows, facts: TimerFacts) -> None:
        self._remember_all(int64s(rows["commit_log_offset"]), facts, rows["due_ms"].tolist())

    def load(self, db: IndexDb, log: LiveLog, from_ms: int) -> list[LostMessage]:
        """Remember a database's markers that count at a time or later; returns damaged ones."""
        rows = together([block.rows for block in db.blocks(MARKS)])
        # Retention takes the record of a marker only once there is a younger one.
        is_replaced = rows["commit_log_offset"] < log.min_offset
        rows = rows[~is_replaced & (rows["due_ms"] >= from_ms)]
        offsets, sizes = int64s(rows["commit_log_offset"]), int64s(rows["size_bytes"])
        facts = read_facts(log, offsets, sizes, EXACT_MS, keys=True)
        is_fine: Bools = facts.is_fine & facts.is_marker
        self.rows = rows[is_fine]
        self._remember(self.rows, facts.rows(is_fine))
        is_in_place = (facts.topic_hash == rows["topic_hash"]) & _are_due_then(rows, facts)
        return [
            LostMessage(int(offsets[row]), why)
            for row in range(len(rows))
            if (why := why_damaged(facts, row, is_in_place=bool(is_in_place[row]))) is not None
        ]

    def new_rows(self) -> Rows:
        """The markers that the database does not have."""
        return self.rows[len(self.rows) - self._unwritten :]

    def pass_by(self, now_ms: int) -> None:
        """Forget the markers whose time is over."""
        if len(self):
            self.forget_before(now_ms + 1)

    def take_out(self, chosen: Bools) -> None:
        """Let go of the places of some, whose records are replaced; their keys still count."""
        self._drop(chosen)

    def _drop(self, chosen: Bools) -> None:
        self._unwritten -= int(chosen[len(chosen) - self._unwritten :].sum())
        self.rows = self.rows[~chosen]

    def drop_old(self, batch: IndexBatch, from_ms: int) -> None:
        """Let a batch take away the markers whose time was long over at a time."""
        over_ms = _over_before(from_ms)
        is_over = np.asarray(self.rows["due_ms"] < over_ms)
        if is_over.any():
            batch.drop_slots(MARKS, 0, over_ms)
            self._drop(is_over)

    def offsets_since(self, from_ms: int) -> Int64s:
        """Commit log offsets of the markers that count at a time."""
        counts = self.rows["due_ms"] >= _over_before(from_ms)
        return int64s(self.rows["commit_log_offset"])[counts]

    def put_new(self, batch: IndexBatch) -> int:
        """Let a batch take what is new to the database; returns how many that were."""
        count = self._unwritten
        for slot_ms, rows in by_slot(self.new_rows(), SECONDS):
            batch.put_block(MARKS, slot_ms, rows)
        return count

    def written(self, count: int) -> None:
        """The batch was written."""
        self._unwritten -= count


def _are_due_then(rows: Rows, facts: TimerFacts) -> Bools:
    """Which rows have the time that their records tell, in slots of any width."""
    is_it = np.zeros(len(rows), bool)
    for precision_ms in PRECISIONS_MS:
        is_it |= rows["due_ms"] == marker_times(facts, precision_ms)
    return is_it


def _over_before(from_ms: int) -> int:
    """The end of the slots whose markers are long over at a time: a whole slot is dropped."""
    return max(0, from_ms - from_ms % SECONDS.slot_ms - SECONDS.slot_ms)


_PIECE = 1 << 16


def are_slot_ends(facts: TimerFacts) -> Bools:
    """Which of these records mean the end of a slot."""
    return np.asarray(facts.is_fine & (facts.out_ms % FINEST_MS == 0))


def wait_for_slot_ends(log: LiveLog, parts: Iterable[Rows], marks: HierarchyMarks) -> bool:
    """Whether one of these pending messages, none that was cancelled, waits for a slot's end.

    Reads the records of those only whose promise is a multiple of 100.
    """
    for rows in parts:
        rows = rows[rows["due_ms"] % FINEST_MS == 0]
        for begin in range(0, len(rows), _PIECE):
            piece = rows[begin : begin + _PIECE]
            places = int64s(piece["commit_log_offset"]), int64s(piece["size_bytes"])
            facts = read_facts(log, *places, EXACT_MS, keys=len(marks) > 0)
            if (are_slot_ends(facts) & ~marks.take_away(places[0], facts)).any():
                return True
    return False
