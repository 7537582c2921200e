# SPDX-License-Identifier: Apache-2.0
"""Reads many messages of a queue at once. One pass of a kernel checks units and records; whoever
looks at a record decodes it.
"""

from collections.abc import Collection, Sequence
from operator import attrgetter

import attrs
import numpy as np

from message_store.base.errors import FormatError
from message_store.columns.byte_column import Int64s, int64s
from message_store.format.message import StoredMessage
from message_store.format.queue_unit import MAX_EXT_ADDRESS, QUEUE_UNIT
from message_store.interface.queued_messages import (
    Queued,
    QueuedRecords,
    QueuePart,
)
from message_store.kernels.batch import gather
from message_store.kernels.queued import (
    ELSEWHERE,
    END,
    LOG_OFFSET,
    QUEUE_OFFSET,
    RECORD_FIELDS,
    SIZE,
    STATE,
    UNIT_FIELDS,
    UNREADABLE,
    WHOLE,
    Table,
    follow_units,
)
from message_store.kernels.raw_memory import address_of
from message_store.writing.log import LiveLog
from message_store.writing.queue import LiveQueue

MOST_UNITS = 1_024
"""So many units are read at once."""

_MOST_BYTES = 1 << 20
"""Behind so many bytes of records no further one is read."""


class QueuedReader:
    """Reads from all queues of one log; whoever calls holds the store's lock."""

    def __init__(self, log: LiveLog) -> None:
        self._log = log
        units = np.zeros(MOST_UNITS * QUEUE_UNIT.size, np.uint8)
        self._units = units.data
        self._units_address = address_of(units)
        self._table = np.zeros((MOST_UNITS, UNIT_FIELDS), np.int64)
        self._file_start = 0  # where the log file begins that was read last

    def read(
        self,
        queue: LiveQueue,
        first: int,
        max_units: int,
        tags_codes: Collection[int] | None = None,
    ) -> QueuePart:
        """The messages of at most so many units from a queue offset on that the queue has, or of
        those among them that may have one of these tags codes.
        """
        most = MOST_UNITS if tags_codes is not None else min(max_units, MOST_UNITS)
        count = min(most, queue.max_offset - first)
        if count <= 0:
            return QueuePart((), first, {})
        queue.copy_units(first, self._units[: count * QUEUE_UNIT.size])
        if tags_codes is None:
            return self._messages(np.arange(first, first + count), first + count)
        rows = self._rows_with(tags_codes, count)
        offsets = first + rows[:max_units]
        end = first + count if len(rows) < max_units else int(offsets[-1]) + 1
        return self._messages(offsets, end)

    def _rows_with(self, tags_codes: Collection[int], count: int) -> Int64s:
        """The rows of the units that may have one of these tags codes; the units move to the front.
        An address in the place of a code tells nothing.
        """
        units = np.frombuffer(self._units, QUEUE_UNIT.dtype)[:count]
        codes = units["tags_code"].astype(np.int64)
        rows = np.flatnonzero(np.isin(codes, list(tags_codes)) | (codes <= MAX_EXT_ADDRESS))
        units[: len(rows)] = units[rows]
        return int64s(rows)

    def _messages(self, queue_offsets: Int64s, end: int) -> QueuePart:
        """The messages of the first units, which have these queue offsets."""
        table, count, row, size_bytes = self._table, len(queue_offsets), 0, 0
        table[:count, QUEUE_OFFSET] = queue_offsets
        records: list[memoryview] = []
        while row < count and size_bytes <= _MOST_BYTES:
            stop, address, begin = self._follow(row, count, size_bytes)
            if stop > row:  # else the records go on in another file
                rows = table[row:stop]
                records.append(_copied(address - begin, rows[rows[:, STATE] == WHOLE]))
                row, size_bytes = stop, int(rows[-1, END])
        rows = table[:row]
        fields = rows[rows[:, STATE] == WHOLE, :RECORD_FIELDS]
        messages: Sequence[Queued] = QueuedRecords(b"".join(records), fields)
        others, damaged = self._others(rows[rows[:, STATE] == UNREADABLE])
        if others:
            messages = sorted([*messages, *others], key=attrgetter("queue_offset"))
        return QueuePart(messages, end if row == count else int(queue_offsets[row]), damaged)

    def _others(self, rows: Table) -> tuple[list[Queued], dict[int, FormatError]]:
        """The messages that the kernel could not read. The scalar code decides, and says why."""
        others: list[Queued] = []
        damaged: dict[int, FormatError] = {}
        for at, offset, size in rows[:, [QUEUE_OFFSET, LOG_OFFSET, SIZE]].tolist():
            try:
                others.append(queued_message(self._log, offset, size, at))
            except FormatError as error:
                damaged[at] = error
        return others, damaged

    def _follow(self, row: int, count: int, size_bytes: int) -> tuple[int, int, int]:
        """Fill the table from ``row`` on as far as the records lie in one file, behind so many
        bytes of others; returns the row behind that, the file's address in memory, and where in the
        log it begins.
        """
        log, begin = self._log, self._file_start
        file_bytes, address = self._file_at(begin)
        first, end = max(begin, log.min_offset), min(begin + file_bytes, log.end)
        place, bounds = address + first - begin, (first, end, size_bytes, _MOST_BYTES)
        stop = follow_units(self._units_address, row, count, place, *bounds, self._table)
        if stop < count and self._table[stop, STATE] == ELSEWHERE:
            offset = int(self._table[stop, LOG_OFFSET])
            start = offset - offset % log.file_bytes
            if start == begin or not log.holds(offset, 1):
                self._table[stop, STATE] = UNREADABLE
                stop += 1
            else:
                self._file_start = start
        return stop, address, begin

    def _file_at(self, start: int) -> tuple[int, int]:
        """How long the log file is that begins at ``start``, and its address in memory; 0 where
        there is no such file.
        """
        segments = self._log.segments
        if start not in segments.starts:
            return 0, 0
        return segments.file_bytes, segments.address_of_file(start)


def _copied(address: int, rows: Table) -> memoryview:
    """A copy of these records of a log that lies at an address, one behind another."""
    offsets, sizes = int64s(rows[:, LOG_OFFSET]), int64s(rows[:, SIZE])
    records = np.empty(int(sizes.sum()), np.uint8)
    places = address_of(offsets), address_of(sizes)
    gather(address, *places, len(rows), address_of(records), records.size)
    return records.data


def queued_message(
    log: LiveLog, commit_log_offset: int, size_bytes: int, queue_offset: int
) -> StoredMessage:
    """The message of a queue's entry, decoded, with the entry's queue offset: a flipped bit in the
    record's own would make readers continue at a wrong one. Raises FormatError.
    """
    message = log.record(commit_log_offset, size_bytes)
    if message.queue_offset == queue_offset:
        return message
    return attrs.evolve(message, queue_offset=queue_offset)
