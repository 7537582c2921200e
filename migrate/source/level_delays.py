# SPDX-License-Identifier: Apache-2.0
"""The level table with which a store is shown: inferred from its messages, else RocketMQ's own.

A conversion does not guess: it stops where the store and the given table disagree.
"""

from collections.abc import Iterable
from pathlib import Path

import attrs

from legacy_levels.backlog.level_table import infer_levels
from legacy_levels.backlog.queues import LevelQueue, open_level_queues
from legacy_levels.delay_offsets import DelayOffsets
from message_store.files.log_row import open_log
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels, format_delay


@attrs.frozen
class LevelDelays:
    """``table`` reaches every level that has a queue; ``unknown`` levels are in it with a delay
    that nothing tells. ``notes`` say where the store shows another delay than RocketMQ's table.
    """

    table: DelayLevels
    unknown: frozenset[int]
    notes: tuple[str, ...]

    def delay_ms(self, level: int) -> int | None:
        """The delay of a level, None when nothing tells it."""
        is_known = level not in self.unknown and 1 <= level <= self.table.max_level
        return self.table.delay_ms(level) if is_known else None


def infer_delays(root: Path, queues: Iterable[LevelQueue]) -> LevelDelays:
    """The delays of a store's levels, as its messages show them.

    Raises SourceError where the disk refuses.
    """
    listed = tuple(queues)
    with open_log(StoreRoot(root)) as log:
        inferred = infer_levels(root, log, listed)
    default = DelayLevels.parse()
    delays = dict(enumerate(default.delays_ms, start=1))
    seen = {level: delay for level, delay in inferred.items() if delay is not None}
    in_use = {queue.level for queue in listed if len(queue)}
    notes = [
        f"level {level} delays by {format_delay(delay_ms)}, as its messages show, where RocketMQ's"
        f" own table has {default.describe(level)}: a conversion needs the source's"
        " messageDelayLevel"
        for level, delay_ms in sorted(seen.items())
        if level in in_use and delays.get(level) != delay_ms
    ]
    delays |= seen
    longest = max(delays.values())
    numbers = range(1, max([default.max_level, *inferred]) + 1)
    return LevelDelays(
        table=DelayLevels(tuple(delays.get(level, longest) for level in numbers)),
        unknown=frozenset(level for level in numbers if level not in delays),
        notes=tuple(notes),
    )


def level_table_of(root: Path, offsets: DelayOffsets) -> DelayLevels:
    """The table to look at a store with. Raises FormatError where a queue cannot be told."""
    return infer_delays(root, open_level_queues(root, offsets)).table
