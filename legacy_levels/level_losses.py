# SPDX-License-Identifier: Apache-2.0
"""What files lack that were whole at the last flush: noticed when a store is opened, and brought
back where the log still has it.

A queue of which files are gone looks like one that never had more. The mark of the last flush knows
better (``delivery_marks``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from legacy_levels.delivery_marks import FLUSHED_NAME, read_mark
from message_store.properties import LEVEL_TOPIC

if TYPE_CHECKING:
    from message_store.live_store import LiveStore


@attrs.frozen
class Losses:
    """``log_bytes`` of the log's end are gone; ``entries`` are how many each level's queue lacked,
    of which ``brought_back`` were made anew from the log.
    """

    log_bytes: int = 0
    entries: Mapping[int, int] = attrs.field(factory=dict)
    brought_back: int = 0


def bring_back(live: LiveStore) -> Losses:
    """Find out what is gone, and make the level queues whole again as far as the log goes.

    What was taken back in such a queue is not known any more, and will be delivered.
    """
    mark = read_mark(live.root.path, FLUSHED_NAME)
    if mark is None:
        return Losses()
    log_bytes = max(0, mark.log_end - live.log.end)
    missing = {}
    for level, end in mark.ends.items():
        queue = live.find_queue(LEVEL_TOPIC, level - 1)
        found = 0 if queue is None else queue.max_offset
        if found < end:
            missing[level] = end - found
    if not missing:
        return Losses(log_bytes)
    from message_store.live_dispatch import Dispatcher

    dispatcher = Dispatcher(live, {})
    dispatcher.run(live.log.min_offset, live.log.end)
    return Losses(log_bytes, missing, dispatcher.dispatched)
