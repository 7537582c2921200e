# SPDX-License-Identifier: Apache-2.0
"""A wheel that nobody advanced for longer than a broker reads back: what is stored on it then."""

from pathlib import Path

import pytest

from message_store import AfterMs, ManualClock, Message
from tests.faults.broker_view import look_as_a_broker
from timer_wheel import WheelStore

START_MS = 1_793_000_000_000
DAY_MS = 86_400_000
WEEKS_MS = 30 * DAY_MS


@pytest.mark.parametrize("precision_ms", [100, 1_000])
@pytest.mark.parametrize("delay_ms", [0, 1_000, 3_600_000, 86_400_000])
def test_what_is_new_is_not_put_where_no_broker_reads(
    delay_ms: int, precision_ms: int, tmp_path: Path
) -> None:
    clock = ManualClock(START_MS)
    with WheelStore.open(tmp_path, clock=clock, precision_ms=precision_ms) as store:
        store.schedule(Message("orders", b"old", unique_key="OLD"), AfterMs(1_000))
    clock.tick(WEEKS_MS)
    with WheelStore.open(tmp_path, clock=clock) as store:
        store.schedule(Message("orders", b"new", unique_key="NEW"), AfterMs(delay_ms))
    view = look_as_a_broker(tmp_path, clock.now_ms(), precision_ms=precision_ms)
    assert (view.keys, view.wrong) == (["NEW"], [])
    with WheelStore.open(tmp_path, clock=clock) as store:
        clock.tick(delay_ms + 1_000)
        came = [str(each.message.unique_key) for each in store.advance(clock.now_ms())]
        assert came == ["OLD", "NEW"]


@pytest.mark.parametrize("rest_days", [1, 6, 8, 60])
@pytest.mark.parametrize("is_there_older", [False, True])
def test_what_was_delivered_before_a_kill_does_not_come_again(
    tmp_path: Path, rest_days: int, *, is_there_older: bool
) -> None:
    """Its entry waits in the queue, without a unit, while openings come and go."""
    clock = ManualClock(START_MS)
    store = WheelStore.open(tmp_path, clock=clock)
    if is_there_older:
        store.schedule(Message("orders", b"", unique_key="OLD"), AfterMs(100_000))
    store.advance(clock.now_ms())
    store.flush()
    clock.tick(1_500)
    store.schedule(Message("orders", b"", unique_key="ONE"), AfterMs(79))
    clock.tick(2_000)
    came = [str(each.message.unique_key) for each in store.advance(clock.now_ms())]
    store.abandon()
    clock.tick(rest_days * DAY_MS)
    for number in range(3):
        with WheelStore.open(tmp_path, clock=clock) as store:
            store.schedule(Message("orders", b"", unique_key=f"NEW{number}"), AfterMs(1_000))
        clock.tick(5_000)
    with WheelStore.open(tmp_path, clock=clock) as store:
        came += [str(each.message.unique_key) for each in store.advance(clock.now_ms())]
    assert sorted(came) == ["NEW0", "NEW1", "NEW2", *["OLD"] * is_there_older, "ONE"]
