# SPDX-License-Identifier: Apache-2.0
"""What consumer groups need of a store besides its interface: every engine has it."""

import threading
from typing import Protocol

from message_store.base.clock import Clock
from message_store.base.companions import Companions
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import Message, StoredMessage
from message_store.interface.delay_store import DelayStore, Due, Receipt
from message_store.writing.store import LiveStore


class GroupStore(DelayStore, Protocol):
    """A store that consumer groups can work on: ``MemoryStore`` and every engine."""

    @property
    def clock(self) -> Clock:
        """What stamps its records."""

    @property
    def lock(self) -> "threading.RLock":
        """Held by whoever reads or writes."""

    @property
    def companions(self) -> Companions:
        """What is kept beside it."""

    @property
    def levels(self) -> DelayLevels:
        """What ``AtLevel`` means."""

    @property
    def live(self) -> LiveStore | None:
        """Its files; None where it has none."""

    def schedule(self, message: Message | StoredMessage, due: Due) -> Receipt:
        """Store a message for later. A StoredMessage was read from a topic: it keeps body, born
        time, reconsume times and properties, and is delivered to the topic and queue that it names.
        """

    def __enter__(self) -> "GroupStore":
        """The store itself."""
