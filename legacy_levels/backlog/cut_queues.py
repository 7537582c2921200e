# SPDX-License-Identifier: Apache-2.0
"""Level queues that lack entries which they had when ``delaywheel`` last flushed them: a first or
last file was removed or emptied. The log still has the records, unless retention took them.

Only the marks of ``delaywheel`` tell this; a store that only brokers used has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from legacy_levels.backlog.queues import LevelQueue, open_level_queues
from legacy_levels.delay_offsets import OffsetsChoice, read_delay_offsets
from legacy_levels.delivery_marks import FLUSHED_NAME, DeliveryMark, read_mark
from legacy_levels.level_start import Start
from legacy_levels.neutral_units import is_message
from message_store.base.errors import FormatError, SourceError
from message_store.base.printable import counted
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.writing.dispatch import Dispatcher

if TYPE_CHECKING:
    from message_store.writing.store import LiveStore

_ENTRIES = ("entry", "entries")
_LOOKED_AT = 4_096


@attrs.frozen
class CutQueue:
    """A level's queue that lacks ``count`` entries, and how that shows."""

    level: int
    directory: Path
    count: int
    problem: str

    def __str__(self) -> str:
        return f"{self.directory}: {self.problem}"


def cut_queues(store: StoreRoot, queues: Iterable[LevelQueue]) -> tuple[CutQueue, ...]:
    """The queues of a store at rest that were longer at the last flush, or begin behind their
    offset; in order of level. A queue without any file is one of ``gone_queues``.
    """
    mark = read_mark(store.path, FLUSHED_NAME)
    if mark is None:
        return ()
    found = (_cut(store, mark, queue) for queue in queues)
    return tuple(cut for cut in found if cut is not None)


def _cut(store: StoreRoot, mark: DeliveryMark, queue: LevelQueue) -> CutQueue | None:
    level, directory = queue.level, store.level_queue(queue.level)
    if (count := mark.ends.get(level, 0) - queue.queue_max) > 0:
        told = f"the queue of level {level} has lost its last {counted(count, *_ENTRIES)}"
        return CutQueue(level, directory, count, told)
    stored = max(mark.offsets.get(level, 0), queue.stored_offset or 0)
    if (count := queue.queue_min - stored) > 0 and level in mark.ends:
        told = f"the queue of level {level} lacks {counted(count, *_ENTRIES)} from its offset on"
        return CutQueue(level, directory, count, told)
    return None


def cut_queues_of(store: StoreRoot) -> tuple[CutQueue, ...]:
    """The same, for those who have not read the queues; none where they cannot be told."""
    if read_mark(store.path, FLUSHED_NAME) is None:
        return ()
    offsets = read_delay_offsets(store.path, OffsetsChoice.NONE)
    try:
        return cut_queues(store, open_level_queues(store.path, offsets))
    except FormatError:
        return ()


def refuse_lost_first_files(live: LiveStore, start: Start) -> None:
    """Raise SourceError where a queue that ``delaywheel`` flushed begins behind its offset, though
    the log still has records of what stood there: the level would pass over them for good.
    """
    if read_mark(live.root.path, FLUSHED_NAME) is None:
        return
    for queue in live.queues.of_topic(LEVEL_TOPIC):
        level, first = queue.queue_id + 1, queue.segments.min_offset // QUEUE_UNIT.size
        stored = start.offsets.get(level, 0)
        if not queue.segments.starts or stored >= first:
            continue
        units = queue.units(first, first + _LOOKED_AT)
        messages = units[is_message(units)]["commit_log_offset"]
        stop = min(int(messages.min(initial=LONG_MAX)), live.log.end)
        if queue.queue_id in Dispatcher(live.log, live.queues, live.levels).queue_ids(
            LEVEL_TOPIC, live.log.min_offset, stop
        ):
            raise SourceError(
                f"{queue.segments.directory}: the queue of level {level} has lost its first files:"
                f" delivery is to go on at {stored:,}, and it begins at {first:,}; take them from a"
                " backup; or remove this directory, and the queue is made again from the log, with"
                " what was cancelled; nothing was changed"
            )
