# SPDX-License-Identifier: Apache-2.0
"""A store's directory is moved while it is open; a queue is lost before the first close; and what
looks like a loss and is none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import attrs
import pytest

from message_store import AfterMs, DelayStore, ManualClock, Message, Severity
from message_store.base.errors import (
    BadFieldError,
    DelayStoreError,
    StoreClosedError,
    TargetError,
)
from tests.faults.engines import (
    ENGINES,
    SMALL,
    Engine,
    abandon,
    open_hierarchy,
    open_levels,
    open_time_index,
    open_wheel,
)
from tests.helpers.tiers import by_turns

START_MS = 1_793_000_000_000
OPENERS = {
    "levels": open_levels,
    "wheel": open_wheel,
    "hierarchy": open_hierarchy,
    "time-index": open_time_index,
}


def delivered(engine: Engine, path: Path, clock: ManualClock) -> DelayStore:
    store = engine.open(path, clock, False)
    for number in range(3):
        store.schedule(Message("orders", b"%d" % number), AfterMs(1_000))
    clock.tick(2_000)
    store.advance(clock.now_ms())
    store.schedule(Message("orders2", b"waits"), AfterMs(60_000))
    store.flush()
    return store


ACTS: dict[str, Callable[[DelayStore, int], object]] = {
    "advance": lambda store, now_ms: store.advance(now_ms),
    "flush": lambda store, _: store.flush(),
    "close": lambda store, _: store.close(),
    "schedule": lambda store, _: store.schedule(Message("new", b"x"), AfterMs(600_000)),
}


@pytest.mark.parametrize(
    ("first", "second", "engine"), by_turns(product(ACTS, repeat=2), ENGINES, often=())
)
def test_a_store_that_is_moved_while_it_is_open_makes_no_second_half(
    tmp_path: Path, engine: str, first: str, second: str
) -> None:
    path, clock = tmp_path / "store", ManualClock(START_MS)
    store = ENGINES[engine].open(path, clock, False)
    store.schedule(Message("orders", b"x"), AfterMs(1_000))
    store.flush()
    path.rename(tmp_path / "moved")
    clock.tick(5_000)
    for act in (first, second, "close"):
        with suppress(TargetError, StoreClosedError):  # no engine calls it damage
            ACTS[act](store, clock.now_ms())
    with suppress(DelayStoreError):
        abandon(store)
    assert not list(path.rglob("*"))
    again = ENGINES[engine].open(tmp_path / "moved", clock, False)
    with suppress(DelayStoreError):
        again.advance(clock.now_ms())
    assert [one.body for one in again.topic("orders").read(0, 0)] == [b"x"]
    again.close()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("what", ["zeros", "gone"])
def test_a_queue_that_was_lost_is_noticed_also_before_the_first_close(
    tmp_path: Path, engine: str, end: str, what: str
) -> None:
    clock = ManualClock(START_MS)
    store = delivered(ENGINES[engine], tmp_path, clock)
    store.close() if end == "closed" else abandon(store)
    queue = tmp_path / "consumequeue" / "orders"
    if what == "gone":
        shutil.rmtree(queue)
    else:
        with (queue / "0" / ("0" * 20)).open("r+b") as file:
            file.write(bytes(100))
    again = ENGINES[engine].open(tmp_path, clock, False)
    found = [str(each) for each in again.check() if each.severity is Severity.ERROR]
    bodies = [one.body for one in again.topic("orders").read(0, 0)]
    assert bodies == [b"0", b"1", b"2"] or any("orders/0" in each for each in found)
    again.close()


@pytest.mark.parametrize("engine", OPENERS)
@pytest.mark.parametrize("body_bytes", [3_520, 3_560, 3_680])
def test_a_refused_message_that_turned_the_log_to_its_next_file_is_no_loss(
    tmp_path: Path, engine: str, body_bytes: int
) -> None:
    clock, settings = ManualClock(START_MS), attrs.evolve(SMALL, commit_log_file_bytes=4_096)
    store = OPENERS[engine](tmp_path, clock, settings)
    store.schedule(Message("orders", b"small" * 80), AfterMs(1_000))
    with suppress(BadFieldError):
        store.schedule(Message("orders", bytes(body_bytes)), AfterMs(1_000))
    store.close()
    abandon(OPENERS[engine](tmp_path, clock, settings))
    again = OPENERS[engine](tmp_path, clock, settings)
    assert again.check() == []
    again.close()
