# SPDX-License-Identifier: Apache-2.0
"""A table of messages becomes a store with a wheel: sound, whole, once, whatever stops it."""

import json
import os
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pytest

from message_store.base.errors import BadFieldError, SourceError, TargetError
from message_store.format.message_codec import decode_message_at
from migrate.settings import TargetSettings
from migrate.table import wheel_commit
from migrate.table.wheel_commit import begin_write, commit_rows, give_up
from migrate.table.wheel_staging import stage_rows
from tests.migrate.conversions import SMALL
from tests.migrate.written_wheels import (
    NOW_MS,
    assert_holds,
    batch_of,
    messages,
    problems,
    read,
    run_for,
    staged,
    write,
)
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES


class StoppedError(Exception):
    """Stands for SIGKILL: nothing after it runs."""


def is_bootable(target: Path) -> bool:
    wheel = target / "timerwheel"
    return wheel.exists() and wheel.stat().st_size == WHEEL_FILE_BYTES


def test_what_is_written_is_read_back_and_sound_in_every_byte(tmp_path: Path) -> None:
    parts = [messages(40), messages(3, 40), [], messages(60, 43)]
    facts = write(tmp_path / "store", parts)
    assert_holds(tmp_path / "store", [row for part in parts for row in part])
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 2
    assert facts["written"] == 103
    assert facts["topics"] == {"%RETRY%group": 21, "Topic0": 28, "Topic1": 27, "Topic2": 27}
    assert facts == json.loads((tmp_path / "store/delaywheel/written.json").read_text())


def test_no_messages_make_an_empty_store(tmp_path: Path) -> None:
    assert write(tmp_path / "store", [])["written"] == 0
    assert is_bootable(tmp_path / "store")
    assert read(tmp_path / "store") == []


def test_only_topic_body_and_time_are_needed(tmp_path: Path) -> None:
    write(tmp_path / "store", [[{"topic": "T", "body": b"b", "due_ms": NOW_MS + 5}] * 3])
    assert problems(tmp_path / "store") == []
    found = read(tmp_path / "store")
    assert [row["queue_id"] for row in found] == [0, 0, 0]
    assert len({row["unique_key"] for row in found}) == 3


@pytest.mark.parametrize(
    ("given", "kept"), [(0x301, 0x301), (0x9, 0x9), (0x4, 0), (0xC, 0), (0x30, 0), (0x102, 0x102)]
)
def test_what_a_message_brings_along_from_an_old_store_is_kept(
    given: int, kept: int, tmp_path: Path
) -> None:
    row = {"topic": "T", "body": b"x\x9c", "due_ms": NOW_MS, "born_ms": 1_600_000_000_001}
    row |= {"sys_flag": given, "reconsume_times": 3}
    kinds = {"born_ms": pa.int64(), "sys_flag": pa.int32(), "reconsume_times": pa.int32()}
    run = run_for(tmp_path / "store")
    begin_write(run, overwrite=False)
    commit_rows(run, [stage_rows(run, 0, iter([batch_of([row], **kinds)]))], overwrite=False)
    record = next((tmp_path / "store" / "commitlog").iterdir()).read_bytes()
    message = decode_message_at(record)
    assert message.born_timestamp_ms == 1_600_000_000_001
    assert message.sys_flag == kept
    assert message.reconsume_times == 3
    assert message.store_timestamp_ms == NOW_MS


@pytest.mark.parametrize("name", ["sys_flag", "reconsume_times", "flag"])
@pytest.mark.parametrize("value", [2**31, 2**32 + 3, -(2**31) - 1])
def test_a_number_that_its_field_does_not_hold_is_refused(
    name: str, value: int, tmp_path: Path
) -> None:
    run = run_for(tmp_path / "store")
    begin_write(run, overwrite=False)
    rows = [{"topic": "T", "body": b"x", "due_ms": NOW_MS, name: value}]
    with pytest.raises(BadFieldError, match=name):
        stage_rows(run, 0, iter([batch_of(rows, **{name: pa.int64()})]))


def test_a_row_that_says_its_due_time_twice_is_refused_beside_others(tmp_path: Path) -> None:
    run = attrs.evolve(run_for(tmp_path / "store"), start_deliver_time_alias=True)
    begin_write(run, overwrite=False)
    row = {"topic": "T", "body": b"x", "due_ms": NOW_MS + 5_000}
    twice = row | {"properties": [("__STARTDELIVERTIME", str(NOW_MS + 9_000))]}
    for rows in ([twice], [row | {"properties": []}, twice]):
        with pytest.raises(BadFieldError, match="give one of them"):
            stage_rows(run, 0, iter([batch_of(rows)]))


def test_a_row_without_a_due_time_says_it_by_its_properties(tmp_path: Path) -> None:
    asks: list[tuple[list[tuple[str, str]], int]] = [
        ([("DELAY", "3"), ("mine", "own")], 10_000),
        ([("TIMER_DELAY_SEC", "60")], 60_000),
        ([("TIMER_DELIVER_MS", str(NOW_MS + 30_000))], 30_000),
        ([("__STARTDELIVERTIME", str(NOW_MS + 90_000))], 90_000),
    ]
    rows: list[dict[str, Any]] = [
        {"topic": "T", "body": b"b", "due_ms": None, "properties": properties}
        for properties, _ in asks
    ]
    rows.append({"topic": "T", "body": b"b", "due_ms": NOW_MS + 5_000, "properties": []})
    run = attrs.evolve(run_for(tmp_path / "store"), start_deliver_time_alias=True)
    begin_write(run, overwrite=False)
    unnamed = batch_of([{k: v for k, v in rows[0].items() if k != "due_ms"}])
    commit_rows(run, [stage_rows(run, 0, iter([batch_of(rows), unnamed]))], overwrite=False)
    assert problems(tmp_path / "store") == []
    found = read(tmp_path / "store")
    delays_ms = [*(delay_ms for _, delay_ms in asks), 5_000, 10_000]
    ends_ms = [-(-(NOW_MS + ms) // SMALL.precision_ms) * SMALL.precision_ms for ms in delays_ms]
    assert [row["due_ms"] for row in found] == ends_ms
    assert dict(found[0]["properties"]) == {"mine": "own"}


@pytest.mark.parametrize("precision_ms", [100, 200, 500, 1000])
def test_every_precision(precision_ms: int, tmp_path: Path) -> None:
    settings = TargetSettings(precision_ms=precision_ms, commit_log_file_bytes=1 << 16)
    write(tmp_path / "store", [messages(50)], settings=settings)
    assert problems(tmp_path / "store", settings) == []


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.field("element", pa.string(), nullable=False)),
        pa.large_list(pa.large_string()),
        pa.list_(pa.string()),
    ],
)
def test_keys_are_lists_of_any_kind(kind: pa.DataType, tmp_path: Path) -> None:
    rows = [{"topic": "T", "body": b"b", "due_ms": NOW_MS, "keys": ["a", "b"]}]
    run = run_for(tmp_path / "store")
    begin_write(run, overwrite=False)
    task = stage_rows(run, 0, iter([batch_of(rows, keys=kind)]))
    commit_rows(run, [task], overwrite=False)
    assert read(tmp_path / "store")[0]["keys"] == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"topic": None}, "row 2: no topic"),
        ({"body": None}, "row 2: no body"),
        ({"body": b""}, "row 2: no body"),
        ({"due_ms": None}, "row 2: no due_ms"),
        ({"due_ms": None, "properties": [("DELAY", "x")]}, "row 2: DELAY is no whole number"),
        ({"keys": ["a", None]}, "row 2: a key that is null"),
        ({"due_ms": 1_700_000_000}, "row 2: no due time"),
        ({"due_ms": 10**13}, "row 2: no due time"),
        ({"topic": "a/b"}, "row 2: the topic's name has a slash"),
        ({"topic": "rmq_sys_wheel_timer"}, "row 2: nobody may deliver to this topic"),
        ({"properties": [("DELAY", "3")]}, "the property DELAY is the store's own"),
        ({"queue_id": -1}, "row 2: 'queue_id' must be >= 0"),
        ({"body": bytes(5000)}, "row 2: a record longer than a log file"),
    ],
)
def test_a_row_that_cannot_be_stored_is_named(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    rows = messages(5)
    rows[2] |= change
    with pytest.raises(BadFieldError, match="partition 7, behind row 0: ") as failure:
        stage_rows(run_for(tmp_path / "store"), 7, iter([batch_of(rows)]))
    assert why in str(failure.value)


def test_an_attempt_that_is_not_committed_counts_for_nothing(tmp_path: Path) -> None:
    run = run_for(tmp_path / "store")
    begin_write(run, overwrite=False)
    [first] = staged(run, [messages(10)])
    [again] = staged(run, [messages(10)])
    assert first.name != again.name
    commit_rows(run, [again], overwrite=False)
    assert_holds(tmp_path / "store", messages(10))
    assert not (tmp_path / "store" / "delaywheel" / "staging").exists()


def test_tasks_count_in_the_order_of_their_partitions(tmp_path: Path) -> None:
    run = run_for(tmp_path / "store")
    begin_write(run, overwrite=False)
    parts = staged(run, [messages(10), messages(10, 10)])
    commit_rows(run, parts[::-1], overwrite=False)
    assert_holds(tmp_path / "store", messages(20))


def test_staged_records_that_changed_are_noticed(tmp_path: Path) -> None:
    run = run_for(tmp_path / "store")
    begin_write(run, overwrite=False)
    parts = staged(run, [messages(10)])
    [file] = parts[0].records(run).iterdir()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(TargetError, match="is not what its task wrote"):
        commit_rows(run, parts, overwrite=False)
    assert not is_bootable(tmp_path / "store")


# --- what may be there ----------------------------------------------------------------------------


def test_append_makes_a_store_and_never_adds_to_one(tmp_path: Path) -> None:
    target = tmp_path / "store"
    write(target, [messages(10)])
    with pytest.raises(TargetError, match="already holds a written wheel"):
        begin_write(run_for(target, "second"), overwrite=False)
    assert_holds(target, messages(10))


def test_overwrite_replaces_what_no_broker_has_opened(tmp_path: Path) -> None:
    target = tmp_path / "store"
    write(target, [messages(90)])
    write(target, [messages(5)], name="second", overwrite=True)
    assert_holds(target, messages(5))


@pytest.mark.parametrize("sign", ["lock", "abort", "checkpoint"])
def test_a_store_that_was_opened_is_not_overwritten(sign: str, tmp_path: Path) -> None:
    target = tmp_path / "store"
    write(target, [messages(10)])
    (target / sign).write_bytes(b"lock")
    with pytest.raises(TargetError, match="was opened since it was written"):
        begin_write(run_for(target, "second"), overwrite=True)
    (target / sign).unlink()
    assert_holds(target, messages(10))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("stranger", ["commitlog/x", "notes.txt", "delaywheel/conversion.json"])
def test_what_a_write_did_not_make_is_left_alone(
    stranger: str, overwrite: bool, tmp_path: Path
) -> None:
    path = tmp_path / "store" / stranger
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(TargetError):
        begin_write(run_for(tmp_path / "store"), overwrite=overwrite)
    assert path.read_text() == "mine"


def test_a_write_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    run = run_for(tmp_path / "store")
    begin_write(run, overwrite=False)
    staged(run, [messages(10)])
    give_up(run)
    assert list((tmp_path / "store").iterdir()) == []


def test_giving_up_an_overwrite_leaves_the_old_store(tmp_path: Path) -> None:
    target = tmp_path / "store"
    write(target, [messages(10)])
    run = run_for(target, "second")
    begin_write(run, overwrite=True)
    staged(run, [messages(20)])
    give_up(run)
    assert_holds(target, messages(10))
    assert not (target / "delaywheel" / "staging").exists()


def test_of_two_writes_to_one_place_the_first_to_commit_wins(tmp_path: Path) -> None:
    target = tmp_path / "store"
    one, two = run_for(target, "one"), run_for(target, "two")
    begin_write(one, overwrite=False)
    begin_write(two, overwrite=False)
    ours, theirs = staged(one, [messages(10)]), staged(two, [messages(20)])
    commit_rows(two, theirs, overwrite=False)
    with pytest.raises(TargetError, match="already holds a written wheel"):
        commit_rows(one, ours, overwrite=False)
    give_up(one)
    assert_holds(target, messages(20))


# --- stops ----------------------------------------------------------------------------------------

STEPS = ("_write_log", "write_index", "prepare_marker", "withdraw_marker", "seal", "finish_write")
RENAMES = range(6)


def stop_at(step: str | int, target: Path, patch: pytest.MonkeyPatch) -> None:
    """Before this step of the commit, or this rename into the root of the target."""

    def stop(*_arguments: object, **_named: object) -> None:
        raise StoppedError

    if isinstance(step, str):
        patch.setattr(wheel_commit, step, stop)
        return
    rename = os.replace
    seen: list[Any] = []

    def counted(source: Any, place: Any) -> None:
        if Path(place).parent == target:
            if len(seen) == step:
                raise StoppedError
            seen.append(place)
        rename(source, place)

    patch.setattr(os, "replace", counted)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("step", [*STEPS, *RENAMES])
def test_a_stop_leaves_no_half_store_and_the_same_write_makes_a_whole_one(
    step: str | int, overwrite: bool, tmp_path: Path
) -> None:
    target = tmp_path / "store"
    if overwrite:
        write(target, [messages(70, 1000)], name="old")
    run = run_for(target, "stopped")
    begin_write(run, overwrite=overwrite)
    parts = staged(run, [messages(30)])
    with pytest.MonkeyPatch.context() as patch:
        stop_at(step, target, patch)
        with pytest.raises(StoppedError):
            commit_rows(run, parts, overwrite=overwrite)
    if step == "finish_write":
        assert is_bootable(target)
        with pytest.raises(TargetError, match="already holds a written wheel"):
            begin_write(run_for(target, "again"), overwrite=False)
        assert_holds(target, messages(30))
        return
    is_old_whole = (target / "delaywheel" / "written.json").exists()
    assert is_bootable(target) == (overwrite and (is_old_whole or step in ("seal", 0)))
    if not is_old_whole:
        with pytest.raises(SourceError, match="an unfinished write of a table"):
            read(target)
    write(target, [messages(30)], name="again", overwrite=overwrite)
    assert_holds(target, messages(30))


def test_index_and_records_of_a_task_agree(tmp_path: Path) -> None:
    run = run_for(tmp_path / "store")
    [part] = staged(run, [messages(17)])
    index = np.load(part.index(run))
    assert index.shape == (4, part.count) == (4, 17)
    assert index[0].sum() == part.size_bytes
