# SPDX-License-Identifier: Apache-2.0
"""Data that was written and is not on disk yet, and one sync of it for many threads."""

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from message_store.base.errors import TargetError, reason_of
from message_store.files.small_files import sync_directory


@attrs.frozen(eq=False)
class Unsynced:
    """The unsynced files and directories of a row at one moment.

    It has handles of its own, so that the row can be used, or closed, during the sync.
    """

    descriptors: tuple[int, ...]
    directories: tuple[Path, ...]
    on_done: Callable[[], None]

    def finish(self) -> None:
        """Return when all of it is on disk. Raises TargetError; nobody knows then what is on disk,
        because the kernel does not report a failed sync twice.
        """
        left = list(self.descriptors)
        try:
            while left:
                os.fdatasync(left[-1])
                os.close(left.pop())
            for directory in self.directories:
                sync_directory(directory)
            self.on_done()
        except OSError as error:
            raise TargetError(f"cannot be synced: {reason_of(error)}") from error
        finally:
            for descriptor in left:
                os.close(descriptor)


def handles_of_its_own(descriptors: Iterable[int]) -> tuple[int, ...]:
    """A second handle for each of these files.

    Each descriptor is duplicated before the next is fetched, because fetching may close earlier
    ones. On any error all copies are closed. Raises OSError, and what fetching raises.
    """
    copies: list[int] = []
    try:
        copies.extend(map(os.dup, descriptors))
    except BaseException:
        while copies:
            os.close(copies.pop())
        raise
    return tuple(copies)


class GroupSync:
    """Lets many threads share one piece of work that makes everything before it durable.

    A thread that calls while ``work`` runs waits for the next run, because its data may have been
    too late for this one. One of the waiting threads does that run for all.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        self._waiting = 0
        self._started = 0
        self._finished = 0
        self._is_running = False

    def run(self) -> None:
        """Return when a run that began after this call is done.

        Raises what ``work`` raises; the other threads then try for themselves.
        """
        number = done = 0
        try:
            with self._lock:
                wanted = self._started + 1
                self._waiting += 1
                try:
                    while self._is_running and self._finished < wanted:
                        self._change.wait()
                finally:
                    self._waiting -= 1
                if self._finished >= wanted:
                    return
                self._started = number = self._started + 1
                self._is_running = True
            self._work()
            done = number
        finally:  # also after an interrupt in front of the work: nobody else would ever begin
            if number:
                with self._lock:
                    self._is_running = False
                    self._finished = max(self._finished, done)
                    if self._waiting:
                        self._change.notify_all()
