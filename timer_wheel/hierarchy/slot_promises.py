# SPDX-License-Identifier: Apache-2.0
"""Whether pending messages were promised for the end of a slot, so that its width must stay.

A record's out time tells: a multiple of 100 means the end of a slot, whatever its width. Any other
out time means the same with every width.
"""

from collections.abc import Iterable

import numpy as np

from message_store.columns.byte_column import int64s
from message_store.writing.log import LiveLog
from timer_wheel.format.index_layouts import Rows
from timer_wheel.format.older_slots import EXACT_MS
from timer_wheel.format.timer_due import FINEST_MS
from timer_wheel.hierarchy.recall_marks import HierarchyMarks
from timer_wheel.timers.rows import Bools, TimerFacts, read_facts

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
