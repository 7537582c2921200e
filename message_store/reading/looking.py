# SPDX-License-Identifier: Apache-2.0
"""Looking at a store that somebody may have open.

A broker's files cannot be read consistently while it runs, so it is kept out, or the look refused.
A process of ours writes in an order that makes every moment one that a kill may leave: log, queues,
timer log, slots, checkpoints. Readers read these the other way round, the log last. So the log
knows what became of everything that was read before it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from message_store.base.errors import StoreOpenError
from message_store.files.store_root import StoreRoot
from message_store.reading.unfinished_change import describe_unfinished_change


@contextmanager
def looking_at(root: StoreRoot) -> Iterator[bool]:
    """Keep brokers and writers out of a store, or look beside a process of ours that has it open.

    Gives True in the second case: the files are then read as after a crash.
    Raises SourceError for a store that has lost its log. Raises StoreLockedError where a broker
    holds the store, or has it when the look is over, and beside a process that changes the store in
    place: messages then stand in two places.
    """
    root.require_log()
    with ExitStack() as held:
        is_beside = False
        try:
            held.enter_context(root.shared_lock())
        except StoreOpenError:
            if describe_unfinished_change(root):
                raise
            is_beside = True
        yield is_beside
        open_elsewhere(root)  # raises where a broker has begun meanwhile


def open_elsewhere(root: StoreRoot) -> str | None:
    """A sentence about the process of ours that has the store open; None where none has.

    Raises StoreLockedError where a broker holds it.
    """
    try:
        with root.shared_lock():
            return None
    except StoreOpenError as error:
        who = "another process" if error.pid is None else f"process {error.pid}"
        return f"{root.path}: {who} has the store open; this is one moment of it"
