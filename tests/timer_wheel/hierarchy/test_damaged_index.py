# SPDX-License-Identifier: Apache-2.0
"""Damage in the middle of the index's tables, which the database meets only where it reads them:
the index is made anew from the queue, and every message is delivered once.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from message_store import AfterMs, Cancellation, ManualClock, Message, MessageBatch
from message_store.base.errors import DelayStoreError, SourceError, StoreClosedError, TargetError
from message_store.files.rocksdb.manifest import ManifestNote, note_manifest
from message_store.files.store_root import StoreRoot
from message_store.writing.settings import StoreSettings
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.format.index_layouts import WAITING_ROW, IndexState
from timer_wheel.hierarchy import index_db, opening
from timer_wheel.hierarchy.index_db import DamagedIndexError, IndexDb, remove_index
from timer_wheel.reading.hierarchy_reader import read_hierarchy

START_MS = 1_793_000_000_000
HOUR_MS = 3_600_000
COUNT = 3_000
Store = HierarchicalWheelStore
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=20_000, timer_log_file_bytes=1 << 20
)


def open_store(path: Path, clock: ManualClock) -> Store:
    return Store.open(path, clock=clock, settings=SMALL)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A store whose messages stand in tables, and the handles of those that may be cancelled."""
    path, clock = tmp_path_factory.mktemp("whole") / "store", ManualClock(START_MS)
    messages = [Message("orders", b"%d" % n, unique_key=f"K{n:04}") for n in range(COUNT)]
    due_ms = START_MS + HOUR_MS + np.arange(COUNT, dtype=np.int64) * 20_000
    with open_store(path, clock) as store:
        receipts = store.schedule_batch(MessageBatch.of(messages), due_ms)
        assert store.cancel(receipts.receipt(COUNT - 1)) is Cancellation.CANCELLED
    for _ in range(2):
        open_store(path, clock).close()
    return path, [receipts.receipt(row).handle for row in range(0, COUNT, 500)]


def tables(path: Path) -> list[Path]:
    return sorted((path / "delaywheel/hierarchy/index").glob("*.sst"))


def flip_in_the_middle(table: Path) -> None:
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0xFF
    table.write_bytes(content)


ACTS: dict[str, Callable[[Store, list[str]], object]] = {
    "advance": lambda store, _: store.advance(START_MS),
    "pending": lambda store, _: list(store.pending()),
    "next_due_ms": lambda store, _: store.next_due_ms(),
    "cancel": lambda store, handles: [store.cancel(handle) for handle in handles],
    "check": lambda store, _: store.check(),
    "flush": lambda store, _: store.flush(),
}


def delivered_in_sessions(path: Path, clock: ManualClock) -> tuple[list[bytes], int]:
    """What comes at last, and in how many sessions something was damaged."""
    bodies: list[bytes] = []
    failed = 0
    for _ in range(3):
        with closing(open_store(path, clock)) as store:
            try:
                bodies += [each.message.body for each in store.advance(clock.now_ms())]
            except DamagedIndexError:
                failed += 1
    return bodies, failed


@pytest.mark.check
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_byte_that_flipped_in_any_table_stops_no_message(
    tmp_path: Path, closed: tuple[Path, list[str]], act: Callable[[Store, list[str]], object]
) -> None:
    whole, handles = closed
    found_damaged = 0
    for number in range(len(tables(whole))):
        path, clock = tmp_path / f"{number}", ManualClock(START_MS)
        shutil.copytree(whole, path)
        flip_in_the_middle(tables(path)[number])
        with closing(open_store(path, clock)) as store:
            try:
                act(store, handles)
                store.schedule(Message("orders", b"new"), AfterMs(1_000))
                is_scheduled = True
            except DelayStoreError:
                is_scheduled = False
        clock.tick(30 * HOUR_MS)
        bodies, failed = delivered_in_sessions(path, clock)
        found_damaged += failed
        with open_store(path, clock) as store:
            assert store.check() == []
            assert list(store.pending()) == []
            answers = [store.cancel(handle) for handle in handles]
        cancelled = answers.count(Cancellation.CANCELLED)
        assert failed <= 1
        assert len(bodies) == len(set(bodies)) == COUNT - 1 - cancelled + is_scheduled
    assert found_damaged or act not in (ACTS["flush"], ACTS["advance"])


@pytest.mark.parametrize("end", ["killed", pytest.param("closed", marks=pytest.mark.check)])
def test_equal_messages_of_a_damaged_index_come_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Some were delivered, and equal ones scheduled since, by a clock that was ahead."""
    whole, clock, count = tmp_path / "whole", ManualClock(START_MS), 900
    due_ms = START_MS + HOUR_MS + np.arange(count, dtype=np.int64) // 3 * 20_000
    equal = MessageBatch.of([Message("orders", b"%d" % (n // 3)) for n in range(count)])
    with open_store(whole, clock) as store:
        store.schedule_batch(equal, due_ms)
    with open_store(whole, clock) as store:
        came = len(store.advance(START_MS + 3 * HOUR_MS))
        store.schedule_batch(equal, due_ms)
    store = open_store(whole, clock)
    came += len(store.advance(START_MS + 2 * HOUR_MS))
    store.close() if end == "closed" else store.abandon()
    assert 0 < came < 2 * count
    made_anew: list[Path] = []

    def counted(path: Path) -> None:
        made_anew.append(path)
        remove_index(path)

    monkeypatch.setattr(opening, "remove_index", counted)
    for number in range(len(tables(whole))):
        path = tmp_path / f"{number}"
        shutil.copytree(whole, path)
        flip_in_the_middle(tables(path)[number])
        later = ManualClock(START_MS + 30 * HOUR_MS)
        delivered_in_sessions(path, later)
        with open_store(path, later) as store:
            bodies = Counter(each.body for each in store.topic("orders").read(0, 0, 9_999))
            assert bodies == Counter({b"%d" % number: 6 for number in range(count // 3)})
    assert made_anew


def test_a_wheel_in_files_takes_a_store_over_whose_index_is_damaged(
    tmp_path: Path, closed: tuple[Path, list[str]]
) -> None:
    for number in range(len(tables(closed[0]))):
        path, clock = tmp_path / f"{number}", ManualClock(START_MS)
        shutil.copytree(closed[0], path)
        flip_in_the_middle(tables(path)[number])
        with WheelStore.open(path, clock=clock, settings=SMALL, max_delay_ms=None) as store:
            clock.tick(30 * HOUR_MS)
            assert len(store.advance(clock.now_ms())) == COUNT - 1


def test_an_index_that_was_found_damaged_is_made_anew_though_the_store_is_killed(
    tmp_path: Path, closed: tuple[Path, list[str]]
) -> None:
    """Nothing but the table tells of the damage: the opening does not read it."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    shutil.copytree(closed[0], path)
    for table in tables(path):
        keep = table.read_bytes()
        flip_in_the_middle(table)
        try:
            with closing(open_store(path, clock)) as store:
                list(store.pending())
        except DelayStoreError:
            break
        table.write_bytes(keep)
    store = open_store(path, clock)
    store.abandon()
    with closing(IndexDb(path / "delaywheel/hierarchy/index", read_only=True)) as db:
        assert sum(len(block.rows) for block in db.blocks("hours")) > 0
    with open_store(path, clock) as store:
        assert len(list(store.pending())) == COUNT - 1


def test_an_iterator_that_somebody_holds_does_not_keep_the_database_open(
    tmp_path: Path, closed: tuple[Path, list[str]]
) -> None:
    path, clock = tmp_path / "store", ManualClock(START_MS)
    shutil.copytree(closed[0], path)
    store = open_store(path, clock)
    held = store.pending(), store._index.db.blocks("hours")
    for each in held:
        next(each)
    store.close()
    with open_store(path, clock) as again:
        assert len(list(again.pending())) == COUNT - 1
    with pytest.raises(StoreClosedError):
        list(held[0])


# --- a manifest that lost its end -----------------------------------------------------------------


def record_ends(manifest: bytes) -> list[int]:
    """Where whole records end in a manifest (RocksDB's log format: blocks of 32 KiB, in which each
    part of a record has a head of checksum, length and kind; 1 is a whole one, 4 a last part).
    """
    ends, place = [], 0
    while place + 7 <= len(manifest):
        if place % 32_768 > 32_768 - 7:
            place += -place % 32_768
            continue
        length = int.from_bytes(manifest[place + 4 : place + 6], "little")
        kind = manifest[place + 6]
        place += 7 + length
        if kind in (1, 4):
            ends.append(place)
    return ends


@pytest.fixture(scope="module", params=["closed", "killed", "killed, with tables between"])
def moved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose messages went from wheel to wheel in several sessions. A kill leaves the files
    as they are: whoever copies them while the store is open has the same.
    """
    path, clock = tmp_path_factory.mktemp("moved") / "store", ManualClock(START_MS)
    with pytest.MonkeyPatch.context() as patch:
        if request.param.endswith("between"):
            patch.setattr(index_db, "_CHANGES_BYTES", 4_000)
        for session in range(3):
            with open_store(path, clock) as store:
                for number in range(40):
                    body = b"%d" % (session * 40 + number)
                    store.schedule(Message("orders", body), AfterMs(HOUR_MS // 12 * (number + 1)))
                store.flush()
                clock.tick(HOUR_MS)
                store.advance(clock.now_ms())
                store.flush()
                if request.param != "closed":
                    path = shutil.copytree(path, path.with_name(f"copied-{session}"))
    return path


def test_a_manifest_that_lost_its_end_costs_no_message(tmp_path: Path, moved: Path) -> None:
    """RocksDB takes it. Some column families are in an older form than others then, or lack what
    stood between an older form and the log of changes.
    """
    [manifest] = (moved / "delaywheel/hierarchy/index").glob("MANIFEST-*")
    content = manifest.read_bytes()
    ends = record_ends(content)
    assert len(ends) > 10
    assert ends[-1] == len(content)
    expected, damaged = Counter(b"%d" % number for number in range(120)), 0
    for end in ends:
        path, clock = tmp_path / f"{end}", ManualClock(START_MS + 3 * HOUR_MS)
        shutil.copytree(moved, path)
        (path / manifest.relative_to(moved)).write_bytes(content[:end])
        try:
            state = read_hierarchy(StoreRoot(path), after_crash=True)
            listed = sorted(state.pending.commit_log_offset.tolist())
        except DelayStoreError:
            listed, damaged = None, damaged + 1
        with open_store(path, clock) as store:
            pending = sorted(each.commit_log_offset for each in store.pending())
            clock.tick(10 * HOUR_MS)
            store.advance(clock.now_ms())
            came = Counter(each.body for each in store.topic("orders").read(0, 0, 1_000))
        assert came == expected
        assert listed in (None, pending)
    assert 0 < damaged < len(ends)


def test_a_reader_names_the_damaged_file_where_it_lies(tmp_path: Path, moved: Path) -> None:
    """It reads by links elsewhere, which are gone when somebody looks."""
    path = shutil.copytree(moved, tmp_path / "store")
    [manifest] = (path / "delaywheel/hierarchy/index").glob("MANIFEST-*")
    manifest.write_bytes(manifest.read_bytes()[:100])
    with pytest.raises(SourceError) as caught:
        read_hierarchy(StoreRoot(path), after_crash=True)
    assert str(manifest) in str(caught.value)
    assert "delaywheel-rocksdb-" not in str(caught.value)


def copied_at_rest(index: Path, target: Path) -> Path:
    """A copy of an open index; RocksDB removes files in a thread of its own."""
    for _ in range(50):
        with suppress(shutil.Error):
            return shutil.copytree(index, target)
        shutil.rmtree(target)
    raise AssertionError(index)


def test_a_cut_between_the_tables_of_two_families_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written since, and the log of changes is gone with the last table."""
    monkeypatch.setattr(index_db, "_CHANGES_BYTES", 1)
    row = np.zeros(1, WAITING_ROW.dtype.newbyteorder("="))
    with closing(IndexDb(tmp_path / "index")) as db:
        for count in range(1, 4):
            batch = db.batch()
            batch.put_block("hours", count * HOUR_MS, row)
            batch.put_block("marks", count * HOUR_MS, row)
            db.write(batch, IndexState(1, 1_000, count, 0, 0, 0, 0, 0))
            db._wait_for_tables()
        copied = copied_at_rest(db.path, tmp_path / "copied")
    [manifest] = copied.glob("MANIFEST-*")
    content, told, believed = manifest.read_bytes(), 0, []
    for end in record_ends(content):
        path = tmp_path / f"{end}"
        shutil.copytree(copied, path)
        (path / manifest.name).write_bytes(content[:end])
        try:
            with closing(IndexDb(path)) as db:
                state = db.state()
                believed.append(0 if state is None else state.placed_end)
                for family in ("hours", "marks"):
                    assert len(list(db.blocks(family))) == believed[-1]
        except DamagedIndexError:
            told += 1
    assert told > 3
    assert believed[-1] == 3


def test_no_batch_is_written_while_changes_are_on_their_way_into_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the log of changes might go with the tables that a lost end of the manifest names, and
    a later log would hide it.
    """
    monkeypatch.setattr(index_db, "_CHANGES_BYTES", 1)  # all that is written goes into tables
    rows = np.zeros(1_000, WAITING_ROW.dtype.newbyteorder("="))
    with closing(IndexDb(tmp_path / "index")) as db:
        for hour in range(20):
            before = note_manifest(db.path, ManifestNote())
            batch = db.batch()
            batch.put_block("hours", hour * HOUR_MS, rows)
            db.move(batch)
            db.move(db.batch())  # it waits
            assert db._noted.size_bytes > before.size_bytes


def test_tables_that_cannot_be_written_are_told_of_until_they_are(tmp_path: Path) -> None:
    """Nobody waits for ever, and no batch is written meanwhile."""

    class Failing:
        def __init__(self, db: object) -> None:
            self._db = db
            self.on_their_way, self.failures = 1, 1

        def __getattr__(self, name: str) -> object:
            return getattr(self._db, name)

        def property_int_value(self, name: str) -> int:
            return self.failures if "errors" in name else self.on_their_way

    with closing(IndexDb(tmp_path / "index")) as db:
        whole = db._db
        failing = Failing(whole)
        db._db = failing  # type: ignore[assignment]
        for _ in range(3):
            with pytest.raises(TargetError, match="tables cannot be written"):
                db.move(db.batch())
        failing.on_their_way = 0
        db.move(db.batch())
        db._db = whole


def test_whoever_is_stopped_in_a_batch_leaves_numbers_that_agree(tmp_path: Path) -> None:
    """Ctrl-C may come when the batch is written, and before anybody knows of it."""

    class Stopped:
        def __init__(self, db: object) -> None:
            self._db = db

        def __getattr__(self, name: str) -> object:
            return getattr(self._db, name)

        def write(self, changes: object) -> None:
            self._db.write(changes)  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with closing(IndexDb(tmp_path / "index")) as db:
        whole = db._db
        db._db = Stopped(whole)  # type: ignore[assignment]
        batch = db.batch()
        batch.put_block("marks", 0, np.zeros(1, WAITING_ROW.dtype.newbyteorder("=")))
        with pytest.raises(KeyboardInterrupt):
            db.move(batch)
        db._db = whole
        batch = db.batch()
        batch.put_block("hours", 0, np.zeros(1, WAITING_ROW.dtype.newbyteorder("=")))
        db.move(batch)
    with closing(IndexDb(tmp_path / "index")) as db:
        assert db.state() is None
