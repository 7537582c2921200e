# SPDX-License-Identifier: Apache-2.0
"""The delays of the levels, told from the store itself, and compared with what people say they are.

A level queue holds due times and the log holds store times; their usual difference is the level's
delay. A store's `messageDelayLevel` is nowhere else in its files.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from legacy_levels.level_queues import LevelQueue
from message_store.commit_log import NO_TIME, read_store_times
from message_store.consume_queue import QueueEntries, UnitArray, is_filled, resolve_tags_codes
from message_store.delay_levels import DelayLevels, format_delay
from message_store.errors import OptionsError
from message_store.properties import LEVEL_TOPIC
from message_store.segment_files import SegmentReader
from message_store.store_root import StoreRoot

SAMPLES_A_QUEUE = 200
PLAUSIBLE_DUE_MS = 10**12
"""A tags code above this (September 2001) can be a due time; tag hashes and 0 lie far below."""


def infer_levels(
    root: Path, log: SegmentReader, queues: Iterable[LevelQueue]
) -> dict[int, int | None]:
    """For each queue's level its usual delay in ms, or None when no record tells.

    A few hundred records a queue are looked at, evenly chosen from those that are in the log.
    """
    return {queue.level: _usual_delay(root, log, queue) for queue in queues}


def _usual_delay(root: Path, log: SegmentReader, queue: LevelQueue) -> int | None:
    halves = [_some(queue.history.units), _some(queue.entries.units)]
    units = np.concatenate(halves)
    is_usable = is_filled(units) & (units["commit_log_offset"] >= log.min_offset)
    sample = QueueEntries(units[is_usable], 0, 0)
    if not len(sample):
        return None
    ext_directory = StoreRoot(root).consume_queue_ext(LEVEL_TOPIC, queue.level - 1)
    due_ms, is_unknown = resolve_tags_codes(sample, ext_directory)
    stored_ms = read_store_times(log, sample.commit_log_offset, sample.size_bytes)
    tells = ~is_unknown & (due_ms > PLAUSIBLE_DUE_MS) & (stored_ms != NO_TIME)
    # A level is whole seconds: anything else is the store time of a torn record.
    tells &= (due_ms - stored_ms) % 1_000 == 0
    delays_ms, counts = np.unique(due_ms[tells] - stored_ms[tells], return_counts=True)
    return int(delays_ms[counts.argmax()]) if len(delays_ms) else None


def _some(units: UnitArray) -> UnitArray:
    """Evenly chosen units, at most ``SAMPLES_A_QUEUE``."""
    places = np.linspace(0, len(units) - 1, min(SAMPLES_A_QUEUE, len(units)))
    return units[places.astype(np.int64)]


def reconcile_level_table(
    given: DelayLevels | None, inferred: Mapping[int, int | None]
) -> DelayLevels:
    """The level table to work with: the one given, else RocketMQ's default.

    A level without evidence takes what that table says. Raises OptionsError, showing both, when the
    store tells of another delay, and when it has queues of levels that the table does not reach.
    """
    table = given or DelayLevels.parse()
    whose = "the level table given" if given is not None else "RocketMQ's default level table"
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
