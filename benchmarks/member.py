# SPDX-License-Identifier: Apache-2.0
"""Makes a generated store that of the only member of a DLedger group: the same records, each behind
the head of an entry.
"""

from io import BufferedWriter
from pathlib import Path

import numpy as np

from message_store.files.store_root import StoreRoot
from message_store.format.members.dledger_entry import (
    ENTRY_BLANK,
    ENTRY_BLANK_MAGIC,
    ENTRY_HEAD,
    ENTRY_MAGIC,
)
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import BLANK_RECORD, HEAD_V4_V4, MAGIC_BLANK

_OFFSET_AT = HEAD_V4_V4.offset_of("commit_log_offset")


def move_into_member(source: Path) -> None:
    """Move the log into that of a member, and let all queues lead there."""
    root = StoreRoot(source)
    files = sorted(root.commit_log.iterdir())
    entries = _Entries(source / "dledger-n0" / "data", files[0].stat().st_size)
    was: list[int] = []
    now: list[int] = []
    for path in files:
        log, at = path.read_bytes(), 0
        path.unlink()
        while at + BLANK_RECORD.size <= len(log):
            head = BLANK_RECORD.decode_at(log, at)
            if not head["size_bytes"] or head["magic"] == MAGIC_BLANK:
                break
            was.append(int(path.name) + at)
            now.append(entries.append(log[at : at + head["size_bytes"]]))
            at += head["size_bytes"]
    entries.close()
    root.commit_log.rmdir()
    old, new = np.array(was), np.array(now)
    for path in root.consume_queues.glob("*/*/*"):
        units = np.fromfile(path, QUEUE_UNIT.dtype)
        used = units["size_bytes"] > 0
        offsets = units["commit_log_offset"].astype(np.int64)
        units["commit_log_offset"][used] = new[np.searchsorted(old, offsets[used])]
        units.tofile(path)


class _Entries:
    """A member's log that is written from its beginning on."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        directory.mkdir(parents=True)
        self._directory, self._file_bytes = directory, file_bytes
        self._index = self._end = 0
        self._file = self._begin(0)

    def append(self, record: bytes) -> int:
        """Append a record as an entry; returns the offset of the record."""
        size = ENTRY_HEAD.size + len(record)
        left = self._file_bytes - self._end % self._file_bytes
        if size + ENTRY_BLANK.size > left:
            self._file.write(ENTRY_BLANK.encode(entry_magic=ENTRY_BLANK_MAGIC, blank_bytes=left))
            self.close()
            self._end += left
            self._file = self._begin(self._end)
        head = ENTRY_HEAD.encode(
            entry_magic=ENTRY_MAGIC,
            entry_bytes=size,
            entry_index=self._index,
            term=0,
            entry_offset=self._end,
            channel=0,
            chain_crc=0,
            entry_crc=0,
            record_bytes=len(record),
        )
        own = self._end + ENTRY_HEAD.size
        behind = _OFFSET_AT + 8
        self._file.write(head + record[:_OFFSET_AT] + own.to_bytes(8, "big") + record[behind:])
        self._index += 1
        self._end += size
        return own

    def close(self) -> None:
        """Give the file its length."""
        self._file.truncate(self._file_bytes)
        self._file.close()

    def _begin(self, offset: int) -> BufferedWriter:
        return (self._directory / f"{offset:020d}").open("wb")
