# SPDX-License-Identifier: Apache-2.0
"""Finds the copies in a log (``copies``). A kernel looks for what may be one, so that few records
have to be decoded.
"""

from contextlib import suppress
from typing import Any

import numpy as np

from message_store.base.errors import FormatError
from message_store.columns.byte_column import Int64s
from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.format.record_layout import MAGIC_BLANK
from message_store.kernels.cache import kernel
from message_store.kernels.log import (
    AT_MAGIC,
    AT_SIZE,
    BLANK_BYTES,
    PARTS,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    TOPIC_AT,
    TOPIC_BYTES,
    find_parts,
)
from message_store.kernels.properties import find
from message_store.kernels.raw_memory import load_i32
from message_store.kernels.text import is_text
from message_store.redelivery.lineage import is_head
from message_store.writing.log import LiveLog
from timer_wheel.reading.copies import is_copy, is_put_again

_TIMER_TOPIC = np.frombuffer(names.TIMER_TOPIC.encode(), np.uint8)
_DEQUEUE = np.frombuffer(names.TIMER_DEQUEUE_MS.encode(), np.uint8)
_LABEL = np.frombuffer(names.TIMER_ROLL_LABEL.encode(), np.uint8)
_OUT = np.frombuffer(names.TIMER_OUT_MS.encode(), np.uint8)


@kernel("int64(int64, int64, int64, int64[:, ::1])")
def find_candidates(buffer: int, length: int, base: int, found: Any) -> int:
    """Find the records of a log file, among its bytes from ``base`` on, that have a property which
    a copy has; returns how many there are.

    ``found`` gets the offset and the size of as many as it has room for. Damage is stepped over.
    """
    parts = np.empty(PARTS, np.int64)
    place, count = 0, 0
    while length - place >= BLANK_BYTES:
        record = buffer + place
        size = load_i32(record + AT_SIZE)
        is_record = is_head(record, length - place, base + place)
        if not (is_record and find_parts(record, size, parts.ctypes.data)):
            if load_i32(record + AT_MAGIC) == MAGIC_BLANK:
                break
            place += 1
            continue
        text = record + parts[PROPERTIES_AT]
        end = text + parts[PROPERTIES_BYTES]
        may_be = find(text, end, _DEQUEUE.ctypes.data, len(_DEQUEUE))[1] > 0
        if is_text(record + parts[TOPIC_AT], parts[TOPIC_BYTES], _TIMER_TOPIC):
            may_be = may_be or find(text, end, _LABEL.ctypes.data, len(_LABEL))[1] > 0
        else:
            may_be = may_be or find(text, end, _OUT.ctypes.data, len(_OUT))[1] > 0
        if may_be:
            if count < found.shape[1]:
                found[0, count], found[1, count] = base + place, size
            count += 1
        place += size
    return count


def copies_in_log(log: LiveLog, begin: int, until: int) -> list[StoredMessage]:
    """The copies in the log between two places where records begin, of whoever stored them."""
    copies = []
    for start in log.segments.starts:
        place = max(start, begin)
        length = min(start + log.file_bytes, log.end, until) - place
        if length <= 0:
            continue
        address = log.segments.address_of_file(start) + place - start
        nothing: Int64s = np.empty((2, 0), np.int64)
        found = np.empty((2, find_candidates(address, length, place, nothing)), np.int64)
        find_candidates(address, length, place, found)
        for offset, size_bytes in found.T.tolist():
            with suppress(FormatError):  # a damaged one tells of nothing
                copies.append(log.record(offset, size_bytes))
    return [each for each in copies if is_copy(each) or is_put_again(each)]
