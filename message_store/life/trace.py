# SPDX-License-Identifier: Apache-2.0
"""The life of a message, told from its records: which belong together, and what each says.

A delivered or rolled record names the first record of its message (``redelivery.lineage``). A
rescheduled one names the record that it replaces (``intake.rescheduling``), a retry the record that
was received first. Records that a broker delivered name none. They belong to the newest message of
their unique key and topic that was not delivered yet.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np

from message_store.base.errors import BadFieldError, FormatError
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format import properties as names
from message_store.format.java_numbers import LONG_MAX
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.properties import UNIQUE_KEY
from message_store.format.record_layout import HEAD_V4_V4, SMALLEST_RECORD_BYTES
from message_store.intake.rescheduling import replaced_by, replaced_offset
from message_store.interface.message_life import Event, TraceStep
from message_store.kernels.cache import kernel
from message_store.kernels.log import (
    AT_SIZE,
    PARTS,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    RECORD,
    entry_head_bytes,
    head_at,
)
from message_store.kernels.properties import find_value
from message_store.kernels.raw_memory import address_of, load_i32
from message_store.kernels.text import equal_bytes
from message_store.reading.commit_log import LogWalk
from message_store.reading.indexed_end import newest_places
from message_store.reading.looking import looking_at
from message_store.redelivery.lineage import first_offset, first_offset_at
from message_store.writing.store import LiveStore

_KEY = np.frombuffer(UNIQUE_KEY.encode(), np.uint8)
_KEY_NAME_BYTES = len(UNIQUE_KEY)
_COUNT, _STOPPED_AT, _WHY = range(3)
_OFFSET, _SIZE = range(2)
_LOG = logging.getLogger(__name__)

TellPlace: TypeAlias = Callable[[int], None]
"""Is told where in the log no record can be read: it may be one of the message."""


def tell_log(place: int) -> None:
    """Warn in the log."""
    _LOG.warning("the log of the store cannot be read at offset %d; a trace leaves it out", place)


_MOST_AT_ONCE = (8 << 20) // SMALLEST_RECORD_BYTES
"""More records than a buffer of the walk can hold, unless one of them is very large."""


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64, int64[:, ::1], int64[::1])")
def find_of_message(
    buffer: int,
    length: int,
    base: int,
    file_room: int,
    name: int,
    key: int,
    key_bytes: int,
    first: int,
    rows: Any,
    found: Any,
) -> None:
    """Find the records in a buffer that have a unique key, or whose first record is at ``first``.

    ``name`` is the address of the property's name, ``key_bytes`` 0 for no key. ``rows`` gets
    offset and size of each. ``found`` gets how many, where the walk stopped, and why.
    """
    parts = np.empty(PARTS, np.int64)
    place, count = 0, 0
    while True:
        at = place + entry_head_bytes(buffer + place, length - place, base + place)
        record = buffer + at
        why = head_at(record, length - at, file_room - at, base + at, parts.ctypes.data)
        if why != RECORD or count == rows.shape[1]:
            break
        place, size = at, load_i32(record + AT_SIZE)
        is_it = first_offset_at(record, base + place) == first
        if key_bytes and not is_it:
            text = record + parts[PROPERTIES_AT]
            end = text + parts[PROPERTIES_BYTES]
            value, value_bytes = find_value(text, end, name, _KEY_NAME_BYTES)
            is_it = value_bytes == key_bytes and equal_bytes(value, key, key_bytes)
        if is_it:
            rows[_OFFSET, count], rows[_SIZE, count] = base + place, size
            count += 1
        place += size
    found[_COUNT], found[_STOPPED_AT], found[_WHY] = count, place, why


def find_records(
    reader: SegmentReader,
    unique_key: str | None,
    tell_damage: TellPlace,
    *,
    first: int = -1,
    known_end: int = 0,
    newest: Collection[int] = (),
) -> list[StoredMessage]:
    """The records of a log that have a unique key, or name the record at ``first``; in order.

    Below ``known_end``, or where the newest entries of queues say that records begin, damage is
    stepped over, as ``LogWalk`` does, and told. So is a record of the message that cannot be
    decoded; of others no body is checked. Raises SourceError where the disk refuses.
    """
    key = np.frombuffer((unique_key or "").encode("utf-8", "surrogatepass"), np.uint8)
    rows, found = np.empty((2, _MOST_AT_ONCE), np.int64), np.zeros(3, np.int64)
    places: list[tuple[int, int]] = []
    key_at = address_of(key) if key.size else 0

    def visit(address: int, length: int, base: int, room: int) -> tuple[int, int]:
        wanted = address_of(_KEY), key_at, key.size, first
        find_of_message(address, length, base, room, *wanted, rows, found)
        places.extend(zip(*rows[:, : found[_COUNT]].tolist(), strict=True))
        return int(found[_STOPPED_AT]), int(found[_WHY])

    walk = LogWalk(reader, known_end=max([known_end, *(each + 1 for each in newest)]))
    end = walk.run(reader.min_offset, visit, stop_at=known_end or LONG_MAX)
    for damaged in walk.damaged_places:
        if damaged < max(end, known_end) or damaged in newest:  # else the entry is damaged
            tell_damage(damaged)
    records = []
    for offset, size_bytes in places:
        if (record := record_at(reader, offset, size_bytes)) is not None:
            records.append(record)
        else:
            tell_damage(offset)
    return records


def record_at(
    reader: SegmentReader, offset: int, size_bytes: int | None = None
) -> StoredMessage | None:
    """The record at an offset, by default of its own size; None where none can be decoded."""
    try:
        if size_bytes is None:
            head = HEAD_V4_V4.decode_at(reader.read_at(offset, HEAD_V4_V4.size), 0)
            size_bytes = head["size_bytes"]
            segment = reader.segment_at(offset)
            room = 0 if segment is None else segment.start_offset + segment.length_bytes - offset
            if head["commit_log_offset"] != offset or not 0 < size_bytes <= room:
                return None
        return decode_message_at(reader.read_at(offset, size_bytes))
    except FormatError:
        return None


_WIDEST_SLOT_MS = 1_000
_OFFSET_BYTES = 8
_ID_BYTES = (16, 28)
"""Of an offset message id: address, port and offset, with 4 or 16 bytes of address."""


def trace_directory(
    path: Path | str, unique_key: str, tell_damage: TellPlace = tell_log
) -> list[TraceStep]:
    """Every record of a unique key in the log of a store that is only looked at, in order.

    The store may be a broker's, or open in another process of ours. Raises SourceError for a
    directory that is no store, or that a broker holds.
    """
    root = StoreRoot(path)
    root.require_readable()
    with looking_at(root), open_log(root) as reader:
        newest = newest_places(root.path)
        return list(tell(find_records(reader, unique_key, tell_damage, newest=newest)))


def trace_offset_id(
    path: Path | str, offset_id: str, tell_damage: TellPlace = tell_log
) -> list[TraceStep]:
    """The same for the message of which a record has this offset message id.

    Raises BadFieldError for text that is no such id.
    """
    offset, root = offset_of_id(offset_id), StoreRoot(path)
    root.require_readable()
    with looking_at(root), open_log(root) as reader:
        record, newest = record_at(reader, offset), newest_places(root.path)
        key, first = (record.unique_key, first_offset(record)) if record else (None, offset)
        found = find_records(reader, key, tell_damage, first=first, newest=newest)
        return only_life_of(list(tell(found)), offset)


def trace_log(
    live: LiveStore, unique_key: str, tell_damage: TellPlace = tell_log
) -> list[TraceStep]:
    """The same for a store that is open; whoever calls holds its lock."""
    with SegmentReader(live.log.segments.directory, live.log.file_bytes) as reader:
        return list(tell(find_records(reader, unique_key, tell_damage, known_end=live.log.end)))


def offset_of_id(offset_id: str) -> int:
    """The commit log offset in an offset message id: store host, port and offset in hexadecimal.

    Raises BadFieldError for text that is no such id.

    >>> offset_of_id("7F00000100002A9F0000000000000154")
    340
    """
    try:
        packed = bytes.fromhex(offset_id)
    except ValueError:
        packed = b""
    if len(packed) not in _ID_BYTES:
        raise BadFieldError("not an offset message id", found=repr(offset_id[:64]))
    return int.from_bytes(packed[-_OFFSET_BYTES:], "big")


def only_life_of(steps: Sequence[TraceStep], commit_log_offset: int) -> list[TraceStep]:
    """Those steps that are of one life with the record at this offset, which may be lost: later
    records name the first one of their life.
    """
    lives = {
        step.first_offset
        for step in steps
        if commit_log_offset in (step.record.commit_log_offset, first_offset(step.record))
    } or {commit_log_offset}
    return [step for step in steps if step.first_offset in lives]


@attrs.define(eq=False)
class _Lives:
    """The lives that were told so far, by what names them."""

    by_first: dict[int, int] = attrs.field(factory=dict)
    by_id: dict[str, int] = attrs.field(factory=dict)
    by_out: dict[tuple[str, str | None], int] = attrs.field(factory=dict)
    waiting: dict[str, list[int]] = attrs.field(factory=dict)

    def life_of(self, record: StoredMessage, event: Event) -> int:
        """The first record of the life that a record belongs to: its own where it begins one."""
        own, first = record.commit_log_offset, first_offset(record)
        if first in self.by_first:
            return self.by_first[first]
        older = replaced_offset(record, first)  # retention may have taken the first record
        if older is not None:
            return self.by_first.get(older, older)
        if first != own:
            return first
        if event is Event.CANCELLED:
            named = names.offset_of_text(record.properties.get(names.CANCELLED_OFFSET, ""))
            if named is not None:
                return self.by_first.get(named, named)
            return self.by_out.get(_out_of(record), own)
        if event is Event.DELIVERED and (waiting := self.waiting.get(record.topic)):
            return waiting[-1]
        return self.by_id.get(record.properties.get(names.ORIGIN_MESSAGE_ID, ""), own)

    def add(self, step: TraceStep) -> None:
        """Remember a step for those that name it."""
        record, life = step.record, step.first_offset
        self.by_first[record.commit_log_offset] = life
        self.by_first.setdefault(first_offset(record), life)  # retention may have taken that one
        self.by_id[record.offset_message_id] = life
        waiting = self.waiting.setdefault(record.real_topic, [])
        if life in waiting:
            waiting.remove(life)
        if step.event in _WAITS:
            waiting.append(life)
            self.by_out[_out_of(record)] = life


_WAITS = (Event.SCHEDULED, Event.RESCHEDULED, Event.ROLLED, Event.RETRIED, Event.REJECTED)


def _out_of(record: StoredMessage) -> tuple[str, str | None]:
    """What a message and its delete marker have in common."""
    return record.real_topic, record.properties.get(names.TIMER_OUT_MS)


def tell(records: Sequence[StoredMessage]) -> Iterator[TraceStep]:
    """What these records say, which are all of one unique key, in the order of the log."""
    lives = _Lives()
    for record in records:
        event = _event_of(record)
        step = TraceStep(event, record, lives.life_of(record, event))
        lives.add(step)
        yield step


def was_cancelled(steps: Sequence[TraceStep], record: StoredMessage) -> bool:
    """Whether one of these steps, which are of one unique key, is a cancel of the message whose
    newest pending record this is. In a delay level no record tells of a cancel.
    """
    return any(
        _takes(step.record, record)
        for step in steps
        if step.event is Event.CANCELLED
        and step.record.commit_log_offset >= record.commit_log_offset
    )


def _takes(cancel: StoredMessage, record: StoredMessage) -> bool:
    """Whether a cancel behind a record is for that. A delete marker is if it names its message, or
    names none and is in its slot; the one that a reschedule stores is behind its new record.
    """
    first = first_offset(record)
    if names.TIMER_DELETE_UNIQUE_KEY not in cancel.properties:
        return first_offset(cancel) == first
    named = cancel.properties.get(names.CANCELLED_OFFSET)
    if named is not None:
        return names.offset_of_text(named) == first
    if replaced_by(record, "") is not None and cancel.queue_offset == record.queue_offset + 1:
        return False
    outs = [each.properties.get(names.TIMER_OUT_MS, "") for each in (cancel, record)]
    are_numbers = all(out.isdecimal() for out in outs)
    is_near = are_numbers and abs(int(outs[0]) - int(outs[1])) < _WIDEST_SLOT_MS
    return cancel.real_topic == record.real_topic and is_near


def _event_of(record: StoredMessage) -> Event:
    if record.topic in names.WAITING_TOPICS:
        return _waiting_event(record)
    if record.topic.startswith(names.DEAD_LETTER_PREFIX):
        return Event.DEAD
    was_delayed = names.REAL_TOPIC in record.properties
    return Event.DELIVERED if was_delayed else Event.STORED


def _waiting_event(record: StoredMessage) -> Event:
    if names.TIMER_DELETE_UNIQUE_KEY in record.properties:
        return Event.CANCELLED
    if first_offset(record) != record.commit_log_offset:
        is_cancel = record.topic == names.TIME_INDEX_TOPIC and record.queue_id != 0
        return Event.CANCELLED if is_cancel else Event.ROLLED
    if names.TIMER_ROLL_TIMES in record.properties:
        return Event.ROLLED
    if replaced_by(record, "") is not None:
        return Event.RESCHEDULED
    if record.real_topic.startswith(names.RETRY_PREFIX):
        return Event.RETRIED
    is_dead = record.real_topic.startswith(names.DEAD_LETTER_PREFIX)
    return Event.REJECTED if is_dead else Event.SCHEDULED
