# SPDX-License-Identifier: Apache-2.0
"""The bytes of the time index: units of a bucket file, and the state that says which of them count.

The format is delaywheel's own: of apache/rocketmq PR 2290 only the idea is public. A unit is that
of a level's consume queue, with the due time in place of the tag's hash.
"""

import zlib
from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError, ChecksumError
from message_store.columns.byte_column import Int64s, int64s
from message_store.format.java_numbers import LONG_MAX
from message_store.format.layout import Field, Layout

SPAN_MS = 600_000
"""How much time one bucket file covers. With 72 hours of retention there are at most 433 files, and
of ten million messages that are due within an hour 1.7 million are sorted at once.
"""

INDEX_UNIT = Layout(
    "time index unit",
    (
        Field("commit_log_offset", "i64", "where the message's record begins"),
        Field("size_bytes", "i32", "how long the record is; 0: the message waits no more"),
        Field("due_ms", "i64", "when it is due, as its property TIMER_OUT_MS says"),
    ),
)

STATE_HEAD = Layout(
    "time index state",
    (
        Field("version", "i32", "1"),
        Field("placed_end", "i64", "offset in the topic's queue 0 before which all is indexed"),
        Field("log_end", "i64", "where the log ended; names of records behind it are not known"),
        Field("last_start", "i64", "where the last record of the log began"),
        Field("last_head", "i64", "CRC-32 of the first 91 bytes of that record"),
        Field("buckets", "i32", "how many buckets follow"),
    ),
)

STATE_BUCKET = Layout(
    "time index bucket",
    (
        Field("start_ms", "i64", "the first due time of the bucket, and the name of its file"),
        Field("units", "i64", "how many units of the file count"),
        Field("pending", "i64", "how many messages they leave waiting"),
        Field("first_offset", "i64", "where the first record lies that any of its units led to"),
        Field("crc", "i64", "CRC-32 of those units"),
    ),
)

STATE_TAIL = Layout("time index check", (Field("crc", "i64", "CRC-32 of all before it"),))

_VERSION = 1


Bools = NDArray[np.bool_]


@attrs.frozen(eq=False)
class Units:
    """Units as columns: due times and records; ``sizes`` are bytes, 0 of a message that is done."""

    due_ms: Int64s
    offsets: Int64s
    sizes: Int64s

    def __len__(self) -> int:
        return len(self.due_ms)

    @classmethod
    def none(cls) -> "Units":
        """No unit."""
        return cls(*3 * [int64s([])])

    @classmethod
    def of(cls, stored: bytes) -> "Units":
        """The units of a file."""
        rows = np.frombuffer(stored, INDEX_UNIT.dtype)
        names = ("due_ms", "commit_log_offset", "size_bytes")
        return cls(*(int64s(rows[name]) for name in names))

    @classmethod
    def together(cls, parts: Sequence["Units"]) -> "Units":
        """The units of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(attrs.astuple(part) for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns)) if parts else cls.none()

    def rows(self, chosen: Bools | Int64s | slice) -> "Units":
        """The chosen units, by a mask, by their rows, or a part."""
        return Units(self.due_ms[chosen], self.offsets[chosen], self.sizes[chosen])

    def in_order(self) -> "Units":
        """By due time; equal times in the order of scheduling."""
        return self.rows(np.lexsort((self.offsets, self.due_ms)))

    def taken_out(self) -> "Units":
        """The units that say that these wait no more."""
        return Units(self.due_ms, self.offsets, np.zeros(len(self), np.int64))

    def pending(self) -> "Units":
        """The messages that wait after all of these units, in the order of delivery."""
        is_out = self.sizes == 0
        if not is_out.any():
            return self.in_order()
        return self.rows(~is_out & ~np.isin(self.offsets, self.offsets[is_out])).in_order()

    def to_bytes(self) -> bytes:
        """As a file has them."""
        rows = np.empty(len(self), INDEX_UNIT.dtype)
        rows["due_ms"], rows["commit_log_offset"] = self.due_ms, self.offsets
        rows["size_bytes"] = self.sizes
        return rows.tobytes()


@attrs.frozen
class SavedBucket:
    """How much of a bucket's file counts."""

    start_ms: int
    units: int = 0
    pending: int = 0
    first_offset: int = LONG_MAX
    crc: int = 0

    def after(self, stored: bytes, pending: int, first_offset: int) -> "SavedBucket":
        """The same when these units were appended."""
        count = self.units + len(stored) // INDEX_UNIT.size
        crc = zlib.crc32(stored, self.crc)
        return SavedBucket(self.start_ms, count, pending, first_offset, crc)


@attrs.frozen
class IndexState:
    """What the index's files hold: see ``STATE_HEAD``."""

    placed_end: int
    log_end: int
    last_start: int
    last_head: int
    buckets: tuple[SavedBucket, ...] = ()

    def encode(self) -> bytes:
        """As the state file has it."""
        facts = attrs.asdict(self, filter=lambda field, _: field.name != "buckets")
        head = STATE_HEAD.encode(version=_VERSION, buckets=len(self.buckets), **facts)
        rows = b"".join(STATE_BUCKET.encode(**attrs.asdict(each)) for each in self.buckets)
        return head + rows + STATE_TAIL.encode(crc=zlib.crc32(head + rows))

    @classmethod
    def decode(cls, stored: bytes) -> "IndexState":
        """Raises FormatError for bytes that are no state."""
        begin = len(stored) - STATE_TAIL.size
        if STATE_TAIL.decode_at(stored, begin)["crc"] != zlib.crc32(stored[: max(begin, 0)]):
            raise ChecksumError("the state of the time index is damaged")
        head = STATE_HEAD.decode_at(stored, 0)
        if head.pop("version") != _VERSION:
            raise BadFieldError("a time index of another version")
        places = range(STATE_HEAD.size, begin, STATE_BUCKET.size)
        if head.pop("buckets") != len(places):
            raise BadFieldError("a time index with other buckets than it says")
        rows = (STATE_BUCKET.decode_at(stored, place) for place in places)
        return cls(**head, buckets=tuple(SavedBucket(**row) for row in rows))
