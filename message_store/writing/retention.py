# SPDX-License-Identifier: Apache-2.0
"""Removes log files that are older than the retention, and queue files that led only into them.

A file that cannot be removed does not stop delivery: ``check`` reports it, and it is tried again.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from message_store.base.errors import TargetError
from message_store.writing.log import LiveLog
from message_store.writing.queue_set import QueueSet

_TRY_EVERY_MS = 60_000


class LiveRetention:
    """Removes old files of one store; ``sync`` makes its log and queues durable.

    A log file is old ``retention_ms`` after its last record was stored. ``kept`` says which file
    could not be removed, and why. Nothing here locks; the store does.
    RocketMQ: DefaultMessageStore.CleanCommitLogService and CleanConsumeQueueService (4.9.7).
    """

    def __init__(
        self, log: LiveLog, queues: QueueSet, retention_ms: int, sync: Callable[[], None]
    ) -> None:
        self.kept: str | None = None
        self._log = log
        self._queues = queues
        self._retention_ms = retention_ms
        self._sync = sync
        self._try_again_ms = 0

    def clean(self, now_ms: int, keep_from: int, make_known: Callable[[], None]) -> list[Path]:
        """Remove log files that are old, and the queue files that led only into them; returns them.

        Never removes the last file of a row, nor a log file at or behind the commit log offset
        ``keep_from``. Before a file goes, log and queues are synced: they hold what was delivered
        or rolled out of it. ``make_known`` is called then, to make other references to the
        file durable. Raises TargetError where the disk refuses that.
        """
        log = self._log
        if self._try_again_ms - _TRY_EVERY_MS <= now_ms < self._try_again_ms:
            return []
        end = log.end_of_expired(now_ms, self._retention_ms, keep_from)
        if end > log.min_offset:
            self._sync()
            make_known()
        elif self.kept is None:
            return []
        self.kept = None
        removed: list[Path] = []
        while taken := self.attempt(partial(self._first_file, end)):
            removed += taken
        if removed:  # on the disk: a log with files that its queues do not know is refused
            self._sync()
        for queue in self._queues:
            removed += self.attempt(partial(queue.delete_before, log.min_offset))
        self._try_again_ms = 0 if self.kept is None else now_ms + _TRY_EVERY_MS
        return removed

    def _first_file(self, end: int) -> list[Path]:
        """Remove the oldest file of the log if it ends at or before ``end``."""
        log = self._log
        return log.segments.delete_before(min(log.min_offset + log.file_bytes, end))

    def attempt(self, remove: Callable[[], list[Path]]) -> list[Path]:
        """Remove old files; note it where one cannot be."""
        try:
            return remove()
        except TargetError as error:
            self.kept = self.kept or str(error)
            return []
