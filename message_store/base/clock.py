# SPDX-License-Identifier: Apache-2.0
"""The one door through which time comes in: a clock that tells and waits, real or by hand."""

import math
import time
from typing import Protocol, runtime_checkable

import attrs


@runtime_checkable
class Clock(Protocol):
    """The two questions that a loop ever asks."""

    def now_ms(self) -> int:
        """The time, epoch milliseconds."""

    def sleep_ms(self, duration_ms: float) -> None:
        """Come back when ``duration_ms`` milliseconds have passed."""


@attrs.frozen
class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """The wall clock, epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        """Sleep; a negative duration returns at once."""
        time.sleep(max(0.0, duration_ms) / 1000)


BEGAN_MS = SystemClock().now_ms()
"""When this process began to import us. A source file that is newer is not what was imported."""


@attrs.define
class ManualClock:
    """A clock that moves only when told to, so that a week passes in a second.

    >>> clock = ManualClock(1_000)
    >>> clock.sleep_ms(500)
    >>> clock.now_ms()
    1500
    """

    _now_ms: int

    def now_ms(self) -> int:
        """The time it was set to."""
        return self._now_ms

    def sleep_ms(self, duration_ms: float) -> None:
        """Move time forward instead of waiting; a part of a millisecond counts as one."""
        self._now_ms += max(0, math.ceil(duration_ms))

    def tick(self, duration_ms: int) -> None:
        """Move time by ``duration_ms``, backwards too."""
        self._now_ms += duration_ms


def stopwatch_s() -> float:
    """Seconds of a clock that only goes forward, for measuring how long something took."""
    return time.perf_counter()
