# SPDX-License-Identifier: Apache-2.0
"""The wheel file: 1,209,600 slots of 32 bytes, each the two ends of a chain in the timer log.

The file is a broker's memory written down now and then, stale even after a clean stop:
``wheel_reader.revised_slots`` brings it up to the timer log. With `timerWheelSnapshotFlush` (5.4
and later) the broker writes whole copies named ``timerwheel.<N>`` instead. N is the timer log
position up to which the copy is right (docs/FORMAT.md, timer wheel).
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError, FormatError
from message_store.files.small_files import read_extents
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX
from message_store.format.layout import Field, Layout
from timer_wheel.format.wheel_math import WHEEL_SLOTS, Int64Array, slot_index

SLOT = Layout(
    "timer wheel slot",
    (
        Field("time_units", "i64", "the slot's time divided by the precision (Java: timeMs)"),
        Field("first_position", "i64", "timer log position of the oldest unit (firstPos)"),
        Field("last_position", "i64", "timer log position of the newest, where walks begin"),
        Field("unit_count", "i32", "units less twice the delete markers; statistics only (num)"),
        Field("magic", "i32", "0"),
    ),
)
WHEEL_FILE_BYTES = WHEEL_SLOTS * SLOT.size

_PAGE_BYTES = 4096
_NO_INDEX = np.empty(0, np.int64)
_NO_SLOTS = np.empty(0, SLOT.dtype)


@attrs.frozen(eq=False)
class WheelSlots:
    """The slots of a wheel that are in use, which are those that are not all zeros.

    ``index`` says which slots of the 1,209,600 they are (int64, ascending), ``slots`` has one row
    of SLOT's dtype for each. ``path`` is None when there was no file, which is a wheel of zeros.
    ``log_position`` is the timer log position that a snapshot is right up to; None for the plain
    file.
    """

    index: Int64Array
    slots: NDArray[np.void]
    path: Path | None = None
    log_position: int | None = None

    def slot(self, index: int) -> NDArray[np.void]:
        """The slot of this index as an array of one row; zeros when it is not in use."""
        row = self.slots[self.index == index]
        return row if len(row) else np.zeros(1, self.slots.dtype)


NO_SLOTS = WheelSlots(_NO_INDEX, _NO_SLOTS)
"""A wheel of zeros."""


def snapshots(root: StoreRoot) -> list[tuple[int, Path]]:
    """The snapshots beside the wheel file, as (timer log position, path), oldest first."""
    prefix = f"{root.timer_wheel.name}."
    found = []
    for path in root.path.glob(f"{prefix}*"):
        digits = path.name.removeprefix(prefix)
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= len(str(LONG_MAX))
        if is_number and path.is_file() and not path.is_symlink():
            found.append((int(digits), path))
    return sorted(found)


def read_wheel(root: StoreRoot, *, snapshots_on: bool | None = False) -> WheelSlots:
    """The slots that a broker would load; ``snapshots_on`` is its `timerWheelSnapshotFlush`. None:
    nobody knows, and of file and snapshot each slot is the one that leads farther.

    No file, or an empty one, is a wheel without units. Raises FormatError for any other length
    than the one there is: a broker does not start on it.
    """
    known = [] if snapshots_on is False else snapshots(root)
    if not known:
        return read_slots(root.timer_wheel) or NO_SLOTS
    log_position, path = known[-1]
    if snapshots_on:
        return attrs.evolve(read_slots(path) or NO_SLOTS, log_position=log_position or None)
    plain = read_slots(root.timer_wheel) or NO_SLOTS
    with suppress(FormatError):  # which no broker may ever have read
        return _farther(plain, read_slots(path) or NO_SLOTS, log_position)
    return plain


def _farther(plain: WheelSlots, snapshot: WheelSlots, log_position: int) -> WheelSlots:
    """The file, and a snapshot's slots that lead farther: positions in the timer log only grow."""
    index = np.concatenate([plain.index, snapshot.index])
    slots = np.concatenate([plain.slots, snapshot.slots], dtype=SLOT.dtype)
    order = np.lexsort((slots["last_position"], index))
    index, slots = index[order], slots[order]
    is_last = np.append(np.diff(index) != 0, True)[: len(index)]
    found = WheelSlots(index[is_last], slots[is_last], plain.path)
    return attrs.evolve(found, log_position=log_position or None)


def read_slots(path: Path) -> WheelSlots | None:
    """The slots in use of one wheel file; None when it is not there or empty.

    What is read is what the file holds: of a sparse file, as brokers and this package make it, a
    few pages. Raises FormatError for a file of another length, SourceError when it cannot be read.
    """
    extents = read_extents(path, WHEEL_FILE_BYTES, "a timer wheel")
    if extents is None:
        return None
    index, slots = [_NO_INDEX], [_NO_SLOTS]
    for offset, content in extents:
        piece = np.frombuffer(content, SLOT.dtype)
        used = used_slots(piece)
        index.append(offset // SLOT.size + used)
        slots.append(piece[used])
    return WheelSlots(np.concatenate(index), np.concatenate(slots, dtype=SLOT.dtype), path)


def all_slots(root: StoreRoot) -> WheelSlots:
    """The slots in use of the wheel file and of the newest snapshot, one behind the other: a broker
    that writes snapshots leaves zeros in the file. What is no wheel has none. Raises SourceError.
    """
    parts = [NO_SLOTS]
    for path in (root.timer_wheel, *(path for _, path in snapshots(root)[-1:])):
        with suppress(FormatError):
            parts.append(read_slots(path) or NO_SLOTS)
    return WheelSlots(
        np.concatenate([part.index for part in parts]),
        np.concatenate([part.slots for part in parts], dtype=SLOT.dtype),
    )


def used_slots(slots: NDArray[np.void]) -> Int64Array:
    """Which of these slots, contiguous rows of SLOT's dtype, are not all zeros (int64)."""
    words = slots.view(np.int64).reshape(-1, SLOT.size // 8)
    is_used: NDArray[np.bool_] = (words[:, 0] | words[:, 1] | words[:, 2] | words[:, 3]) != 0
    return np.flatnonzero(is_used)


def encode_slots(
    slot_time_ms: Int64Array,
    first_position: Int64Array,
    last_position: Int64Array,
    unit_count: Int64Array,
    *,
    precision_ms: int,
) -> Iterator[tuple[int, bytes]]:
    """The used part of a wheel file as (file offset, bytes), in order of offset.

    One element a slot in each array, in any order; slots with less than a page between them come
    as one piece. Everything else in the file is zeros, so a writer leaves it as a hole. Raises
    BadFieldError when two times share a slot: the earlier chain would be out of reach.
    """
    index = slot_index(slot_time_ms, precision_ms)
    order = np.argsort(index, kind="stable")
    index = index[order]
    if (shared := np.flatnonzero(index[1:] == index[:-1])).size:
        raise BadFieldError("two times in one slot of the wheel", found=int(index[shared[0]]))
    slots = np.zeros(len(index), SLOT.dtype)
    slots["time_units"] = slot_time_ms[order] // precision_ms
    slots["first_position"] = first_position[order]
    slots["last_position"] = last_position[order]
    slots["unit_count"] = unit_count[order]
    cuts = np.flatnonzero(np.diff(index) > _PAGE_BYTES // SLOT.size) + 1
    for begin, end in zip((0, *cuts), (*cuts, len(index)), strict=True):
        if begin < end:
            piece = np.zeros(index[end - 1] - index[begin] + 1, SLOT.dtype)
            piece[index[begin:end] - index[begin]] = slots[begin:end]
            yield int(index[begin]) * SLOT.size, piece.tobytes()
