# SPDX-License-Identifier: Apache-2.0
"""How long log and queues were when a store was closed, so that it is noticed what is gone since.

A queue whose file was removed looks like one that never had more, and a log that was cut short like
one that ended there. Whoever works on the store in between only makes them longer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from message_store.base.printable import counted
from message_store.files.small_files import (
    read_small_file,
    remove_file,
    replace_file,
)
from message_store.files.store_root import StoreRoot
from message_store.format.properties import LEVEL_TOPIC
from message_store.interface.delay_store import Finding, Severity

if TYPE_CHECKING:
    from message_store.writing.store import LiveStore

ENDS_NAME = "queue-ends.json"


@attrs.frozen
class StoreEnds:
    """Where the log ended, and each queue by topic and queue id."""

    log_end: int
    queues: Mapping[tuple[str, int], int]

    @classmethod
    def of(cls, store: LiveStore) -> StoreEnds:
        """Those of an open store; level queues have a mark of their own."""
        ends = {
            (queue.topic, queue.queue_id): queue.max_offset
            for queue in store.queues()
            if queue.topic != LEVEL_TOPIC and queue.max_offset
        }
        return cls(store.log.end, ends)

    @classmethod
    def read(cls, root: StoreRoot) -> StoreEnds | None:
        """Those of the last close; None where nothing that can be read tells."""
        try:
            facts: Any = json.loads(read_small_file(root.own / ENDS_NAME) or b"")
            queues = {(str(name), int(number)): int(end) for name, number, end in facts["queues"]}
            return cls(int(facts["log_end"]), queues)
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    @classmethod
    def forget_beyond(cls, root: StoreRoot, log_end: int) -> None:
        """Before a log is cut back to ``log_end`` on purpose: no end behind it stays written down,
        which would be taken for damage. Raises TargetError.
        """
        known = cls.read(root)
        if known is not None and known.log_end > log_end:
            remove_file(root.own / ENDS_NAME, is_durable=True)

    def write(self, root: StoreRoot) -> None:
        """Put them down, durably. Raises TargetError."""
        queues = [[topic, queue_id, end] for (topic, queue_id), end in self.queues.items()]
        text = json.dumps({"log_end": self.log_end, "queues": queues})
        replace_file(root.own / ENDS_NAME, text.encode())


@attrs.frozen
class StoreLosses:
    """What is gone since the last close: so much of the log's end, so many entries of queues."""

    log_bytes: int = 0
    entries: Mapping[tuple[str, int], int] = attrs.field(factory=dict)

    @classmethod
    def found(cls, store: LiveStore) -> StoreLosses:
        """Those of a store that was just opened."""
        then, now = StoreEnds.read(store.root), StoreEnds.of(store)
        if then is None:
            return cls()
        short = {
            queue: end - now.queues.get(queue, 0)
            for queue, end in then.queues.items()
            if now.queues.get(queue, 0) < end
        }
        return cls(max(0, then.log_end - now.log_end), short)


def queue_findings(store: LiveStore) -> Iterator[Finding]:
    """What queues had lost when the store was opened."""
    for (topic, queue_id), count in store.losses.entries.items():
        yield Finding(
            Severity.ERROR,
            f"consumequeue {topic}/{queue_id}",
            f"its last {counted(count, 'entry is', 'entries are')} gone that a flush had taken",
            "nobody finds the messages that they led to",
            "find out what was removed; the log may still have the messages",
        )
    if saved := store.recovery.saved:
        yield Finding(
            Severity.WARNING,
            "commitlog",
            f"whole records lay behind a damaged one, where the log ended at {store.recovery.end}"
            " when the store was opened",
            f"they were cut off, as a broker does; their bytes are in {saved}",
            "nothing after a loss of power, or a kill while a batch was being stored: nobody was"
            " told that they are durable; else take the log from a backup, or send the messages"
            " again",
        )
    repaired = store.recovery.repaired if store.was_clean else 0
    if repaired:
        yield Finding(
            Severity.WARNING,
            "consumequeue",
            f"{counted(repaired, 'entry was', 'entries were')} damaged while nobody had the store"
            " open",
            "they were made again from the log; of messages taken back, they may be delivered",
            "find out what damaged the files",
        )
    if cut := store.recovery.cut:
        yield Finding(
            Severity.WARNING,
            "consumequeue",
            f"{counted(cut, 'entry', 'entries')} told of records that the log did not have when"
            " the store was opened",
            "they were taken away, as a broker does",
            "nothing after a loss of power; else find out what was removed from the log",
        )


def kept_findings(store: LiveStore) -> Iterator[Finding]:
    """What retention could not take away."""
    if store.retention.kept is not None:
        yield Finding(
            Severity.WARNING,
            "retention",
            f"an old file stays: {store.retention.kept}",
            "the disk fills up; messages come all the same",
            "find out what keeps it; it is tried again every minute",
        )


def log_finding(log_bytes: int) -> Finding:
    """That the end of the log is gone."""
    return Finding(
        Severity.ERROR,
        "commitlog",
        f"its last {log_bytes:,} bytes are gone since the last flush",
        "what was stored there is lost",
        "find out what was removed, and restore a backup if there is one",
    )
