# SPDX-License-Identifier: Apache-2.0
"""One look into one queue for one group: which messages it receives, and which it skips."""

from collections.abc import Callable, Sequence

import attrs

from consumer_groups.offset_files import QueueKey
from consumer_groups.progress import QueueProgress
from consumer_groups.readable import read_readable, tell_log
from consumer_groups.received import Received, origin_topic, retry_topic
from message_store.format.message import StoredMessage
from message_store.interface.delay_store import TopicReader

_MOST_LOOKED_AT = 1_024
"""So many messages of a queue are looked at by one ``receive``, where a filter skips most."""

_AT_ONCE = 128


def tag_filter(tags: str | None) -> Callable[[StoredMessage], bool]:
    """Whether a message passes a filter such as ``"paid || sent"``; all pass None and ``"*"``.

    The text of the tag decides. Two tags with one hash are told apart, as in RocketMQ's clients.
    """
    wanted = {tag.strip() for tag in (tags or "*").split("||")} - {""}
    if "*" in wanted or not wanted:
        return lambda _: True
    return lambda message: message.tags in wanted


@attrs.frozen(eq=False)
class QueueReceiver:
    """Receives messages of ``topic`` from the queue ``key``; the store's lock is held.

    The queue is one of the topic, or of the group's retries: of those it leaves the messages of
    other topics for whoever asks for them. What it takes is in flight until ``until_ms``.
    """

    progress: QueueProgress
    reader: TopicReader
    key: QueueKey
    topic: str
    now_ms: int
    until_ms: int

    def take(
        self, room: int, passes: Callable[[StoredMessage], bool], *, is_ordered: bool
    ) -> list[Received]:
        """At most ``room`` messages. Raises SourceError."""
        first, end = self.reader.ranges().get(self.key.queue_id, (0, 0))
        self.progress.cut(first)
        self.progress.show_expired(self.now_ms)
        if is_ordered and self.progress.in_flight:
            return []
        received = self._returned(room)
        is_retry = self.key.topic == retry_topic(self.key.group)
        looked_at = 0
        while len(received) < room and looked_at < _MOST_LOOKED_AT:
            count = min(_AT_ONCE, room - len(received))
            messages = self._read(self.progress.next_offset, count)
            for message in messages:
                self.progress.skip(self.progress.next_offset, message.queue_offset)
                topic = origin_topic(message, self.topic) if is_retry else self.topic
                if self.progress.is_done(message.queue_offset):
                    self.progress.skip(message.queue_offset, message.queue_offset + 1)
                elif topic != self.topic:
                    self.progress.put_aside(message.queue_offset, topic)
                elif is_retry or passes(message):
                    received.append(self._hide(message))
                else:
                    self.progress.skip(message.queue_offset, message.queue_offset + 1)
            looked_at += len(messages)
            if not messages:
                self.progress.skip(self.progress.next_offset, end)
                break
        return received

    def _returned(self, room: int) -> list[Received]:
        """Messages that were in flight too long, or that others left."""
        received: list[Received] = []
        while len(received) < room:
            queue_offset = self.progress.next_returned(self.topic)
            if queue_offset is None:
                break
            found = self._read(queue_offset, 1)
            if found and found[0].queue_offset == queue_offset:
                received.append(self._hide(found[0]))
            else:  # a cancel or retention took it
                self.progress.skip(queue_offset, queue_offset + 1)
        return received

    def _hide(self, message: StoredMessage) -> Received:
        self.progress.hide(message.queue_offset, self.topic, self.until_ms)
        return Received(message, self.topic, self.until_ms)

    def _read(self, from_offset: int, count: int) -> Sequence[StoredMessage]:
        """Messages from an offset on. A record that is damaged is skipped: nobody can read it."""
        return read_readable(self.reader, self.key, from_offset, count, tell_log)
