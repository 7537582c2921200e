# SPDX-License-Identifier: Apache-2.0
"""The report of a conversion as one HTML file that needs nothing beside it.

Everything is escaped by Jinja, and control characters are shown as what they are. The template
lies beside this module.
"""

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import attrs
import numpy as np
from jinja2 import Template
from markupsafe import Markup
from numpy.typing import NDArray

from message_store.base.errors import TargetError, disk_errors
from message_store.base.html_pages import html_environment
from message_store.base.printable import iso_time, shell_word, span
from message_store.files.small_files import read_beginning, replace_file
from message_store.files.store_root import StoreRoot, require_outside
from message_store.format.delay_levels import format_delay
from migrate.report.report import BUCKETS_S, COUNT_NAMES, ConversionReport, DueTimes, bucket_seconds
from migrate.write.staging import target_errors
from timer_wheel.format.wheel_file import read_wheel


@attrs.frozen(eq=False)
class Forecast:
    """How many messages fall due in each slot that has some; ``due_ms`` is when a slot is over."""

    precision_ms: int
    due_ms: NDArray[np.int64]
    messages: NDArray[np.int64]

    @property
    def peak_per_second(self) -> float:
        """The most that a broker has to deliver in one slot, by the second; 0 without messages."""
        largest = int(self.messages.max()) if len(self.messages) else 0
        return largest * 1000 / self.precision_ms

    @property
    def peak_ms(self) -> int | None:
        """When that is."""
        return int(self.due_ms[self.messages.argmax()]) if len(self.messages) else None

    @property
    def bucket_s(self) -> int:
        """The shortest handy width at which the whole time takes at most BUCKETS_MAX bars."""
        if not len(self.due_ms):
            return BUCKETS_S[0]
        return bucket_seconds(int(self.due_ms.min()) // 1000, -(-int(self.due_ms.max()) // 1000))

    def buckets(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each bar begins, epoch seconds, and how many messages fall due in it."""
        starts = self.due_ms // 1000 // self.bucket_s * self.bucket_s
        beginnings, bucket_index = np.unique(starts, return_inverse=True)
        counts = np.zeros(len(beginnings), np.int64)
        np.add.at(counts, bucket_index, self.messages)
        return beginnings, counts


def read_forecast(target: StoreRoot, precision_ms: int) -> Forecast:
    """The forecast of a fresh target. Raises SourceError or FormatError for an unreadable wheel."""
    slots = read_wheel(target).slots
    used = slots[slots["unit_count"] > 0]
    used = used[np.argsort(used["time_units"], kind="stable")]
    return Forecast(
        precision_ms=precision_ms,
        due_ms=(used["time_units"].astype(np.int64) + 1) * precision_ms,
        messages=used["unit_count"].astype(np.int64),
    )


def draw_forecast(forecast: Forecast, before: DueTimes | None = None) -> str:
    """The forecast as SVG, what was due in the source above it; equal numbers make equal text."""
    panels = [Panel("on the wheel", forecast.bucket_s, *forecast.buckets())]
    if before is not None:
        starts = before.first_s + before.step_s * np.arange(len(before.counts), dtype=np.int64)
        panels.insert(0, Panel("in the levels", before.step_s, starts, np.array(before.counts)))
    return draw_panels(panels)


TEMPLATE = "conversion_report.html.jinja"
LISTED_RECORDS = 1000
LISTED_TOPICS = 200


@cache
def _template() -> Template:
    """Made once: a fleet has a page a store."""
    environment = html_environment("migrate.report")
    environment.filters.update(iso=iso_time, span=span, delay=format_delay)
    return environment.get_template(TEMPLATE)


def render_html_report(report: ConversionReport, forecast: Forecast) -> str:
    """The page."""
    return _template().render(
        report=report,
        columns=COUNT_NAMES,
        listed=report.bad_records[:LISTED_RECORDS],
        topics=sorted(report.topics.items(), key=lambda item: (-item[1], item[0]))[:LISTED_TOPICS],
        stores=" ".join(shell_word(s.source) for s in report.sources or (report,)),
        place=shell_word(report.target),
        forecast=forecast,
        # Drawn from numbers only: no text of a store is in the picture.
        picture=Markup(draw_forecast(forecast, report.due)) if len(forecast.due_ms) else "",
    )


_PAGE_BEGINS = b"<!doctype html>"
"""A report is replaced by the next; other files are somebody's."""


def require_report_place(path: Path, *stores: Path) -> None:
    """Raise TargetError unless a report can be written to ``path``, which is not within one of
    ``stores``, sources and targets: nobody wants to hear that only after the conversion.
    Directories that are missing will be made.
    """
    require_outside(path, *stores)
    with target_errors(path):
        if path.is_dir():
            raise TargetError(f"{path}: cannot be written: is a directory")
        if path.exists() and not path.is_file():  # it would be replaced by one
            raise TargetError(f"{path}: cannot be written: no ordinary file")
        begins = read_beginning(path.resolve(), len(_PAGE_BEGINS)).lower()
        if begins not in (b"", _PAGE_BEGINS):
            raise TargetError(f"{path}: is already there, and is no report; choose another name")
    above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    with disk_errors(TargetError, path, "written"), tempfile.TemporaryFile(dir=above):
        pass


def write_html_report(report: ConversionReport, path: Path) -> None:
    """Write the page of a finished conversion to ``path``. Raises TargetError."""
    forecast = read_forecast(StoreRoot(report.target), report.precision_ms)
    replace_file(path, render_html_report(report, forecast).encode(errors="backslashreplace"))


# --- the bars over time ---------------------------------------------------------------------------

_WIDTH, _LEFT, _RIGHT = 900, 70, 20
_TITLE, _BARS, _GAP, _TICKS = 22, 130, 14, 46
"""Heights, in pixels: of a title, of the highest bar, under a panel, and of the times below all."""
_LABELS_MAX = 8
_DAY_S = 86_400
_TICKS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600),
    *(hours * 3_600 for hours in (2, 3, 6, 12)),
    *(days * _DAY_S for days in (1, 2, 7, 14, 28, 91, 182)),
)


@attrs.frozen(eq=False)
class Panel:
    """Some bars: ``counts[i]`` messages in the ``step_s`` seconds from ``starts_s[i]`` on."""

    title: str
    step_s: int
    starts_s: NDArray[np.int64]
    counts: NDArray[np.int64]


def draw_panels(panels: Sequence[Panel]) -> str:
    """The panels as SVG, one below the other, over the same time. A plotting library takes half a
    second for the same. Titles are put in as they are: they must hold no text of a store.
    """
    first_s = min(int(panel.starts_s.min()) for panel in panels)
    end_s = max(int(panel.starts_s.max()) + panel.step_s for panel in panels)
    panel_height = _TITLE + _BARS + _GAP
    height = len(panels) * panel_height + _TICKS
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    font = 'font-family="sans-serif" font-size="12" fill="#222"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>']
    for number, panel in enumerate(panels):
        lines += _bars(panel, number * panel_height + _TITLE, first_s, end_s)
    lines += _times(first_s, end_s, height - _TICKS)
    return "\n".join([*lines, "</svg>\n"])


def _x_of(time_s: float, first_s: int, end_s: int) -> float:
    return _LEFT + (time_s - first_s) * (_WIDTH - _LEFT - _RIGHT) / (end_s - first_s)


def _bars(panel: Panel, top: int, first_s: int, end_s: int) -> Iterator[str]:
    base = top + _BARS
    highest = int(panel.counts.max(initial=1))
    yield f'<text x="{_LEFT}" y="{top - 8}">{panel.title}: messages in {panel.step_s:,} s</text>'
    for count in range(0, highest + 1, _round_step(highest)):
        y = base - _BARS * count / highest
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>'
    width = _x_of(first_s + panel.step_s, first_s, end_s) - _LEFT
    bars = [
        f"M{_x_of(start_s, first_s, end_s):.2f} {base}"
        f"v{-_BARS * count / highest:.2f}h{width:.2f}V{base}z"
        for start_s, count in zip(panel.starts_s.tolist(), panel.counts.tolist(), strict=True)
    ]
    yield f'<path fill="#33658a" d="{"".join(bars)}"/>'


def _round_step(highest: int) -> int:
    """The distance of a few lines with round counts.

    >>> _round_step(3), _round_step(30), _round_step(1_700)
    (1, 10, 500)
    """
    power = int(10 ** (len(str(highest)) - 1))
    steps = (power // 10, power // 5, power // 2, power, power * 2, power * 5)
    return next(step for step in steps if step and highest // step <= 3)


def _times(first_s: int, end_s: int, top: int) -> Iterator[str]:
    """Times below the panels; a date where it is another than that of the time before."""
    step_s = next((step for step in _TICKS_S if (end_s - first_s) / step <= _LABELS_MAX), None)
    if step_s is None:
        step_s = math.ceil((end_s - first_s) / _LABELS_MAX / _DAY_S) * _DAY_S
    before = ""
    for time_s in range(-(-first_s // step_s) * step_s, end_s + 1, step_s):
        date, time = iso_time(time_s * 1000).removesuffix("Z").split("T")
        x = _x_of(time_s, first_s, end_s)
        yield f'<path d="M{x:.1f} {top - _GAP}v6" stroke="#222"/>'
        shown = [time if step_s % 60 else time[:-3]] if step_s < _DAY_S else []
        shown += [date] if date != before else []
        for line, text in enumerate(shown):
            y = top + 8 + 15 * line
            yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{text}</text>'
        before = date
    yield f'<text x="{_WIDTH - _RIGHT}" y="{top + 40}" text-anchor="end">due, UTC</text>'
