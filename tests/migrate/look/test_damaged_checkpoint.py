# SPDX-License-Identifier: Apache-2.0
"""Who reads a wheel whose `config/timercheck` has a flipped bit, or whose units lost a link, lists
what is pending or refuses; all who refuse go by one rule, and `check` says why. An engine delivers
each message once, whatever the file holds.
"""

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from message_store import AtMs, ManualClock, Message, Pending
from message_store.base.errors import SourceError
from message_store.files.store_root import StoreRoot
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.look.elsewhere import left_alone
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.source.sources import waiting_in_wheel
from migrate.table.pending_table import WHEEL, TableOptions, pending_rows
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.format.checkpoint import TIMER_CHECKPOINT, TIMER_CHECKPOINT_FILE_BYTES
from timer_wheel.format.timer_log import TIMER_UNIT

START_MS = 1_793_000_000_437
NOW_MS = START_MS + 30_000
COUNT = 9


@pytest.fixture
def store(tmp_path: Path) -> Path:
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path, clock=clock) as store:
        for number in range(COUNT):
            due = AtMs(START_MS + 10_000 * number + 5_000)
            store.schedule(Message("orders", b"", unique_key=f"KEY{number}"), due)
        clock.tick(NOW_MS - START_MS)
        store.advance(NOW_MS)
    return tmp_path


def test_a_flipped_bit_of_a_checkpoint_neither_hides_nor_doubles_what_is_pending(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("migrate.source.sources.SystemClock", lambda: ManualClock(NOW_MS))
    file, root = store / "config" / "timercheck", StoreRoot(store)
    whole = file.read_bytes()
    wanted = Counter(f"KEY{number}" for number in range(3, COUNT))
    refused = 0
    for bit in range(0, 8 * TIMER_CHECKPOINT.size, 23):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        problems = inspect_store(store, now_ms=NOW_MS).problems
        found = {each.code for each in check_store(store, CheckOptions(now_ms=NOW_MS)).findings}
        if "timercheck-damaged" not in found:
            listed = pending_messages(store, now_ms=NOW_MS)
            keys = Counter(each.unique_key for each in listed if isinstance(each, Pending))
            assert keys == wanted, bit
            continue
        refused += 1
        for look in (
            lambda: [*pending_messages(store, now_ms=NOW_MS)],
            lambda: pending_rows(store, WHEEL, TableOptions(now_ms=NOW_MS)),
            lambda: waiting_in_wheel(root),
        ):
            with pytest.raises(SourceError, match="timercheck: damaged") as refusal:
                look()
            assert str(refusal.value) in problems
        [sentence] = left_alone(root, "levels", NOW_MS)
        assert "messages may wait" in sentence
    assert refused > 0
    file.write_bytes(whole)
    assert waiting_in_wheel(root) == COUNT - 3


@pytest.mark.parametrize("start", [0, 3, 8, 40, 64])
@pytest.mark.parametrize("length", [16, 56, 256, TIMER_CHECKPOINT_FILE_BYTES])
def test_a_garbled_checkpoint_loses_nothing_and_repeats_nothing(
    store: Path, start: int, length: int
) -> None:
    """Its numbers are none that anybody writes, and our own part may be gone with them."""
    file, rng = store / "config" / "timercheck", random.Random(start + length)
    content = bytearray(file.read_bytes())
    content[start : start + length] = rng.randbytes(len(content[start : start + length]))
    file.write_bytes(content)
    later_ms = NOW_MS + 30_000  # some of what was pending is due when the store is opened
    found = {each.code for each in check_store(store, CheckOptions(now_ms=later_ms)).findings}
    assert ("timercheck-damaged" in found) == (start < TIMER_CHECKPOINT.size)
    clock = ManualClock(later_ms)
    with WheelStore.open(store, clock=clock) as opened:
        assert "config/timercheck" in {each.where for each in opened.check()}
        clock.tick(COUNT * 10_000)
        delivered = Counter(each.message.unique_key for each in opened.advance(clock.now_ms()))
    assert delivered == Counter(f"KEY{number}" for number in range(3, COUNT))


def test_a_broken_link_hides_no_message_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit in the middle of its slot leads nowhere."""
    monkeypatch.setattr("migrate.source.sources.SystemClock", lambda: ManualClock(START_MS))
    with WheelStore.open(tmp_path, clock=ManualClock(START_MS)) as store:
        for number in range(COUNT):
            due = AtMs(START_MS + 60_000)
            store.schedule(Message("orders", b"", unique_key=f"KEY{number}"), due)
    log = tmp_path / "timerlog" / ("0" * 20)
    with log.open("r+b") as file:
        file.seek(4 * TIMER_UNIT.size + TIMER_UNIT.offset_of("previous_position"))
        file.write(b"\xff" * 8)
    for look in (
        lambda: [*pending_messages(tmp_path, now_ms=START_MS)],
        lambda: pending_rows(tmp_path, WHEEL, TableOptions(now_ms=START_MS)),
    ):
        with pytest.raises(SourceError, match="timerlog: 4 units are in slots to come") as refusal:
            look()
        [problem] = inspect_store(tmp_path, now_ms=START_MS).problems
        assert str(refusal.value) == f"{tmp_path}: {problem}"
    assert waiting_in_wheel(StoreRoot(tmp_path)) == COUNT
    [sentence] = left_alone(StoreRoot(tmp_path), "levels", START_MS)
    assert "messages may wait" in sentence
    log.unlink()
    WheelStore.open(tmp_path, clock=ManualClock(START_MS)).close()
    assert len([*pending_messages(tmp_path, now_ms=START_MS)]) == COUNT


@pytest.mark.parametrize("lost", [["timerlog"], ["timerlog", "timerwheel"]])
def test_a_timer_log_that_is_gone_hides_nothing_in_silence(
    store: Path, lost: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint knows how long it was; the engine makes it again by the queue."""
    monkeypatch.setattr("migrate.source.sources.SystemClock", lambda: ManualClock(NOW_MS))
    for name in lost:
        shutil.rmtree(path) if (path := store / name).is_dir() else path.unlink()
    for look in (
        lambda: [*pending_messages(store, now_ms=NOW_MS)],
        lambda: pending_rows(store, WHEEL, TableOptions(now_ms=NOW_MS)),
        lambda: waiting_in_wheel(StoreRoot(store)),
    ):
        with pytest.raises(SourceError, match="timerlog: 468 bytes of its end are missing"):
            look()
    clock = ManualClock(NOW_MS)
    with WheelStore.open(store, clock=clock) as opened:
        assert len([*opened.pending()]) == COUNT - 3
    assert len([*pending_messages(store, now_ms=NOW_MS)]) == COUNT - 3


def test_what_waits_on_a_wheel_counts_where_the_timer_queue_is_gone(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("migrate.source.sources.SystemClock", lambda: ManualClock(NOW_MS))
    shutil.rmtree(store / "consumequeue" / "rmq_sys_wheel_timer")
    assert waiting_in_wheel(StoreRoot(store)) == COUNT - 3


@pytest.mark.parametrize("engine", [WheelStore, HierarchicalWheelStore])
def test_entries_that_the_power_kept_without_their_records_refuse_nothing(
    tmp_path: Path, engine: type[WheelStore | HierarchicalWheelStore]
) -> None:
    store = engine.open(tmp_path, clock=ManualClock(START_MS))
    for number in range(COUNT):
        store.schedule(Message("orders", b"", unique_key=f"KEY{number}"), AtMs(START_MS + 60_000))
    store.flush()
    end = store.live.log.end
    store.schedule(Message("orders", b"", unique_key="LOST"), AtMs(START_MS + 60_000))
    store.abandon()
    with (tmp_path / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(end)
        file.write(bytes(4_096))
    listed = [*pending_messages(tmp_path, now_ms=START_MS)]
    assert len(listed) == COUNT
    found = {each.code for each in check_store(tmp_path, CheckOptions(now_ms=START_MS)).findings}
    assert "timer-queue-astray" not in found
