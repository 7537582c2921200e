# SPDX-License-Identifier: Apache-2.0
"""The level table told from the store, and what happens when people say another."""

from pathlib import Path

import pytest

from legacy_levels.backlog.level_table import infer_levels, reconcile_level_table
from legacy_levels.backlog.queues import open_level_queues
from legacy_levels.delay_offsets import read_delay_offsets
from message_store.base.errors import PlanError
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from tests.independent.level_store_builder import T0, LevelMessage, build_level_store

LONG_TABLE = "1s 10s 1m 1h 1d 7d 30d"
DAY_MS = 86_400_000


def waiting_for(delay_ms: int, level: int = 4) -> LevelMessage:
    return LevelMessage(level=level, unit_fields={"tags_code": T0 + delay_ms})


def inferred(root: Path) -> dict[int, int | None]:
    queues = open_level_queues(root, read_delay_offsets(root))
    with SegmentReader(StoreRoot(root).commit_log) as log:
        return infer_levels(root, log, queues)


def test_delays_are_told_from_due_and_store_times(tmp_path: Path) -> None:
    items = [
        LevelMessage(level=level, store_timestamp_ms=T0 + 17 * number)
        for number in range(20)
        for level in (1, 3, 7)
    ]
    build_level_store(tmp_path / "store", items, level_table=LONG_TABLE)
    assert inferred(tmp_path / "store") == {1: 1_000, 3: 60_000, 7: 30 * 86_400_000}


def test_extension_units_tell_too(tmp_path: Path) -> None:
    items = [LevelMessage(level=2, store_timestamp_ms=T0 + number) for number in range(5)]
    build_level_store(tmp_path / "store", items, queue_ext=True)
    assert inferred(tmp_path / "store") == {2: 5_000}


def test_the_usual_delay_counts_and_not_the_odd_one(tmp_path: Path) -> None:
    odd = {"tags_code": T0 + 5}
    items = [LevelMessage(level=4, unit_fields=odd if number < 4 else {}) for number in range(10)]
    build_level_store(tmp_path / "store", items)
    assert inferred(tmp_path / "store") == {4: 30_000}


@pytest.mark.parametrize("tags_code", [0, 2598919, -1, -(2**63)])
def test_what_is_no_due_time_tells_nothing(tmp_path: Path, tags_code: int) -> None:
    items = [LevelMessage(level=4, unit_fields={"tags_code": tags_code}) for _ in range(3)]
    build_level_store(tmp_path / "store", items)
    assert inferred(tmp_path / "store") == {4: None}


@pytest.mark.parametrize("field", ["commit_log_offset", "size_bytes"])
def test_an_entry_that_leads_to_no_record_tells_nothing(tmp_path: Path, field: str) -> None:
    items = [LevelMessage(level=4, unit_fields={field: 7})]
    build_level_store(tmp_path / "store", items)
    assert inferred(tmp_path / "store") == {4: None}


def test_a_torn_record_s_store_time_tells_nothing(tmp_path: Path) -> None:
    torn = LevelMessage(level=4, unit_fields={"tags_code": T0 + 30_345})
    build_level_store(tmp_path / "store", [torn])
    assert inferred(tmp_path / "store") == {4: None}


def test_delivered_messages_tell_as_well(tmp_path: Path) -> None:
    items = [LevelMessage(level=4) for _ in range(10)]
    build_level_store(tmp_path / "store", items, offsets={4: 10})
    assert inferred(tmp_path / "store") == {4: 30_000}


def test_messages_that_wait_tell_before_delivered_ones_do(tmp_path: Path) -> None:
    delivered = [LevelMessage(level=4) for _ in range(300)]
    waiting = [waiting_for(30 * DAY_MS) for _ in range(100)]
    build_level_store(tmp_path / "store", [*delivered, *waiting], offsets={4: 300})
    assert inferred(tmp_path / "store") == {4: 30 * DAY_MS}


def test_delivered_messages_tell_where_waiting_ones_do_not(tmp_path: Path) -> None:
    nonsense = [LevelMessage(level=4, unit_fields={"tags_code": 7}) for _ in range(5)]
    old, new = [LevelMessage(level=4)] * 30, [waiting_for(DAY_MS)] * 20
    build_level_store(tmp_path / "store", [*old, *new, *nonsense], offsets={4: 50})
    assert inferred(tmp_path / "store") == {4: DAY_MS}


def test_the_log_s_entries_tell_however_many_are_gone_from_it(tmp_path: Path) -> None:
    items = [LevelMessage(level=4) for _ in range(4_000)]
    items.append(LevelMessage(level=4, unit_fields={"tags_code": 7}))
    store = build_level_store(tmp_path / "store", items, commit_log_file_bytes=1024)
    last = store.placed[-2].commit_log_offset
    for path in (tmp_path / "store" / "commitlog").iterdir():
        if int(path.name) + 1024 <= last:
            path.unlink()
    assert inferred(tmp_path / "store") == {4: 30_000}


# --- against what is said -------------------------------------------------------------------------


def test_without_a_word_the_default_is_assumed() -> None:
    assert reconcile_level_table(None, {1: 1_000, 5: None}) == DelayLevels.parse()
    assert reconcile_level_table(None, {}) == DelayLevels.parse()


def test_a_table_that_fits_is_taken() -> None:
    table = DelayLevels.parse(LONG_TABLE)
    assert reconcile_level_table(table, {7: 30 * 86_400_000, 2: None}) == table


@pytest.mark.parametrize(
    ("given", "found", "words"),
    [
        (None, {2: 7_000}, r"default level table does not fit.*2: 7s.*differ at level 2 \(5s\)"),
        ("1s 7s", {2: 5_000}, r"the level table given does not fit.*1s 7s.*differ at level 2"),
        (None, {19: None, 20: 1_000}, r"has no level 19, 20, which the store has queues for"),
        ("1s", {2: 5_000}, r"has no level 2, "),
        ("1s 2s", {1: 2_000, 2: 1_000}, r"1: 2s, 2: 1s.*level 1 \(1s\), level 2 \(2s\)"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_both_shown(
    given: str | None, found: dict[int, int | None], words: str
) -> None:
    table = None if given is None else DelayLevels.parse(given)
    with pytest.raises(PlanError, match=f"(?s){words}"):
        reconcile_level_table(table, found)
