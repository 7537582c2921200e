# SPDX-License-Identifier: Apache-2.0
"""Equal messages of which some were delivered, in a store that changes hands: whichever write of
the owner before or of the handover a kill prevents, each is delivered once.
"""

import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from message_store import AtMs, DelayStore, ManualClock, Message, Severity
from message_store.files.store_root import StoreRoot
from message_store.redelivery.lineage import first_offset
from tests.faults.engines import abandon, open_hierarchy, open_wheel
from tests.simulation.simulated_disk import Killed, full_disk
from timer_wheel.reading.ownership import index_path

START_MS = 1_793_000_000_000
DUE_MS = START_MS + 5_000
EXPECTED = Counter(near=6, far=4)
Opener = Callable[[Path, ManualClock], DelayStore]
DIRECTIONS = [
    pytest.param(open_wheel, open_hierarchy, id="wheel to hierarchy"),
    pytest.param(open_hierarchy, open_wheel, id="hierarchy to wheel"),
]
STEPS = [7, pytest.param(2, marks=pytest.mark.check)]


def put_equal(store: DelayStore, count: int) -> None:
    for key, due_ms in (("near", DUE_MS), ("far", DUE_MS + 200_000)):
        for _ in range(count):
            store.schedule(Message("orders", b"body", unique_key=key), AtMs(due_ms))


def keys(store: DelayStore) -> Counter[str]:
    return Counter(each.unique_key or "" for each in store.topic("orders").read(0, 0, 1_000))


def accounted(store: DelayStore) -> Counter[str]:
    assert [each for each in store.check() if each.severity is Severity.ERROR] == []
    return keys(store) + Counter(each.unique_key or "" for each in store.pending())


def assert_each_comes_once(path: Path, clock: ManualClock, opener: Opener) -> None:
    with opener(path, clock) as store:
        assert accounted(store) == EXPECTED
        store.advance(DUE_MS + 400_000)
        assert keys(store) == EXPECTED
        came = list(store.topic("orders").read(0, 0, 1_000))
        assert len({first_offset(each) for each in came}) == EXPECTED.total()


def prepared(path: Path, clock: ManualClock, opener: Opener) -> DelayStore:
    """A store of which two of six equal messages were delivered, before the clock was set right."""
    store = opener(path, clock)
    put_equal(store, 2)
    store.advance(DUE_MS + 1_000)
    store.flush()
    put_equal(store, 2)
    for _ in range(2):
        store.schedule(Message("orders", b"body", unique_key="near"), AtMs(DUE_MS))
    clock.tick(8_000)
    return store


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_back", [False, True], ids=["goes on", "goes back"])
@pytest.mark.parametrize(("before", "then"), DIRECTIONS)
def test_equal_messages_outlive_a_kill_of_any_write_before_a_handover(
    tmp_path: Path, before: Opener, then: Opener, is_back: bool, step: int
) -> None:
    for number in itertools.count(step=step):
        path, clock = tmp_path / str(number), ManualClock(START_MS)
        store = prepared(path, clock, before)
        with full_disk(path, number, is_kill=True) as disk, suppress(Killed):
            store.advance(clock.now_ms())
            store.flush()
        abandon(store)
        store = then(path, clock)
        assert accounted(store) == EXPECTED
        abandon(store)
        assert_each_comes_once(path, clock, before if is_back else then)
        shutil.rmtree(path)
        if not disk.refused:
            break


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_back", [False, True], ids=["goes on", "goes back"])
@pytest.mark.parametrize(("before", "then"), DIRECTIONS)
def test_equal_messages_outlive_a_kill_of_any_write_of_a_handover(
    tmp_path: Path, before: Opener, then: Opener, is_back: bool, step: int
) -> None:
    whole, clock = tmp_path / "whole", ManualClock(START_MS)
    store = prepared(whole, clock, before)
    store.advance(clock.now_ms())
    abandon(store)
    for number in itertools.count(step=step):
        path = tmp_path / str(number)
        shutil.copytree(whole, path)
        with full_disk(path, number, is_kill=True) as disk, suppress(Killed):
            abandon(then(path, clock))
        assert_each_comes_once(path, clock, before if is_back else then)
        shutil.rmtree(path)
        if not disk.refused:
            break


def test_an_index_that_is_lost_after_a_handover_is_made_from_what_the_wheel_had_settled(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    store = prepared(tmp_path, clock, open_wheel)
    store.advance(clock.now_ms())
    abandon(store)
    for ahead_ms in (0, 400_000):
        store = open_hierarchy(tmp_path, clock)
        assert accounted(store) == EXPECTED
        store.advance(DUE_MS + ahead_ms)
        abandon(store)
        shutil.rmtree(index_path(StoreRoot(tmp_path)))
    assert_each_comes_once(tmp_path, clock, open_hierarchy)
