# SPDX-License-Identifier: Apache-2.0
"""What nobody waited for when a store or a plan says that it is on the disk, and what an interrupt
leaves of files and locks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from consumer_groups import consumer_group
from legacy_levels.engine import offset_persistence
from legacy_levels.engine.offset_persistence import OffsetPersistence
from legacy_levels.engine.store import LevelStore
from message_store import AfterMs, Cancellation, ManualClock, Message, Severity
from message_store.base.errors import TargetError
from message_store.files.live_segments import LiveSegments
from message_store.files.small_files import replace_file
from message_store.writing.store import LiveStore
from migrate.convert import convert
from tests.faults.engines import abandon, open_hierarchy, open_levels, open_wheel
from tests.message_store.live_workload import SMALL, append, stored
from tests.migrate.stopped_conversions import made
from tests.simulation.bench import FOLLOWS_FROM_THE_LOG, Bench
from tests.simulation.cases import watched
from tests.simulation.scenarios import ENGINE_SCENARIOS, ENGINES
from tests.simulation.simulated_disk import (
    Event,
    Name,
    Note,
    SimulatedDisk,
    Sync,
    Write,
    loose,
    make_disk,
    nothing_unsynced,
    recording,
    unsynced_files,
)
from tests.timer_wheel.wheel_store_builder import NOW_MS, WheelStoreBuilder
from timer_wheel import WheelStore

ROWS = ("commitlog", "consumequeue")


def test_a_flush_after_a_kill_waits_for_the_names_that_the_killed_process_made(
    tmp_path: Path,
) -> None:
    """Its files are synced, and were gone with the power all the same."""
    root = tmp_path / "store"
    with recording(root) as disk:
        store = LiveStore.open(root, settings=SMALL)
        for number in range(60):
            append(store, stored(bytes(900), queue_id=number % 3))
        store.abandon()
        store = LiveStore.open(root, settings=SMALL)
        store.flush()
        moment = len(disk.events)
        store.abandon()
    names = [disk.events[index] for index in loose(disk.events, moment).names]
    left = [each.path for each in names if isinstance(each, Name) and each.path.startswith(ROWS)]
    assert left == []


def test_a_flush_after_a_kill_waits_for_all_queue_files_that_the_killed_process_wrote(
    tmp_path: Path,
) -> None:
    """One batch may fill many of them. A checkpoint said that they were on the disk, and a loss of
    power took the entries of the first: nobody filled them in again. Found by random runs.
    """
    root = tmp_path / "store"
    settings = attrs.evolve(SMALL, queue_file_bytes=5 * 20)
    with recording(root) as disk:
        store = LiveStore.open(root, settings=settings)
        append(store, stored(bytes(100)))
        store.flush()
        for _ in range(40):
            append(store, stored(bytes(100)))
        store.abandon()
        store = LiveStore.open(root, settings=settings)
        store.flush()
        moment = len(disk.events)
        store.abandon()
    left = unsynced_files(disk.events, moment)
    assert [each for each in left if each.startswith(ROWS)] == []


def test_a_flush_after_a_kill_waits_for_the_cancels_of_the_killed_process(tmp_path: Path) -> None:
    """A cancel of the levels writes into an entry that was on the disk long before."""
    root, clock = tmp_path / "store", ManualClock(NOW_MS)
    settings = attrs.evolve(SMALL, queue_file_bytes=5 * 20)
    with recording(root) as disk:
        store = LevelStore.open(root, clock=clock, settings=settings)
        first = store.schedule(Message("orders", b"", unique_key="K"), AfterMs(60_000))
        for _ in range(40):
            store.schedule(Message("orders", b""), AfterMs(60_000))
        store.flush()
        assert store.cancel(first) is Cancellation.CANCELLED
        abandon(store)
        store = LevelStore.open(root, clock=clock, settings=settings)
        store.flush()
        moment = len(disk.events)
        abandon(store)
    left = unsynced_files(disk.events, moment)
    assert [each for each in left if each.startswith(ROWS)] == []


def test_a_flush_after_a_kill_waits_for_what_groups_of_the_killed_process_acknowledged(
    tmp_path: Path,
) -> None:
    """Whoever opens the store need not have groups. Found by random runs."""
    root, clock = tmp_path / "store", ManualClock(NOW_MS)
    with recording(root) as disk:
        store = LevelStore.open(root, clock=clock, settings=SMALL)
        store.schedule(Message("orders", b""), AfterMs(0))
        store.advance(NOW_MS)
        group = consumer_group(store, "billing")
        group.ack(*group.receive("orders"))
        abandon(store)
        store = LevelStore.open(root, clock=clock, settings=SMALL)
        store.flush()
        moment = len(disk.events)
        abandon(store)
    assert "delaywheel/consumers" not in unsynced_files(disk.events, moment)


def test_an_interrupt_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file before it was taken back, it was a gap, and the store could not be opened."""
    row = LiveSegments(tmp_path, 4096)
    row.make_file(0)

    def interrupt(*_given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            row.make_file(4096)
    assert [path.name for path in tmp_path.iterdir()] == [f"{0:020d}"]
    row.make_file(4096)
    assert row.starts == [0, 4096]
    row.close()


def test_a_plan_that_is_there_is_on_the_disk(tmp_path: Path) -> None:
    """Else a loss of power left an empty one, with which nobody could go on."""
    options = made(tmp_path)
    with recording(options.target) as disk:
        convert(options)
    moment, file = next(
        (index + 1, event.file)
        for index, event in enumerate(disk.events)
        if isinstance(event, Name) and event.path.endswith("/plan.json")
    )
    left = [disk.events[index] for index in loose(disk.events, moment).data]
    assert [each for each in left if isinstance(each, Write) and each.file == file] == []


def test_an_interrupt_while_a_store_is_locked_leaves_it_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock belongs to the open file, and nobody had it any more to close it."""
    LiveStore.open(tmp_path / "store", settings=SMALL).close()

    def interrupt(*_given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupt)
        with pytest.raises(KeyboardInterrupt):
            LiveStore.open(tmp_path / "store", settings=SMALL)
    LiveStore.open(tmp_path / "store", settings=SMALL).close()


@pytest.mark.parametrize("kills", [1, 2])
@pytest.mark.parametrize("count", [10, 45])
def test_a_wheel_s_flush_after_a_kill_waits_for_the_names_of_its_timer_log(
    tmp_path: Path, kills: int, count: int
) -> None:
    """A broker that finds no unit goes on where the checkpoint says that all are on the disk."""
    root, clock = tmp_path / "store", ManualClock(1_793_000_000_000)
    with recording(root) as disk:
        for life in range(kills):
            store = open_wheel(root, clock)
            for number in range(count):
                message = Message("orders", b"", unique_key=f"K{life}-{number}")
                store.schedule(message, AfterMs(20_000))
            assert store.next_due_ms() is not None  # which places them
            abandon(store)
        store = open_wheel(root, clock)
        store.flush()
        moment = len(disk.events)
        abandon(store)
    names = [disk.events[index] for index in loose(disk.events, moment).names]
    left = [each.path for each in names if isinstance(each, Name)]
    assert [path for path in left if path.startswith("timer")] == []


def test_the_units_that_are_kept_are_on_the_disk_before_the_checkpoint_counts_them(
    tmp_path: Path,
) -> None:
    """Where the timer log is cut at the beginning of a file that a killed broker wrote."""
    builder = WheelStoreBuilder(tmp_path / "store")
    for _ in range(4):
        builder.put_and_place(NOW_MS + 60_000)
    builder.put(NOW_MS - 5_000, stored_ms=NOW_MS)
    builder.put_and_place(NOW_MS + 60_000)
    builder.stop(last_queue_offset=1, master_queue_offset=1)
    builder.path.joinpath("abort").touch()
    with recording(builder.path) as disk:
        taken_over = len(disk.events)
        store = WheelStore.open(builder.path, clock=ManualClock(NOW_MS + 2_000))
        abandon(store)
    files = {each.path: each.file for each in disk.events if isinstance(each, Name)}
    synced = [each.file for each in disk.events[taken_over:] if isinstance(each, Sync)]
    log_file, checkpoint = files[f"timerlog/{0:020d}"], files["config/timercheck"]
    assert synced.index(log_file or 0) < synced.index(checkpoint or 0)


@pytest.mark.parametrize("kills", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_after_a_close_nothing_is_in_memory_alone(tmp_path: Path, engine: str, kills: int) -> None:
    """Whoever opens a store that was closed believes all of its files, but for an index with
    checksums; some of them were made by processes that were killed.
    """
    disk = SimulatedDisk(tmp_path / "store")
    bench = Bench(ENGINE_SCENARIOS["work"].setup(engine), tmp_path / "store", disk)
    with watched(disk):
        for life in range(kills):
            bench.open()
            bench.schedule(f"NEAR{life}", bench.clock.now_ms() + 1_000)
            bench.schedule(f"FAR{life}", bench.clock.now_ms() + 90_000)
            bench.clock.tick(20_000)
            bench.advance()
            bench.kill()
        bench.open()
        bench.advance()
        bench.close()
        left = unsynced_files(disk.events, len(disk.events)) - {"lock"}
        assert {path for path in left if not path.startswith(FOLLOWS_FROM_THE_LOG)} == set()


def _synced(events: Sequence[Event]) -> list[str]:
    """The folders of the files that were synced behind the last note."""
    names = {each.file: each.path for each in events if isinstance(each, Name) and each.file}
    begin = max(number for number, each in enumerate(events) if isinstance(each, Note))
    return [names[each.file].split("/")[0] for each in events[begin:] if isinstance(each, Sync)]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flush_behind_another_syncs_the_log_alone(tmp_path: Path, engine: str) -> None:
    disk = SimulatedDisk(tmp_path / "store")
    bench = Bench(ENGINE_SCENARIOS["work"].setup(engine), tmp_path / "store", disk)
    with watched(disk):
        bench.open()
        for name in "AB":
            bench.schedule(name, bench.clock.now_ms() + 90_000)
            disk.note(step=name)
            bench.store.flush()
        assert _synced(disk.events) == ["commitlog"]
        bench.clock.tick(1_000)
        disk.note(step="a second later")
        bench.store.flush()
        assert "consumequeue" in _synced(disk.events)
        bench.close()


def test_a_flush_behind_a_cancel_of_the_levels_syncs_the_queue_that_tells_of_it(
    tmp_path: Path,
) -> None:
    disk = SimulatedDisk(tmp_path / "store")
    bench = Bench(ENGINE_SCENARIOS["work"].setup("levels"), tmp_path / "store", disk)
    with watched(disk):
        bench.open()
        bench.schedule("A", bench.clock.now_ms() + 90_000)
        bench.flush()
        bench.cancel("A")
        disk.note(step="cancelled")
        bench.store.flush()
        assert "consumequeue" in _synced(disk.events)
        bench.close()


@pytest.mark.parametrize("opener", [open_levels, open_wheel, open_hierarchy])
def test_what_was_delivered_is_on_the_disk_before_retention_takes_a_record(
    tmp_path: Path, opener: Callable[..., Any]
) -> None:
    """The removal outlives a loss of power, and nothing else that nobody waited for. A level's
    messages were told lost, which had been delivered. Found by random runs.
    """
    root, clock = tmp_path / "store", ManualClock(NOW_MS)
    settings = attrs.evolve(SMALL, commit_log_file_bytes=4 << 10, retention_ms=60_000)
    disk = SimulatedDisk(root)
    with watched(disk):
        store = opener(root, clock, settings)
        for _ in range(40):
            store.schedule(Message("orders", bytes(200)), AfterMs(10_000))
        for later_ms in (11_000, 120_000, 0):
            clock.tick(later_ms)
            store.advance(clock.now_ms())
        moment = max(
            number + 1
            for number, event in enumerate(disk.events)
            if isinstance(event, Name)
            and event.file is None
            and event.path.startswith("commitlog/")
        )
        abandon(store)
    make_disk(disk.events, nothing_unsynced(disk.events, moment, names_too=False), tmp_path / "cut")
    with opener(tmp_path / "cut", clock, settings) as store:
        assert [each for each in store.check() if each.severity is Severity.ERROR] == []
        assert list(store.pending()) == []
        assert len(store.advance(clock.now_ms())) == 0


def test_retention_of_the_levels_makes_room_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none for the offsets that it would write first."""

    def refused(*_given: Any, **_named: Any) -> None:
        raise TargetError("no space left")

    clock = ManualClock(NOW_MS)
    settings = attrs.evolve(SMALL, commit_log_file_bytes=4 << 10, retention_ms=60_000)
    store = open_levels(tmp_path, clock, settings)
    for _ in range(40):
        store.schedule(Message("orders", bytes(200)), AfterMs(10_000))
    clock.tick(11_000)
    assert len(store.advance(clock.now_ms())) == 40
    before = len(list((tmp_path / "commitlog").iterdir()))
    clock.tick(120_000)
    with monkeypatch.context() as patch:
        patch.setattr(offset_persistence, "write_mark", refused)
        patch.setattr(OffsetPersistence, "_write_latest", lambda _self: None)
        store.advance(clock.now_ms())
    assert len(list((tmp_path / "commitlog").iterdir())) < before
    store.close()


def test_all_directories_that_a_store_is_made_in_are_on_the_disk(tmp_path: Path) -> None:
    with recording(tmp_path) as disk:
        store = LiveStore.open(tmp_path / "one/two/store", settings=SMALL)
        moment = len(disk.events)
        store.abandon()
    assert {path for path in unsynced_files(disk.events, moment) if "lock" not in path} == set()


def test_a_file_is_on_the_disk_with_all_directories_that_were_made_for_it(tmp_path: Path) -> None:
    with recording(tmp_path) as disk:
        replace_file(tmp_path / "one/two/file", b"content")
    assert unsynced_files(disk.events, len(disk.events)) == set()


def test_an_opening_waits_for_the_names_of_small_files_that_it_finds(tmp_path: Path) -> None:
    """The process that put them there was killed before it synced their directories."""
    root = tmp_path / "store"
    with recording(root) as disk:
        LiveStore.open(root, settings=SMALL).abandon()
        for place in ("config/a", "delaywheel/b", "delaywheel/hierarchy/c", "d"):
            replace_file(root / place, b"", is_durable=False)
        store = LiveStore.open(root, settings=SMALL)
        moment = len(disk.events)
        store.abandon()
    left = [disk.events[index] for index in loose(disk.events, moment).names]
    assert [each for each in left if isinstance(each, Name)] == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_flush_waits_for_offsets_that_were_written_before_it(
    tmp_path: Path, is_killed: bool
) -> None:
    """A broker goes by them, and would deliver again."""
    root, clock = tmp_path / "store", ManualClock(1_793_000_000_000)
    with recording(root) as disk:
        store = LevelStore.open(root, clock=clock)
        store.schedule(Message("orders", b"", unique_key="K"), AfterMs(1_000))
        for _ in range(3):
            clock.tick(11_000)
            store.advance(clock.now_ms())
        assert "config/delayOffset.json" in unsynced_files(disk.events, len(disk.events))
        if is_killed:
            abandon(store)
            store = LevelStore.open(root, clock=clock)
        store.flush()
        moment = len(disk.events)
        abandon(store)
    assert "config/delayOffset.json" not in unsynced_files(disk.events, moment)
