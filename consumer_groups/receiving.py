# SPDX-License-Identifier: Apache-2.0
"""One look into one queue for one group: which messages it receives, and which it skips."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import attrs

from consumer_groups.progress import QueueProgress
from consumer_groups.readable import tell_log
from consumer_groups.received import Received, origin_topic, received_of
from message_store.files.group_journal import QueueKey
from message_store.format.java_numbers import string_hash
from message_store.interface.delay_store import TopicReader
from message_store.interface.queued_messages import Queued, QueuePart

_MOST_LOOKED_AT = 1_024
"""So many records of a queue are looked at by one ``receive``, where a filter skips most."""

_ENTRIES_A_RECORD = 64
"""So many entries are skipped by their tags codes as if it were one record."""

_READ_AHEAD = 128
"""So many entries are read at once where fewer at a time are received."""


def tag_filter(tags: str | None) -> Mapping[str, int] | None:
    """The tags that pass a filter such as ``"paid || sent"``, with the codes that entries have for
    them; None where all pass.

    The codes choose records, as in a broker. Then the text decides: two tags with one code are told
    apart, as in RocketMQ's clients.

    >>> tag_filter("Aa || BB")
    {'Aa': 2112, 'BB': 2112}
    """
    if tags is None:
        return None
    wanted = [tag.strip() for tag in tags.split("||")]
    if "*" in wanted or not any(wanted):
        return None
    return {tag: string_hash(tag) for tag in wanted if tag}


class Wanted(NamedTuple):
    """What one ``receive`` asks for at ``now_ms``: messages are held until ``until_ms``. ``tags``
    are those that pass, None if all do.
    """

    now_ms: int
    until_ms: int
    tags: Mapping[str, int] | None
    is_ordered: bool


@attrs.define(eq=False)
class QueueReceiver:
    """Receives messages of ``topic`` from the queue ``key``; the store's lock is held.

    The queue is one of the topic, or of the group's retries: of those it leaves the messages of
    other topics for whoever asks for them. ``_ahead`` was read from queue offset ``_ahead_at`` on,
    without a gap: a record never changes.
    """

    progress: QueueProgress
    reader: TopicReader
    key: QueueKey
    topic: str
    is_retry: bool
    _ahead: Sequence[Queued] = ()
    _ahead_at: int = -1

    def take(self, room: int, bounds: tuple[int, int], wanted: Wanted) -> list[Received]:
        """At most ``room`` messages of a queue that has those from ``bounds[0]`` up to
        ``bounds[1]``. Raises SourceError.
        """
        progress, (first, end) = self.progress, bounds
        progress.cut(first)
        progress.show_expired(wanted.now_ms)
        if wanted.is_ordered and progress.in_flight:
            return []
        received = self._returned(room, wanted) if progress.has_returned(self.topic) else []
        looked_at = 0
        while len(received) < room and looked_at < _MOST_LOOKED_AT and progress.next_offset < end:
            at = progress.next_offset
            part = self._read(at, room - len(received), wanted)
            if part.end <= at:  # a queue never shrinks, so this is the end of it
                break
            received += self._taken(part, wanted)
            looked_at += len(part.messages) + (part.end - at) // _ENTRIES_A_RECORD + 1
        progress.count_received(len(received))
        return received

    def _read(self, at: int, count: int, wanted: Wanted) -> QueuePart:
        """The messages of so many entries that may be wanted. Where a queue is received bit by bit,
        more are read at once and kept.
        """
        reader, queue_id, passed = self.reader, self.key.queue_id, at - self._ahead_at
        if wanted.tags is not None and not self.is_retry:
            return reader.queued(queue_id, at, count, wanted.tags.values())
        if 0 <= passed < len(self._ahead):
            messages = self._ahead[passed : passed + count]
            if passed + count >= len(self._ahead):  # whoever keeps one keeps the records of all
                self._ahead, self._ahead_at = (), self._ahead_at + len(self._ahead)
            return QueuePart(messages, at + len(messages), {})
        if passed == len(self._ahead) and count < _READ_AHEAD:
            ahead = reader.queued(queue_id, at, _READ_AHEAD)
            if len(ahead.messages) == ahead.end - at > count:
                self._ahead, self._ahead_at = list(ahead.messages), at
                return QueuePart(self._ahead[:count], at + count, {})
        part = reader.queued(queue_id, at, count)
        self._ahead, self._ahead_at = (), part.end
        return part

    def _taken(self, part: QueuePart, wanted: Wanted) -> list[Received]:
        """What is received of a part that begins where nobody has looked."""
        progress, begin = self.progress, self.progress.next_offset
        is_plain = wanted.tags is None and not self.is_retry
        is_gapless = len(part.messages) == part.end - begin
        if not (is_plain and is_gapless and progress.are_open(begin, part.end)):
            return self._chosen(part, wanted)
        progress.hide(begin, part.end, self.topic, wanted.until_ms)
        queue_offsets = range(begin, part.end)
        return received_of(part.messages, queue_offsets, self.topic, wanted.until_ms, self.key)

    def _chosen(self, part: QueuePart, wanted: Wanted) -> list[Received]:
        """The same, message by message."""
        progress, tags = self.progress, wanted.tags
        received = []
        for message in part.messages:
            queue_offset = message.queue_offset
            progress.skip(progress.next_offset, queue_offset)
            topic = origin_topic(message, self.topic) if self.is_retry else self.topic
            if progress.is_done(queue_offset):
                progress.skip(queue_offset, queue_offset + 1)
            elif topic != self.topic:
                progress.put_aside(queue_offset, topic)
            elif self.is_retry or tags is None or message.tags in tags:
                received.append(self._hide(message, wanted))
            else:
                progress.skip(queue_offset, queue_offset + 1)
        progress.skip(progress.next_offset, part.end)
        self._warn_of(part)
        return received

    def _returned(self, room: int, wanted: Wanted) -> list[Received]:
        """Messages that were in flight too long, or that others left."""
        received: list[Received] = []
        while len(received) < room:
            queue_offset = self.progress.next_returned(self.topic)
            if queue_offset is None:
                break
            try:
                part = self.reader.queued(self.key.queue_id, queue_offset, 1)
            except BaseException:  # it is not forgotten
                self.progress.put_aside(queue_offset, self.topic)
                raise
            if part.messages and part.messages[0].queue_offset == queue_offset:
                received.append(self._hide(part.messages[0], wanted))
            else:  # a cancel or retention took it, or it was damaged
                self._warn_of(part)
                self.progress.skip(queue_offset, queue_offset + 1)
        return received

    def _hide(self, message: Queued, wanted: Wanted) -> Received:
        queue_offset = message.queue_offset
        self.progress.hide(queue_offset, queue_offset + 1, self.topic, wanted.until_ms)
        return Received(self.key, queue_offset, self.topic, wanted.until_ms, [message], 0)

    def _warn_of(self, part: QueuePart) -> None:
        """A record that is damaged is skipped: nobody can read it."""
        for queue_offset, error in part.damaged.items():
            key = self.key
            tell_log(f"{key.topic}, queue {key.queue_id}, queue offset {queue_offset}: {error}")
