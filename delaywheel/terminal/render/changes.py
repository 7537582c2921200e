# SPDX-License-Identifier: Apache-2.0
"""Changes of a store in place, as lines for people: what moves, what it means, what to do next."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
from rich.table import Table

from delaywheel.terminal.render.text import conversion_table, count, level_name, quarantine_lines
from message_store.base.printable import counted, iso_time, shell_word, size, when

if TYPE_CHECKING:
    from migrate.changes.retire import RetireReport
    from migrate.changes.undo import RollbackReport
    from migrate.in_place.plan import InPlaceReport


def in_place_head(report: "InPlaceReport") -> Iterator[str]:
    """What was, or would be, converted."""
    conversion = report.conversion
    converted, pending = conversion.total("converted"), conversion.total("pending")
    what = f"{converted:,} of {counted(pending, 'pending message')}"
    as_of = f"as of {iso_time(conversion.now_ms)}"
    yield {
        "planned": f"{conversion.source}: {what} would be converted in place, {as_of}",
        "unfinished": f"{conversion.source}: a run was stopped that converts {what}, {as_of}",
        "nothing to do": f"{conversion.source}: nothing waits in the levels that were asked for",
    }.get(report.state, f"{conversion.source}: {what} converted in place, {as_of}")


def in_place_lines(report: "InPlaceReport", clock_ms: int) -> Iterator[str | Table]:
    """``convert --in-place``."""
    yield from in_place_head(report)
    yield conversion_table(report.conversion)
    yield from in_place_facts(report)
    yield ""
    yield from in_place_next(report, clock_ms)


def in_place_facts(report: "InPlaceReport") -> Iterator[str]:
    """Where it goes, and where the levels stand afterwards."""
    if report.state == "nothing to do":
        return
    added = report.log_to - report.log_from
    yield f"commit log: from {count(report.log_from)} to {count(report.log_to)} ({size(added)})"
    entries = f"from {count(report.queue_from)} to {count(report.queue_to)}"
    yield f"queue of the timer topic: {entries}"
    delays = {level.level: level for level in report.conversion.levels}
    for level, to_offset in sorted(report.offsets.items()):
        level_report = delays[level]
        name = level_name(level, level_report.delay_ms)
        yield f"offset of {name}: from {count(level_report.from_offset)} to {count(to_offset)}"
    if report.backup is not None:
        yield f"the small files as they were: {report.backup}"
    conversion_to_backup = attrs.evolve(
        report.conversion, target=report.backup or "the backup that will be made"
    )
    yield from quarantine_lines(conversion_to_backup)


def in_place_next(report: "InPlaceReport", clock_ms: int) -> Iterator[str]:
    """What an operator does next, and must not do."""
    store = shell_word(report.conversion.source)
    yield "What next"
    if report.state == "nothing to do":
        yield "  nothing was written, and nothing has to be"
        return
    if report.state == "planned":
        yield "  nothing was written; the same command with --execute does it"
    elif report.state == "unfinished":
        yield "  start no broker now: it would deliver these messages twice, from levels and wheel"
        yield "  the same command with --execute finishes it"
        yield f"  or undo it:  delaywheel rollback {store} --execute"
        return
    yield "  the broker (5.x, with its wheel on) places the messages when it starts; levels that do"
    yield "  not move go on as before; an old 4.x broker would deliver none of what was converted"
    yield "  settings that it needs:"
    yield from (f"    {key}={value}" for key, value in report.conversion.broker_conf.items())
    if report.conversion.open_before_ms is not None:
        yield f"  start it before {when(report.conversion.open_before_ms, clock_ms)}"
    yield "  replicas of this broker have to be copied from this store again"
    if report.state != "planned":
        yield "  until a broker has written to it, it can be undone:"
        yield f"    delaywheel rollback {store} --execute"


def retirement_lines(report: "RetireReport") -> Iterator[str]:
    """``retire``."""
    if report.state == "nothing to do":
        yield f"{report.source}: all that {report.target} has is already skipped"
    else:
        verb = "would move" if report.state == "planned" else "moved"
        yield (
            f"{report.source}: {counted(len(report.levels), 'level')} {verb} past"
            f" {counted(report.converted, 'message')} that {report.target} has"
        )
    for level in report.levels:
        offsets = f"from {count(level.from_offset)} to {count(level.to_offset)}"
        more = [
            f"{getattr(level, name):,} {name.replace('_', ' ')}"
            for name in ("converted", "quarantined", "already_delivered", "neutral", "expired")
            if getattr(level, name)
        ]
        yield f"offset of {level_name(level.level, level.delay_ms)}: {offsets} ({', '.join(more)})"
    for number, pending in sorted(report.stays.items()):
        left = counted(pending, "message")
        yield f"level {number} stays: {left} that a broker still delivers from here"
    if report.backup is not None:
        yield f"the offsets as they were: {report.backup}"
    if report.state == "planned":
        yield "nothing was written; the same command with --execute does it"
    if report.state == "done":
        yield f"undo it:  delaywheel rollback {shell_word(report.source)} --execute"


def rollback_lines(report: "RollbackReport") -> Iterator[str]:
    """``rollback``."""
    if report.kind is None or report.now_ms is None:
        yield f"{report.store}: there is no change to undo"
        return
    is_plan = report.state == "planned"
    verb = "would be undone" if is_plan else "was undone"
    yield f"{report.store}: {report.kind} of {iso_time(report.now_ms)} ({report.was}) {verb}"
    if report.log_to != report.log_from:
        yield f"commit log: ends at {count(report.log_from)} again, not at {count(report.log_to)}"
    yield (
        f"{counted(report.messages, 'message waits', 'messages wait')} in"
        f" {counted(len(report.offsets), 'level')} again, as before; the"
        f" small files are those of {report.backup}"
    )
    if is_plan:
        yield "nothing was written; the same command with --execute does it"
