# SPDX-License-Identifier: Apache-2.0
"""Messages of a time index: pending ones, those of a receipt or handle, and their fate."""

from collections.abc import Iterator

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s, int64s
from message_store.format.java_numbers import string_hash
from message_store.format.message import StoredMessage
from message_store.format.properties import TIME_INDEX_TOPIC
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation
from message_store.interface.waiting_messages import WaitingFilter
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.log import LiveLog
from time_index.index import CANCELS, TimeIndex, bucket_of
from time_index.layouts import Units
from time_index.record_kernel import key_hash, read_facts

_PIECE = 1 << 17


def waiting(index: TimeIndex, wanted: WaitingFilter) -> Iterator[LogDeliveries]:
    """Record and promise of every pending message that can be read and may pass, by buckets."""
    for start_ms in index.starts():
        units = _passing(index.store.log, index.look(start_ms), wanted)
        yield LogDeliveries(index.store, units.offsets, units.sizes, units.due_ms)


def _passing(log: LiveLog, units: Units, wanted: WaitingFilter) -> Units:
    """The messages that may be asked for, by due time and by hashes."""
    units = units.rows(wanted.in_time(units.due_ms))
    facts = read_facts(log, units.offsets, units.sizes)
    chosen = facts.is_fine
    if wanted.topic is not None:
        chosen = chosen & (facts.topic_hash == string_hash(wanted.topic))
    if wanted.unique_key is not None:
        chosen = chosen & (facts.key_hash == key_hash(wanted.unique_key))
    return units.rows(chosen)


@attrs.frozen(eq=False)
class Named:
    """What a receipt or a handle names: a receipt its own message, a handle all that share it."""

    _index: TimeIndex
    _handle: RecallHandle
    _first_offset: int | None

    def waiting(self) -> list[StoredMessage]:
        """Those that wait."""
        units = self._index.look(bucket_of(self._handle.due_ms), keeps=True)
        return self._among(units.rows(units.due_ms == self._handle.due_ms))

    def past(self) -> Cancellation:
        """What became of them, where none waits."""
        offsets = int64s([each.commit_log_offset for each in self._ever()])
        if not len(offsets):
            return Cancellation.NEVER_EXISTED
        is_taken = np.isin(offsets, _cancelled(self._index)).all()
        return Cancellation.CANCELLED if is_taken else Cancellation.ALREADY_DELIVERED

    def count_alike(self, target: StoredMessage) -> int:
        """A cancel takes one message."""
        return 1

    def _ever(self) -> list[StoredMessage]:
        """All whose records the log still has: a receipt says where, a handle has all looked at."""
        queue, log = self._index.queue, self._index.store.log
        first, end = queue.min_offset, queue.max_offset
        if self._first_offset is not None:
            first = queue.first_behind(self._first_offset - 1)
            end = min(first + 1, end)
        found = []
        for begin in range(first, end, _PIECE):
            units = queue.units(begin, min(begin + _PIECE, end))
            offsets, sizes = int64s(units["commit_log_offset"]), int64s(units["size_bytes"])
            facts = read_facts(log, offsets, sizes)
            ever = Units(facts.due_ms, offsets, sizes)
            found += self._among(ever.rows(facts.due_ms == self._handle.due_ms))
        return found

    def _among(self, units: Units) -> list[StoredMessage]:
        """Those among messages that are due at this time."""
        if self._first_offset is not None:
            units = units.rows(units.offsets == self._first_offset)
        log, topic, key = self._index.store.log, self._handle.topic, self._handle.unique_key
        units = _passing(log, units, WaitingFilter(topic=topic, unique_key=key))
        pairs = zip(units.offsets.tolist(), units.sizes.tolist(), strict=True)
        messages = (log.readable_record(offset, size_bytes) for offset, size_bytes in pairs)
        return [
            message
            for message in messages
            if message is not None and (message.real_topic, message.unique_key) == (topic, key)
        ]


def _cancelled(index: TimeIndex) -> Int64s:
    """Where the records lie of all messages that cancels name which the log still has."""
    queue = index.store.queue(TIME_INDEX_TOPIC, CANCELS)
    firsts = [int64s([])]
    for begin in range(queue.min_offset, queue.max_offset, _PIECE):
        units = queue.units(begin, min(begin + _PIECE, queue.max_offset))
        places = int64s(units["commit_log_offset"]), int64s(units["size_bytes"])
        facts = read_facts(index.store.log, *places)
        firsts.append(facts.firsts[facts.is_fine & (facts.firsts < places[0])])
    return np.concatenate(firsts)
