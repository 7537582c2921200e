# SPDX-License-Identifier: Apache-2.0
"""Stores that hold one broker's data are told by what is in their logs; others never are."""

import shutil
from pathlib import Path

import pytest

from message_store.files.segments import segment_name
from migrate.source.members import find_replicas, same_broker
from tests.independent.level_store_builder import LevelMessage, build_level_store

LOG_FILE_BYTES = 4096


def a_store(root: Path, name: str, *, body: bytes, count: int = 40, **more: object) -> Path:
    items = [LevelMessage(level=3, body=body + bytes(number)) for number in range(count)]
    build_level_store(root / name, items, commit_log_file_bytes=LOG_FILE_BYTES, **more)  # type: ignore[arg-type]
    return root / name


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def places(*stores: Path) -> list[tuple[int, ...]]:
    return [group.indexes for group in find_replicas(stores)]


def test_stores_of_different_brokers_are_not_taken_for_one(tmp_path: Path) -> None:
    stores = [a_store(tmp_path, name, body=name.encode()) for name in ("one", "two", "three")]
    assert places(*stores) == []


def test_a_copy_is_found_among_others(tmp_path: Path) -> None:
    one, two = (a_store(tmp_path, name, body=name.encode()) for name in ("one", "two"))
    copy = Path(shutil.copytree(one, tmp_path / "copy"))
    assert places(one, two, copy) == [(0, 2)]


def test_a_slave_that_lags_behind_is_found(tmp_path: Path) -> None:
    master = a_store(tmp_path, "master", body=b"same")
    slave = a_store(tmp_path, "slave", body=b"same", count=15)
    assert len(log_files(slave)) < len(log_files(master))
    assert places(master, slave) == [(0, 1)]


def test_a_slave_is_found_whose_master_has_deleted_its_oldest_files(tmp_path: Path) -> None:
    master = a_store(tmp_path, "master", body=b"same", drop_log_files=2)
    slave = a_store(tmp_path, "slave", body=b"same")
    [group] = find_replicas([master, slave])
    assert (group.indexes, group.commit_log_offset) == ((0, 1), 2 * LOG_FILE_BYTES)


def test_copies_that_share_files_only_by_way_of_a_third_are_one_group(tmp_path: Path) -> None:
    whole = a_store(tmp_path, "whole", body=b"same")
    early, late = (Path(shutil.copytree(whole, tmp_path / name)) for name in ("early", "late"))
    half = len(log_files(whole)) // 2
    for path in log_files(early)[half:] + log_files(late)[:half]:
        path.unlink()
    assert places(early, late) == []
    assert places(early, late, whole) == [(0, 1, 2)]


@pytest.mark.parametrize("content", [b"", bytes(7), bytes(4096), b"\xff" * 4096, b"\0\0\0\x08" * 9])
def test_files_that_begin_with_no_record_are_no_evidence(tmp_path: Path, content: bytes) -> None:
    for name in ("one", "two"):
        path = tmp_path / name / "commitlog" / segment_name(0)
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    assert places(tmp_path / "one", tmp_path / "two") == []


def test_what_is_no_store_is_in_no_group(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert places(tmp_path / "nothing", tmp_path / "file", tmp_path) == []


def test_the_refusal_names_both_the_evidence_and_who_is_ahead(tmp_path: Path) -> None:
    master = a_store(tmp_path, "master", body=b"same", offsets={3: 20})
    slave = a_store(tmp_path, "slave", body=b"same", offsets={3: 12})
    [group] = find_replicas([slave, master])
    sentence = str(same_broker([slave, master], group))
    assert f"{slave} and {master} hold the data of one broker" in sentence
    assert "the record at log offset 0 is the same" in sentence
    assert f"that of {master} is ahead" in sentence
    (master / "config/delayOffset.json").write_bytes(b"{")
    (master / "config/delayOffset.json.bak").write_bytes(b"{")
    assert "ahead" not in str(same_broker([slave, master], group))


@pytest.mark.parametrize(
    ("slave_offset", "copy_offset", "who_is_ahead"),
    [
        (12, 11, "that of {master} is ahead)"),
        (12, 20, "those of {master} and {copy} are ahead)"),
        (20, 20, "(their delayOffset.json are at the same place)"),
    ],
)
def test_the_refusal_of_three_names_all_of_them(
    slave_offset: int, copy_offset: int, who_is_ahead: str, tmp_path: Path
) -> None:
    offsets = {"slave": slave_offset, "master": 20, "copy": copy_offset}
    stores = [
        a_store(tmp_path, name, body=b"same", offsets={3: offset})
        for name, offset in offsets.items()
    ]
    [group] = find_replicas(stores)
    sentence = str(same_broker(stores, group))
    slave, master, copy = stores
    assert f"{slave}, {master} and {copy} hold the data of one broker: " in sentence
    assert "if all were converted, its messages would be delivered from each" in sentence
    assert "both" not in sentence
    assert sentence.endswith(who_is_ahead.format(master=master, copy=copy))
