# SPDX-License-Identifier: Apache-2.0
"""A clock by hand moves only when told; the system's one moves by itself."""

from message_store.base.clock import Clock, ManualClock, SystemClock, stopwatch_s


def test_a_manual_clock_sleeps_without_waiting() -> None:
    clock: Clock = ManualClock(1_000)
    clock.sleep_ms(604_800_000)
    assert clock.now_ms() == 604_801_000


def test_a_manual_clock_never_stands_still_in_a_sleep_nor_goes_back() -> None:
    clock = ManualClock(10)
    clock.sleep_ms(0.2)
    assert clock.now_ms() == 11
    clock.sleep_ms(-5)
    assert clock.now_ms() == 11
    clock.tick(-1)
    assert clock.now_ms() == 10


def test_the_system_clock_tells_epoch_milliseconds_and_sleeps_at_least_as_long_as_asked() -> None:
    clock: Clock = SystemClock()
    before, started = clock.now_ms(), stopwatch_s()
    clock.sleep_ms(3)
    clock.sleep_ms(-1)
    assert stopwatch_s() - started >= 0.003
    assert clock.now_ms() > before > 1_600_000_000_000
