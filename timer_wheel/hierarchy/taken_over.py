# SPDX-License-Identifier: Apache-2.0
"""What a wheel in files had settled when its store became a hierarchical wheel's: the pending
entries of the timer queue, and the wheel's slots.

A wheel cancels by slot, so neither queue nor log tell to the millisecond which messages it
cancelled. The file is written before the store changes hands and never changes. A rebuilt index
begins there, however often it is lost. The same is written of a hierarchical wheel of an earlier
version, whose deliveries name nothing.
"""

import zlib
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from message_store.base.errors import FormatError, SourceError
from message_store.columns.byte_column import Int64s, int64s
from message_store.files.small_files import read_small_file, remove_file, replace_file
from message_store.files.store_root import StoreRoot
from message_store.format.layout import Field, Layout
from message_store.format.properties import TIMER_TOPIC
from message_store.writing.store import LiveStore
from timer_wheel.format.older_slots import (
    MEANING_OF_WIDTHS,
    MOST_WIDTHS,
    NO_OLDER_SLOTS,
    OlderSlots,
)
from timer_wheel.reading.ownership import home
from timer_wheel.timers.rows import Bools

_NAME = "taken-over"
_PIECE = 1 << 17

TAKEN_OVER = Layout(
    "taken over",
    (
        Field("first_queue_offset", "i64", "the timer queue's entry of the first bit"),
        Field("placed_end", "i64", "where the queue ended, and the bits"),
        Field("log_end", "i64", "where the commit log ended; what was delivered since is behind"),
        Field("last_start", "i64", "where the last record begins before that"),
        Field("last_head", "i64", "CRC-32 of its first 91 bytes"),
        *(
            Field(f"{name}_{number}", "i64", meaning)
            for number in range(MOST_WIDTHS)
            for name, meaning in (
                ("slots_until", "records before it are of the wheel's slots of the next width"),
                ("slots_precision_ms", f"{MEANING_OF_WIDTHS}; 0: none"),
            )
        ),
        Field("checksum", "i64", "CRC-32 of the bytes before it and of the bits"),
    ),
)
_CHECKED_BYTES = TAKEN_OVER.offset_of("checksum")


@attrs.frozen(eq=False)
class TakenOver:
    """What waited among the entries of the queue from ``first_queue_offset`` to ``placed_end``, and
    which slots the records before ``log_end`` were stored for.
    """

    first_queue_offset: int
    placed_end: int
    log_end: int
    last_start: int
    last_head: int
    older: OlderSlots
    waits: Bools

    @classmethod
    def of(cls, store: LiveStore, waiting: Int64s, older: OlderSlots) -> "TakenOver":
        """Each pending message has its record at one of these places of the log."""
        queue, log = store.queue(TIMER_TOPIC, 0), store.log
        parts = [np.empty(0, bool)]
        for first in range(queue.min_offset, queue.max_offset, _PIECE):
            units = queue.units(first, min(queue.max_offset, first + _PIECE))
            parts.append(np.isin(int64s(units["commit_log_offset"]), waiting))
        return cls(
            queue.min_offset,
            queue.max_offset,
            log.end,
            log.last_start,
            log.head_checksum(log.last_start),
            older,
            np.concatenate(parts),
        )

    def may_wait(self, queue_offsets: Int64s) -> Bools:
        """Which of these entries waited, or came later."""
        at = queue_offsets - self.first_queue_offset
        may = np.ones(len(at), bool)
        is_known = (at >= 0) & (at < len(self.waits))
        may[is_known] = self.waits[at[is_known]]
        return may

    def is_of(self, store: LiveStore) -> bool:
        """Whether the log still has what it had, but for files that retention took; or is of no
        use, for its end was cut off and other records came.
        """
        log = store.log
        if self.last_start < log.min_offset:
            return True
        return log.end >= self.log_end and log.head_checksum(self.last_start) == self.last_head

    def cut_to(self, store: LiveStore) -> "TakenOver":
        """The same of a log that has lost its end, with nothing behind it yet."""
        log, placed_end = store.log, store.queue(TIMER_TOPIC, 0).max_offset
        return attrs.evolve(
            self,
            placed_end=min(self.placed_end, placed_end),
            log_end=log.end,
            last_start=log.last_start,
            last_head=log.head_checksum(log.last_start),
            older=self.older.cut_to(log.end),
            waits=self.waits[: max(0, placed_end - self.first_queue_offset)],
        )


def keep_taken_over(store: LiveStore, known: TakenOver) -> None:
    """Write it down durably, after what it speaks of. Raises TargetError."""
    store.sync_log()
    store.sync_queues()
    older = zip(known.older.untils, known.older.widths_ms, strict=True)
    fields: dict[str, Any] = dict.fromkeys((field.name for field in TAKEN_OVER.fields), 0)
    for number, (until, width_ms) in enumerate(older):
        fields |= {f"slots_until_{number}": until, f"slots_precision_ms_{number}": width_ms}
    fields |= attrs.asdict(known, filter=lambda field, _: field.name in fields)
    bits = np.packbits(known.waits).tobytes()
    head = TAKEN_OVER.encode(**fields)[:_CHECKED_BYTES]
    checksum = TAKEN_OVER.part("checksum", "checksum").encode(checksum=zlib.crc32(head + bits))
    replace_file(_path(store.root), head + checksum + bits)


def forget_taken_over(root: StoreRoot) -> None:
    """The store is a wheel's again, or never was one's. Raises TargetError."""
    remove_file(_path(root), is_durable=True)


def read_taken_over(store: LiveStore) -> TakenOver | None:
    """What was written down; None where the store was no wheel's, or has another log since.

    Raises SourceError for a file that is damaged, TargetError.
    """
    known = _read(_path(store.root))
    if known is None:
        return None
    if store.log.min_offset <= known.last_start and store.log.end < known.log_end:
        known = known.cut_to(store)
        keep_taken_over(store, known)
    return known if known.is_of(store) else None


def damage_of_taken_over(root: StoreRoot) -> str | None:
    """Why the file cannot be believed; None where it can be, or is not there."""
    try:
        _read(_path(root))
    except SourceError as error:
        return str(error)
    return None


def older_slots(store: LiveStore) -> OlderSlots:
    """The slots of the wheel that the store was; none where nothing tells: of a damaged file
    ``check`` does. Raises TargetError.
    """
    try:
        known = read_taken_over(store)
    except SourceError:
        return NO_OLDER_SLOTS
    return NO_OLDER_SLOTS if known is None else known.older


def _read(path: Path) -> TakenOver | None:
    content = read_small_file(path)
    if content is None:
        return None
    try:
        fields = TAKEN_OVER.decode_at(content, 0)
    except FormatError as error:
        raise _damaged(path) from error
    bits = content[TAKEN_OVER.size :]
    if zlib.crc32(content[:_CHECKED_BYTES] + bits) != fields.pop("checksum"):
        raise _damaged(path)
    slots = [
        (fields.pop(f"slots_until_{number}"), fields.pop(f"slots_precision_ms_{number}"))
        for number in range(MOST_WIDTHS)
    ]
    slots = [each for each in slots if each[1]]
    older = OlderSlots(tuple(until for until, _ in slots), tuple(width for _, width in slots))
    count = fields["placed_end"] - fields["first_queue_offset"]
    waits = np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(bool)
    return TakenOver(**fields, older=older, waits=waits)


def _damaged(path: Path) -> SourceError:
    return SourceError(
        f"{path}: damaged: it should say what waited when a wheel handed the store over. Without"
        " this file the queue tells, and what the wheel had cancelled may come"
    )


def _path(root: StoreRoot) -> Path:
    return home(root) / _NAME
