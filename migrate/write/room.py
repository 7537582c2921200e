# SPDX-License-Identifier: Apache-2.0
"""Room for the output of a conversion: free bytes, how brokers act on a full disk, empty files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from message_store.base.errors import TargetError
from message_store.format.queue_unit import QUEUE_UNIT
from migrate.plan.plan import Corrections, Plan
from migrate.plan.stored_plan import store_plan
from migrate.settings import WHEEL
from migrate.write.publishing import forbid_start, is_publishing, require_unused
from migrate.write.row_output import create_row
from migrate.write.staging import Staging, clear_staging, target_errors
from timer_wheel.format.index_layouts import ID_ROW, WAITING_ROW
from timer_wheel.format.timer_log import TIMER_UNIT, units_per_file
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES

_RATIOS = (
    (0.90, "a broker refuses to store there, so that messages due are discarded after three tries"),
    (0.85, "a broker deletes old log files there at any hour, whatever still waits in them"),
    (0.75, "a broker deletes expired log files there at any hour, not only at night"),
)
"""diskSpaceWarningLevelRatio, diskSpaceCleanForciblyRatio and diskMaxUsedSpaceRatio, as they ship.
"""
_PLAN_BYTES_A_MESSAGE = 48
"""The size of the plan's arrays in the staging directory while the conversion runs."""


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


def create_staging(
    plan: Plan,
    staging: Staging,
    sources: Sequence[Path],
    request: dict[str, Any],
    corrections: Corrections,
) -> None:
    """Check the disk, create the sparse files, and store the plan last. Raises TargetError."""
    require_unused(staging)
    clear_staging(staging)
    needed = bytes_needed(plan)
    if needed > free_bytes(staging.target.path):
        raise TargetError(
            f"{staging.target.path}: {needed:,} bytes are needed, "
            f"{free_bytes(staging.target.path):,} are free"
        )
    with target_errors(staging.path):
        staging.path.mkdir(parents=True)
    forbid_start(staging)
    resume_staging(plan, staging, sources, request, corrections)


def resume_staging(
    plan: Plan,
    staging: Staging,
    sources: Sequence[Path],
    request: dict[str, Any],
    corrections: Corrections,
) -> None:
    """Create what the executors work on where it is missing; existing files keep their contents.

    A power loss can zero a stored plan and remove files, so the plan, which was just computed, is
    stored once more. What is published is left alone. Raises TargetError.
    """
    if not is_publishing(staging):
        create_rows(plan, staging)
    with target_errors(staging.parts):
        staging.parts.mkdir(parents=True, exist_ok=True)
    store_plan(plan, staging, sources=sources, request=request, corrections=corrections)


def create_rows(plan: Plan, staging: Staging) -> None:
    """Make the files of log, queue and, for a wheel, timer log, sparse and of full length.

    Raises TargetError.
    """
    settings, store = plan.settings, staging.store
    log_files = -(-plan.log.end_offset // settings.commit_log_file_bytes)
    queue_units = settings.queue_file_bytes // QUEUE_UNIT.size
    timer_units = units_per_file(settings.timer_log_file_bytes)
    create_row(store.commit_log, count=log_files, file_bytes=settings.commit_log_file_bytes)
    create_row(
        store.timer_queue(),
        count=-(-len(plan) // queue_units),
        file_bytes=settings.queue_file_bytes,
    )
    if plan.engine == WHEEL:
        create_row(
            store.timer_log,
            count=-(-len(plan) // timer_units),
            file_bytes=settings.timer_log_file_bytes,
        )


def bytes_needed(plan: Plan) -> int:
    """Bytes of log, queue, timer log, wheel and plan, as the disk counts them.

    A hierarchical wheel's index counts three times: the parts' tables, their copies in the
    database, and the compacted result.
    """
    timers = TIMER_UNIT.size if plan.engine == WHEEL else 3 * (WAITING_ROW.size + ID_ROW.size)
    a_message = QUEUE_UNIT.size + timers + 1 + _PLAN_BYTES_A_MESSAGE
    return plan.log.end_offset + WHEEL_FILE_BYTES + len(plan) * a_message
