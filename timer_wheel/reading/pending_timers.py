# SPDX-License-Identifier: Apache-2.0
"""Pending messages of a wheel as columns, and the records behind the rows."""

from collections.abc import Iterator
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import FormatError
from message_store.files.segments import SegmentReader
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.record_layout import MAGIC_V1, MAGIC_V2, head_layout
from timer_wheel.format.checkpoint import NEVER_REACHED
from timer_wheel.format.timer_log import FLAG_DELETE, FLAG_ROLL
from timer_wheel.format.wheel_math import Int64Array

NOT_IN_QUEUE = -1
"""The queue offset of what has left the timer queue."""

Blocking: TypeAlias = tuple[tuple[int, int], ...]
"""The queue offset and the commit log offset of each record that stops a broker."""


@attrs.frozen(eq=False)
class PendingTimers:
    """One row a message, in all columns ``int64``.

    A message on the wheel has its timer log ``position`` and ``queue_offset`` -1; one that waits in
    the queue to be placed has ``position`` -1, and one in a timeline has -1 for both.
    ``slot_time_ms`` is the slot's time, and for one that is not on the wheel its TIMER_OUT_MS.
    ``flags`` are those of the unit.
    """

    position: Int64Array
    queue_offset: Int64Array
    slot_time_ms: Int64Array
    flags: Int64Array
    commit_log_offset: Int64Array
    size_bytes: Int64Array

    def __len__(self) -> int:
        return len(self.position)

    @property
    def is_marker(self) -> NDArray[np.bool_]:
        """Which rows are delete markers and no messages."""
        return np.asarray(self.flags & FLAG_DELETE != 0)

    @property
    def is_roll(self) -> NDArray[np.bool_]:
        """Which rows will roll and not be delivered when their slot is taken."""
        return np.asarray(self.flags & FLAG_ROLL != 0)

    @property
    def is_in_timeline(self) -> NDArray[np.bool_]:
        """Which rows wait in the RocksDB timeline of 5.4 and newer."""
        return np.asarray((self.position < 0) & (self.queue_offset == NOT_IN_QUEUE))

    def rows(self, chosen: NDArray[np.bool_] | Int64Array) -> "PendingTimers":
        """The chosen rows, by a mask or by their places."""
        return PendingTimers(*(column[chosen] for column in attrs.astuple(self)))

    def followed_by(self, other: "PendingTimers") -> "PendingTimers":
        """These rows and then those."""
        pairs = zip(attrs.astuple(self), attrs.astuple(other), strict=True)
        return PendingTimers(*(np.concatenate(pair) for pair in pairs))


def record_at(commit_log: SegmentReader, offset: int, size_bytes: int) -> StoredMessage | None:
    """The record of exactly this size, as a delivering broker reads it: body CRC unchecked.

    None where there is none; a broker drops such a message silently.
    """
    head = head_layout(0)
    try:
        if head.decode_at(commit_log.read_at(offset, head.size), 0)["size_bytes"] != size_bytes:
            return None
        segment = commit_log.segment_at(offset)
        if segment is None or offset + size_bytes > segment.start_offset + segment.length_bytes:
            return None
        return decode_message_at(commit_log.read_at(offset, size_bytes), check_crc=False)
    except FormatError:
        return None


def leads_astray(
    commit_log: SegmentReader, offset: int, size_bytes: int, *, after_crash: bool
) -> bool:
    """Whether an entry is wrong, and not the record: no record begins there, or a whole one of
    another size. After a crash what begins with nothing, or behind all files, may have been lost
    with the power.
    """
    if not 0 <= offset < NEVER_REACHED:
        return True
    head = head_layout(0)
    try:
        found = head.decode_at(commit_log.read_at(offset, head.size), 0)
    except FormatError:
        return not after_crash
    if found["magic"] not in (MAGIC_V1, MAGIC_V2):
        return not after_crash or found["size_bytes"] != 0 or found["magic"] != 0
    its_bytes = int(found["size_bytes"])
    return its_bytes != size_bytes and record_at(commit_log, offset, its_bytes) is not None


def pending_records(
    commit_log: SegmentReader, pending: PendingTimers
) -> Iterator[StoredMessage | None]:
    """The record of each row, in order, one by one; None for a record that is not there."""
    for offset, size in zip(
        pending.commit_log_offset.tolist(), pending.size_bytes.tolist(), strict=True
    ):
        yield record_at(commit_log, offset, size)
