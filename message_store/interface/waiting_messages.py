# SPDX-License-Identifier: Apache-2.0
"""What ``pending`` says of a message with a free due time, and which messages it is asked for."""

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.columns.byte_column import Int64s
from message_store.format.java_numbers import INT_MAX
from message_store.format.message import StoredMessage
from message_store.format.properties import REAL_QUEUE_ID
from message_store.interface.delay_store import Pending

_LONGEST_INT = 10


@attrs.frozen
class WaitingFilter:
    """What to let through; None lets everything through."""

    topic: str | None = None
    due_after_ms: int | None = None
    due_before_ms: int | None = None
    unique_key: str | None = None

    def in_time(self, promised_ms: Int64s) -> NDArray[np.bool_]:
        """Which of these times lie in the range."""
        fits = np.ones(len(promised_ms), bool)
        if self.due_after_ms is not None:
            fits &= promised_ms >= self.due_after_ms
        if self.due_before_ms is not None:
            fits &= promised_ms < self.due_before_ms
        return fits

    def passes(self, message: StoredMessage) -> bool:
        """Whether the record is one that is wanted."""
        topic_fits = self.topic is None or message.real_topic == self.topic
        return topic_fits and self.unique_key in (None, message.unique_key)


def real_queue_id(message: StoredMessage) -> int:
    """The queue that a message goes to; 0 where its record names none that can be."""
    text = message.properties.get(REAL_QUEUE_ID, "")
    queue_id = int(text) if text.isdecimal() and len(text) <= _LONGEST_INT else 0
    return queue_id if queue_id <= INT_MAX else 0


def pending_of(message: StoredMessage, due_ms: int, size_bytes: int) -> Pending:
    """What ``pending`` says of a message that waits."""
    return Pending(
        unique_key=message.unique_key,
        topic=message.real_topic,
        queue_id=real_queue_id(message),
        tags=message.tags,
        keys=message.keys,
        level=None,
        due_ms=due_ms,
        size_bytes=size_bytes,
        commit_log_offset=message.commit_log_offset,
    )
