# SPDX-License-Identifier: Apache-2.0
"""Clocks that leap by days or years, there and back: every message comes once, by the first advance
to its promise, whoever has opened the store in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from message_store import AfterMs, AtMs, DelayStore, ManualClock, Message
from tests.faults.engines import abandon, open_hierarchy, open_levels, open_time_index, open_wheel

START_MS = 1_793_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS
DELAYS_MS = (0, 3_000, 2 * HOUR_MS)
LEAPS_MS = (10 * YEAR_MS, -9 * YEAR_MS, 2 * DAY_MS, -2 * DAY_MS, 40 * YEAR_MS, -90 * YEAR_MS)

Open = Callable[[Path, ManualClock], DelayStore]


def open_fine_wheel(folder: Path, clock: ManualClock) -> DelayStore:
    """A wheel that goes round in a day and a half."""
    return open_wheel(folder, clock, precision_ms=100, roll_window_slots=6_000)


OPENED: dict[str, Open] = {
    "levels": open_levels,
    "wheel": open_wheel,
    "fine wheel": open_fine_wheel,
    "hierarchy": open_hierarchy,
    "time-index": open_time_index,
}


class Bench:
    """A store, and what was promised and has not come."""

    def __init__(self, opened: Open, folder: Path, how: str) -> None:
        self.clock = ManualClock(START_MS)
        self.store = opened(folder, self.clock)
        self.promises: dict[str, int] = {}
        self._opened, self._folder, self._how = opened, folder, how
        self._count = 0

    def schedule(self, due: AfterMs | AtMs) -> None:
        self._count += 1
        message = Message("orders", b"", unique_key=f"KEY{self._count:08X}")
        receipt = self.store.schedule(message, due)
        self.promises[receipt.unique_key] = receipt.promised_ms

    def advance(self, now_ms: int) -> None:
        came = Counter(str(each.message.unique_key) for each in self.store.advance(now_ms))
        assert came == Counter(key for key, ms in self.promises.items() if ms <= now_ms)
        self.promises = {key: ms for key, ms in self.promises.items() if ms > now_ms}
        assert {str(each.unique_key) for each in self.store.pending()} == set(self.promises)
        if self._how != "open":
            self.reopen(is_killed=self._how == "killed")

    def reopen(self, *, is_killed: bool) -> None:
        abandon(self.store) if is_killed else self.store.close()
        self.store = self._opened(self._folder, self.clock)


@pytest.mark.parametrize("engine", OPENED)
@pytest.mark.parametrize("how", ["open", "closed", "killed"])
def test_a_clock_that_leaps_by_years(tmp_path: Path, engine: str, how: str) -> None:
    bench = Bench(OPENED[engine], tmp_path / "store", how)
    for leap_ms in (0, *LEAPS_MS):
        bench.clock.tick(leap_ms)
        for delay_ms in DELAYS_MS:
            bench.schedule(AfterMs(delay_ms))
        for step_ms in (0, 2_999, 1, 1_000, 30 * 60_000):
            bench.clock.tick(step_ms)
            bench.advance(bench.clock.now_ms())
    last_ms = max(bench.promises.values())
    bench.clock.tick(last_ms - bench.clock.now_ms())
    bench.advance(last_ms)
    assert bench.promises == {}
    bench.store.close()


@pytest.mark.parametrize(
    ("engine", "leap_ms", "after_ms"),
    [
        ("wheel", 20 * DAY_MS, 0),
        ("fine wheel", 2 * DAY_MS, 0),
        ("fine wheel", 2 * DAY_MS, 2 * DAY_MS + 60_000),
        ("hierarchy", 2 * DAY_MS, 2 * DAY_MS + 60_000),
    ],
)
@pytest.mark.parametrize("ends", ["not", "closed", "killed", "killed when it was flushed"])
def test_what_came_more_than_a_round_ahead_does_not_come_when_the_hand_is_near_again(
    tmp_path: Path, engine: str, leap_ms: int, after_ms: int, ends: str
) -> None:
    bench = Bench(OPENED[engine], tmp_path / "store", "open")
    bench.advance(START_MS + leap_ms)
    bench.schedule(AtMs(START_MS + after_ms))
    bench.advance(START_MS + leap_ms + 2 * 60_000)
    bench.schedule(AtMs(START_MS + HOUR_MS))
    bench.advance(START_MS)  # where the hand moves back to
    if ends == "killed when it was flushed":
        bench.store.flush()
    if ends != "not":
        bench.reopen(is_killed=ends != "closed")
    for now_ms in range(START_MS + HOUR_MS, START_MS + leap_ms + 2 * DAY_MS, 4 * HOUR_MS):
        bench.clock.tick(now_ms - bench.clock.now_ms())
        bench.advance(now_ms)
    bench.store.close()
