# SPDX-License-Identifier: Apache-2.0
"""Finds the copies in a log (``copies``): a kernel chooses the few records to decode."""

from contextlib import suppress
from typing import Any

import numpy as np

from message_store.base.errors import FormatError
from message_store.columns.byte_column import Int64s
from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.log import (
    AT_SIZE,
    PARTS,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    find_parts,
    next_head,
)
from message_store.kernels.properties import find_value
from message_store.kernels.raw_memory import load_i32
from message_store.writing.log import LiveLog
from timer_wheel.reading.copies import is_copy, is_put_again

_REAL_TOPIC = np.frombuffer(names.REAL_TOPIC.encode(), np.uint8)
_DEQUEUE = np.frombuffer(names.TIMER_DEQUEUE_MS.encode(), np.uint8)
_LABEL = np.frombuffer(names.TIMER_ROLL_LABEL.encode(), np.uint8)
_OUT = np.frombuffer(names.TIMER_OUT_MS.encode(), np.uint8)


@inline_kernel
def _has(text: int, end: int, name: Any) -> bool:
    """Whether properties have one of this name, with a value."""
    return bool(find_value(text, end, name.ctypes.data, len(name))[1] > 0)


@kernel("int64(int64, int64, int64, int64[:, ::1])")
def find_candidates(buffer: int, length: int, base: int, found: Any) -> int:
    """Find the records of a log file, among its bytes from ``base`` on, that have a property which
    a copy has; returns how many there are.

    ``found`` gets the offset and the size of as many as it has room for. Damage is stepped over.
    """
    parts = np.empty(PARTS, np.int64)
    count, place = 0, next_head(buffer, length, base, 0)
    while place >= 0:
        record = buffer + place
        size = load_i32(record + AT_SIZE)
        if not find_parts(record, size, parts.ctypes.data):
            place = next_head(buffer, length, base, place + 1)
            continue
        text = record + parts[PROPERTIES_AT]
        end = text + parts[PROPERTIES_BYTES]
        may_be = _has(text, end, _DEQUEUE) or _has(text, end, _LABEL)
        if may_be or (_has(text, end, _OUT) and not _has(text, end, _REAL_TOPIC)):
            if count < found.shape[1]:
                found[0, count], found[1, count] = base + place, size
            count += 1
        place = next_head(buffer, length, base, place + size)
    return count


def copies_in_log(log: LiveLog, begin: int, until: int) -> list[StoredMessage]:
    """The copies in the log between two places where records begin, of whoever stored them."""
    copies = []
    for address, length, place in log.stretches(begin, until):
        nothing: Int64s = np.empty((2, 0), np.int64)
        found = np.empty((2, find_candidates(address, length, place, nothing)), np.int64)
        find_candidates(address, length, place, found)
        for offset, size_bytes in found.T.tolist():
            with suppress(FormatError):  # a damaged one tells of nothing
                copies.append(log.record(offset, size_bytes))
    return [each for each in copies if is_copy(each) or is_put_again(each)]
