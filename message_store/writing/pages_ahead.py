# SPDX-License-Identifier: Apache-2.0
"""Finds the pages that a log will need next while nobody waits for them: the kernel's, and where
the machine is a guest, those that its host has yet to provide.

To write into a page that a host must first provide took 11 µs in place of 0.8: where a slot of
50,000 messages was due, 165 ms of 300. To say that what is not written yet will be read provides it
too, changes nothing, and makes nothing dirty.
"""

import os
import threading
from contextlib import suppress

import attrs

from message_store.base.errors import TargetError
from message_store.files.live_segments import LiveSegments
from message_store.files.unsynced import handles_of_its_own

_PIECE_BYTES = 1 << 20
"""So much is asked for at once. Asked like this a kernel takes pages of 4 KiB. Reading would let it
take larger ones, into which large writes took 16 ms in place of 26 for 64 MiB, but small ones four
times as long: with every write a kernel looks at all parts of a page.
"""
_MOST_BYTES = 256 << 20
AHEAD_FROM_BYTES = 256 << 20
"""The next file is made ahead, as brokers do, where files are as large as this: what is written to
smaller ones is little.
"""


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
        """What is to be found now that the log ends here; the store's lock is held. None while
        somebody else is finding some.
        """
        grown_bytes, self._end = end - self._end, end
        wanted_bytes = max(2 * grown_bytes, self._wanted_bytes * 7 // 8)
        self._wanted_bytes = min(wanted_bytes, _MOST_BYTES)
        start, stop = max(end, self.found_end), end + self._wanted_bytes
        if self.is_finding or start >= stop:
            return None
        file_bytes = self._segments.file_bytes
        files = range(start - start % file_bytes, stop, file_bytes)
        if file_bytes >= AHEAD_FROM_BYTES and files[-1] > end:
            with suppress(TargetError):  # no room: whoever writes will say so
                self._segments.make_file(files[-1])
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
    """A part of a log. It lies in files one behind another, which have handles of their own here;
    the first begins at ``file_start``.
    """

    ahead: PagesAhead
    descriptors: tuple[int, ...]
    file_start: int
    file_bytes: int
    start: int
    stop: int

    def find(self) -> None:
        """Find them, and give the handles back. A disk that refuses will refuse the writing, and
        say so.
        """
        try:
            with suppress(OSError):
                self._find()
        finally:
            self._give_back()

    def _find(self) -> None:
        place = self.start
        for number, descriptor in enumerate(self.descriptors):
            begin = self.file_start + number * self.file_bytes
            while place < min(self.stop, begin + self.file_bytes):
                within = place - begin
                size_bytes = _PIECE_BYTES - within % _PIECE_BYTES
                size_bytes = min(size_bytes, self.file_bytes - within)
                os.posix_fadvise(descriptor, within, size_bytes, os.POSIX_FADV_WILLNEED)
                place = self.ahead.found_end = place + size_bytes

    def _give_back(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.ahead.is_finding = False

    def find_in_a_thread(self) -> None:
        """The same while the caller goes on; it takes 0.3 s for what 100,000 messages of 1 KB need
        where a host must provide it. No thread, no pages: they are found when they are needed.
        """
        try:
            threading.Thread(target=self.find, name="pages ahead", daemon=True).start()
        except RuntimeError:
            self._give_back()
