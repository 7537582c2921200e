# SPDX-License-Identifier: Apache-2.0
"""Which topics and queues the records of one redelivery go to, numbered inside the kernel.

A small open-addressing table in arrays. Destinations are told apart by a hash and then by every
byte of their names, so two that share a hash never mix. Names lie where they were first seen.
"""

import ctypes
from typing import Any

import attrs
import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.raw_memory import address_of, load_native, store_native
from message_store.kernels.text import equal_bytes, hash_bytes

TOPIC, LENGTH, QUEUE_ID, HASH = range(4)
"""A destination: where its topic's name lies, how long that is, its queue, the hash of both."""
DESTINATION_COLUMNS = 4

TABLE_FULL = -1
_SEED = np.uint64(0xA4093822299F31D0)
_FIRST_ROOM = 256
SLOTS_EACH = 4
"""How many slots there are for each row of the table."""


@inline_kernel
def fact_of(destinations: int, number: int, column: int) -> int:
    """One column of one row of a table of destinations at this address."""
    return load_native(destinations + 8 * (DESTINATION_COLUMNS * number + column))  # type: ignore[no-any-return]


@inline_kernel
def find_or_add(
    topic: int, length: int, queue_id: int, destinations: int, slots: int, slot_count: int,
    used: int,
) -> int:  # fmt: skip
    """The number of a destination, by hash and then by its bytes; or ``TABLE_FULL``.

    The table is given by the addresses of its arrays, ``slot_count`` is the length of ``slots``.
    """
    value = hash_bytes(topic, length, _SEED ^ np.uint64(queue_id))
    hashed = np.int64(value)
    mask = slot_count - 1
    slot = hashed & mask
    number = load_native(slots + 8 * slot)
    while number >= 0:
        if (
            fact_of(destinations, number, HASH) == hashed
            and fact_of(destinations, number, QUEUE_ID) == queue_id
            and fact_of(destinations, number, LENGTH) == length
            and equal_bytes(fact_of(destinations, number, TOPIC), topic, length)
        ):
            return number  # type: ignore[no-any-return]
        slot = (slot + 1) & mask
        number = load_native(slots + 8 * slot)
    number = load_native(used)
    if number == slot_count // SLOTS_EACH:
        return TABLE_FULL
    entry = destinations + 8 * DESTINATION_COLUMNS * number
    store_native(entry + 8 * TOPIC, topic)
    store_native(entry + 8 * LENGTH, length)
    store_native(entry + 8 * QUEUE_ID, queue_id)
    store_native(entry + 8 * HASH, hashed)
    store_native(slots + 8 * slot, number)
    store_native(used, number + 1)
    return number  # type: ignore[no-any-return]


@kernel("void(int64[:, ::1], int64, int64[::1])")
def _index(destinations: Any, count: int, slots: Any) -> None:
    """Enter destinations that are already known into an empty index of a power of two."""
    for number in range(count):
        slot = np.int64(np.uint64(destinations[number, HASH]) & np.uint64(len(slots) - 1))
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number


@kernel("int64(int64, int64, int64, int64[:, ::1], int64[::1], int64[::1])")
def _find_or_add_one(
    topic: int, length: int, queue_id: int, destinations: Any, slots: Any, used: Any
) -> int:
    return find_or_add(
        topic, length, queue_id, destinations.ctypes.data, slots.ctypes.data, len(slots),
        used.ctypes.data,
    )  # fmt: skip


@attrs.frozen
class Destination:
    """A queue of a topic; its name as bytes, because not every name that is asked for is text."""

    topic: bytes
    queue_id: int


class DestinationTable:
    """The table with its arrays: ``rows`` (one a destination), ``slots`` (places by hash), and
    ``used``, how many there are.

    Whoever adds a name by its address keeps that memory; what ``number_of`` adds the table keeps.
    """

    def __init__(self, room: int = _FIRST_ROOM) -> None:
        self.rows: Int64s = np.zeros((room, DESTINATION_COLUMNS), np.int64)
        self.slots: Int64s = np.full(SLOTS_EACH * room, -1, np.int64)
        self.used: Int64s = np.zeros(1, np.int64)
        self._kept: list[np.ndarray[Any, Any]] = []

    def __len__(self) -> int:
        return int(self.used[0])

    def copy(self) -> "DestinationTable":
        """The same destinations by the same numbers, to go on from."""
        other = DestinationTable(0)
        other.rows, other.slots, other.used = self.rows.copy(), self.slots.copy(), self.used.copy()
        other._kept = list(self._kept)
        return other

    def grow(self) -> None:
        """Twice the room, the same contents."""
        self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
        self.slots = np.full(2 * len(self.slots), -1, np.int64)
        _index(self.rows, len(self), self.slots)

    def number_of(self, topic: bytes, queue_id: int) -> int:
        """The number of a destination, which is added where it is new."""
        name = np.frombuffer(topic, np.uint8)
        before = len(self)
        while True:
            number = _find_or_add_one(
                address_of(name), len(name), queue_id, self.rows, self.slots, self.used
            )
            if number != TABLE_FULL:
                break
            self.grow()
        if len(self) > before:
            self._kept.append(name)
        return number

    def destinations(self) -> list[Destination]:
        """All of them, by number."""
        found = []
        for topic, length, queue_id, _ in self.rows[: len(self)].tolist():
            found.append(Destination(ctypes.string_at(topic, length), queue_id))
        return found
