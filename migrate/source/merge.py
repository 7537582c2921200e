# SPDX-License-Identifier: Apache-2.0
"""Several sources in one target: which go together, and how their reports become one.

In the target the messages of a source follow those of the source named before it. A source's report
says from which ``target_queue_offset`` on. Some of the last messages of all take the places of bad
ones: then it lists ``target_runs``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from message_store.base.errors import OptionsError
from migrate.report.report import COUNT_NAMES, BadRecord, ConversionReport, LevelReport
from migrate.settings import ConvertOptions, TargetSettings
from migrate.source.members import find_replicas, same_broker

_OF_A_SOURCE = {
    "source", "level_table", "after_crash", "offsets", "only_levels", "only_topics", "levels_only",
    "whole_log",
}  # fmt: skip
"""Options of a single source; all others are the same for all sources of a target."""


def require_mergeable(members: Sequence[ConvertOptions]) -> None:
    """Raise OptionsError for sources that cannot be in one target: one given twice, copies of one
    broker's data, and other options than those of the first where a target has only one.
    """
    named: dict[Path, Path] = {}
    for options in members:
        end = options.source.resolve()
        if end in named:
            raise OptionsError(f"{options.source}: named twice (also as {named[end]})")
        named[end] = options.source
    first = members[0]
    for other in members[1:]:
        for name, one, two in _compared_options(first, other):
            if one != two:
                raise OptionsError(
                    f"{first.source} and {other.source} cannot be in one target: {name} is {one}"
                    f" for the one and {two} for the other"
                )
    sources = [options.source for options in members]
    for group in find_replicas(sources):
        raise same_broker(sources, group)


def _compared_options(
    first: ConvertOptions, other: ConvertOptions
) -> Iterator[tuple[str, Any, Any]]:
    for field in attrs.fields(TargetSettings):
        yield field.name, getattr(first.settings, field.name), getattr(other.settings, field.name)
    for field in attrs.fields(ConvertOptions):
        if field.name not in _OF_A_SOURCE:
            yield field.name, getattr(first, field.name), getattr(other, field.name)


def merged_request(requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a continued run must have in common: of one source, or of all by number."""
    if len(requests) == 1:
        return requests[0]
    sources = {f"source {number}": request for number, request in enumerate(requests, 1)}
    return {"to": requests[0]["to"], **sources}


def named_records(records: Iterable[BadRecord], source: Path, source_count: int) -> list[BadRecord]:
    """The bad records of one source; of several sources with its path in the reason."""
    if source_count == 1:
        return list(records)
    return [attrs.evolve(record, reason=f"{source}: {record.reason}") for record in records]


def merged_report(reports: Sequence[ConversionReport], request: dict[str, Any]) -> ConversionReport:
    """The sum of the reports of all sources, with each of them in ``sources``."""
    first, count = reports[0], len(reports)
    bad = [named_records(report.bad_records, Path(report.source), count) for report in reports]
    left_out, topics = Counter[str](), Counter[str]()
    for report in reports:
        left_out.update(report.left_out_topics)
        topics.update(report.topics)
    due_min = [report.due_min_ms for report in reports if report.due_min_ms is not None]
    due_max = [report.due_max_ms for report in reports if report.due_max_ms is not None]
    return attrs.evolve(
        first,
        source=", ".join(report.source for report in reports),
        level_table=_shared([report.level_table for report in reports]),
        offsets_source=_shared([report.offsets_source for report in reports]),
        levels=_summed(reports),
        due_min_ms=min(due_min, default=None),
        due_max_ms=max(due_max, default=None),
        bytes_read=sum(report.bytes_read for report in reports),
        bytes_written=sum(report.bytes_written for report in reports),
        bad_records=tuple(record for records in bad for record in records),
        broker_conf=max(
            (report.broker_conf for report in reports),
            key=lambda conf: int(conf.get("maxMessageSize", 0)),
        ),
        warnings=tuple(f"{r.source}: {said}" for r in reports for said in r.warnings),
        request=request,
        left_out_topics=dict(left_out),
        topics=dict(sorted(topics.items())),
        target_queue_offset=0,
        target_runs=(),
        sources=tuple(reports),
    )


def _shared(texts: Sequence[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else "; ".join(texts)


def _summed(reports: Sequence[ConversionReport]) -> tuple[LevelReport, ...]:
    """The accounting of each level; a row for each delay where sources differ in it."""
    sums: dict[tuple[int, int], LevelReport] = {}
    for level in (level for report in reports for level in report.levels):
        key = level.level, level.delay_ms
        before = sums.get(key)
        added = {
            name: getattr(level, name) + (getattr(before, name) if before else 0)
            for name in ("from_offset", "to_offset", "before_queue", *COUNT_NAMES)
        }
        sums[key] = attrs.evolve(level, **added)
    return tuple(sums[key] for key in sorted(sums))
