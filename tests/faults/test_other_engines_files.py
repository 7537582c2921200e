# SPDX-License-Identifier: Apache-2.0
"""One store directory holds both engines' messages: each leaves alone what is the other's,
whatever end the other came to.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from pathlib import Path

import pytest

from message_store import AfterMs, DelayStore, ManualClock, Message, Severity
from tests.faults.engines import ENGINES, abandon
from tests.faults.store_reading import delivered, disagreements
from time_index import index
from timer_wheel.hierarchy import timer_index

pytestmark = pytest.mark.filterwarnings("ignore::message_store.base.errors.OtherEngineWarning")

START_MS = 1_793_000_000_000
LATER_MS = 600_000
OTHER = {"levels": "wheel", "wheel": "levels", "hierarchy": "levels", "time-index": "levels"}


def put(store: DelayStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        body = f"body {number}".encode()
        message = Message("orders", body, unique_key=f"KEY{number:08X}")
        store.schedule(message, AfterMs(1_000 * (number % 40)))


def open_one(engine: str, folder: Path, clock: ManualClock) -> DelayStore:
    return ENGINES[engine].open(folder, clock, False)


def end(store: DelayStore, how: str) -> None:
    if how == "closed":
        store.close()
    else:
        abandon(store)


@pytest.mark.parametrize(("first", "other"), list(itertools.permutations(ENGINES, 2)))
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_each_engine_leaves_the_others_messages_alone_or_takes_them_over(
    tmp_path: Path, first: str, other: str, how: str
) -> None:
    folder, clock = tmp_path / "store", ManualClock(START_MS)
    for turn, engine in enumerate((first, other) * 2):
        store = open_one(engine, folder, clock)
        assert [each for each in store.check() if each.severity is Severity.ERROR] == []
        put(store, 100 * turn, 40)
        clock.tick(10_000)
        store.advance(clock.now_ms())
        end(store, how)
    clock.tick(LATER_MS)
    for engine in (first, other):
        with open_one(engine, folder, clock) as store:
            store.advance(clock.now_ms())
            assert list(store.pending()) == []
            assert store.next_due_ms() is None
    came = Counter(found.name for found in delivered(folder))
    expected = [f"KEY{100 * turn + number:08X}" for turn in range(4) for number in range(40)]
    assert came == Counter(expected)
    assert disagreements(folder) == []


@pytest.mark.parametrize("first", ENGINES)
@pytest.mark.parametrize("how", ["closed", "killed"])
@pytest.mark.parametrize("count", [1, 100])
def test_a_loss_of_power_that_another_engine_cleared_up_after_costs_nothing_that_was_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, how: str, count: int
) -> None:
    """What was delivered since the flush is gone, and what tells of it is not; then the log grows
    towards the place where that was, or over it.
    """
    monkeypatch.setattr(timer_index, "_MUCH_LOG_BYTES", 0)
    monkeypatch.setattr(index, "_MUCH_LOG_BYTES", 0)
    folder, clock = tmp_path / "store", ManualClock(START_MS)
    store = open_one(first, folder, clock)
    put(store, 0, 40)
    store.flush()
    for name in ("commitlog", "consumequeue"):
        shutil.copytree(folder / name, tmp_path / name)
    came = []
    for _ in range(4):
        clock.tick(5_000)
        came.append(len(store.advance(clock.now_ms())))
    assert sum(came[1:]) > 0
    abandon(store)
    for name in ("commitlog", "consumequeue"):
        shutil.rmtree(folder / name)
        shutil.copytree(tmp_path / name, folder / name)
    other = open_one(OTHER[first], folder, clock)
    put(other, 100, count)
    end(other, how)
    clock.tick(LATER_MS)
    for engine in (first, OTHER[first]):
        with open_one(engine, folder, clock) as again:
            again.advance(clock.now_ms())
            assert list(again.pending()) == []
    found = Counter(found.name for found in delivered(folder))
    assert found == Counter(f"KEY{number:08X}" for number in (*range(40), *range(100, 100 + count)))
    assert disagreements(folder) == []
