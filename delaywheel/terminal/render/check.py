# SPDX-License-Identifier: Apache-2.0
"""Findings and quarantined records as lines for people."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from delaywheel.terminal.render.text import add_row, count, new_table
from message_store.base.printable import counted, iso_time, size, span, when
from message_store.interface.delay_store import Severity

if TYPE_CHECKING:
    from migrate.check.store import CheckReport
    from migrate.quarantine.kept import Quarantine
    from migrate.quarantine.restore import RestoreReport

_NAMES = {Severity.ERROR: "ERROR", Severity.WARNING: "warning", Severity.INFO: "info"}


def check_lines(report: "CheckReport") -> Iterator[str]:
    """Every finding, and what they come to."""
    if report.is_running:
        effect = "results may change while it is being read"
        yield f"{report.path}: a broker or a program has this store open; {effect}"
    for each in report.findings:
        yield f"{_NAMES[each.severity]} {each.code}: {each.where}: {each.problem}"
        yield f"  what happens: {each.effect}"
        yield f"  what to do: {each.remedy}"
    if report.findings:
        yield ""
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    yield (
        f"{report.path}: errors {errors:,}, warnings {warnings:,}, as of {iso_time(report.now_ms)}"
    )
    yield from _load_lines(report)


def _load_lines(report: "CheckReport") -> Iterator[str]:
    load = report.load
    if load is None or not load.waiting:
        return
    waiting = f"{counted(load.waiting, 'message waits', 'messages wait')}, {load.overdue:,} overdue"
    if load.rolling:
        waiting += f", {load.rolling:,} beyond the roll window"
    if load.peak_ms is not None:
        peak = when(load.peak_ms, report.now_ms)
        waiting += f"; the most in one second: {load.peak_messages:,}, {peak}"
    yield waiting
    if load.lateness_ms >= 1000:
        yield f"at {load.capacity:,} a second the last one is {span(load.lateness_ms)} late"


def account_table(quarantine: "Quarantine") -> Table:
    """The accounts of the conversion: nothing is missing."""
    names = ("level", "pending", "converted", "skipped", "quarantined", "restored since")
    table = new_table(names)
    for each in quarantine.accounts():
        numbers = (each.pending, each.converted, each.skipped, each.quarantined, each.put_back)
        doubt = "" if each.adds_up else " (does not add up)"
        add_row(table, f"{each.level}{doubt}", *map(count, numbers))
    return table


def quarantine_lines(
    quarantine: "Quarantine", in_the_way: Mapping[str, str]
) -> Iterator[str | Table]:
    """``quarantine``: each record, and the counts of the conversion."""
    if not quarantine.records:
        yield f"{quarantine.directory.parent.parent}: nothing was quarantined here"
        yield account_table(quarantine)
        return
    put_back = len(quarantine.records) - len(quarantine.waiting)
    yield (
        f"{quarantine.directory}: {counted(len(quarantine.records), 'record was', 'records were')}"
        f" quarantined, {put_back:,} of them restored"
    )
    for record in quarantine.records:
        position = f"level {record.level}, queue offset {record.queue_offset}"
        yield f"{record.file}: {position}, {size(len(record.raw))}: {record.reason}"
        if (note := quarantine.done.get(record.file)) is not None:
            at = f"at log offset {note.commit_log_offset}, due {iso_time(note.due_ms)}"
            yield f"  restored into {note.store} {at}"
        elif reason := in_the_way.get(record.file):
            yield f"  cannot be restored as it is: {reason}"
        else:
            due = "" if record.due_ms is None else f", due {iso_time(record.due_ms)}"
            yield f"  can be restored{due}"
    yield account_table(quarantine)


def put_back_lines(report: "RestoreReport") -> Iterator[str]:
    """What ``put-back`` restored, or would."""
    number, into = len(report.put_back), f"restored into the {report.engine}"
    yield {
        "planned": f"{report.store}: {counted(number, 'record')} would be {into}",
        "done": f"{report.store}: {counted(number, 'record was', 'records were')} {into}",
    }.get(report.state, f"{report.store}: nothing to restore")
    for row in report.put_back:
        comes = row.due_ms if row.promised_ms is None else row.promised_ms
        where = f"{row.topic}, queue {row.queue_id}, at {iso_time(comes)}"
        yield f"  {row.file}: {where}"
    for file in report.before:
        yield f"  {file}: was restored before"
    for file, reason in report.in_the_way.items():
        yield f"  {file}: stays here: {reason}"
    if report.state == "planned":
        yield "nothing was written; --execute applies the plan"
