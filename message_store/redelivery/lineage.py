# SPDX-License-Identifier: Apache-2.0
"""Lineage: which message a record takes on, and which records are done.

A record that is delivered or rolled here names the first record of its message. Its prepared
transaction offset is the complement of where that lies in the log. The name is part of the record,
so neither a kill nor a loss of power parts the two. The rule of recovery follows. A pending record
is done if and only if a later record of the log names the first one of its message. The
records of a message are done one after the other, so the newest name decides.

A broker writes 0 there, or the offset of a half message. Neither is negative, and such a record
names nobody. Nothing in RocketMQ reads the field of such a record (4.9.7 to 5.5.0).
"""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.columns.byte_column import Int64s
from message_store.files.segments import SegmentReader
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message import StoredMessage
from message_store.kernels.cache import inline_kernel, kernel
from message_store.kernels.log import (
    AT_SIZE,
    WALKED,
    next_head,
    prepared_offset_at,
    store_time_at,
    walk_window,
)
from message_store.kernels.raw_memory import load_i32
from message_store.reading.commit_log import LogWalk
from message_store.writing.log import LiveLog

PLACE, FIRST, STORE_MS = range(3)
"""Rows of ``find_names``: where a record lies, which first record it names, when it was stored."""
NAME_ROWS = 3


def first_offset(message: StoredMessage) -> int:
    """Where a message's first record lies: the one that this record names, else itself."""
    told = ~message.prepared_transaction_offset
    return told if 0 <= told < message.commit_log_offset else message.commit_log_offset


def first_offsets(prepared_offsets: Int64s, offsets: Int64s) -> Int64s:
    """The same for many records: their prepared transaction offsets, and where they lie."""
    told = ~prepared_offsets
    return np.where((told >= 0) & (told < offsets), told, offsets)


@inline_kernel
def first_offset_at(record: int, offset: int) -> int:
    """The same for a whole record in memory, which lies at this offset of the log."""
    told = ~prepared_offset_at(record)
    return told if 0 <= told < offset else offset


@kernel("int64(int64, int64, int64, int64[:, ::1])")
def find_names(buffer: int, length: int, base: int, names: Any) -> int:
    """Find the records of a log file that name another, among its bytes from ``base`` on, where a
    record begins; returns how many there are.

    ``names`` gets as many as it has room for, in the rows PLACE, FIRST, STORE_MS. Damage is stepped
    over: a name behind it counts as well.
    """
    count, place = 0, next_head(buffer, length, base, 0)
    while place >= 0:
        record, offset = buffer + place, base + place
        first = first_offset_at(record, offset)
        if first < offset:
            if count < names.shape[1]:
                names[PLACE, count] = offset
                names[FIRST, count] = first
                names[STORE_MS, count] = store_time_at(record)
            count += 1
        place = next_head(buffer, length, base, place + load_i32(record + AT_SIZE))
    return count


@attrs.frozen(eq=False)
class Names:
    """Records of a part of the log that name another, in its order: where each lies (``places``),
    which first record it names (``firsts``), and when it was stored (``store_ms``).
    """

    places: Int64s
    firsts: Int64s
    store_ms: Int64s
    _newest: tuple[Int64s, Int64s] = attrs.field(init=False)

    @_newest.default
    def _sorted(self) -> tuple[Int64s, Int64s]:
        """The named first records in order, and where the last record lies that names each."""
        firsts, at = np.unique(self.firsts[::-1], return_index=True)
        return firsts, self.places[::-1][at]

    @classmethod
    def since(cls, log: LiveLog, begin: int, end: int = LONG_MAX) -> "Names":
        """All in the log from a place on where a record begins; up to another one."""
        parts = [cls.table_of(*stretch) for stretch in log.stretches(begin, end)]
        return cls(*np.concatenate([np.empty((NAME_ROWS, 0), np.int64), *parts], axis=1))

    @classmethod
    def read(cls, log: SegmentReader, begin: int, end: int, *, known_end: int = 0) -> "Names":
        """The same of a log that is looked at; damage below ``known_end`` is stepped over."""
        parts, walked = [np.empty((NAME_ROWS, 0), np.int64)], np.zeros(WALKED, np.int64)

        def visit(address: int, length: int, base: int, room: int) -> tuple[int, int]:
            walk_window(address, length, base, room, walked)
            parts.append(cls.table_of(address, int(walked[1]), base))
            return int(walked[1]), int(walked[2])

        LogWalk(log, known_end=known_end).run(begin, visit, stop_at=end)
        return cls(*np.concatenate(parts, axis=1))

    @staticmethod
    def table_of(address: int, length: int, place: int) -> Int64s:
        """Those of one stretch of the log, as ``find_names`` has them."""
        nothing: Int64s = np.empty((NAME_ROWS, 0), np.int64)
        found = np.empty((NAME_ROWS, find_names(address, length, place, nothing)), np.int64)
        if found.size:
            find_names(address, length, place, found)
        return found

    def __len__(self) -> int:
        return len(self.places)

    def before(self, offset: int) -> "Names":
        """Those that lie before a place in the log."""
        is_before = self.places < offset
        columns = (self.places, self.firsts, self.store_ms)
        return self if is_before.all() else Names(*(column[is_before] for column in columns))

    @property
    def newest_ms(self) -> int:
        """When the newest of them was stored; 0 where there is none."""
        return int(self.store_ms.max(initial=0))

    def are_done(self, offsets: Int64s, firsts: Int64s) -> NDArray[np.bool_]:
        """Which records at these places are done, given the first of each: a later one names it."""
        named, places = self._newest
        if not len(named):
            return np.zeros(len(offsets), np.bool_)
        at = np.minimum(np.searchsorted(named, firsts), len(named) - 1)
        is_done: NDArray[np.bool_] = (named[at] == firsts) & (places[at] > offsets)
        return is_done

    def is_done(self, offset: int, first: int) -> bool:
        """The same of one record."""
        named, places = self._newest
        at = int(np.searchsorted(named, first))
        return at < len(named) and bool(named[at] == first and places[at] > offset)


NO_NAMES = Names(*np.empty((NAME_ROWS, 0), np.int64))
