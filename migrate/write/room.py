# SPDX-License-Identifier: Apache-2.0
"""Room for the output of a conversion: free bytes, how brokers act on a full disk, directories."""

import os
from pathlib import Path

from message_store.base.errors import TargetError
from message_store.files.array_room import row_blocks
from message_store.format.queue_unit import QUEUE_UNIT
from migrate.plan.plan import Plan
from migrate.plan.target_rows import TargetRows
from migrate.settings import WHEEL
from migrate.write.publishing import forbid_start, require_unused
from migrate.write.staging import Staging, clear_staging, require_renames, target_errors
from timer_wheel.format.index_layouts import ID_ROW, WAITING_ROW
from timer_wheel.format.timer_log import TIMER_UNIT
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES

_RATIOS = (
    (0.90, "a broker refuses to store there, so that messages due are discarded after three tries"),
    (0.85, "a broker deletes old log files there at any hour, whatever still waits in them"),
    (0.75, "a broker deletes expired log files there at any hour, not only at night"),
)
"""diskSpaceWarningLevelRatio, diskSpaceCleanForciblyRatio and diskMaxUsedSpaceRatio, as they ship.
"""
_PLAN_BYTES_A_MESSAGE = 84
"""Arrays of the plan and of the target's rows in the staging directory while it runs."""
_COLUMN_BYTES_A_MESSAGE = 68
"""Of the target's rows, and of spreading those that are overdue: columns lie on the disk."""
_LIKELY_RECORD_BYTES = 64 << 20
"""A longer record is rather a damaged entry, which takes no room."""


def free_bytes(directory: Path) -> int:
    """Bytes free for us on the disk of a directory. Raises TargetError."""
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
    """How a broker that opens a store here acts on the full disk; empty when it has room."""
    ratio = used_ratio(directory)
    for limit, effect in _RATIOS:
        if ratio >= limit:
            return (f"the disk of {directory} is {ratio:.0%} full: {effect}",)
    return ()


def create_staging(plan: Plan, staging: Staging) -> None:
    """An empty staging directory, on a disk that has room for the plan. Raises TargetError."""
    require_unused(staging)
    clear_staging(staging)
    needed = planned_bytes(plan)
    if needed > free_bytes(staging.target.path):
        raise TargetError(
            f"{staging.target.path}: {needed:,} bytes are needed, "
            f"{free_bytes(staging.target.path):,} are free"
        )
    with target_errors(staging.path):
        staging.path.mkdir(parents=True)
    require_renames(staging.path)
    forbid_start(staging)


def create_directories(rows: TargetRows, staging: Staging) -> None:
    """The directories of the files that the target's messages are in. Raises TargetError."""
    store = staging.store
    timer_log = [store.timer_log] if rows.engine == WHEEL else []
    for path in (store.commit_log, store.timer_queue(), *timer_log):
        with target_errors(path):
            path.mkdir(parents=True, exist_ok=True)


def bytes_needed(log_bytes: int, count: int, engine: str = WHEEL) -> int:
    """Bytes of log, queue, timer log, wheel and plan, as the disk counts them.

    A hierarchical wheel's index counts three times: the database's log, its tables, and what it
    compacts them to.
    """
    timers = TIMER_UNIT.size if engine == WHEEL else 3 * (WAITING_ROW.size + ID_ROW.size)
    a_message = QUEUE_UNIT.size + timers + 1 + _PLAN_BYTES_A_MESSAGE
    return log_bytes + WHEEL_FILE_BYTES + count * a_message


def planned_bytes(plan: Plan) -> int:
    """``bytes_needed`` of a plan, each record as long as it may become; a length that is probably
    damage counts as nothing.
    """
    log_bytes = len(plan) * _COLUMN_BYTES_A_MESSAGE
    for rows in row_blocks(len(plan)):
        lengths = plan.most_bytes[rows]
        log_bytes += int(lengths[lengths <= _LIKELY_RECORD_BYTES].sum())
    return bytes_needed(log_bytes, len(plan), plan.engine)
