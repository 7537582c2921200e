# SPDX-License-Identifier: Apache-2.0
"""Keeps engines that leave the levels alone from giving level messages wrong due times."""

import numpy as np

from message_store.base.errors import OptionsError
from message_store.columns.byte_column import Int64s
from message_store.format.delay_levels import format_delay
from message_store.format.properties import LEVEL_TOPIC
from message_store.reading.shown_delays import shown_delays
from message_store.writing.dispatch import Dispatcher
from message_store.writing.queue import LiveQueue
from message_store.writing.recovery import Extent
from message_store.writing.store import LiveStore

_NEWEST = 64


def refuse_another_level_table(live: LiveStore, extent: Extent) -> None:
    """Raise OptionsError where recovery would rebuild entries of a level by another delay than all
    of its newest messages were stored with; called before it, and changes nothing.

    An entry of a level has the due time, which is the store time and the level's delay: of an hour
    that one table means, another makes a second. Where no message shows a delay, the table of the
    store is believed.
    """
    queues = {queue.queue_id: queue for queue in live.queues.of_topic(LEVEL_TOPIC)}
    if not queues:
        return
    dispatcher, table = Dispatcher(live.log, live.queues, live.levels), live.levels
    for queue_id in sorted(
        dispatcher.queue_ids(LEVEL_TOPIC, extent.dispatch_from, extent.end) & queues.keys()
    ):
        level, shown_ms = queue_id + 1, _shown_delays_ms(live, queues[queue_id])
        delay_ms = table.delay_ms(level) if level <= table.max_level else 0
        if len(shown_ms) and not (shown_ms == delay_ms).any():
            delays = ", ".join(format_delay(delay) for delay in np.unique(shown_ms).tolist())
            raise OptionsError(
                f"{live.root.path}: level {level} holds messages that are due after {delays}, and"
                f" entries of it have to be rebuilt; {table.text()!r} would make them due after"
                f" {format_delay(delay_ms)}. Open the store with the level table that it had"
                " (--level-table); nothing was changed"
            )


def _shown_delays_ms(live: LiveStore, queue: LiveQueue) -> Int64s:
    """The delays that the newest messages of a level show."""
    units = queue.units(max(queue.min_offset, queue.max_offset - _NEWEST), queue.max_offset)
    offsets, sizes = (units[name].astype(np.int64) for name in ("commit_log_offset", "size_bytes"))
    return shown_delays(
        units["tags_code"].astype(np.int64), live.log.store_times_ms(offsets, sizes)
    )
