# SPDX-License-Identifier: Apache-2.0
"""How far one group has come in one queue: pure bookkeeping, without files and without a clock."""

import heapq
from collections import defaultdict

from message_store.files.group_journal import Acked


class QueueProgress:
    """Which messages of a queue are done, in flight, or to be received again.

    A message is done when it was acknowledged or skipped. ``offset`` is the queue offset below
    which all are; ``next_offset`` the first that nobody has looked at. ``acked`` has what was
    acknowledged at or after ``saved``, the offset that was written down last, by the last queue
    offset of each acknowledgement. ``received`` is how often a message was received.
    """

    def __init__(self, offset: int, acked: dict[int, Acked] | None = None) -> None:
        self.acked: dict[int, Acked] = {}
        self.received = 0
        self._in_flight: dict[int, tuple[int, str]] = {}
        self._taken: set[int] = set()
        self._by_time: list[tuple[int, int, int]] = []
        self._returned: dict[str, list[int]] = defaultdict(list)
        self.move_to(offset, acked or {})

    def move_to(self, offset: int, acked: dict[int, Acked]) -> None:
        """Begin at another offset, with these acknowledged. Nothing is in flight then."""
        self.offset = self.next_offset = self.saved = offset
        self._ahead: set[int] = set()
        self._in_flight.clear()
        self._taken.clear()
        self._by_time.clear()
        self._returned.clear()
        self.acked = {last: each for last, each in acked.items() if last >= offset}
        for last in sorted(self.acked):
            self._finish(self.acked[last].first, last + 1)

    # --- done -------------------------------------------------------------------------------------

    def is_done(self, queue_offset: int) -> bool:
        """Whether a message needs no more work."""
        return queue_offset < self.offset or queue_offset in self._ahead

    def may_be_given_back(self, queue_offset: int) -> bool:
        """Whether nobody has settled a message. Retention settles none that somebody works on: the
        record is not needed for it.
        """
        return not self.is_done(queue_offset) or queue_offset in self._taken

    def are_open(self, first: int, end: int) -> bool:
        """Whether no message from ``first`` up to ``end`` is done."""
        is_behind = first >= self.offset
        return is_behind and (not self._ahead or self._ahead.isdisjoint(range(first, end)))

    def are_in_flight(self, first: int, end: int) -> bool:
        """Whether somebody works on all messages from ``first`` up to ``end``."""
        return all(map(self._in_flight.__contains__, range(first, end)))

    @property
    def done_ahead(self) -> int:
        """How many messages after ``offset`` are done."""
        return len(self._ahead)

    def ack(self, first: int, last: int, identity: int) -> None:
        """These messages were worked on."""
        self.acked[last] = Acked(first, identity)
        self._finish(first, last + 1)

    def skip(self, first: int, end: int) -> None:
        """No message from ``first`` up to ``end`` is for this group."""
        self._finish(first, end)
        self.next_offset = max(self.next_offset, end)

    def cut(self, first: int) -> None:
        """Retention took all messages below ``first``."""
        if self.offset < first:
            self._taken.update(at for at in self._in_flight if at < first)
            self._ahead = {at for at in self._ahead if at >= first}
            self._in_flight = {at: hid for at, hid in self._in_flight.items() if at >= first}
            self.offset = first
            self.next_offset = max(self.next_offset, first)
            self._absorb()

    def forget_saved(self, offset: int) -> None:
        """That all below ``offset`` is done was written down."""
        self.saved = offset
        self.acked = {last: each for last, each in self.acked.items() if last >= offset}

    def _finish(self, first: int, end: int) -> None:
        if first >= end:
            return
        if self._in_flight:
            for queue_offset in range(first, end):
                self._in_flight.pop(queue_offset, None)
        if self._taken:
            self._taken.difference_update(range(first, end))
        first = max(first, self.offset)
        if first > self.offset:
            self._ahead.update(range(first, end))
        elif first < end:
            if self._ahead:
                self._ahead.difference_update(range(first, end))
            self.offset = end
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

    def hide(self, first: int, end: int, topic: str, until_ms: int) -> None:
        """Somebody works on the messages from ``first`` up to ``end``; from ``until_ms`` on they
        can be received again.
        """
        if end - first == 1:
            self._in_flight[first] = until_ms, topic
        else:
            self._in_flight.update(dict.fromkeys(range(first, end), (until_ms, topic)))
        heapq.heappush(self._by_time, (until_ms, first, end))
        self.next_offset = max(self.next_offset, end)

    def count_received(self, count: int) -> None:
        """So many messages were received."""
        self.received += count

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
            topic = self._in_flight[queue_offset][1]
            self.hide(queue_offset, queue_offset + 1, topic, until_ms)

    def put_aside(self, queue_offset: int, topic: str) -> None:
        """This message can be received, by whoever asks for ``topic``."""
        heapq.heappush(self._returned[topic], queue_offset)
        self.next_offset = max(self.next_offset, queue_offset + 1)

    def show_expired(self, now_ms: int) -> None:
        """Messages whose invisible time has passed can be received again."""
        while self._by_time and self._by_time[0][0] <= now_ms:
            until_ms, first, end = heapq.heappop(self._by_time)
            for queue_offset in range(first, end):
                hidden = self._in_flight.get(queue_offset)
                if hidden is not None and hidden[0] == until_ms:
                    del self._in_flight[queue_offset]
                    self.put_aside(queue_offset, hidden[1])

    @property
    def first_ready(self) -> int:
        """The first message that can be received, or where the next one will be."""
        returned = (at for heap in self._returned.values() for at in heap if not self.is_done(at))
        first = min(returned, default=self.next_offset)
        while self.is_done(first):
            first += 1
        return first

    @property
    def next_visible_ms(self) -> int | None:
        """When the first of the messages in flight can be received again; None if none is."""
        return min([until_ms for until_ms, _ in self._in_flight.values()], default=None)

    def has_returned(self, topic: str) -> bool:
        """Whether a message of ``topic`` may be one that can be received again."""
        return bool(self._returned.get(topic))

    def next_returned(self, topic: str) -> int | None:
        """The first message of ``topic`` that can be received again; None if there is none."""
        returned = self._returned.get(topic)
        while returned:
            queue_offset = heapq.heappop(returned)
            if not self.is_done(queue_offset):
                return queue_offset
        return None
