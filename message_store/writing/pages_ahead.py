# SPDX-License-Identifier: Apache-2.0
"""Allocates the page cache that the log will need next, in the background.

On a virtual machine a write into a page that its host must first provide takes 11 µs, else 0.8 µs.
That was 165 of 300 ms for a slot of 50,000 messages. WILLNEED (posix_fadvise) on the unwritten part
of a file allocates the pages without making them dirty.
"""

import os
import threading
from contextlib import suppress

import attrs

from message_store.base.errors import TargetError
from message_store.files.live_segments import LiveSegments
from message_store.files.unsynced import handles_of_its_own

_PIECE_BYTES = 1 << 20
"""Size of one request. WILLNEED allocates pages of 4 KiB. Reading would allocate larger ones: large
writes then took 16 ms in place of 26 for 64 MiB, but small ones four times as long.
"""
_LEAST_BYTES = 2 << 20
"""Where the log grows by less than half of it between two flushes, writing allocates the pages:
larger ones, faster to write and to sync. That took a fifth off storing and flushing 1,000 messages.
"""
_MOST_BYTES = 256 << 20
AHEAD_FROM_BYTES = 256 << 20
"""The next file is made ahead, as brokers do, where files are as large as this: what is written to
smaller ones is little.
"""


class PagesAhead:
    """How far the pages of one log are allocated: twice as far as it grew between two calls.

    The wanted size decays by 1/8 a call, since a large slot is often followed by another. The
    pages are clean, so that a kernel that needs the memory drops them.
    """

    def __init__(self, segments: LiveSegments, end: int) -> None:
        self._segments = segments
        self._end = self.found_end = end
        self._wanted_bytes = 0
        self.is_finding = False

    def next(self, end: int) -> "PagesToFind | None":
        """The pages to allocate now that the log ends at ``end``; the store's lock is held. None
        while another thread allocates some.
        """
        grown_bytes, self._end = end - self._end, end
        wanted_bytes = max(2 * grown_bytes, self._wanted_bytes * 7 // 8)
        self._wanted_bytes = min(wanted_bytes, _MOST_BYTES)
        file_bytes = self._segments.file_bytes
        if self._wanted_bytes < _LEAST_BYTES and end % file_bytes + self._wanted_bytes < file_bytes:
            return None
        start, stop = max(end, self.found_end), end + self._wanted_bytes
        if self.is_finding or start >= stop:
            return None
        files = range(start - start % file_bytes, stop, file_bytes)
        if file_bytes >= AHEAD_FROM_BYTES and files[-1] > end:
            with suppress(TargetError):  # no room: whoever writes will say so
                self._segments.make_file(files[-1])
        if self._wanted_bytes < _LEAST_BYTES:
            return None
        try:
            there = [each for each in files if each in self._segments.starts]
            handles = handles_of_its_own(map(self._segments.descriptor, there))
        except (OSError, TargetError):  # too many handles: somebody else will say so
            return None
        if not there:
            return None
        self.is_finding = True
        return PagesToFind(self, handles, there[0], file_bytes, start, stop)


@attrs.frozen
class PagesToFind:
    """A part of a log in consecutive files with own handles; the first begins at ``file_start``."""

    ahead: PagesAhead
    descriptors: tuple[int, ...]
    file_start: int
    file_bytes: int
    start: int
    stop: int

    def find(self) -> None:
        """Allocate them and close the handles. Errors are ignored: the write will raise them."""
        try:
            with suppress(OSError):
                self._find()
        finally:
            self._give_back()

    def _find(self) -> None:
        offset = self.start
        for number, descriptor in enumerate(self.descriptors):
            begin = self.file_start + number * self.file_bytes
            while offset < min(self.stop, begin + self.file_bytes):
                within = offset - begin
                size_bytes = _PIECE_BYTES - within % _PIECE_BYTES
                size_bytes = min(size_bytes, self.file_bytes - within)
                os.posix_fadvise(descriptor, within, size_bytes, os.POSIX_FADV_WILLNEED)
                offset = self.ahead.found_end = offset + size_bytes

    def _give_back(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.ahead.is_finding = False

    def find_in_a_thread(self) -> None:
        """The same in a thread: on a virtual machine it takes 0.3 s for 100,000 messages of 1 KB.
        Where no thread can be started, the write allocates the pages.
        """
        try:
            threading.Thread(target=self.find, name="pages ahead", daemon=True).start()
        except RuntimeError:
            self._give_back()
