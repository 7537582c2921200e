# SPDX-License-Identifier: Apache-2.0
"""Whether a directory is, or can become, the target of a conversion, as far as a glance tells."""

import json
from pathlib import Path
from typing import Any

import attrs

from message_store.base.errors import FormatError, OptionsError, PlanError, SourceError, TargetError
from message_store.base.printable import shell_word
from message_store.files.small_files import (
    is_directory,
    is_ordinary_file,
    is_present,
    read_small_file,
)
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.reading.unfinished_change import refuse_unfinished_change
from migrate.changes.note import IN_PLACE, changes_of
from migrate.plan.stored_plan import request_of
from migrate.report.marker import CONVERSION_NAME, LISTED, read_bad_records, read_settings
from migrate.report.report import ConversionReport
from migrate.report.whole_target import require_whole
from migrate.settings import ConvertOptions
from migrate.write.owner import tidy_up
from migrate.write.publishing import signs_of_use
from migrate.write.staging import Staging, target_errors

WRITTEN_NAME = "written.json"
"""The marker of a store that was written from a table of messages."""

UNFINISHED = "an unfinished conversion; run the same convert command again"
UNFINISHED_WRITE = "an unfinished write of a table; write it again"
UNFINISHED_USED = (
    "an unfinished conversion or write, on which a broker or an engine was started ({signs} left);"
    " do it again to another directory"
)


def in_place_text(store: StoreRoot) -> str:
    """Why a store that was converted in place cannot be verified, and what can be done."""
    return (
        "was converted in place, so that nothing is left to compare it with; run `delaywheel check"
        f" {shell_word(str(store.path))}` to find out whether everything in it will be delivered"
    )


def unfinished_reason(store: StoreRoot) -> str | None:
    """Why a target is unfinished: its conversion or write was stopped. None for other stores.

    Raises SourceError for a store that may not be looked into.
    """
    is_whole = is_present(_marker(store)) or is_present(store.own / WRITTEN_NAME)
    staging = Staging(store)
    if is_whole or not is_directory(staging.path):
        return None
    if used := signs_of_use(store):
        return UNFINISHED_USED.format(signs=", ".join(used))
    is_write = is_directory(staging.path / "writes") and not is_present(staging.plan_file)
    return UNFINISHED_WRITE if is_write else UNFINISHED


def refuse_unfinished(store: StoreRoot) -> None:
    """Raise SourceError for an unfinished target, and for an unfinished change in place."""
    if reason := unfinished_reason(store):
        raise SourceError(f"{store.path}: {reason}")
    refuse_unfinished_change(store)


def require_pair(source: Path, target: Path) -> None:
    """Raise unless these can be the two sides of a conversion.

    OptionsError for one directory given twice; SourceError for a side that is no store, and for a
    target that is unfinished or that no conversion made.
    """
    if is_present(source) and source.resolve() == target.resolve():
        raise OptionsError(f"{target}: given twice; SOURCE and TARGET are two stores")
    ours, theirs = StoreRoot(source), StoreRoot(target)
    ours.require_readable()
    try:
        refuse_unfinished(theirs)
        theirs.require_readable()
    except SourceError as error:
        raise type(error)(f"the target {error}") from error
    if not is_present(_marker(theirs)):
        why = ""
        if is_present(_marker(ours)):
            why = f"; {source} is one: the order is SOURCE TARGET"
        elif is_present(theirs.own / WRITTEN_NAME):
            how = f"delaywheel verify {shell_word(str(target))}"
            why = f"; it was written from a table, give it alone: `{how}`"
        elif was_converted_in_place(theirs):
            why = f"; it {in_place_text(theirs)}"
        raise SourceError(
            f"the target {theirs.path} is not the target of a finished conversion{why}"
        )


def was_converted_in_place(store: StoreRoot) -> bool:
    """Whether a conversion in place moved its messages, without a rollback since."""
    return any(change.kind == IN_PLACE for change in changes_of(store))


def refuse_file(target: Path) -> None:
    """Raise TargetError for a target that is a file, or that may not be read."""
    try:
        is_file = is_ordinary_file(target)
    except SourceError as error:
        raise TargetError(str(error)) from error
    if is_file:
        raise TargetError(f"{target}: is a file, not a directory")


def _marker(store: StoreRoot) -> Path:
    return store.own / CONVERSION_NAME


def finished_before(*members: ConvertOptions) -> ConversionReport | None:
    """The report of an earlier run that has finished this conversion, of one source or of several
    into one target; None where none has.

    Raises PlanError when the finished target is of something else, FormatError for a damaged
    report, SourceError for a source that cannot be read, and for a target that has lost files
    since, TargetError for one that cannot be read.
    """
    options = members[0]
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
        requests = [
            (each.request, each.request["now_ms"], DelayLevels.parse(each.request["level_table"]))
            for each in report.sources or (report,)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError("not the report of a conversion", path=path) from error
    changed = [] if len(requests) == len(members) else ["sources"]
    for each, before in zip(members, requests, strict=False):
        changed += _changed(each, *before)
    if changed:
        raise PlanError(
            f"{target.path}: already holds a finished conversion of something else (differs in:"
            f" {', '.join(dict.fromkeys(changed))}); choose another directory"
        )
    staging = Staging(target)
    with target_errors(target.path):
        is_left = staging.path.exists()
    if is_left:
        tidy_up(staging, options.access)  # of a run that was stopped at its very end
    if not signs_of_use(target):
        require_whole(target, read_settings(target), int(facts.get("converted", 0)))
    if listed:
        report = attrs.evolve(report, bad_records=read_bad_records(target, listed, None))
    source = report.source if report.sources else str(options.source)
    return attrs.evolve(report, source=source, target=str(options.target))


def _changed(
    options: ConvertOptions, before: dict[str, Any], now_ms: int, table: DelayLevels
) -> list[str]:
    """What of an earlier request is asked otherwise now; ``now_ms`` and ``table`` are its own."""
    asked = request_of(
        options, now_ms if options.now_ms is None else options.now_ms, options.level_table or table
    )
    if not is_present(options.source):  # deleted since, as it may be: its log says nothing now
        asked["source_log"] = before.get("source_log")
    return [name for name, value in asked.items() if before.get(name) != value]
