# SPDX-License-Identifier: Apache-2.0
"""The promises of engines, as pure functions: due time → promised time.

A rule is asked only for times in the future: every engine promises a past time for now. It answers
with that time or a later one, or with now where it delivers at once. ``MemoryStore`` takes a rule,
so that it promises what the engine beside it promises.
"""

from collections.abc import Callable
from typing import Any, Literal

import attrs

from message_store.base.durations import DAY_MS
from message_store.base.errors import DelayLimitError, UnsupportedDelayError
from message_store.base.kinds import require_whole
from message_store.base.printable import iso_time, span
from message_store.format.delay_levels import DelayLevels, format_delay
from message_store.format.java_numbers import LONG_MAX

MINUTE_MS = 60_000
_MANY_DAYS = 10

BeyondMax = Literal["refuse", "deliver"]
"""What becomes of a delay that is too long: refused, as brokers do, or delivered at once, as the
manual of RocketMQ 5.0 says.
"""

BEYOND_MAX = ("refuse", "deliver")

LATEST_MS = 2**62
"""What is due then or later is a number and no time; sums with it stay 64-bit."""


def require_kept(due_ms: int, now_ms: int) -> None:
    """Raise UnsupportedDelayError for a time that no record, slot or bucket can hold."""
    if due_ms >= LATEST_MS:
        raise UnsupportedDelayError(f"{due_ms} is a time beyond all calendars")
    if now_ms < 0:  # a slot of a time that is not positive counts as empty
        raise UnsupportedDelayError(f"the clock says {now_ms}: nothing waits before 1970")


def check_max_delay(_owner: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    """An attrs validator: a longest delay is milliseconds or None. Raises BadFieldError."""
    if value is not None:
        require_whole(attribute.name, value, 0, LONG_MAX)


@attrs.frozen(kw_only=True)
class DelayLimit:
    """The longest delay that a store takes, and what becomes of a longer one."""

    max_delay_ms: int | None = attrs.field(default=None, validator=check_max_delay)
    beyond_max: BeyondMax = attrs.field(
        default="refuse", validator=attrs.validators.in_(BEYOND_MAX)
    )


NO_LIMIT = DelayLimit()

PromiseRule = Callable[[int, int], int]
"""``rule(due_ms, now_ms)`` is the promised time; raises UnsupportedDelayError where there is none.
"""


def exact(due_ms: int, now_ms: int) -> int:
    """To the millisecond: the promise of a store that sorts by due time.

    >>> exact(1_234, 0)
    1234
    """
    return due_ms


def to_slot_end(
    precision_ms: int,
    *,
    max_delay_ms: int | None = None,
    beyond_max: BeyondMax = "refuse",
) -> PromiseRule:
    """A wheel's promise: the end of the slot that holds the due time.

    A delay longer than ``max_delay_ms`` is refused, as brokers do, or delivered at once, as the
    manual of 5.0 says; without a limit any delay is kept.

    >>> [to_slot_end(1_000)(due_ms, 0) for due_ms in (7_000, 7_001, 7_999)]
    [7000, 8000, 8000]
    >>> to_slot_end(1_000, max_delay_ms=5_000, beyond_max="deliver")(7_001, 300)
    300
    """

    def promise(due_ms: int, now_ms: int) -> int:
        if max_delay_ms is not None and due_ms - now_ms > max_delay_ms:
            if beyond_max == "refuse":
                raise _beyond(due_ms, now_ms, max_delay_ms)
            return now_ms
        return -(-due_ms // precision_ms) * precision_ms

    return promise


def _beyond(due_ms: int, now_ms: int, limit_ms: int) -> DelayLimitError:
    asked, limit = _asked_delay(due_ms, now_ms, limit_ms), format_delay(limit_ms)
    return DelayLimitError(f"a delay of {asked} is beyond the limit of {limit}")


def _asked_delay(due_ms: int, now_ms: int, limit_ms: int) -> str:
    """The delay in its largest units with the due time; exact where it is near the limit."""
    delay_ms = due_ms - now_ms
    if delay_ms >= _MANY_DAYS * DAY_MS and delay_ms - limit_ms >= DAY_MS:
        delay = f"{delay_ms // DAY_MS:,} days"
    else:
        is_near = delay_ms - limit_ms < MINUTE_MS or delay_ms % MINUTE_MS == 0
        delay = format_delay(delay_ms) if is_near else span(delay_ms)
    return f"{delay} (due {iso_time(due_ms)})"


def to_level(
    levels: DelayLevels,
    *,
    rounding: Literal["up", "exact"] = "up",
    limit: DelayLimit = NO_LIMIT,
) -> PromiseRule:
    """The levels' promise: after the shortest level that is not shorter than the delay.

    A delay longer than the longest level, or than ``limit`` says, is refused or delivered at once.
    With ``rounding="exact"`` one that no level has is refused.

    >>> to_level(DelayLevels.parse("1s 5s"))(3_000, 1_000)
    6000
    """

    def promise(due_ms: int, now_ms: int) -> int:
        delay_ms = due_ms - now_ms
        level = levels.smallest_not_shorter(delay_ms)
        most_ms = limit.max_delay_ms
        is_too_long = most_ms is not None and delay_ms > most_ms
        if (level is None or is_too_long) and limit.beyond_max == "deliver":
            return now_ms
        if is_too_long:
            raise _beyond(due_ms, now_ms, most_ms or 0)
        if level is None:
            longest = format_delay(max(levels.delays_ms))
            asked = _asked_delay(due_ms, now_ms, max(levels.delays_ms))
            raise UnsupportedDelayError(
                f"a delay of {asked} is longer than the longest level ({longest})"
            )
        kept_ms = levels.delay_ms(level)
        if rounding == "exact" and kept_ms != delay_ms:
            asked, next_longer = format_delay(delay_ms), levels.describe(level)
            raise UnsupportedDelayError(
                f"no level has a delay of {asked} (the next longer is {next_longer})"
            )
        return now_ms + kept_ms

    return promise
