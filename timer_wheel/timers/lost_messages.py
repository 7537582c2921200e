# SPDX-License-Identifier: Apache-2.0
"""Notes of messages that could not be delivered, and of damaged delete markers: nobody is to miss
them unawares.
"""

import attrs

from message_store.files.notes import NoteFile
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Finding, Severity

FILE_NAME = "wheel-lost.json"
CANCELS_NAME = "wheel-lost-cancels.json"


@attrs.frozen
class LostMessage:
    """Where in the log its record is, and what is wrong with that."""

    commit_log_offset: int
    reason: str


def _by_offset(lost: LostMessage) -> int:
    return lost.commit_log_offset


class LostMessages(NoteFile[LostMessage]):
    """The notes of one store, in the order of the log; ``cancels`` are those of delete markers."""

    def __init__(self, root: StoreRoot) -> None:
        super().__init__(root.own / FILE_NAME, LostMessage, _by_offset)
        self.cancels = NoteFile(root.own / CANCELS_NAME, LostMessage, _by_offset)

    def findings(self) -> list[Finding]:
        """What ``check`` says of them."""
        return [
            *(undeliverable(each.commit_log_offset, each.reason) for each in self.all()),
            *(_of_cancel(each) for each in self.cancels.all()),
        ]

    def save(self) -> None:
        """See that all notes are on disk. Raises TargetError."""
        super().save()
        self.cancels.save()


def undeliverable(commit_log_offset: int, why: object) -> Finding:
    """What to say of a record that was due and can go nowhere."""
    return Finding(
        Severity.WARNING,
        f"commit log {commit_log_offset}",
        f"a message that cannot be delivered: {why}",
        "a broker drops it without a word, or stops at it for ever",
        "look at the record; schedule its message again if it is still wanted",
    )


def _of_cancel(lost: LostMessage) -> Finding:
    return Finding(
        Severity.ERROR,
        f"commit log {lost.commit_log_offset}",
        f"a delete marker is damaged: {lost.reason}",
        "the message that was cancelled is delivered, by a broker too",
        "cancel that message again; look at the disk",
    )
