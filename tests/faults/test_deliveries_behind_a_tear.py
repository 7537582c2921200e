# SPDX-License-Identifier: Apache-2.0
"""A loss of power may leave a hole in the log and whole records behind it. Recovery ends the log at
the hole, so that what was delivered behind it is in no topic any more: it waits again, and readers
say so before anybody recovers the store.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from delaywheel.terminal.main import main
from legacy_levels.backlog.backlog import read_backlog
from message_store import AfterMs, DelayStore, ManualClock, Message
from message_store.files.log_row import open_log
from message_store.files.store_root import StoreRoot
from message_store.format.checkpoint import StoreCheckpoint
from message_store.format.java_numbers import LONG_MAX
from message_store.format.properties import LEVEL_TOPIC
from message_store.reading.recovered_end import recovered_end
from tests.faults.engines import OPEN, SMALL, abandon
from timer_wheel import WheelStore

START_MS = 1_793_000_000_000
FILLER = b"x" * 3_000
EXIT_CODES = {"levels": 1, "hierarchy": 0, "time-index": 1, "wheel": 0}
"""Of `pending` beside a hole, where an entry may lead."""


def put(store: DelayStore, key: str, delay_ms: int, body: bytes = b"x") -> int:
    receipt = store.schedule(Message("orders", body, unique_key=key), AfterMs(delay_ms))
    return receipt.commit_log_offset


@contextmanager
def undone(path: Path, *names: str) -> Iterator[None]:
    """What is written meanwhile into these directories of a store is lost with the power."""
    kept = path.with_name(f"{path.name}-kept")
    for name in names:
        shutil.copytree(path / name, kept / name)
    yield
    for name in names:
        shutil.rmtree(path / name)
        (kept / name).rename(path / name)


def torn(engine: str, path: Path, clock: ManualClock, *, files: int = 2, back_ms: int = 0) -> int:
    """A store that lost power: K was flushed and delivered, and between the two is a hole. Returns
    where that begins. The clock may have been set back by ``back_ms`` since the flush.
    """
    store = OPEN[engine](path, clock)
    put(store, "K", 5_000)
    put(store, "LATER", 3_600_000)
    store.flush()
    clock.tick(-back_ms)
    fillers = range(40 if files == 2 else 6)
    places = [put(store, f"F{number}", 3_600_000, FILLER) for number in fillers]
    clock.tick(10_000 + back_ms)
    assert [each.message.unique_key for each in store.advance(clock.now_ms())] == ["K"]
    put(store, "LAST", 3_600_000)
    abandon(store)
    log = path / "commitlog"
    assert len(list(log.iterdir())) == files
    with (log / f"{0:020}").open("r+b") as file:
        file.seek(places[3])
        file.write(bytes(3_000))
    return places[3]


def listed(path: Path, clock: ManualClock, exit_code: int = 0) -> set[str]:
    command = ["pending", str(path), "--now", str(clock.now_ms()), "--limit", "500"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == exit_code, result.output
    lines = result.stdout.splitlines()
    return {json.loads(line)["unique_key"] for line in lines}


@pytest.mark.parametrize("engine", OPEN)
@pytest.mark.parametrize(("files", "back_ms"), [(2, 0), (1, 0), (2, 600_000)])
def test_what_was_delivered_behind_a_hole_waits_again(
    tmp_path: Path, files: int, back_ms: int, engine: str
) -> None:
    """The hole may be in the newest file, and a clock set back may make files look older."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    torn(engine, path, clock, files=files, back_ms=back_ms)
    told = listed(path, clock, EXIT_CODES[engine])
    store = OPEN[engine](path, clock)
    opened = {each.unique_key for each in store.pending()}
    abandon(store)
    assert opened == {"K", "LATER", "F0", "F1", "F2"}
    assert opened <= told


def test_a_conversion_takes_what_was_delivered_behind_a_hole(tmp_path: Path) -> None:
    path, clock = tmp_path / "store", ManualClock(START_MS)
    torn("levels", path, clock)
    counts = read_backlog(path, after_crash=True)
    assert counts.total("already_delivered") == 0
    target = tmp_path / "target"
    now = ["--now", str(clock.now_ms())]
    command = ["convert", str(path), str(target), "--in-process", "--after-crash", *now]
    command += ["--on-bad-record", "quarantine"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "K" in listed(target, clock)


def test_the_log_is_cut_at_a_hole_behind_what_was_on_the_disk(tmp_path: Path) -> None:
    path, clock = tmp_path / "store", ManualClock(START_MS)
    place, root = torn("levels", path, clock), StoreRoot(path)
    with open_log(root) as log:
        assert recovered_end(root, log) == place
    root.abort.unlink()
    with open_log(root) as log:
        assert recovered_end(root, log) == LONG_MAX  # what was closed is not recovered


@pytest.mark.parametrize("count", [6, 40])
def test_damage_before_the_last_flush_is_no_tear(tmp_path: Path, count: int) -> None:
    """An engine refuses to open such a store, and what was delivered behind is there."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN["levels"](path, clock)
    places = [put(store, f"F{number}", 3_600_000, FILLER) for number in range(count)]
    store.flush()
    last = put(store, "LAST", 3_600_000)
    abandon(store)
    with (path / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(places[3])
        file.write(bytes(3_000))
    root = StoreRoot(path)
    with open_log(root) as log:
        assert recovered_end(root, log) > last


def test_a_reader_of_a_wheel_begins_at_the_last_flush(tmp_path: Path) -> None:
    """The power left the checkpoint of an advance, and took what that had delivered."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = WheelStore.open(path, clock=clock, settings=SMALL)
    put(store, "K", 5_000)
    put(store, "LATER", 3_600_000)
    store.advance(clock.now_ms())
    store.flush()
    with undone(path, "commitlog", "consumequeue"):
        clock.tick(10_000)
        assert len(store.advance(clock.now_ms())) == 1
        store.abandon()
    result = CliRunner().invoke(main, ["pending", str(path), "--now", str(clock.now_ms())])
    assert result.exit_code == 3
    assert "1 message is in slots further back than a broker that starts reads" in result.stderr
    checked = CliRunner().invoke(main, ["check", str(path), "--now", str(clock.now_ms())])
    assert "slots-beyond-reach: the wheel: 1 message is in slots" in checked.output
    with WheelStore.open(path, clock=clock, settings=SMALL) as again:
        assert {each.unique_key for each in again.pending()} == {"K", "LATER"}
    assert listed(path, clock) == {"K", "LATER"}


def test_a_cancel_counts_for_a_reader_though_nothing_has_a_unit_yet(tmp_path: Path) -> None:
    """A broker never places what is due before its hand, markers neither. Our engines heed them."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = WheelStore.open(path, clock=clock, settings=SMALL)
    receipt = store.schedule(Message("orders", b"x", unique_key="K"), AfterMs(0))
    put(store, "LATER", 3_600_000)
    store.cancel(receipt)
    store.abandon()
    shutil.rmtree(path / "timerlog")  # which the power had not reached
    clock.tick(60_000)
    assert listed(path, clock) == {"LATER"}
    with WheelStore.open(path, clock=clock, settings=SMALL) as again:
        assert {each.unique_key for each in again.pending()} == {"LATER"}


@pytest.mark.parametrize("is_flushed", [False, True])
def test_levels_know_what_a_clock_delivered_that_was_set_back_since(
    tmp_path: Path, is_flushed: bool
) -> None:
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN["levels"](path, clock)
    put(store, "LATER", 3_600_000)
    put(store, "K", 5_000)
    assert len(store.advance(clock.now_ms() + 60_000)) == 1
    if is_flushed:
        store.flush()
    put(store, "LAST", 3_600_000)
    put(store, "NEXT", 5_000)
    abandon(store)
    assert listed(path, clock) == {"LATER", "LAST", "NEXT"}


def test_what_was_delivered_by_a_clock_that_was_set_back_since_is_known(tmp_path: Path) -> None:
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = WheelStore.open(path, clock=clock, settings=SMALL)
    put(store, "LATER", 3_600_000)
    store.advance(clock.now_ms() + 60_000)
    store.flush()
    put(store, "K", 0)
    assert len(store.advance(clock.now_ms())) == 1
    put(store, "LAST", 3_600_000)
    store.abandon()
    shutil.rmtree(path / "timerlog")
    assert listed(path, clock) == {"LATER", "LAST"}


@pytest.mark.parametrize("cancelled_ms", [0, 30_000])
@pytest.mark.parametrize("is_rescheduled", [False, True])
def test_a_kill_alone_leaves_no_doubt_about_what_was_cancelled(
    tmp_path: Path, cancelled_ms: int, is_rescheduled: bool
) -> None:
    """Message and marker roll, each at its own time, with the hand between them at the end."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN["wheel"](path, clock)
    put(store, "LATER", 3_600_000)
    receipt = store.schedule(Message("orders", b"x", unique_key="K"), AfterMs(1_000_000))
    store.advance(clock.now_ms())
    clock.tick(cancelled_ms)
    store.advance(clock.now_ms())
    store.flush()
    if is_rescheduled:
        store.reschedule(receipt, AfterMs(2_000_000))
    else:
        store.cancel(receipt)
    for _ in range(3):
        clock.tick(25_000)
        store.advance(clock.now_ms())
    abandon(store)
    assert listed(path, clock) == ({"LATER", "K"} if is_rescheduled else {"LATER"})


def test_what_is_noted_as_undeliverable_leaves_no_doubt(tmp_path: Path) -> None:
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN["wheel"](path, clock)
    put(store, "K", 5_000, b"BODYBODY")
    put(store, "LATER", 3_600_000)
    store.flush()
    store.close()
    [log] = (path / "commitlog").iterdir()
    log.write_bytes(log.read_bytes().replace(b"BODYBODY", b"BODYBOD!"))
    store = OPEN["wheel"](path, clock)
    clock.tick(10_000)
    assert len(store.advance(clock.now_ms())) == 0
    abandon(store)
    assert listed(path, clock) == {"LATER"}


def test_levels_begin_at_the_last_flush_where_their_offsets_are_ahead(tmp_path: Path) -> None:
    """The power left delayOffset.json, and took the log that it tells of."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN["levels"](path, clock)
    put(store, "K", 5_000)
    put(store, "LATER", 3_600_000)
    store.flush()
    with undone(path, "commitlog", "consumequeue"):
        for _ in range(2):
            clock.tick(10_000)
            store.advance(clock.now_ms())
        abandon(store)
    assert listed(path, clock) == {"K", "LATER"}


@pytest.mark.parametrize("is_there", [False, True], ids=["no queue", "zeros"])
def test_a_level_whose_queue_the_crash_left_empty_lacks_nothing(
    tmp_path: Path, is_there: bool
) -> None:
    """Its messages lie before those that other levels have in their queues."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN["levels"](path, clock)
    put(store, "FIRST", 3_600_000)
    store.flush()
    put(store, "K", 5_000)
    put(store, "LAST", 3_600_000)
    abandon(store)
    queue = path / "consumequeue" / LEVEL_TOPIC / "1"
    shutil.rmtree(queue)
    if is_there:
        queue.mkdir()
        (queue / f"{0:020}").write_bytes(bytes(SMALL.queue_file_bytes))
    assert listed(path, clock) == {"FIRST", "K", "LAST"}
    with OPEN["levels"](path, clock) as again:
        assert {each.unique_key for each in again.pending()} == {"FIRST", "K", "LAST"}


@pytest.mark.parametrize("engine", OPEN)
def test_a_record_that_lost_a_sector_is_a_tear_as_well(tmp_path: Path, engine: str) -> None:
    """No checksum covers topic and properties: zeros there tell that the power took a sector."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN[engine](path, clock)
    put(store, "K", 5_000)
    store.flush()
    wide = Message("orders", b"x", unique_key="F", properties={"a": "y" * 3_000})
    place = store.schedule(wide, AfterMs(3_600_000)).commit_log_offset
    clock.tick(10_000)
    assert len(store.advance(clock.now_ms())) == 1
    put(store, "LAST", 3_600_000)
    abandon(store)
    with (path / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek((place // 512 + 3) * 512)
        file.write(bytes(512))
    root = StoreRoot(path)
    with open_log(root) as log:
        assert recovered_end(root, log) == place
    if engine != "wheel":  # a broker's hand has passed K there
        assert "K" in listed(path, clock)
    store = OPEN[engine](path, clock)
    assert [each.unique_key for each in store.pending()] == ["K"]
    abandon(store)


def test_a_lost_file_before_what_was_synced_is_no_end(tmp_path: Path) -> None:
    """Brokers before 5.5 do not note what was; their queues tell."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN["levels"](path, clock)
    for number in range(60):
        put(store, f"F{number}", 3_600_000, FILLER)
    abandon(store)
    log = path / "commitlog"
    assert len(list(log.iterdir())) == 3
    (log / f"{64 << 10:020}").write_bytes(bytes(64 << 10))
    checkpoint = path / "checkpoint"
    checkpoint.write_bytes(StoreCheckpoint(START_MS, START_MS).encode())
    root = StoreRoot(path)
    with open_log(root) as reader:
        assert recovered_end(root, reader) > 128 << 10


def test_an_index_that_is_ahead_of_the_log_tells_nothing(tmp_path: Path) -> None:
    """It is written without waiting for the log's sync where much was stored since."""
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = OPEN["hierarchy"](path, clock)
    put(store, "K", 5_000)
    put(store, "LATER", 3_600_000)
    store.flush()
    with undone(path, "commitlog"):
        clock.tick(10_000)
        assert len(store.advance(clock.now_ms())) == 1
        store.close()
    (path / "abort").touch()
    assert listed(path, clock, 3) == {"K", "LATER"}  # what was synced is missing, which it says
