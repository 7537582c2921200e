# SPDX-License-Identifier: Apache-2.0
"""Writes the files that are made of all messages together: timer queue and timer log.

One writer makes a file, front to back, under a name of its own. The driver gives it its place, so
that an attempt that comes too late reaches nothing. Who writes one twice writes the same bytes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from message_store.files.segments import segment_name
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.cache import kernel
from message_store.kernels.raw_memory import address_of, store_i32, store_i64
from migrate.plan.target_rows import TargetRows
from migrate.settings import WHEEL, TargetSettings
from migrate.write.large_files import FileStream, create_file
from migrate.write.staging import Staging, load_array, save_array
from timer_wheel.format.timer_log import NO_POSITION, TIMER_UNIT, blank_bytes, units_per_file

_QUEUE_BYTES, _TIMER_BYTES = QUEUE_UNIT.size, TIMER_UNIT.size
_QUEUE_LOG_OFFSET, _QUEUE_SIZE, _QUEUE_TAGS = (
    QUEUE_UNIT.offset_of(name) for name in ("commit_log_offset", "size_bytes", "tags_code")
)
_AT_SIZE, _AT_PREVIOUS, _AT_MAGIC, _AT_WRITE_TIME = (
    TIMER_UNIT.offset_of(name)
    for name in ("size_bytes", "previous_position", "magic", "write_time_ms")
)
_AT_DELAY, _AT_LOG_OFFSET, _AT_RECORD_SIZE, _AT_TOPIC_HASH, _AT_RESERVED = (
    TIMER_UNIT.offset_of(name)
    for name in ("delay_ms", "commit_log_offset", "record_size_bytes", "topic_hash", "reserved")
)
_BLOCK_ROWS = 1 << 16
Unplaced = tuple[Path, Path]
"""A file that was written: where it lies, and its place."""
QUEUE, TIMER_LOG = "queue", "timer log"
"""Kinds of files."""
_QUEUE_COLUMNS = "offsets", "sizes", "tags_hashes"
_UNIT_COLUMNS = "offsets", "sizes", "topic_hashes", "distances", "flags", "slot_times_ms"


@kernel("void(int64, int64[::1], int32[::1], int32[::1])")
def fill_entries(queue: int, offsets: Any, sizes: Any, tags_hashes: Any) -> None:
    """Fill room for as many queue entries as there are records, at an address."""
    for i in range(len(offsets)):
        store_i64(queue + _QUEUE_LOG_OFFSET, offsets[i])
        store_i32(queue + _QUEUE_SIZE, sizes[i])
        store_i64(queue + _QUEUE_TAGS, tags_hashes[i])
        queue += _QUEUE_BYTES


@kernel(
    "void(int64, int64, int64, int64, int64, int64[::1], int32[::1], int32[::1], int32[::1],"
    " int32[::1], int64[::1])"
)
def fill_units(
    timer: int, first: int, units_in_file: int, file_bytes: int, write_time_ms: int, offsets: Any,
    sizes: Any, topic_hashes: Any, distances: Any, flags: Any, slot_times_ms: Any,
) -> None:  # fmt: skip
    """Fill room for as many timer log units as there are records, at an address.

    ``first`` is the number of the first one in the timer log, of which a file holds
    ``units_in_file`` units in ``file_bytes``. ``distances`` lead to the record before in the same
    slot, 0 where there is none.
    """
    for i in range(len(offsets)):
        previous = NO_POSITION
        if distances[i] != 0:
            before = first + i - distances[i]
            previous = before // units_in_file * file_bytes + before % units_in_file * _TIMER_BYTES
        store_i32(timer + _AT_SIZE, _TIMER_BYTES)
        store_i64(timer + _AT_PREVIOUS, previous)
        store_i32(timer + _AT_MAGIC, flags[i])
        store_i64(timer + _AT_WRITE_TIME, write_time_ms)
        store_i32(timer + _AT_DELAY, slot_times_ms[i] - write_time_ms)
        store_i64(timer + _AT_LOG_OFFSET, offsets[i])
        store_i32(timer + _AT_RECORD_SIZE, sizes[i])
        store_i32(timer + _AT_TOPIC_HASH, topic_hashes[i])
        store_i64(timer + _AT_RESERVED, 0)
        timer += _TIMER_BYTES


_STORED = "target-"
"""Begins the names of the columns' files: the plan has an array of out times too."""


@attrs.frozen(eq=False)
class IndexStage:
    """What the files are made of: the rows, and the facts that they share. ``columns`` None: they
    are in the staging directory, and mapped when they are asked for.
    """

    staging: Staging
    settings: TargetSettings
    engine: str
    count: int
    write_time_ms: int
    columns: TargetRows | None

    @classmethod
    def of(cls, rows: TargetRows, staging: Staging) -> "IndexStage":
        """Of rows in memory."""
        return cls(staging, rows.settings, rows.engine, len(rows), rows.write_time_ms, rows)

    def stored(self) -> "IndexStage":
        """The same, its columns in files that tasks on other machines map. Raises TargetError."""
        for name in {*_QUEUE_COLUMNS, *_UNIT_COLUMNS}:
            save_array(self._stored(name), getattr(self.columns, name))
        return attrs.evolve(self, columns=None)

    def _stored(self, name: str) -> Path:
        return self.staging.plan_array(_STORED + name)

    def files(self) -> list[tuple[str, int]]:
        """Kind and number of all files."""
        kinds = [(QUEUE, self.settings.queue_file_bytes // QUEUE_UNIT.size)]
        if self.engine == WHEEL:
            kinds.append((TIMER_LOG, units_per_file(self.settings.timer_log_file_bytes)))
        return [(kind, number) for kind, rows in kinds for number in range(-(-self.count // rows))]

    def write(self, file: tuple[str, int], *, durably: bool = False) -> Unplaced:
        """Write one of the files. Raises TargetError."""
        kind, number = file
        write = self._write_queue if kind == QUEUE else self._write_units
        return write(number, durably)

    def _write_queue(self, number: int, durably: bool) -> Unplaced:
        file_bytes = self.settings.queue_file_bytes
        path = self.staging.store.timer_queue() / segment_name(number * file_bytes)

        def fill(address: int, rows: slice) -> None:
            fill_entries(address, *self._slices(rows, *_QUEUE_COLUMNS))

        count = file_bytes // QUEUE_UNIT.size
        return self._stream(path, file_bytes, number * count, count, QUEUE_UNIT.size, fill, durably)

    def _write_units(self, number: int, durably: bool) -> Unplaced:
        file_bytes = self.settings.timer_log_file_bytes
        path = self.staging.store.timer_log / segment_name(number * file_bytes)
        count = units_per_file(file_bytes)

        def fill(address: int, rows: slice) -> None:
            facts = rows.start, count, file_bytes, self.write_time_ms
            fill_units(address, *facts, *self._slices(rows, *_UNIT_COLUMNS))

        return self._stream(path, file_bytes, number * count, count, TIMER_UNIT.size, fill, durably)

    def _stream(
        self,
        path: Path,
        file_bytes: int,
        first: int,
        count: int,
        unit_bytes: int,
        fill: Callable[[int, slice], None],
        durably: bool,
    ) -> Unplaced:
        """Write the units from number ``first`` on, ``count`` at most, and a blank where the timer
        log goes on in the next file.
        """
        end = min(first + count, self.count)
        written = self.staging.unplaced(path)
        create_file(written, file_bytes)
        with FileStream(written, 0, durably=durably) as stream:
            for begin in range(first, end, _BLOCK_ROWS):
                rows = slice(begin, min(begin + _BLOCK_ROWS, end))
                room = stream.room((rows.stop - rows.start) * unit_bytes)
                fill(address_of(room), rows)
                stream.advance(len(room))
            if unit_bytes == TIMER_UNIT.size and end < self.count:
                blank = np.frombuffer(blank_bytes(file_bytes), np.uint8)
                stream.room(len(blank))[:] = blank
                stream.advance(len(blank))
        return written, path

    def _slices(self, rows: slice, *names: str) -> Iterator[Any]:
        """Some rows of some columns, as kernels want them: a mapped file cannot be written to."""
        for name in names:
            stored = self.columns is None
            part = load_array(self._stored(name)) if stored else getattr(self.columns, name)
            part = part[rows]
            yield part if part.flags.writeable and part.flags.c_contiguous else np.array(part)
