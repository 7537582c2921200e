# SPDX-License-Identifier: Apache-2.0
"""Consume queues: 20 bytes a message that say where in the log it is. Read as whole ranges, never
entry by entry.

A queue's files are made at full size, sparse, and filled from the front: only the used part is
read. In a level queue the third field holds the due time (docs/FORMAT.md, consume queue).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import attrs
import numpy as np

from message_store.base.errors import BadFieldError, SourceError, TruncatedRecordError
from message_store.base.printable import shell_word
from message_store.files.array_room import new_array, zero_array
from message_store.files.segments import Segment, SegmentReader, segment_name
from message_store.format.java_numbers import INT_MAX, LONG_MAX, LONG_MIN
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.queue_unit import (
    EXT_UNIT,
    MAX_EXT_ADDRESS,
    MAX_NEUTRAL_BYTES,
    PRE_BLANK_SIZE,
    QUEUE_UNIT,
)

Int64Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
BoolArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]
ByteArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]
UnitArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.void]]

_FIRST_READ_BYTES = 3_000 * QUEUE_UNIT.size
_LARGEST_READ_BYTES = 200_000 * QUEUE_UNIT.size
_LARGEST_GAP_BYTES = 1 << 30
_FEW_ENTRIES = 256
"""To read so many at once takes no longer than to read one."""
FILES_SCANNED_FOR_THE_END = 3
_LOST_PAGES_BYTES = 8_192
"""At least so far behind the end it is looked for more: a page that was lost looks like an end."""


@attrs.frozen(eq=False)
class QueueEntries:
    """Entries of one queue: ``units[i]`` is the one at ``first_queue_offset + i``.

    ``queue_min`` is where the oldest file begins. ``misfits`` are files of a wrong length;
    ``is_damaged`` says that units in the middle hold nothing, or that some lie behind the end.
    """

    units: UnitArray
    first_queue_offset: int
    queue_min: int
    misfits: tuple[Segment, ...] = ()
    is_damaged: bool = False

    def __len__(self) -> int:
        return len(self.units)

    @property
    def queue_max(self) -> int:
        """One past the last entry: the offset that the next message gets."""
        return self.first_queue_offset + len(self.units)

    @property
    def commit_log_offset(self) -> Int64Array:
        """Where each message begins in the log."""
        return self.units["commit_log_offset"].astype(np.int64)

    @property
    def size_bytes(self) -> Int64Array:
        """How long each message is."""
        return self.units["size_bytes"].astype(np.int64)

    @property
    def tags_code(self) -> Int64Array:
        """Due times in a delay level, tag hashes elsewhere; addresses where extensions are on."""
        return self.units["tags_code"].astype(np.int64)

    @property
    def is_pre_blank(self) -> BoolArray:
        """Which entries only fill the queue before its first message."""
        return is_pre_blank(self.units)

    @property
    def indexed_end(self) -> int:
        """One past the last log byte that an entry covers; 0 when none does."""
        real = self.units[~self.is_pre_blank & is_filled(self.units)]
        if not len(real):
            return 0
        # A damaged entry may lead beyond what 64 bits hold.
        offsets = real["commit_log_offset"].astype(np.int64)
        sizes = real["size_bytes"].astype(np.int64)
        return int((np.minimum(offsets, LONG_MAX - sizes) + sizes).max())

    def slice(self, from_queue_offset: int, to_queue_offset: int) -> "QueueEntries":
        """The entries from one queue offset up to another, as far as they are here."""
        first = min(max(from_queue_offset, self.first_queue_offset), self.queue_max)
        last = min(max(to_queue_offset, first), self.queue_max)
        start = first - self.first_queue_offset
        units = self.units[start : last - self.first_queue_offset]
        return attrs.evolve(self, units=units, first_queue_offset=first)


def is_filled(units: UnitArray | Mapping[str, int]) -> BoolArray:
    """Which units a broker counts as there: offset not negative, size positive."""
    return np.asarray((units["commit_log_offset"] >= 0) & (units["size_bytes"] > 0))


def is_pre_blank(units: UnitArray) -> BoolArray:
    """Which units a broker filled a queue with before its first message (FORMAT.md). One that says
    something in its tags code was a message's: a filler has 0 there.
    """
    is_full_size = units["size_bytes"] == PRE_BLANK_SIZE
    is_empty = (units["commit_log_offset"] == 0) & (units["tags_code"] == 0)
    return np.asarray(is_full_size & is_empty)


def is_neutral(units: UnitArray) -> BoolArray:
    """Which units lead to no record any more: cancelled, or delivered out of turn."""
    sizes = units["size_bytes"]
    return np.asarray((sizes > 0) & (sizes <= MAX_NEUTRAL_BYTES))


def out_of_order(offsets: Int64Array, *, behind: int = -1) -> BoolArray:
    """Which of a queue's log offsets are not above all in front of them and below all behind them.
    None is in a sound queue: its entries lead ever farther into the log, and beyond ``behind``.

    >>> out_of_order(np.array([10, 20, 10, 40])).tolist()
    [True, True, True, False]
    """
    highest = np.maximum.accumulate(np.append(behind, offsets))[:-1]
    lowest = np.minimum.accumulate(np.append(offsets, LONG_MAX)[::-1])[::-1][1:]
    return np.asarray((offsets <= highest) | (offsets >= lowest))


def read_queue(
    directory: Path, *, file_bytes: int | None = None, from_queue_offset: int = 0
) -> QueueEntries:
    """The entries of a queue from ``from_queue_offset`` (or its beginning) to its end.

    The end is found by a broker's rule: the first unit without a size in the last three files;
    files before those are taken as full, and a unit without a size in them stays in the range. A
    missing directory is an empty queue. Raises TruncatedRecordError when a file in the row is
    missing, and BadFieldError for one whose name is no multiple of 20 or that is longer than a
    broker can make it: what such files hold cannot be told. Raises SourceError when a queue does
    not fit into memory.
    """
    with SegmentReader(directory, file_bytes) as reader:
        if not reader.segments:
            return QueueEntries(np.empty(0, QUEUE_UNIT.dtype), 0, 0)
        wanted = reader.segments[_first_file(reader, from_queue_offset) :]
        buffer = _row_buffer(reader, wanted)
        used_bytes, is_damaged = _read_row(reader, wanted, buffer)
        entries = QueueEntries(
            _whole_units(buffer[:used_bytes]),
            wanted[0].start_offset // QUEUE_UNIT.size,
            reader.min_offset // QUEUE_UNIT.size,
            reader.misfits,
            is_damaged,
        )
    return entries.slice(max(entries.first_queue_offset, from_queue_offset), entries.queue_max)


def _read_row(
    reader: SegmentReader, wanted: tuple[Segment, ...], buffer: ByteArray
) -> tuple[int, bool]:
    """Fill ``buffer`` from the files; returns how many bytes are queue, and if any are damaged."""
    scanned = reader.segments[-FILES_SCANNED_FOR_THE_END:]
    used_bytes, is_damaged = 0, False
    for segment in wanted:
        start = segment.start_offset - wanted[0].start_offset
        if segment not in scanned:
            piece = buffer[start : start + min(segment.length_bytes, reader.file_bytes)]
            count = reader.read_into(segment.start_offset, piece.data)
            is_whole = count == reader.file_bytes and bool(is_filled(_whole_units(piece)).all())
            is_damaged |= not is_whole
            used_bytes = start + reader.file_bytes
        elif used_bytes == start:
            part_bytes, has_hole = _read_used_part(reader, segment, buffer[start:])
            used_bytes = start + part_bytes
            is_damaged |= has_hole
        else:
            is_damaged |= _is_unit_at(reader, segment.start_offset)
    return used_bytes, is_damaged


def _whole_units(data: ByteArray) -> UnitArray:
    return data[: len(data) - len(data) % QUEUE_UNIT.size].view(QUEUE_UNIT.dtype)


def _first_file(reader: SegmentReader, from_queue_offset: int) -> int:
    """Which file to begin with: at the latest the first of those scanned for the end."""
    latest = max(0, len(reader.segments) - FILES_SCANNED_FOR_THE_END)
    position = from_queue_offset * QUEUE_UNIT.size
    starts = [segment.start_offset for segment in reader.segments]
    holding = max((i for i, start in enumerate(starts) if start <= position), default=0)
    return min(holding, latest)


def _row_buffer(reader: SegmentReader, segments: tuple[Segment, ...]) -> ByteArray:
    """Room for the filled part of the row, zeros: its files are long, and may be mostly empty."""
    starts = [segment.start_offset for segment in segments]
    for segment, start in zip(segments, starts, strict=True):
        if start % QUEUE_UNIT.size:
            raise BadFieldError("not the name of a queue file", path=segment.path)
        if segment.length_bytes > INT_MAX:  # a broker's setting for it is an int
            raise BadFieldError(
                "longer than any queue file",
                path=segment.path,
                expected=f"at most {INT_MAX} bytes",
                found=segment.length_bytes,
            )
    for before, after in pairwise(starts):
        if after != before + reader.file_bytes:
            missing = reader.directory / segment_name(before + reader.file_bytes)
            way = ""
            if reader.directory.parent.name == LEVEL_TOPIC:
                way = (
                    f"; or `truncate -s {reader.file_bytes} {shell_word(str(missing))}` and convert"
                    " with --whole-log, which also converts what was cancelled there"
                )
            raise TruncatedRecordError(
                f"a file of the queue is missing; take it from a backup{way}",
                path=reader.directory,
                expected=f"a file that begins at {before + reader.file_bytes}",
                found=f"one that begins at {after}",
            )
    room_bytes = reader.end_offset - starts[0]
    if room_bytes - sum(segment.length_bytes for segment in segments) > _LARGEST_GAP_BYTES:
        raise TruncatedRecordError("most of the queue's bytes are missing", path=reader.directory)
    scanned = segments[-FILES_SCANNED_FOR_THE_END:]
    filled_bytes = max(0, _filled_end(reader, scanned) - scanned[0].start_offset)
    looked_at_bytes = min(2 * filled_bytes + _FIRST_READ_BYTES // 2, _LARGEST_READ_BYTES)
    filled_bytes += scanned[0].start_offset - starts[0]
    room_bytes = min(room_bytes, filled_bytes + looked_at_bytes)
    try:
        return zero_array(room_bytes, np.uint8)
    except MemoryError as error:
        raise SourceError(
            f"{reader.directory}: a queue of {room_bytes} bytes, for which there is no memory"
        ) from error


def _read_used_part(reader: SegmentReader, segment: Segment, view: ByteArray) -> tuple[int, bool]:
    """Fill ``view`` as far as the file's units are filled; returns how many bytes that is, and
    whether anything is written not far behind: nothing is, where no write was lost.
    """
    is_last = segment == reader.segments[-1]
    room_bytes = segment.length_bytes if is_last else min(segment.length_bytes, reader.file_bytes)
    room_bytes = min(room_bytes, len(view))
    limit = room_bytes - room_bytes % QUEUE_UNIT.size
    done, step = 0, _FIRST_READ_BYTES
    while done < limit:
        piece = view[done : min(done + step, limit)]
        count = reader.read_into(segment.start_offset + done, piece.data)
        units = _whole_units(piece[:count])
        empty = np.flatnonzero(~is_filled(units))
        if len(empty):
            used_bytes = int(empty[0]) * QUEUE_UNIT.size
            first = segment.start_offset + done + used_bytes
            rest = piece[used_bytes : units.nbytes]
            has_more = bool(rest.any())
            if not has_more and len(rest) < _LOST_PAGES_BYTES:
                has_more = _is_used_at(reader, segment.start_offset + done + units.nbytes)
            if has_more and _is_unit_at(reader, first):
                continue  # a writer has filled it meanwhile
            return done + used_bytes, has_more
        done += units.nbytes
        if units.nbytes < len(piece):
            break
        step = min(2 * step, _LARGEST_READ_BYTES)
    return done, False


def _is_used_at(reader: SegmentReader, position: int) -> bool:
    """Whether anything is written from here on, as far as a lost page or a few of them reach."""
    piece = np.zeros(_LOST_PAGES_BYTES, np.uint8)
    segment = reader.segment_at(position)
    if segment is not None:
        room_bytes = segment.start_offset + segment.length_bytes - position
        reader.read_into(position, piece[: max(0, room_bytes)].data)
    return bool(piece.any())


def _is_unit_at(reader: SegmentReader, position: int) -> bool:
    unit = bytearray(QUEUE_UNIT.size)
    reader.read_into(position, memoryview(unit))
    return bool(is_filled(QUEUE_UNIT.decode_at(unit, 0)))  # a row of numpy takes 4.7 µs, this 1.8


def read_last_entry(directory: Path, *, file_bytes: int | None = None) -> QueueEntries:
    """The last entry of a queue, or none of an empty one.

    Of a damaged queue it may be an earlier one.
    """
    return read_last_entries(directory, 1, file_bytes=file_bytes)


def read_last_entries(
    directory: Path, count: int, *, file_bytes: int | None = None
) -> QueueEntries:
    """The same of the last entries, so many or as many as there are."""
    with SegmentReader(directory, file_bytes) as reader:
        end = _filled_end(reader, reader.segments)
        begin = max(end - count * QUEUE_UNIT.size, reader.min_offset)
        units = np.zeros(max(end - begin, 0) // QUEUE_UNIT.size, QUEUE_UNIT.dtype)
        room, done = units.view(np.uint8).data, 0
        while done < room.nbytes and (got := reader.read_into(begin + done, room[done:])):
            done += got
        if not is_filled(units[-1:]).all():
            units = units[:0]
        first, queue_min = begin // QUEUE_UNIT.size, reader.min_offset // QUEUE_UNIT.size
        return QueueEntries(units, first, queue_min) if len(units) else QueueEntries(units, 0, 0)


def _filled_end(reader: SegmentReader, segments: Sequence[Segment]) -> int:
    """Where the units of these files end; 0 where none is filled. Of damaged ones, no earlier than
    where the first unit without a size is.

    Found by bisection, as a queue is filled from the front: a few reads however long it is.
    """
    for segment in reversed(segments):
        low, high = 0, segment.length_bytes // QUEUE_UNIT.size
        while high - low > _FEW_ENTRIES:
            # Most queues of a store with thousands of them hold a few entries.
            middle = min(max(_FEW_ENTRIES, 16 * low), (low + high) // 2)
            if _is_unit_at(reader, segment.start_offset + middle * QUEUE_UNIT.size):
                low = middle
            else:
                high = middle
        units = np.zeros(high - low, QUEUE_UNIT.dtype)
        first = segment.start_offset + low * QUEUE_UNIT.size
        count = reader.read_into(first, units.view(np.uint8).data) // QUEUE_UNIT.size
        there = is_filled(units[:count])
        low += count if there.all() else int(there.argmin())
        if low:
            return segment.start_offset + low * QUEUE_UNIT.size
    return 0


# --- extension units ------------------------------------------------------------------------------


def resolve_tags_codes(entries: QueueEntries, ext_directory: Path) -> tuple[Int64Array, BoolArray]:
    """The tags code of each entry (int64), and for which of them it could not be read (bool).

    An entry may hold the address of an extension unit instead, below MAX_EXT_ADDRESS. The unit is
    looked up in ``ext_directory``. Where that fails, the first array has the address. RocketMQ:
    ConsumeQueueExt#unDecorate (4.9.7).
    """
    tags_codes, unresolved = (new_array(len(entries), each) for each in (np.int64, np.bool_))
    tags_codes[:] = entries.units["tags_code"]
    np.less_equal(tags_codes, MAX_EXT_ADDRESS, out=unresolved)
    if not unresolved.any():
        return tags_codes, unresolved
    wanted = np.flatnonzero(unresolved)
    wanted = wanted[np.argsort(tags_codes[wanted], kind="stable")]
    addresses = tags_codes[wanted] - LONG_MIN
    window = np.zeros(_LARGEST_READ_BYTES, np.uint8)
    with SegmentReader(ext_directory) as reader:
        done = 0
        while done < len(wanted):
            base = int(addresses[done])
            count = reader.read_into(base, window.data)
            if count < EXT_UNIT.size:  # nothing here: go on where the next file begins
                later = [one.start_offset for one in reader.segments if one.start_offset > base]
                done = int(np.searchsorted(addresses, later[0])) if later else len(wanted)
                continue
            stop = int(np.searchsorted(addresses, base + count - EXT_UNIT.size, "right"))
            found, is_unit = _ext_units_at(window, addresses[done:stop] - base)
            chosen = wanted[done:stop][is_unit]
            tags_codes[chosen] = found[is_unit]
            unresolved[chosen] = False
            done = stop
    return tags_codes, unresolved


def _ext_units_at(window: ByteArray, places: Int64Array) -> tuple[Int64Array, BoolArray]:
    """The tags codes of the extension units at ``places``, and which of them are units."""
    rows = window[places[:, None] + np.arange(EXT_UNIT.size)]
    units = np.ascontiguousarray(rows).view(EXT_UNIT.dtype)[:, 0]
    bitmap_bytes = units["bitmap_bytes"].astype(np.int64)
    is_unit = (bitmap_bytes >= 0) & (units["size_bytes"] == EXT_UNIT.size + bitmap_bytes)
    return units["tags_code"].astype(np.int64), is_unit
