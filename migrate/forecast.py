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

from message_store.html_pages import picture_text
from message_store.store_root import StoreRoot
from timer_wheel.wheel_file import read_wheel

BUCKETS_MAX = 240
_BUCKETS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400)


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
            return _BUCKETS_S[0]
        whole_s = (int(self.due_ms.max()) - int(self.due_ms.min())) / 1000
        return next((each for each in _BUCKETS_S if whole_s <= each * BUCKETS_MAX), _BUCKETS_S[-1])

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


def draw_forecast(forecast: Forecast) -> str:
    """The forecast as an SVG picture; the same numbers make the same text."""
    starts, counts = forecast.buckets()
    with rc_context({"svg.hashsalt": "delaywheel", "font.size": 9}):
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        axes = figure.add_subplot()
        axes.bar(
            starts.astype("datetime64[s]"),
            counts,
            width=np.timedelta64(forecast.bucket_s, "s"),
            align="edge",
            color="#33658a",
        )
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        formatter = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(formatter)
        axes.set_ylabel(f"messages in {forecast.bucket_s:,} s")
        axes.set_xlabel("due, UTC")
        return picture_text(figure)
