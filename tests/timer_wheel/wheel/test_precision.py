# SPDX-License-Identifier: Apache-2.0
"""A wheel opened with another precision than it was written with: never a message lost or early."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from message_store import AfterMs, AtMs, Cancellation, ManualClock, Message
from message_store.base.errors import SourceError, UnsupportedStoreError
from message_store.files.store_root import StoreRoot
from message_store.writing.settings import StoreSettings
from tests.independent.real_stores import WHEEL_55_CLEAN, unpack
from timer_wheel import WheelStore, read_wheel_store

START_MS = 1_793_000_000_000
SMALL = StoreSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=1000, timer_log_file_bytes=20 * 52 + 30
)
DELAYS_MS = [150, 1_000, 1_001, 2_345, 59_999, 3_600_000, 7_200_100]


def open_store(path: Path, clock: ManualClock, precision_ms: int | None, **how: Any) -> WheelStore:
    return WheelStore.open(path, clock=clock, precision_ms=precision_ms, settings=SMALL, **how)


def wheel_files(path: Path) -> dict[str, bytes]:
    """What units, slots and the checkpoint of the wheel are."""
    files = [*path.glob("timer*/*"), *path.glob("timerwheel"), path / "config" / "timercheck"]
    return {str(each.relative_to(path)): each.read_bytes() for each in files if each.is_file()}


def fill(path: Path, clock: ManualClock, precision_ms: int) -> dict[str, int]:
    """Messages on a wheel of a precision; when each was promised."""
    with open_store(path, clock, precision_ms) as store:
        store.advance(clock.now_ms())
        receipts = [
            store.schedule(Message("orders", b"%d" % ms, unique_key=f"K{ms}"), AfterMs(ms))
            for ms in DELAYS_MS
        ]
        store.schedule(Message("orders", b"gone", unique_key="GONE"), AfterMs(100))
        cancelled = store.schedule(Message("orders", b"no", unique_key="NO"), AfterMs(70_000))
        store.cancel(cancelled)
        clock.tick(100 * (precision_ms == 100))
        store.advance(clock.now_ms())
    return {receipt.unique_key: receipt.promised_ms for receipt in receipts}


@pytest.mark.parametrize(("old", "new"), [(1000, 100), (100, 1000), (500, 200)])
def test_another_precision_is_refused_while_messages_wait(
    tmp_path: Path, old: int, new: int
) -> None:
    clock = ManualClock(START_MS)
    fill(tmp_path, clock, old)
    with pytest.raises(UnsupportedStoreError, match=f"slots of {old} ms"):
        open_store(tmp_path, clock, new)
    with open_store(tmp_path, clock, None) as store:
        assert store.settings.precision_ms == old
        assert len(store.advance(START_MS + 86_400_000)) >= len(DELAYS_MS)


@pytest.mark.parametrize(
    ("old", "new"), [(1000, 100), (1000, 500), (500, 200), (200, 500), (100, 1000), (100, 500)]
)
def test_a_rebuilt_wheel_loses_nothing_and_is_never_early(
    tmp_path: Path, old: int, new: int
) -> None:
    clock = ManualClock(START_MS)
    promised = fill(tmp_path, clock, old)
    with open_store(tmp_path, clock, new, on_precision_change="rebuild") as store:
        assert store.check() == []
    found: dict[str, int] = {}
    with open_store(tmp_path, clock, new) as store:
        while (next_ms := store.next_due_ms()) is not None:
            clock.tick(next_ms - clock.now_ms())
            for each in store.advance(next_ms):
                assert each.message.unique_key is not None
                assert each.message.unique_key not in found
                found[each.message.unique_key] = next_ms
    found.pop("GONE", None)
    assert found.keys() == promised.keys()
    for key, came_ms in found.items():
        assert promised[key] <= came_ms < promised[key] + new


def test_a_rebuild_that_was_stopped_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before and after the checkpoint that says where the new log begins."""
    for stop in ("sync_checkpoint", "forget_wheel"):
        path, clock = tmp_path / stop, ManualClock(START_MS)
        promised = fill(path, clock, 1000)

        def stopped(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(f"timer_wheel.wheel.files.WheelFiles.{stop}", stopped)
            with pytest.raises(KeyboardInterrupt):
                open_store(path, clock, 100, on_precision_change="rebuild")
        with open_store(path, clock, 100, on_precision_change="rebuild") as store:
            found = Counter(
                each.message.unique_key for each in store.advance(START_MS + 86_400_000)
            )
        found.pop("GONE", None)
        assert found == Counter(promised.keys())


def test_an_empty_wheel_takes_any_precision(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    for precision_ms in (1000, 100, 500, 1000, 200):
        with open_store(tmp_path, clock, precision_ms) as store:
            receipt = store.schedule(Message("orders", b"x"), AtMs(clock.now_ms() + 777))
            clock.tick(receipt.promised_ms - clock.now_ms())
            assert len(store.advance(clock.now_ms())) == 1


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(("old", "new"), [(1000, 100), (100, 1000)])
def test_a_wheel_on_which_nothing_waits_takes_any_precision(
    tmp_path: Path, old: int, new: int, *, is_killed: bool
) -> None:
    """Though what came before its slot was over still has its unit, and what was cancelled too."""
    clock = ManualClock(START_MS)
    with open_store(tmp_path, clock, old) as store:
        store.advance(clock.now_ms())
    store = open_store(tmp_path, clock, old)
    store.schedule(Message("orders", b"", unique_key="EARLY"), AtMs(START_MS - 5_000))
    store.flush()
    assert len(store.advance(clock.now_ms())) == 1
    cancelled = store.schedule(Message("orders", b"", unique_key="NO"), AfterMs(70_000))
    assert store.cancel(cancelled) is Cancellation.CANCELLED
    if is_killed:
        store.abandon()
    else:
        store.close()
    with open_store(tmp_path, clock, new) as store:
        assert store.next_due_ms() is None
        receipt = store.schedule(Message("orders", b"", unique_key="LATER"), AfterMs(70_500))
        assert store.cancel(cancelled) is Cancellation.CANCELLED
        came = store.advance(START_MS + 86_400_000)
        assert [each.message.unique_key for each in came] == ["LATER"]
        assert receipt.promised_ms >= START_MS + 70_500


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_finer_wheel_is_refused_while_messages_are_to_roll(
    tmp_path: Path, is_killed: bool
) -> None:
    """Also where they have no unit yet; nothing of the wheel has been written then."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock, 1000)
    store.schedule(Message("orders", b"x"), AfterMs(2 * 86_400_000 + 5_000))
    if is_killed:
        store.live.abandon()
    else:
        store.close()
    before = wheel_files(tmp_path)
    with pytest.raises(SourceError, match="to roll"):
        open_store(tmp_path, clock, 100, on_precision_change="rebuild")
    assert wheel_files(tmp_path) == before
    with open_store(tmp_path, clock, 1000) as store:
        assert len(store.advance(START_MS + 3 * 86_400_000)) == 1


@pytest.mark.parametrize("precision_ms", [100, 1000])
def test_a_message_that_was_overdue_tells_the_precision_like_any_other(
    tmp_path: Path, precision_ms: int
) -> None:
    """Its time is a millisecond past that of its slot."""
    clock = ManualClock(START_MS + 437)
    with open_store(tmp_path, clock, precision_ms) as store:
        store.schedule(Message("orders", b"at once"), AtMs(0))
    found = read_wheel_store(StoreRoot(tmp_path), now_ms=clock.now_ms())
    assert (found.precision_ms, len(found.pending)) == (precision_ms, 1)


def test_the_precision_of_a_brokers_wheel_is_told_by_its_slots(tmp_path: Path) -> None:
    real = unpack(WHEEL_55_CLEAN, tmp_path)
    with pytest.raises(UnsupportedStoreError, match="slots of 1000 ms"):
        WheelStore.open(real.root, clock=ManualClock(real.stopped_ms), precision_ms=500)


def test_what_was_dealt_with_last_does_not_come_again_after_a_change_where_the_hand_moves_back(
    tmp_path: Path,
) -> None:
    """Its unit is made anew, to tell where placing goes on, before the hand of a clock that was
    ahead.
    """
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock, 1000)
    store.advance(START_MS + 161_000)
    clock.tick(5_000)
    store.schedule(Message("orders", b"", unique_key="WAITS"), AfterMs(400_000))
    store.advance(START_MS + 161_000)
    store.schedule(Message("orders", b"", unique_key="CAME"), AfterMs(0))
    assert len(store.advance(clock.now_ms())) == 1
    store.close()
    store = open_store(tmp_path, clock, 500, on_precision_change="rebuild")
    store.schedule(Message("orders", b"", unique_key="NEAR"), AfterMs(10_000))
    store.advance(clock.now_ms())
    store.flush()
    store.abandon()
    with open_store(tmp_path, clock, 500) as store:
        assert sorted(each.unique_key or "" for each in store.pending()) == ["NEAR", "WAITS"]


@pytest.mark.parametrize(("old", "new"), [(1000, 100), (200, 500), (100, 1000)])
@pytest.mark.parametrize("was_used", [False, True])
def test_the_precision_of_an_empty_wheel_outlives_a_kill_before_its_first_flush(
    tmp_path: Path, old: int, new: int, was_used: bool
) -> None:
    clock = ManualClock(START_MS)
    with open_store(tmp_path, clock, old) as store:
        if was_used:
            store.schedule(Message("orders", b"over", unique_key="OVER"), AfterMs(10))
            clock.tick(1_000)
            assert len(store.advance(clock.now_ms())) == 1
    store = open_store(tmp_path, clock, new)
    receipt = store.schedule(Message("orders", b"late", unique_key="LATE"), AfterMs(4_501))
    store.abandon()
    with open_store(tmp_path, clock, None) as store:
        assert store.settings.precision_ms == new
        assert store.next_due_ms() == receipt.promised_ms
