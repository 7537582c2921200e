# SPDX-License-Identifier: Apache-2.0
"""Ends an engine's store in one way or another, and notes what opening it again costs, until its
first delivery.
"""

import gc
from collections.abc import Callable
from pathlib import Path

import attrs

from compare.report.results import Opening
from compare.running.engines import kill
from compare.running.faults import REBOOT, RESTART
from compare.running.work_files import forget_pages, read_from_disk_bytes
from message_store.base.clock import stopwatch_s
from message_store.interface.delay_store import DelayStore


def end_store(store: DelayStore, kind: str) -> None:
    """End it as this kind of fault does; all but a restart leave it without a last word."""
    if kind == RESTART:
        store.close()
    else:
        kill(store)


def clear_the_way(where: Path, kind: str) -> None:
    """What is left of a store that was ended and that nobody holds: its mapped files go, and after
    a reboot all that the page cache has of them. Raises TargetError.
    """
    gc.collect()
    if kind == REBOOT:
        forget_pages(where)


@attrs.define(eq=False)
class Reopening:
    """The stopwatch of one opening. It is over with the first delivery."""

    waiting: int
    _open_s: float = 0.0
    _read_bytes: int = 0
    _read_before: int = attrs.field(factory=read_from_disk_bytes)
    _first_messages: int = 0
    _first_s: float = 0.0
    _first_read_bytes: int = 0

    def timed(self, open_store: Callable[[], DelayStore]) -> tuple[DelayStore, int | None]:
        """Open it; the store, and what is due next."""
        started = stopwatch_s()
        store = open_store()
        due_ms = store.next_due_ms()
        self._open_s = stopwatch_s() - started
        self._read_bytes = self._newly_read()
        return store, due_ms

    def advanced(self, took_s: float, count: int) -> None:
        """A call of ``advance`` came back with so many deliveries."""
        if self._first_messages:
            return
        self._first_s += took_s
        if count:
            self._first_messages = count
            self._first_read_bytes = self._newly_read()

    def _newly_read(self) -> int:
        read = read_from_disk_bytes()
        self._read_before, newly = read, read - self._read_before
        return newly

    @property
    def opening(self) -> Opening:
        """What it cost so far."""
        return Opening(
            waiting=self.waiting,
            open_s=self._open_s,
            read_bytes=self._read_bytes,
            first_messages=self._first_messages,
            first_s=self._first_s if self._first_messages else 0.0,
            first_read_bytes=self._first_read_bytes,
        )
