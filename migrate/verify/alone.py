# SPDX-License-Identifier: Apache-2.0
"""A target looked at without its source: a converted store, or one that was written from a table.

Every file is read as a broker reads it, every slot walked, every record that is reached decoded and
held against its slot; what cannot be told without the source is whether it is what was there.
"""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from message_store.base.errors import BadFieldError, SourceError
from message_store.base.printable import shell_word
from message_store.files.small_files import is_present, read_small_file
from message_store.files.store_root import StoreRoot
from migrate.progress import Progress, no_progress
from migrate.report.conversion_marker import CONVERSION_NAME, read_marker
from migrate.report.conversion_parameters import ConversionSettings, read_settings
from migrate.report.finished_target import (
    IN_PLACE_TOLD,
    WRITTEN_NAME,
    refuse_unfinished,
    was_converted_in_place,
)
from migrate.settings import TargetSettings
from migrate.spark.master import require_shared_directory
from migrate.verify.config import config_problems, group_problems, overdue_problems
from migrate.verify.entries import BUCKET_COUNT
from migrate.verify.index import read_target
from migrate.verify.jobs import SideEntries
from migrate.verify.listing import RecordReader, complaint_problems, unreadable
from migrate.verify.report import Problem, VerifyReport
from migrate.verify.verify import VerifyOptions, digest_jobs, topics_of

_SIZES = ("commit_log_file_bytes", "queue_file_bytes", "timer_log_file_bytes")


def verify_alone(
    target: Path,
    *,
    spark: SparkSession | None,
    options: VerifyOptions | None = None,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Look at a converted or written store by itself.

    Of the report ``converted`` counts what would be delivered as its record says, ``missing`` what
    its maker has counted and is not reached. Raises SourceError for a store that neither a
    conversion nor a write has made, and as ``verify`` does.
    """
    options = options or VerifyOptions()
    if spark is not None:
        require_shared_directory(spark.sparkContext.master, options.scratch, "--scratch")
    root = StoreRoot(target)
    refuse_unfinished(root)
    root.require_readable()
    settings, counted = _told(root)
    with root.shared_lock():
        progress("read", 0, 1)
        reached = read_target(root, settings)
        progress("read", 1, 1)
        jobs = digest_jobs(spark, settings, options, progress)
        side = SideEntries(
            "target", root.commit_log, reached.entries, settings.commit_log_file_bytes
        )
        result = jobs.run("digest", [side])["target"]
        with RecordReader(side) as records:
            topics = topics_of(result, records)
        problems: list[Problem] = [
            *reached.problems,
            *config_problems(root, topics, settings),
            *group_problems(root, None, topics),
            *overdue_problems(result.overdue),
            *complaint_problems(result, side),
        ]
    readable = int(result.buckets[:, BUCKET_COUNT].sum())
    return VerifyReport(
        converted=min(readable, counted),
        missing=max(0, counted - readable),
        unexpected=max(0, readable - counted) + unreadable(result),
        different=0,
        has_source=False,
        problems=tuple(problems),
    )


def require_made(target: Path) -> None:
    """Raise SourceError for a store that ``verify_alone`` has nothing to hold against."""
    root = StoreRoot(target)
    refuse_unfinished(root)
    root.require_readable()
    _told(root)


def _told(root: StoreRoot) -> tuple[ConversionSettings, int]:
    """How the store was made, and how many messages its maker has counted."""
    if is_present(root.own / CONVERSION_NAME):
        return read_settings(root), _number(read_marker(root), "converted", root)
    path = root.own / WRITTEN_NAME
    content = read_small_file(path)
    if content is None and was_converted_in_place(root):
        raise SourceError(
            f"{root.path}: was {IN_PLACE_TOLD} `delaywheel check {shell_word(str(root.path))}`"
        )
    if content is None:
        raise SourceError(
            f"{root.path}: was not converted or written from a table, so nothing says how many"
            f" messages should be in it; whether all that is in it will be delivered tells"
            f" `delaywheel check {shell_word(str(root.path))}`"
        )
    try:
        facts: dict[str, Any] = json.loads(content)
        made = TargetSettings(**facts["settings"])
        now_ms = int(facts["now_ms"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFieldError(f"not the report of a write: {error!r}", path=path) from error
    settings = ConversionSettings(
        now_ms=now_ms,
        precision_ms=made.precision_ms,
        roll_window_slots=made.roll_window_slots,
        **{name: getattr(made, name) for name in _SIZES},
    )
    return settings, _number(facts, "written", root)


def _number(facts: dict[str, Any], name: str, root: StoreRoot) -> int:
    value = facts.get(name)
    if not isinstance(value, int) or value < 0:
        raise BadFieldError(f"{name} is no count", path=root.own, found=repr(value)[:64])
    return value
