# SPDX-License-Identifier: Apache-2.0
"""What both engines stand on: messages, logs, queues and time. Knows no engine.

``MessageBatch`` is loaded when it is first asked for: it brings NumPy's and Arrow's weight with it,
and ``delaywheel --help`` needs neither.
"""

from typing import TYPE_CHECKING, Any

from message_store.clock import Clock, ManualClock, SystemClock
from message_store.delay_levels import DelayLevels
from message_store.delay_store import (
    AfterMs,
    AtLevel,
    AtMs,
    BatchReceipt,
    Cancellation,
    DelayStore,
    Delivered,
    Deliveries,
    Due,
    Finding,
    Pending,
    Receipt,
    Severity,
    TopicReader,
)
from message_store.message import Host, Message, StoredMessage

if TYPE_CHECKING:
    from message_store.message_batch import MessageBatch

__all__ = [
    "AfterMs",
    "AtLevel",
    "AtMs",
    "BatchReceipt",
    "Cancellation",
    "Clock",
    "DelayLevels",
    "DelayStore",
    "Delivered",
    "Deliveries",
    "Due",
    "Finding",
    "Host",
    "ManualClock",
    "Message",
    "MessageBatch",
    "Pending",
    "Receipt",
    "Severity",
    "StoredMessage",
    "SystemClock",
    "TopicReader",
]


def __getattr__(name: str) -> Any:
    if name == "MessageBatch":
        from message_store.message_batch import MessageBatch

        return MessageBatch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
