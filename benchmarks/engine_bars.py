# SPDX-License-Identifier: Apache-2.0
"""What the engines are to reach, whether a figure does, and what RocketMQ's own reached."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class Bar:
    """A limit: at least, or at most where it is a ceiling; of the median, or in any round.

    ``java`` is what RocketMQ's own engine reached on such a machine, in one process and warm.
    """

    limit: float
    is_ceiling: bool = False
    in_any_round: bool = False
    java: str = ""

    def judged(self, values: Sequence[float]) -> float:
        """The one of all rounds' values that counts."""
        if not self.in_any_round:
            return statistics.median(values)
        return max(values) if self.is_ceiling else min(values)

    def verdict(self, *values: float) -> str:
        """Whether the rounds reach it, and by how much not.

        >>> Bar(100).verdict(130, 70, 110), Bar(100).verdict(80), Bar(2, is_ceiling=True).verdict(3)
        ('met', '**missed by 20 %**', '**missed by 50 %**')
        """
        value = self.judged(values)
        part = value / self.limit - 1 if self.is_ceiling else 1 - value / self.limit
        return "met" if part <= 0 else f"**missed by {part:.0%}**".replace("%", " %")


THOUSANDS_A_SECOND = {
    "schedule": Bar(120, java="102–190"),
    "schedule_batch": Bar(1_500),
    "burst": Bar(1_000, java="118"),
    "one level": Bar(800, in_any_round=True, java="198"),
    "all levels": Bar(800, in_any_round=True, java="170"),
}
"""That of the burst is half a second for 500,000."""

LATENESS_MS: Mapping[tuple[int, int], tuple[tuple[str, str, Bar], ...]] = {
    (14_000, 1_000): (
        ("seen - promised", "99.9", Bar(60, is_ceiling=True)),
        ("seen - due", "99.9", Bar(1_060, is_ceiling=True, java="1,218")),
    ),
    (14_000, 100): (
        ("seen - due", "50", Bar(70, is_ceiling=True, java="61 at 5,000/s")),
        ("seen - due", "99.9", Bar(130, is_ceiling=True, java="127 at 5,000/s")),
    ),
    (50_000, 1_000): (("seen - promised", "99.9", Bar(100, is_ceiling=True)),),
}
"""By rate and precision: what is looked at, the percentile, the bar."""

OPENED_MESSAGES = 10_000_000
OPENING_S = {
    "clean": Bar(1, is_ceiling=True, java="2.6 with 1 million"),
    "killed": Bar(3, is_ceiling=True, java="3.1 with 1 million"),
}
"""Of so many messages that wait."""


def throughput_verdict(name: str, rates: Sequence[float]) -> tuple[str, str]:
    """The bar in words, and whether these rates, in thousands, reach it; empty without a bar."""
    bar = THOUSANDS_A_SECOND.get(name)
    if bar is None:
        return "", ""
    words = f"{bar.limit:,}{' in any round' if bar.in_any_round else ''}"
    return f"{words}; RocketMQ {bar.java}" if bar.java else words, bar.verdict(*rates)


def lateness_verdicts(run: Mapping[str, Any]) -> str:
    """What a steady run is to reach, and whether it does; empty where it is to reach nothing."""
    found = []
    for which, percentile, bar in LATENESS_MS.get((run["rate"], run["precision_ms"]), ()):
        name = which.replace("-", "−")
        said = f"{name} P{percentile} ≤ {bar.limit:,} ms: {bar.verdict(run[which][percentile])}"
        found.append(f"{said}; RocketMQ {bar.java}" if bar.java else said)
    return "; ".join(found)


def opening_verdict(messages: int, kind: str, seconds: Sequence[float]) -> str:
    """Whether opening so many, after an end of this kind, is fast enough."""
    return f", {OPENING_S[kind].verdict(*seconds)}" if messages == OPENED_MESSAGES else ""
