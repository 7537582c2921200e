# SPDX-License-Identifier: Apache-2.0
"""The files of a target, read as a broker reads them: which messages would it deliver?

Also what is wrong with log, queue, timer log and slots. A message that no slot leads to is missing,
whatever the log holds. One that is reached twice would be a duplicate.
"""

from collections.abc import Callable, Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import FormatError
from message_store.files.array_room import new_array, row_blocks
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import BLANK_RECORD, END_OF_FILE_MIN_BYTES, MAGIC_BLANK
from message_store.reading.consume_queue import QueueEntries, read_queue
from migrate.report.marker import ConversionSettings
from migrate.verify.reached import (
    END,
    NOWHERE,
    Slots,
    Walk,
    entries_in_order,
    reached_entries,
    walk_chains,
)
from migrate.verify.report import Problem
from timer_wheel.format.checkpoint import TimerCheckpoint, read_timer_checkpoint
from timer_wheel.format.timer_log import (
    NO_POSITION,
    TimerUnits,
    blank_bytes,
    read_units,
    slot_time_ms,
    unit_position,
    units_per_file,
)
from timer_wheel.format.wheel_file import NO_SLOTS, read_wheel
from timer_wheel.format.wheel_math import effective_read_time_ms, slot_index

Tests = Callable[[slice], dict[str, NDArray[np.bool_]]]
"""Which rows of a block fail what; asked for a block behind the other."""

COMMIT_LOG = "commit log"
_TAIL_BYTES = 4096


def row_problems(where: str, reader: SegmentReader) -> Iterator[Problem]:
    """Files of one length without a gap, from 0 on: a broker starts on nothing else."""
    for number, segment in enumerate(reader.segments):
        right = number * reader.file_bytes
        if segment.start_offset != right:
            yield Problem(where, f"{segment.path.name}: a file should begin at {right}")
        if segment.length_bytes != reader.file_bytes:
            yield Problem(
                where, f"{segment.path.name}: {segment.length_bytes} bytes, not {reader.file_bytes}"
            )


def log_problems(reader: SegmentReader, queue: QueueEntries) -> Iterator[Problem]:
    """Records of the queue's entries without a gap, blanks between files, nothing behind."""
    file_bytes = reader.file_bytes
    if not len(queue) or not file_bytes:
        if len(queue) or any(_dirt(reader, segment.start_offset) for segment in reader.segments):
            yield Problem(COMMIT_LOG, "log and queue disagree on whether there is any record")
        return
    seams: list[tuple[int, int]] = []
    end = 0

    def look(rows: slice) -> dict[str, NDArray[np.bool_]]:
        nonlocal end
        units = queue.units[rows.start : rows.stop + 1]
        offsets = units["commit_log_offset"].astype(np.int64)
        ends = offsets + units["size_bytes"]
        file_ends = (offsets // file_bytes + 1) * file_bytes
        end = max(end, int(ends.max()))
        goes_on = offsets[1:] == ends[:-1]
        next_file = ~goes_on & (offsets[1:] == file_ends[:-1])
        seam_rows = np.flatnonzero(next_file)
        left = file_ends[seam_rows] - ends[seam_rows]
        seams.extend(zip(ends[seam_rows].tolist(), left.tolist(), strict=True))
        is_tight = ends + END_OF_FILE_MIN_BYTES > file_ends
        return {"tight": is_tight[: rows.stop - rows.start], "gap": ~goes_on & ~next_file}

    failures = count_failures(len(queue), look)
    offsets, sizes = queue.units["commit_log_offset"], queue.units["size_bytes"]
    count, row = failures["tight"]
    if count:
        yield Problem(COMMIT_LOG, f"no room for a blank behind the record at {offsets[row]}", count)
    if offsets[0] != 0:
        yield Problem(COMMIT_LOG, f"the first record is at {offsets[0]} and not at 0")
    count, row = failures["gap"]
    if count:
        at = int(offsets[row]) + int(sizes[row])
        yield Problem(COMMIT_LOG, f"no record of the queue begins at {at}", count)
    for seam, left in seams:
        if _blank_at(reader, seam) != (left, MAGIC_BLANK):
            yield Problem(COMMIT_LOG, f"no blank of {left} bytes at {seam}")
    yield from _end_problems(reader, end)


def _blank_at(reader: SegmentReader, offset: int) -> tuple[int, int]:
    data = bytearray(BLANK_RECORD.size)
    reader.read_into(offset, memoryview(data))
    blank = BLANK_RECORD.decode_at(data, 0)
    return blank["size_bytes"], blank["magic"]


def _end_problems(reader: SegmentReader, end: int) -> Iterator[Problem]:
    if end > reader.end_offset:
        yield Problem(COMMIT_LOG, f"the files end at {reader.end_offset}, the queue at {end}")
    elif _dirt(reader, end):
        yield Problem(COMMIT_LOG, f"something stands behind the last record, at {end}")
    later = [segment for segment in reader.segments if segment.start_offset >= end]
    if later:
        yield Problem(COMMIT_LOG, f"{later[0].path.name}: a file behind the last record")


def _dirt(reader: SegmentReader, offset: int) -> bool:
    """Whether anything but zeros follows; a broker would take it for the next record."""
    tail = bytearray(_TAIL_BYTES)
    reader.read_into(offset, memoryview(tail))
    return any(tail)


QUEUE = "timer queue"
TIMER_LOG = "timer log"
WHEEL = "timer wheel"
CHECKPOINT = "timercheck"


@attrs.frozen(eq=False)
class ReachedMessages:
    """What a broker would deliver: TARGET_ENTRY rows in the order of the log."""

    entries: NDArray[np.void]
    problems: tuple[Problem, ...]


def read_reached(root: StoreRoot, settings: ConversionSettings) -> ReachedMessages:
    """Read queue, timer log and wheel, and walk every slot unless nothing is wrong with any.

    Damage is a problem, and what cannot be reached because of it is not among the entries; only a
    disk that refuses raises (SourceError).
    """
    problems: list[Problem] = []
    queue = read_target_queue(root, settings, problems)
    with open_log(root, settings.commit_log_file_bytes) as log:
        problems += row_problems("commit log", log)
        problems += log_problems(log, queue)
    with SegmentReader(root.timer_log, settings.timer_log_file_bytes) as reader:
        problems += row_problems(TIMER_LOG, reader)
        units = read_units(reader)
        problems += _unit_problems(units, queue, settings)
        problems += _blank_problems(reader, units, settings.timer_log_file_bytes)
    checkpoint = read_timer_checkpoint(root)
    slots = _read_slots(root, settings, checkpoint, problems)
    entries = entries_in_order(slots, units, queue, settings.precision_ms)
    if entries is None:
        walk = _walk(slots, units)
        problems += _walk_problems(walk, slots, units)
        entries = reached_entries(walk, slots.times_ms, units, queue)
    problems += _checkpoint_problems(checkpoint, slots, units, len(queue), settings)
    return ReachedMessages(entries, tuple(problems))


def read_target_queue(
    root: StoreRoot, settings: ConversionSettings, problems: list[Problem]
) -> QueueEntries:
    """The timer queue; what is wrong with its files is added to ``problems``."""
    directory = root.timer_queue()
    with SegmentReader(directory, settings.queue_file_bytes) as reader:
        problems += row_problems(QUEUE, reader)
    try:
        queue = read_queue(directory, file_bytes=settings.queue_file_bytes)
    except FormatError as error:
        problems.append(Problem(QUEUE, str(error)))
        return QueueEntries(np.empty(0, QUEUE_UNIT.dtype), 0, 0)
    if queue.is_damaged:
        problems.append(Problem(QUEUE, "entries without a size stand before others"))
    if queue.first_queue_offset:
        problems.append(Problem(QUEUE, f"it begins at {queue.first_queue_offset} and not at 0"))
    return queue


def _unit_problems(
    units: TimerUnits, queue: QueueEntries, settings: ConversionSettings
) -> Iterator[Problem]:
    if len(units) != len(queue):
        yield Problem(
            TIMER_LOG,
            f"{len(units)} units for {len(queue)} queue entries",
            abs(len(units) - len(queue)),
        )

    def tests(some: slice) -> dict[str, NDArray[np.bool_]]:
        rows, entries = units.units[some], queue.units[some]
        return {
            "not the record of the queue entry of the same number": (
                rows["commit_log_offset"] != entries["commit_log_offset"]
            ),
            "another record size than the queue entry": (
                rows["record_size_bytes"] != entries["size_bytes"]
            ),
            f"not written at {settings.write_time_ms}": (
                rows["write_time_ms"] != settings.write_time_ms
            ),
            "the reserved field is not 0": rows["reserved"] != 0,
        }

    yield from each_problem(TIMER_LOG, "unit", min(len(units), len(queue)), tests)


def each_problem(
    where: str, thing: str, count: int, tests: Tests, names: NDArray[np.int64] | None = None
) -> Iterator[Problem]:
    """A problem for each test that any of ``count`` rows fails, with the first such row named: by
    its number, or by ``names``. Rows are tested block by block, which ``tests`` is asked for.
    """
    for what, (failed, first) in count_failures(count, tests).items():
        if failed:
            name = first if names is None else names[first]
            yield Problem(where, f"{thing} {name}: {what}", failed)


def count_failures(count: int, tests: Tests) -> dict[str, tuple[int, int]]:
    """How many of ``count`` rows fail each test, and the first that does."""
    failures: dict[str, tuple[int, int]] = {}
    for rows in row_blocks(count):
        for what, failed in tests(rows).items():
            before, first = failures.setdefault(what, (0, 0))
            if more := int(np.count_nonzero(failed)):
                first = first if before else rows.start + int(failed.argmax())
                failures[what] = before + more, first
    return failures


def _blank_problems(reader: SegmentReader, units: TimerUnits, file_bytes: int) -> Iterator[Problem]:
    """Files are filled in order, and each but the last ends with its blank."""

    def are_astray(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        astray = units.positions_at(numbers) != unit_position(numbers, file_bytes)
        return np.asarray(astray)

    def tests(rows: slice) -> dict[str, NDArray[np.bool_]]:
        astray = are_astray(np.arange(rows.start, rows.stop))
        return {"not where the one before it ends": astray}

    # The units of a run lie one behind the other: where its ends are right, all of it is.
    ends = np.concatenate([units.run_indexes, units.run_indexes[1:] - 1, [len(units) - 1]])
    if are_astray(np.unique(ends[(ends >= 0) & (ends < len(units))])).any():
        yield from each_problem(TIMER_LOG, "unit", len(units), tests)
    blank = blank_bytes(file_bytes)
    for segment in reader.segments[:-1]:
        end = segment.start_offset + units_per_file(file_bytes) * units.units.itemsize
        data = bytearray(len(blank))
        if reader.read_into(end, memoryview(data)) != len(blank) or data != blank:
            yield Problem(TIMER_LOG, f"{segment.path.name}: no blank at {end}")


def _read_slots(
    root: StoreRoot,
    settings: ConversionSettings,
    checkpoint: TimerCheckpoint,
    problems: list[Problem],
) -> Slots:
    try:
        wheel = read_wheel(root)
    except FormatError as error:
        problems.append(Problem(WHEEL, str(error)))
        wheel = NO_SLOTS
    used, slots = wheel.index, wheel.slots
    times_ms = slots["time_units"].astype(np.int64) * settings.precision_ms
    read_ms = effective_read_time_ms(
        checkpoint.last_read_time_ms, settings.now_ms, settings.precision_ms
    )
    misplaced = slot_index(times_ms, settings.precision_ms) != used
    passed = times_ms < read_ms
    tests = {
        "its time belongs into another slot": misplaced,
        f"the hand begins at {read_ms} and never reads it": passed,
        "its magic is not 0": slots["magic"] != 0,
    }
    problems += each_problem(WHEEL, "slot", len(used), lambda some: some_of(tests, some), used)
    live = np.flatnonzero(~misplaced & ~passed)
    live = live[np.argsort(times_ms[live], kind="stable")]
    return Slots(
        times_ms[live],
        slots["first_position"][live].astype(np.int64),
        slots["last_position"][live].astype(np.int64),
        slots["unit_count"][live].astype(np.int64),
    )


def _walk(slots: Slots, units: TimerUnits) -> Walk:
    last = units.index_at(slots.last)
    previous = new_array(len(units), np.int64)
    for rows in row_blocks(len(units)):
        positions = units.units["previous_position"][rows].astype(np.int64)
        indexes = units.index_at(positions)
        indexes[indexes < 0] = NOWHERE
        indexes[positions == NO_POSITION] = END
        previous[rows] = indexes
    return walk_chains(np.where(last < 0, NOWHERE, last), previous)


def _walk_problems(walk: Walk, slots: Slots, units: TimerUnits) -> Iterator[Problem]:
    is_reached = walk.steps > 0
    reached_first = np.full(len(is_reached), NO_POSITION, np.int64)
    reached_first[is_reached] = units.positions_at(walk.first[is_reached])
    tests = {
        "its chain leads to no unit, or not backwards": walk.broken,
        "its first unit is not where its chain ends": reached_first != slots.first,
        "its count is not the length of its chain": walk.steps != slots.counts,
    }
    names = slots.times_ms
    yield from each_problem(
        WHEEL, "the slot of", len(names), lambda some: some_of(tests, some), names
    )

    times_ms = new_array(len(units), np.int64)
    for some in row_blocks(len(units)):
        times_ms[some] = slot_time_ms(units.units[some])

    def steps(rows: slice) -> dict[str, NDArray[np.bool_]]:
        elsewhere = times_ms[walk.units[rows]] != slots.times_ms[walk.slots[rows]]
        return {"it is chained to a slot of another time": elsewhere}

    yield from each_problem(TIMER_LOG, "unit", len(walk.units), steps, walk.units)
    visits = walk.visits
    yield from each_problem(
        TIMER_LOG,
        "unit",
        len(units),
        lambda rows: {
            "no slot leads to it": visits[rows] == 0,
            "reached more than once": visits[rows] > 1,
        },
    )


def some_of(tests: dict[str, NDArray[np.bool_]], rows: slice) -> dict[str, NDArray[np.bool_]]:
    """Tests of all rows, for a block of them."""
    return {what: failed[rows] for what, failed in tests.items()}


def _checkpoint_problems(
    checkpoint: TimerCheckpoint,
    slots: Slots,
    units: TimerUnits,
    queue_length: int,
    settings: ConversionSettings,
) -> Iterator[Problem]:
    expected = {
        "flush_position": units.end_position,
        "last_queue_offset": queue_length,
        "master_queue_offset": queue_length,
        "state_version": 0,
        "timestamp_ms": settings.now_ms,
    }
    for name, right in expected.items():
        value = getattr(checkpoint, name)
        if value != right:
            yield Problem(CHECKPOINT, f"{name} is {value} and should be {right}")
    read_ms = checkpoint.last_read_time_ms
    first_ms = int(slots.times_ms.min(initial=settings.write_time_ms))
    if not 0 < read_ms <= first_ms or read_ms % settings.precision_ms:
        yield Problem(CHECKPOINT, f"last_read_time_ms is {read_ms}, the first slot is {first_ms}")
