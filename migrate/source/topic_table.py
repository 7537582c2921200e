# SPDX-License-Identifier: Apache-2.0
"""The real topics of a run of records, with their counts and highest queues, filled inside a
kernel.

It is an open-addressing hash table in arrays, so the kernel finds a topic's number without calling
Python. A name is checked and hashed once, when the topic is first seen.
"""

import attrs
import numpy as np

from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.raw_memory import address_of, copy_bytes, load_native, store_native
from message_store.kernels.text import NOT_UTF8, equal_bytes, hash_bytes, java_hash_utf8
from migrate.source.level_record import is_plain_topic

TABLE_FULL = -1
NOT_PLAIN = -2

# The head of a table: addresses and lengths of its arrays, and how much of them is used.
_INDEX, _INDEX_MASK, _ROWS, _ROW_COUNT, _TEXT, _TEXT_BYTES, _USED_TOPICS, _USED_BYTES = range(8)
_HEAD_FIELDS = 8
# A row.
_START, _LENGTH, _JAVA_HASH, _COUNT, _MAX_QUEUE = range(5)
_COLUMNS = 5
_ROW_BYTES = 8 * _COLUMNS


@attrs.frozen
class TopicCount:
    """One real topic in a run of records."""

    topic: bytes
    count: int
    max_queue_id: int


class TopicTable:
    """The table with its arrays: hash index, rows (one a topic), names. Kernels need only the
    ``address`` of its head.
    """

    def __init__(self, topics: int = 1024) -> None:
        self._index = np.full(4 * topics, -1, np.int64)
        self._rows = np.zeros((topics, _COLUMNS), np.int64)
        self._text = np.zeros(topics * 256, np.uint8)
        self._head = np.zeros(_HEAD_FIELDS, np.int64)
        self._head[:_USED_TOPICS] = (
            *(address_of(self._index), len(self._index) - 1),
            *(address_of(self._rows), topics),
            *(address_of(self._text), len(self._text)),
        )

    @property
    def address(self) -> int:
        """Of the head; the table is kept while it is used."""
        return address_of(self._head)

    def grow(self) -> None:
        """Twice the room, the same contents."""
        bigger = TopicTable(2 * len(self._rows))
        for number, entry in enumerate(self.counts()):
            name = np.frombuffer(entry.topic, np.uint8)
            add_topic(bigger.address, address_of(name), len(name))
            bigger._rows[number, _COUNT:] = self._rows[number, _COUNT:]
        self._index, self._rows, self._text = bigger._index, bigger._rows, bigger._text
        self._head = bigger._head

    def add(self, topic: bytes, queue_id: int) -> None:
        """Count one record that the scalar code rewrote."""
        name = np.frombuffer(topic, np.uint8)
        number = add_topic(self.address, address_of(name), len(name))
        if number == TABLE_FULL:
            self.grow()
            self.add(topic, queue_id)
            return
        self._rows[number, _COUNT] += 1
        self._rows[number, _MAX_QUEUE] = max(self._rows[number, _MAX_QUEUE], queue_id)

    def counts(self) -> list[TopicCount]:
        """Every topic in the order in which it was first seen; a count may be 0."""
        return [
            TopicCount(self._text[start : start + length].tobytes(), count, max_queue)
            for start, length, _hash, count, max_queue in self._rows[
                : self._head[_USED_TOPICS]
            ].tolist()
        ]


@inline_kernel
def _field(table: int, which: int) -> int:
    return int(load_native(table + 8 * which))


@inline_kernel
def _row_of(table: int, number: int) -> int:
    return _field(table, _ROWS) + number * _ROW_BYTES


@inline_kernel
def _entry_of(table: int, name: int, length: int) -> int:
    """The address of a topic's entry in the index, or of the free one that it would take."""
    index, mask = _field(table, _INDEX), _field(table, _INDEX_MASK)
    text = _field(table, _TEXT)
    bucket = np.int64(hash_bytes(name, length, np.uint64(7)) & np.uint64(mask))
    while True:
        number = load_native(index + 8 * bucket)
        if number < 0:
            return int(index + 8 * bucket)
        row = _row_of(table, number)
        same = load_native(row + 8 * _LENGTH) == length
        if same and equal_bytes(name, text + load_native(row + 8 * _START), length):
            return int(index + 8 * bucket)
        bucket = (bucket + 1) & mask


@kernel("int64(int64, int64, int64)")
def add_topic(table: int, name: int, length: int) -> int:
    """The number of a topic name, new names added. ``TABLE_FULL`` when there is no room."""
    entry = _entry_of(table, name, length)
    number = load_native(entry)
    if number >= 0:
        return int(number)
    number, start = _field(table, _USED_TOPICS), _field(table, _USED_BYTES)
    if number >= _field(table, _ROW_COUNT) or start + length > _field(table, _TEXT_BYTES):
        return TABLE_FULL
    copy_bytes(_field(table, _TEXT) + start, name, length)
    row = _row_of(table, number)
    store_native(row + 8 * _START, start)
    store_native(row + 8 * _LENGTH, length)
    store_native(row + 8 * _JAVA_HASH, java_hash_utf8(name, length))
    store_native(row + 8 * _COUNT, 0)
    store_native(row + 8 * _MAX_QUEUE, 0)
    store_native(table + 8 * _USED_BYTES, start + length)
    store_native(table + 8 * _USED_TOPICS, number + 1)
    store_native(entry, number)
    return int(number)


@inline_kernel
def add_plain_topic(table: int, name: int, length: int) -> int:
    """As ``add_topic``; ``NOT_PLAIN`` for a new name that needs a second look or is not text."""
    number = load_native(_entry_of(table, name, length))
    if number < 0:
        return int(add_topic(table, name, length)) if is_plain_topic(name, length) else NOT_PLAIN
    is_text = load_native(_row_of(table, number) + 8 * _JAVA_HASH) != NOT_UTF8
    return int(number) if is_text else NOT_PLAIN


@inline_kernel
def count_record(table: int, number: int, queue_id: int) -> int:
    """Count one record of topic ``number``; returns the topic's Java hash."""
    row = _row_of(table, number)
    store_native(row + 8 * _COUNT, load_native(row + 8 * _COUNT) + 1)
    if queue_id > load_native(row + 8 * _MAX_QUEUE):
        store_native(row + 8 * _MAX_QUEUE, queue_id)
    return int(load_native(row + 8 * _JAVA_HASH))
