# SPDX-License-Identifier: Apache-2.0
"""The report of a conversion as one HTML file that needs nothing beside it.

Everything is escaped by Jinja, and control characters are shown as what they are. The template
lies beside this module.
"""

import os
import tempfile
from functools import cache
from pathlib import Path

import attrs
import numpy as np
from jinja2 import Template
from markupsafe import Markup
from numpy.typing import NDArray

from message_store.base.errors import TargetError, reason_of
from message_store.base.html_pages import html_environment
from message_store.base.printable import iso_time, shell_word, span
from message_store.files.small_files import read_beginning, replace_file
from message_store.files.store_root import StoreRoot, require_outside
from message_store.format.delay_levels import format_delay
from migrate.report.due_chart import Panel, draw_panels
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
    """The forecast as an SVG picture, with what was due when in the source above it; the same
    numbers make the same text.
    """
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
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise TargetError(f"{path}: cannot be written: {reason_of(error)}") from error


def write_html_report(report: ConversionReport, path: Path) -> None:
    """Write the page of a finished conversion to ``path``. Raises TargetError."""
    forecast = read_forecast(StoreRoot(report.target), report.precision_ms)
    replace_file(path, render_html_report(report, forecast).encode(errors="backslashreplace"))
