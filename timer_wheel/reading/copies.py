# SPDX-License-Identifier: Apache-2.0
"""Copies: what was stored when a message was done, and of which message.

After a crash they tell what was done: no checkpoint is as new as they are. A copy of ours names the
first record of its message (``redelivery.lineage``). One of a broker, of a timeline, or of an
earlier version names nothing. It is told by all that survives, and counts for one message that lies
before it in the log. Reader and engine share this rule.
"""

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from message_store.columns.byte_column import Int64s, int64s
from message_store.files.segments import SegmentReader
from message_store.format import properties as names
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message import StoredMessage
from message_store.format.record_layout import head_layout
from message_store.reading.commit_log import end_of_entries, start_of_last_used_file
from message_store.reading.entries import record_offset
from message_store.redelivery.lineage import NO_NAMES, Names, first_offset
from timer_wheel.reading.pending_timers import record_at

CHANGING = frozenset(
    {
        names.TIMER_ENQUEUE_MS,
        names.TIMER_DEQUEUE_MS,
        names.TIMER_ROLL_TIMES,
        names.TIMER_ROLL_LABEL,
        names.DELAY,
        names.CRC32,
        names.INNER_MULTI_DISPATCH,
        names.INNER_MULTI_QUEUE_OFFSET,
    }
)
"""Properties that may be in a message and not in its copy, or be others there."""


def is_copy(message: StoredMessage) -> bool:
    """Whether a wheel made the record, or a timeline, which takes the real topic away again."""
    properties = message.properties
    if names.TIMER_DEQUEUE_MS in properties:
        return is_roll(message) or message.topic == properties.get(names.REAL_TOPIC)
    return names.TIMER_OUT_MS in properties and names.REAL_TOPIC not in properties


def is_put_again(message: StoredMessage) -> bool:
    """Whether a timeline stored it again, for another round."""
    return is_roll(message) and names.TIMER_ROLL_LABEL in message.properties


def is_roll(message: StoredMessage) -> bool:
    """Whether a record waits for its time, so that a copy is one that rolled."""
    return message.topic == names.TIMER_TOPIC


def identity(message: StoredMessage) -> Hashable:
    """All that survives, with the real topic and queue wherever the record has them."""
    properties = dict(message.properties)
    topic = properties.pop(names.REAL_TOPIC, message.topic)
    queue_id = properties.pop(names.REAL_QUEUE_ID, str(message.queue_id))
    return (
        topic,
        queue_id,
        message.born_timestamp_ms,
        message.flag,
        message.reconsume_times,
        hashlib.blake2b(message.body, digest_size=16).digest(),
        frozenset(pair for pair in properties.items() if pair[0] not in CHANGING),
    )


class Copies:
    """Where copies lie: those that name a message, by its first record; the others by what they are
    copies of, and each of these is taken once.

    ``found`` are copies in the order of the log, the newest of ``newest_ms``; ``before`` those
    that lie in front of them and name a message.
    """

    def __init__(self, found: Iterable[StoredMessage] = (), before: Names = NO_NAMES) -> None:
        self._before = before
        self._named: dict[int, int] = {}
        self._places: defaultdict[tuple[Hashable, bool], list[int]] = defaultdict(list)
        self.have_rolled, self.newest_ms = False, 0
        for copy in reversed(list(found)):
            offset, first = copy.commit_log_offset, first_offset(copy)
            self.have_rolled |= is_roll(copy)
            self.newest_ms = max(self.newest_ms, copy.store_timestamp_ms)
            if first < offset:
                self._named.setdefault(first, offset)  # the last that names it
            else:  # so that the first is the last
                self._places[identity(copy), is_roll(copy)].append(offset)

    def __bool__(self) -> bool:
        return bool(self._named or self._places or len(self._before))

    @property
    def name_all(self) -> bool:
        """Whether each of them names its message."""
        return not self._places

    def are_done(self, offsets: Int64s, lineages: Int64s) -> NDArray[np.bool_]:
        """Which records at these places are done, given the first of each message, as far as the
        copies name it.
        """
        firsts, places = int64s([*self._named]), int64s([*self._named.values()])
        named = Names(places, firsts, np.zeros_like(places))
        return named.are_done(offsets, lineages) | self._before.are_done(offsets, lineages)

    @property
    def are_named(self) -> bool:
        """Whether any of them names its message."""
        return bool(self._named or len(self._before))

    def name(self, offsets: Int64s) -> NDArray[np.bool_]:
        """Which of the records at these places are the first of a message that a copy names."""
        is_named: NDArray[np.bool_] = np.isin(offsets, list(self._named))
        return is_named | self._before.are_done(offsets, offsets)

    def take(
        self, message: StoredMessage, *, may_have_rolled: bool, cancelled_at: int = LONG_MAX
    ) -> bool:
        """Whether a copy tells that this record is done, which is taken where it names
        nothing; equal messages are asked for in the order of the log. None is delivered behind the
        marker that cancelled it.

        What was to roll has gone round again or, when the wheel was late, been delivered.
        """
        offset, first = message.commit_log_offset, first_offset(message)
        if self._named.get(first, -1) > offset or self._before.is_done(offset, first):
            return True
        if not self._places:
            return False
        told_by = identity(message)
        if may_have_rolled and self._take(self._places.get((told_by, True)), offset):
            return True
        return self._take(self._places.get((told_by, False)), offset, cancelled_at)

    @staticmethod
    def _take(places: list[int] | None, offset: int, until: int = LONG_MAX) -> bool:
        while places and places[-1] <= offset:
            places.pop()
        if not places or places[-1] > until:
            return False
        places.pop()
        return True


def records_from(commit_log: SegmentReader, offset: int) -> Iterator[tuple[StoredMessage, int]]:
    """The records from a place on where one begins, each with its size in bytes. A damaged one
    hides the rest of its file.
    """
    head = head_layout(0)
    commit_log.grow()  # by the files that are there now: never behind a writer for ever
    log_end = end_of_entries(commit_log, start_of_last_used_file(commit_log)) or LONG_MAX
    for segment in commit_log.segments:
        place = max(offset, segment.start_offset)
        end = min(segment.start_offset + segment.length_bytes, log_end)
        while (place := record_offset(commit_log, place)) + head.size <= end:
            size_bytes = head.decode_at(commit_log.read_at(place, head.size), 0)["size_bytes"]
            message = record_at(commit_log, place, size_bytes) if size_bytes > 0 else None
            if message is None or message.commit_log_offset != place:
                break
            yield message, size_bytes
            place += size_bytes
