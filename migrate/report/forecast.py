# SPDX-License-Identifier: Apache-2.0
"""When what waits in a converted store falls due: counted by slot, and drawn.

The slots of a fresh target count their units exactly, so no record is looked at. What will be
placed again (due beyond the roll window) is counted in the slot where that happens.
"""

import attrs
import numpy as np
from matplotlib import rc_context
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from numpy.typing import NDArray

from message_store.base.html_pages import picture_text
from message_store.files.store_root import StoreRoot
from migrate.report.due_times import BUCKETS_S, DueTimes, bucket_seconds
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
        beginnings, places = np.unique(starts, return_inverse=True)
        counts = np.zeros(len(beginnings), np.int64)
        np.add.at(counts, places, self.messages)
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
    bars = [("on the wheel", forecast.bucket_s, *forecast.buckets())]
    if before is not None:
        starts = before.first_s + before.step_s * np.arange(len(before.counts), dtype=np.int64)
        bars.insert(0, ("in the levels", before.step_s, starts, np.array(before.counts)))
    with rc_context({"svg.hashsalt": "delaywheel", "font.size": 9}):
        figure = Figure(figsize=(9, 0.4 + 2.4 * len(bars)), layout="constrained")
        rows = figure.subplots(len(bars), sharex=True, squeeze=False)[:, 0]
        for axes, (where, bucket_s, starts, counts) in zip(rows, bars, strict=True):
            axes.bar(
                starts.astype("datetime64[s]"),
                counts,
                width=np.timedelta64(bucket_s, "s"),
                align="edge",
                color="#33658a",
            )
            axes.set_ylabel(f"messages in {bucket_s:,} s")
            axes.set_title(where, loc="left")
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        rows[-1].xaxis.set_major_locator(locator)
        formatter = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
        rows[-1].xaxis.set_major_formatter(formatter)
        rows[-1].set_xlabel("due, UTC")
        return picture_text(figure)
