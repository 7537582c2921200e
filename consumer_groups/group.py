# SPDX-License-Identifier: Apache-2.0
"""A consumer group: it receives messages, and each stays its own until it is acknowledged."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from numbers import Integral
from typing import Literal

import attrs

from consumer_groups.progress import QueueProgress
from consumer_groups.progress_table import ProgressTable
from consumer_groups.readable import Tell, read_readable, tell_log
from consumer_groups.received import (
    FIRST_RETRY_LEVEL,
    Acknowledgement,
    Received,
    check_group,
    check_receivable,
    dead_letter_topic,
    given_back,
    origin_topic,
    retry_topic,
)
from consumer_groups.receiving import QueueReceiver, Wanted, tag_filter
from consumer_groups.stores import GroupStore
from message_store.base.errors import BadFieldError, TooLongError, UnsupportedDelayError
from message_store.base.kinds import CALLABLE, require_kind, takes
from message_store.files.group_journal import QueueKey
from message_store.format import properties as names
from message_store.format.message_rules import check_topic
from message_store.interface.delay_store import AtLevel, AtMs, Due, TopicReader

DEFAULT_INVISIBLE_MS = 30_000
_LETTERS_AT_ONCE = 32
SUSPEND_MS = 1_000
"""How long a retry holds an ordered queue. RocketMQ: suspendCurrentQueueTimeMillis (5.5.0)."""

Position = Literal["first", "last"] | AtMs | Mapping[int, int]
"""A place in a topic: its ends, the first message stored at a time or later, or the queue offset of
each queue.
"""


_LOG = logging.getLogger(__name__)


def require_position(name: str, position: object) -> None:
    """Raise BadFieldError for what is no ``Position``."""
    is_end = isinstance(position, str) and position in ("first", "last")
    is_each = isinstance(position, Mapping) and all(
        isinstance(number, Integral) for number in (*position, *position.values())
    )
    if not (is_end or is_each or isinstance(position, AtMs)):
        raise BadFieldError(
            f"{name} is of another kind",
            expected="first, last, AtMs or an offset by queue",
            found=repr(position)[:64],
        )


_Queue = tuple[QueueReceiver, tuple[int, int]]
"""A queue, and where it begins and ends."""


def _take(queues: Iterable[_Queue], max_messages: int, wanted: Wanted) -> list[Received]:
    """Messages of these queues; whoever calls holds the store's lock."""
    received: list[Received] = []
    for receiver, bounds in queues:
        room = max_messages - len(received)
        if room <= 0:
            break
        received += receiver.take(room, bounds, wanted)
    return received


@attrs.frozen
class Lag:
    """How far a group is behind in a topic, in messages.

    ``in_flight`` were received and not acknowledged. ``ready`` are all others, among them those
    that a tag filter will skip. ``first_left`` and ``first_ready`` are, by queue id, the queue
    offsets of the first message that is not done, and of the first that is ready, if there is one.
    ``received`` is how many were received since the store was opened.
    """

    ready: int
    in_flight: int
    first_left: dict[int, int] = attrs.field(factory=dict, eq=False, repr=False)
    first_ready: dict[int, int] = attrs.field(factory=dict, eq=False, repr=False)
    received: int = attrs.field(default=0, eq=False, repr=False)

    @property
    def total(self) -> int:
        """All messages that are not done."""
        return self.ready + self.in_flight


class ConsumerGroup:
    """A group of consumers of one store, made by ``consumer_group``. Threads may share it.

    ``name`` is the group's. ``max_retries`` is after how many retries a message becomes a dead
    letter. With ``is_ordered`` a queue gives nothing while one of its messages is in flight. With
    ``is_synced`` whatever it settles outlives a loss of power when the call returns.
    """

    def __init__(
        self,
        store: GroupStore,
        table: ProgressTable,
        name: str,
        *,
        start: Position,
        max_retries: int,
        is_ordered: bool,
        is_synced: bool,
    ) -> None:
        check_group(name)
        self.name = name
        self.max_retries = max_retries
        self.is_ordered = is_ordered
        self.is_synced = is_synced
        self._start = start
        self._store = store
        self._table = table
        self._turn = 0
        self._retries = retry_topic(name)
        self._readers: dict[str, TopicReader] = {}
        self._receivers: dict[tuple[str, str, int], QueueReceiver] = {}

    # --- receiving --------------------------------------------------------------------------------

    @takes(topic=str, max_messages=Integral, invisible_ms=Integral, tags=str | None)
    def receive(
        self,
        topic: str,
        max_messages: int = 32,
        invisible_ms: int = DEFAULT_INVISIBLE_MS,
        tags: str | None = None,
    ) -> list[Received]:
        """Messages of a topic that the group has not acknowledged, its retries among them.

        At most ``max_messages``, none where nothing is ready. Nobody else of the group receives
        them for ``invisible_ms``. ``tags`` is a filter such as ``"paid || sent"``; what it skips is
        done for this group, so all consumers of a group give the same. Raises StoreClosedError,
        SourceError, TargetError, and BadFieldError for a topic that the engine keeps for itself.
        """
        passing = tag_filter(tags)
        if invisible_ms < 0:
            raise BadFieldError("invisible_ms is negative", found=invisible_ms)
        with self._store.lock:
            now_ms = self._store.clock.now_ms()
            wanted = Wanted(now_ms, now_ms + invisible_ms, passing, self.is_ordered)
            queues = self._queues_in_turn(topic, may_begin=False)
            if queues is not None:
                return _take(queues, max_messages, wanted)
            if not self._store.topic(topic).ranges():
                check_topic(topic)
        self._begin(topic)
        with self._store.lock:
            return _take(self._queues_in_turn(topic, may_begin=True) or [], max_messages, wanted)

    def _queues_in_turn(self, topic: str, *, may_begin: bool) -> list[_Queue] | None:
        """The queues of a topic and of its retries, each first in its turn; None if the topic has
        one that is new for the group, unless it ``may_begin`` there with the first message.
        """
        self._table.require_open()
        queues: list[_Queue] = []
        for name in (topic,) if topic == self._retries else (topic, self._retries):
            if name not in self._readers:
                check_receivable(name)
                self._readers[name] = self._store.topic(name)
            reader = self._readers[name]
            ranges = reader.ranges() or ({0: (0, 0)} if name == topic else {})
            for queue_id, bounds in ranges.items():
                receiver = self._receivers.get((topic, name, queue_id))
                if receiver is None:
                    key = QueueKey(self.name, name, queue_id)
                    if name == topic and not may_begin and self._table.find(key) is None:
                        return None
                    is_retry = name == self._retries
                    receiver = QueueReceiver(self._progress(key), reader, key, topic, is_retry)
                    self._receivers[topic, name, queue_id] = receiver
                queues.append((receiver, bounds))
        self._turn += 1
        first = self._turn % len(queues)
        return queues[first:] + queues[:first] if first else queues

    def _begin(self, topic: str) -> None:
        """Begin in each queue of a topic that is new for the group. Where it starts counts once for
        a topic: a queue that comes later is read from its first message on.
        """
        with self._store.lock:
            starts = self._starts(topic)
        if any(starts.values()):
            self._store.flush()  # else a loss of power takes messages that it begins behind
        with self._store.lock:
            for key, offset in starts.items():
                if self._table.find(key) is None:
                    self._table.begin(key, offset)

    def _starts(self, topic: str) -> dict[QueueKey, int]:
        """Where the group will begin in the queues of a topic that are new for it."""
        ranges = self._store.topic(topic).ranges() or {0: (0, 0)}
        keys = [QueueKey(self.name, topic, queue_id) for queue_id in ranges]
        new = [key for key in keys if self._table.find(key) is None]
        if not new:
            return {}
        own = (retry_topic(self.name), dead_letter_topic(self.name))
        known = {key.topic for key in self._table.known_queues(self.name)}
        start: Position = "first" if topic in known or topic in own else self._start
        return {key: self._offset_at(key, start) for key in new}

    @takes(message=Received)
    def is_current(self, message: Received) -> bool:
        """Whether this message is in flight as it was received: nobody received it again since, and
        it was not settled.
        """
        with self._store.lock:
            progress = self._table.find(self._key(message))
            offset = message.queue_offset
            return progress is not None and progress.is_held(offset, message.visible_ms)

    def _progress(self, key: QueueKey) -> QueueProgress:
        """The progress in a queue. One that came since ``_begin`` is read from its beginning."""
        return self._table.find(key) or self._table.begin(key, 0)

    # --- settling ---------------------------------------------------------------------------------

    def ack(self, *messages: Received) -> Acknowledgement:
        """These messages were worked on: the group never receives them again. Returns how many
        that was true of, and how many were done before or never received.

        That outlives a kill when this returns, and a loss of power after the store's ``flush``.
        Raises StoreClosedError, and TargetError when the disk refuses. They stay in flight then, or
        are acknowledged, and a loss of power may bring them back: if it was the flush that failed.
        """
        with self._store.lock:
            try:
                answer = self._table.ack(self.name, messages)
            except (AttributeError, TypeError, ValueError):
                for message in messages:
                    require_kind("messages", message, Received)
                raise
            wants_flush = self.is_synced or self._table.wants_flush
        if wants_flush:
            self._store.flush()
        return answer

    @takes(message=Received, due=Due | None)
    def retry(self, message: Received, due: Due | None = None) -> None:
        """Receive this message again later: at ``due``, or after the delay of level 3, 4, 5 and so
        on. After ``max_retries`` it becomes a dead letter, as does what is too long for a retry.

        The retry is stored before the message is acknowledged. In an ordered group no record is
        stored: the queue waits until ``due``, or a second. Raises StoreClosedError, TargetError,
        and UnsupportedDelayError for a ``due`` that the engine refuses. The message stays in flight
        then.
        """
        if self.is_ordered:
            self._hold(message, due)
        elif message.retries >= self.max_retries:
            self.reject(message)
        else:
            try:
                self._retry(message, due, FIRST_RETRY_LEVEL + message.retries)
            except TooLongError as error:
                self.reject(message)
                _LOG.warning(
                    "%s becomes a dead letter: no retry holds it: %s", message.unique_key, error
                )

    def _retry(self, message: Received, due: Due | None, level: int) -> None:
        """Where the engine takes no delay as long as the group's own, the longest that it takes."""
        topic, times = retry_topic(self.name), message.retries + 1
        for shorter in range(min(level, self._store.levels.max_level), 0, -1):
            try:
                return self._give_back(message, topic, times, due or AtLevel(shorter))
            except UnsupportedDelayError:
                if due is not None or shorter == 1:
                    raise

    @takes(message=Received)
    def reject(self, message: Received) -> None:
        """Make this message a dead letter, which ``dead_letters`` lists after the next
        ``advance``. One that is too long for it loses its producer's own properties, and the log
        says so. Raises as ``retry``, and TooLongError for a body that the engine does not take.
        """
        topic, times = dead_letter_topic(self.name), message.retries + 1
        try:
            self._give_back(message, topic, times, None)
        except TooLongError as error:
            self._give_back(message, topic, times, None, is_bare=True)
            _LOG.warning("%s is a dead letter without properties: %s", message.unique_key, error)

    def _give_back(
        self,
        message: Received,
        topic: str,
        reconsume_times: int,
        due: Due | None,
        *,
        is_bare: bool = False,
    ) -> None:
        """Note what is to be stored, then store it. That record acknowledges the message: a kill in
        between neither loses the message nor repeats it. No loss of power takes both; it repeats
        the message where it takes the note alone, unless that was synced.
        """
        key, stored = self._key(message), message.stored
        with self._store.lock:
            progress = self._table.find(key)
            if progress is not None and progress.may_be_given_back(stored.queue_offset):
                asked = message.topic
                record = given_back(stored, topic, asked, reconsume_times, is_bare=is_bare)
                self._table.give_back(key, stored, record, is_synced=self.is_synced)
                self._store.schedule(record, due or AtMs(self._store.clock.now_ms()))
                self._table.gave_back(key, stored)
        if self.is_synced:  # also what another thread has just stored for it
            self._store.flush()

    def _hold(self, message: Received, due: Due | None) -> None:
        """Let the message's queue wait."""
        with self._store.lock:
            if not self.is_current(message):  # another holds the queue
                return
            now_ms = self._store.clock.now_ms()
            match due:
                case None:
                    until_ms = now_ms + SUSPEND_MS
                case AtMs(due_ms):
                    until_ms = due_ms
                case AtLevel(level):
                    until_ms = now_ms + self._store.levels.asked(level)[1]
                case _:
                    until_ms = now_ms + due.delay_ms
            self._progress(self._key(message)).hold(message.queue_offset, until_ms)

    def _key(self, message: Received) -> QueueKey:
        """Its queue as this group sees it, whoever received it."""
        return message.queue._replace(group=self.name)

    # --- dead letters -----------------------------------------------------------------------------

    @takes(tell_damage=CALLABLE)
    def dead_letters(self, tell_damage: Tell = tell_log) -> Iterator[Received]:
        """The group's dead letters that were not driven back, oldest first; read lazily.

        ``tell_damage`` is told of each that cannot be read, in words: where it lies, and why.
        """
        topic = dead_letter_topic(self.name)
        for queue_id in sorted(self._store.topic(topic).ranges()):
            yield from self._dead_letters_of(QueueKey(self.name, topic, queue_id), tell_damage)

    def _dead_letters_of(self, key: QueueKey, tell_damage: Tell) -> Iterator[Received]:
        next_offset = 0
        while True:
            with self._store.lock:
                progress = self._progress(key)
                first = max(next_offset, progress.offset)
                reader = self._store.topic(key.topic)
                found = read_readable(reader, key, first, _LETTERS_AT_ONCE, tell_damage)
                letters = [m for m in found if not progress.is_done(m.queue_offset)]
            if not found:
                return
            for letter in letters:
                at, topic = letter.queue_offset, origin_topic(letter, key.topic)
                yield Received(key, at, topic, 0, [letter], 0)
            next_offset = found[-1].queue_offset + 1

    @takes(letter=Received)
    def redrive(self, letter: Received) -> None:
        """Let the group receive a dead letter again, as a message that was never retried.

        It is ready after the next ``advance``. Raises as ``retry``.
        """
        if letter.queue.topic.startswith(names.DEAD_LETTER_PREFIX):  # also one that it received
            letter = letter._replace(topic=origin_topic(letter.queued, letter.topic))
        self._give_back(letter, retry_topic(self.name), 0, None)

    # --- position ---------------------------------------------------------------------------------

    @takes(topic=str)
    def seek(self, topic: str, position: Position) -> None:
        """Go on at another position of a topic. Later messages are received again, earlier ones
        are not; what is in flight is forgotten, but an acknowledgement of it counts. Retries stay.

        The store is flushed first. Raises StoreClosedError, SourceError and TargetError.
        """
        require_position("position", position)
        self._store.flush()
        with self._store.lock:
            for queue_id in self._store.topic(topic).ranges():
                if not isinstance(position, Mapping) or queue_id in position:
                    key = QueueKey(self.name, topic, queue_id)
                    self._table.seek(key, self._offset_at(key, position))
        if self.is_synced:
            self._store.flush()

    @takes(topic=str)
    def lag(self, topic: str) -> Lag:
        """How far the group is behind in a topic. ``%RETRY%`` and the group's name is the topic of
        its retries.
        """
        left = in_flight = received = 0
        first_left, first_ready = {}, {}
        with self._store.lock:
            starts = self._starts(topic)
            for queue_id, (first, end) in self._store.topic(topic).ranges().items():
                key = QueueKey(self.name, topic, queue_id)
                progress = self._table.find(key) or QueueProgress(starts[key])
                progress.cut(first)
                left += max(0, end - progress.offset) - progress.done_ahead
                in_flight += progress.in_flight
                received += progress.received
                first_left[queue_id], first_ready[queue_id] = progress.offset, progress.first_ready
                for offsets in (first_left, first_ready):
                    if offsets[queue_id] >= end:
                        del offsets[queue_id]
        return Lag(left - in_flight, in_flight, first_left, first_ready, received)

    def _offset_at(self, key: QueueKey, position: Position) -> int:
        topic = self._store.topic(key.topic)
        first, end = topic.ranges().get(key.queue_id, (0, 0))
        match position:
            case "first":
                return first
            case "last":
                return end
            case AtMs(time_ms):
                return self._offset_of_time(key, first, end, time_ms)
            case _:
                return min(max(first, position.get(key.queue_id, first)), end)

    def _offset_of_time(self, key: QueueKey, first: int, end: int, time_ms: int) -> int:
        """The queue offset of the first message that was stored at this time or later."""
        topic = self._store.topic(key.topic)
        while first < end:
            middle = (first + end) // 2
            found = read_readable(topic, key, middle, 1, tell_log)
            if not found or found[0].queue_offset >= end:
                end = middle
            elif found[0].store_timestamp_ms < time_ms:
                first = found[0].queue_offset + 1
            else:
                end = middle
        return first

    # --- asyncio ----------------------------------------------------------------------------------

    async def stream(
        self,
        topic: str,
        *,
        max_messages: int = 32,
        invisible_ms: int = DEFAULT_INVISIBLE_MS,
        tags: str | None = None,
        poll_ms: int = 100,
    ) -> AsyncIterator[Received]:
        """The messages of a topic as they become due, for ``async for``. It advances the store.

        Each has to be acknowledged or given back. Ends with the store: raises StoreClosedError.
        """
        while True:
            await asyncio.to_thread(self._store.advance, self._store.clock.now_ms())
            received = await asyncio.to_thread(
                self.receive, topic, max_messages, invisible_ms, tags
            )
            for message in received:
                is_ours = self._store.clock.now_ms() < message.visible_ms
                if is_ours and self.is_current(message):
                    yield message
            if not received:
                await asyncio.sleep(poll_ms / 1000)
