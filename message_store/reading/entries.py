# SPDX-License-Identifier: Apache-2.0
"""Where the entries of a DLedger log end, and which is the last one.

A new leader cuts what the old one had alone off the ends of the others' logs, but not to zeros. So
whole records may lie behind the end. They are told by their heads: an index has no gap, and a term
never falls. RocketMQ: DLedgerMmapFileStore#recover (dledger 0.3).
"""

import attrs
import numpy as np

from message_store.files.segments import SegmentReader
from message_store.format.members.dledger_entry import ENTRY_HEAD
from message_store.kernels.entries import (
    CHAIN_FIELDS,
    INDEX,
    NEXT_AT,
    TERM,
    WHY,
    find_entry_head,
    follow_entries,
)
from message_store.kernels.log import FILE_ENDS, NEEDS_MORE
from message_store.kernels.raw_memory import address_of

_WINDOW_BYTES = 1 << 20
_NONE_YET = -1


@attrs.frozen
class LastEntry:
    """The last entry of a DLedger log, and where it ends. ``term`` and ``index`` are -1 in a log
    without entries.
    """

    term: int
    index: int
    end_offset: int


def record_offset(reader: SegmentReader, offset: int) -> int:
    """Where the record begins that a walk finds at an offset: behind the head of an entry, where
    one is there.
    """
    window = np.zeros(ENTRY_HEAD.size, np.uint8)
    if offset < reader.entries_from or reader.read_into(offset, window.data) < len(window):
        return offset
    chain = np.full(CHAIN_FIELDS, _NONE_YET, np.int64)
    is_head = find_entry_head(address_of(window), len(window), offset, chain) == 0
    return offset + ENTRY_HEAD.size if is_head else offset


def find_last_entry(reader: SegmentReader, start: int, *, known_end: int = 0) -> LastEntry:
    """The last entry of the file that begins at ``start``, the last one with entries.

    The chain of entries ends where no next one follows. Below ``known_end``, where records are
    known to follow, damage is stepped over. Reads the heads of that file.
    """
    segment = reader.segment_at(start)
    file_end = start if segment is None else start + segment.length_bytes
    window = np.zeros(_WINDOW_BYTES, np.uint8)
    chain = np.full(CHAIN_FIELDS, _NONE_YET, np.int64)
    offset = end = start
    while offset < file_end:
        length = reader.read_into(offset, window[: file_end - offset].data)
        follow_entries(address_of(window), length, offset, file_end - offset, chain)
        offset += int(chain[NEXT_AT])
        end = offset if chain[NEXT_AT] else end
        if chain[WHY] == NEEDS_MORE and chain[NEXT_AT]:
            continue
        if chain[WHY] == FILE_ENDS or offset >= known_end:
            break
        offset = _next_head(reader, offset + 1, file_end, window, chain)
    return LastEntry(term=int(chain[TERM]), index=int(chain[INDEX]), end_offset=end)


def _next_head(
    reader: SegmentReader,
    offset: int,
    file_end: int,
    window: np.ndarray[tuple[int], np.dtype[np.uint8]],
    chain: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> int:
    """Where the chain goes on behind damage; the file's end where it does not."""
    while file_end - offset >= ENTRY_HEAD.size:
        length = reader.read_into(offset, window[: file_end - offset].data)
        place = find_entry_head(address_of(window), length, offset, chain)
        if place >= 0:
            return offset + place
        if length < ENTRY_HEAD.size:
            break
        offset += length - ENTRY_HEAD.size + 1
    return file_end
