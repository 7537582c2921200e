# SPDX-License-Identifier: Apache-2.0
"""The consume queues of a store that is open for writing.

A broker has one size of queue file for all queues and refuses to start on another. So new queues
take the size of the existing ones.
"""

from bisect import insort
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from message_store.base.errors import BadFieldError, SourceError
from message_store.files.live_segments import LiveSegments
from message_store.files.segments import list_directories, list_segments
from message_store.files.small_files import identity_of, is_ordinary_file
from message_store.files.store_root import StoreRoot
from message_store.format.message_rules import is_topic_name
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.writing.queue import LiveQueue

ENDS_NAME = "queue-ends.json"
"""Our own note of where queues ended when the store was closed."""

_MAX_QUEUE_HANDLES = 400


class QueueSet:
    """All queues of one store, found on disk or made with their first entry; iterable.

    ``default_file_bytes`` is the size of queue files where the store has none. The ends of the
    queues are unknown until ``load``. Raises SourceError for files that nobody can append to.
    """

    def __init__(self, root: StoreRoot, default_file_bytes: int) -> None:
        self._root = root
        self._identity = identity_of(root.path)  # its directory may be moved while it is open
        self._file_bytes = usual_queue_bytes(root) or default_file_bytes
        self._queues: dict[tuple[str, int], LiveQueue] = {}
        self._by_topic: dict[str, list[LiveQueue]] = {}
        self._opened_files = 0
        self._with_handles: set[tuple[str, int]] = set()

    @property
    def root(self) -> StoreRoot:
        """The store that they are of."""
        return self._root

    def load(self, log_min: int) -> None:
        """Open the queues that are on disk and find where each begins and ends, in a log that
        begins at ``log_min``. Raises FormatError and SourceError.
        """
        for topic, queue_id, _ in _queue_directories(self._root):
            self.queue(topic, queue_id).load(log_min)

    def __iter__(self) -> Iterator[LiveQueue]:
        return iter(tuple(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def queue(self, topic: str, queue_id: int) -> LiveQueue:
        """The queue of a topic, to be appended to; a new one gets its files with its first entry.

        Raises BadFieldError for a topic that can have no directory, and SourceError for files of
        another size than those of the other queues.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if not is_topic_name(topic) or queue_id < 0:
                asked = f"{topic!r}, queue {queue_id}"
                raise BadFieldError("a topic that can have no queue", found=asked)
            queue = self._queues[topic, queue_id] = self._open(topic, queue_id)
            insort(self._by_topic.setdefault(topic, []), queue, key=lambda each: each.queue_id)
        return queue

    def _open(self, topic: str, queue_id: int) -> LiveQueue:
        directory = self._root.consume_queue(topic, queue_id)
        segments = LiveSegments(
            directory,
            self._file_bytes,
            root=self._root.path,
            root_identity=self._identity,
            on_open=partial(self._count_handle, (topic, queue_id)),
        )
        if segments.starts and segments.file_bytes != self._file_bytes:
            raise SourceError(
                f"{directory}: files of {segments.file_bytes} bytes, where queues have files of"
                f" {self._file_bytes}; take them from a backup{self._way_out()}"
            )
        return LiveQueue(topic, queue_id, segments)

    def _way_out(self) -> str:
        """Our own note alone tells how long a lost queue was."""
        has_note = is_ordinary_file(self._root.own / ENDS_NAME)
        return ", or remove them to have them rebuilt" if has_note else ""

    def _count_handle(self, name: tuple[str, int]) -> None:
        """Before a queue file is opened: close all where many are open. They are opened again when
        they are needed; a store may have more queues than a process can have files.
        """
        self._opened_files += 1
        if self._opened_files > _MAX_QUEUE_HANDLES:
            self._opened_files = 1
            for open_name in self._with_handles & self._queues.keys():
                self._queues[open_name].close()
            self._with_handles.clear()
        self._with_handles.add(name)

    def find(self, topic: str, queue_id: int) -> LiveQueue | None:
        """The queue of a topic; None where nothing was ever put there."""
        return self._queues.get((topic, queue_id))

    def of_topic(self, topic: str) -> tuple[LiveQueue, ...]:
        """The queues of a topic, in order of queue id."""
        return tuple(self._by_topic.get(topic, ()))

    def has_entries(self, topic: str) -> bool:
        """Whether a queue of a topic leads to any record."""
        return any(queue.max_offset > queue.min_offset for queue in self.of_topic(topic))

    def first_record(self, topics: Collection[str], log_end: int) -> int:
        """Where in the log the first record of these topics' queues is; ``log_end`` if none."""
        queues = (queue for (name, _), queue in self._queues.items() if name in topics)
        return min([log_end, *(queue.first_record(log_end) for queue in queues)])

    def close(self) -> None:
        """Give all files back; closing twice is fine."""
        for queue in self:
            queue.close()


def _queue_directories(root: StoreRoot) -> list[tuple[str, int, Path]]:
    """Topic, queue id and directory of every queue; names that are no queue ids are skipped."""
    return [
        (topic.name, int(queue.name), queue)
        for topic in list_directories(root.consume_queues)
        for queue in list_directories(topic)
        if queue.name.isascii() and queue.name.isdigit() and str(int(queue.name)) == queue.name
    ]


def usual_queue_bytes(root: StoreRoot) -> int | None:
    """The greatest length of a store's queue files that are whole units: shorter ones were cut.
    None without any.
    """
    lengths = (
        segment.length_bytes
        for _, _, directory in _queue_directories(root)
        for segment in list_segments(directory)
        if segment.length_bytes % QUEUE_UNIT.size == 0
    )
    return max(lengths, default=0) or None
