# SPDX-License-Identifier: Apache-2.0
"""The report of a race as one HTML file that needs nothing beside it.

The template lies beside this module; sentences are those of ``verdict``, numbers those of the JSON.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from compare.report.results import EngineResult, LatenessCurve, RaceResults
from compare.report.rows import figure_rows
from compare.report.verdict import (
    how_judged,
    put_how,
    verdict,
    what_was_asked,
)
from message_store.base.html_pages import html_environment, picture_text
from message_store.base.printable import duration, iso_time
from message_store.files.small_files import replace_file

TEMPLATE = "race_report.html.jinja"


def render_report(results: RaceResults) -> str:
    """The HTML page of a race, whole: it loads nothing."""
    environment = html_environment("compare.report")
    environment.filters.update(iso=iso_time, duration=duration)
    ran = [engine for engine in results.engines if engine.unavailable is None]
    usage = [engine for engine in ran if engine.usage.at_ms]
    return environment.get_template(TEMPLATE).render(
        race=results,
        sentences=[text[:1].upper() + text[1:] for text in verdict(results)],
        asked=what_was_asked(results),
        how_judged=how_judged(results),
        ran=ran,
        rows=list(figure_rows(ran, put_how(results))),
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


# --- the pictures ---------------------------------------------------------------------------------

_COLOURS = {
    "levels": "#d55e00",
    "wheel": "#0072b2",
    "hierarchy": "#009e73",
    "time-index": "#cc79a7",
    "memory": "#8a8a8a",
    "java-levels": "#e6a100",
    "java-wheel": "#4aa8dd",
}
_OTHER_COLOURS = ("#7a5195", "#5d7a00", "#8c564b")
_WIDTH = 9.6
_MOST_POINTS = 200
_LEAST_LATE_MS = 1.0
_LATE_TICKS_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 360_000_000)
_DRAWN_SHARES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
_TIME_UNITS = (("days", 86_400_000, 3), ("hours", 3_600_000, 3), ("minutes", 60_000, 5))
_MOST_ABOVE = 4
_MIB = 1 << 20


def _colour(name: str, number: int) -> str:
    return _COLOURS.get(name, _OTHER_COLOURS[number % len(_OTHER_COLOURS)])


def _line_of(number: int, engine: EngineResult) -> dict[str, Any]:
    style = (0, (4, 1.5)) if engine.name.startswith("java-") else "solid"
    return {"color": _colour(engine.name, number), "linestyle": style, "linewidth": 1.6}


@contextmanager
def _drawing(height: float) -> Iterator[Figure]:
    plain: Any = {
        "svg.hashsalt": "delaywheel",
        # Letters as letters: a smaller page, and one that can be searched.
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e4e4e4",
        "grid.linewidth": 0.7,
        "axes.axisbelow": True,
    }
    with rc_context(plain):
        yield Figure(figsize=(_WIDTH, height), layout="constrained")


# --- lateness -------------------------------------------------------------------------------------


def _tail(fractions: Any) -> Any:
    """Where a share stands on an axis on which each nine takes as much room as the one before."""
    return -np.log10(np.maximum(1 - np.asarray(fractions, float), 1e-7))


def draw_lateness(engines: Sequence[EngineResult]) -> str:
    """The share of messages that had come, over how late they were: by the time asked for, and by
    the time the engine had promised.
    """
    with _drawing(3.7) as figure:
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        most = max((engine.delivered for engine in engines), default=0)
        titles = ("after the time asked for", "after the time promised")
        for axes, title, name in zip(
            (left, right), titles, ("lateness_curve", "lateness_after_promise_curve"), strict=True
        ):
            for number, engine in enumerate(engines):
                _draw_curve(axes, getattr(engine, name), most, _line_of(number, engine), engine)
            axes.set_title(title, fontsize=9.5)
            _lateness_axes(axes, most)
        left.set_ylabel("share of the messages")
        _legend(figure, right)
        return picture_text(figure)


def _legend(figure: Figure, axes: Any) -> None:
    """Below all panels, where it hides no curve."""
    lines, names = axes.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=5, fontsize=8.5, frameon=False)


def _draw_curve(
    axes: Any, curve: LatenessCurve, most: int, line: dict[str, Any], engine: EngineResult
) -> None:
    late_ms = np.maximum(curve.late_ms, _LEAST_LATE_MS)
    # Without the last step nobody would see where the latest message stands.
    share = np.minimum(curve.fractions, 1 - 1 / max(2 * most, 2))
    axes.step(late_ms, _tail(share), where="post", label=engine.name, **line)


def _lateness_axes(axes: Any, most: int) -> None:
    axes.set_xscale("log")
    axes.set_xlim(left=_LEAST_LATE_MS)
    axes.xaxis.set_major_locator(FixedLocator(_LATE_TICKS_MS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _place: _short(ms)))
    shown = [share for share in _DRAWN_SHARES if share <= 1 - 1 / max(most, 2)]
    axes.set_yticks(_tail(shown), [f"{100 * share:.6g} %" for share in shown])
    axes.set_ylim(bottom=0)


def _short(late_ms: float) -> str:
    return "≤ 1 ms" if late_ms <= _LEAST_LATE_MS else duration(late_ms).replace(".0", "")


# --- over time ------------------------------------------------------------------------------------


def _time_unit(last_ms: float) -> tuple[str, int]:
    """The largest unit of which there are a few."""
    found = (unit for unit in _TIME_UNITS if last_ms >= unit[1] * unit[2])
    name, unit_ms, _few = next(found, ("seconds", 1_000, 0))
    return name, unit_ms


def draw_traffic(engines: Sequence[EngineResult]) -> str:
    """Messages a second, in (grey) and out, a row an engine."""
    last_ms = max((e.traffic.bucket_ms * len(e.traffic.put) for e in engines), default=0)
    unit, unit_ms = _time_unit(last_ms)
    with _drawing(0.7 + 1.05 * len(engines)) as figure:
        rows = figure.subplots(len(engines), 1, sharex=True, squeeze=False)[:, 0]
        for number, (axes, engine) in enumerate(zip(rows, engines, strict=True)):
            traffic = engine.traffic
            at = np.arange(len(traffic.put) + 1) * traffic.bucket_ms / unit_ms
            put, out = (
                np.asarray(counts) * 1_000 / traffic.bucket_ms
                for counts in (traffic.put, traffic.delivered)
            )
            colour = _colour(engine.name, number)
            axes.stairs(put, at, fill=True, color="#d9d9d9", label="in")
            inside = to_rgba(colour, 0.35)
            axes.stairs(out, at, fill=True, fc=inside, ec=colour, linewidth=1.2, label="out")
            axes.set_title(engine.name, loc="left", fontsize=9, color=colour)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _place: _rate(rate)))
            axes.set_ylim(0, _top(put.max(initial=0), out.max(initial=0)))
            axes.set_xlim(0, max(last_ms, 1) / unit_ms)
            axes.locator_params(axis="y", nbins=3)
        rows[-1].set_xlabel(f"{unit} from the start of the race")
        figure.supylabel("messages a second", fontsize=9)
        return picture_text(figure)


def _top(put: float, out: float) -> float:
    """Room for what comes out; what goes in may leave the picture where it would flatten that."""
    return 1.1 * (out if put > _MOST_ABOVE * out > 0 else max(put, out, 1.0))


def _rate(rate: float) -> str:
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if rate >= factor:
            return f"{rate / factor:.3g} {unit}"
    return f"{rate:.3g}"


def draw_usage(engines: Sequence[EngineResult]) -> str:
    """Private memory and the room on the disk over time."""
    last_ms = max((e.usage.at_ms[-1] for e in engines if e.usage.at_ms), default=0)
    unit, unit_ms = _time_unit(last_ms)
    with _drawing(3.1) as figure:
        left, right = figure.subplots(1, 2)
        for axes, title, name in (
            (left, "private memory, MiB", "memory_bytes"),
            (right, "on the disk, MiB", "disk_bytes"),
        ):
            for number, engine in enumerate(engines):
                at_ms, held = _thinned(engine.usage.at_ms, getattr(engine.usage, name))
                line = _line_of(number, engine)
                axes.step(at_ms / unit_ms, held / _MIB, where="post", label=engine.name, **line)
            axes.set_title(title, fontsize=9.5)
            axes.set_xlabel(f"{unit} from the start of the race")
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
        _legend(figure, right)
        return picture_text(figure)


def _thinned(at_ms: Sequence[int], values: Sequence[int]) -> tuple[Any, Any]:
    """At most so many points, of each group the highest."""
    at, held = np.asarray(at_ms, float), np.asarray(values, float)
    if len(at) <= _MOST_POINTS:
        return at, held
    edges = np.linspace(0, len(at), _MOST_POINTS + 1).astype(int)[:-1]
    return at[edges], np.maximum.reduceat(held, edges)
