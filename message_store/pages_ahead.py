# SPDX-License-Identifier: Apache-2.0
"""Finds the pages that a log will need next while nobody waits for them: the kernel's, and where
the machine is a guest, those that its host has yet to provide.

To write into a page that a host must first provide took 11 µs in place of 0.8: where a slot of
50,000 messages was due, 165 ms of 300. To say that what is not written yet will be read provides it
too, changes nothing, and makes nothing dirty.
"""

import os
from contextlib import suppress

import attrs

from message_store.clock import stopwatch_s
from message_store.errors import TargetError
from message_store.live_segments import LiveSegments
from message_store.unsynced import handles_of_its_own

_PIECE_BYTES = 1 << 20
"""So much is asked for at once. Asked like this a kernel takes pages of 4 KiB. Reading would let it
take larger ones, into which large writes took 16 ms in place of 26 for 64 MiB, but small ones four
times as long: with every write a kernel looks at all parts of a page.
"""
_MOST_BYTES = 256 << 20


class PagesAhead:
    """What has been found of one log: as much as it grows by between two calls, and as much again.

    After it has grown by much some calls go on to want as much: slots are seldom alike. What is
    found is page cache that nothing was written to; a kernel that needs the memory takes it back.
    """

    def __init__(self, segments: LiveSegments, end: int) -> None:
        self._segments = segments
        self._end = self.found_end = end
        self._wanted_bytes = 0
        self.is_finding = False

    def next(self, end: int) -> "PagesToFind | None":
        """What is to be found now that the log ends here; the log's lock is held. None while
        somebody else is finding some.
        """
        grown_bytes, self._end = end - self._end, end
        wanted_bytes = max(2 * grown_bytes, self._wanted_bytes * 7 // 8)
        self._wanted_bytes = min(wanted_bytes, _MOST_BYTES)
        file_bytes = self._segments.file_bytes
        file_start = end - end % file_bytes
        start = max(end, self.found_end)
        stop = min(end + self._wanted_bytes, file_start + file_bytes)
        if self.is_finding or start >= stop or file_start not in self._segments.starts:
            return None
        try:
            [descriptor] = handles_of_its_own([self._segments.descriptor(file_start)])
        except (OSError, TargetError):  # too many handles: somebody else will say so
            return None
        self.is_finding = True
        return PagesToFind(self, descriptor, file_start, start, stop)


@attrs.frozen
class PagesToFind:
    """A part of a log, within the file that begins at ``file_start``, by a handle of its own."""

    ahead: PagesAhead
    descriptor: int
    file_start: int
    start: int
    stop: int

    def find(self, longest_s: float) -> None:
        """Find them all or, where that takes longer, the first, while the caller waits. A disk
        that refuses will refuse the writing, and say so.
        """
        until_s = stopwatch_s() + longest_s
        try:
            with suppress(OSError):
                place = self.start
                while place < self.stop and stopwatch_s() < until_s:
                    within = place - self.file_start
                    size_bytes = _PIECE_BYTES - within % _PIECE_BYTES
                    os.posix_fadvise(self.descriptor, within, size_bytes, os.POSIX_FADV_WILLNEED)
                    place = self.ahead.found_end = place + size_bytes
        finally:
            os.close(self.descriptor)
            self.ahead.is_finding = False
