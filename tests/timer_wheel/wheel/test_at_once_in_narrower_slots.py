# SPDX-License-Identifier: Apache-2.0
"""What is due when it is stored is promised for then: behind its slot, once slots are narrower."""

from pathlib import Path

import pytest

from message_store import AtMs, ManualClock, Message
from timer_wheel import WheelStore

START_MS = 1_793_000_000_000
STORED_MS = START_MS + 19_999


@pytest.mark.parametrize("behind_ms", [0, 1, 500, 950, 30_000])
@pytest.mark.parametrize("others", [0, 3])
def test_it_comes_once_and_not_before_its_promise(
    others: int, behind_ms: int, tmp_path: Path
) -> None:
    """The clock is set back after the wheel was rebuilt; others come from the same slots."""
    clock = ManualClock(STORED_MS)
    with WheelStore.open(tmp_path, clock=clock) as store:
        store.advance(clock.now_ms())
        receipt = store.schedule(Message("orders", b"x", unique_key="LATE"), AtMs(START_MS))
        assert receipt.promised_ms == STORED_MS
        for number in range(others):
            due = AtMs(STORED_MS + number * 700)
            store.schedule(Message("orders", b"x", unique_key=f"K{number}"), due)
    store = WheelStore.open(tmp_path, clock=clock, precision_ms=100, on_precision_change="rebuild")
    clock.tick(-behind_ms)
    came: list[tuple[str | None, int]] = []
    for step_ms in (0, 1, 99, 400, 449, 1, 500, 30_000, 1_000, 86_400_000):
        clock.tick(step_ms)
        came += [
            (each.message.unique_key, clock.now_ms()) for each in store.advance(clock.now_ms())
        ]
        waits = {each.unique_key for each in store.pending()}
        assert waits.isdisjoint(key for key, _ in came)
        assert len(waits) + len(came) == 1 + others
    store.close()
    assert sorted(str(key) for key, _ in came) == sorted(
        ["LATE", *(f"K{n}" for n in range(others))]
    )
    assert all(at_ms >= STORED_MS for _, at_ms in came)
