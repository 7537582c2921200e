# SPDX-License-Identifier: Apache-2.0
"""Real brokers have delivered and rolled these messages: ours makes the same records of them."""

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.redelivery.batch import FROM_LEVEL, FROM_WHEEL, ROLLED, Rewrite, redelivered
from tests.independent.real_stores import (
    LEVELS_49_CLEAN,
    LEVELS_55_CLEAN,
    WHEEL_55_CLEAN,
    unpack,
)

MAGIC_V1_BYTES, MAGIC_V2_BYTES = bytes.fromhex("DAA320A7"), bytes.fromhex("DAA320AB")
STAMPS = (names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS)


def records(root: Path) -> Iterator[tuple[bytes, StoredMessage]]:
    """Every record of a store's log, as bytes and as a value."""
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        position = 0
        while data[position + 4 : position + 8] in (MAGIC_V1_BYTES, MAGIC_V2_BYTES):
            size_bytes = int.from_bytes(data[position : position + 4], "big")
            record = data[position : position + size_bytes]
            yield record, decode_message_at(record)
            position += size_bytes


def kind_of(message: StoredMessage) -> str:
    """What a record is in its message's life."""
    if message.topic == names.LEVEL_TOPIC:
        return "in a level"
    is_timed = names.TIMER_OUT_MS in message.properties
    if message.topic == names.TIMER_TOPIC:
        is_marker = names.TIMER_DELETE_UNIQUE_KEY in message.properties
        return "a marker" if is_marker else "in the wheel"
    if names.REAL_TOPIC not in message.properties:
        return "plain"
    if names.DELAY in message.properties:
        return "from a level"
    return "from the wheel" if is_timed else "plain"


def remade(source: StoredMessage, copy: StoredMessage, how: Rewrite, *stamps: str) -> bytes:
    """What ours makes of ``source`` where a broker made ``copy``."""
    suffix = "".join(f"{name}\x01{copy.properties[name]}\x02" for name in stamps)
    return redelivered(
        source,
        how,
        queue_offset=copy.queue_offset,
        position=copy.commit_log_offset,
        store_ms=copy.store_timestamp_ms,
        suffix=suffix.encode(),
    )


def as_a_broker_reads_it(message: StoredMessage) -> tuple[StoredMessage, dict[str, str]]:
    """All fields, and the properties as a map, whose order says nothing."""
    return attrs.evolve(message, properties_text=b""), message.properties


@pytest.mark.parametrize(("name", "at_least"), [(LEVELS_49_CLEAN, 1_300), (LEVELS_55_CLEAN, 1_400)])
def test_levels_deliver_byte_for_byte_what_brokers_delivered(
    name: str, at_least: int, tmp_path: Path
) -> None:
    waiting: dict[str | None, StoredMessage] = {}
    count = 0
    for record, message in records(unpack(name, tmp_path).root):
        if kind_of(message) == "in a level":
            waiting[message.unique_key] = message
        elif kind_of(message) == "from a level" and message.unique_key in waiting:
            assert remade(waiting[message.unique_key], message, FROM_LEVEL) == record
            count += 1
    assert count >= at_least


def test_the_wheel_s_deliveries_and_rounds_are_a_broker_s_but_for_the_order_of_properties(
    tmp_path: Path,
) -> None:
    waiting: dict[tuple[str, str | None], StoredMessage] = {}
    delivered, rolled = 0, 0
    for _, message in records(unpack(WHEEL_55_CLEAN, tmp_path).root):
        kind, key = kind_of(message), message.unique_key
        if kind in ("in the wheel", "a marker"):
            source = waiting.get((kind, key))
            if source is not None:
                ours = remade(source, message, ROLLED, *STAMPS, names.TIMER_ROLL_TIMES)
                assert as_a_broker_reads_it(decode_message_at(ours)) == as_a_broker_reads_it(
                    message
                )
                rolled += 1
            waiting[kind, key] = message
        elif kind == "from the wheel" and ("in the wheel", key) in waiting:
            ours = remade(waiting["in the wheel", key], message, FROM_WHEEL, *STAMPS)
            assert as_a_broker_reads_it(decode_message_at(ours)) == as_a_broker_reads_it(message)
            delivered += 1
    assert (delivered > 200, rolled > 2_000) == (True, True)
