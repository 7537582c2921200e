# SPDX-License-Identifier: Apache-2.0
"""Whether an earlier run has done a conversion already, so that the same command need not be a
refusal: a script may give it until it succeeds.
"""

import json

import attrs

from message_store.base.errors import FormatError, PlanError, SourceError, TargetError
from message_store.files.small_files import is_present, read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from migrate.plan.stored_plan import request_of
from migrate.report.bad_record_list import LISTED, read_bad_records
from migrate.report.conversion_marker import CONVERSION_NAME
from migrate.report.report import ConversionReport
from migrate.settings import ConvertOptions
from migrate.write.owner import tidy_up
from migrate.write.staging import Staging, target_errors


def finished_before(options: ConvertOptions) -> ConversionReport | None:
    """The report of an earlier run that has finished this conversion; None where none has.

    Raises PlanError when the finished target is of something else, FormatError for a damaged
    report, SourceError for a source and TargetError for a target that cannot be read.
    """
    target = StoreRoot(options.target)
    path = target.own / CONVERSION_NAME
    try:
        content = read_small_file(path)
    except SourceError as error:
        raise TargetError(str(error)) from error
    if content is None:
        return None
    try:
        facts = json.loads(content)
        report = ConversionReport.from_json(facts)
        listed = int(facts["conversion"].get(LISTED, 0))
        before = report.request
        now_ms, table = before["now_ms"], DelayLevels.parse(before["level_table"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError("not the report of a conversion", path=path) from error
    asked = request_of(
        options,
        now_ms if options.now_ms is None else options.now_ms,
        options.level_table or table,
    )
    if not is_present(options.source):  # deleted since, as it may be: its log says nothing now
        asked["source_log"] = before.get("source_log")
    if changed := [name for name, value in asked.items() if before.get(name) != value]:
        raise PlanError(
            f"{target.path}: already holds a finished conversion of something else (differs in:"
            f" {', '.join(changed)}); choose another directory"
        )
    staging = Staging(target)
    with target_errors(target.path):
        is_left = staging.path.exists()
    if is_left:
        tidy_up(staging, options.access)  # of a run that was stopped at its very end
    if listed:
        report = attrs.evolve(report, bad_records=read_bad_records(target, listed, None))
    return attrs.evolve(report, source=str(options.source), target=str(options.target))
