# SPDX-License-Identifier: Apache-2.0
"""Messages that could not be delivered and were passed over: noted, so that nobody misses them
unawares. Brokers of 5.x pass over them without a word.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

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
        self._known = {} if text is None else {_key(one): one for one in _decode(text)}

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> list[SkippedMessage]:
        """Every one, in order of level and queue offset."""
        return [self._known[key] for key in sorted(self._known)]

    def add(self, skipped: Iterable[SkippedMessage]) -> None:
        """Note these, durably. Raises TargetError."""
        new = {_key(one): one for one in skipped} | self._known
        if len(new) != len(self._known):
            text = json.dumps([attrs.asdict(new[key]) for key in sorted(new)], indent=1)
            replace_file(self._path, text.encode())
            self._known = new


def _key(one: SkippedMessage) -> tuple[int, int]:
    return one.level, one.queue_offset


def _decode(text: bytes) -> list[SkippedMessage]:
    """What the file says; nothing, when it was damaged."""
    try:
        rows: Any = json.loads(text)
        return [SkippedMessage(**row) for row in rows]
    except (ValueError, TypeError):
        return []
