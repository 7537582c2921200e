# SPDX-License-Identifier: Apache-2.0
"""How a large append goes to its files: in pieces, one being written while the next is filled."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from message_store.files.live_segments import LiveSegments
from message_store.files.segments import write_whole

Int64s = NDArray[np.int64]

PIECE_BYTES: Final = 1 << 20
"""About how much is written at once: what a core's own cache still holds when it is written."""


class PieceWriter:
    """Writes pieces into a log's files, one behind another; with a thread, while its caller goes on
    to make the next one. Leaving it waits for the last.
    """

    def __init__(self, segments: LiveSegments, *, in_a_thread: bool) -> None:
        self._segments = segments
        self._thread = ThreadPoolExecutor(1) if in_a_thread else None
        self._file_start = 0
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None:
            try:
                self._thread.shutdown()
            finally:  # an interrupt stops no write, and what fails now takes away what was written
                self._thread.shutdown()
        if kind is None:
            self._wait()

    def write(self, offset: int, piece: memoryview) -> None:
        """Write a piece, which lies in one file, when the one before is written; the caller keeps
        it as it is until the next ``write`` comes back. Raises TargetError for either.
        """
        if self._thread is None:
            self._segments.write_at(offset, piece)
            return
        self._wait()
        segments = self._segments
        self._file_start = offset - offset % segments.file_bytes
        # All that changes the row is done here: its owner's lock is held by this thread.
        segments.make_file(self._file_start)
        segments.mark_dirty(self._file_start)
        descriptor, place = segments.descriptor(self._file_start), offset - self._file_start
        try:
            self._writing = self._thread.submit(write_whole, descriptor, piece, place)
        except RuntimeError:  # there may be no more threads, as when the main one has ended
            self._thread = None
            segments.write_at(offset, piece)

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except OSError as error:
            raise self._segments.error("written", self._file_start, error) from error


def pieces_of(positions: Int64s, file_bytes: int) -> list[slice]:
    """Rows that are written together: near each other, in one file."""
    pieces, first, count = [], 0, len(positions)
    while first < count:
        start = int(positions[first])
        limit = min(start + PIECE_BYTES, start - start % file_bytes + file_bytes)
        stop = int(np.searchsorted(positions, limit))
        pieces.append(slice(first, stop))
        first = stop
    return pieces
