# SPDX-License-Identifier: Apache-2.0
"""The fast form of ``reference.files.SlotsOfWheel`` (Java: TimerWheel): the bytes of the file.

Slots before the hand are over, whatever they hold; the hand never moves back to them. Pages that
change are noted and written together. Pages that never held anything are not looked at: of 9,450 a
small store uses a few.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from message_store.columns.byte_column import Int64s
from message_store.kernels.raw_memory import address_of
from timer_wheel.format.wheel_file import SLOT, WHEEL_FILE_BYTES, WheelSlots
from timer_wheel.format.wheel_math import WHEEL_SLOTS
from timer_wheel.timers.unit_kernels import PAGE_BYTES

_SLOTS_A_PAGE = PAGE_BYTES // SLOT.size
_PAGES = WHEEL_FILE_BYTES // PAGE_BYTES
_NEAR_SLOTS = 512


class LiveWheel:
    """1,209,600 slots, and the hand: the time of the first slot that is not over.

    ``image`` is what the file is to hold, ``dirty`` has a byte for each of its pages. ``precision``
    is the width of a slot in milliseconds.
    """

    def __init__(self, precision_ms: int, hand_ms: int) -> None:
        self.precision_ms = precision_ms
        self.hand_ms = hand_ms
        self._none_before = 0
        self.image: NDArray[np.uint8] = np.zeros(WHEEL_FILE_BYTES, np.uint8)
        self.dirty: NDArray[np.uint8] = np.zeros(_PAGES, np.uint8)
        self._written = np.zeros(_PAGES, np.bool_)

    @property
    def slots(self) -> NDArray[np.void]:
        """The slots as an array of SLOT's dtype over the same memory."""
        return self.image.view(SLOT.dtype)

    def _used_pages(self) -> Int64s:
        """The pages that may hold something: those that were ever written to."""
        return np.flatnonzero(self._written | (self.dirty != 0))

    def _slots_in(self, pages: Int64s) -> NDArray[np.void]:
        """The slots of these pages, one page after the other."""
        if len(pages) == _PAGES:
            return self.slots
        return self.slots.reshape(_PAGES, _SLOTS_A_PAGE)[pages].reshape(-1)

    def _times(self) -> Int64s:
        """The times of all slots that may hold something, in units of the precision; else 0."""
        times: Int64s = self._slots_in(self._used_pages())["time_units"].astype(np.int64)
        return times

    @property
    def address(self) -> int:
        """Where the image is in memory."""
        return address_of(self.image)

    def used_slots(self, until_ms: int | None = None) -> Int64s:
        """The times of the slots that hold something, in units of the precision and in order:
        from the hand on, and before ``until_ms`` where that is given.
        """
        first = max(self.hand_ms // self.precision_ms, 1)
        last = first + WHEEL_SLOTS
        if until_ms is not None:
            last = min(last, until_ms // self.precision_ms)
        if last <= first:
            return np.empty(0, np.int64)
        if last - first < WHEEL_SLOTS // 8:
            wanted = np.arange(first, last, dtype=np.int64)
            times = self.slots["time_units"]
            return np.asarray(wanted[times[wanted % WHEEL_SLOTS] == wanted])
        held = self._times()
        held = held[(held >= first) & (held < last)]
        held.sort()
        return held

    def held_slots(self, until_ms: int) -> Int64s:
        """The same, however far from the hand: where no checkpoint tells, that begins before all
        units, and what lies a round away or more may be done.
        """
        first, last = max(self.hand_ms // self.precision_ms, 1), until_ms // self.precision_ms
        held = self._times()
        return np.sort(held[(held >= first) & (held < last)])

    def used_slots_by_distance(self) -> Iterator[Int64s]:
        """The same in growing pieces: what is near costs little, whatever lies behind it."""
        first = max(self.hand_ms // self.precision_ms, 1)
        first, last = max(first, self._none_before), first + WHEEL_SLOTS
        times = self.slots["time_units"]
        step = _NEAR_SLOTS
        while first < last and step < WHEEL_SLOTS // 8:
            wanted = np.arange(first, min(first + step, last), dtype=np.int64)
            yield wanted[times[wanted % WHEEL_SLOTS] == wanted]
            first, step = first + step, 8 * step
        if first < last:
            held = self.used_slots()
            yield held[held >= first]

    def next_slot_ms(self) -> int | None:
        """The time of the first slot that holds something; None when none does."""
        for near in self.used_slots_by_distance():
            if len(near):
                self._none_before = int(near[0])
                return self._none_before * self.precision_ms
        self._none_before = self.hand_ms // self.precision_ms + WHEEL_SLOTS
        return None

    def will_hold(self, slot_time_ms: int) -> None:
        """Say that something is placed, the earliest of it in this slot."""
        self._none_before = min(self._none_before, slot_time_ms // self.precision_ms)

    def last_positions(self, slots: Int64s) -> Int64s:
        """Where the chains of these slots begin."""
        positions: Int64s = self.slots["last_position"][slots % WHEEL_SLOTS].astype(np.int64)
        return positions

    def unit_count(self, slot_time_ms: int) -> int:
        """How many messages a slot holds, less its delete markers."""
        slot = slot_time_ms // self.precision_ms
        held = self.slots[slot % WHEEL_SLOTS]
        is_it = held["time_units"] == slot and slot_time_ms >= self.hand_ms
        return int(held["unit_count"]) if is_it else 0

    def set_slot(self, slot: int, positions: Int64s, count: int) -> None:
        """Let a slot, given by its time in units of the precision, hold these units, or nothing."""
        self._none_before = 0
        index = slot % WHEEL_SLOTS
        row = np.zeros(1, SLOT.dtype)
        if len(positions):
            row["time_units"], row["unit_count"] = slot, count
            row["first_position"], row["last_position"] = positions[0], positions[-1]
        self.slots[index : index + 1] = row
        self.dirty[index // _SLOTS_A_PAGE] = 1

    def slots_of(self, slot_time_ms: Int64s) -> NDArray[np.void]:
        """A copy of the slot of each of these times, for ``put_back``."""
        return self.slots[slot_time_ms // self.precision_ms % WHEEL_SLOTS]

    def put_back(self, slot_time_ms: Int64s, slots: NDArray[np.void]) -> None:
        """Let the slots of these times be again what they were."""
        self.slots[slot_time_ms // self.precision_ms % WHEEL_SLOTS] = slots

    def move_hand(self, to_ms: int) -> None:
        """Say that all slots before ``to_ms`` are over. The hand never moves back."""
        self.hand_ms = max(self.hand_ms, to_ms)

    def all_is_written(self) -> None:
        """Note that the file holds all that the pages do."""
        self._written |= self.dirty != 0
        self.dirty[:] = 0

    def note_differences(self, file: WheelSlots, log_end: int) -> None:
        """Note the pages in which a file is not what it should be, and no others.

        Slots that are over, and those that hold nothing here, may hold anything there before the
        hand, as long as it lies before the timer log's end: other units come to lie behind that.
        """
        self.all_is_written()
        pages = np.union1d(np.flatnonzero(self._written), file.index // _SLOTS_A_PAGE)
        here = self._slots_in(pages)
        there = np.zeros(len(here), SLOT.dtype)
        page = np.searchsorted(pages, file.index // _SLOTS_A_PAGE)
        there[page * _SLOTS_A_PAGE + file.index % _SLOTS_A_PAGE] = file.slots
        differs = (here.view(np.int64) != there.view(np.int64)).reshape(-1, SLOT.size // 8)
        first = self.hand_ms // self.precision_ms
        matters = (here["time_units"] >= first) | (there["time_units"] >= first)
        matters |= there["last_position"] >= log_end
        found = np.flatnonzero(differs.any(axis=1) & matters)
        self.dirty[pages[found // _SLOTS_A_PAGE]] = 1

    def miscounted(self, file: WheelSlots) -> Int64s:
        """Slots whose file entry has the same chain but another count: a delete flag flipped."""
        here, there = self.slots[file.index], file.slots
        is_it = here["unit_count"] != there["unit_count"]
        for name in ("time_units", "first_position", "last_position"):
            is_it &= here[name] == there[name]
        is_it &= here["time_units"] >= max(self.hand_ms // self.precision_ms, 1)
        return np.sort(here["time_units"][is_it].astype(np.int64))

    def told_otherwise(self, file: WheelSlots) -> tuple[Int64s, Int64s]:
        """The first and the last units of slots of the file that are yet to be read and have others
        here: their positions, and their slots in units of the precision.
        """
        here, there = self.slots[file.index], file.slots
        is_other = here["time_units"] != there["time_units"]
        for name in ("first_position", "last_position"):
            is_other |= here[name] != there[name]
        is_other &= there["time_units"] >= max(self.hand_ms // self.precision_ms, 1)
        is_other &= there["time_units"] % WHEEL_SLOTS == file.index
        other = there[is_other]
        positions = np.concatenate([other["first_position"], other["last_position"]])
        return positions.astype(np.int64), np.tile(other["time_units"].astype(np.int64), 2)

    def take_dirty_pieces(self) -> Iterator[tuple[int, memoryview]]:
        """The pages that changed, neighbours together, as (file offset, bytes); each is noted as
        written when the next is asked for.
        """
        pages = np.flatnonzero(self.dirty)
        if not len(pages):
            return
        cuts = np.flatnonzero(np.diff(pages) != 1) + 1
        for run in np.split(pages, cuts):
            begin, end = int(run[0]) * PAGE_BYTES, (int(run[-1]) + 1) * PAGE_BYTES
            yield begin, self.image[begin:end].data
            self._written[run] = True
            self.dirty[run] = 0
