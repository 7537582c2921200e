# SPDX-License-Identifier: Apache-2.0
"""Notes of undeliverable messages and damaged delete markers: nobody is to miss them."""

from message_store.files.notes import LostMessage, LostNotes
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import found_error
from message_store.writing.findings import undeliverable

FILE_NAME = "wheel-lost.json"
CANCELS_NAME = "wheel-lost-cancels.json"


_DROPS_IT = "a broker drops it without a word, or stops at it for ever"


class LostMessages(LostNotes):
    """The notes of one store; ``cancels`` are those of delete markers."""

    def __init__(self, root: StoreRoot) -> None:
        super().__init__(root.own / FILE_NAME)
        self.cancels = LostNotes(root.own / CANCELS_NAME)

    def findings(self) -> list[Finding]:
        """What ``check`` says of them."""
        return [
            *(undeliverable(each.commit_log_offset, each.reason, _DROPS_IT) for each in self.all()),
            *(_of_cancel(each) for each in self.cancels.all()),
        ]

    def save(self) -> None:
        """See that all notes are on disk. Raises TargetError."""
        super().save()
        self.cancels.save()


def _of_cancel(lost: LostMessage) -> Finding:
    return found_error(
        f"commit log {lost.commit_log_offset}",
        f"a delete marker is damaged: {lost.reason}",
        "the message that was cancelled is delivered, by a broker too",
        "cancel that message again; look at the disk",
    )
