# SPDX-License-Identifier: Apache-2.0
"""Which records name another, and which were dealt with: the kernel against the scalar rule."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from message_store.columns.byte_column import int64s
from message_store.format.message import StoredMessage
from message_store.format.message_codec import encode_message
from message_store.redelivery.lineage import Names, first_offset, first_offsets
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from tests.message_store.vectors import message

SMALL_FILES = StoreSettings(commit_log_file_bytes=4_096, queue_file_bytes=400)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LiveStore]:
    with closing(LiveStore.open(tmp_path / "store", settings=SMALL_FILES)) as opened:
        yield opened


def put(store: LiveStore, named: int | None, **changes: object) -> StoredMessage:
    """A record that names this offset, or nothing."""
    prepared = 0 if named is None else ~named
    given = attrs.evolve(message(**changes), prepared_transaction_offset=prepared)

    def make(position: int) -> bytes:
        return encode_message(attrs.evolve(given, commit_log_offset=position))

    size_bytes = len(encode_message(given))
    position = store.log.append(size_bytes, make)
    return store.log.record(position, size_bytes)


def are_done(store: LiveStore, messages: list[StoredMessage], begin: int = 0) -> list[bool]:
    firsts = int64s([first_offset(each) for each in messages])
    offsets = int64s([each.commit_log_offset for each in messages])
    return list(map(bool, Names.since(store.log, begin).are_done(offsets, firsts)))


def test_a_record_was_dealt_with_if_a_later_one_names_its_first(store: LiveStore) -> None:
    first, other = put(store, None), put(store, None)
    rolled = put(store, first.commit_log_offset)
    assert are_done(store, [first, other, rolled]) == [True, False, False]
    put(store, first.commit_log_offset)
    assert are_done(store, [first, other, rolled]) == [True, False, True]


def test_names_are_looked_for_between_two_records(store: LiveStore) -> None:
    first = put(store, None)
    names = [put(store, first.commit_log_offset).commit_log_offset for _ in range(40)]
    for begin, end in ((0, 40), (3, 3), (3, 17), (30, 31)):
        ends = [*names, store.log.end]
        found = Names.since(store.log, ends[begin], ends[end])
        assert found.places.tolist() == names[begin:end]


def test_names_of_a_broker_and_of_a_half_message_are_none(store: LiveStore) -> None:
    put(store, None)
    half = put(store, ~12_345)
    assert half.prepared_transaction_offset == 12_345
    assert first_offset(half) == half.commit_log_offset
    assert len(Names.since(store.log, 0)) == 0


def test_the_first_record_of_a_log_can_be_named(store: LiveStore) -> None:
    first = put(store, None)
    assert first.commit_log_offset == 0
    put(store, 0)
    assert are_done(store, [first]) == [True]


def test_a_name_behind_damage_counts(store: LiveStore) -> None:
    first = put(store, None)
    damaged = put(store, None, body=b"to be damaged" * 9)
    put(store, first.commit_log_offset)
    address = int(store.log.addresses(int64s([damaged.commit_log_offset]))[0])
    at = address - store.log.segments.address_of_file(0)
    with next((store.root.path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 120)
    assert are_done(store, [first]) == [True]


@given(
    names=st.lists(
        st.tuples(st.none() | st.integers(0, 40), st.integers(0, 300)), min_size=1, max_size=40
    ),
    begins_at=st.integers(0, 40),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_names_are_those_of_the_scalar_rule(
    tmp_path_factory: pytest.TempPathFactory,
    names: list[tuple[int | None, int]],
    begins_at: int,
) -> None:
    root = tmp_path_factory.mktemp("names")
    with closing(LiveStore.open(root / "store", settings=SMALL_FILES)) as store:
        stored: list[StoredMessage] = []
        for number, (named, body_bytes) in enumerate(names):
            is_known = named is not None and named < number
            told = stored[named].commit_log_offset if named is not None and is_known else None
            stored.append(put(store, told, body=b"b" * body_bytes))
        begin = stored[min(begins_at, len(stored) - 1)].commit_log_offset
        expected = [
            (each.commit_log_offset, first_offset(each), each.store_timestamp_ms)
            for each in stored
            if each.commit_log_offset >= begin and first_offset(each) < each.commit_log_offset
        ]
        found = Names.since(store.log, begin)
        columns = found.places.tolist(), found.firsts.tolist(), found.store_ms.tolist()
        assert list(zip(*columns, strict=True)) == expected
        prepared = int64s([each.prepared_transaction_offset for each in stored])
        offsets = int64s([each.commit_log_offset for each in stored])
        assert first_offsets(prepared, offsets).tolist() == [first_offset(each) for each in stored]
        newest = {first: place for place, first, _ in expected}
        done = [newest.get(first_offset(each), -1) > each.commit_log_offset for each in stored]
        assert are_done(store, stored, begin) == done
