# SPDX-License-Identifier: Apache-2.0
"""A store of any engine with consumer groups, which can be killed, closed and opened again."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import attrs

from consumer_groups import ConsumerGroup, GroupStore, Received, consumer_group
from message_store import AtMs, ManualClock, Message
from tests.faults.engines import ENGINES, abandon

START_MS = 1_793_000_000_000
ENGINE_NAMES = list(ENGINES)


@attrs.define
class GroupBench:
    """One store directory and its clock; ``store`` is the store that is open."""

    engine: str
    folder: Path
    clock: ManualClock = attrs.field(factory=lambda: ManualClock(START_MS))
    store: GroupStore = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.store = self.opened()

    def opened(self) -> GroupStore:
        return cast(GroupStore, ENGINES[self.engine].open(self.folder, self.clock, False))

    def kill(self) -> None:
        """End as a kill would, and open the store again."""
        abandon(self.store)
        self.store = self.opened()

    def reopen(self) -> None:
        """Close, and open again."""
        self.store.close()
        self.store = self.opened()

    def group(self, name: str = "billing", **options: object) -> ConsumerGroup:
        return consumer_group(self.store, name, **options)  # type: ignore[arg-type]

    def deliver(self, *bodies: str, topic: str = "orders", **fields: object) -> None:
        """Let these messages reach their topic."""
        for body in bodies:
            message = Message(topic, body.encode(), **fields)  # type: ignore[arg-type]
            self.store.schedule(message, AtMs(self.clock.now_ms()))
        self.store.advance(self.clock.now_ms())

    def wait(self, duration_ms: int) -> None:
        """Let time pass, and deliver what is due then."""
        self.clock.tick(duration_ms)
        self.store.advance(self.clock.now_ms())

    def bodies(self, group: ConsumerGroup, topic: str = "orders", **options: object) -> list[str]:
        """What a group receives now."""
        return texts(group.receive(topic, **options))  # type: ignore[arg-type]


def texts(messages: list[Received]) -> list[str]:
    return [message.body.decode() for message in messages]
