# SPDX-License-Identifier: Apache-2.0
"""The life of a message, as its records tell it: values that every engine answers with."""

import enum

import attrs

from message_store.format.message import StoredMessage
from message_store.format.properties import TIMER_OUT_MS


class Event(enum.Enum):
    """What a record of the log says of its message."""

    STORED = "stored"
    SCHEDULED = "scheduled"
    RESCHEDULED = "rescheduled"
    ROLLED = "rolled"
    CANCELLED = "cancelled"
    DELIVERED = "delivered"
    RETRIED = "retried"
    REJECTED = "rejected"
    DEAD = "dead"


class MessageState(enum.Enum):
    """Where in its life a message is.

    ``DELIVERED`` is in its topic, and no group has it in hand or has acknowledged it. ``UNKNOWN``
    has no record in the log, as it never existed or retention deleted it; or it was due, and
    neither a delivery nor a cancel is told: see ``undelivered``.
    """

    PENDING = "pending"
    DELIVERED = "delivered"
    IN_FLIGHT = "in flight"
    ACKNOWLEDGED = "acknowledged"
    DEAD = "dead"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@attrs.frozen
class TraceStep:
    """One record in the life of a message.

    ``first_offset`` is the commit log offset of the first record of that life: the same for all
    that were scheduled, rolled, rescheduled, delivered and retried as one message.
    """

    event: Event
    record: StoredMessage
    first_offset: int

    @property
    def out_ms(self) -> int | None:
        """The TIMER_OUT_MS of a record that waits or waited on a wheel or in a time index."""
        text = self.record.properties.get(TIMER_OUT_MS, "")
        return int(text) if text.isdecimal() else None
