# SPDX-License-Identifier: Apache-2.0
"""The `checkpoint` of a store that is open: never more than what was synced.

The next opening after a crash reads it. Brokers up to 5.4 recover from the newest log file that
begins three seconds before its times. So the times of an open store are those of the first record
of the file that is being written, not of the newest record. A log whose clock jumped is then read
from before the first record that a queue may lack. The offset of the last synced record is written
for every dialect while the store is open: brokers before 5.5 ignore it. A closed store keeps it
only if its brokers know it.
"""

import attrs

from message_store.files.small_files import InPlaceFile, read_small_file
from message_store.files.store_root import StoreRoot
from message_store.files.unsynced import Unsynced
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.dialect import Dialect
from message_store.writing.log import LiveLog

_OFFSET_UNKNOWN = 1
"""Written in place of offset 0, which would say that nobody wrote the field."""


class LiveCheckpoint:
    """The file, and how much was synced. ``at_opening`` is what it said when the store was opened,
    ``nothing_was_synced`` whether that named no record.
    """

    def __init__(self, root: StoreRoot, dialect: Dialect, log: LiveLog) -> None:
        content = read_small_file(root.checkpoint)
        self.at_opening = StoreCheckpoint.decode(content or b"")
        self.nothing_was_synced = (
            content is not None and self.at_opening.commit_log_timestamp_ms == 0
        )
        self._root = root
        self._dialect = dialect
        self._log = log
        self._file: InPlaceFile | None = None
        self._written = b""
        self._synced_log = 0
        self._synced_queues = 0

    @property
    def synced_offset(self) -> int:
        """Where the last record begins that was known to be on disk at opening; -1 for none."""
        offset = self.at_opening.queue_commit_log_offset
        return -1 if offset == 0 or self.nothing_was_synced else offset

    def log_is_synced(self, last_start: int) -> None:
        """Every record up to the one that begins here is on disk."""
        self._synced_log = max(self._synced_log, last_start)

    def queues_are_synced(self, last_start: int) -> None:
        """And so are the queue entries of every record up to this one."""
        self._synced_queues = max(self._synced_queues, last_start)

    def write(self, *, durably: bool = False) -> None:
        """Say what was synced so far. Raises TargetError."""
        synced = min(self._synced_log, self._synced_queues)
        file_start = synced - synced % self._log.file_bytes
        # Without a time it says that nothing is known to be on disk: the log may then be gone.
        begun_ms = self._log.store_time_ms(max(file_start, self._log.min_offset)) if synced else 0
        self._put(
            attrs.evolve(
                self.at_opening,
                commit_log_timestamp_ms=begun_ms,
                queue_timestamp_ms=begun_ms,
                queue_commit_log_offset=max(synced, _OFFSET_UNKNOWN),
            ).encode(),
            durably=durably,
        )

    def write_last(self) -> None:
        """Say, durably, that all is synced and the store closed, as a broker of the dialect does.

        Raises TargetError.
        """
        newest_ms = self._log.store_time_ms(self._log.last_start)
        self._put(
            attrs.evolve(
                self.at_opening,
                commit_log_timestamp_ms=newest_ms,
                queue_timestamp_ms=newest_ms,
                queue_commit_log_offset=self._log.last_start,
            ).encode(self._dialect.checkpoint),
            durably=True,
        )

    def _put(self, content: bytes, *, durably: bool) -> None:
        if self._file is None:
            self._file = InPlaceFile(self._root.checkpoint)
        if content != self._written or durably:
            self._file.write(content, durably=durably)
            self._written = content

    def begin_sync(self) -> Unsynced:
        """The unsynced part of the file; ``finish`` needs no lock."""
        handles = () if self._file is None else (self._file.another_handle(),)
        return Unsynced(handles, (), lambda: None)

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        if self._file is not None:
            self._file.close()
            self._file = None
