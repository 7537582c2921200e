# SPDX-License-Identifier: Apache-2.0
"""When the messages of a conversion are due, counted: what the report draws as before, and the
second in which a broker has most to deliver.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

BUCKETS_MAX = 240
BUCKETS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400)
_SECONDS_MAX = 10**7
"""Up to so many seconds are counted one by one; that is more than a hundred days."""


def bucket_seconds(first_s: int, last_s: int) -> int:
    """The shortest handy width at which a span takes at most BUCKETS_MAX bars.

    >>> bucket_seconds(0, 100), bucket_seconds(0, 7_200)
    (1, 30)
    """
    span = last_s - first_s
    return next((each for each in BUCKETS_S if span <= each * BUCKETS_MAX), BUCKETS_S[-1])


@attrs.frozen
class DueTimes:
    """``counts[i]`` messages are due in the ``step_s`` seconds from ``first_s + i * step_s`` on
    (epoch seconds); ``peak_messages`` in the second that begins at ``peak_ms``, the most of all.
    """

    first_s: int
    step_s: int
    counts: tuple[int, ...]
    peak_messages: int
    peak_ms: int

    @classmethod
    def of(cls, due_ms: NDArray[np.int64]) -> "DueTimes | None":
        """The counts of these times; None for none."""
        if not len(due_ms):
            return None
        first, last = int(due_ms.min()) // 1000, int(due_ms.max()) // 1000
        step = bucket_seconds(first, last)
        begin = first // step * step
        seconds = due_ms // 1000
        if last - first < _SECONDS_MAX:
            seconds -= begin
            each = np.bincount(seconds)
            counts = np.add.reduceat(each, np.arange(0, len(each), step))
            peak = int(each.argmax())
            most, when_s = int(each[peak]), begin + peak
        else:
            counts = np.bincount((seconds - begin) // step)
            known, numbers = np.unique(seconds, return_counts=True)
            peak = int(numbers.argmax())
            most, when_s = int(numbers[peak]), int(known[peak])
        return cls(begin, step, tuple(counts.tolist()), most, when_s * 1000)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any] | None) -> "DueTimes | None":
        """What a report says of them. Raises KeyError or TypeError for anything else."""
        return None if facts is None else cls(**{**facts, "counts": tuple(facts["counts"])})
