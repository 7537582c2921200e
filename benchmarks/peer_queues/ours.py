# SPDX-License-Identifier: Apache-2.0
"""Our engines, consumed by a consumer group that acknowledges: of all drivers the only one that
runs in our own environment.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.peer_queues.interface import Handle, Stop, consume_by_hand
from delaywheel import AtMs, Message, Received, SystemClock, consumer_group, open_store
from message_store import MessageBatch
from message_store.reading.engine_choice import EngineName

_TOPIC = "orders"


class OurQueue:
    """A store and one group."""

    def __init__(self, directory: Path, is_power_safe: bool, engine: EngineName) -> None:
        self._store: Any = open_store(directory / "store", engine=engine)
        self._group = consumer_group(self._store, "billing")
        self._clock = SystemClock()
        self._is_power_safe = is_power_safe

    def put(self, bodies: Sequence[bytes], due_ms: int) -> None:
        """One by one, or one batch."""
        if len(bodies) == 1:
            self._store.schedule(Message(_TOPIC, bodies[0]), AtMs(due_ms))
        else:
            batch = MessageBatch.of(Message(_TOPIC, body) for body in bodies)
            self._store.schedule_batch(batch, np.full(len(bodies), due_ms, np.int64))
        if self._is_power_safe:
            self._store.flush()

    def consume(self, handle: Handle, stop: Stop, take: int) -> None:
        """Deliver into the topic what is due, and receive from there."""
        consume_by_hand(self._receive, self._ack, handle, stop, take)

    def _receive(self, take: int) -> list[tuple[Received, bytes]]:
        received = self._group.receive(_TOPIC, take)
        if not received:
            self._store.advance(self._clock.now_ms())
            received = self._group.receive(_TOPIC, take)
        return [(message, message.body) for message in received]

    def _ack(self, names: Sequence[object]) -> None:
        self._group.ack(*cast("Sequence[Received]", names))

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def open_queue(directory: Path, is_power_safe: bool, engine: EngineName) -> OurQueue:
    """The store in ``directory``, with this engine."""
    return OurQueue(directory, is_power_safe, engine)
