# SPDX-License-Identifier: Apache-2.0
"""Copies: what a wheel or a timeline stored when it dealt with a message, and of which message.

After a crash they tell what was done: no checkpoint is as new as they are. A copy is told by all
that survives, and counts for one message that lies before it in the log. This is the rule;
``copy_kernels`` keeps it for many records at once.
"""

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable

from message_store.format import properties as names
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message import StoredMessage

_NOT_TOLD = -1

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


def is_roll(message: StoredMessage) -> bool:
    """Whether a record waits for its time, so that a copy is one that went round again."""
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


def first_offset(message: StoredMessage) -> int:
    """Where in the log a message's first record was: of a copy of ours that goes round again it is
    what that says, of anything else its own place.
    """
    told = ~message.prepared_transaction_offset
    return told if 0 <= told < message.commit_log_offset else message.commit_log_offset


class Copies:
    """Where copies lie, by what they are copies of; each is taken once.

    ``found`` has for each its identity, its place, whether it went round again, and its
    ``first_offset``, in the order of the log.
    """

    def __init__(self, found: Iterable[tuple[Hashable, int, bool, int]] = ()) -> None:
        self._places: defaultdict[tuple[Hashable, bool, int], list[int]] = defaultdict(list)
        for identity, offset, is_roll, first in reversed(list(found)):
            told = first if is_roll and first < offset else _NOT_TOLD
            self._places[identity, is_roll, told].append(offset)  # so that the first is the last

    def __bool__(self) -> bool:
        return bool(self._places)

    @property
    def have_rolled(self) -> bool:
        """Whether any of them went round again."""
        return any(is_roll for _, is_roll, _ in self._places)

    def take(
        self,
        identity: Hashable,
        offset: int,
        first_offset: int,
        *,
        may_have_rolled: bool,
        cancelled_at: int = LONG_MAX,
    ) -> bool:
        """Take the first copy behind a message's place, if there is one; equal messages are asked
        for in the order of the log. None is delivered behind the marker that cancelled it.

        What was to roll has gone round again or, when the wheel was late, been delivered. A copy
        that says of which message it is, is no equal one's: retention may have taken that one's
        record, or a hand that moved back may have delivered it without a roll.
        """
        delivered = self._places.get((identity, False, _NOT_TOLD))
        for told in (first_offset, _NOT_TOLD) if may_have_rolled else ():
            if self._take(self._places.get((identity, True, told)), offset):
                return True
        return self._take(delivered, offset, cancelled_at)

    @staticmethod
    def _take(places: list[int] | None, offset: int, until: int = LONG_MAX) -> bool:
        while places and places[-1] <= offset:
            places.pop()
        if not places or places[-1] > until:
            return False
        places.pop()
        return True
