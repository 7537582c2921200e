# SPDX-License-Identifier: Apache-2.0
"""Messages that were due and could not be delivered: noted, so that nobody misses them unawares."""

import attrs

from message_store.files.notes import NoteFile
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Finding, Severity

FILE_NAME = "wheel-lost.json"


@attrs.frozen
class LostMessage:
    """Where in the log its record is, and what is wrong with that."""

    commit_log_offset: int
    reason: str


class LostMessages(NoteFile[LostMessage]):
    """The notes of one store, in the order of the log."""

    def __init__(self, root: StoreRoot) -> None:
        super().__init__(root.own / FILE_NAME, LostMessage, lambda one: one.commit_log_offset)

    def findings(self) -> list[Finding]:
        """What ``check`` says of them."""
        return [undeliverable(one.commit_log_offset, one.reason) for one in self.all()]


def undeliverable(commit_log_offset: int, why: object) -> Finding:
    """What to say of a record that was due and can go nowhere."""
    return Finding(
        Severity.WARNING,
        f"commit log {commit_log_offset}",
        f"a message was due that cannot be delivered: {why}",
        "a broker drops it without a word, or stops at it for ever",
        "look at the record; schedule its message again if it is still wanted",
    )
