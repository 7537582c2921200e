# SPDX-License-Identifier: Apache-2.0
"""Messages that could not be delivered and were passed over: noted, so that nobody misses them
unawares. Brokers of 5.x pass over them without a word.
"""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from message_store.errors import TargetError
from message_store.small_files import read_small_file, replace_file
from message_store.store_root import StoreRoot

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


class SkippedMessages:
    """The notes of one store, kept in a file of delaywheel's own."""

    def __init__(self, root: Path) -> None:
        self._path = StoreRoot(root).own / FILE_NAME
        text = read_small_file(self._path)
        self._is_saved = True
        self._known = {} if text is None else {_key(one): one for one in _decode(text)}

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> list[SkippedMessage]:
        """Every one, in order of level and queue offset."""
        return [self._known[key] for key in sorted(self._known)]

    def add(self, skipped: Iterable[SkippedMessage]) -> None:
        """Note these. Where the disk refuses, they are written down by the next ``save``: what was
        delivered beside them is delivered.
        """
        new = {_key(one): one for one in skipped}
        self._is_saved &= new.keys() <= self._known.keys()
        self._known = new | self._known
        with contextlib.suppress(TargetError):
            self.save()

    def save(self) -> None:
        """See that all notes are on disk. Raises TargetError."""
        if not self._is_saved:
            text = json.dumps([attrs.asdict(one) for one in self.all()], indent=1)
            replace_file(self._path, text.encode())
            self._is_saved = True


def _key(one: SkippedMessage) -> tuple[int, int]:
    return one.level, one.queue_offset


def _decode(text: bytes) -> list[SkippedMessage]:
    """What the file says; nothing, when it was damaged."""
    try:
        rows: Any = json.loads(text)
        return [SkippedMessage(**row) for row in rows]
    except (ValueError, TypeError):
        return []
