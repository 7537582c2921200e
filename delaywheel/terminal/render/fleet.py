# SPDX-License-Identifier: Apache-2.0
"""What became of many stores, as one table and some lines for people."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from delaywheel.terminal.render.text import (
    ALWAYS_SHOWN,
    SOMETIMES_SHOWN,
    add_row,
    count,
    expired_warnings,
    new_table,
    refused_lines,
    title,
)
from message_store.base.errors import BadRecordsError
from message_store.base.printable import counted, printable, when

if TYPE_CHECKING:
    from migrate.fleet import FleetEntry


def fleet_table(entries: "Sequence[FleetEntry]", clock_ms: int) -> Table:
    """A row a store, and their sum; counts that are 0 everywhere left out."""
    reports = [entry.report for entry in entries if entry.report is not None]
    shown = [
        *ALWAYS_SHOWN,
        *(name for name in SOMETIMES_SHOWN if any(report.total(name) for report in reports)),
    ]
    table = new_table(["target", "state", *map(title, shown), "open before"])
    for entry in entries:
        report = entry.report
        if report is None:
            add_row(table, entry.options.target.name, entry.state, *("" for _ in shown), "")
            continue
        open_ms = report.open_before_ms
        add_row(
            table,
            entry.options.target.name,
            entry.state,
            *(count(report.total(name)) for name in shown),
            "" if open_ms is None else when(open_ms, clock_ms),
        )
    table.add_section()
    sums = (count(sum(report.total(name) for report in reports)) for name in shown)
    add_row(table, "all", f"{len(reports)} of {len(entries)}", *sums, "")
    return table


def fleet_warnings(entries: "Sequence[FleetEntry]", clock_ms: int) -> Iterator[str]:
    """What was odd about each store that was converted now."""
    for entry in entries:
        report = entry.report
        if report is None:
            continue
        name = entry.options.target.name
        if entry.state == "converted":
            yield from (f"{name}: {warning}" for warning in report.warnings)
        yield from (f"{name}: {warning}" for warning in expired_warnings(report, clock_ms))


def fleet_failures(entries: "Sequence[FleetEntry]") -> Iterator[str]:
    """Why stores failed: a shared reason once; of bad records counted reasons, and the first."""
    failed: dict[tuple[str, int], list[FleetEntry]] = {}
    for entry in entries:
        if entry.error is not None:  # each store has bad records of its own
            own = id(entry) if isinstance(entry.error, BadRecordsError) else 0
            failed.setdefault((str(entry.error), own), []).append(entry)
    for (sentence, _), sharing in failed.items():
        entry = sharing[0]
        first, *others = map(printable, sentence.splitlines())
        names = ", ".join(printable(each.options.target.name) for each in sharing)
        label = f"{names}: "
        yield label + first.removeprefix(label)
        yield from (f"  {line}" for line in others)
        if isinstance(entry.error, BadRecordsError):
            yield from (f"  {line}" for line in refused_lines(list(entry.error.records)))  # type: ignore[arg-type]


def fleet_lines(entries: "Sequence[FleetEntry]", clock_ms: int) -> Iterator[str | Table]:
    """``convert`` of many stores."""
    yield fleet_table(entries, clock_ms)
    yield ""
    yield from fleet_next(entries)


def fleet_next(entries: "Sequence[FleetEntry]") -> Iterator[str]:
    """What an operator does next, and must not do."""
    reports = [entry.report for entry in entries if entry.report is not None]
    yield "What next"
    if any(entry.report is None for entry in entries):
        yield "  the same command skips finished stores and tries the others again"
    if not reports:
        return
    yield "  check each:  delaywheel verify SOURCE TARGET"
    yield "  settings that the broker of each target needs:  TARGET/delaywheel/broker.conf"
    yield "  open each before the time in the table: later, a broker no longer reads what was"
    yield "  due first, or deletes the log by its age"
    if skipped := sum(report.total("skipped") for report in reports):
        were = counted(skipped, "pending message was", "pending messages were")
        yield f"  {were} left out on purpose: what is left out waits only"
        yield "  in its source, do not throw that away"
    if any(report.total("converted") for report in reports):
        yield "  restarting an old broker would deliver its converted messages again"
