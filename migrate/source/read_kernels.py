# SPDX-License-Identifier: Apache-2.0
"""Which records of a log can be read, and how many with one system call: what ``source_reader``
asks once a record, compiled.
"""

from typing import Any

from message_store.kernels.cache import kernel

NOT_THERE = -1
"""The place of a record that cannot be read."""

GONE, THERE, DOUBTFUL = range(3)
"""What an entry is: no record lies there, one may, or one may that must say itself how long it is.
"""

FIRST, END, OFFSET, LENGTH = range(4)
RUN_COLUMNS = 4
"""A run of records that are read together: rows of the chunk, where in the log, how many bytes."""


@kernel("int64(int64[::1], int32[::1], int64[::1], int64[::1], int64, uint8[::1])")
def judge_entries(
    offsets: Any, sizes: Any, file_starts: Any, file_ends: Any, longest: int, kinds: Any
) -> int:
    """Fill ``kinds`` for entries in order of offset; returns how many are doubtful.

    An entry lies in a file, or is gone. One longer than ``longest`` is doubtful.
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
    places: Any, runs: Any,
) -> tuple[int, int]:  # fmt: skip
    """Lay records from number ``first`` on into a buffer of ``room`` bytes; returns where the chunk
    ends, and how many runs it has.

    ``places`` become the records' places in the buffer, ``runs`` what is to be read, one behind the
    other. A run ends with its file, and where ``gap`` or more bytes are not wanted. A chunk has at
    least one record, even when that does not fit; all it claims to hold fits otherwise, and so do
    its rows in ``places``.
    """
    file, run, filled, claimed, reach = 0, -1, 0, 0, 0
    i = first
    while i < len(offsets) and i - first < len(places):
        claimed += max(int(sizes[i]), 0)
        if i > first and claimed > room:
            break
        places[i - first] = NOT_THERE
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
            places[i - first] = base + start - run_start
        i += 1
    return i, run + 1
