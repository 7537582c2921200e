# SPDX-License-Identifier: Apache-2.0
"""The delay levels of RocketMQ: a line like "1s 5s 10s" as a table, level ↔ delay. Pure.

Level numbers start at 1; 0 and below mean "no delay", and a level above the last one is the last
one, as at put.
"""

import bisect

import attrs

from message_store.base.errors import BadFieldError
from message_store.format.java_numbers import parse_long

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def format_delay(delay_ms: int) -> str:
    """A delay as a level line writes it, in the largest unit that divides it.

    >>> format_delay(90_000), format_delay(7_200_000), format_delay(1_500), format_delay(0)
    ('90s', '2h', '1500ms', '0s')
    """
    for unit in ("d", "h", "m", "s") if delay_ms else ("s",):
        if delay_ms % _UNIT_MS[unit] == 0:
            return f"{delay_ms // _UNIT_MS[unit]}{unit}"
    return f"{delay_ms}ms"


@attrs.frozen
class DelayLevels:
    """The table: ``delays_ms[level - 1]`` is the delay of a level."""

    delays_ms: tuple[int, ...] = attrs.field()

    @classmethod
    def parse(cls, text: str = DEFAULT_LEVELS) -> "DelayLevels":
        """Read a level line by the broker's rules: single spaces, a number, one of ``s m h d``,
        case as written.

        Zero and negative numbers are accepted, as the broker accepts them. Raises BadFieldError for
        a line on which a broker would refuse to start (docs/FORMAT.md, delay levels).

        >>> DelayLevels.parse("1s 2h").delay_ms(2)
        7200000
        """
        delays_ms = []
        for number, token in enumerate(
            text.rstrip(" ").split(" "), start=1
        ):  # Java drops empty tails
            if token[-1:] not in _UNIT_MS:
                raise BadFieldError(
                    f"level {number} of the level table is not a number with s, m, h or d",
                    found=repr(token),
                )
            delays_ms.append(parse_long(token[:-1]) * _UNIT_MS[token[-1]])
        return cls(tuple(delays_ms))

    @property
    def max_level(self) -> int:
        """The highest level."""
        return len(self.delays_ms)

    def clamp(self, level: int) -> int:
        """The level that a broker uses for what a client asked for; 0 means not delayed."""
        return max(0, min(level, self.max_level))

    @property
    def shortest_level(self) -> int:
        """The first of the levels with the shortest delay."""
        return min(range(1, self.max_level + 1), key=self.delay_ms)

    def delay_ms(self, level: int) -> int:
        """The delay of a level from 1 to ``max_level``; raises BadFieldError outside."""
        if not 1 <= level <= self.max_level:
            raise BadFieldError(
                "no such delay level", expected=f"1 to {self.max_level}", found=level
            )
        return self.delays_ms[level - 1]

    def asked(self, level: int) -> tuple[int, int]:
        """The level that a broker uses for what a client asked for, and its delay; raises
        BadFieldError for "not delayed".

        >>> DelayLevels.parse("1s 2h").asked(9)
        (2, 7200000)
        """
        if 0 < level <= len(self.delays_ms):  # asked for every message: no further calls for most
            return level, self.delays_ms[level - 1]
        level = self.clamp(level)
        return level, self.delay_ms(level)

    def smallest_not_shorter(self, delay_ms: int) -> int | None:
        """The level with the shortest delay that is at least ``delay_ms``, or None beyond the
        longest.

        >>> DelayLevels.parse().smallest_not_shorter(61_000)
        6
        """
        ranked = sorted((delay, level) for level, delay in enumerate(self.delays_ms, start=1))
        place = bisect.bisect_left(ranked, (delay_ms, 0))
        return ranked[place][1] if place < len(ranked) else None

    def describe(self, level: int) -> str:
        """How people read a level.

        >>> DelayLevels.parse().describe(5)
        'level 5 (1m)'
        """
        if not 1 <= level <= self.max_level:
            return f"level {level} (not in the table)"
        return f"level {level} ({format_delay(self.delays_ms[level - 1])})"

    def text(self) -> str:
        """The line as a broker's configuration would hold it."""
        return " ".join(format_delay(delay_ms) for delay_ms in self.delays_ms)
