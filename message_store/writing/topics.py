# SPDX-License-Identifier: Apache-2.0
"""Topics of a store that is open for writing: what a consumer sees of them, and topics.json.

Consumer offsets are corrected here where a queue has lost its end.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
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


LOST_END = "L"
"""Of a line of the journal of groups: queue id, end and topic of a queue that has lost its end."""


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
    lines = LineJournal(root.group_journal, is_only_read=True).lines
    noted = _behind_the_end(_begun_by_group(lines), queues)
    if noted:
        _note_ends(root, {(one.topic, one.queue_id): one.end for one in noted})
    try:
        text, known = read_config(root.path, CONSUMER_OFFSETS), read_consumer_offsets(root.path)
    except SourceError:
        return tuple(noted)
    saved = {
        (topic, group, queue_id): offset
        for (topic, group), offsets in known.items()
        for queue_id, offset in offsets.items()
    }
    if lowered := _behind_the_end(saved, queues):
        changed: ConsumerOffsets = {}
        for one in lowered:
            changed.setdefault((one.topic, one.group), {})[one.queue_id] = one.end
        value = with_consumer_offsets(text.value, changed)
        replace_config(root.path, CONSUMER_OFFSETS, value, dialect.config, text)
    told = {(one.topic, one.group, one.queue_id) for one in lowered}
    others = [one for one in noted if (one.topic, one.group, one.queue_id) not in told]
    return (*lowered, *others)


_GroupQueue = tuple[str, str, int]
"""Topic, group and queue id."""


def _behind_the_end(offsets: Mapping[_GroupQueue, int], queues: QueueSet) -> list[LoweredOffset]:
    found = []
    for (topic, group, queue_id), offset in sorted(offsets.items()):
        queue = queues.find(topic, queue_id)
        end = 0 if queue is None else queue.max_offset
        if offset > end:
            found.append(LoweredOffset(topic, group, queue_id, offset, end))
    return found


def _begun_by_group(lines: Iterable[str]) -> dict[_GroupQueue, int]:
    """Where groups begin, by the journal of groups. What it says is acknowledged names its record,
    and counts for no other.
    """
    keys: dict[str, _GroupQueue] = {}
    known: dict[_GroupQueue, int] = {}
    try:
        for line in lines:
            kind, number, value, *rest = line.split(" ")
            if kind == "Q":
                keys[number] = rest[1], rest[0], int(value)
            elif kind in "BS":
                known[keys[number]] = int(value)
            elif kind == LOST_END:
                for key, offset in known.items():
                    if (key[0], key[2]) == (rest[0], int(number)):
                        known[key] = min(offset, int(value))
    except (KeyError, ValueError, IndexError):
        pass  # what follows means nothing to the groups either
    return known


def _note_ends(root: StoreRoot, ends: Mapping[tuple[str, int], int]) -> None:
    """Add a line for each queue to the journal of groups."""
    journal = LineJournal(root.group_journal)
    try:
        lines = [f"{LOST_END} {queue_id} {end} {topic}" for (topic, queue_id), end in ends.items()]
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
