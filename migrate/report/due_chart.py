# SPDX-License-Identifier: Apache-2.0
"""Bars over time as an SVG picture, drawn as text: a chart of a fleet's page takes a millisecond.

A plotting library took half a second for the same. Most of it went into the layout of a few hundred
bars, and into letters that it drew as paths.
"""

import math
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.printable import iso_time

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
    """The panels, one below the other, over the same time. Each has a bar.

    Titles are put in as they are: they must hold no text of a store.
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
