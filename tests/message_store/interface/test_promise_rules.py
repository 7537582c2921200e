# SPDX-License-Identifier: Apache-2.0
"""What engines promise: never early, never later than their step, and refused beyond the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store import DelayLevels
from message_store.base.errors import UnsupportedDelayError
from message_store.interface.promise_rules import exact, to_level, to_slot_end
from timer_wheel.format.wheel_math import PRECISIONS_MS, out_ms, promised_ms

LEVELS = DelayLevels.parse()
nows_ms = st.integers(0, 2_000_000_000_000)


@given(nows_ms, st.integers(1, 10**12))
def test_the_exact_rule_keeps_every_time(now_ms: int, delay_ms: int) -> None:
    assert exact(now_ms + delay_ms, now_ms) == now_ms + delay_ms


@pytest.mark.parametrize("precision_ms", PRECISIONS_MS)
@given(now_ms=nows_ms, delay_ms=st.integers(1, 10**12))
def test_the_slot_rule_is_the_wheels_own_arithmetic(
    precision_ms: int, now_ms: int, delay_ms: int
) -> None:
    due_ms = now_ms + delay_ms
    kept_ms = to_slot_end(precision_ms)(due_ms, now_ms)
    assert kept_ms == promised_ms(out_ms(due_ms, precision_ms), precision_ms)
    assert 0 <= kept_ms - due_ms < precision_ms


@pytest.mark.parametrize(("delay_ms", "is_kept"), [(59_999, True), (60_000, True), (60_001, False)])
def test_a_delay_beyond_the_limit_is_refused_or_delivered_at_once(
    delay_ms: int, is_kept: bool
) -> None:
    refusing = to_slot_end(1_000, max_delay_ms=60_000)
    delivering = to_slot_end(1_000, max_delay_ms=60_000, beyond_max="deliver")
    due_ms = 5_300 + delay_ms
    if is_kept:
        assert refusing(due_ms, 5_300) == delivering(due_ms, 5_300) == 66_000
    else:
        assert delivering(due_ms, 5_300) == 5_300
        with pytest.raises(UnsupportedDelayError, match=r"60001ms \(due .*Z\) is beyond .* 1m$"):
            refusing(due_ms, 5_300)


def test_a_delay_far_beyond_the_limit_is_told_in_days() -> None:
    day_ms = 86_400_000
    rule = to_slot_end(1_000, max_delay_ms=30 * day_ms)
    for delay_ms, told in (
        (30 * day_ms + 1, "2592000001ms"),
        (31 * day_ms, "31 days"),
        (2_912_112 * day_ms + 5, "2,912,112 days"),
    ):
        with pytest.raises(UnsupportedDelayError, match=rf"delay of {told} \(due .*\) is .* 30d$"):
            rule(delay_ms, 0)


@given(nows_ms, st.integers(1, 7_200_000))
def test_the_level_rule_takes_the_next_longer_level(now_ms: int, delay_ms: int) -> None:
    kept_ms = to_level(LEVELS)(now_ms + delay_ms, now_ms) - now_ms
    assert kept_ms in LEVELS.delays_ms
    assert [other for other in LEVELS.delays_ms if delay_ms <= other < kept_ms] == []
    assert kept_ms >= delay_ms


@pytest.mark.parametrize("delay_ms", LEVELS.delays_ms)
def test_the_strict_level_rule_takes_what_a_level_has(delay_ms: int) -> None:
    assert to_level(LEVELS, rounding="exact")(77 + delay_ms, 77) == 77 + delay_ms
    with pytest.raises(UnsupportedDelayError):
        to_level(LEVELS, rounding="exact")(77 + delay_ms - 1, 77)


def test_a_refusal_says_what_there_is_instead() -> None:
    with pytest.raises(UnsupportedDelayError, match=r"of 90s \(the next longer is level 6 \(2m\)"):
        to_level(LEVELS, rounding="exact")(90_000, 0)
    with pytest.raises(UnsupportedDelayError, match=r"3h \(due .*Z\) is longer than .*\(2h\)"):
        to_level(LEVELS)(3 * 3_600_000, 0)
