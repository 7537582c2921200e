# SPDX-License-Identifier: Apache-2.0
"""How long log and queues were when a store was closed, and what of that is missing when it is
opened.

A queue whose file was removed looks like one that never had more, and a log that was cut short like
one that ended there. Brokers that work on the store in between only make both longer.
"""

import json
from collections.abc import Mapping
from typing import Any, Self

import attrs

from message_store.files.small_files import (
    read_small_file,
    remove_file,
    replace_file,
)
from message_store.files.store_root import StoreRoot
from message_store.format.properties import LEVEL_TOPIC
from message_store.writing.queue_set import QueueSet

ENDS_NAME = "queue-ends.json"


@attrs.frozen
class StoreEnds:
    """Where the log ended, and each queue by topic and queue id (as the next queue offset)."""

    log_end: int
    queues: Mapping[tuple[str, int], int]

    @classmethod
    def of(cls, log_end: int, queues: QueueSet) -> Self:
        """The ends of an open store; level queues have a mark of their own."""
        ends = {
            (queue.topic, queue.queue_id): queue.max_offset
            for queue in queues
            if queue.topic != LEVEL_TOPIC and queue.max_offset
        }
        return cls(log_end, ends)

    @classmethod
    def read(cls, root: StoreRoot) -> Self | None:
        """The ends that were last written down; None where no readable note is."""
        try:
            facts: Any = json.loads(read_small_file(root.own / ENDS_NAME) or b"")
            queues = {(str(name), int(number)): int(end) for name, number, end in facts["queues"]}
            return cls(int(facts["log_end"]), queues)
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    @classmethod
    def forget_beyond(cls, root: StoreRoot, log_end: int) -> None:
        """Before a log is cut back to ``log_end`` on purpose: remove the note of a later end, which
        would be taken for damage. Raises TargetError.
        """
        noted = cls.read(root)
        if noted is not None and noted.log_end > log_end:
            remove_file(root.own / ENDS_NAME, is_durable=True)

    def write(self, root: StoreRoot) -> None:
        """Write them down, durably. Raises TargetError."""
        queues = [[topic, queue_id, end] for (topic, queue_id), end in self.queues.items()]
        text = json.dumps({"log_end": self.log_end, "queues": queues})
        replace_file(root.own / ENDS_NAME, text.encode())

    def lacking(self, queues: QueueSet) -> dict[tuple[str, int], int]:
        """How many of these entries each queue lacks at its end; only queues that lack some."""
        ends = {name: queues.find(*name) for name in self.queues}
        lacking = {
            name: self.queues[name] - (queue.max_offset if queue else 0)
            for name, queue in ends.items()
        }
        return {name: count for name, count in lacking.items() if count > 0}


@attrs.frozen
class StoreLosses:
    """What was missing when a store was opened: bytes of the log's end, and entries of queues.

    ``entries`` counts those that each queue lacked, by topic and queue id, ``brought_back`` how
    many of them were made again from the log.
    """

    log_bytes: int = 0
    entries: Mapping[tuple[str, int], int] = attrs.field(factory=dict)
    brought_back: Mapping[tuple[str, int], int] = attrs.field(factory=dict)

    @classmethod
    def after_recovery(
        cls,
        ends: StoreEnds | None,
        lacked: Mapping[tuple[str, int], int],
        log_end: int,
        queues: QueueSet,
    ) -> Self:
        """Compare a recovered store with the noted ends; ``lacked`` is ``StoreEnds.lacking`` from
        before recovery.
        """
        if ends is None:
            return cls()
        lacking = ends.lacking(queues)
        brought_back = {name: count - lacking.get(name, 0) for name, count in lacked.items()}
        return cls(max(0, ends.log_end - log_end), lacked, brought_back)
