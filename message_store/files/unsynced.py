# SPDX-License-Identifier: Apache-2.0
"""What was written and is not on disk yet, and how many threads wait for one sync of it."""

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from message_store.base.errors import TargetError
from message_store.files.small_files import sync_directory


@attrs.frozen(eq=False)
class Unsynced:
    """What a row had written at one moment and nobody had synced; its own handles, so that the row
    goes on meanwhile.
    """

    descriptors: tuple[int, ...]
    directories: tuple[Path, ...]
    on_done: Callable[[], None]

    def finish(self) -> None:
        """Come back when all of it is on disk. Raises TargetError: what is there is then unknown,
        because a failed sync is not reported twice.
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
            raise TargetError(f"cannot be synced: {error.strerror}") from error
        finally:
            for descriptor in left:
                os.close(descriptor)


def handles_of_its_own(descriptors: Iterable[int]) -> tuple[int, ...]:
    """A second handle for each of these files, made before the next is asked for: opening that may
    close the one before. Raises OSError and what the asking raises, and keeps none then.
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

    Whoever comes while ``work`` runs waits for the next run, which one of those waiting does for
    all: what they wrote may have been too late for the run under way.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._change = threading.Condition()
        self._started = 0
        self._finished = 0
        self._is_running = False

    def run(self) -> None:
        """Come back when a run that began after this call is done.

        Raises what ``work`` raises; the others then try for themselves.
        """
        number = done = 0
        try:
            with self._change:
                wanted = self._started + 1
                while self._is_running and self._finished < wanted:
                    self._change.wait()
                if self._finished >= wanted:
                    return
                self._started = number = self._started + 1
                self._is_running = True
            self._work()
            done = number
        finally:  # also after an interrupt in front of the work: nobody else would ever begin
            if number:
                with self._change:
                    self._is_running = False
                    self._finished = max(self._finished, done)
                    self._change.notify_all()
