# SPDX-License-Identifier: Apache-2.0
"""What engines and conversions should reach."""

import statistics
from collections.abc import Mapping, Sequence

import attrs


@attrs.frozen
class Bar:
    """A limit: at least, or at most where it is a ceiling; of the median, or in any round."""

    limit: float
    is_ceiling: bool = False
    in_any_round: bool = False

    def judged(self, values: Sequence[float]) -> float:
        """The one of all rounds' values that counts."""
        if not self.in_any_round:
            return statistics.median(values)
        return max(values) if self.is_ceiling else min(values)


BAR_RATIO = 1.3
AIM_RATIO = 1.15
"""A conversion's time, in that of `cp` and `sync` of the same log, of so many messages:"""
BAR_MESSAGES = 4_000_000
VERIFY_RATIO = 1.5
"""A verification's time, in that of the conversion before it, of as many."""

PLAIN = "plain"
SHAPES = dict.fromkeys(
    (
        "one bad record",
        "1 % odd sizes",
        "the log of a DLedger member",
        "a CRC property on every record",
    ),
    Bar(1.1, is_ceiling=True),
)
"""The time of a conversion of other records, in that of plain ones in the same run."""

BAR_WORKER_BYTES = 600_000_000
BAR_DRIVER_BYTES = 600_000_000
DRIVER_MESSAGES = 50_000_000
"""The driver's memory is that of so many small messages."""

FLEET_S = 30
FLEET_STORES = 200
FLEET_MESSAGES = 5_000
"""So many stores of so many messages each, from the shell."""

IN_PROCESS_S = 1.5
"""``convert --in-process`` of the sample, from the shell, with kernels compiled."""

THOUSANDS_A_SECOND = {
    "schedule": Bar(120),
    "schedule_batch": Bar(1_500),
    "burst": Bar(1_000),
    "one level": Bar(800, in_any_round=True),
    "all levels": Bar(800, in_any_round=True),
}
"""That of the burst is half a second for 500,000."""

LATENESS_MS: Mapping[tuple[int, int], tuple[tuple[str, str, Bar], ...]] = {
    (14_000, 1_000): (
        ("seen - promised", "99.9", Bar(60, is_ceiling=True)),
        ("seen - due", "99.9", Bar(1_060, is_ceiling=True)),
    ),
    (14_000, 100): (
        ("seen - due", "50", Bar(70, is_ceiling=True)),
        ("seen - due", "99.9", Bar(130, is_ceiling=True)),
    ),
    (50_000, 1_000): (("seen - promised", "99.9", Bar(100, is_ceiling=True)),),
}
"""By rate and precision: what is looked at, the percentile, the bar."""

OPENED_MESSAGES = 10_000_000
OPENING_S = {
    "clean": Bar(1, is_ceiling=True),
    "killed": Bar(3, is_ceiling=True),
}
"""Of so many messages that wait."""

POWER_SAFE = {1: Bar(1), 1_000: Bar(2)}
"""Messages a second in those of SQLite, so many at a time, each time until they are on the disk."""

ACKNOWLEDGED_BATCH = 1_000
ACKNOWLEDGED_MESSAGES = 100_000
ACKNOWLEDGED = {"batches": Bar(200), "one by one": Bar(40)}
"""Thousands of so many ready messages a second, received and acknowledged by a group: so many at a
time, or each by itself.
"""
