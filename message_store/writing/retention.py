# SPDX-License-Identifier: Apache-2.0
"""Takes away what is older than a store keeps it: log files, and the files that only led into them.

A file that cannot be removed, because somebody holds it or its directory may not be written to,
keeps nobody from delivering: it is said, and tried again.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from message_store.base.errors import TargetError

if TYPE_CHECKING:
    from message_store.writing.store import LiveStore

_TRY_EVERY_MS = 60_000


class LiveRetention:
    """Cleans up after one store. ``kept`` says which file could not be removed, and why."""

    def __init__(self, store: "LiveStore") -> None:
        self.kept: str | None = None
        self._store = store
        self._try_again_ms = 0

    def clean(self, now_ms: int, keep_from: int, make_known: Callable[[], None]) -> list[Path]:
        """Take away log files that are older than the settings keep them, and queue files that say
        nothing any more; returns them.

        Never what ``keep_from`` lies in or before, never the last file of a row. What was delivered
        or stored again out of a file is on the disk before the file goes; ``make_known``, which is
        called then, lets the same be true of what else leads into it. Raises TargetError where the
        disk refuses that.
        """
        store, log = self._store, self._store.log
        with store.reading():
            if self._try_again_ms - _TRY_EVERY_MS <= now_ms < self._try_again_ms:
                return []
            end = log.end_of_expired(now_ms, store.settings.retention_ms, keep_from)
            if end > log.min_offset:
                store.sync_log()
                store.sync_queues()
                make_known()
            elif self.kept is None:
                return []
            self.kept = None
            gone: list[Path] = []
            while taken := self.attempt(partial(self._first_file, end)):
                gone += taken
            for queue in store.queues():
                gone += self.attempt(partial(queue.delete_before, log.min_offset))
            self._try_again_ms = 0 if self.kept is None else now_ms + _TRY_EVERY_MS
            return gone

    def _first_file(self, end: int) -> list[Path]:
        """Take away the oldest file of the log if it ends before a place."""
        log = self._store.log
        return log.segments.delete_before(min(log.min_offset + log.file_bytes, end))

    def attempt(self, remove: Callable[[], list[Path]]) -> list[Path]:
        """Remove old files; note it where one cannot be."""
        try:
            return remove()
        except TargetError as error:
            self.kept = self.kept or str(error)
            return []
