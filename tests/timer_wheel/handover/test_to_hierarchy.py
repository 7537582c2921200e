# SPDX-License-Identifier: Apache-2.0
"""A store goes from a wheel in files to wheels in a database and back: nothing lost or doubled."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from message_store import AfterMs, AtMs, Cancellation, DelayStore, ManualClock, Message
from message_store.base.errors import UnsupportedStoreError
from message_store.files.store_root import StoreRoot
from tests.faults.broker_view import look_as_a_broker
from tests.faults.engines import abandon, open_hierarchy, open_wheel
from timer_wheel.reading.ownership import guard, index_path, read_active, release

START_MS = 1_793_000_000_437
HOUR_MS = 3_600_000
DELAYS_MS = (0, 1, 437, 1_563, 30_000, 61_002, 599_999, HOUR_MS, 26 * HOUR_MS, 60 * HOUR_MS)
FAR_MS = 70 * HOUR_MS


def filled(store: DelayStore, name: str) -> list[str]:
    """Twins of every delay, in both orders; returns handles."""
    handles = []
    for delay_ms in (*DELAYS_MS, *reversed(DELAYS_MS)):
        message = Message("orders", f"{name} {delay_ms}".encode(), queue_id=delay_ms % 2)
        handles.append(store.schedule(message, AfterMs(delay_ms)).handle)
    return handles


def bodies(store: DelayStore) -> Counter[bytes]:
    """Everything that was ever delivered."""
    topic = store.topic("orders")
    read = [each for queue_id in (0, 1) for each in topic.read(queue_id, 0, 10_000)]
    return Counter(each.body for each in read)


def expected(*names: str) -> Counter[bytes]:
    return Counter({f"{name} {delay_ms}".encode(): 2 for name in names for delay_ms in DELAYS_MS})


@pytest.mark.check
@pytest.mark.parametrize("is_kill", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("start_ms", [START_MS, START_MS // 1000 * 1000])
def test_a_store_changes_hands_again_and_again(
    tmp_path: Path, is_kill: bool, start_ms: int
) -> None:
    clock = ManualClock(start_ms)
    names = []
    for turn in range(6):
        opened = open_wheel if turn % 2 == 0 else open_hierarchy
        store = opened(tmp_path / "store", clock)
        waiting = Counter(each.unique_key for each in store.pending())
        names.append(f"turn{turn}")
        filled(store, names[-1])
        assert Counter(each.unique_key for each in store.pending()) - waiting
        for tick_ms in (0, 900, 1_200, 60_000, 3 * HOUR_MS):
            clock.tick(tick_ms)
            for delivered in store.advance(clock.now_ms()):
                assert delivered.lateness_ms >= 0
        before = sorted((p.commit_log_offset, p.unique_key) for p in store.pending())
        assert [f for f in store.check() if "twice" in f.problem] == []
        if is_kill:
            abandon(store)
        else:
            store.close()
        again = opened(tmp_path / "store", clock)
        assert sorted((p.commit_log_offset, p.unique_key) for p in again.pending()) == before
        again.close()
    with open_hierarchy(tmp_path / "store", clock) as store:
        clock.tick(FAR_MS)
        store.advance(clock.now_ms())
        assert bodies(store) == expected(*names)
        assert store.next_due_ms() is None


@pytest.mark.parametrize("first_is_wheel", [False, True])
def test_what_was_taken_back_stays_so_in_other_hands(tmp_path: Path, first_is_wheel: bool) -> None:
    one, other = (open_wheel, open_hierarchy) if first_is_wheel else (open_hierarchy, open_wheel)
    clock = ManualClock(START_MS)
    with one(tmp_path / "store", clock) as store:
        handles = filled(store, "it")
        assert store.cancel(handles[4]) is Cancellation.CANCELLED
        clock.tick(10_000)
        store.advance(clock.now_ms())
    with other(tmp_path / "store", clock) as store:
        assert store.cancel(handles[0]) is Cancellation.ALREADY_DELIVERED
        assert store.cancel(handles[4]) is Cancellation.CANCELLED
        assert store.cancel(handles[6]) is Cancellation.CANCELLED
        clock.tick(FAR_MS)
        store.advance(clock.now_ms())
        left = expected("it") - bodies(store)
        assert left == Counter({b"it 30000": 1, b"it 599999": 1})


@pytest.mark.parametrize("then", ["closed", "killed", "killed after the clock went back"])
@pytest.mark.parametrize(("apart_ms", "is_last"), [(0, False), (40, False), (40, True)])
@pytest.mark.parametrize("precision_ms", [100, 1000])
def test_a_wheel_takes_nothing_away_beside_what_the_hierarchy_took_back(
    tmp_path: Path, precision_ms: int, apart_ms: int, is_last: bool, then: str
) -> None:
    """Two with one key in one slot: of different times a handle cancels one, of equal ones both."""
    clock, path = ManualClock(START_MS), tmp_path / "store"
    twin = Message("orders", b"taken", unique_key="K"), Message("orders", b"stays", unique_key="K")
    due_ms = START_MS // 1000 * 1000 + 9_505
    with open_hierarchy(path, clock) as store:
        taken, stays = (
            store.schedule(message, AtMs(at_ms))
            for message, at_ms in zip(twin, (due_ms, due_ms + apart_ms), strict=True)
        )
        assert store.cancel(taken.handle) is Cancellation.CANCELLED
        if not is_last:
            store.schedule(Message("orders", b"other"), AtMs(due_ms))
        waits = sorted((p.commit_log_offset, p.unique_key) for p in store.pending())
    assert len(waits) == (apart_ms > 0) + (not is_last)
    wheel = open_wheel(path, clock, precision_ms=precision_ms)
    if then == "killed after the clock went back":
        wheel.close()
        clock = ManualClock(START_MS - 60_000)
        wheel = open_wheel(path, clock, precision_ms=precision_ms)
        wheel.cancel(wheel.schedule(Message("orders", b"soon"), AfterMs(3_000)))
        wheel.advance(clock.now_ms())
        wheel.flush()
    if then == "closed":
        wheel.close()
    else:
        abandon(wheel)
    wheel = open_wheel(path, clock, precision_ms=precision_ms)
    assert sorted((p.commit_log_offset, p.unique_key) for p in wheel.pending()) == waits
    assert wheel.cancel(taken) is Cancellation.CANCELLED
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    view = look_as_a_broker(copy, clock.now_ms(), precision_ms=precision_ms)
    assert len(view.keys) == len(waits)
    assert view.wrong == []
    delivered = wheel.advance(START_MS + 60_000)
    assert sorted(each.message.body for each in delivered) == sorted(
        [b"stays"] * (apart_ms > 0) + [b"other"] * (not is_last)
    )
    assert wheel.cancel(taken) is Cancellation.CANCELLED
    gone = Cancellation.ALREADY_DELIVERED if apart_ms else Cancellation.CANCELLED
    assert wheel.cancel(stays) is gone
    wheel.close()


@pytest.mark.parametrize("precision_ms", [100, 1000])
def test_what_a_wheel_takes_back_after_it_took_over_stays_so(
    tmp_path: Path, precision_ms: int
) -> None:
    clock, path = ManualClock(START_MS), tmp_path / "store"
    with open_hierarchy(path, clock) as store:
        first, second = (
            store.schedule(Message("orders", b"", unique_key="K"), AfterMs(delay_ms))
            for delay_ms in (9_005, 9_045)
        )
        store.cancel(first)
    for _ in range(2):
        with open_wheel(path, clock, precision_ms=precision_ms) as store:
            assert store.cancel(second) is Cancellation.CANCELLED
            assert list(store.pending()) == []
            assert look_as_a_broker(path, clock.now_ms(), precision_ms=precision_ms).keys == []
    with open_wheel(path, clock, precision_ms=precision_ms) as store:
        assert list(store.advance(START_MS + 60_000)) == []


def test_no_promise_of_one_is_broken_by_the_other(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_wheel(tmp_path / "store", clock) as store:
        coarse = store.schedule(Message("orders", b"coarse"), AtMs(START_MS + 5_000))
    with open_hierarchy(tmp_path / "store", clock) as store:
        fine = store.schedule(Message("orders", b"fine"), AtMs(START_MS + 5_000))
        assert coarse.promised_ms - fine.promised_ms == 563
        for receipt in (fine, coarse):
            assert len(store.advance(receipt.promised_ms - 1)) == 0
            assert len(store.advance(receipt.promised_ms)) == 1
        fine = store.schedule(Message("orders", b"x"), AtMs(START_MS + 9_000))
    with open_wheel(tmp_path / "store", clock) as store:
        assert len(store.advance(fine.promised_ms - 1)) == 0
        assert len(store.advance(START_MS // 1000 * 1000 + 10_000)) == 1


def test_slots_too_fine_for_what_was_promised_are_refused(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_wheel(tmp_path / "store", clock) as store:
        store.schedule(Message("orders", b"x"), AfterMs(5_000))
    for finer in (100, 200):
        with pytest.raises(UnsupportedStoreError, match="precision_ms=1000"):
            open_hierarchy(tmp_path / "store", clock, precision_ms=finer)
    open_hierarchy(tmp_path / "store", clock).close()
    with pytest.raises(UnsupportedStoreError, match="come early"):
        open_wheel(tmp_path / "store", clock, precision_ms=100)
    with open_hierarchy(tmp_path / "store", clock) as store:
        assert len(list(store.pending())) == 1


def test_stopped_in_the_middle_it_is_still_the_former_owners(tmp_path: Path) -> None:
    """Before the word is given the new side counts for nothing, afterwards the old one."""
    clock, root = ManualClock(START_MS), StoreRoot(tmp_path / "store")
    with open_wheel(root.path, clock) as store:
        filled(store, "it")
    active = None
    for _ in range(2):
        with open_hierarchy(root.path, clock) as store:
            count = len(list(store.pending()))
        active = read_active(root)
        assert active is not None
        with open_wheel(root.path, clock) as store:
            assert len(list(store.pending())) == count
        assert not index_path(root).exists()
        assert read_active(root) is None
    index_path(root).mkdir(parents=True)  # as if stopped while the index was made
    (index_path(root) / "CURRENT").write_text("half")
    with open_hierarchy(root.path, clock) as store:
        assert len(list(store.pending())) == count
    release(root)  # and as if wheel and index were lost: the queue and the log tell all
    guard(root)
    with open_wheel(root.path, clock) as store:
        clock.tick(FAR_MS)
        store.advance(clock.now_ms())
        assert bodies(store) == expected("it")
