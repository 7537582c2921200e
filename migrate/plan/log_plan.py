# SPDX-License-Identifier: Apache-2.0
"""Computes from sizes alone where each record of a target log lies, and how the log falls into
parts.

A record fits into a file only if eight bytes stay free behind it. Otherwise the file ends in a
blank and the record begins the next file (docs/FORMAT.md, commit log). A part is a run of records
within one file.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.format.layout import Field, Layout
from message_store.format.record_layout import END_OF_FILE_MIN_BYTES

PART = Layout(
    "part of a conversion",
    (
        Field("first", "i64", "index of its first message"),
        Field("end", "i64", "index behind its last message"),
        Field("log_offset", "i64", "where its first record begins in the target log"),
        Field("log_end", "i64", "behind its last record"),
        Field(
            "blank_bytes",
            "i64",
            "length of the blank behind it; 0 when the file goes on or ends the log",
        ),
        Field("source", "i64", "which of the sources its messages are from"),
    ),
)


@attrs.frozen(eq=False)
class LogPlan:
    """``offsets``: where each record begins, int64; ``parts``: an array of PART's dtype;
    ``end_offset``: the log's.
    """

    offsets: NDArray[np.int64]
    parts: NDArray[Any]
    end_offset: int


_Row = tuple[int, int, int, int, int]


def plan_log(
    sizes: NDArray[np.int64], *, file_bytes: int, part_bytes: int, source_ends: Sequence[int] = ()
) -> LogPlan:
    """Lay records of these sizes out one behind the other, and cut the row into parts of about
    ``part_bytes``.

    ``source_ends`` are the indexes at which the messages of one source end and those of the next
    begin: there a part ends too. Every size fits a file. A pure function: the same sizes give the
    same places and the same parts.

    >>> plan = plan_log(np.array([400, 400, 400], np.int64), file_bytes=1000, part_bytes=10_000)
    >>> plan.offsets.tolist(), [tuple(part) for part in plan.parts.tolist()]
    ([0, 400, 1000], [(0, 2, 0, 800, 200, 0), (2, 3, 1000, 1400, 0, 0)])
    """
    ends = np.cumsum(sizes)
    files: list[tuple[int, int, int]] = []
    first, file_start = 0, 0
    while first < len(sizes):
        packed_start = int(ends[first] - sizes[first])
        room = file_bytes - END_OF_FILE_MIN_BYTES
        behind = int(np.searchsorted(ends, packed_start + room, side="right"))
        files.append((first, behind, file_start - packed_start))
        first, file_start = behind, file_start + file_bytes
    offsets = np.subtract(ends, sizes, out=ends)  # in its place: fresh memory is dear
    rows: list[_Row] = []
    for number, (first, behind, shift) in enumerate(files):
        offsets[first:behind] += shift
        log_end = int(offsets[behind - 1] + sizes[behind - 1])
        blank = (number + 1) * file_bytes - log_end if behind < len(sizes) else 0
        rows += _cut(offsets, first, behind, log_end, blank, part_bytes, source_ends)
    parts = np.empty(len(rows), PART.dtype)
    for name, column in zip(PART.dtype.names or (), zip(*rows, strict=True), strict=False):
        parts[name] = column
    parts["source"] = np.searchsorted(np.array(source_ends, np.int64), parts["first"], "right")
    return LogPlan(offsets, parts, int(parts["log_end"][-1]) if rows else 0)


def _cut(
    offsets: NDArray[np.int64],
    first: int,
    end: int,
    log_end: int,
    blank: int,
    part_bytes: int,
    source_ends: Sequence[int],
) -> list[_Row]:
    """The parts of one file, the last of them with the file's blank."""
    base = int(offsets[first])
    marks = np.arange(base + part_bytes, log_end, part_bytes)
    cuts = np.searchsorted(offsets[first:end], marks, side="left") + first
    wanted = sorted({*cuts.tolist(), *source_ends})
    bounds = [first, *(cut for cut in wanted if first < cut < end), end]
    rows = []
    for begin, stop in pairwise(bounds):
        is_last = stop == end
        part_end = log_end if is_last else int(offsets[stop])
        rows.append((begin, stop, int(offsets[begin]), part_end, blank if is_last else 0))
    return rows
