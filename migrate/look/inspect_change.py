# SPDX-License-Identifier: Apache-2.0
"""What a change in place that was stopped has twice: in the levels and on the wheel."""

import attrs
import numpy as np

from legacy_levels.backlog.backlog import LevelBacklog
from message_store.base.errors import SourceError
from message_store.files.store_root import StoreRoot
from migrate.changes.note import IN_PLACE, unfinished_change
from timer_wheel.reading.state import WheelState


@attrs.frozen
class CountedTwice:
    """How many messages stand in both, and how many of them are due."""

    pending: int = 0
    overdue: int = 0


def counted_twice(
    store: StoreRoot, backlog: LevelBacklog | None, state: WheelState | None, now_ms: int
) -> CountedTwice:
    """What of a level is on the wheel too: as many as there are of both, the messages that the
    change is about and the records that it has appended.

    Once its offsets have moved, nothing of the former waits; before, each of the latter is one of
    them.
    """
    try:
        change = unfinished_change(store)
    except SourceError:
        return CountedTwice()  # a note that nobody can read, which is said
    if change is None or change.kind != IN_PLACE or backlog is None or state is None:
        return CountedTwice()
    is_ours = state.pending.commit_log_offset >= change.before.log_end
    out_ms = state.pending.slot_time_ms[is_ours] + state.precision_ms
    ends = {int(level): end for level, end in change.asked["level_queue_ends"].items()}
    levels = backlog.level.astype(np.int64)
    limits = np.zeros(int(levels.max(initial=0)) + 1, np.int64)
    for level, end in ends.items():
        if level < len(limits):
            limits[level] = end
    is_asked = backlog.queue_offset < limits[levels]
    due_ms = backlog.due_ms[is_asked]
    return CountedTwice(
        pending=min(len(due_ms), len(out_ms)),
        overdue=min(int((due_ms <= now_ms).sum()), int((out_ms <= now_ms).sum())),
    )
