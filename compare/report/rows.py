# SPDX-License-Identifier: Apache-2.0
"""The figures of a race as rows of a table: one list for the terminal and for the HTML page."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from compare.report.results import EngineResult, Lateness, Round
from compare.report.verdict import NOTHING, opening_rows, same_speed, same_time
from message_store.base.printable import duration, size

_OF_EACH_ROUND = {("lateness_after_promise_ms", "p999"): "after_promise_p999_ms"}
"""The latenesses that a round keeps."""
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


def figure_rows(ran: Sequence[EngineResult], how: str) -> Iterator[Row]:
    """Every figure of the engines that ran, for the terminal and for the page; ``how`` they were
    put.
    """
    yield _speeds(ran, f"put a second, {how}", "time inside the engine", "put_per_second")
    yield _speeds(ran, "drained a second", "while it delivered", "drain_per_second")
    yield _speeds(ran, "in and out a second", "all time inside", "through_per_second")
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
        failed = any(engine.put_failures for engine in ran)
        why = "refused, some of them for load" if failed else "due later than it can keep"
        yield Row("not taken", why, tuple(refused))
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
        Cell(
            NOTHING if value is None else duration(value),
            _range(ran[number].rounds, _OF_EACH_ROUND.get((field, name), ""), duration),
            is_best=number in best,
        )
        for number, value in enumerate(values)
    ]
    return Row(title, "", tuple(cells))


def _best(
    ran: Sequence[EngineResult],
    values: Sequence[float | None],
    pick: Callable[..., int],
    is_same: Callable[[int, int], bool],
) -> set[int]:
    """The best and whoever is as good; nobody if nobody is worse. Wrong engines have no merit."""
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
    values = [value for each in rounds if (value := getattr(each, name, None)) is not None]
    if len(values) < 2 or text(min(values)) == text(max(values)):
        return ""
    return f"{text(min(values))} – {text(max(values))}"
