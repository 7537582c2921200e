# SPDX-License-Identifier: Apache-2.0
"""How full a disk is, in a broker's terms: above some ratios it deletes, refuses, discards."""

from pathlib import Path

from migrate.staged_output import used_ratio

_RATIOS = (
    (0.90, "a broker refuses to store there, so that messages due are discarded after three tries"),
    (0.85, "a broker deletes old log files there at any hour, whatever still waits in them"),
    (0.75, "a broker deletes expired log files there at any hour, not only at night"),
)
"""diskSpaceWarningLevelRatio, diskSpaceCleanForciblyRatio and diskMaxUsedSpaceRatio, as they ship.
"""


def disk_warnings(directory: Path) -> tuple[str, ...]:
    """What a broker that opens a store here does because of the disk; empty when it has room."""
    ratio = used_ratio(directory)
    for limit, effect in _RATIOS:
        if ratio >= limit:
            return (f"the disk of {directory} is {ratio:.0%} full: {effect}",)
    return ()
