# SPDX-License-Identifier: Apache-2.0
"""An engine that leaves the levels alone opens a store whose level queue has to be rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from legacy_levels import LevelStore
from message_store import AfterMs, ManualClock, Message
from message_store.base.errors import OptionsError, OtherEngineWarning
from message_store.format.delay_levels import DelayLevels
from tests.faults.damage import copy_store
from time_index import TimeIndexStore
from timer_wheel import HierarchicalWheelStore, WheelStore

START_MS = 1_793_000_000_000
HOUR_MS = 3_600_000
OWN = DelayLevels.parse("1h")
OTHERS: dict[str, Any] = {
    "wheel": WheelStore,
    "hierarchy": HierarchicalWheelStore,
    "time-index": TimeIndexStore,
}


def leave_a_store(path: Path) -> ManualClock:
    """Of two messages of an hour the power took the entry of the second, and not its record."""
    clock = ManualClock(START_MS)
    store = LevelStore.open(path, clock=clock, levels=OWN)
    for key in "AB":
        store.schedule(Message("orders", key.encode(), unique_key=key), AfterMs(HOUR_MS))
        store.flush()
    store.abandon()
    with (path / "consumequeue/SCHEDULE_TOPIC_XXXX/0/00000000000000000000").open("r+b") as file:
        file.seek(20)
        file.write(bytes(20))
    return clock


@pytest.mark.parametrize("name", OTHERS)
def test_another_table_is_refused_before_it_hurries_a_message(name: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    clock = leave_a_store(store)
    copy_store(store, tmp_path / "before")
    with pytest.raises(OptionsError, match="due after 1h"):
        OTHERS[name].open(store, clock=clock)
    for path in (tmp_path / "before").rglob("*"):
        if path.is_file():
            assert (store / path.relative_to(tmp_path / "before")).read_bytes() == path.read_bytes()
    with pytest.warns(OtherEngineWarning):
        OTHERS[name].open(store, clock=clock, levels=OWN).close()
    with LevelStore.open(store, clock=clock, levels=OWN) as levels:
        assert [each.due_ms for each in levels.pending()] == [START_MS + HOUR_MS] * 2
