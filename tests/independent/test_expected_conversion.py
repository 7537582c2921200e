# SPDX-License-Identifier: Apache-2.0
"""The comparison accepts the plainest conversion and names each difference from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.independent.expected_conversion import (
    WaitingRecord,
    compare_with_records,
    compare_with_truth,
    expected_of_truth,
    message_of,
    out_ms_of,
    waiting_of,
    waiting_records,
)
from tests.independent.level_store_builder import (
    T0,
    LevelMessage,
    build_level_store,
    retry_message,
)
from tests.independent.raw_records import body_crc_of, join_properties
from tests.independent.real_stores import LEVELS_49_CLEAN, LEVELS_55_CLEAN, unpack
from tests.independent.reference_conversion import placed_messages
from tests.independent.target_writer import PlacedMessage, TargetShape, write_target
from tests.independent.variant_b_checker import check_target, read_target

Change = Callable[[list[PlacedMessage]], list[PlacedMessage]]


@pytest.mark.parametrize(
    ("due_ms", "precision_ms", "out_ms"),
    [
        (1700003600000, 1000, 1700003599000),
        (1700003600001, 1000, 1700003600000),
        (1700003600999, 1000, 1700003600000),
        (1700003600000, 100, 1700003599900),
        (1700003600250, 500, 1700003600000),
    ],
)
def test_a_message_waits_in_the_slot_that_ends_when_it_is_due(
    due_ms: int, precision_ms: int, out_ms: int
) -> None:
    assert out_ms_of(due_ms, precision_ms) == out_ms


@pytest.mark.parametrize(
    "name", [LEVELS_49_CLEAN, pytest.param(LEVELS_55_CLEAN, marks=pytest.mark.check)]
)
def test_a_real_store_converted_in_the_plainest_way_is_right(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "source")
    indexes: dict[int, list[int]] = {}
    for line in store.pending_in_levels():
        assert line.level is not None
        assert line.delay_queue_offset is not None
        indexes.setdefault(line.level, []).append(line.delay_queue_offset)
    waiting = waiting_records(store.root, indexes, store.commit_log_file_bytes)
    shape = TargetShape(now_ms=store.stopped_ms)
    write_target(tmp_path / "target", placed_messages(waiting, shape), shape)
    assert check_target(tmp_path / "target", **check_arguments(shape)) == []
    found = read_target(tmp_path / "target")
    assert compare_with_truth(expected_of_truth(store.pending_in_levels()), found) == []
    assert compare_with_records(waiting, found) == []


def check_arguments(shape: TargetShape) -> dict[str, Any]:
    return attrs.asdict(shape)


NOW_MS = T0 + 3_600_500
TABLE = "1s 5s 1h 30d"
ITEMS = [
    LevelMessage(level=4, keys="k1"),
    LevelMessage(level=1, body=b"overdue", store_timestamp_ms=T0 + 10),
    LevelMessage(level=2, tags=None, unique_key=None, user_properties={"城市": "上海"}),
    LevelMessage(level=1, body=b"later", store_timestamp_ms=T0 + 20),
    retry_message(level=3, store_timestamp_ms=T0 + 3000, body=b"again", unique_key="same"),
    retry_message(level=3, store_timestamp_ms=T0 + 3001, body=b"again", unique_key="same"),
    LevelMessage(
        level=3,
        store_timestamp_ms=T0 + 4000,
        born_host=("2001:db8::1", 9),
        body=b"z" * 999,
        compress_body=True,
        extra_pairs=[("TIMER_OUT_MS", "1"), ("TIMER_DEL_UNIQKEY", "x"), ("empty", "")],
    ),
]


def small_case(tmp_path: Path) -> tuple[list[WaitingRecord], list[PlacedMessage], TargetShape]:
    built = build_level_store(tmp_path / "source", ITEMS, level_table=TABLE)
    waiting = waiting_of(built, ITEMS)
    shape = TargetShape(now_ms=NOW_MS, commit_log_file_bytes=2048)
    return waiting, placed_messages(waiting, shape), shape


def test_a_small_store_of_all_kinds_converts_to_a_right_one(tmp_path: Path) -> None:
    waiting, placed, shape = small_case(tmp_path)
    write_target(tmp_path / "target", placed, shape)
    assert check_target(tmp_path / "target", **check_arguments(shape)) == []
    found = read_target(tmp_path / "target")
    assert compare_with_records(waiting, found) == []
    assert [message.is_rolled for message in found].count(True) == 1
    truth = [message_of(one.record, out_ms_of(one.due_ms, 1000)) for one in waiting]
    assert compare_with_truth(truth, found) == []


def changed(number: int, **fields: object) -> Change:
    def apply(placed: list[PlacedMessage]) -> list[PlacedMessage]:
        record = attrs.evolve(placed[number].record, **fields)  # type: ignore[arg-type]
        if "body" in fields:
            record = attrs.evolve(record, body_crc=body_crc_of(record.body))
        one = attrs.evolve(placed[number], record=record)
        return [*placed[:number], one, *placed[number + 1 :]]

    return apply


def renamed(number: int, old: str, new: str) -> Change:
    def apply(placed: list[PlacedMessage]) -> list[PlacedMessage]:
        pairs = placed[number].record.pairs
        assert any(old in value for _, value in pairs)
        text = join_properties([(n, v.replace(old, new)) for n, v in pairs], ending=False)
        return changed(number, properties=text)(placed)

    return apply


def in_other_slots(placed: list[PlacedMessage]) -> list[PlacedMessage]:
    """The two messages of one overdue second swap their slots."""
    first, second = placed[1].slot_time_ms, placed[3].slot_time_ms
    assert first < second
    placed[1] = attrs.evolve(placed[1], slot_time_ms=second)
    placed[3] = attrs.evolve(placed[3], slot_time_ms=first)
    return placed


CHANGES: list[tuple[str, Change, str]] = [
    ("one is missing", lambda placed: placed[1:], "missing"),
    ("one is there twice", lambda placed: [*placed, placed[4]], "unexpected"),
    ("another body", changed(1, body=b"OVERDUE"), "OVERDUE"),
    ("another flag", changed(1, flag=5), "missing"),
    ("another sys flag", changed(1, sys_flag=8), "missing"),
    ("another born time", changed(1, born_timestamp_ms=5), "missing"),
    ("another born port", changed(1, born_port=5), "missing"),
    ("another store host", changed(1, store_ip=bytes(4)), "missing"),
    ("another retry count", changed(4, reconsume_times=0), "missing"),
    ("another tag", renamed(1, "TagA", "TagB"), "TagB"),
    ("another property", renamed(2, "上海", "北京"), "北京"),
    ("another OUT", renamed(2, str(T0 + 4000), str(T0 + 5000)), "missing"),
    ("another order", lambda placed: placed[::-1], "not in the order of the source's log"),
    ("overdue in another order", in_other_slots, "not in the order of due times"),
]


@pytest.mark.parametrize(("_name", "change", "report"), CHANGES, ids=[row[0] for row in CHANGES])
def test_every_difference_is_named(tmp_path: Path, _name: str, change: Change, report: str) -> None:
    waiting, placed, shape = small_case(tmp_path)
    write_target(tmp_path / "target", change(placed), shape)
    problems = compare_with_records(waiting, read_target(tmp_path / "target"))
    assert any(report in problem for problem in problems), problems


def test_the_truth_names_the_fields_that_differ(tmp_path: Path) -> None:
    waiting, placed, shape = small_case(tmp_path)
    write_target(tmp_path / "target", renamed(1, "TagA", "TagB")(placed), shape)
    truth = [message_of(one.record, out_ms_of(one.due_ms, 1000)) for one in waiting]
    missing, unexpected = compare_with_truth(truth, read_target(tmp_path / "target"))
    assert missing.endswith("(there with another tags)")
    assert unexpected.startswith("unexpected")
