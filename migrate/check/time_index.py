# SPDX-License-Identifier: Apache-2.0
"""A time index: that brokers deliver none of its messages."""

from collections.abc import Iterator

from message_store.base.printable import counted, when
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import info
from migrate.check.snapshot import StoreSnapshot
from time_index.reading import has_time_index, pending_in_time_index

TIME_INDEX = info(
    "time-index",
    "a broker delivers none of them, and its retention deletes their log files",
    "open the store with TimeIndexStore, or --engine time-index, which delivers them",
)


def check_time_index(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """What waits where no broker looks. Raises FormatError and SourceError."""
    if not has_time_index(snapshot.root):
        return
    due_ms = pending_in_time_index(snapshot.root).due_ms
    problem = counted(len(due_ms), "message waits", "messages wait") + " there"
    if len(due_ms):
        problem += f", the next due {when(int(due_ms[0]), snapshot.now_ms)}"
    yield TIME_INDEX.at("delaywheel/time-index", problem)
