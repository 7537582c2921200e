# SPDX-License-Identifier: Apache-2.0
"""A log and its queues in plain memory: what a redelivery needs of a store, and nothing else."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from message_store.base.errors import BadFieldError, StoreClosedError, TruncatedRecordError
from message_store.columns.byte_column import Int64s
from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at, encode_message
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import BLANK_RECORD, MAGIC_BLANK
from message_store.kernels.batch import place_records
from message_store.kernels.raw_memory import address_of
from message_store.reading.consume_queue import UnitArray


class MemoryLog:
    """Files of one size in one array."""

    min_offset = 0

    def __init__(self, file_bytes: int, files: int = 64) -> None:
        self.file_bytes = file_bytes
        self.data = np.zeros(file_bytes * files, np.uint8)
        self.end = 0

    def put(self, record: bytes) -> int:
        room = self.file_bytes - self.end % self.file_bytes
        if len(record) + BLANK_RECORD.size > room:
            blank = BLANK_RECORD.encode(size_bytes=room, magic=MAGIC_BLANK)
            self.data[self.end : self.end + len(blank)] = np.frombuffer(blank, np.uint8)
            self.end += room
        position = self.end
        self.data[position : position + len(record)] = np.frombuffer(record, np.uint8)
        self.end += len(record)
        return position

    def addresses(self, offsets: Int64s) -> Int64s:
        is_inside = (offsets >= 0) & (offsets < len(self.data))
        return np.where(is_inside, offsets + address_of(self.data), -1)

    def rooms(self, offsets: Int64s) -> Int64s:
        in_file = self.file_bytes - offsets % self.file_bytes
        rooms: Int64s = np.clip(np.minimum(in_file, self.end - offsets), 0, None)
        return rooms

    def record_addresses(self, offsets: Int64s, sizes: Int64s) -> Int64s:
        addresses = self.addresses(offsets)
        addresses[(sizes <= 0) | (sizes > self.rooms(offsets))] = -1
        return addresses

    def record(self, offset: int, size_bytes: int) -> StoredMessage:
        if not 0 <= offset <= self.end - size_bytes:
            raise TruncatedRecordError("no record here", offset=offset)
        message = decode_message_at(self.data[offset : offset + size_bytes].tobytes())
        if message.commit_log_offset != offset or len(encode_message(message)) != size_bytes:
            raise BadFieldError("a record of another place or length", offset=offset)
        return message

    def append_rows(self, sizes: Int64s, fill: Callable[[slice, Int64s, int], None]) -> Int64s:
        positions = np.empty(len(sizes), np.int64)
        end = place_records(sizes, self.end, self.file_bytes, positions)
        assert end >= 0
        files = positions // self.file_bytes
        for file in np.unique(files).tolist():
            here = np.flatnonzero(files == file)
            first, last = int(here[0]), int(here[-1]) + 1
            middle = (first + last + 1) // 2
            for rows in (slice(first, middle), slice(middle, last)):
                if rows.start < rows.stop:
                    start = int(positions[rows.start])
                    stop = int(positions[rows.stop - 1] + sizes[rows.stop - 1])
                    piece = np.full(stop - start + 64, 0xEE, np.uint8)
                    fill(rows, positions, address_of(piece) + 32)
                    assert (piece[:32] == 0xEE).all()
                    assert (piece[stop - start + 32 :] == 0xEE).all()
                    self.data[start:stop] = piece[32 : stop - start + 32]
        self.end = end
        return positions


class MemoryQueue:
    """The units of one queue."""

    def __init__(self, max_offset: int) -> None:
        self.first = self.max_offset = max_offset
        self.units: UnitArray = np.empty(0, QUEUE_UNIT.dtype)

    def append(self, units: UnitArray) -> None:
        self.units = np.concatenate([self.units, units]).astype(QUEUE_UNIT.dtype)
        self.max_offset += len(units)


class MemoryStoreFloor:
    """The floor of a store."""

    def __init__(self, file_bytes: int = 1 << 20, files: int = 64) -> None:
        self.log = MemoryLog(file_bytes, files)
        self.dialect = Dialect.ROCKETMQ_5_5
        self.queues: dict[tuple[str, int], MemoryQueue] = {}
        self.is_closed = False

    def queue(self, topic: str, queue_id: int) -> MemoryQueue:
        start = (len(topic) + queue_id) % 5
        return self.queues.setdefault((topic, queue_id), MemoryQueue(start))

    def remember_topic(self, topic: str, queue_id: int) -> None:
        assert (topic, queue_id) in self.queues

    @contextmanager
    def reading(self) -> Iterator[None]:
        if self.is_closed:
            raise StoreClosedError("the store is closed")
        yield

    def put_all(self, records: Iterable[Callable[[int], bytes]]) -> tuple[Int64s, Int64s]:
        offsets, sizes = [], []
        for make in records:
            record = make(self.log.end)
            position = self.log.put(record)
            if position != self.log.end - len(record) or make(position) != record:
                self.log.data[position : position + len(record)] = np.frombuffer(
                    make(position), np.uint8
                )
            offsets.append(position)
            sizes.append(len(record))
        return np.array(offsets, np.int64), np.array(sizes, np.int64)
