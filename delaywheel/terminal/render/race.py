# SPDX-License-Identifier: Apache-2.0
"""A race as text for people: the answer first, then a column an engine, then what differed."""

from collections.abc import Iterator

from rich.table import Table

from compare.report.results import FirstDifference, RaceResults
from compare.report.rows import Cell, figure_rows
from compare.report.verdict import how_judged, put_how, verdict, what_was_asked
from delaywheel.terminal.render.text import add_row, new_table
from message_store.base.printable import counted, duration, iso_time


def race_lines(results: RaceResults) -> Iterator[str | Table]:
    """``compare``."""
    yield from head_lines(results)
    yield race_table(results)
    yield from tail_lines(results)


def head_lines(results: RaceResults) -> Iterator[str]:
    """The answer, and what was asked."""
    for number, sentence in enumerate(verdict(results)):
        yield sentence if number else sentence[:1].upper() + sentence[1:]
    yield what_was_asked(results)
    if judged := how_judged(results):
        yield judged


def race_table(results: RaceResults) -> Table:
    """A row a figure, a column an engine that ran; in brackets the least and the most of rounds."""
    ran = [engine for engine in results.engines if engine.unavailable is None]
    table = new_table(["", *(engine.name for engine in ran)])
    for row in figure_rows(ran, put_how(results)) if ran else ():
        add_row(table, row.title.replace("… ", "  "), *map(_cell, row.cells))
    return table


def _cell(cell: Cell) -> str:
    return f"{cell.text} ({cell.range})" if cell.range else cell.text


def tail_lines(results: RaceResults) -> Iterator[str]:
    """Who could not run, what went wrong on purpose, what the engines did differently, notes."""
    for engine in results.engines:
        if engine.unavailable is not None and not engine.has_failed:
            yield f"{engine.name} did not run: {engine.unavailable}"
        for fault in engine.faults:
            yield f"{engine.name}: {fault.kind} after {duration(fault.at_ms)}: {fault.answer}"
        for note in engine.notes:
            yield f"{engine.name}: {note}"
    if results.first_difference is not None:
        yield from _difference_lines(results.first_difference)


def _difference_lines(difference: FirstDifference) -> Iterator[str]:
    yield f"first difference ({difference.kind}; {counted(difference.messages, 'message')}):"
    yield (
        f"  message {difference.number} for {difference.topic},"
        f" put at {iso_time(difference.arrival_ms)}, asked for {iso_time(difference.asked_ms)}"
    )
    for name, times in difference.engines.items():
        promised = (
            "not taken" if times.promised_ms is None else f"promised {iso_time(times.promised_ms)}"
        )
        came = ", ".join(iso_time(time_ms) for time_ms in times.delivered_ms) or "never"
        yield f"  {name}: {promised}, delivered {came}"
