# SPDX-License-Identifier: Apache-2.0
"""What ``pending`` says of a message, and which messages it is asked for."""

import math
from numbers import Integral
from typing import Any

import attrs

from message_store.format.java_numbers import INT_MAX
from message_store.format.message import StoredMessage
from message_store.format.properties import REAL_QUEUE_ID
from message_store.interface.delay_store import Pending

_LONGEST_INT = 10

FILTER_KINDS = {
    "topic": str | None,
    "level": Integral | None,
    "due_after_ms": Integral | None,
    "due_before_ms": Integral | None,
    "unique_key": str | None,
}
"""What the filters of ``pending`` may be."""


@attrs.frozen
class WaitingFilter:
    """What to let through; None lets everything through."""

    topic: str | None = None
    level: int | None = None
    due_after_ms: int | None = None
    due_before_ms: int | None = None
    unique_key: str | None = None

    def in_time(self, promised_ms: Any) -> Any:
        """Whether a time lies in the range, or which of an array (int64) do."""
        first_ms = -math.inf if self.due_after_ms is None else self.due_after_ms
        end_ms = math.inf if self.due_before_ms is None else self.due_before_ms
        return (promised_ms >= first_ms) & (promised_ms < end_ms)

    def passes(self, message: StoredMessage) -> bool:
        """Whether the record is one that is wanted."""
        topic_fits = self.topic is None or message.real_topic == self.topic
        return topic_fits and self.unique_key in (None, message.unique_key)


def real_queue_id(message: StoredMessage) -> int:
    """The queue that a message goes to; 0 where its record names none that can be."""
    text = message.properties.get(REAL_QUEUE_ID, "")
    queue_id = int(text) if text.isdecimal() and len(text) <= _LONGEST_INT else 0
    return queue_id if queue_id <= INT_MAX else 0


def pending_of(
    message: StoredMessage,
    due_ms: int,
    size_bytes: int,
    *,
    level: int | None = None,
    queue_id: int | None = None,
) -> Pending:
    """What ``pending`` says of a message that waits, in a level or with a due time of its own. It
    goes to the queue that its record names, unless that is known.
    """
    return Pending(
        unique_key=message.unique_key,
        topic=message.real_topic,
        queue_id=real_queue_id(message) if queue_id is None else queue_id,
        tags=message.tags,
        keys=message.keys,
        level=level,
        due_ms=due_ms,
        size_bytes=size_bytes,
        commit_log_offset=message.commit_log_offset,
    )
