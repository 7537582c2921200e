# SPDX-License-Identifier: Apache-2.0
"""The timer log: one unit for each message on the wheel, linked backwards into a chain for a slot.

Units of 52 bytes fill each file until no more than a blank fits. The blank says that the log
continues in the next file (docs/FORMAT.md, timer log). Reading is in bulk: a unit is a row of a
structured array and never a Python object.
"""

from collections.abc import Iterator
from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.files.array_room import new_array, row_blocks
from message_store.files.segments import Segment, SegmentReader
from message_store.format.layout import Field, Layout
from message_store.format.record_layout import MAGIC_BLANK
from timer_wheel.format.wheel_math import Int64Array, Times

TIMER_UNIT = Layout(
    "timer log unit",
    (
        Field("size_bytes", "i32", "52"),
        Field("previous_position", "i64", "the unit placed before it in the same slot; -1: none"),
        Field("magic", "i32", "flags: 1 always, 2 roll, 4 delete marker (Java: magic)"),
        Field("write_time_ms", "i64", "when it was placed, floored to a slot (currWriteTime)"),
        Field("delay_ms", "i32", "slot time - write_time_ms"),
        Field("commit_log_offset", "i64", "where its record begins in the commit log"),
        Field("record_size_bytes", "i32", "the whole length of that record"),
        Field("topic_hash", "i32", "Java hash of the topic that it will be delivered to"),
        Field("reserved", "i64", "0"),
    ),
)
TIMER_BLANK = Layout(
    "timer log blank",
    (
        Field("size_bytes", "i32", "bytes left in the file, these sixteen included"),
        Field("reserved", "i64", "0"),
        Field("magic", "i32", "0xCBD43194, as in the commit log"),
    ),
)

FLAG_DEFAULT = 1
FLAG_ROLL = 2
FLAG_DELETE = 4
NO_POSITION = -1
"""The previous position of a chain's first unit. 0 is a position: it would lead to unit 0."""

_UNKNOWN_FLAGS = ~0xF
_UNITS_A_RUN = 1 << 16


def units_per_file(file_bytes: int) -> int:
    """How many units a full file holds; behind them a blank must fit.

    >>> units_per_file(100 << 20)
    2016492
    """
    return max(0, file_bytes - TIMER_BLANK.size) // TIMER_UNIT.size


def unit_position(index: Times, file_bytes: int) -> Times:
    """Where the unit of this index (from 0, across files) begins."""
    in_file = units_per_file(file_bytes)
    return index // in_file * file_bytes + index % in_file * TIMER_UNIT.size


def log_end_position(unit_count: int, file_bytes: int) -> int:
    """Where a log of so many units ends, and the next append begins: behind the last unit."""
    return unit_position(unit_count - 1, file_bytes) + TIMER_UNIT.size if unit_count else 0


def blank_bytes(file_bytes: int) -> bytes:
    """What stands behind the last unit of a file that others follow; zeros to the end after it.

    >>> blank_bytes(100 << 20).hex()
    '000000100000000000000000cbd43194'
    """
    left = file_bytes - units_per_file(file_bytes) * TIMER_UNIT.size
    return TIMER_BLANK.encode(size_bytes=left, reserved=0, magic=MAGIC_BLANK)


@attrs.frozen(eq=False)
class UnitRun:
    """Units without a gap: where the first begins, and an array of TIMER_UNIT's dtype."""

    start_position: int
    units: NDArray[np.void]

    @property
    def end_position(self) -> int:
        """The position behind the last unit."""
        return self.start_position + len(self.units) * TIMER_UNIT.size


@attrs.frozen(eq=False)
class TimerUnits:
    """All units of a log, in order.

    ``units`` is an array of TIMER_UNIT's dtype (big-endian), ``end_position`` is where a broker
    would append. ``file_starts`` says where the files begin, ``run_starts`` and ``run_indexes``
    position and index of the first unit of each run.
    """

    units: NDArray[np.void]
    end_position: int
    file_starts: Int64Array
    run_starts: Int64Array
    run_indexes: Int64Array

    def __len__(self) -> int:
        return len(self.units)

    @cached_property
    def positions(self) -> Int64Array:
        """Where each unit begins."""
        positions = new_array(len(self), np.int64)
        for rows in row_blocks(len(self)):
            positions[rows] = self.positions_at(np.arange(rows.start, rows.stop))
        return positions

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """The units of each run, as (index of its first, one past its last), and its position."""
        ends = [*self.run_indexes[1:].tolist(), len(self)]
        yield from zip(self.run_indexes.tolist(), ends, self.run_starts.tolist(), strict=True)

    def positions_at(self, indexes: Int64Array) -> Int64Array:
        """Where the units of these indexes begin."""
        runs = np.searchsorted(self.run_indexes, indexes, side="right") - 1
        return self.run_starts[runs] + (indexes - self.run_indexes[runs]) * TIMER_UNIT.size

    @property
    def slot_time_ms(self) -> Int64Array:
        """The time of the slot that each unit was placed in."""
        return slot_time_ms(self.units)

    def index_at(self, positions: Int64Array) -> Int64Array:
        """The index of the unit at each position; -1 where no unit begins."""
        if not len(self):
            return np.full(len(positions), -1, np.int64)
        runs = np.searchsorted(self.run_starts, positions, side="right") - 1
        within = positions - self.run_starts[runs]
        ends = np.append(self.run_indexes[1:], len(self))
        indexes = self.run_indexes[runs] + within // TIMER_UNIT.size
        there = (runs >= 0) & (within % TIMER_UNIT.size == 0) & (indexes < ends[runs])
        return np.where(there, indexes, -1)

    def until(self, position: int) -> "TimerUnits":
        """The units before a position, as if the log ended there."""
        count = int(np.searchsorted(self.positions, position))
        runs = self.run_starts < position
        return TimerUnits(
            units=self.units[:count],
            end_position=min(self.end_position, position),
            file_starts=self.file_starts,
            run_starts=self.run_starts[runs],
            run_indexes=self.run_indexes[runs],
        )

    def index_of_file(self, position: int) -> int:
        """The index of the first unit in the file that holds a position, or in the first file."""
        before = self.file_starts[self.file_starts <= position]
        start = before[-1] if len(before) else 0
        run = int(np.searchsorted(self.run_starts, start))
        return int(self.run_indexes[run]) if run < len(self.run_indexes) else len(self)


def slot_time_ms(units: NDArray[np.void]) -> Int64Array:
    """The time of the slot that each unit was placed in."""
    times: Int64Array = units["write_time_ms"].astype(np.int64) + units["delay_ms"]
    return times


def unit_runs(
    reader: SegmentReader, begin_position: int = 0, room: NDArray[np.void] | None = None
) -> Iterator[UnitRun]:
    """Every unit, some 65,000 at a time and never more than one file's; a run may be empty.

    A blank leads to the next file. Zeros, a size that is not 52, an unknown flag, and a file that
    ends in the middle of a unit end the log, as they do for a broker, which scans from the file
    that holds ``begin_position``. In files before that one they end only the file. Damage never
    raises; SourceError is raised when the disk refuses. With ``room`` (TIMER_UNIT's dtype, as many
    rows as the files have place for) the units lie there, one behind the other.
    """
    starts = [segment.start_offset for segment in reader.segments]
    scanned_from = max((start for start in starts if start <= begin_position), default=0)
    for segment in reader.segments:
        tail = None
        done = 0
        while done < segment.length_bytes and tail is None:
            units = np.empty(_UNITS_A_RUN, TIMER_UNIT.dtype) if room is None else room
            run, tail = _read_run(reader, segment, done, units)
            room = None if room is None else room[len(run.units) :]
            done += len(run.units) * TIMER_UNIT.size
            yield run
        goes_on = tail is None or _is_blank(tail)
        if segment.start_offset >= scanned_from and not goes_on:
            return


def _read_run(
    reader: SegmentReader, segment: Segment, done: int, room: NDArray[np.void]
) -> tuple[UnitRun, bytes | None]:
    """The next units of a file, read into ``room``, and the bytes behind them; None when all that
    was read is units.
    """
    left = segment.length_bytes - done
    units = room[: min(_UNITS_A_RUN, left // TIMER_UNIT.size)]
    start = segment.start_offset + done
    got = reader.read_into(start, units.view(np.uint8).data)
    units = units[: got // TIMER_UNIT.size]
    is_unit = units["size_bytes"] == TIMER_UNIT.size
    is_unit &= units["magic"] & _UNKNOWN_FLAGS == 0
    count = len(units) if is_unit.all() else int(is_unit.argmin())
    end = count * TIMER_UNIT.size
    tail = None
    if end < min(left, _UNITS_A_RUN * TIMER_UNIT.size):
        behind = bytearray(min(TIMER_UNIT.size, left - end))
        got = reader.read_into(start + end, memoryview(behind))
        tail = bytes(behind[:got])
    return UnitRun(start, units[:count]), tail


def _is_blank(tail: bytes) -> bool:
    return len(tail) >= TIMER_BLANK.size and TIMER_BLANK.decode_at(tail, 0)["magic"] == MAGIC_BLANK


def read_units(reader: SegmentReader, begin_position: int = 0) -> TimerUnits:
    """The whole log, 52 bytes a unit; what ends it is told at ``unit_runs``."""
    most = sum(segment.length_bytes // TIMER_UNIT.size for segment in reader.segments)
    units = new_array(most, TIMER_UNIT.dtype)
    run_starts, run_indexes = [], []
    count = end_position = 0
    for run in unit_runs(reader, begin_position, units):
        run_starts.append(run.start_position)
        run_indexes.append(count)
        count, end_position = count + len(run.units), run.end_position
    return TimerUnits(
        units=units[:count],
        end_position=end_position,
        file_starts=np.array([file.start_offset for file in reader.segments], np.int64),
        run_starts=np.array(run_starts, np.int64),
        run_indexes=np.array(run_indexes, np.int64),
    )
