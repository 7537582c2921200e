# SPDX-License-Identifier: Apache-2.0
"""What ``pending`` lists: exactly what waits, the next due first, in levels and on the wheel."""

import os
from pathlib import Path
from typing import Any

import pytest

from message_store.base.errors import SourceError, UnsupportedStoreError
from message_store.files.store_root import StoreRoot
from message_store.format.properties import LEVEL_TOPIC
from message_store.interface.delay_store import Pending
from migrate.look.pending import PendingFilter, pending_messages
from migrate.report.report import BadRecord
from migrate.source.condition import loss_warnings
from tests.independent.level_messages import DeliveredCopy, LevelMessage, retry_message
from tests.independent.level_store_builder import T0, build_level_store
from tests.independent.real_stores import (
    LEVELS_49_CRASH,
    LEVELS_49_DEFAULT_SIZES,
    WHEEL_55_CLEAN,
    TruthLine,
    unpack,
)

NOW_MS = T0 + 20_000

LATE = LevelMessage(level=18, topic="Orders", queue_id=3, keys="k1 k2", unique_key="U1")
SOON = LevelMessage(level=3, tags=None, unique_key=None)
AGAIN = retry_message(level=4, unique_key="U1")
GONE = LevelMessage(level=3)
ITEMS = [GONE, LATE, SOON, AGAIN, DeliveredCopy(of=GONE)]


def listed(root: Path, **wanted: Any) -> list[Pending]:
    found = list(pending_messages(root, PendingFilter(**wanted), now_ms=NOW_MS))
    assert all(isinstance(each, Pending) for each in found)
    return [each for each in found if isinstance(each, Pending)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_level_store(tmp_path / "store", ITEMS, offsets={3: 1})
    return tmp_path / "store"


def test_a_message_with_all_that_it_has(store: Path) -> None:
    *_others, late = listed(store)
    assert late.topic == "Orders"
    assert (late.queue_id, late.level, late.tags) == (3, 18, "TagA")
    assert (late.unique_key, late.keys) == ("U1", ("k1", "k2"))
    assert late.due_ms == T0 + 7_200_000
    assert late.commit_log_offset > 0
    assert late.size_bytes > 91


def test_the_next_due_comes_first_and_what_was_delivered_not_at_all(store: Path) -> None:
    found = listed(store)
    assert [(each.level, each.unique_key) for each in found] == [(3, None), (4, "U1"), (18, "U1")]


@pytest.mark.parametrize(
    ("wanted", "levels"),
    [
        ({"topic": "Orders"}, [18]),
        ({"topic": "%RETRY%group_a"}, [4]),
        ({"topic": "none"}, []),
        ({"level": 3}, [3]),
        ({"level": 7}, []),
        ({"key": "k2"}, [18]),
        ({"key": "U1"}, [4, 18]),
        ({"key": "U"}, []),
        ({"due_after_ms": T0 + 30_000}, [4, 18]),
        ({"due_after_ms": T0 + 30_001}, [18]),
        ({"due_before_ms": T0 + 30_000}, [3]),
        ({"due_before_ms": T0 + 30_001}, [3, 4]),
        ({"limit": 2}, [3, 4]),
        ({"limit": 0}, []),
        ({"limit": 1, "topic": "Orders"}, [18]),
    ],
)
def test_filters(store: Path, wanted: dict[str, Any], levels: list[int]) -> None:
    assert [each.level for each in listed(store, **wanted)] == levels


def test_a_record_that_cannot_be_read_is_named_and_not_hidden(tmp_path: Path) -> None:
    torn = LevelMessage(level=3, damage=lambda data: data[:50] + b"\xff" * (len(data) - 50))
    outside = LevelMessage(level=3, unit_fields={"commit_log_offset": 1 << 40})
    huge = LevelMessage(level=3, unit_fields={"size_bytes": 2**31 - 2})
    build_level_store(tmp_path / "store", [torn, outside, huge, SOON])
    found = list(pending_messages(tmp_path / "store", now_ms=NOW_MS))
    bad = [each for each in found if isinstance(each, BadRecord)]
    assert sorted(each.queue_offset for each in bad) == [0, 1, 2]
    assert all(each.level == 3 and each.reason for each in bad)
    assert len(found) == 4


def test_another_level_table_than_the_usual_is_no_obstacle(tmp_path: Path) -> None:
    build_level_store(tmp_path / "store", [LevelMessage(level=2)], level_table="1s 7s")
    assert [each.due_ms for each in listed(tmp_path / "store")] == [T0 + 7_000]


def test_offsets_can_be_chosen(store: Path) -> None:
    found = list(pending_messages(store, now_ms=NOW_MS, offsets="none"))
    assert len(found) == 3  # the delivered one is found in the log


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such directory"):
        list(pending_messages(tmp_path / "nowhere", now_ms=NOW_MS))
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "dledger-n0").mkdir()
    with pytest.raises(UnsupportedStoreError, match="DLedger"):
        list(pending_messages(tmp_path, now_ms=NOW_MS))


# --- real stores ----------------------------------------------------------------------------------


def facts_of_truth(line: TruthLine) -> tuple[object, ...]:
    keys = tuple((line.keys or "").split())
    return line.unique_key, line.topic, line.queue_id, line.tags, keys, line.level


def facts_of(each: Pending) -> tuple[object, ...]:
    return each.unique_key, each.topic, each.queue_id, each.tags, each.keys, each.level


@pytest.mark.parametrize("name", [LEVELS_49_DEFAULT_SIZES, LEVELS_49_CRASH, WHEEL_55_CLEAN])
def test_real_stores_list_exactly_what_was_waiting(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    found = list(pending_messages(store.root, now_ms=store.stopped_ms))
    waiting = [line for line in store.truth if line.state == "pending"]
    ours = [facts_of(each) for each in found if isinstance(each, Pending)]
    assert sorted(ours, key=repr) == sorted(map(facts_of_truth, waiting), key=repr)
    assert len(ours) == len(found)


def test_due_times_on_a_real_wheel_are_those_that_were_asked_for(tmp_path: Path) -> None:
    store = unpack(WHEEL_55_CLEAN, tmp_path / "store")
    asked = {
        (line.unique_key, line.kind): line.timer_out_ms
        for line in store.truth
        if line.state == "pending" and line.level is None
    }
    found = listed(store.root)
    on_wheel = [each for each in found if each.level is None]
    out_ms = {out for out in asked.values() if out is not None}
    assert len(on_wheel) == len(asked)
    assert {each.due_ms - 1000 for each in on_wheel} == out_ms


@pytest.mark.parametrize("keeps", [0, 1, 2])
def test_a_level_queue_that_was_cut_short_is_told_of_with_the_way_on(
    tmp_path: Path, keeps: int
) -> None:
    """Readers list what is left of it; the log has the rest."""
    items = [LevelMessage(level=3 + 15 * (number > 0)) for number in range(6)]
    build_level_store(tmp_path / "store", items)
    root = StoreRoot(tmp_path / "store")
    [queue] = root.consume_queue(LEVEL_TOPIC, 17).iterdir()
    assert loss_warnings(root) == []
    os.truncate(queue, keeps * 20)
    told = loss_warnings(root)
    assert any(str(queue) in each for each in told)
    assert "--whole-log" in told[-1]
