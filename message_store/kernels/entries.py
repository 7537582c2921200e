# SPDX-License-Identifier: Apache-2.0
"""Kernels that follow the entries of a DLedger log from head to head, without their records."""

from typing import Any

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
from message_store.kernels.raw_memory import load_i32, load_i64

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
