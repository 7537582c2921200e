# SPDX-License-Identifier: Apache-2.0
"""Topics of a store that is open for writing: what a consumer sees of them, and topics.json.

Consumer offsets are corrected here where a queue has lost its end.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager

import attrs
import numpy as np

from message_store.base.errors import SourceError
from message_store.files.config_files import (
    CONSUMER_OFFSETS,
    TOPICS,
    ConsumerOffsets,
    TopicConfig,
    read_config,
    read_consumer_offsets,
    replace_config,
    topics_value,
    with_consumer_offsets,
)
from message_store.files.group_journal import QueueKey, lost_end_line, parse_journal
from message_store.files.line_journal import LineJournal, encode_line
from message_store.files.store_root import StoreRoot
from message_store.format.broker_json import JsonObject
from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage
from message_store.interface.queued_messages import QueuePart
from message_store.reading.consume_queue import is_neutral, is_pre_blank
from message_store.writing.log import LiveLog
from message_store.writing.queue_set import QueueSet
from message_store.writing.queued import QueuedReader, queued_message


@attrs.frozen(eq=False)
class LiveTopic:
    """One topic's queues; see ``TopicReader``.

    ``reading`` gives a context in which nobody writes, and raises StoreClosedError.
    """

    name: str
    _log: LiveLog
    _queues: QueueSet
    _queued: QueuedReader
    _reading: Callable[[], AbstractContextManager[None]]

    def read(
        self, queue_id: int, from_offset: int, max_messages: int = 32
    ) -> tuple[StoredMessage, ...]:
        """A part of one queue, in order, without neutral and blank entries."""
        with self._reading():
            queue = self._queues.find(self.name, queue_id)
            if queue is None:
                return ()
            first = max(from_offset, queue.min_offset)
            messages: list[StoredMessage] = []
            while len(messages) < max_messages and first < queue.max_offset:
                units = queue.units(first, first + max_messages - len(messages))
                rows = np.flatnonzero(~is_neutral(units) & ~is_pre_blank(units)).tolist()
                messages += [self._message(units[row], first + row) for row in rows]
                first += len(units)
            return tuple(messages)

    def queued(
        self,
        queue_id: int,
        from_offset: int,
        max_entries: int = 32,
        tags_codes: Collection[int] | None = None,
    ) -> QueuePart:
        """See ``TopicReader``."""
        with self._reading():
            queue = self._queues.find(self.name, queue_id)
            if queue is None:
                return QueuePart((), from_offset, {})
            first = max(from_offset, queue.min_offset)
            return self._queued.read(queue, first, max_entries, tags_codes)

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Each queue's first queue offset, and the one behind its last."""
        with self._reading():
            return {
                queue.queue_id: (queue.min_offset, queue.max_offset)
                for queue in self._queues.of_topic(self.name)
            }

    def _message(self, unit: np.void, queue_offset: int) -> StoredMessage:
        offset, size_bytes = int(unit["commit_log_offset"]), int(unit["size_bytes"])
        return queued_message(self._log, offset, size_bytes, queue_offset)


@attrs.frozen
class LoweredOffset:
    """A group's offset in a queue, and the end of that queue, which it was set to."""

    topic: str
    group: str
    queue_id: int
    offset: int
    end: int


def lower_group_offsets(
    root: StoreRoot, queues: QueueSet, dialect: Dialect
) -> tuple[LoweredOffset, ...]:
    """Set each offset of consumerOffset.json that is behind the end of its queue to that end, and
    say in the journal of groups where those end that it has begun behind.

    The queue has lost its end with the log, and what comes there is new: the group would pass over
    it. A queue that is not there ends at 0: its topic was deleted, or the offsets are another
    store's. A file that is none stays as it is. Raises SourceError and TargetError.
    """
    journal = parse_journal(LineJournal(root.group_journal, is_only_read=True).lines)
    noted = _behind_the_end({key: known.start for key, known in journal.items()}, queues)
    if noted:
        _note_ends(root, {(one.topic, one.queue_id): one.end for one in noted.values()})
    try:
        text, offsets = read_config(root.path, CONSUMER_OFFSETS), read_consumer_offsets(root.path)
    except SourceError:
        return tuple(noted.values())
    saved = {
        QueueKey(group, topic, queue_id): offset
        for (topic, group), queue_offsets in offsets.items()
        for queue_id, offset in queue_offsets.items()
    }
    if lowered := _behind_the_end(saved, queues):
        changed: ConsumerOffsets = {}
        for one in lowered.values():
            changed.setdefault((one.topic, one.group), {})[one.queue_id] = one.end
        value = with_consumer_offsets(text.value, changed)
        replace_config(root.path, CONSUMER_OFFSETS, value, dialect.config, text)
    return tuple((noted | lowered).values())


def _behind_the_end(
    offsets: Mapping[QueueKey, int], queues: QueueSet
) -> dict[QueueKey, LoweredOffset]:
    found = {}
    for key, offset in sorted(offsets.items()):
        queue = queues.find(key.topic, key.queue_id)
        end = 0 if queue is None else queue.max_offset
        if offset > end:
            found[key] = LoweredOffset(key.topic, key.group, key.queue_id, offset, end)
    return found


def _note_ends(root: StoreRoot, ends: Mapping[tuple[str, int], int]) -> None:
    """Add a line for each queue to the journal of groups."""
    journal = LineJournal(root.group_journal)
    try:
        lines = [lost_end_line(*queue, end) for queue, end in ends.items()]
        journal.append(map(encode_line, lines))
        journal.sync(journal.begin_sync())
    finally:
        journal.close()


def merge_topics(root: StoreRoot, queues: Mapping[str, int], dialect: Dialect) -> bool:
    """Give topics.json each of these topics with at least so many queues; returns whether it
    lacked any.

    A broker that opens the store then has a route for every topic. Existing topics and their
    settings stay. The old file becomes `.bak`, as with a broker. Raises SourceError and
    TargetError.
    """
    text = read_config(root.path, TOPICS)
    members = _table(text.value)
    missing = {}
    for name, count in queues.items():
        entry = members.get(name)
        known = TopicConfig.of_members(name, entry) if isinstance(entry, dict) else None
        if known is None:
            missing[name] = TopicConfig(name, read_queues=count, write_queues=count)
        elif min(known.read_queues, known.write_queues) < count:
            missing[name] = attrs.evolve(
                known,
                read_queues=max(known.read_queues, count),
                write_queues=max(known.write_queues, count),
            )
    if not missing:
        return False
    fresh = topics_value(missing.values(), dialect.config)
    added = _table(fresh)
    merged: JsonObject = {**fresh, **text.value, "topicConfigTable": {**members, **added}}
    replace_config(root.path, TOPICS, merged, dialect.config, text)
    return True


def _table(value: JsonObject) -> JsonObject:
    table = value.get("topicConfigTable")
    return table if isinstance(table, dict) else {}
