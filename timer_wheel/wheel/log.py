# SPDX-License-Identifier: Apache-2.0
"""The fast form of ``reference.files.LogOfUnits`` (Java: TimerLog): an append is all or none.

The first unit's first eight bytes are written last, or the blank before it if it begins a file.
Until then the log ends before it. What lies behind the end is zeros (docs/FORMAT.md, timer log).
"""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs
import numpy as np

from message_store.base.errors import BadFieldError, DelayStoreError, TargetError
from message_store.columns.byte_column import Int64s, int64s
from message_store.files.live_segments import LiveSegments
from message_store.format.java_numbers import LONG_MAX, LONG_MIN
from message_store.format.layout import Layout
from message_store.format.record_layout import MAGIC_BLANK
from message_store.kernels.raw_memory import address_of
from message_store.writing.log import LiveLog
from timer_wheel.format.timer_log import (
    NO_POSITION,
    TIMER_BLANK,
    TIMER_UNIT,
    blank_bytes,
    slot_time_ms,
    units_per_file,
)
from timer_wheel.reading.record_kernel import PREPARED_OFFSET, is_any_to_be_read
from timer_wheel.timers.rows import TimerFacts, TimerRows
from timer_wheel.timers.unit_kernels import (
    COUNTS,
    NEWEST,
    POSITION,
    ROW_COLUMNS,
    count_units,
    place_units,
    revise_wheel,
    scan_units,
    walk_slots,
)
from timer_wheel.wheel.slots import LiveWheel


@attrs.frozen(eq=False)
class KnownSlot:
    """What a walk has found in a slot, given by its time in units of the precision: one unit at
    least. ``rewrite_count`` is that of the timer log then.
    """

    slot: int
    rows: TimerRows
    rewrite_count: int

    @property
    def last_position(self) -> int:
        """Where the last of its units is."""
        return int(self.rows.position[-1])

    def is_of(self, slots: Int64s, rewrite_count: int) -> bool:
        """Whether these slots are this one, and what was found is there still."""
        is_same = self.rewrite_count == rewrite_count
        return is_same and len(slots) == 1 and int(slots[0]) == self.slot


_UNIT = TIMER_UNIT.size
_PUBLISHED_LAST_BYTES = 8
_PIECE_UNITS = 1 << 17


@attrs.frozen
class FileUnits:
    """The units of one file: how many there are from its beginning on."""

    start: int
    count: int


_NO_LINKS: Int64s = np.empty((0, 3), np.int64)

NO_SLOT = -1
"""For ``LiveTimerLog.find``: what is in some slot alone is not wanted."""


class LiveTimerLog:
    """The timer log's files, and ``end``, the position of the next unit, which ``find_end`` finds.

    ``rewrite_count`` grows when units change or are removed, not when some are appended. After
    ``is_broken`` units of a failed append may lie behind the end, and nothing is appended. Raises
    BadFieldError for files that are too small for any unit. RocketMQ: TimerLog (5.5.0).
    """

    def __init__(self, segments: LiveSegments) -> None:
        if not units_per_file(segments.file_bytes):
            problem = f"{segments.directory}: timer log files that hold no unit"
            raise BadFieldError(problem, found=segments.file_bytes)
        self.segments = segments
        self.end = 0
        self.rewrite_count = 0
        self.is_broken = False

    @property
    def file_bytes(self) -> int:
        """The size of each file."""
        return self.segments.file_bytes

    @property
    def last_position(self) -> int | None:
        """The timer log position of the last unit; None when there is none."""
        files = [file for file in self.files() if file.count]
        return files[-1].start + (files[-1].count - 1) * _UNIT if files else None

    def files(self) -> Iterator[FileUnits]:
        """The files up to the end."""
        per_file = units_per_file(self.file_bytes)
        for start in self.segments.starts:
            if start >= self.end:
                return
            yield FileUnits(start, min((self.end - start) // _UNIT, per_file))

    # --- opening ----------------------------------------------------------------------------------

    def find_end(self) -> int:
        """Find the end: the first position with neither a unit nor a blank that leads to the next
        file. Zero what lies behind it; returns how many bytes were not zero.
        """
        per_file = units_per_file(self.file_bytes)
        self.end = self.segments.min_offset
        for start in self.segments.starts:
            count = count_units(self.segments.address_of_file(start), per_file)
            self.end = start + count * _UNIT
            if count < per_file or not self._has_blank(self.end):
                break
            self.end = start + self.file_bytes
        return self.segments.zero_from(self.end)

    def _has_blank(self, position: int) -> bool:
        left = self.file_bytes - position % self.file_bytes
        if left < TIMER_BLANK.size:
            return False
        blank = TIMER_BLANK.decode_at(self.segments.read_at(position, TIMER_BLANK.size), 0)
        return blank["magic"] == MAGIC_BLANK

    def cut(self, position: int) -> None:
        """Truncate the log to this position; one at the end or behind it changes nothing."""
        self.rewrite_count += 1
        if position < self.end:
            self.end = position
            self.segments.zero_from(position)

    def revise(self, wheel: LiveWheel, odd_links: Int64s = _NO_LINKS) -> Int64s:
        """Rebuild an empty wheel from every unit whose slot the hand has not passed; returns the
        counts that ``unit_kernels`` names. ``odd_links`` (n × 3) gets a row for each unit with a
        wrong link: its position, the link to the slot's previous unit, and the link that it has.
        """
        counts = np.zeros(COUNTS, np.int64)
        counts[NEWEST] = -1
        wheel.will_hold(0)
        for file in self.files():
            revise_wheel(
                self.segments.address_of_file(file.start),
                file.count,
                file.start,
                wheel.address,
                wheel.dirty,
                wheel.precision_ms,
                wheel.hand_ms,
                counts,
                odd_links,
            )
        return counts

    # --- appending --------------------------------------------------------------------------------

    def next_positions(self, count: int) -> Int64s:
        """The timer log positions of the next ``count`` units."""
        per_file = units_per_file(self.file_bytes)
        index = self.end // self.file_bytes * per_file
        index += min(self.end % self.file_bytes // _UNIT, per_file)
        indexes = index + np.arange(count, dtype=np.int64)
        return indexes // per_file * self.file_bytes + indexes % per_file * _UNIT

    def begin_file(self) -> int:
        """Let the next unit begin a file; no link leads over the gap. Returns its position."""
        self.end = -(-self.end // self.file_bytes) * self.file_bytes
        return self.end

    def append(self, rows: TimerRows, wheel: LiveWheel) -> None:
        """Append a unit for each row and link it to its slot; sets their positions.

        Raises TargetError when the disk refuses: the log is then what it was, or broken, and the
        wheel is not what it was.
        """
        if not len(rows):
            return
        if self.is_broken:
            raise TargetError(f"{self.segments.directory}: an earlier write failed; open it again")
        rows.table[POSITION] = self.next_positions(len(rows))
        wheel.will_hold(int(rows.slot_time_ms.min()))
        head, done = b"", 0
        try:
            for piece in self._pieces(rows.position):
                head = self._write_piece(rows, piece, wheel, head)
                done = piece.stop
            self._publish(rows.position, head)
        except BaseException:
            self._undo()
            raise
        self.end = int(rows.position[done - 1]) + _UNIT

    def _undo(self) -> None:
        """Take away what a failed append has written: it must not come to light behind the next."""
        self.is_broken = True  # so it stays if anything stops this
        with suppress(DelayStoreError):
            self.segments.zero_from(self.end)
            self.is_broken = False

    @staticmethod
    def _pieces(positions: Int64s) -> Iterator[slice]:
        """Rows whose units lie one behind another, in pieces of a bounded size."""
        breaks = np.flatnonzero(np.diff(positions) != _UNIT) + 1
        bounds = [0, *breaks.tolist(), len(positions)]
        for first, stop in itertools.pairwise(bounds):
            for begin in range(first, stop, _PIECE_UNITS):
                yield slice(begin, min(begin + _PIECE_UNITS, stop))

    def _write_piece(self, rows: TimerRows, piece: slice, wheel: LiveWheel, head: bytes) -> bytes:
        """Write some units; returns the first eight bytes of all, which are not yet written."""
        part = rows.rows(piece)
        buffer = np.empty(len(part) * _UNIT, np.uint8)
        place_units(
            part.table,
            wheel.address,
            address_of(buffer),
            wheel.dirty,
            wheel.precision_ms,
            wheel.hand_ms,
            0,
        )
        if not head:
            head = buffer[:_PUBLISHED_LAST_BYTES].tobytes()
            buffer[:_PUBLISHED_LAST_BYTES] = 0
        self.segments.write_at(int(part.position[0]), buffer.data)
        return head

    def _publish(self, positions: Int64s, head: bytes) -> None:
        """End each full file with a blank and complete the first unit, the last position first: a
        broker that finds a blank and no unit behind it loses the last unit.
        """
        used = units_per_file(self.file_bytes) * _UNIT
        first = self.end // self.file_bytes
        if self.end % self.file_bytes == 0:  # nothing of the file is used yet
            first = int(positions[0]) // self.file_bytes
        blank = blank_bytes(self.file_bytes)
        left = range(first, int(positions[-1]) // self.file_bytes)
        writes = [(file * self.file_bytes + used, blank) for file in left]
        for position, data in sorted([*writes, (int(positions[0]), head)], reverse=True):
            self.segments.write_at(position, data)

    def overwrite(self, position: int, **values: int) -> None:
        """Write fields of a unit, which stand side by side, at once. Raises TargetError."""
        self.rewrite_count += 1
        fields = tuple(field for field in TIMER_UNIT.fields if field.name in values)
        data = Layout("part of a unit", fields).encode(**values)
        self.segments.write_at(position + TIMER_UNIT.offset_of(fields[0].name), data)

    # --- reading ----------------------------------------------------------------------------------

    def walk(
        self, wheel: LiveWheel, slots: Int64s, known: KnownSlot | None = None
    ) -> tuple[TimerRows, int]:
        """What these slots hold, slot after slot and each in order of placing; and how many links
        of their chains led astray. A slot that is ``known`` is walked as far as it is not.
        """
        if not len(slots):
            return TimerRows.empty(), 0
        return self.walk_from(wheel.last_positions(slots), slots, wheel.precision_ms, known)

    def walk_from(
        self, heads: Int64s, slots: Int64s, precision_ms: int, known: KnownSlot | None = None
    ) -> tuple[TimerRows, int]:
        """The same, from the last unit that each slot had at some moment: what it held then."""
        if not self.segments.starts:
            return TimerRows.empty(), 0
        files = int64s([self.segments.address_of_file(start) for start in self.segments.starts])
        is_known = known is not None and known.is_of(slots, self.rewrite_count)
        last_known = known.last_position if known is not None and is_known else NO_POSITION
        where = (
            files, self.segments.min_offset, self.end, self.file_bytes, precision_ms,
            last_known,
        )  # fmt: skip
        lengths, stops = np.zeros((2, len(slots)), np.int64)
        nothing = np.empty((ROW_COLUMNS, 0), np.int64)
        astray = walk_slots(heads, slots, *where, lengths, stops, nothing)
        rows = TimerRows.empty(int(lengths.sum()))
        if len(rows):
            walk_slots(heads, slots, *where, lengths, stops, rows.table)
        if known is not None and is_known and stops[0] == last_known:
            rows = TimerRows.together([known.rows, rows])
        return rows, astray

    def unhung(self, wheel: LiveWheel) -> TimerRows:
        """The units in slots to come that no chain leads to. Whoever puts units away takes them off
        their chains first, and was stopped in between. One is found again when those above it have
        gone.
        """
        hung = self.walk(wheel, wheel.used_slots())[0].position
        parts = [TimerRows.empty()]
        for rows in self.all_units():
            is_ahead = rows.slot_time_ms >= wheel.hand_ms
            parts.append(rows.rows(is_ahead & ~np.isin(rows.position, hung)))
        return TimerRows.together(parts)

    def find(
        self, topic_hash: int | None, slot_time_ms: int, precision_ms: int, *, flags: int = 0
    ) -> TimerRows:
        """Every unit, old and new, of a topic or of any, that is in one slot (``NO_SLOT`` and no
        width for none), has one of some flags, or says by its time that it was overdue.
        """
        is_any, wanted = topic_hash is None, topic_hash or 0
        parts = [TimerRows.empty()]
        for file in self.files():
            address = self.segments.address_of_file(file.start)
            first_ms = max(slot_time_ms, LONG_MIN)
            last_ms = min(slot_time_ms + precision_ms - 1, LONG_MAX)
            room = 16
            while True:
                found = np.zeros((ROW_COLUMNS, room), np.int64)
                count = scan_units(
                    address, file.count, file.start, is_any, wanted, first_ms, last_ms, flags,
                    found,
                )  # fmt: skip
                if count <= room:
                    break
                room = count
            parts.append(TimerRows(found[:, :count]))
        return TimerRows.together(parts)

    def last_unit(self) -> TimerRows:
        """The last unit as a row, or no row."""
        return self.last_units(1)

    def last_units(self, count: int) -> TimerRows:
        """The last units as rows, in order; fewer where there are not so many."""
        parts: list[TimerRows] = []
        for file in reversed([*self.files()]):
            taken = min(count, file.count)
            parts.insert(0, self.units(file.start + (file.count - taken) * _UNIT, taken))
            count -= taken
            if not count:
                break
        return TimerRows.together(parts)

    def units(self, position: int, count: int) -> TimerRows:
        """Units that stand one behind another in one file."""
        view = self.segments.view(position, count * _UNIT)
        return _rows_of(np.frombuffer(view, TIMER_UNIT.dtype), position)

    def unit_at(self, position: int) -> TimerRows:
        """The unit that begins at a position as a row, or no row."""
        per_file = units_per_file(self.file_bytes)
        within = position % self.file_bytes
        fits = within % _UNIT == 0 and within // _UNIT < per_file
        if not (fits and self.segments.min_offset <= position < self.end):
            return TimerRows.empty()
        return self.units(position, 1)

    def slot_times_at(self, positions: Int64s) -> Int64s:
        """The slot time of the unit at each position; -1 where no unit begins."""
        per_file = units_per_file(self.file_bytes)
        times = np.full(len(positions), -1, np.int64)
        within = positions % self.file_bytes
        index = within // _UNIT
        fits = (within % _UNIT == 0) & (index < per_file)
        for file in self.files():
            asked = fits & (positions - within == file.start) & (index < file.count)
            if asked.any():
                view = self.segments.view(file.start, file.count * _UNIT)
                units = np.frombuffer(view, TIMER_UNIT.dtype)
                times[asked] = slot_time_ms(units[index[asked]])
        return times

    def all_units(self, position: int = 0) -> Iterator[TimerRows]:
        """Every unit from a position on, in order and in pieces."""
        for file in self.files():
            end = file.start + file.count * _UNIT
            for begin in range(max(position, file.start), end, _PIECE_UNITS * _UNIT):
                yield self.units(begin, min(_PIECE_UNITS, (end - begin) // _UNIT))

    # --- keeping ----------------------------------------------------------------------------------

    def delete_expired(self, commit_log_min: int) -> list[Path]:
        """Take away the oldest files whose last unit's record the log no longer has, never the
        last, as a broker's cleanup does.
        """
        stop = self.segments.min_offset
        for file in self.files():
            if file.start + self.file_bytes >= self.end or not file.count:
                break
            last = self.units(file.start + (file.count - 1) * _UNIT, 1)
            if last.commit_log_offset[0] >= commit_log_min:
                break
            stop = file.start + self.file_bytes
        self.rewrite_count += stop > self.segments.min_offset
        return self.segments.delete_before(stop)


def _rows_of(units: "np.ndarray[tuple[int], np.dtype[np.void]]", position: int) -> TimerRows:
    table = np.empty((ROW_COLUMNS, len(units)), np.int64)
    table[POSITION] = position + np.arange(len(units), dtype=np.int64) * _UNIT
    times = units["write_time_ms"].astype(np.int64)
    table[1:] = (
        times + units["delay_ms"],
        times,
        units["magic"],
        units["commit_log_offset"],
        units["record_size_bytes"],
        units["topic_hash"],
    )
    return TimerRows(table)


@attrs.define
class PlacedAgain:
    """What is known of the units of one timer log.

    ``known_from`` is the position from which on all were placed since the store was opened; until
    that is said nothing is known. ``is_any`` says whether one of those was placed once more.
    """

    known_from: int = LONG_MAX
    is_any: bool = False

    def know_from(self, position: int) -> None:
        """The store is open: all units from this position on are noted."""
        self.known_from = position

    def note(self, facts: TimerFacts) -> None:
        """These are being placed."""
        self.is_any = self.is_any or bool((facts.table[PREPARED_OFFSET] < 0).any())

    def among(self, rows: TimerRows, log: LiveLog) -> bool:
        """Whether one of these was placed once more and says where first, or may be a marker."""
        if not self.is_any and (rows.position >= self.known_from).all():
            return False
        offsets, sizes = rows.commit_log_offset, rows.size_bytes
        addresses = log.addresses(offsets)
        addresses[sizes > log.rooms(offsets)] = -1
        return bool(is_any_to_be_read(addresses, int64s(sizes)))
