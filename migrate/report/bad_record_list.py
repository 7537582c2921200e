# SPDX-License-Identifier: Apache-2.0
"""The list of a target's bad records: ``delaywheel/bad-records.jsonl``, a line for each.

They are not in the report, which everybody reads as a whole: a lost log file makes millions of
them. The list says nothing of what is in a record, so that whoever may read the report may read it.
"""

import json
from collections.abc import Iterator

import attrs

from message_store.base.errors import BadFieldError, SourceError
from message_store.files.small_files import read_lines, replace_file
from message_store.files.store_root import StoreRoot
from migrate.report.report import BadRecord, ConversionReport

LIST_NAME = "bad-records.jsonl"
LISTED = "bad_records_listed"
"""A key under ``conversion``: how many lines there are; older reports have the records."""

SOURCE_NUMBER = "source_number"
"""A key under ``conversion``: of one source of several, which of the lines are its own."""


def write_bad_records(target: StoreRoot, report: ConversionReport) -> None:
    """List what a conversion could not convert, durably; nothing where that is nothing. Raises
    TargetError.
    """
    lines = [
        json.dumps([number, *attrs.astuple(record)])
        for number, source in enumerate(report.sources or (report,))
        for record in source.bad_records
    ]
    if lines:
        replace_file(target.own / LIST_NAME, "\n".join([*lines, ""]).encode())


def read_bad_records(target: StoreRoot, count: int, number: int | None) -> tuple[BadRecord, ...]:
    """The ``count`` bad records of one source, or of all where ``number`` is None.

    Raises SourceError for a list that cannot be read, FormatError for one that is damaged.
    """
    if not count:
        return ()
    path = target.own / LIST_NAME
    found = tuple(record for source, record in _lines(target) if number is None or source == number)
    if len(found) != count:
        raise BadFieldError("lines are missing", path=path, expected=count, found=len(found))
    return found


def _lines(target: StoreRoot) -> Iterator[tuple[int, BadRecord]]:
    path = target.own / LIST_NAME
    there = read_lines(path)
    if there is None:
        raise SourceError(f"{path}: is gone; it lists what was not converted")
    for line in there:
        try:
            number, level, queue_offset, commit_log_offset, reason = json.loads(line)
            record = BadRecord(int(level), int(queue_offset), int(commit_log_offset), str(reason))
        except (ValueError, TypeError, RecursionError) as error:
            raise BadFieldError("not a quarantined entry", path=path) from error
        yield int(number), record
