# SPDX-License-Identifier: Apache-2.0
"""Reads pending records front to back, many with one system call, into one reused buffer.

Records that lie close together are read together; a wide gap of other messages is jumped. No length
is trusted. The length in a queue entry is compared with the file, and a long one also with the
record's own length, before memory is allocated.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.files.array_room import new_array
from message_store.files.segments import SegmentReader
from message_store.format.record_layout import BLANK_RECORD
from message_store.kernels.cache import kernel

NOT_THERE = -1
"""In the place of a buffer offset: a record that cannot be read."""

NO_RECORD = "the log ends before the record does, or has no such place"
"""Why it cannot."""

GONE, THERE, DOUBTFUL = range(3)
"""The state of an entry: no record; maybe one; or one that must state its length itself."""

FIRST, END, OFFSET, LENGTH = range(4)
RUN_COLUMNS = 4
"""Columns of a run of records that are read together: first and end row, log offset, bytes."""
BUFFER_BYTES = 2 << 20
"""Fits into the cache from the read to the write."""
GAP_BYTES = 32 << 10
"""Reading over a gap as wide as this costs as much as jumping it."""
SPARE_BYTES = 16
"""Kernels compare names by words, and may read so far beyond a record."""
_ROWS = 1 << 14
"""Records in a chunk, at most."""


@kernel("int64(int64[::1], int32[::1], int64[::1], int64[::1], int64, uint8[::1])")
def judge_entries(
    offsets: Any, sizes: Any, file_starts: Any, file_ends: Any, longest: int, kinds: Any
) -> int:
    """Fill ``kinds`` for entries in order of offset; returns how many are doubtful.

    An entry lies in a file, or is lost. One longer than ``longest`` is doubtful.
    """
    file, doubtful = -1, 0
    for i in range(len(offsets)):
        while file + 1 < len(file_starts) and file_starts[file + 1] <= offsets[i]:
            file += 1
        kinds[i] = GONE
        if file < 0 or sizes[i] <= 0 or offsets[i] >= file_ends[file]:
            continue
        if sizes[i] > file_ends[file] - offsets[i]:
            continue
        kinds[i] = THERE
        if sizes[i] > longest:
            kinds[i] = DOUBTFUL
            doubtful += 1
    return doubtful


@kernel(
    "UniTuple(int64, 2)(int64[::1], int32[::1], uint8[::1], int64[::1], int64, int64, int64,"
    " int64[::1], int64[:, ::1])"
)
def lay_out_chunk(
    offsets: Any, sizes: Any, kinds: Any, file_starts: Any, first: int, room: int, gap: int,
    buffer_offsets: Any, runs: Any,
) -> tuple[int, int]:  # fmt: skip
    """Lay records from number ``first`` on into a buffer of ``room`` bytes; returns where the chunk
    ends, and how many runs it has.

    ``buffer_offsets`` become the records' offsets in the buffer, ``runs`` the reads, one behind the
    other. A run ends with its file, and before a gap of ``gap`` or more bytes. A chunk has at least
    one record, even when that does not fit; otherwise all its claimed lengths fit, and its rows.
    """
    file, run, filled, claimed, reach = 0, -1, 0, 0, 0
    i = first
    while i < len(offsets) and i - first < len(buffer_offsets):
        claimed += max(int(sizes[i]), 0)
        if i > first and claimed > room:
            break
        buffer_offsets[i - first] = NOT_THERE
        if kinds[i] == THERE:
            start, end = offsets[i], offsets[i] + sizes[i]
            before = file
            while file + 1 < len(file_starts) and file_starts[file + 1] <= start:
                file += 1
            is_new = run < 0 or file != before or start - reach > gap
            run_start = start if is_new else runs[run, OFFSET]
            base = filled if is_new else filled - runs[run, LENGTH]
            new_reach = end if is_new else max(reach, end)
            if i > first and base + new_reach - run_start > room:
                break
            if is_new:
                run += 1
                runs[run, FIRST], runs[run, OFFSET] = i - first, start
            reach = new_reach
            runs[run, END], runs[run, LENGTH] = i + 1 - first, reach - run_start
            filled = base + reach - run_start
            buffer_offsets[i - first] = base + start - run_start
        i += 1
    return i, run + 1


@attrs.frozen(eq=False)
class Chunk:
    """Records ``first`` to ``end`` of a run, and the offset of each in them, or ``NOT_THERE``."""

    first: int
    end: int
    buffer: NDArray[np.uint8]
    buffer_bytes: int
    buffer_offsets: NDArray[np.int64]


def read_chunks(
    log: SegmentReader, offsets: NDArray[np.int64], sizes: NDArray[np.int32]
) -> Iterator[Chunk]:
    """Read the records at ``offsets`` (ascending, int64) of ``sizes`` (int32) in chunks; the arrays
    of a chunk are reused for the next one.

    No chunk holds, or claims, more than ``BUFFER_BYTES``, unless it has a single record. Raises
    SourceError when the disk refuses.
    """
    log.grow()  # entries may lead to files that a writer added meanwhile
    buffer = np.zeros(BUFFER_BYTES + SPARE_BYTES, np.uint8)
    buffer_offsets = np.empty(_ROWS, np.int64)
    runs = np.empty((_ROWS, RUN_COLUMNS), np.int64)
    starts = np.array([segment.start_offset for segment in log.segments], np.int64)
    kinds = entry_kinds(log, offsets, sizes)
    first = 0
    while first < len(offsets):
        end, run_count = lay_out_chunk(
            offsets, sizes, kinds, starts, first, BUFFER_BYTES, GAP_BYTES, buffer_offsets, runs
        )
        needed = int(runs[:run_count, LENGTH].sum())
        if needed + SPARE_BYTES > len(buffer):
            buffer = np.zeros(needed + SPARE_BYTES, np.uint8)
        filled = _read_runs(log, runs[:run_count], sizes[first:end], buffer_offsets, buffer)
        yield Chunk(first, end, buffer, filled, buffer_offsets[: end - first])
        first = end


def entry_kinds(
    log: SegmentReader, offsets: NDArray[np.int64], sizes: NDArray[np.int32]
) -> NDArray[np.uint8]:
    """The state of each entry, by ascending offset; a very long one by its record's own length."""
    starts = np.array([segment.start_offset for segment in log.segments], np.int64)
    lengths = np.array([segment.length_bytes for segment in log.segments], np.int64)
    kinds = new_array(len(offsets), np.uint8)
    if judge_entries(offsets, sizes, starts, starts + lengths, BUFFER_BYTES, kinds):
        for at in np.flatnonzero(kinds == DOUBTFUL).tolist():
            kinds[at] = THERE if _stated_size(log, int(offsets[at])) == sizes[at] else GONE
    return kinds


def _stated_size(log: SegmentReader, offset: int) -> int:
    head = bytearray(BLANK_RECORD.size)
    if log.read_into(offset, memoryview(head)) < len(head):
        return 0
    return int(BLANK_RECORD.decode_at(head, 0)["size_bytes"])


def _read_runs(
    log: SegmentReader,
    runs: NDArray[np.int64],
    sizes: NDArray[np.int32],
    buffer_offsets: NDArray[np.int64],
    buffer: NDArray[np.uint8],
) -> int:
    """Fill the buffer with runs, one behind the other; returns their bytes."""
    filled = 0
    for run in runs:
        length = int(run[LENGTH])
        count = log.read_into(int(run[OFFSET]), buffer.data[filled : filled + length])
        if count < length:  # a file that was cut short while we read
            rows = slice(int(run[FIRST]), int(run[END]))
            buffer_offsets[rows][buffer_offsets[rows] + sizes[rows] > filled + count] = NOT_THERE
        filled += length
    return filled
