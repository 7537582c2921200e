# SPDX-License-Identifier: Apache-2.0
"""Notes of messages that could not be delivered: nobody is to miss them unawares."""

import attrs

from message_store.files.notes import NoteFile
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Finding, Severity

FILE_NAME = "time-index-lost.json"


@attrs.frozen
class LostMessage:
    """Where in the log its record is, and what is wrong with that."""

    commit_log_offset: int
    reason: str

    def finding(self) -> Finding:
        """What ``check`` says of it."""
        return Finding(
            Severity.WARNING,
            f"commit log {self.commit_log_offset}",
            f"a message that cannot be delivered: {self.reason}",
            "a broker does not look at it",
            "look at the record; schedule its message again if it is still wanted",
        )


def lost_messages_of(root: StoreRoot) -> NoteFile[LostMessage]:
    """The notes of one store, in the order of the log."""
    return NoteFile(root.own / FILE_NAME, LostMessage, lambda lost: lost.commit_log_offset)
