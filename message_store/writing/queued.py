# SPDX-License-Identifier: Apache-2.0
"""Reads many messages of a queue at once. One pass of a kernel checks units and records; whoever
looks at a record decodes it.
"""

from collections.abc import Collection, Sequence

import attrs
import numpy as np

from message_store.base.errors import FormatError
from message_store.columns.byte_column import Int64s, int64s
from message_store.format.message import StoredMessage
from message_store.format.queue_unit import MAX_EXT_ADDRESS, QUEUE_UNIT
from message_store.interface.queued_messages import Queued, QueuePart, queued_record_of
from message_store.kernels.queued import (
    LOG_OFFSET,
    NO_MESSAGE,
    STATE,
    UNIT_FIELDS,
    UNREADABLE,
    WHOLE,
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
        self._table = np.zeros((UNIT_FIELDS, MOST_UNITS), np.int64)
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
            return self._messages(range(first, first + count), first + count)
        rows = self._rows_with(tags_codes, count)
        offsets = (first + rows[:max_units]).tolist()
        end = first + count if len(rows) < max_units else offsets[-1] + 1
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

    def _messages(self, queue_offsets: Sequence[int], end: int) -> QueuePart:
        """The messages of the first units, which have these queue offsets."""
        count = len(queue_offsets)
        messages: list[Queued] = []
        left_bytes = _MOST_BYTES
        damaged: dict[int, FormatError] = {}
        row = 0
        while row < count:
            stop, data, begin = self._follow(row, count)
            columns = zip(queue_offsets[row:stop], *self._table[:, row:stop].tolist(), strict=True)
            for at, state, offset, size, identity, body, body_end, properties in columns:
                if state == WHOLE:
                    offset -= begin
                    record = bytes(data[offset : offset + size])
                    fields = (at, identity, record, body, body_end, properties)
                    messages.append(queued_record_of(fields))
                    left_bytes -= size
                elif state != NO_MESSAGE:
                    try:  # the scalar code decides, and says why
                        messages.append(queued_message(self._log, offset, size, at))
                    except FormatError as error:
                        damaged[at] = error
                if left_bytes < 0:
                    return QueuePart(messages, at + 1, damaged)
            row = stop
        return QueuePart(messages, end, damaged)

    def _follow(self, row: int, count: int) -> tuple[int, memoryview, int]:
        """Fill the table from ``row`` on as far as the records lie in one file; returns the row
        behind that, the file's bytes, and where in the log it begins.
        """
        log, begin = self._log, self._file_start
        data, address = self._file_at(begin)
        first, end = max(begin, log.min_offset), min(begin + len(data), log.end)
        place = address + first - begin
        stop = follow_units(self._units_address, row, count, place, first, end, self._table)
        if stop < count:
            offset = int(self._table[LOG_OFFSET, stop])
            start = offset - offset % log.file_bytes
            if start == begin or not log.holds(offset, 1):
                self._table[STATE, stop] = UNREADABLE
                stop += 1
            else:
                self._file_start = start
        return stop, data, begin

    def _file_at(self, start: int) -> tuple[memoryview, int]:
        """The bytes of the log file that begins at ``start``, and their address; none where there
        is no such file.
        """
        segments = self._log.segments
        if start not in segments.starts:
            return memoryview(b""), 0
        return segments.view(start, segments.file_bytes), segments.address_of_file(start)


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
