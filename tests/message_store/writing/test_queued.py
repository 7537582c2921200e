# SPDX-License-Identifier: Apache-2.0
"""Messages of a queue by one pass of a kernel: equal to those that the scalar code reads one by
one, whatever log and queue hold.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from message_store.base.errors import FormatError
from message_store.format.java_numbers import INT_MAX, LONG_MAX
from message_store.format.message import StoredMessage
from message_store.format.message_codec import encode_message
from message_store.format.queue_unit import PRE_BLANK_SIZE, QUEUE_UNIT
from message_store.interface.queued_messages import QueuedRecord, QueuePart, identity_of
from message_store.writing.queued import MOST_UNITS, queued_message
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from tests.message_store.live_workload import append, stored
from tests.message_store.strategies import stored_messages

FILE_BYTES = 8_192
SETTINGS = StoreSettings(commit_log_file_bytes=FILE_BYTES, queue_file_bytes=20 * 7)


@attrs.frozen
class Damage:
    """What is wrong with one entry or its record, if anything."""

    flipped_byte: int | None = None
    offset_of: int | None = None
    size_of: int | None = None


damages = st.one_of(
    st.just(Damage()),
    st.just(Damage()),
    st.builds(Damage, flipped_byte=st.integers(0, 600)),
    st.builds(Damage, offset_of=st.sampled_from([-1, 0, 1, 50_000, LONG_MAX - 3, -(2**63)])),
    st.builds(Damage, size_of=st.sampled_from([-5, 0, 1, 2, 3, 91, 400, INT_MAX, PRE_BLANK_SIZE])),
    st.just(Damage(offset_of=0, size_of=PRE_BLANK_SIZE)),
)


def expected(store: LiveStore, first: int, count: int) -> tuple[list[StoredMessage], list[int]]:
    """The messages of so many entries, and the queue offsets of those that cannot be read."""
    queue = store.queue("orders", 0)
    messages, damaged = [], []
    for at in range(first, min(first + count, queue.max_offset)):
        [unit] = queue.units(at, at + 1).tolist()
        offset, size, tags_code = unit
        is_blank = (offset, size, tags_code) == (0, PRE_BLANK_SIZE, 0)
        if 1 <= size <= 2 or is_blank:
            continue
        try:
            messages.append(queued_message(store.log, offset, size, at))
        except FormatError:
            damaged.append(at)
    return messages, damaged


def require_equal(part: QueuePart, messages: list[StoredMessage], damaged: list[int]) -> None:
    assert sorted(part.damaged) == damaged
    assert len(part.messages) == len(messages)
    for message, scalar in zip(part.messages, messages, strict=True):
        assert isinstance(message, QueuedRecord)
        assert message.decoded() == scalar
        assert message.queue_offset == scalar.queue_offset
        assert identity_of(message) == identity_of(scalar)
        assert message.is_compressed == scalar.is_compressed
        assert (message.body, message.tags) == (scalar.body, scalar.tags)
        assert message.properties == scalar.properties


@given(
    st.lists(st.tuples(stored_messages(), damages), max_size=14),
    st.integers(0, 16),
    st.integers(0, 16),
)
@example([], 0, 32)
def test_messages_are_those_of_the_scalar_code(
    rows: list[tuple[StoredMessage, Damage]], first: int, count: int
) -> None:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        store = LiveStore.open(folder / "store", settings=SETTINGS)
        for message, damage in rows:
            put(store, message, damage)
        topic = store.topic("orders")
        for begin, most in ((first, count), (0, MOST_UNITS)):
            part = topic.queued(0, begin, most)
            end = min(begin + most, store.queue("orders", 0).max_offset)
            assert part.end == max(begin, end)
            require_equal(part, *expected(store, begin, most))
        store.abandon()
    finally:
        shutil.rmtree(folder)


def put(store: LiveStore, message: StoredMessage, damage: Damage) -> None:
    size = len(encode_message(message))

    def make(offset: int) -> bytes:
        return encode_message(attrs.evolve(message, commit_log_offset=offset))

    offset = store.log.append(size, make)
    if damage.flipped_byte is not None:
        place = offset + damage.flipped_byte % size
        [byte] = store.log.segments.read_at(place, 1)
        store.log.segments.write_at(place, bytes([byte ^ 4]))
    unit_offset = offset if damage.offset_of is None else damage.offset_of
    unit_size = size if damage.size_of is None else damage.size_of
    queue = store.queue("orders", 0)
    at = queue.append_one(offset, size, 0)
    unit = QUEUE_UNIT.encode(commit_log_offset=unit_offset, size_bytes=unit_size, tags_code=0)
    queue.segments.write_at(at * QUEUE_UNIT.size, unit)


def test_a_topic_without_a_queue_has_none(tmp_path: Path) -> None:
    store = LiveStore.open(tmp_path, settings=SETTINGS)
    part = store.topic("orders").queued(3, 7)
    assert (list(part.messages), part.end) == ([], 7)
    store.close()


def test_large_records_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("message_store.writing.queued._MOST_BYTES", 1_000)
    store = LiveStore.open(tmp_path, settings=SETTINGS)
    for number in range(20):
        append(store, stored(bytes([number]) * 300))
    ends, seen = [0], []
    while ends[-1] < 20:
        part = store.topic("orders").queued(0, ends[-1], 32)
        ends.append(part.end)
        seen += [message.body[0] for message in part.messages]
    assert (ends, seen) == ([0, 3, 6, 9, 12, 15, 18, 20], [*range(20)])
    store.abandon()


def test_what_was_read_outlives_the_store(tmp_path: Path) -> None:
    store = LiveStore.open(tmp_path, settings=SETTINGS)
    for number in range(90):
        append(store, stored(bytes([number]) * 300))
    part = store.topic("orders").queued(0, 0, 90)
    store.log.segments.delete_before(3 * FILE_BYTES)
    store.close()
    assert [message.body[:1] for message in part.messages] == [bytes([n]) for n in range(90)]
    assert [message.tags for message in part.messages] == ["a"] * 90


@pytest.mark.parametrize("first", [0, 5, 40])
def test_a_queue_whose_records_retention_took_begins_later(tmp_path: Path, first: int) -> None:
    store = LiveStore.open(tmp_path, settings=SETTINGS)
    for number in range(60):
        append(store, stored(bytes([number]) * 300))
    store.topic("orders").queued(0, 0, 1)  # the oldest file is the one that was read last
    store.log.segments.delete_before(FILE_BYTES)
    queue = store.queue("orders", 0)
    queue.correct_min_offset(store.log.min_offset)
    part = store.topic("orders").queued(0, first, 10)
    begin = max(first, queue.min_offset)
    assert [message.queue_offset for message in part.messages] == [*range(begin, begin + 10)]
    require_equal(part, *expected(store, begin, 10))
    store.abandon()
