# SPDX-License-Identifier: Apache-2.0
"""A topic is listed as a consumer would get it, and what cannot be read is named."""

from pathlib import Path

import pytest

from message_store.base.errors import SourceError
from message_store.files.store_root import StoreRoot
from message_store.format.message import StoredMessage
from message_store.format.queue_unit import PRE_BLANK, QUEUE_UNIT
from message_store.reading.topic_listing import UnreadableMessage, list_topic, topics_with_queues
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import build_level_store

SYSTEM = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
def store(tmp_path: Path) -> StoreRoot:
    """Three records in the log, all in the queue of one level."""
    items = [LevelMessage(level=3, keys=f"k{number}") for number in range(3)]
    build_level_store(tmp_path / "store", items)
    return StoreRoot(tmp_path / "store")


def put(store: StoreRoot, queue_id: int, *units: bytes) -> None:
    """A queue of topic T with these entries."""
    directory = store.consume_queue("T", queue_id)
    directory.mkdir(parents=True)
    (directory / f"{0:020d}").write_bytes(b"".join(units).ljust(2_000, b"\0"))


def unit(commit_log_offset: int, size_bytes: int) -> bytes:
    return QUEUE_UNIT.encode(
        commit_log_offset=commit_log_offset, size_bytes=size_bytes, tags_code=0
    )


def places(store: StoreRoot) -> list[tuple[int, int]]:
    """Where the three records are."""
    data = (store.consume_queue(SYSTEM, 2) / f"{0:020d}").read_bytes()
    units = [QUEUE_UNIT.decode_at(data, QUEUE_UNIT.size * row) for row in range(3)]
    return [(each["commit_log_offset"], each["size_bytes"]) for each in units]


def keys(store: StoreRoot, **which: int) -> list[str]:
    found = list(list_topic(store.path, "T", **which))
    return [each.keys[0] for each in found if isinstance(each, StoredMessage)]


def test_queues_come_in_order_of_their_numbers(store: StoreRoot) -> None:
    first, second, third = places(store)
    put(store, 10, unit(*third))
    put(store, 2, unit(*first), unit(*second))
    assert topics_with_queues(store.path) == {SYSTEM: [2], "T": [2, 10]}
    assert keys(store) == ["k0", "k1", "k2"]
    assert keys(store, queue_id=2, from_offset=1) == ["k1"]
    assert keys(store, from_offset=9) == keys(store, queue_id=1) == []


def test_what_only_fills_a_queue_or_was_taken_back_is_no_message(store: StoreRoot) -> None:
    offset, size_bytes = places(store)[1]
    taken_back = unit(offset + size_bytes - 1, 1)
    put(store, 0, PRE_BLANK, taken_back, unit(offset, size_bytes))
    assert keys(store) == ["k1"]


@pytest.mark.parametrize("which", ["beyond", "too long", "not a record"])
def test_an_entry_without_a_record_is_named_and_the_next_one_read(
    which: str, store: StoreRoot
) -> None:
    first, second, _third = places(store)
    broken = {
        "beyond": unit(1 << 40, 100),
        "too long": unit(first[0], (1 << 31) - 2),
        "not a record": unit(first[0] + 1, 100),
    }[which]
    put(store, 7, broken, unit(*second))
    bad, good = list_topic(store.path, "T")
    assert isinstance(bad, UnreadableMessage)
    assert (bad.queue_id, bad.queue_offset) == (7, 0)
    assert bad.reason
    assert isinstance(good, StoredMessage)


def test_a_topic_that_is_not_there_is_empty_and_a_place_that_is_no_store_is_said(
    store: StoreRoot, tmp_path: Path
) -> None:
    for name in ("nobody", f"../consumequeue/{SYSTEM}", ""):
        assert list(list_topic(store.path, name)) == []
    with pytest.raises(SourceError, match="no such directory"):
        list(list_topic(tmp_path / "nowhere", "T"))
