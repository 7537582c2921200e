# SPDX-License-Identifier: Apache-2.0
"""Messages that could not be delivered and were passed over: noted, so that nobody misses them
unawares. Brokers of 5.x pass over them without a word.
"""

from pathlib import Path

import attrs

from message_store.files.notes import NoteFile
from message_store.files.store_root import StoreRoot

FILE_NAME = "levels-skipped.json"


@attrs.frozen
class SkippedMessage:
    """Which entry it was, and what is wrong with its record."""

    level: int
    queue_offset: int
    commit_log_offset: int
    size_bytes: int
    due_ms: int
    reason: str


class SkippedMessages(NoteFile[SkippedMessage]):
    """The notes of one store, in order of level and queue offset."""

    def __init__(self, root: Path) -> None:
        path = StoreRoot(root).own / FILE_NAME
        super().__init__(path, SkippedMessage, lambda one: (one.level, one.queue_offset))
