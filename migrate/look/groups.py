# SPDX-License-Identifier: Apache-2.0
"""Shows the consumer groups of a store that is only looked at: how far each is, its dead letters,
and the state of a message.

The progress of the groups is read before pending retries and topics. So the topics hold every
message that was acknowledged. If a retry was stored or delivered meanwhile, all is read again.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import attrs

from consumer_groups import GroupStore, Received, consumer_group, group_names, group_topics
from consumer_groups.groups import ConsumerGroups
from consumer_groups.life import state_by_steps
from consumer_groups.offset_files import OffsetFiles
from consumer_groups.readable import Tell
from consumer_groups.received import dead_letter_topic, retry_topic
from message_store.base.clock import ManualClock
from message_store.base.companions import Companions
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader, next_places
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage
from message_store.format.properties import LEVEL_TOPIC
from message_store.interface.delay_store import Pending
from message_store.interface.message_life import MessageState
from message_store.life.trace import TellPlace, record_at, tell_log, trace_directory
from message_store.reading.consume_queue import UnitArray, read_queue
from message_store.reading.looking import looking_at
from message_store.reading.topic_listing import LookedAtTopic
from migrate.look.pending import PendingFilter, pending_messages

_MOST_LOOKS = 5
"""Beside a process that gives messages back all the time, the last look is shown."""

_ACKNOWLEDGED, _NUMBERED = b"A ", b"Q "
"""How lines of the journal begin that change nothing about the pending messages."""


@attrs.frozen
class GroupFacts:
    """How far a group is behind: ``ready`` are the messages that it may receive, by topic.

    ``retries_ready`` and ``retries_waiting`` are its retries that were delivered, and those whose
    time has not come; ``dead`` are its dead letters, those on their way among them. ``in_flight``
    is None beside a process that has the store, and ``in_flight_unknown`` says why: what is
    received is in the memory of that process alone. Such messages count as ready.
    """

    name: str
    ready: dict[str, int]
    retries_ready: int
    retries_waiting: int
    dead: int
    in_flight: int | None
    in_flight_unknown: str | None = None


class _LookedAtStore:
    """What groups read of a store, and nothing that writes."""

    live = None

    def __init__(self, root: StoreRoot, log: SegmentReader, now_ms: int) -> None:
        self.clock = ManualClock(now_ms)
        self.lock = threading.RLock()
        self.companions = Companions()
        self._root = root
        self._log = log
        self._topics: dict[str, LookedAtTopic] = {}
        self._pending: dict[PendingFilter, list[Pending]] = {}

    def topic(self, name: str) -> LookedAtTopic:
        """A topic as it was when it was first asked for."""
        if name not in self._topics:
            self._topics[name] = LookedAtTopic(self._root, self._log, name)
        return self._topics[name]

    def pending(
        self, *, topic: str | None = None, unique_key: str | None = None
    ) -> Iterator[Pending]:
        """The messages that wait for a topic, or have a key, as they were when first asked for."""
        wanted = PendingFilter(topic=topic, key=unique_key)
        if wanted not in self._pending:
            listed = pending_messages(self._root.path, wanted, now_ms=self.clock.now_ms())
            self._pending[wanted] = [each for each in listed if isinstance(each, Pending)]
        return iter(self._pending[wanted])


def _record_from(log: SegmentReader, offset: int) -> StoredMessage | None:
    """As ``LiveLog.record_from``, of a log that is only read."""
    found = (record_at(log, place) for place in next_places(offset, log.file_bytes))
    return next((record for record in found if record is not None), None)


@contextmanager
def _groups_of(path: Path, now_ms: int) -> Iterator[GroupStore]:
    """A store with its groups, to be looked at. Raises SourceError and FormatError."""
    root = StoreRoot(path)
    root.require_readable()
    with open_log(root) as log:
        store = cast(GroupStore, _LookedAtStore(root, log, now_ms))
        files = OffsetFiles(root, Dialect.ROCKETMQ_5_5.config, is_only_read=True)
        groups = ConsumerGroups(store, files, partial(_record_from, log))
        store.companions.of(ConsumerGroups, lambda: groups)
        yield store


def look_at_groups(path: Path, *, now_ms: int) -> list[GroupFacts]:
    """Every group of the store under ``path``, by name. Nothing is written.

    Raises SourceError for a directory that is no store or that a broker holds, FormatError for a
    queue that cannot be told.
    """
    root = StoreRoot(path)
    with looking_at(root) as is_beside:
        for _ in range(_MOST_LOOKS):
            before = _moment(root)
            with _groups_of(path, now_ms) as store:
                facts = [_facts(store, name, is_beside) for name in group_names(store)]
                names = [topic(each.name) for each in facts for topic in _GIVEN_BACK]
                ranges = [store.topic(name).ranges() for name in names]
            with open_log(root) as log:
                again = [LookedAtTopic(root, log, name).ranges() for name in names]
            if again == ranges and _is_one_moment(before, _moment(root)):
                break
        return facts


_GIVEN_BACK = (retry_topic, dead_letter_topic)
_WHY_UNKNOWN = "only the process that has the store open knows what is in flight"


def _facts(store: GroupStore, name: str, is_beside: bool) -> GroupFacts:
    group = consumer_group(store, name)
    retries, letters = retry_topic(name), dead_letter_topic(name)
    waiting = {topic: len(list(store.pending(topic=topic))) for topic in (retries, letters)}
    ready = {topic: lag.total for topic, lag in group_topics(store, name).items()}
    return GroupFacts(
        name,
        {topic: count for topic, count in ready.items() if topic not in waiting},
        group.lag(retries).total,
        waiting[retries],
        group.lag(letters).total + waiting[letters],
        None if is_beside else 0,
        _WHY_UNKNOWN if is_beside else None,
    )


def _moment(root: StoreRoot) -> bytes:
    """The journal of the groups."""
    return read_small_file(root.group_journal) or b""


def _is_one_moment(before: bytes, after: bytes) -> bool:
    """Whether nothing was given back between two looks at the journal."""
    if not after.startswith(before):
        return False
    added = after[len(before) :].splitlines()
    return all(line.startswith((_ACKNOWLEDGED, _NUMBERED)) for line in added)


def look_at_dead_letters(
    path: Path, group: str, tell_damage: Tell, *, now_ms: int
) -> Iterator[Received]:
    """The dead letters of a group that were not driven back, oldest first. Nothing is written.

    ``tell_damage`` is told of each that cannot be read. Raises as ``look_at_groups``.
    """
    with looking_at(StoreRoot(path)), _groups_of(path, now_ms) as store:
        yield from consumer_group(store, group).dead_letters(tell_damage)


def look_at_state(
    path: Path,
    unique_key: str,
    group: str | None = None,
    tell_damage: TellPlace = tell_log,
    *,
    now_ms: int,
) -> MessageState:
    """Where in its life the newest message with a unique key is; see ``message_state``.

    Nothing is in flight: that only the process knows that has the store. ``tell_damage`` is told of
    log offsets at which no record can be read. Nothing is written. Raises as ``look_at_groups``.
    """
    queues = StoreRoot(path).consume_queues / LEVEL_TOPIC

    def level_units(queue_id: int, at: int) -> UnitArray:
        return read_queue(queues / str(queue_id), from_queue_offset=at).slice(at, at + 1).units

    with looking_at(StoreRoot(path)) as is_beside:
        for _ in range(_MOST_LOOKS):
            with _groups_of(path, now_ms) as store:
                unread: list[int] = []
                steps = trace_directory(path, unique_key, unread.append)
                state = state_by_steps(store, steps, unique_key, group, level_units)
            if state is not MessageState.UNKNOWN or not (is_beside and steps):
                break  # else it may have been delivered between two looks
        for place in unread:
            tell_damage(place)
        return state


def groups_in(path: Path, *, now_ms: int) -> list[str]:
    """The names of all groups of a store. Raises as ``look_at_groups``."""
    with _groups_of(path, now_ms) as store:
        return group_names(store)
