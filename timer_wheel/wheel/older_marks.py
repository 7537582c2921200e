# SPDX-License-Identifier: Apache-2.0
"""Delete markers that were stored before the wheel got slots of another width.

Match each marker in slots of the width it was stored for. In today's wider slots it would also
cancel its neighbours. All were applied when the wheel was made anew. Markers and targets are met
again where the timer log is lost, in what was made anew with its markers, and in the queue.
"""

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.format.java_numbers import LONG_MAX
from timer_wheel.format.timer_due import is_overdue
from timer_wheel.format.timer_log import FLAG_DELETE
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.timers.recall import RecallMarks, marker_offsets
from timer_wheel.timers.rows import Bools, TimerFacts, TimerRows, facts_then
from timer_wheel.timers.unit_kernels import TOPIC_HASH
from timer_wheel.wheel.live_timers import LiveTimers
from timer_wheel.wheel.log import NO_SLOT
from timer_wheel.wheel.unplaced import EVERYTHING


@attrs.frozen(eq=False)
class OlderMarks:
    """The markers of each of the older slots, by their number; ``rows`` are all of them."""

    timers: LiveTimers
    rows: TimerRows
    marks: dict[int, RecallMarks]

    @classmethod
    def of(cls, timers: LiveTimers) -> "OlderMarks":
        """All that have units, or are in the queue and have none."""
        if not timers.older.until:
            return cls(timers, TimerRows.empty(), {})
        placed = timers.log.find(None, NO_SLOT, 0, flags=FLAG_DELETE)
        rest = timers.unplaced(EVERYTHING).rows
        return cls.among(timers, TimerRows.together([placed, rest.rows(rest.is_marker)]))

    @classmethod
    def among(cls, timers: LiveTimers, rows: TimerRows) -> "OlderMarks":
        """Those among some rows."""
        if not timers.older.until or not len(rows):
            return cls(timers, TimerRows.empty(), {})
        facts = timers.facts(rows)
        chosen = facts.is_marker & facts.is_fine
        chosen &= are_older(timers, rows.commit_log_offset, facts)
        rows, facts = rows.rows(chosen), facts.rows(chosen)
        offsets = rows.commit_log_offset
        numbers = timers.older.number_of(marker_offsets(offsets, facts))
        marks = {}
        for number in np.unique(numbers).tolist():
            its = rows.rows(numbers == number)
            marks[number] = RecallMarks()
            marks[number].add(its.commit_log_offset, _facts_of(timers, its, number))
        return cls(timers, rows, marks)

    def taken_at(self, rows: TimerRows) -> Int64s:
        """Where in the log one of these took each row away; ``LONG_MAX`` for none."""
        found = np.full(len(rows), LONG_MAX, np.int64)
        for number, marks in self.marks.items():
            facts = _facts_of(self.timers, rows, number)
            found = np.minimum(found, marks.taken_at(rows.commit_log_offset, facts))
        return found


def _facts_of(timers: LiveTimers, rows: TimerRows, number: int) -> TimerFacts:
    return facts_then(
        timers.store.log, rows.commit_log_offset, rows.size_bytes, timers.older, number
    )




def settle_older(timers: LiveTimers) -> None:
    """Take for dealt with the older markers that are on the wheel or on its way there, and what
    they took away.
    """
    marks = OlderMarks.of(timers)
    if not len(marks.rows):
        return
    rest = timers.unplaced(EVERYTHING).rows
    rows = TimerRows.together([timers.in_slots(timers.wheel.used_slots()), rest])
    rows = rows.rows(_may_be_taken(rows, marks.rows, timers))
    is_it = marks.taken_at(rows) < LONG_MAX
    is_it |= np.isin(rows.commit_log_offset, marks.rows.commit_log_offset)
    if is_it.any():
        timers.mark_done(rows.rows(is_it))


def _may_be_taken(rows: TimerRows, markers: TimerRows, timers: LiveTimers) -> Bools:
    """Which rows to look at: of the topics of the markers, and in their slots of today, where these
    are not others than their records say.
    """
    facts = timers.facts(markers)
    slots = floor_ms(facts.out_ms, timers.precision_ms)
    may_be: Bools = np.isin(floor_ms(rows.slot_time_ms, timers.precision_ms), slots)
    may_be |= rows.is_roll | is_overdue(rows.slot_time_ms)
    may_be &= np.isin(rows.table[TOPIC_HASH], markers.table[TOPIC_HASH])
    return may_be


def are_older(timers: LiveTimers, offsets: Int64s, facts: TimerFacts) -> Bools:
    """Which of these records were first stored for slots that the wheel had before."""
    is_it: Bools = marker_offsets(offsets, facts) < timers.older.until
    return is_it


def find_markers(
    timers: LiveTimers, from_ms: int, *, mended: TimerRows | None = None
) -> RecallMarks:
    """Every delete marker in slots from a time on, or in the queue; but for those of older slots,
    which were applied when the wheel was made anew (``older_marks``). ``mended`` are rows whose
    units still have wrong flags. Records are believed, not flags.
    """
    marks = RecallMarks()
    placed = timers.log.find(None, NO_SLOT, 0, flags=FLAG_DELETE)
    placed = placed if mended is None else TimerRows.together([placed, mended])
    placed = placed.rows(placed.is_marker & (placed.slot_time_ms >= from_ms))
    rest = timers.unplaced(EVERYTHING, keys=True)
    for rows, facts in ((placed, timers.facts(placed, keys=True)), (rest.rows, rest.facts)):
        counts = facts.is_marker & facts.is_fine
        counts &= ~are_older(timers, rows.commit_log_offset, facts)
        marks.add(rows.commit_log_offset[counts], facts.rows(counts))
    return marks
