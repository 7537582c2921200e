# SPDX-License-Identifier: Apache-2.0
"""A wheel that nobody advanced for longer than a broker reads back: what is stored on it then."""

from pathlib import Path

import pytest

from message_store import AfterMs, ManualClock, Message
from tests.faults.broker_view import look_as_a_broker
from timer_wheel import WheelStore

START_MS = 1_793_000_000_000
WEEKS_MS = 30 * 86_400_000


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
        came = [each.message.unique_key for each in store.advance(clock.now_ms())]
        assert came == ["OLD", "NEW"]
