# SPDX-License-Identifier: Apache-2.0
"""What a process did to a store until it was killed: a line before each step and one after it.

What is written to a file stays there when the process is killed, so the last line without an answer
is the step that the kill cut short. A line that was torn itself counts for nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

Line = dict[str, Any]


@attrs.frozen
class Row:
    """A message as it was handed over. ``name`` is its unique key; twins share one."""

    name: str
    topic: str
    queue_id: int
    body: str = attrs.field(repr=False)
    due_ms: int


@attrs.define
class Life:
    """One message: what was asked, what was answered, what was done about it.

    ``receipt`` is the promised time, the handle and the place in the log; None when the process
    died before the answer. ``batch`` is shared by what was handed over together. ``answered_from``
    is where the log ended when the process that answered had opened the store.
    """

    row: Row
    now_ms: int
    batch: int
    receipt: tuple[int, str, int] | None = None
    was_asked_back: bool = False
    answer: str | None = None
    answered_from: int = 0


@attrs.define
class History:
    """Everything that the journal tells. ``finished_to_ms`` is of advances that came back."""

    lives: list[Life] = attrs.field(factory=list)
    now_ms: int = 0
    advanced_to_ms: int = -1
    finished_to_ms: int = -1
    delivered: int = 0
    generations: int = 0
    errors: list[str] = attrs.field(factory=list)

    def add(self, line: Line) -> None:
        """Take in one line; ``do`` opens a step, ``done`` answers the last one that was opened."""
        getattr(self, f"_{line.pop('step')}")(**line)

    def _begin(self, now_ms: int) -> None:
        self.generations += 1
        self.now_ms = now_ms

    def _opened(self, log_end: int) -> None:
        self._opened_at = log_end

    def _schedule(self, now_ms: int, rows: list[list[Any]]) -> None:
        self.now_ms = now_ms
        self._open = [Life(Row(*row), now_ms, len(self.lives)) for row in rows]
        self.lives += self._open

    def _scheduled(self, receipts: list[list[Any]]) -> None:
        for life, (promised_ms, handle, offset) in zip(self._open, receipts, strict=True):
            life.receipt = promised_ms, handle, offset

    def _cancel(self, number: int) -> None:
        self._asked = self.lives[number]
        self._asked.was_asked_back = True

    def _cancelled(self, answer: str) -> None:
        self._asked.answer, self._asked.answered_from = answer, self._opened_at

    def _advance(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.advanced_to_ms = max(self.advanced_to_ms, now_ms)

    def _advanced(self, count: int) -> None:
        self.delivered += count
        self.finished_to_ms = self.advanced_to_ms

    def _error(self, text: str) -> None:
        self.errors.append(text)

    _open: list[Life] = attrs.field(factory=list)
    _asked: Life = attrs.field(init=False)
    _opened_at: int = 0


class Journal:
    """The file: appended to by the process that is killed, read by the one that kills."""

    def __init__(self, path: Path) -> None:
        self.path = path
        whole = b"".join(_whole_lines(path))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._descriptor, len(whole))
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def write(self, step: str, **facts: Any) -> None:
        """Add a line."""
        text = json.dumps({"step": step, **facts}) + "\n"
        os.write(self._descriptor, text.encode())

    def close(self) -> None:
        """Give the file back."""
        os.close(self._descriptor)


def _whole_lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        yield from (line for line in path.read_bytes().splitlines(True) if line.endswith(b"\n"))


def read_journal(path: Path) -> History:
    """All that is told by whole lines."""
    history = History()
    for line in _whole_lines(path):
        history.add(json.loads(line))
    return history
