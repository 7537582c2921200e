# SPDX-License-Identifier: Apache-2.0
"""A clock was set back behind the hand: what waits in the hand's slot comes by its time."""

from pathlib import Path

import pytest

from message_store import AfterMs, ManualClock, Message
from migrate.look.pending import pending_messages
from timer_wheel import WheelStore

START_MS = 1_793_000_000_000


@pytest.mark.parametrize("back_ms", [1_000, 60_000, 3_600_000])
def test_what_came_before_a_kill_is_not_listed(back_ms: int, tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path, clock=clock) as store:
        store.advance(clock.now_ms())
    clock.tick(-back_ms)
    with WheelStore.open(tmp_path, clock=clock) as store:
        for key, delay_ms in (("A", 1_000), ("B", 100_000)):
            store.schedule(Message("orders", b"x", unique_key=key), AfterMs(delay_ms))
    store = WheelStore.open(tmp_path, clock=clock)
    for _ in range(3):
        clock.tick(min(back_ms, 1_000))
        store.advance(clock.now_ms())
    store.schedule(Message("orders", b"x", unique_key="C"), AfterMs(100_000))
    store.abandon()
    listed = pending_messages(tmp_path, now_ms=clock.now_ms())
    assert sorted(str(getattr(each, "unique_key", each)) for each in listed) == ["B", "C"]
