# SPDX-License-Identifier: Apache-2.0
"""Where the entries of a DLedger log end, and which is the last one.

A new leader cuts what the old one had alone off the ends of the others' logs, but not to zeros. So
whole records may lie behind the end. They are told by their heads: an index has no gap, and a term
never falls. RocketMQ: DLedgerMmapFileStore#recover (dledger 0.3).
"""

from typing import Any

import attrs
import numpy as np

from message_store.files.segments import SegmentReader
from message_store.format.members.dledger_entry import ENTRY_BLANK_MAGIC, ENTRY_HEAD
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.log import (
    BLANK_BYTES,
    ENTRY_HEAD_BYTES,
    FILE_ENDS,
    NEEDS_MORE,
    NO_RECORD,
    RECORD,
    entry_head_bytes,
)
from message_store.kernels.raw_memory import address_of, load_i32, load_i64

INDEX, TERM, NEXT_AT, WHY = range(4)
"""What is known of a chain: index and term of its last entry, -1 for none yet; where the next entry
begins in the buffer, or behind it; and why the kernel stopped.
"""
CHAIN_FIELDS = 4

_AT_ENTRY_BYTES = ENTRY_HEAD.offset_of("entry_bytes")
_AT_INDEX = ENTRY_HEAD.offset_of("entry_index")
_AT_TERM = ENTRY_HEAD.offset_of("term")


@inline_kernel
def _follows(head: int, chain: Any) -> bool:
    """Whether an entry can stand behind the last one of a chain, others between them or not."""
    return bool(
        load_i64(head + _AT_INDEX) > chain[INDEX] and load_i64(head + _AT_TERM) >= chain[TERM]
    )


@inline_kernel
def _kind_at(head: int, room: int, file_room: int, log_offset: int, chain: Any) -> int:
    """The kind of bytes at an address, as ``kernels.log`` has kinds: RECORD is the next entry."""
    if file_room < BLANK_BYTES:
        return FILE_ENDS
    if room < BLANK_BYTES:
        return NEEDS_MORE
    if load_i32(head) == ENTRY_BLANK_MAGIC and load_i32(head + 4) == file_room:
        return FILE_ENDS
    if room < ENTRY_HEAD_BYTES:
        return NEEDS_MORE if file_room > room else NO_RECORD
    if entry_head_bytes(head, room, log_offset) == 0 or not _follows(head, chain):
        return NO_RECORD
    is_next = chain[INDEX] < 0 or load_i64(head + _AT_INDEX) == chain[INDEX] + 1
    return RECORD if is_next and load_i32(head + _AT_ENTRY_BYTES) <= file_room else NO_RECORD


@kernel("void(int64, int64, int64, int64, int64[::1])")
def follow_entries(buffer: int, length: int, base: int, file_room: int, chain: Any) -> None:
    """Follow the entries of a log from the start of a buffer, which holds ``length`` bytes from
    ``base`` on, of ``file_room`` that the file has from there. ``chain`` is taken along.
    """
    place = 0
    while True:
        head = buffer + place
        why = _kind_at(head, length - place, file_room - place, base + place, chain)
        if why != RECORD:
            break
        chain[INDEX], chain[TERM] = load_i64(head + _AT_INDEX), load_i64(head + _AT_TERM)
        place += load_i32(head + _AT_ENTRY_BYTES)
    chain[NEXT_AT], chain[WHY] = place, why


@kernel("int64(int64, int64, int64, int64[::1])")
def find_entry_head(buffer: int, length: int, base: int, chain: Any) -> int:
    """The first position in a buffer with a head that may follow a chain's last entry; -1 for none.
    Its index is then the next one of the chain.
    """
    for place in range(length - ENTRY_HEAD_BYTES + 1):
        head = buffer + place
        if entry_head_bytes(head, length - place, base + place) and _follows(head, chain):
            chain[INDEX] = load_i64(head + _AT_INDEX) - 1
            return place
    return -1


_WINDOW_BYTES = 1 << 20
_NONE_YET = -1


@attrs.frozen
class LastEntry:
    """The last entry of a DLedger log, and the log's end; ``term`` and ``index`` -1 without one."""

    term: int
    index: int
    end_offset: int


def record_offset(reader: SegmentReader, offset: int) -> int:
    """Where the record begins that a walk finds at an offset: behind the head of an entry."""
    window = np.zeros(ENTRY_HEAD.size, np.uint8)
    if offset < reader.entries_from or reader.read_into(offset, window.data) < len(window):
        return offset
    chain = np.full(CHAIN_FIELDS, _NONE_YET, np.int64)
    is_head = find_entry_head(address_of(window), len(window), offset, chain) == 0
    return offset + ENTRY_HEAD.size if is_head else offset


def find_last_entry(reader: SegmentReader, start: int, *, known_end: int = 0) -> LastEntry:
    """The last entry of the file that begins at ``start``, the last one with entries.

    The chain of entries ends where no next one follows. ``known_end`` is where the last record ends
    that a consume queue knows, or 0. Below it damage is stepped over. The chain is followed from
    shortly before it: queues get what the group has committed, and no leader cuts that off.
    """
    segment = reader.segment_at(start)
    file_end = start if segment is None else start + segment.length_bytes
    window = np.zeros(_WINDOW_BYTES, np.uint8)
    chain = np.full(CHAIN_FIELDS, _NONE_YET, np.int64)
    offset = end = start
    if start < known_end - _WINDOW_BYTES:
        near = _next_head(reader, known_end - _WINDOW_BYTES, known_end, window, chain)
        offset = near if near < known_end else start
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
