# SPDX-License-Identifier: Apache-2.0
"""``WheelStore.check`` knows which messages its chains lead to, over all files of the timer log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from message_store import AfterMs, ManualClock, Message
from message_store.columns.byte_column import int64s
from tests.faults.engines import SMALL, open_wheel
from timer_wheel.wheel.store import _are_among

START_MS = 1_793_000_000_000
PLACES = st.lists(st.integers(-3, 12) | st.sampled_from([2**62, -(2**62)]), max_size=20)


@given(PLACES, PLACES)
def test_places_are_known_or_not_as_numpy_says(values: list[int], known: list[int]) -> None:
    found = _are_among(int64s(values), int64s(sorted(known)))
    assert found.tolist() == np.isin(int64s(values), int64s(known)).tolist()


def test_nothing_is_found_on_a_whole_wheel_of_many_files(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_wheel(tmp_path / "store", clock, SMALL) as store:
        for number in range(400):
            store.schedule(Message("orders", b"x"), AfterMs(5_000 + 50 * number))
        clock.tick(8_000)
        assert len(store.advance(clock.now_ms())) > 0
        assert store.check() == []
    assert len(list((tmp_path / "store" / "timerlog").iterdir())) > 5
