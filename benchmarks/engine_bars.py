# SPDX-License-Identifier: Apache-2.0
"""What the engines are to reach, and whether a figure does."""

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen
class Bar:
    """A limit: at least, or at most where it is a ceiling."""

    limit: float
    is_ceiling: bool = False

    def verdict(self, value: float) -> str:
        """Whether a value reaches it, and by how much not.

        >>> Bar(100).verdict(130), Bar(100).verdict(80), Bar(2, is_ceiling=True).verdict(3)
        ('met', '**missed by 20 %**', '**missed by 50 %**')
        """
        part = value / self.limit - 1 if self.is_ceiling else 1 - value / self.limit
        return "met" if part <= 0 else f"**missed by {part:.0%}**".replace("%", " %")


THOUSANDS_A_SECOND = {
    "schedule": Bar(120),
    "schedule_batch": Bar(1_500),
    "burst": Bar(1_000),
    "one level": Bar(800),
    "all levels": Bar(800),
}
"""Medians. That of the burst is half a second for 500,000."""

_LATENESS_MS: Mapping[tuple[int, int], tuple[tuple[str, str, float], ...]] = {
    (14_000, 1_000): (("seen - promised", "99.9", 60), ("seen - due", "99.9", 1_060)),
    (14_000, 100): (("seen - due", "50", 70), ("seen - due", "99.9", 130)),
    (50_000, 1_000): (("seen - promised", "99.9", 100),),
}
"""By rate and precision: what is looked at, the percentile, the bar."""

_OPENING_S = {10_000_000: {"clean": Bar(1, is_ceiling=True), "killed": Bar(3, is_ceiling=True)}}


def lateness_verdicts(run: Mapping[str, Any]) -> str:
    """What a steady run is to reach, and whether it does; empty where it is to reach nothing."""
    found = []
    for which, percentile, limit in _LATENESS_MS.get((run["rate"], run["precision_ms"]), ()):
        verdict = Bar(limit, is_ceiling=True).verdict(run[which][percentile])
        name = which.replace("-", "−")
        found.append(f"{name} P{percentile} ≤ {limit:,} ms: {verdict}")
    return "; ".join(found)


def opening_verdict(messages: int, kind: str, median_s: float) -> str:
    """Whether opening so many, after an end of this kind, is fast enough."""
    bar = _OPENING_S.get(messages, {}).get(kind)
    return "" if bar is None else f", {bar.verdict(median_s)}"
