# SPDX-License-Identifier: Apache-2.0
"""What ``pending`` says of a message, and which messages it is asked for."""

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.format.java_numbers import string_hash
from message_store.format.message import StoredMessage
from message_store.interface.delay_store import Pending
from timer_wheel.timers.recall import real_queue_id
from timer_wheel.timers.rows import Bools, TimerRows
from timer_wheel.timers.unit_kernels import TOPIC_HASH


@attrs.frozen
class Filter:
    """What to let through; None lets everything through."""

    topic: str | None = None
    due_after_ms: int | None = None
    due_before_ms: int | None = None
    unique_key: str | None = None

    def may_pass(self, rows: TimerRows) -> Bools:
        """Which rows to look at: what is known of them without their records."""
        if self.topic is None:
            return np.ones(len(rows), bool)
        return np.asarray(rows.table[TOPIC_HASH] == string_hash(self.topic))

    def in_time(self, promised_ms: Int64s) -> Bools:
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
