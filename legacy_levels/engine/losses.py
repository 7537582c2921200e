# SPDX-License-Identifier: Apache-2.0
"""What files lack that were whole at the last flush: noticed when a store is opened, and brought
back where the log still has it.

A queue of which files are gone looks like one that never had more. The marks know how long each one
was (``delivery_marks``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from legacy_levels.delivery_marks import FLUSHED_NAME, level_ends, read_mark
from message_store.format.properties import LEVEL_TOPIC

if TYPE_CHECKING:
    from message_store.writing.store import LiveStore


@attrs.frozen
class Losses:
    """``log_bytes`` of the log's end are gone; ``entries`` are how many each level's queue lacked,
    ``brought_back`` how many of those were made anew from the log.
    """

    log_bytes: int = 0
    entries: Mapping[int, int] = attrs.field(factory=dict)
    brought_back: Mapping[int, int] = attrs.field(factory=dict)


def bring_back(live: LiveStore) -> Losses:
    """Find out what is gone, and make the level queues whole again as far as the log goes.

    What was taken back in such a queue is not known any more, and will be delivered.
    """
    mark = read_mark(live.root.path, FLUSHED_NAME)
    log_bytes = 0 if mark is None else max(0, mark.log_end - live.log.end)
    missing = missing_entries(live)
    if not missing:
        return Losses(log_bytes)
    from message_store.writing.dispatch import Dispatcher

    before = {level: _end(live, level) for level in missing}
    Dispatcher(live, {}).run(live.log.min_offset, live.log.end)
    return Losses(
        log_bytes, missing, {level: _end(live, level) - before[level] for level in missing}
    )


def missing_entries(live: LiveStore) -> dict[int, int]:
    """How many entries each level's queue lacks that it had when the marks were written."""
    ends = level_ends(live.root.path, live.log)
    short = {level: end - _end(live, level) for level, end in ends.items()}
    return {level: count for level, count in short.items() if count > 0}


def _end(live: LiveStore, level: int) -> int:
    queue = live.find_queue(LEVEL_TOPIC, level - 1)
    return 0 if queue is None else queue.max_offset
