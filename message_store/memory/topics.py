# SPDX-License-Identifier: Apache-2.0
"""Topics in memory, a list for every queue, and what an ``advance`` has just put into them."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import attrs

from message_store.format.message import StoredMessage
from message_store.interface.delay_store import Delivered

if TYPE_CHECKING:
    from message_store.columns.message_batch import StoredBatch

Queues = dict[int, list[StoredMessage]]


@attrs.frozen(eq=False)
class MemoryDeliveries:
    """What one ``advance`` delivered; see ``Deliveries``."""

    _messages: tuple[StoredMessage, ...]
    _promised_ms: tuple[int, ...]

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> Delivered:
        return Delivered(self._messages[index], self._promised_ms[index])

    def __iter__(self) -> Iterator[Delivered]:
        return map(Delivered, self._messages, self._promised_ms)

    def to_batch(self) -> "StoredBatch":
        """The same as columns."""
        from message_store.columns.message_batch import StoredBatch

        return StoredBatch.of(self._messages)


@attrs.frozen(eq=False)
class MemoryTopic:
    """A topic's queues; see ``TopicReader``."""

    _queues: Mapping[int, list[StoredMessage]]

    def read(
        self, queue_id: int, from_offset: int, max_messages: int = 32
    ) -> tuple[StoredMessage, ...]:
        """A part of one queue, in order."""
        start = max(0, from_offset)
        return tuple(self._queues.get(queue_id, ())[start : start + max_messages])


@attrs.frozen(eq=False)
class MemoryTopics:
    """Every topic that something was delivered to, or that was asked for."""

    _topics: dict[str, Queues] = attrs.field(factory=dict, init=False)

    def append(self, message: StoredMessage) -> StoredMessage:
        """Put a message at the end of its queue; answers it with its ordinal there."""
        queues = self._topics.setdefault(message.topic, {})
        queue = queues.setdefault(message.queue_id, [])
        queue.append(attrs.evolve(message, queue_offset=len(queue)))
        return queue[-1]

    def reader(self, name: str) -> MemoryTopic:
        """A topic's queues, also those of later deliveries."""
        return MemoryTopic(self._topics.setdefault(name, {}))
