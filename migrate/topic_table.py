# SPDX-License-Identifier: Apache-2.0
"""Which real topics a run of records has, how many of each, and their highest queue: counted inside
the kernel.

A small open-addressing table in arrays, so that the kernel that rewrites records finds a topic's
number without coming back to Python; names are checked and hashed once, when a topic is first seen.
"""

from typing import Any

import attrs
import numpy as np

from message_store.kernel_cache import inline_kernel
from message_store.raw_memory import address_of, copy_bytes
from message_store.text_kernels import equal_bytes, hash_bytes, java_hash_utf8

Ints = np.ndarray[Any, np.dtype[np.int64]]

TABLE_FULL = -1
_START, _LENGTH, _JAVA_HASH, _COUNT, _MAX_QUEUE = range(5)
_COLUMNS = 5
_USED_TOPICS, _USED_BYTES = range(2)


@attrs.frozen
class TopicCount:
    """One real topic in a run of records."""

    topic: bytes
    count: int
    max_queue_id: int


class TopicTable:
    """The table with its arrays: ``index`` (hash places), ``rows`` (one a topic), ``text`` (names),
    ``used``.
    """

    def __init__(self, topics: int = 1024) -> None:
        self.index: Ints = np.full(4 * topics, -1, np.int64)
        self.rows: Ints = np.zeros((topics, _COLUMNS), np.int64)
        self.text = np.zeros(topics * 256, np.uint8)
        self.used: Ints = np.zeros(2, np.int64)

    def grow(self) -> None:
        """Twice the room, the same contents."""
        bigger = TopicTable(2 * len(self.rows))
        for number, entry in enumerate(self.counts()):
            name = np.frombuffer(entry.topic, np.uint8)
            find_or_add(
                address_of(name), len(name), bigger.index, bigger.rows, bigger.text, bigger.used
            )
            bigger.rows[number, _COUNT:] = self.rows[number, _COUNT:]
        self.index, self.rows, self.text, self.used = (
            bigger.index,
            bigger.rows,
            bigger.text,
            bigger.used,
        )

    def add(self, topic: bytes, queue_id: int) -> None:
        """Count one record that the kernel left to the scalar code."""
        name = np.frombuffer(topic, np.uint8)
        number = find_or_add(
            address_of(name), len(name), self.index, self.rows, self.text, self.used
        )
        if number == TABLE_FULL:
            self.grow()
            self.add(topic, queue_id)
            return
        self.rows[number, _COUNT] += 1
        self.rows[number, _MAX_QUEUE] = max(self.rows[number, _MAX_QUEUE], queue_id)

    def counts(self) -> list[TopicCount]:
        """Every topic in the order of first sight; some may have a count of 0."""
        return [
            TopicCount(self.text[start : start + length].tobytes(), count, max_queue)
            for start, length, _hash, count, max_queue in self.rows[
                : self.used[_USED_TOPICS]
            ].tolist()
        ]


@inline_kernel
def find_or_add(address: int, length: int, index: Ints, rows: Ints, text: Any, used: Ints) -> int:
    """The number of a topic name, new names added; ``TABLE_FULL`` when there is no room for one
    more.
    """
    mask = len(index) - 1
    place = np.int64(hash_bytes(address, length, np.uint64(7)) & np.uint64(mask))
    while True:
        number = index[place]
        if number < 0:
            break
        same = rows[number, _LENGTH] == length
        if same and equal_bytes(address, text.ctypes.data + rows[number, _START], length):
            return int(number)
        place = (place + 1) & mask
    number = used[_USED_TOPICS]
    if number >= len(rows) or used[_USED_BYTES] + length > len(text):
        return TABLE_FULL
    start = used[_USED_BYTES]
    copy_bytes(text.ctypes.data + start, address, length)
    rows[number, _START] = start
    rows[number, _LENGTH] = length
    rows[number, _JAVA_HASH] = java_hash_utf8(address, length)
    rows[number, _COUNT] = 0
    rows[number, _MAX_QUEUE] = 0
    used[_USED_BYTES] = start + length
    used[_USED_TOPICS] = number + 1
    index[place] = number
    return int(number)


@inline_kernel
def count_record(number: int, queue_id: int, rows: Ints) -> int:
    """Count one record of topic ``number``; returns the topic's Java hash."""
    rows[number, _COUNT] += 1
    rows[number, _MAX_QUEUE] = max(rows[number, _MAX_QUEUE], queue_id)
    return int(rows[number, _JAVA_HASH])
