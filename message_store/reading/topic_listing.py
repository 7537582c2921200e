# SPDX-License-Identifier: Apache-2.0
"""Lists what stands in a topic of a store that is only looked at, as its consumers would get it.

Nothing is opened for writing, so it does for a broker's store, a backup, and a store of either
engine that no process holds.
"""

from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np

from message_store.base.errors import FormatError, UnsupportedStoreError
from message_store.files.log_row import open_log
from message_store.files.rocksdb.queues import queue_database
from message_store.files.segments import SegmentReader, list_directories
from message_store.files.store_root import StoreRoot
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.queue_unit import MAX_NEUTRAL_BYTES
from message_store.reading.consume_queue import QueueEntries, read_queue
from message_store.reading.looking import looking_at


class LookedAtTopic:
    """One topic's queues in a store that nobody writes; see ``TopicReader``.

    They are read when it is made, and end where they ended then. Raises FormatError for a queue
    that cannot be told.
    """

    def __init__(self, store: StoreRoot, log: SegmentReader, name: str) -> None:
        self._log = log
        directories = _queues(store.consume_queues / name)
        self._queues = {number: read_queue(directory) for number, directory in directories}

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Each queue's first queue offset, and the one behind its last."""
        return {
            queue_id: (self._first(entries), entries.queue_max)
            for queue_id, entries in self._queues.items()
            if len(entries)
        }

    def _first(self, entries: QueueEntries) -> int:
        """The first entry whose record retention has not taken."""
        is_there = ~entries.is_pre_blank & (entries.commit_log_offset >= self._log.min_offset)
        rows = np.flatnonzero(is_there)
        return entries.first_queue_offset + (int(rows[0]) if len(rows) else len(entries))

    def read(
        self, queue_id: int, from_offset: int, max_messages: int = 32
    ) -> tuple[StoredMessage, ...]:
        """A part of one queue, in order. Raises FormatError for a record that is damaged."""
        entries = self._queues.get(queue_id)
        messages: list[StoredMessage] = []
        while entries is not None and len(messages) < max_messages:
            end = from_offset + max_messages - len(messages)
            for message in _messages(self._log, queue_id, entries.slice(from_offset, end)):
                if isinstance(message, UnreadableMessage):
                    raise FormatError(message.reason, offset=message.commit_log_offset)
                messages.append(message)
            from_offset = end
            if end >= entries.queue_max:
                break
        return tuple(messages)


@attrs.frozen
class UnreadableMessage:
    """An entry of a queue whose record cannot be read, and why."""

    queue_id: int
    queue_offset: int
    commit_log_offset: int
    reason: str


def topics_with_queues(path: Path) -> dict[str, list[int]]:
    """The topics that something was ever put into, the engines' own among them, each with the
    numbers of its queues in order.

    Raises SourceError for a directory that is no store, UnsupportedStoreError for one with its
    queues in RocksDB.
    """
    store = StoreRoot(path)
    store.require_readable()
    store.require_log()
    if (database := queue_database(path)) is not None:
        raise UnsupportedStoreError(
            f"{database}: of consume queues in RocksDB only those of pending messages are read;"
            " `delaywheel pending` lists these"
        )
    return {
        directory.name: [number for number, _ in _queues(directory)]
        for directory in list_directories(store.consume_queues)
    }


def list_topic(
    path: Path, topic: str, *, queue_id: int | None = None, from_offset: int = 0
) -> Iterator[StoredMessage | UnreadableMessage]:
    """The messages of one queue of a topic, or of all its queues one after the other, each from
    ``from_offset`` on; a topic that has no messages has none.

    What retention has taken from the log is left out, as it is for consumers. Raises SourceError
    for a directory that is no store or that a broker holds, FormatError for a queue that cannot be
    told.
    """
    store = StoreRoot(path)
    if topic not in topics_with_queues(path):
        return
    with looking_at(store), open_log(store) as log:
        for number, directory in _queues(store.consume_queues / topic):
            if queue_id in (None, number):
                entries = read_queue(directory, from_queue_offset=from_offset)
                yield from _messages(log, number, entries)


def _queues(topic: Path) -> list[tuple[int, Path]]:
    """The queues of a topic in order of their numbers."""
    directories = [path for path in list_directories(topic) if path.name.isdecimal()]
    return sorted((int(path.name), path) for path in directories)


def _messages(
    log: SegmentReader, queue_id: int, entries: QueueEntries
) -> Iterator[StoredMessage | UnreadableMessage]:
    rows = zip(
        entries.commit_log_offset.tolist(),
        entries.size_bytes.tolist(),
        entries.is_pre_blank.tolist(),
        strict=True,
    )
    for queue_offset, (offset, size_bytes, is_blank) in enumerate(rows, entries.first_queue_offset):
        if is_blank or 0 < size_bytes <= MAX_NEUTRAL_BYTES or offset < log.min_offset:
            continue
        segment = log.segment_at(offset)
        try:
            room_bytes = 0 if segment is None else segment.start_offset + log.file_bytes - offset
            if not 0 < size_bytes <= room_bytes:
                raise FormatError("no file of the log holds it")
            yield decode_message_at(log.read_at(offset, size_bytes))
        except FormatError as error:
            yield UnreadableMessage(queue_id, queue_offset, offset, error.problem)
