# SPDX-License-Identifier: Apache-2.0
"""The delays of the levels: inferred from the store, and compared with the table that a user gives.

A level queue holds due times and the log holds store times. Their difference is the delay that the
level had when the message was stored. No other file of a store holds its `messageDelayLevel`. The
table may have been changed while messages were pending, so only pending messages count, unless
there are none.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import numpy as np

from legacy_levels.backlog.queues import LevelQueue
from message_store.base.errors import OptionsError
from message_store.files.array_room import rows_where
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels, format_delay
from message_store.format.properties import LEVEL_TOPIC
from message_store.reading.commit_log import read_store_times
from message_store.reading.consume_queue import (
    BoolArray,
    Int64Array,
    QueueEntries,
    UnitArray,
    is_filled,
    resolve_tags_codes,
)
from message_store.reading.shown_delays import shown_delays

SAMPLES_A_QUEUE = 200
WHAT_TO_DO_WITH_MIXED_DELAYS = (
    "a level has one delay in a table: run the source's broker with the longest of them (with a"
    " shorter one it would deliver the others at once) and without producers, until those of all"
    " but one delay are delivered; then stop it and begin again"
)
_SUPPORT = 2
"""One message alone may be damaged; that two of them agree on a wrong whole second is no chance."""


@attrs.frozen
class ObservedDelays:
    """The delays that the messages of one level show, in ms, the one seen last at the end."""

    level: int
    delays_ms: tuple[int, ...] = ()
    are_waiting: bool = False

    @property
    def newest_ms(self) -> int | None:
        """The delay that the level had last, as far as its messages show; None when none does."""
        return self.delays_ms[-1] if self.delays_ms else None


def observe_delays(root: Path, log: SegmentReader, queue: LevelQueue) -> ObservedDelays:
    """The delays of the messages that wait in a level, or of delivered ones when no waiting one
    tells: all that two messages agree on, else that of the last one.

    A few hundred records are looked at, evenly chosen from those that are in the log.
    """
    for part, are_waiting in ((queue.entries, True), (queue.history, False)):
        delays_ms = _delays_of(root, log, queue.level, part.units)
        if len(delays_ms):
            return ObservedDelays(queue.level, _supported(delays_ms), are_waiting)
    return ObservedDelays(queue.level)


def infer_levels(
    root: Path, log: SegmentReader, queues: Iterable[LevelQueue]
) -> dict[int, int | None]:
    """For each queue's level the delay that it had last, in ms, or None when no record tells."""
    return {queue.level: observe_delays(root, log, queue).newest_ms for queue in queues}


def _delays_of(root: Path, log: SegmentReader, level: int, units: UnitArray) -> Int64Array:
    """The delays that a sample of these entries shows, in the order of the queue."""

    def are_in_log(rows: slice) -> BoolArray:
        part = units[rows]
        return np.asarray(is_filled(part) & (part["commit_log_offset"] >= log.min_offset))

    in_log = rows_where(len(units), are_in_log)
    chosen = np.linspace(0, len(in_log) - 1, min(SAMPLES_A_QUEUE, len(in_log)))
    sample = QueueEntries(units[in_log[chosen.astype(np.int64)]], 0, 0)
    ext_directory = StoreRoot(root).consume_queue_ext(LEVEL_TOPIC, level - 1)
    due_ms, is_unknown = resolve_tags_codes(sample, ext_directory)
    stored_ms = read_store_times(log, sample.commit_log_offset, sample.size_bytes)
    return shown_delays(due_ms[~is_unknown], stored_ms[~is_unknown])


def _supported(delays_ms: Int64Array) -> tuple[int, ...]:
    """Those that several messages share, in the order in which each is seen last."""
    distinct, counts = np.unique(delays_ms, return_counts=True)
    shared = distinct[counts >= _SUPPORT] if counts.max() >= _SUPPORT else delays_ms[-1:]
    last_seen = [int(np.flatnonzero(delays_ms == delay)[-1]) for delay in shared]
    return tuple(shared[np.argsort(last_seen)].tolist())


def refuse_mixed_delays(seen: Iterable[ObservedDelays]) -> None:
    """Raise OptionsError, showing them, where messages wait in one level with several delays."""
    mixed = [level for level in seen if level.are_waiting and len(level.delays_ms) > 1]
    if mixed:
        shown = "; ".join(
            f"level {level.level}: " + " and ".join(map(format_delay, sorted(level.delays_ms)))
            for level in mixed
        )
        raise OptionsError(
            "the level table was changed while messages waited, which are due after different"
            f" delays ({shown}); {WHAT_TO_DO_WITH_MIXED_DELAYS}"
        )


def reconcile_level_table(
    chosen: DelayLevels | None, inferred: Mapping[int, int | None]
) -> DelayLevels:
    """The level table to work with: the one given, else RocketMQ's default.

    A level without evidence takes what that table says. Raises OptionsError, showing both, when the
    store tells of another delay, and when it has queues of levels that the table does not reach.
    """
    table = chosen or DelayLevels.parse()
    whose = "the level table given" if chosen is not None else "RocketMQ's default level table"
    beyond = [level for level in sorted(inferred) if level > table.max_level]
    differing = [
        level
        for level, delay_ms in sorted(inferred.items())
        if delay_ms is not None and level <= table.max_level and delay_ms != table.delay_ms(level)
    ]
    if not beyond and not differing:
        return table
    seen = {level: delay_ms for level, delay_ms in inferred.items() if delay_ms is not None}
    lines = [
        f"{whose} does not fit the store; give the source's own (messageDelayLevel)",
        f"  {whose}: {table.text()}",
        "  the store's queues: " + _describe(seen),
    ]
    if differing:
        lines.append("  they differ at " + ", ".join(map(table.describe, differing)))
    if beyond:
        named = ", ".join(str(level) for level in beyond)
        lines.append(f"  it has no level {named}, which the store has queues for")
    raise OptionsError("\n".join(lines))


def _describe(delays_ms: Mapping[int, int]) -> str:
    parts = [f"{level}: {format_delay(delays_ms[level])}" for level in sorted(delays_ms)]
    return ", ".join(parts) or "nothing to tell by"
