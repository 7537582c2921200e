# SPDX-License-Identifier: Apache-2.0
"""The report of a race as one HTML file that needs nothing beside it.

The template lies beside this module; sentences are those of ``verdict``, numbers those of the JSON.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from markupsafe import Markup

from compare.report.pictures import draw_lateness, draw_traffic, draw_usage
from compare.report.results import EngineResult, Lateness, RaceResults, Round
from compare.report.verdict import (
    NOTHING,
    opening_rows,
    put_how,
    same_speed,
    same_time,
    verdict,
    when_due,
)
from message_store.base.html_pages import html_environment
from message_store.base.printable import duration, iso_time, size
from message_store.files.small_files import replace_file

TEMPLATE = "race_report.html.jinja"
_SHARES = (("p50", "half"), ("p99", "99 %"), ("p999", "99.9 %"), ("max", "the latest"))


@attrs.frozen
class Cell:
    """A figure of one engine; ``range`` is that of all rounds, where there were several."""

    text: str
    range: str = ""
    is_best: bool = False
    is_wrong: bool = False


@attrs.frozen
class Row:
    """One figure of all engines that ran."""

    title: str
    hint: str
    cells: tuple[Cell, ...]


def render_report(results: RaceResults) -> str:
    """The HTML page of a race, whole: it loads nothing."""
    environment = html_environment("compare.report")
    environment.filters.update(iso=iso_time, duration=duration)
    ran = [engine for engine in results.engines if engine.unavailable is None]
    usage = [engine for engine in ran if engine.usage.at_ms]
    return environment.get_template(TEMPLATE).render(
        race=results,
        sentences=[text[:1].upper() + text[1:] for text in verdict(results)],
        when_due=when_due(results.workload),
        ran=ran,
        rows=list(_rows(ran, put_how(results))),
        faults=any(engine.faults for engine in ran),
        notes=_notes(ran),
        # Drawn from numbers and the names of engines.
        lateness=Markup(draw_lateness(ran)) if any(engine.delivered for engine in ran) else "",
        traffic=Markup(draw_traffic(ran)) if ran else "",
        usage=Markup(draw_usage(usage)) if usage else "",
    )


def write_report(results: RaceResults, path: Path) -> None:
    """Write the page of a race to ``path``. Raises TargetError."""
    replace_file(path, render_report(results).encode())


def _notes(ran: Sequence[EngineResult]) -> dict[str, list[str]]:
    """What to know of an engine, by the note: several may share one."""
    engines_of_note: dict[str, list[str]] = {}
    for engine in ran:
        for note in engine.notes:
            engines_of_note.setdefault(note, []).append(engine.name)
    return engines_of_note


# --- the table ------------------------------------------------------------------------------------


def _rows(ran: Sequence[EngineResult], how: str) -> Iterator[Row]:
    yield _speeds(ran, f"put a second, {how}", "time inside the engine", "put_per_second")
    yield _speeds(ran, "drained a second", "while it delivered", "drain_per_second")
    if any(engine.woken for engine in ran):
        woken = (f"{engine.woken:,}" if engine.woken else NOTHING for engine in ran)
        yield Row("woken to deliver", "times", tuple(map(Cell, woken)))
    for title, field in (
        ("late, by the time asked for", "lateness_ms"),
        ("late, by the promise", "lateness_after_promise_ms"),
    ):
        for name, share in _SHARES:
            yield _lateness(ran, f"{title}: {share}", field, name)
    for title, name in (("early", "early"), ("missing", "missing"), ("repeated", "duplicates")):
        yield _mistakes(ran, title, name)
    if any(engine.not_taken for engine in ran):
        refused = [Cell(f"{engine.not_taken:,}") for engine in ran]
        yield Row("not taken", "due later than it can keep", tuple(refused))
    yield _costs(ran, "processor", "of one core", "cpu_percent", lambda value: f"{value:,.0f} %")
    yield _costs(ran, "memory", "at most, mapped files too", "peak_memory_bytes", size)
    private = tuple(Cell(size(engine.peak_private_bytes)) for engine in ran)
    yield Row("… of it private", "shared with no file", private)
    yield _costs(ran, "disk", "at the end", "bytes_on_disk", size)
    for title, hint, texts in opening_rows(ran):
        yield Row(title, hint, tuple(map(Cell, texts)))


def _speeds(ran: Sequence[EngineResult], title: str, hint: str, name: str) -> Row:
    values = [getattr(engine, name) for engine in ran]
    best = _best(ran, values, max, lambda first, other: same_speed(ran[first], ran[other], name))
    cells = [
        Cell(
            NOTHING if value is None else f"{value:,.0f}",
            _range(engine.rounds, name, lambda each: f"{each:,.0f}"),
            is_best=number in best,
        )
        for number, (engine, value) in enumerate(zip(ran, values, strict=True))
    ]
    return Row(title, hint, tuple(cells))


def _lateness(ran: Sequence[EngineResult], title: str, field: str, name: str) -> Row:
    lateness: list[Lateness | None] = [getattr(engine, field) for engine in ran]
    values: list[Any] = [None if each is None else getattr(each, name) for each in lateness]
    best = _best(ran, values, min, lambda first, other: same_time(values[first], values[other]))
    cells = [
        Cell(NOTHING if value is None else duration(value), is_best=number in best)
        for number, value in enumerate(values)
    ]
    return Row(title, "", tuple(cells))


def _best(
    ran: Sequence[EngineResult],
    values: Sequence[float | None],
    pick: Callable[..., int],
    is_same: Callable[[int, int], bool],
) -> set[int]:
    """The best engine and whoever is as good, by number; nobody where nobody is worse.

    To be fast, or near, is no merit of an engine that did something wrong.
    """
    measured = [number for number, value in enumerate(values) if value is not None]
    right = [number for number in measured if ran[number].is_right]
    if not right:
        return set()
    best = pick(right, key=values.__getitem__)
    near = {number for number in right if number == best or is_same(best, number)}
    return near if len(near) < len(measured) else set()


def _mistakes(ran: Sequence[EngineResult], title: str, name: str) -> Row:
    counts = [getattr(engine, name) for engine in ran]
    return Row(title, "", tuple(Cell(f"{n:,}", is_wrong=n > 0) for n in counts))


def _costs(
    ran: Sequence[EngineResult], title: str, hint: str, name: str, text: Callable[[float], str]
) -> Row:
    cells = [Cell(text(getattr(engine, name)), _range(engine.rounds, name, text)) for engine in ran]
    return Row(title, hint, tuple(cells))


def _range(rounds: Sequence[Round], name: str, text: Callable[[float], str]) -> str:
    values = [value for each_round in rounds if (value := getattr(each_round, name)) is not None]
    if len(values) < 2 or text(min(values)) == text(max(values)):
        return ""
    return f"{text(min(values))} – {text(max(values))}"
