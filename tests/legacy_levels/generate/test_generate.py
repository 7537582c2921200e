# SPDX-License-Identifier: Apache-2.0
"""A generated store is what a broker could have left behind; read back without the product."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from legacy_levels.generate.messages import GROUP, ExtraProperty
from legacy_levels.generate.store import GeneratedStore, generate_level_store
from message_store.base.errors import BadFieldError, TargetError
from message_store.files.store_root import StoreRoot
from tests.independent.level_messages import level_delays_ms
from tests.independent.raw_files import (
    commit_log_records,
    first_nonzero,
    queue_units,
    read_config,
    segments,
)
from tests.independent.raw_records import RawRecord

NOW_MS = 1_793_000_000_000
LOG_FILE_BYTES = 64 << 10
QUEUE_FILE_BYTES = 100 * 20
DELAYS_MS = level_delays_ms()


def make(path: Path, **changes: Any) -> GeneratedStore:
    choices: dict[str, Any] = {
        "messages": 2_000,
        "now_ms": NOW_MS,
        "commit_log_file_bytes": LOG_FILE_BYTES,
        "queue_file_bytes": QUEUE_FILE_BYTES,
    }
    return generate_level_store(path, **(choices | changes))


def digests(path: Path) -> dict[str, str]:
    return {
        file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "store"
    make(path)
    return path


@pytest.fixture(scope="module")
def records(store: Path) -> list[RawRecord]:
    return [placed.record for placed in commit_log_records(store / "commitlog")]


def test_every_message_is_in_the_log_and_still_waits(records: list[RawRecord]) -> None:
    assert len(records) == 2_000
    for record in records:
        level = int(record.effective["DELAY"])
        assert record.queue_id == level - 1
        assert 0 < record.store_timestamp_ms + DELAYS_MS[level] - NOW_MS <= DELAYS_MS[level]
        assert 0 <= record.store_timestamp_ms - record.born_timestamp_ms < 20


def test_the_log_is_in_the_order_of_storing(records: list[RawRecord]) -> None:
    times = [record.store_timestamp_ms for record in records]
    assert times == sorted(times)
    assert times[-1] - times[0] > 6_000_000


def test_every_level_has_its_share_and_its_queue_knows_each_record(store: Path) -> None:
    placed = {each.commit_log_offset: each for each in commit_log_records(store / "commitlog")}
    seen = 0
    for level in range(1, 19):
        units = queue_units(store / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / str(level - 1))
        assert len(units) in (111, 112)
        for ordinal, unit in enumerate(units):
            found = placed[unit.commit_log_offset]
            assert found.record.queue_offset == ordinal
            assert unit.size_bytes == found.size_bytes
            assert unit.tags_code == found.record.store_timestamp_ms + DELAYS_MS[level]
        assert [unit.tags_code for unit in units] == sorted(unit.tags_code for unit in units)
        seen += len(units)
    assert seen == len(placed)


def test_files_have_their_full_length_and_nothing_behind_the_last_record(store: Path) -> None:
    logs = segments(store / "commitlog")
    assert [log.name for log in logs] == [f"{n * LOG_FILE_BYTES:020d}" for n in range(len(logs))]
    assert len(logs) > 5
    assert {log.stat().st_size for log in logs} == {LOG_FILE_BYTES}
    queue = store / "consumequeue/SCHEDULE_TOPIC_XXXX/3"
    assert {file.stat().st_size for file in segments(queue)} == {QUEUE_FILE_BYTES}
    last = list(commit_log_records(store / "commitlog"))[-1]
    end = last.commit_log_offset + last.size_bytes - (len(logs) - 1) * LOG_FILE_BYTES
    assert first_nonzero(logs[-1], end) is None


def test_records_look_like_those_of_applications(records: list[RawRecord]) -> None:
    names = {name for record in records for name, _ in record.pairs}
    assert names == {"REAL_TOPIC", "UNIQ_KEY", "DELAY", "KEYS", "REAL_QID", "TAGS"}
    assert len({record.effective["UNIQ_KEY"] for record in records}) == len(records)
    assert {len(record.effective["UNIQ_KEY"]) for record in records} == {32}
    topics = Counter(record.effective["REAL_TOPIC"] for record in records).most_common()
    assert len(topics) == 8
    assert topics[0][0] == "OrderTimeout"
    assert {record.effective["REAL_QID"] for record in records} == {"0", "1", "2", "3"}
    lengths = {len(record.body) for record in records}
    assert (min(lengths), max(lengths)) == (150, 250)
    assert any("TAGS" not in record.effective for record in records)
    assert any("KEYS" not in record.effective for record in records)


def test_the_configuration_says_where_everything_stands(store: Path) -> None:
    assert read_config(store, "delayOffset.json")["offsetTable"] == {
        str(level): 0 for level in range(1, 19)
    }
    topics = read_config(store, "topics.json")["topicConfigTable"]
    assert topics["SCHEDULE_TOPIC_XXXX"]["writeQueueNums"] == 18
    assert topics["OrderTimeout"]["readQueueNums"] == 4
    assert GROUP in read_config(store, "subscriptionGroup.json")["subscriptionGroupTable"]
    offsets = read_config(store, "consumerOffset.json")["offsetTable"]
    assert offsets[f"OrderTimeout@{GROUP}"] == {"0": 0, "1": 0, "2": 0, "3": 0}
    assert (store / "checkpoint").stat().st_size == 4096
    assert not (store / "abort").exists()


@pytest.mark.parametrize(("dialect", "ending"), [("4.9", False), ("5.x", True)])
def test_properties_end_as_the_dialect_writes_them(
    tmp_path: Path, dialect: str, ending: bool
) -> None:
    make(tmp_path / "s", messages=50, dialect=dialect)
    found = list(commit_log_records(tmp_path / "s" / "commitlog"))
    assert {each.record.properties.endswith(b"\x02") for each in found} == {ending}
    assert ("dataVersion" in read_config(tmp_path / "s", "delayOffset.json")) == ending


def test_the_same_arguments_make_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("one", 7), ("two", 7), ("three", 8)):
        make(tmp_path / name, messages=500, seed=seed)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    one, three = digests(tmp_path / "one"), digests(tmp_path / "three")
    assert one.keys() == three.keys()
    assert one["commitlog/00000000000000000000"] != three["commitlog/00000000000000000000"]


def test_stores_of_several_seeds_hold_no_unique_key_twice(tmp_path: Path) -> None:
    seeds = (0, 1, 255, 2**48 - 1)
    keys = []
    for seed in seeds:
        make(tmp_path / str(seed), messages=20, seed=seed)
        found = commit_log_records(tmp_path / str(seed) / "commitlog")
        keys += [each.record.effective["UNIQ_KEY"] for each in found]
    assert len(set(keys)) == 20 * len(seeds)
    assert {len(key) for key in keys} == {32}
    # Without a seed they are as they always were.
    assert keys[0].startswith("7F00000100002A9F18B4AAC2")


def test_levels_topics_sizes_and_table_can_be_chosen(tmp_path: Path) -> None:
    made = make(
        tmp_path / "s",
        messages=101,
        levels=[2, 1],
        topics=["only"],
        body_bytes=1_000,
        level_table="10s 1d 30d",
    )
    found = [each.record for each in commit_log_records(tmp_path / "s" / "commitlog")]
    assert made.messages_by_level == {1: 51, 2: 50}
    assert {record.effective["REAL_TOPIC"] for record in found} == {"only"}
    assert {750 <= len(record.body) <= 1_250 for record in found} == {True}
    dues = [
        record.store_timestamp_ms + (10_000 if record.effective["DELAY"] == "1" else 86_400_000)
        for record in found
    ]
    assert (made.due_min_ms, made.due_max_ms) == (min(dues), max(dues))


def test_many_messages_of_one_level_share_few_milliseconds(tmp_path: Path) -> None:
    make(tmp_path / "s", messages=3_000, levels=[1])
    assert len(queue_units(tmp_path / "s/consumequeue/SCHEDULE_TOPIC_XXXX/0")) == 3_000


def test_no_messages_make_an_empty_store(tmp_path: Path) -> None:
    made = make(tmp_path / "s", messages=0)
    assert (made.messages, made.commit_log_bytes, made.due_min_ms) == (0, 0, None)
    assert read_config(tmp_path / "s", "topics.json") is not None
    StoreRoot(tmp_path / "s").require_readable()


def test_what_is_half_made_counts_as_not_stopped_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_root: StoreRoot, *, keeps_directory: bool) -> None:
        """Nobody tidies up after a kill."""

    monkeypatch.setattr(StoreRoot, "discard", killed)
    with pytest.raises(BadFieldError, match=r"larger than a log file .*--commit-log-file-bytes"):
        make(tmp_path / "half", body_bytes=LOG_FILE_BYTES * 2)
    assert (tmp_path / "half/abort").exists()
    make(tmp_path / "whole")
    assert not (tmp_path / "whole/abort").exists()


@pytest.mark.parametrize("was_there", [True, False])
@pytest.mark.parametrize("stops", [TargetError("no room"), KeyboardInterrupt(), MemoryError()])
def test_what_was_not_finished_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool, stops: BaseException
) -> None:
    def fail(*_given: object) -> None:
        raise stops

    if was_there:
        (tmp_path / "s").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("legacy_levels.generate.store._write_small_files", fail)
        with pytest.raises(type(stops)):
            make(tmp_path / "s", messages=10)
    assert [path.name for path in tmp_path.rglob("*")] == (["s"] if was_there else [])
    assert make(tmp_path / "s", messages=10).messages == 10


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("of mine")
    with pytest.raises(TargetError, match="not empty"):
        make(tmp_path)


def test_what_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFieldError, match="no such delay level"):
        make(tmp_path / "a", levels=[19])
    with pytest.raises(BadFieldError, match="larger than a log file"):
        make(tmp_path / "b", body_bytes=LOG_FILE_BYTES * 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": -1},
        {"body_bytes": -1},
        {"levels": []},
        {"levels": [0]},
        {"levels": [19]},
        {"level_table": "0s 5s", "levels": [1, 2]},
        {"topics": 0},
        {"topics": []},
        {"dialect": "5.5"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_and_nothing_made(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(BadFieldError):
        make(tmp_path / "s", **wrong)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("percent", "least", "most"), [(0, 0, 0), (10, 100, 320), (100, 2_000, 2_000)]
)
def test_an_extra_property_is_the_last_of_so_many_messages(
    tmp_path: Path, percent: int, least: int, most: int
) -> None:
    make(tmp_path / "store", extra_property=ExtraProperty("__CRC32#", "0123456789", percent))
    pairs = [placed.record.pairs for placed in commit_log_records(tmp_path / "store" / "commitlog")]
    last = [each[-1] for each in pairs]
    assert least <= last.count(("__CRC32#", "0123456789")) <= most
    assert len(pairs) == 2_000
    assert all("__CRC32#" not in dict(each[:-1]) for each in pairs)
