# SPDX-License-Identifier: Apache-2.0
"""Cancels a message in its level: finds its entry and what became of it."""

import enum
from collections.abc import Iterator

import attrs
import numpy as np

from legacy_levels.engine.cursor import find_record_end
from legacy_levels.engine.state import LevelState
from legacy_levels.engine.waiting_records import ROWS_AT_ONCE, equals, read_waiting
from legacy_levels.neutral_units import (
    CANCELLED_BYTES,
    DELIVERED_BYTES,
    is_message,
    is_neutral,
)
from message_store.base.errors import FormatError
from message_store.format.message import StoredMessage
from message_store.format.recall_handle import RecallHandle
from message_store.format.record_layout import (
    HEAD_V4_V4,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_RECORD_BYTES,
)
from message_store.interface.delay_store import Cancellation, Receipt
from message_store.reading.consume_queue import is_pre_blank
from message_store.writing.log import LiveLog

_LOOK_BACK_BYTES = 64 << 10
_MAGICS = [(magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2)]
_AT_MAGIC = HEAD_V4_V4.offset_of("magic")


class Fate(enum.Enum):
    """What became of an entry."""

    WAITS = "waits"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"


@attrs.frozen
class Entry:
    """An entry of a level by its queue offset, and where its record lies."""

    level: int
    queue_offset: int
    commit_log_offset: int
    size_bytes: int
    due_ms: int
    fate: Fate


def entries_of_receipt(state: LevelState, receipt: Receipt) -> list[Entry]:
    """The entry of one receipt, or none.

    What was due at once was promised for the time when it was stored. An entry that was lost and
    rebuilt from its record has its level's time.
    """
    handle = RecallHandle.parse(receipt.handle)
    if handle.broker_name != state.live.settings.broker_name:
        return []
    message = _record_from(state.live.log, receipt.commit_log_offset)
    if message is None or not _is_meant(message, handle):
        return []
    level = message.queue_id + 1
    if level not in state.all_cursors:
        return []
    size_bytes = _size_at(state.live.log, receipt.commit_log_offset)
    queue = state.queue(level)
    own = queue.units(message.queue_offset, message.queue_offset + 1)
    if (own["commit_log_offset"] == receipt.commit_log_offset).any():
        state.right_units(level, np.array([message.queue_offset]), own)
    queue_offset = find_record_end(queue, receipt.commit_log_offset + size_bytes)
    entry = None if queue_offset is None else _entry_at(state, level, queue_offset)
    if entry is None or handle.due_ms not in (entry.due_ms, message.store_timestamp_ms):
        return []
    return [entry]


def entries_of_handle(state: LevelState, handle: RecallHandle) -> list[Entry]:
    """All entries that a handle names, those already delivered or cancelled too.

    Where none has its time, the message may have been due at once, and its entry rebuilt.
    """
    if handle.broker_name != state.live.settings.broker_name:
        return []
    found = [
        entry
        for level in state.all_cursors
        for entry, _ in _named_in(state, level, handle, handle.due_ms)
    ]
    level = state.table.shortest_level
    if found or level not in state.all_cursors:
        return found
    rebuilt_ms = handle.due_ms + state.table.delay_ms(level)
    return [
        entry
        for entry, message in _named_in(state, level, handle, rebuilt_ms)
        if message.store_timestamp_ms == handle.due_ms
    ]


def _named_in(
    state: LevelState, level: int, handle: RecallHandle, due_ms: int
) -> Iterator[tuple[Entry, StoredMessage]]:
    """The entries of one level that are due then and that a handle names, and their messages; of
    many that are due then, in bulk.
    """
    cursor, log = state.all_cursors[level], state.live.log
    due_then = state.runs(level).find(due_ms)
    for start in range(0, len(due_then), ROWS_AT_ONCE):
        places = due_then[start : start + ROWS_AT_ONCE]
        units = cursor.queue.units(int(places[0]), int(places[-1]) + 1)[places - places[0]]
        neutral = places[is_neutral(units)].tolist()
        whole = is_message(units)
        places, units = places[whole], units[whole]
        units = state.right_units(level, places, units)
        offsets = units["commit_log_offset"].astype(np.int64)
        meant = list(neutral)
        for part in read_waiting(log, offsets, units["size_bytes"].astype(np.int64)):
            named = equals(part.unique_key, handle.unique_key.encode())
            named &= equals(part.real_topic, handle.topic.encode())
            meant += places[part.rows[named]].tolist()
        for queue_offset in sorted(meant):
            entry = _entry_at(state, level, queue_offset)
            message = None if entry is None else _record_from(log, entry.commit_log_offset)
            if entry is not None and message is not None and _is_meant(message, handle):
                yield entry, message


def verdict(entries: list[Entry]) -> Cancellation:
    """What to answer when nothing of these waits."""
    if not entries:
        return Cancellation.NEVER_EXISTED
    was_delivered = any(entry.fate is Fate.DELIVERED for entry in entries)
    return Cancellation.ALREADY_DELIVERED if was_delivered else Cancellation.CANCELLED


def _is_meant(message: StoredMessage, handle: RecallHandle) -> bool:
    return message.real_topic == handle.topic and message.unique_key == handle.unique_key


def _entry_at(state: LevelState, level: int, queue_offset: int) -> Entry | None:
    """An entry with its record's place, which a neutral unit does not tell."""
    cursor = state.all_cursors[level]
    units = cursor.queue.units(queue_offset, queue_offset + 1)
    if is_pre_blank(units).any():
        return None
    [unit] = units
    offset, size_bytes = int(unit["commit_log_offset"]), int(unit["size_bytes"])
    waits = cursor.still_waits(queue_offset)
    waits &= queue_offset not in state.to_repeat.get(level, ())  # it is delivered once more
    fate = Fate.WAITS if waits else Fate.DELIVERED
    if size_bytes <= DELIVERED_BYTES:
        fate = Fate.CANCELLED if size_bytes == CANCELLED_BYTES else Fate.DELIVERED
        end = offset + size_bytes
        start = _start_of_record(state.live.log, end)
        if start is None:
            return None
        offset, size_bytes = start, end - start
    return Entry(level, queue_offset, offset, size_bytes, int(unit["tags_code"]), fate)


# --- records by place -----------------------------------------------------------------------------


def _size_at(log: LiveLog, offset: int) -> int:
    if not log.holds(offset, SMALLEST_RECORD_BYTES):
        return 0
    return HEAD_V4_V4.decode_at(log.segments.read_at(offset, HEAD_V4_V4.size), 0)["size_bytes"]


def _record_from(log: LiveLog, offset: int) -> StoredMessage | None:
    """The record that begins at a place of the log, if one does."""
    try:
        return log.record(offset, _size_at(log, offset))
    except FormatError:
        return None


def _start_of_record(log: LiveLog, end: int) -> int | None:
    """Where the record begins that ends at a place of the log: looked for backwards."""
    file_start = (end - 1) - (end - 1) % log.file_bytes
    reach = _LOOK_BACK_BYTES
    while True:
        base = max(file_start, log.min_offset, end - reach)
        data = bytes(log.segments.view(base, end - base))
        for start in _heads(data, base):
            if _size_at(log, start) == end - start and _record_from(log, start) is not None:
                return start
        if base in (file_start, log.min_offset):
            return None
        reach *= 8


def _heads(data: bytes, base: int) -> list[int]:
    """The places where one of the magics stands, as beginnings of records, the last first."""
    starts = []
    for magic in _MAGICS:
        place = data.find(magic, _AT_MAGIC)
        while place >= 0:
            starts.append(base + place - _AT_MAGIC)
            place = data.find(magic, place + 1)
    return sorted(starts, reverse=True)
