# SPDX-License-Identifier: Apache-2.0
"""The bulk form of ScheduleMessageService#updateOffset: what a broker's offsetTable would hold.

RocketMQ: DeliverDelayedMessageTimerTask#executeOnTimeup. Only a stored message moves a level's
offset, so skipped entries behind the last one stay in front of it. In 5.x an entry that is not due
moves the offset too, to itself: such a level is named even at 0.
"""

import numpy as np

from legacy_levels.engine.state import LevelState
from message_store.format.dialect import Dialect

_LOOK = 256


class BrokerOffsets:
    """The table of one store, level to queue offset; ``table`` is None if brokers are not followed
    (``LevelRules.saved_offsets``).
    """

    def __init__(self, state: LevelState) -> None:
        self._state = state
        self._is_4_9 = state.live.dialect is Dialect.ROCKETMQ_4_9
        self._next: dict[int, int] = {}
        self.table: dict[int, int] | None = None
        if state.rules.saved_offsets == "broker":
            self.table = {level: self._corrected(level) for level in state.found.offsets}

    def _corrected(self, level: int) -> int:
        """RocketMQ: ScheduleMessageService#correctDelayOffset; not for levels beyond the table."""
        stored = self._state.found.offset_of(level)
        if level > self._state.table.max_level:
            return stored
        queue = self._state.queue(level)
        return min(max(stored, queue.min_offset), queue.max_offset)

    def copy(self) -> dict[int, int] | None:
        """The table at this moment. A 4.9 broker stands before a message that it cannot store, and
        so does its table, though we deliver what lies behind.
        """
        if self.table is None or not self._is_4_9:
            return None if self.table is None else dict(self.table)
        cursors = self._state.cursors
        heads = {level: cursors[level].head for level in self.table if level in cursors}
        return {level: min(at, heads.get(level, at)) for level, at in self.table.items()}

    def delivered(self, level: int, queue_offset: int) -> None:
        """The message of this entry, and of those before it, were stored in their topics."""
        if self.table is not None:
            self.table[level] = queue_offset + 1

    def looked(self, level: int, now_ms: int) -> None:
        """All that is due in a level was put: 5.x notes the first entry that is not."""
        if self.table is None or self._is_4_9 or level > self._state.table.max_level:
            return
        queue = self._state.queue(level)
        latest_ms = now_ms + self._state.table.delay_ms(level)
        at = max(self._next.get(level, self.table.get(level, 0)), queue.min_offset)
        while at < queue.max_offset:
            units = queue.units(at, min(at + _LOOK, queue.max_offset))
            due_ms = units["tags_code"].astype(np.int64)
            not_due = np.flatnonzero((due_ms > now_ms) & (due_ms <= latest_ms))
            if len(not_due):
                at += int(not_due[0])
                self.table[level] = at
                break
            at += len(units)
        self._next[level] = at
