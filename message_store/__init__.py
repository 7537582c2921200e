# SPDX-License-Identifier: Apache-2.0
"""What all engines stand on: messages, logs, queues and time. Knows no engine.

``MessageBatch`` and ``MemoryStore`` are loaded on first use: they import NumPy and Arrow, which
``delaywheel --help`` does not need.
"""

from typing import TYPE_CHECKING, Any

from message_store.base.clock import Clock, ManualClock, SystemClock
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import Host, Message, StoredMessage
from message_store.interface.delay_store import (
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
from message_store.interface.runner import run_store

if TYPE_CHECKING:
    from message_store.columns.message_batch import MessageBatch
    from message_store.memory.store import MemoryStore

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
    "MemoryStore",
    "Message",
    "MessageBatch",
    "Pending",
    "Receipt",
    "Severity",
    "StoredMessage",
    "SystemClock",
    "TopicReader",
    "run_store",
]


def __getattr__(name: str) -> Any:
    if name == "MessageBatch":
        from message_store.columns.message_batch import MessageBatch

        return MessageBatch
    if name == "MemoryStore":
        from message_store.memory.store import MemoryStore

        return MemoryStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
