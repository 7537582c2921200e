# SPDX-License-Identifier: Apache-2.0
"""Consume queues in RocksDB, alone and beside files. A hand-made store is converted to the bytes of
one with files. What a kill took, and damage, is made good or said. What real brokers left is in
``test_real_sources``.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legacy_levels.backlog.backlog import read_backlog
from legacy_levels.engine.store import LevelStore
from message_store.base.clock import ManualClock
from message_store.base.errors import DelayStoreError, SourceError, UnsupportedStoreError
from message_store.files.config_files import read_consumer_offsets, read_groups, read_topics
from message_store.files.rocksdb import queues as rocksdb_queues
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Pending
from message_store.reading.engine_choice import choose_engine
from message_store.reading.topic_listing import list_topic
from migrate.changes.retire import retire
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.convert import convert
from migrate.in_place.convert import convert_in_place
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.settings import ConvertOptions
from migrate.source.sources import WheelNotEmptyError
from migrate.verify.verify import verify
from tests.independent.level_store_builder import T0
from tests.independent.queue_database import (
    end_key,
    move_config,
    move_queues,
    remove_rows,
    row_key,
    rows_in_files,
    write_database,
    write_rows,
)
from tests.independent.raw_records import SCHEDULE_TOPIC
from tests.independent.real_stores import (
    FIXTURE_GROUP,
    ROCKSDB_55_CLEAN,
    ROCKSDB_55_CRASH,
    ROCKSDB_55_WHEEL,
    RealStore,
    unpack,
)
from tests.migrate.conversions import broker_files, options_for
from tests.migrate.mixed_store import ITEMS, PENDING, state_of
from tests.migrate.mixed_store import build as build_files

Stores = Callable[[str], RealStore]


@pytest.fixture(scope="module")
def real_store(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    unpacked: dict[str, RealStore] = {}

    def get(name: str) -> RealStore:
        if name not in unpacked:
            unpacked[name] = unpack(name, tmp_path_factory.mktemp("store") / name)
        return unpacked[name]

    return get


# --- what real brokers left -----------------------------------------------------------------------


@pytest.mark.check
def test_check_counts_what_a_broker_would_not_recover(real_store: Stores) -> None:
    store = real_store(ROCKSDB_55_CRASH)
    conf = {"commitLogRecoverMaxNum": "3"}
    report = check_store(store.root, CheckOptions(now_ms=store.stopped_ms, conf=conf))
    [found] = [each for each in report.findings if each.code == "recovery-ten-files"]
    files = sorted((store.root / "commitlog").iterdir())
    backlog = read_backlog(store.root, after_crash=True)
    is_lost = backlog.commit_log_offset < int(files[-3].name)
    lost = int(is_lost.sum())
    # 5.5.1 was run so when 2,385 messages were overdue, and did not deliver 1,818 of them.
    overdue = np.argsort(backlog.due_ms)[:2_385]
    assert int(is_lost[overdue].sum()) == 1_818
    assert f"{lost:,} of {len(store.pending_in_levels()):,} pending messages" in found.problem


def test_topics_groups_and_offsets_are_those_in_rocksdb(real_store: Stores) -> None:
    store = real_store(ROCKSDB_55_CLEAN)
    topics = read_topics(store.root)
    assert {*store.about["topics"], f"%RETRY%{FIXTURE_GROUP}"} <= set(topics)
    assert topics["OrderTimeout"].read_queues == 4
    assert FIXTURE_GROUP in read_groups(store.root)
    offsets = read_consumer_offsets(store.root)
    seen = sum(
        sum(queues.values()) for (_, group), queues in offsets.items() if group == FIXTURE_GROUP
    )
    assert seen >= store.about["counts"]["sent:delivered"]


# --- a wheel with its queue in RocksDB ------------------------------------------------------------


@pytest.mark.check
def test_timers_that_were_lost_with_their_queue_are_found_in_the_log(
    real_store: Stores, tmp_path: Path
) -> None:
    store = real_store(ROCKSDB_55_WHEEL)
    root = tmp_path / "store"
    shutil.copytree(store.root, root)
    shutil.rmtree(root / "consumequeue")
    write_rows(root, [], root / "consumequeue")
    (root / "abort").touch()
    assert Counter(
        (each.unique_key, each.topic, each.level)
        for each in pending_messages(root, now_ms=store.stopped_ms)
        if isinstance(each, Pending)
    ) == Counter((line.unique_key, line.topic, line.level) for line in store.pending)
    options = options_for(tmp_path, source=root, now_ms=store.stopped_ms, after_crash=True)
    with pytest.raises(WheelNotEmptyError):
        convert(options)


# --- hand-made stores -----------------------------------------------------------------------------


def build(root: Path, **more: Any) -> Path:
    return build_files(root, dialect="5.5", **more)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    root = build(tmp_path / "source")
    move_queues(root)
    return root


@pytest.mark.parametrize("place", ["consumequeue", "consumequeue_rocksdb"])
@pytest.mark.parametrize("single", [False, True])
def test_a_store_is_converted_to_the_same_bytes_as_one_with_files(
    tmp_path: Path, place: str, single: bool
) -> None:
    ordinary = options_for(tmp_path, source=build(tmp_path / "ordinary"), target=tmp_path / "one")
    assert convert(ordinary).total("converted") == PENDING
    root = build(tmp_path / "source")
    move_queues(root, place=place)
    move_config(root, single=single)
    before = state_of(root)
    options = options_for(tmp_path, source=root, target=tmp_path / "two")
    assert convert(options).total("converted") == PENDING
    assert broker_files(options.target) == broker_files(ordinary.target)
    assert verify(root, options.target, spark=None).is_clean
    assert state_of(root) == before


@pytest.mark.parametrize("flushed", range(len(ITEMS) + 1))
def test_nothing_is_lost_or_repeated_wherever_a_killed_broker_had_flushed(
    tmp_path: Path, flushed: int
) -> None:
    root = build(tmp_path / "source", abort=True)
    rows = move_queues(root, flushed=flushed)
    backlog = read_backlog(root, after_crash=True)
    assert (backlog.total("pending"), backlog.total("already_delivered")) == (PENDING, 1)
    waiting = sum(row.topic == SCHEDULE_TOPIC for row in rows)
    assert backlog.total("not_in_queue") == PENDING + 1 - waiting
    assert len(set(backlog.commit_log_offset.tolist())) == PENDING


def test_rows_behind_the_end_of_a_queue_are_dirt(tmp_path: Path, made: Path) -> None:
    clean = read_backlog(made)
    dirt = {row_key(SCHEDULE_TOPIC, 4, number): bytes(28) for number in (9, 10)}
    write_database(made / "consumequeue", {"default": dirt, "offset": {}})
    assert read_backlog(made).commit_log_offset.tolist() == clean.commit_log_offset.tolist()


def test_a_queue_whose_rows_have_all_expired_keeps_its_end(made: Path) -> None:
    remove_rows(made / "consumequeue", [row_key(SCHEDULE_TOPIC, 17, 0)])
    backlog = read_backlog(made)
    [level] = [each for each in backlog.counts if each.level == 18]
    assert (level.queue_min, level.queue_max) == (1, 1)


def test_a_row_that_is_missing_in_a_queue_costs_no_message(made: Path) -> None:
    remove_rows(made / "consumequeue", [row_key(SCHEDULE_TOPIC, 4, 2)])
    assert read_backlog(made, whole_log=True).total("pending") == PENDING
    seen = inspect_store(made, now_ms=T0)
    assert any("hold nothing" in problem for problem in seen.problems)
    assert seen.pending == PENDING


def test_a_changed_database_is_read_anew(tmp_path: Path, made: Path) -> None:
    queues = StoreRoot(made).consume_queues
    assert StoreRoot(made).consume_queues == queues
    write_database(made / "consumequeue", {"default": {}, "offset": {}})
    assert StoreRoot(made).consume_queues != queues


def test_a_database_that_was_replaced_with_its_lengths_and_times_is_read_anew(
    tmp_path: Path, made: Path
) -> None:
    """As `cp -a` or `rsync -a` puts a backup back."""
    database, backup = made / "consumequeue", tmp_path / "backup"
    shutil.copytree(database, backup)
    queues = StoreRoot(made).consume_queues
    facts = {path.name: path.stat() for path in database.iterdir()}
    shutil.rmtree(database)
    shutil.copytree(backup, database)
    for name, was in facts.items():
        os.utime(database / name, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert StoreRoot(made).consume_queues != queues


def test_a_copy_that_was_cleaned_up_in_part_is_made_anew(made: Path) -> None:
    wanted = read_backlog(made).commit_log_offset.tolist()
    shutil.rmtree(StoreRoot(made).level_queue(4))
    assert read_backlog(made).commit_log_offset.tolist() == wanted
    shutil.rmtree(StoreRoot(made).consume_queues.parent)
    assert read_backlog(made).commit_log_offset.tolist() == wanted


def test_a_copy_that_was_stopped_is_begun_again(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state_of(made)
    written = []

    def stop_at_the_third(descriptor: int, content: bytes, position: int) -> int:
        written.append(position)
        if len(written) == 3:
            raise KeyboardInterrupt
        return os.pwrite(descriptor, content, position)

    class Stopped:
        def __getattr__(self, name: str) -> Any:
            return stop_at_the_third if name == "pwrite" else getattr(os, name)

    with monkeypatch.context() as patch:
        patch.setattr(rocksdb_queues, "os", Stopped())
        with pytest.raises(KeyboardInterrupt):
            read_backlog(made)
    assert read_backlog(made).total("pending") == PENDING
    assert state_of(made) == before


def test_a_full_disk_is_named_with_the_way_out(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(SourceError, match="No space left on device; TMPDIR names another place"):
        read_backlog(made)


# --- both kinds of queues -------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [None, 0, 5])
def test_of_both_kinds_of_queues_the_files_are_taken(tmp_path: Path, flushed: int | None) -> None:
    root = build(tmp_path / "source", abort=flushed is not None)
    move_queues(root, keep_files=True, flushed=flushed)
    backlog = read_backlog(root, after_crash=True)
    assert (backlog.total("pending"), backlog.total("not_in_queue")) == (PENDING, 0)


def test_files_that_a_broker_left_behind_are_not_taken_for_all(tmp_path: Path) -> None:
    root = build(tmp_path / "source")
    rows = rows_in_files(root)
    shutil.rmtree(root / "consumequeue")
    build(tmp_path / "older", indexed_items=8)
    shutil.copytree(tmp_path / "older/consumequeue", root / "consumequeue")
    write_rows(root, rows, root / "consumequeue")
    with pytest.raises(UnsupportedStoreError, match="a broker went on without them"):
        inspect_store(root, now_ms=T0)
    for topic in (root / "consumequeue").iterdir():
        if topic.is_dir():
            shutil.rmtree(topic)
    assert inspect_store(root, now_ms=T0).pending == PENDING


# --- damage ---------------------------------------------------------------------------------------


def flip_in_tables(root: Path) -> None:
    for path in (root / "consumequeue").glob("*.sst"):
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 0x10
        path.write_bytes(content)


def without_tables(root: Path) -> None:
    for path in (root / "consumequeue").glob("*.sst"):
        path.unlink()


def without_pointer(root: Path) -> None:
    (root / "consumequeue/CURRENT").unlink()


def linked(root: Path) -> None:
    (root / "consumequeue").rename(root / "elsewhere")
    (root / "consumequeue").symlink_to(root / "elsewhere")


def short_row(root: Path) -> None:
    pairs = {row_key(SCHEDULE_TOPIC, 4, 0): bytes(27)}
    write_database(root / "consumequeue", {"default": pairs, "offset": {}})


def short_end(root: Path) -> None:
    pairs = {end_key(SCHEDULE_TOPIC, 4): bytes(15)}
    write_database(root / "consumequeue", {"default": {}, "offset": pairs})


def short_key(root: Path) -> None:
    write_database(root / "consumequeue", {"default": {}, "offset": {b"\0\0\0\x09\1x": bytes(16)}})


DAMAGES = [
    flip_in_tables,
    without_tables,
    without_pointer,
    linked,
    short_row,
    short_end,
    short_key,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_said_and_no_target_is_begun(
    tmp_path: Path, made: Path, damage: Callable[[Path], None]
) -> None:
    damage(made)
    before = state_of(made)
    options = options_for(tmp_path, source=made)
    with pytest.raises(DelayStoreError):
        convert(options)
    assert not options.target.exists()
    with pytest.raises(DelayStoreError):
        inspect_store(made, now_ms=T0)
    assert state_of(made) == before


def test_every_byte_of_a_table_counts_or_changes_nothing(tmp_path: Path, made: Path) -> None:
    wanted = read_backlog(made)
    for path in (made / "consumequeue").glob("*.sst"):
        content = path.read_bytes()
        for place in range(0, len(content), 97):
            flipped = bytearray(content)
            flipped[place] ^= 0x04
            path.write_bytes(flipped)
            try:
                found = read_backlog(made)
            except DelayStoreError:
                continue
            assert found.commit_log_offset.tolist() == wanted.commit_log_offset.tolist(), place
            assert found.due_ms.tolist() == wanted.due_ms.tolist(), place
        path.write_bytes(content)


def test_damaged_topics_in_rocksdb_are_a_finding(made: Path) -> None:
    write_database(made / "config/topics", {"default": {b"T": b'{"perm":'}, "kvDataVersion": {}})
    report = check_store(made, CheckOptions(now_ms=T0))
    assert "config-unreadable" in [each.code for each in report.findings]
    assert any("'T': truncated" in each for each in inspect_store(made, now_ms=T0).problems)


# --- what is refused, and what is not -------------------------------------------------------------


def test_a_store_is_not_converted_in_place_nor_opened_nor_are_its_topics_read(made: Path) -> None:
    before = state_of(made)
    with pytest.raises(UnsupportedStoreError, match="convert into a fresh store"):
        convert_in_place(ConvertOptions(source=made, target=made, now_ms=T0))
    with pytest.raises(UnsupportedStoreError, match="`delaywheel convert` moves pending"):
        LevelStore.open(made, clock=ManualClock(T0))
    with pytest.raises(UnsupportedStoreError, match="`delaywheel convert` moves pending"):
        choose_engine(StoreRoot(made))
    with pytest.raises(UnsupportedStoreError, match="`delaywheel pending` lists these"):
        list(list_topic(made, "TopicA"))
    assert state_of(made) == before


def test_a_store_with_both_kinds_of_queues_is_not_opened_nor_converted_in_place(
    tmp_path: Path,
) -> None:
    root = build(tmp_path / "source")
    move_queues(root, keep_files=True)
    with pytest.raises(UnsupportedStoreError, match="convert into a fresh store"):
        convert_in_place(ConvertOptions(source=root, target=root, now_ms=T0))
    with pytest.raises(UnsupportedStoreError, match="`delaywheel convert` moves pending"):
        LevelStore.open(root, clock=ManualClock(T0))


def test_a_converted_source_is_retired_by_its_offsets(tmp_path: Path, made: Path) -> None:
    options = options_for(tmp_path, source=made)
    convert(options)
    queues = {name: facts for name, facts in state_of(made).items() if "consumequeue" in name}
    assert retire(made, options.target, execute=True).converted == PENDING
    assert read_backlog(made).total("pending") == 0
    after = state_of(made)
    assert queues == {name: facts for name, facts in after.items() if "consumequeue" in name}


def test_the_rows_of_a_database_are_those_of_the_files(tmp_path: Path) -> None:
    root = build(tmp_path / "source")
    wanted = [each for each in rows_in_files(root) if each.topic == SCHEDULE_TOPIC]
    move_queues(root)
    copied = StoreRoot(root).consume_queues
    shutil.copytree(copied, tmp_path / "copy/consumequeue")
    found = rows_in_files(tmp_path / "copy")
    assert [each for each in found if each.topic == SCHEDULE_TOPIC] == wanted
