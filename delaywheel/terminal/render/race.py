# SPDX-License-Identifier: Apache-2.0
"""A race as text for people: the answer first, then a column an engine, then what differed."""

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from compare.report.results import EngineResult, FirstDifference, Lateness, RaceResults
from compare.report.verdict import how_judged, opening_rows, put_how, verdict, when_due
from delaywheel.terminal.render.text import add_row, new_table
from message_store.base.printable import counted, duration, iso_time, size
from message_store.format.delay_levels import format_delay

_ABSENT = "–"


def race_lines(results: RaceResults) -> Iterator[str | Table]:
    """``compare``."""
    yield from head_lines(results)
    yield race_table(results)
    yield from tail_lines(results)


def head_lines(results: RaceResults) -> Iterator[str]:
    """The answer, and what was asked."""
    for number, sentence in enumerate(verdict(results)):
        yield sentence if number else sentence[:1].upper() + sentence[1:]
    facts = results.workload
    source = f" of {facts.source}" if facts.source else ""
    pace = "all at once" if not facts.arrival_span_ms else f"within {_span(facts.arrival_span_ms)}"
    yield (
        f"{facts.name}{source}: {counted(facts.messages, 'message')} of {size(facts.body_bytes)},"
        f" put {pace}, {when_due(facts, _span)}; {results.clock} clock, seed {facts.seed}"
    )
    if judged := how_judged(results):
        yield judged


def _span(length_ms: int) -> str:
    return duration(length_ms) if length_ms % 1_000 else format_delay(length_ms)


def race_table(results: RaceResults) -> Table:
    """A row a figure, a column an engine that ran."""
    ran = [engine for engine in results.engines if engine.unavailable is None]
    table = new_table(["", *(engine.name for engine in ran)])
    for title, figure in _figures(ran, put_how(results)) if ran else ():
        add_row(table, title, *(figure(engine) for engine in ran))
    for title, _hint, cells in opening_rows(ran):
        add_row(table, title.replace("… ", "  "), *cells)
    return table


_Figure = Callable[[EngineResult], str]


def _figures(ran: Sequence[EngineResult], how: str) -> Iterator[tuple[str, _Figure]]:
    yield f"put a second, {how}", lambda engine: _rate(engine.put_per_second)
    yield "drained a second", lambda engine: _rate(engine.drain_per_second)
    yield "in and out a second", lambda engine: _rate(engine.through_per_second)
    yield "woken to deliver", lambda engine: f"{engine.woken:,}" if engine.woken else _ABSENT
    yield "late, by the time asked for: half", lambda engine: _late(engine.lateness_ms, "p50")
    yield "  90 of 100", lambda engine: _late(engine.lateness_ms, "p90")
    yield "  99 of 100", lambda engine: _late(engine.lateness_ms, "p99")
    yield "  999 of 1000", lambda engine: _late(engine.lateness_ms, "p999")
    yield "  the latest", lambda engine: _late(engine.lateness_ms, "max")
    yield (
        "late, by the promise: 99 of 100",
        lambda engine: _late(engine.lateness_after_promise_ms, "p99"),
    )
    yield "  the latest", lambda engine: _late(engine.lateness_after_promise_ms, "max")
    yield "early", lambda engine: f"{engine.early:,}"
    yield "missing", lambda engine: f"{engine.missing:,}"
    yield "repeated", lambda engine: f"{engine.duplicates:,}"
    if any(engine.not_taken for engine in ran):
        yield "not taken", lambda engine: f"{engine.not_taken:,}"
    yield "processor, of one core", lambda engine: f"{engine.cpu_percent:,.0f} %"
    yield "memory, at most", lambda engine: size(engine.peak_memory_bytes)
    yield "  of it shared with no file", lambda engine: size(engine.peak_private_bytes)
    yield "disk", lambda engine: size(engine.bytes_on_disk)


def _rate(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:,.0f}"


def _late(lateness: Lateness | None, name: str) -> str:
    return _ABSENT if lateness is None else duration(getattr(lateness, name))


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
