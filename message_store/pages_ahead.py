# SPDX-License-Identifier: Apache-2.0
"""Finds the pages that a log will need next while nobody waits for them: the kernel's, and where
the machine is a guest, those that its host has yet to provide.

To write into a page that a host must first provide took 11 µs in place of 0.8: where a slot of
50,000 messages was due, 165 ms of 300. Reading what is not written yet provides it too, changes
nothing, and makes nothing dirty.
"""

import os
from contextlib import suppress

import attrs

from message_store.live_segments import LiveSegments
from message_store.unsynced import handles_of_its_own

_READ_BYTES = 1 << 20
"""Less at once lets the kernel take small pages: writing then took twice as long."""
_MOST_BYTES = 256 << 20


@attrs.frozen
class PagesToFind:
    """A part of a file, by a handle of its own."""

    descriptor: int
    start: int
    stop: int

    def find(self) -> None:
        """Read it, in the time of whoever calls; a disk that refuses will refuse the writing."""
        buffer = bytearray(_READ_BYTES)
        try:
            with suppress(OSError):
                for place in range(self.start, self.stop, _READ_BYTES):
                    part = memoryview(buffer)[: self.stop - place]
                    os.preadv(self.descriptor, [part], place)
        finally:
            os.close(self.descriptor)


class PagesAhead:
    """What has been found of one log: as much as it grows by between two calls, and as much again.

    After a slot that held much it stays that much for a while: the next may hold as much.
    """

    def __init__(self, segments: LiveSegments, end: int) -> None:
        self._segments = segments
        self._end = self._found_end = end
        self._wanted_bytes = 0

    def next(self, end: int) -> PagesToFind | None:
        """What is to be found now that the log ends here; the log's lock is held."""
        grown_bytes, self._end = end - self._end, end
        wanted_bytes = max(2 * grown_bytes, self._wanted_bytes * 7 // 8)
        self._wanted_bytes = min(wanted_bytes, _MOST_BYTES)
        file_bytes = self._segments.file_bytes
        file_start = end - end % file_bytes
        start = max(end, self._found_end)
        wanted_end = end + self._wanted_bytes
        stop = min(-(-wanted_end // _READ_BYTES) * _READ_BYTES, file_start + file_bytes)
        if start >= min(wanted_end, stop) or file_start not in self._segments.starts:
            return None
        try:
            [descriptor] = handles_of_its_own([self._segments.descriptor(file_start)])
        except OSError:  # too many handles: somebody else will say so
            return None
        self._found_end = stop
        return PagesToFind(descriptor, start - file_start, stop - file_start)
