# SPDX-License-Identifier: Apache-2.0
"""An open store asked by unique key: what is pending, what the log tells, and a cancel of all.

A hierarchical wheel looks pending messages up in its index. Other engines read through all that is
pending. A trace reads the log once.
"""

import threading
from collections.abc import Iterator
from typing import Protocol

from message_store.base.kinds import CALLABLE, takes
from message_store.interface.delay_store import Cancellation, DelayStore, Receipt
from message_store.interface.message_life import TraceStep
from message_store.life.trace import TellPlace, tell_log, trace_log
from message_store.memory.store import BROKER_NAME, MemoryStore
from message_store.redelivery.lineage import first_offset
from message_store.writing.store import LiveStore


class KeyedStore(DelayStore, Protocol):
    """A store that can be asked by unique key: ``MemoryStore`` and every engine."""

    @property
    def lock(self) -> "threading.RLock":
        """Held by whoever reads or writes."""

    @property
    def live(self) -> LiveStore | None:
        """Its files; None where it has none."""


@takes(unique_key=str, topic=str | None)
def find_receipts(store: KeyedStore, unique_key: str, topic: str | None = None) -> list[Receipt]:
    """The receipts of all pending messages with a unique key, of one topic if it is given.

    Their ``due_ms`` is the promised time. Raises StoreClosedError, SourceError and TargetError, and
    FormatError for a record that is damaged.
    """
    with store.lock:
        return list(_receipts(store, unique_key, topic))


def _receipts(store: KeyedStore, unique_key: str, topic: str | None) -> Iterator[Receipt]:
    live = store.live
    for pending in store.pending(unique_key=unique_key, topic=topic):
        first, broker_name = pending.commit_log_offset, BROKER_NAME
        if live is not None:
            first = first_offset(live.log.record(first, pending.size_bytes))
            broker_name = live.settings.broker_name
        yield Receipt(
            unique_key=unique_key,
            topic=pending.topic,
            due_ms=pending.due_ms,
            promised_ms=pending.due_ms,
            commit_log_offset=first,
            broker_name=broker_name,
        )


def cancel_by_key(
    store: KeyedStore, unique_key: str, topic: str | None = None
) -> list[tuple[Receipt, Cancellation]]:
    """Cancel all pending messages with a unique key, of one topic if it is given; returns the
    receipt of each, and what became of it. Raises as ``find_receipts``.

    >>> from message_store import AfterMs, ManualClock, Message
    >>> with MemoryStore(ManualClock(0)) as store:
    ...     receipt = store.schedule(Message("orders", b"", unique_key="order-42"), AfterMs(90_000))
    ...     [answer.value for _receipt, answer in cancel_by_key(store, "order-42")]
    ['cancelled']
    """
    with store.lock:
        found = find_receipts(store, unique_key, topic)
        return [(receipt, store.cancel(receipt)) for receipt in found]


@takes(unique_key=str, tell_damage=CALLABLE)
def trace_message(
    store: KeyedStore, unique_key: str, tell_damage: TellPlace = tell_log
) -> list[TraceStep]:
    """Every record of a unique key, in the order of the log: scheduled, rolled, delivered, retried.

    What retention deleted is not there any more. A cancel in a delay level leaves no record.
    ``tell_damage`` is told of each log offset at which no record can be read: what was there may
    have been of this message. Without it that is a warning in the log. Raises StoreClosedError and
    SourceError.
    """
    with store.lock:
        if isinstance(store, MemoryStore):
            return store.trace(unique_key)
        live = store.live
        assert live is not None
        live.require_open()
        return trace_log(live, unique_key, tell_damage)
