# SPDX-License-Identifier: Apache-2.0
"""The report of a conversion as one HTML file that needs nothing beside it.

Everything is escaped by Jinja, and control characters are shown as what they are. The template
lies beside this module.
"""

import os
import tempfile
from pathlib import Path

from markupsafe import Markup

from message_store.base.errors import TargetError
from message_store.base.html_pages import html_environment
from message_store.base.printable import iso_time, shell_word, span
from message_store.files.small_files import replace_file
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import format_delay
from migrate.report.forecast import Forecast, draw_forecast, read_forecast
from migrate.report.report import COUNT_NAMES, ConversionReport
from migrate.write.staging import target_errors

TEMPLATE = "conversion_report.html.jinja"
LISTED_RECORDS = 1000
LISTED_TOPICS = 200


def render_html_report(report: ConversionReport, forecast: Forecast) -> str:
    """The page."""
    environment = html_environment("migrate.report")
    environment.filters.update(iso=iso_time, span=span, delay=format_delay)
    return environment.get_template(TEMPLATE).render(
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


def require_report_place(path: Path, *sources: Path) -> None:
    """Raise TargetError unless a report can be written to ``path``, which is not within one of
    ``sources``: nobody wants to hear that only after the conversion. Directories that are missing
    will be made.
    """
    if any(path.resolve().is_relative_to(source.resolve()) for source in sources):
        raise TargetError(f"{path}: lies in the store, which is only read")
    with target_errors(path):
        if path.is_dir():
            raise TargetError(f"{path}: cannot be written: is a directory")
        if path.exists() and not path.is_file():  # it would be replaced by one
            raise TargetError(f"{path}: cannot be written: no ordinary file")
    above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise TargetError(f"{path}: cannot be written: {error.strerror}") from error


def write_html_report(report: ConversionReport, path: Path) -> None:
    """Write the page of a finished conversion to ``path``. Raises TargetError."""
    forecast = read_forecast(StoreRoot(report.target), report.precision_ms)
    replace_file(path, render_html_report(report, forecast).encode(errors="backslashreplace"))
