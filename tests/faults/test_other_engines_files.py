# SPDX-License-Identifier: Apache-2.0
"""One store directory holds both engines' messages: each leaves alone what is the other's,
whatever end the other came to.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from message_store import AfterMs, DelayStore, ManualClock, Message, Severity
from tests.faults.engines import ENGINES, abandon
from tests.faults.store_reading import delivered, disagreements

START_MS = 1_793_000_000_000
LATER_MS = 600_000
OTHER = {"levels": "wheel", "wheel": "levels", "hierarchy": "levels"}


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


@pytest.mark.parametrize("first", ENGINES)
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_each_engine_leaves_the_others_messages_alone(tmp_path: Path, first: str, how: str) -> None:
    folder, clock = tmp_path / "store", ManualClock(START_MS)
    other = OTHER[first]
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
