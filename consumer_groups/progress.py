# SPDX-License-Identifier: Apache-2.0
"""How far one group has come in one queue: pure bookkeeping, without files and without a clock."""

import heapq
import zlib
from collections import defaultdict

from message_store.format.message import StoredMessage

_IDENTITY = "{0.commit_log_offset} {0.store_timestamp_ms} {0.born_timestamp_ms} {0.body_crc}"


def identity_of(message: StoredMessage) -> int:
    """CRC-32 of what distinguishes a record from another that takes its queue offset later.

    A loss of power can take a record that was acknowledged. The queue then grows again, and the
    acknowledgement must not count for the next record at this offset.
    """
    return zlib.crc32(_IDENTITY.format(message).encode(), zlib.crc32(message.properties_text))


class QueueProgress:
    """Which messages of a queue are done, in flight, or to be received again.

    A message is done when it was acknowledged or skipped. ``offset`` is the queue offset below
    which all are; ``next_offset`` the first that nobody has looked at. ``acked`` has what was
    acknowledged at or after ``saved``, the offset that was written down last, with its identity.
    """

    def __init__(self, offset: int, acked: dict[int, int] | None = None) -> None:
        self.acked: dict[int, int] = {}
        self._in_flight: dict[int, tuple[int, str]] = {}
        self._by_time: list[tuple[int, int]] = []
        self._returned: dict[str, list[int]] = defaultdict(list)
        self.move_to(offset, acked or {})

    def move_to(self, offset: int, acked: dict[int, int]) -> None:
        """Begin at another offset, with these acknowledged. Nothing is in flight then."""
        self.offset = self.next_offset = self.saved = offset
        self._ahead: set[int] = set()
        self._in_flight.clear()
        self._by_time.clear()
        self._returned.clear()
        self.acked = {at: identity for at, identity in acked.items() if at >= offset}
        for at in sorted(self.acked):
            self._finish(at)

    # --- done -------------------------------------------------------------------------------------

    def is_done(self, queue_offset: int) -> bool:
        """Whether a message needs no more work."""
        return queue_offset < self.offset or queue_offset in self._ahead

    @property
    def done_ahead(self) -> int:
        """How many messages after ``offset`` are done."""
        return len(self._ahead)

    def ack(self, queue_offset: int, identity: int) -> None:
        """This message was worked on."""
        self.acked[queue_offset] = identity
        self._finish(queue_offset)

    def skip(self, first: int, end: int) -> None:
        """No message from ``first`` up to ``end`` is for this group."""
        for queue_offset in range(max(first, self.offset), end):
            self._finish(queue_offset)
        self.next_offset = max(self.next_offset, end)

    def cut(self, first: int) -> None:
        """Retention took all messages below ``first``."""
        if self.offset < first:
            self._ahead = {at for at in self._ahead if at >= first}
            self._in_flight = {at: hid for at, hid in self._in_flight.items() if at >= first}
            self.offset = first
            self.next_offset = max(self.next_offset, first)
            self._absorb()

    def forget_saved(self, offset: int) -> None:
        """That all below ``offset`` is done was written down."""
        self.saved = offset
        self.acked = {at: identity for at, identity in self.acked.items() if at >= offset}

    def _finish(self, queue_offset: int) -> None:
        self._in_flight.pop(queue_offset, None)
        if queue_offset >= self.offset:
            self._ahead.add(queue_offset)
            self._absorb()

    def _absorb(self) -> None:
        while self.offset in self._ahead:
            self._ahead.remove(self.offset)
            self.offset += 1
        self.next_offset = max(self.next_offset, self.offset)

    # --- in flight --------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many messages somebody is working on."""
        return len(self._in_flight)

    def hide(self, queue_offset: int, topic: str, until_ms: int) -> None:
        """Somebody works on this message; from ``until_ms`` on it can be received again."""
        self._in_flight[queue_offset] = until_ms, topic
        heapq.heappush(self._by_time, (until_ms, queue_offset))
        self.next_offset = max(self.next_offset, queue_offset + 1)

    def is_in_flight(self, queue_offset: int, now_ms: int) -> bool:
        """Whether somebody works on this message at a time."""
        hidden = self._in_flight.get(queue_offset)
        return hidden is not None and now_ms < hidden[0]

    def is_held(self, queue_offset: int, until_ms: int) -> bool:
        """Whether somebody works on this message, until this time."""
        hidden = self._in_flight.get(queue_offset)
        return hidden is not None and hidden[0] == until_ms

    def hold(self, queue_offset: int, until_ms: int) -> None:
        """A message in flight, and all that were received behind it, are received again, but none
        before ``until_ms``.
        """
        for later in [at for at in self._in_flight if at > queue_offset]:
            self.put_aside(later, self._in_flight.pop(later)[1])
        if queue_offset in self._in_flight:
            self.hide(queue_offset, self._in_flight[queue_offset][1], until_ms)

    def put_aside(self, queue_offset: int, topic: str) -> None:
        """This message can be received, by whoever asks for ``topic``."""
        heapq.heappush(self._returned[topic], queue_offset)
        self.next_offset = max(self.next_offset, queue_offset + 1)

    def show_expired(self, now_ms: int) -> None:
        """Messages whose invisible time has passed can be received again."""
        while self._by_time and self._by_time[0][0] <= now_ms:
            until_ms, queue_offset = heapq.heappop(self._by_time)
            hidden = self._in_flight.get(queue_offset)
            if hidden is not None and hidden[0] == until_ms:
                del self._in_flight[queue_offset]
                self.put_aside(queue_offset, hidden[1])

    def next_returned(self, topic: str) -> int | None:
        """The first message of ``topic`` that can be received again; None if there is none."""
        returned = self._returned.get(topic)
        while returned:
            queue_offset = heapq.heappop(returned)
            if not self.is_done(queue_offset):
                return queue_offset
        return None
