# SPDX-License-Identifier: Apache-2.0
"""Whether a part that has a receipt lies where its writer put it.

A receipt may outlive a loss of power that the pages of its part did not: what is passed over
because of a receipt is read again first.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

from message_store.base.errors import FormatError, SourceError
from message_store.files.segments import SegmentReader
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import BLANK_RECORD, MAGIC_BLANK
from migrate.plan.stored_plan import StoredPlan
from migrate.settings import HIERARCHY
from migrate.write.index_part import tables_crc
from migrate.write.staging import Staging
from timer_wheel.format.timer_log import TIMER_UNIT, blank_bytes, unit_position, units_per_file

_READ_BYTES = 4 << 20


def is_written(
    plan: StoredPlan, number: int, *, log_crc: int, units_crc: int, index_crc: int
) -> bool:
    """Whether the bytes of a part, staged or already published, have these CRCs."""
    part, settings, staging = plan.parts[number], plan.settings, plan.staging
    first, end = int(part["first"]), int(part["end"])
    log_begin, log_end = int(part["log_offset"]), int(part["log_end"])
    store = staging.store
    try:
        with _row(staging, store.commit_log, settings.commit_log_file_bytes) as log:
            is_whole = _crc(log, log_begin, log_end, 0) == log_crc
            if blank := int(part["blank_bytes"]):
                is_whole &= _holds(log, log_end, commit_log_blank(blank))
        with _row(staging, store.timer_queue(), settings.queue_file_bytes) as queue:
            crc = _crc(queue, first * QUEUE_UNIT.size, end * QUEUE_UNIT.size, 0)
        if plan.engine == HIERARCHY:
            return is_whole and crc == units_crc and tables_crc(staging, number) == index_crc
        file_bytes = settings.timer_log_file_bytes
        with _row(staging, store.timer_log, file_bytes) as timer_log:
            for begin, stop, is_full in timer_pieces(plan, first, end):
                position = unit_position(begin, file_bytes)
                piece_end = position + (stop - begin) * TIMER_UNIT.size
                crc = _crc(timer_log, position, piece_end, crc)
                is_whole &= not is_full or _holds(timer_log, piece_end, blank_bytes(file_bytes))
    except (FormatError, SourceError):
        return False
    return is_whole and crc == units_crc


def timer_pieces(plan: StoredPlan, first: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """A part's timer units file by file: first, end, and whether a blank follows because more units
    do.
    """
    in_file = units_per_file(plan.settings.timer_log_file_bytes)
    begin = first
    while begin < end:
        file_end = (begin // in_file + 1) * in_file
        stop = min(end, file_end)
        yield begin, stop, stop == file_end and stop < plan.count
        begin = stop


def commit_log_blank(size_bytes: int) -> bytes:
    """What stands behind the last record of a log file that others follow."""
    return BLANK_RECORD.encode(size_bytes=size_bytes, magic=MAGIC_BLANK)


def _row(staging: Staging, staged: Path, file_bytes: int) -> SegmentReader:
    published = staging.target.path / staged.relative_to(staging.store.path)
    return SegmentReader(staged if staged.is_dir() else published, file_bytes)


def _crc(row: SegmentReader, begin: int, end: int, crc: int) -> int:
    for offset in range(begin, end, _READ_BYTES):
        crc = zlib.crc32(row.read_at(offset, min(_READ_BYTES, end - offset)), crc)
    return crc


def _holds(row: SegmentReader, offset: int, content: bytes) -> bool:
    return row.read_at(offset, len(content)) == content
