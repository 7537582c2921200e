# SPDX-License-Identifier: Apache-2.0
"""What is pending in stores that real brokers left behind, against their producer's own record."""

from collections import Counter
from collections.abc import Callable

import pytest

from legacy_levels.backlog.backlog import LevelBacklog, read_backlog
from legacy_levels.backlog.queues import queued_by_choice
from legacy_levels.delay_offsets import OffsetsChoice
from message_store.base.errors import UncleanStoreError
from tests.independent.raw_files import record_at
from tests.independent.real_stores import (
    LEVEL_STORES,
    LEVELS_49_CLEAN,
    LEVELS_49_CRASH,
    RealStore,
)

Stores = Callable[[str], RealStore]


def assert_it_adds_up(backlog: LevelBacklog) -> None:
    for counts in backlog.counts:
        parts = (counts.pending, counts.already_delivered, counts.neutral, counts.expired)
        assert counts.queued == sum(parts)
    assert backlog.total("pending") == len(backlog)
    assert Counter(backlog.level.tolist()) == {
        counts.level: counts.pending for counts in backlog.counts if counts.pending
    }


def by_level(store: RealStore, state: str) -> dict[int, int]:
    levels = store.about["byLevel"]
    return {int(level): states[state] for level, states in levels.items() if state in states}


@pytest.mark.parametrize("name", LEVEL_STORES)
def test_exactly_what_was_pending_is_found(real_store: Stores, name: str) -> None:
    store = real_store(name)
    backlog = read_backlog(store.root, after_crash=store.is_crashed)
    assert_it_adds_up(backlog)
    found = {counts.level: counts.pending for counts in backlog.counts if counts.pending}
    assert found == by_level(store, "pending")
    truth = [
        (line.level, line.delay_queue_offset, line.unique_key, line.topic)
        for line in store.pending_in_levels()
    ]
    log, file_bytes = store.root / "commitlog", store.commit_log_file_bytes
    rows = zip(
        backlog.level.tolist(),
        backlog.queue_offset.tolist(),
        backlog.commit_log_offset.tolist(),
        strict=True,
    )
    read = [(level, at, record_at(log, file_bytes, offset).effective) for level, at, offset in rows]
    assert truth == sorted(
        (level, at, properties["UNIQ_KEY"], properties["REAL_TOPIC"])
        for level, at, properties in read
    )


@pytest.mark.parametrize("name", LEVEL_STORES)
def test_due_times_are_store_time_and_delay(real_store: Stores, name: str) -> None:
    store = real_store(name)
    backlog = read_backlog(store.root, after_crash=True)
    delays_ms = backlog.level_table.delays_ms
    lines = store.pending_in_levels()
    wanted = {
        (line.level, line.delay_queue_offset): line.store_timestamp_ms + delays_ms[line.level - 1]
        for line in lines
        if line.level is not None and line.store_timestamp_ms is not None
    }
    keys = zip(backlog.level.tolist(), backlog.queue_offset.tolist(), strict=True)
    assert dict(zip(keys, backlog.due_ms.tolist(), strict=True)) == wanted
    assert backlog.total("repaired") == 0


@pytest.mark.parametrize("name", LEVEL_STORES)
def test_entries_are_in_log_order_and_end_before_the_log(real_store: Stores, name: str) -> None:
    store = real_store(name)
    backlog = read_backlog(store.root, after_crash=True)
    offsets = backlog.commit_log_offset.tolist()
    assert offsets == sorted(set(offsets))
    assert offsets[-1] + int(backlog.size_bytes[-1]) <= backlog.log_end
    assert backlog.newest_store_ms == store.about["lastStoreTimestampMs"]
    assert (backlog.log_min, backlog.damaged_places, backlog.queue_misfits) == (0, (), ())


def test_a_clean_store_has_nothing_to_leave_out(real_store: Stores) -> None:
    for name in set(LEVEL_STORES) - {LEVELS_49_CRASH}:
        backlog = read_backlog(real_store(name).root)
        assert backlog.total("already_delivered") == 0
        assert backlog.total("not_in_queue") == 0
        assert backlog.bytes_scanned < 900_000


def test_what_a_killed_broker_had_delivered_is_left_out(real_store: Stores) -> None:
    store = real_store(LEVELS_49_CRASH)
    backlog = read_backlog(store.root, after_crash=True)
    left_out = {counts.level: counts.already_delivered for counts in backlog.counts}
    assert {level: count for level, count in left_out.items() if count} == {
        1: 31,
        2: 33,
        3: 58,
        4: 37,
        5: 47,
    }
    assert backlog.bytes_scanned <= backlog.log_end  # once, from what was on the disk on


def test_a_killed_broker_s_store_wants_a_word(real_store: Stores) -> None:
    with pytest.raises(UncleanStoreError, match="abort"):
        read_backlog(real_store(LEVELS_49_CRASH).root)


@pytest.mark.parametrize("name", LEVEL_STORES)
@pytest.mark.parametrize("choice", ["bak", "none"])
def test_whatever_the_offsets_the_delivered_copies_tell_the_same(
    real_store: Stores, name: str, choice: str
) -> None:
    store = real_store(name)
    by_offsets = read_backlog(store.root, after_crash=True)
    by_copies = read_backlog(store.root, after_crash=True, offsets_choice=choice)
    assert_it_adds_up(by_copies)
    assert by_copies.commit_log_offset.tolist() == by_offsets.commit_log_offset.tolist()
    if choice == "none":
        left_out = {counts.level: counts.already_delivered for counts in by_copies.counts}
        delivered = {level: count for level, count in left_out.items() if count}
        assert delivered == by_level(store, "delivered")


def test_each_choice_of_offsets_has_its_price(real_store: Stores) -> None:
    store = real_store(LEVELS_49_CLEAN)
    backlog = read_backlog(store.root)
    price = queued_by_choice(store.root, backlog.offsets)
    assert price[OffsetsChoice.MAIN] == len(backlog) == 4043
    assert price[OffsetsChoice.NONE] == sum(counts.queue_max for counts in backlog.counts) == 5349
    stored = {1: 288, 2: 268, 3: 394, 4: 172, 5: 72}
    assert price[OffsetsChoice.BACKUP] == price[OffsetsChoice.NONE] - sum(stored.values())
