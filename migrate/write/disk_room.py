# SPDX-License-Identifier: Apache-2.0
"""How full a disk is, in a broker's terms: above some ratios it deletes, refuses, discards."""

import os
from pathlib import Path

from migrate.write.staging import target_errors

_RATIOS = (
    (0.90, "a broker refuses to store there, so that messages due are discarded after three tries"),
    (0.85, "a broker deletes old log files there at any hour, whatever still waits in them"),
    (0.75, "a broker deletes expired log files there at any hour, not only at night"),
)
"""diskSpaceWarningLevelRatio, diskSpaceCleanForciblyRatio and diskMaxUsedSpaceRatio, as they ship.
"""


def free_bytes(directory: Path) -> int:
    """What the disk of a directory has room for. Raises TargetError."""
    with target_errors(directory):
        facts = os.statvfs(directory)
        return facts.f_bavail * facts.f_frsize


def used_ratio(directory: Path) -> float:
    """How full the disk of a directory is, as Java counts: used over used and usable."""
    with target_errors(directory):
        facts = os.statvfs(directory)
    used = facts.f_blocks - facts.f_bfree
    return used / max(1, used + facts.f_bavail)


def disk_warnings(directory: Path) -> tuple[str, ...]:
    """What a broker that opens a store here does because of the disk; empty when it has room."""
    ratio = used_ratio(directory)
    for limit, effect in _RATIOS:
        if ratio >= limit:
            return (f"the disk of {directory} is {ratio:.0%} full: {effect}",)
    return ()
