# SPDX-License-Identifier: Apache-2.0
"""Messages put straight into an open store, and what must hold of it whatever happened."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from message_store.columns.byte_column import ByteColumn, int64s
from message_store.format.java_numbers import string_hash
from message_store.format.message import LOCAL_HOST, StoredMessage
from message_store.format.message_codec import body_crc, decode_message_at, encode_message
from message_store.format.properties import DELAY, LEVEL_TOPIC, encode_properties
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from message_store.writing.queue import NATIVE_UNIT, NEUTRAL_SIZE
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore

SMALL = StoreSettings(commit_log_file_bytes=16_384, queue_file_bytes=20 * 250)
NOW_MS = 1_793_000_000_000


def stored(
    body: bytes,
    *,
    topic: str = "orders",
    queue_id: int = 0,
    queue_offset: int = 0,
    store_ms: int = NOW_MS,
    tags: str | None = "a",
    level: int | None = None,
    sys_flag: int = 0,
) -> StoredMessage:
    """A record, its place still open."""
    entries = [("TAGS", tags), (DELAY, None if level is None else str(level))]
    return StoredMessage(
        topic=topic,
        body=body,
        body_crc=body_crc(body),
        properties_text=encode_properties([(name, text) for name, text in entries if text]),
        queue_id=queue_id,
        queue_offset=queue_offset,
        commit_log_offset=0,
        born_timestamp_ms=NOW_MS,
        born_host=LOCAL_HOST,
        store_timestamp_ms=store_ms,
        store_host=LOCAL_HOST,
        sys_flag=sys_flag,
    )


def tags_code(store: LiveStore, message: StoredMessage) -> int:
    """What the message's queue entry says in its third field."""
    if message.topic == LEVEL_TOPIC and DELAY in message.properties:
        level = store.levels.clamp(int(message.properties[DELAY]))
        return message.store_timestamp_ms + store.levels.delay_ms(level)
    return string_hash(message.tags or "")


def append_log_only(store: LiveStore, message: StoredMessage) -> int:
    """The record, without its queue entry; returns where it begins."""
    queue = store.queue(message.topic, message.queue_id)
    numbered = attrs.evolve(message, queue_offset=queue.max_offset)
    size_bytes = len(encode_message(numbered))
    return store.log.append(
        size_bytes, lambda place: encode_message(attrs.evolve(numbered, commit_log_offset=place))
    )


def append(store: LiveStore, message: StoredMessage) -> int:
    """One message as an engine stores it; returns where it begins."""
    position = append_log_only(store, message)
    size_bytes = store.log.end - position
    queue = store.queue(message.topic, message.queue_id)
    queue.append_one(position, size_bytes, tags_code(store, message))
    return position


def append_rows(store: LiveStore, messages: Sequence[StoredMessage]) -> list[int]:
    """Many messages in one go, all or none."""
    counts: dict[tuple[str, int], int] = {}
    numbered = []
    for message in messages:
        key = (message.topic, message.queue_id)
        first = store.queue(*key).max_offset
        counts[key] = counts.get(key, 0) + 1
        numbered.append(attrs.evolve(message, queue_offset=first + counts[key] - 1))
    sizes = int64s([len(encode_message(message)) for message in numbered])

    def fill(rows: slice, positions: np.ndarray, target: int) -> None:
        records = [
            encode_message(attrs.evolve(numbered[row], commit_log_offset=int(positions[row])))
            for row in range(rows.start, rows.stop)
        ]
        block = ByteColumn.of(records)
        from ctypes import memmove

        memmove(target, block.data.ctypes.data, block.data.size)

    positions = store.log.append_rows(sizes, fill)
    for key in counts:
        chosen = [row for row, each in enumerate(numbered) if (each.topic, each.queue_id) == key]
        units = np.zeros(len(chosen), NATIVE_UNIT)
        units["commit_log_offset"] = positions[chosen]
        units["size_bytes"] = sizes[chosen]
        units["tags_code"] = [tags_code(store, numbered[row]) for row in chosen]
        store.queue(*key).append(units)
    places: list[int] = positions.tolist()
    return places


def neutralise(store: LiveStore, topic: str, queue_id: int, queue_offset: int) -> None:
    """Take an entry back as a cancellation does."""
    queue = store.queue(topic, queue_id)
    [(offset, size_bytes, code)] = queue.units(queue_offset, queue_offset + 1).tolist()
    queue.overwrite(queue_offset, offset + size_bytes - NEUTRAL_SIZE, NEUTRAL_SIZE, code)


def log_records(store: LiveStore) -> list[tuple[StoredMessage, int]]:
    """Every record of the log with its length, read one by one with the scalar codec."""
    found = []
    place, log = store.log.min_offset, store.log
    while place < log.end:
        head = log.segments.read_at(place, 8)
        size_bytes = int.from_bytes(head[:4], "big", signed=True)
        magic = int.from_bytes(head[4:], "big", signed=True)
        if magic == MAGIC_BLANK:
            assert size_bytes == log.file_bytes - place % log.file_bytes
            place += size_bytes
            continue
        assert magic in (MAGIC_V1, MAGIC_V2), f"no record at {place} before the end {log.end}"
        message = decode_message_at(log.segments.read_at(place, size_bytes))
        assert message.commit_log_offset == place
        found.append((message, size_bytes))
        place += size_bytes
    assert place == log.end
    return found


def require_sound(store: LiveStore) -> list[bytes]:
    """Every record has its queue entry, at its ordinal, and nothing else has one; behind the ends
    there are zeros. Returns the bodies, in the order of the log.
    """
    records = log_records(store)
    expected: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for message, size_bytes in records:
        entries = expected.setdefault((message.topic, message.queue_id), [])
        assert message.queue_offset == len(entries)
        code = tags_code(store, message)
        entries.append((message.commit_log_offset, size_bytes, code))
    for queue in store.queues:
        units = queue.units(0, queue.max_offset).tolist()
        wanted = expected.pop((queue.topic, queue.queue_id), [])
        assert len(units) == len(wanted)
        for (offset, size_bytes, code), unit in zip(wanted, units, strict=True):
            neutral = (offset + size_bytes - NEUTRAL_SIZE, NEUTRAL_SIZE, code)
            assert tuple(unit) in ((offset, size_bytes, code), neutral)
        assert not queue.segments.has_data_from(queue.max_offset * QUEUE_UNIT.size)
        assert queue.end_position == (wanted[-1][0] + wanted[-1][1] if wanted else 0)
    assert expected == {}
    assert not store.log.segments.has_data_from(store.log.end)
    assert store.log.segments.end_offset - store.log.end <= 2 * store.log.file_bytes
    return [message.body for message, _ in records]
