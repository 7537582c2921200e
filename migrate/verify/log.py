# SPDX-License-Identifier: Apache-2.0
"""Whether the target's log is one row of whole files that a broker reads to its end.

A queue that lists every record says where each begins and ends; the records are then back to back,
but for a blank at the end of each file (docs/FORMAT.md, commit log).
"""

from collections.abc import Iterator

import numpy as np

from message_store.files.segments import SegmentReader
from message_store.format.record_layout import BLANK_RECORD, END_OF_FILE_MIN_BYTES, MAGIC_BLANK
from message_store.reading.consume_queue import QueueEntries
from migrate.verify.report import Problem

COMMIT_LOG = "commit log"
_TAIL_BYTES = 4096


def row_problems(where: str, reader: SegmentReader) -> Iterator[Problem]:
    """Files of one length without a gap, from 0 on: a broker starts on nothing else."""
    for number, segment in enumerate(reader.segments):
        right = number * reader.file_bytes
        if segment.start_offset != right:
            yield Problem(where, f"{segment.path.name}: a file should begin at {right}")
        if segment.length_bytes != reader.file_bytes:
            yield Problem(
                where,
                f"{segment.path.name}: {segment.length_bytes} bytes, not {reader.file_bytes}",
            )


def log_problems(reader: SegmentReader, queue: QueueEntries) -> Iterator[Problem]:
    """Records of the queue's entries without a gap, blanks between files, nothing behind."""
    file_bytes = reader.file_bytes
    if not len(queue) or not file_bytes:
        if len(queue) or any(_dirt(reader, segment.start_offset) for segment in reader.segments):
            yield Problem(COMMIT_LOG, "log and queue disagree on whether there is any record")
        return
    offsets, ends = queue.commit_log_offset, queue.commit_log_offset + queue.size_bytes
    file_ends = (offsets // file_bytes + 1) * file_bytes
    tight = ends + END_OF_FILE_MIN_BYTES > file_ends
    if tight.any():
        at = offsets[tight.argmax()]
        yield Problem(
            COMMIT_LOG, f"no room for a blank behind the record at {at}", int(tight.sum())
        )
    goes_on = offsets[1:] == ends[:-1]
    next_file = ~goes_on & (offsets[1:] == file_ends[:-1])
    gaps = ~goes_on & ~next_file
    if offsets[0] != 0:
        yield Problem(COMMIT_LOG, f"the first record is at {offsets[0]} and not at 0")
    if gaps.any():
        at = ends[:-1][gaps.argmax()]
        yield Problem(COMMIT_LOG, f"no record of the queue begins at {at}", int(gaps.sum()))
    for number in np.flatnonzero(next_file):
        end, left = int(ends[number]), int(file_ends[number] - ends[number])
        if _blank_at(reader, end) != (left, MAGIC_BLANK):
            yield Problem(COMMIT_LOG, f"no blank of {left} bytes at {end}")
    yield from _end_problems(reader, int(ends.max()))


def _blank_at(reader: SegmentReader, offset: int) -> tuple[int, int]:
    found = bytearray(BLANK_RECORD.size)
    reader.read_into(offset, memoryview(found))
    blank = BLANK_RECORD.decode_at(found, 0)
    return blank["size_bytes"], blank["magic"]


def _end_problems(reader: SegmentReader, end: int) -> Iterator[Problem]:
    if end > reader.end_offset:
        yield Problem(COMMIT_LOG, f"the files end at {reader.end_offset}, the queue at {end}")
    elif _dirt(reader, end):
        yield Problem(COMMIT_LOG, f"something stands behind the last record, at {end}")
    later = [segment for segment in reader.segments if segment.start_offset >= end]
    if later:
        yield Problem(COMMIT_LOG, f"{later[0].path.name}: a file behind the last record")


def _dirt(reader: SegmentReader, offset: int) -> bool:
    """Whether anything but zeros follows; a broker would take it for the next record."""
    tail = bytearray(_TAIL_BYTES)
    reader.read_into(offset, memoryview(tail))
    return any(tail)
