# SPDX-License-Identifier: Apache-2.0
"""Notes that an engine keeps for whoever checks its store, in a file of its own: each once, and
written where the disk lets it.
"""

import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import FormatError, TargetError
from message_store.files.small_files import read_small_file, replace_file

Note = TypeVar("Note", bound=attrs.AttrsInstance)


class NoteFile(Generic[Note]):
    """The notes of one kind of one store; ``key`` tells them apart, and orders them.

    ``is_damaged`` says that the file was there and could not be understood.
    """

    def __init__(self, path: Path, kind: type[Note], key: Callable[[Note], Any]) -> None:
        self.path = path
        self._key = key
        self._is_saved = True
        text = read_small_file(path)
        notes = [] if text is None else _decode(text, kind)
        self.is_damaged = notes is None
        self._known = {key(one): one for one in notes or ()}

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> list[Note]:
        """Every one, in order."""
        return [self._known[key] for key in sorted(self._known)]

    def add(self, notes: Iterable[Note]) -> None:
        """Note these. Where the disk refuses, the next ``save`` writes them: the rest is done."""
        new = {self._key(one): one for one in notes}
        self._is_saved &= new.keys() <= self._known.keys()
        self._known = new | self._known
        with contextlib.suppress(TargetError):
            self.save()

    def save(self) -> None:
        """See that all notes are on disk. Raises TargetError."""
        if not self._is_saved:
            text = json.dumps([attrs.asdict(one) for one in self.all()], indent=1)
            replace_file(self.path, text.encode())
            self._is_saved = True


@attrs.frozen
class LostMessage:
    """Where in the log the record of a message is, and why nobody can deliver it."""

    commit_log_offset: int
    reason: str


class LostNotes(NoteFile[LostMessage]):
    """Messages that could not be delivered, in the log's order: nobody is to miss them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, LostMessage, lambda lost: lost.commit_log_offset)

    def lose(self, offsets: NDArray[np.int64], bad: Iterable[tuple[int, FormatError]]) -> None:
        """Note the rows that are ``bad``, each with why, of messages at these offsets (int64)."""
        lost = [LostMessage(int(offsets[row]), str(error)) for row, error in bad]
        if lost:
            self.add(lost)


def _decode(text: bytes, kind: type[Note]) -> list[Note] | None:
    """The notes of the file; None where it is damaged."""
    try:
        rows: Any = json.loads(text)
        return [kind(**row) for row in rows]
    except (ValueError, TypeError):
        return None
