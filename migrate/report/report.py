# SPDX-License-Identifier: Apache-2.0
"""The result of a conversion: counts that add up, per level and in all, and what to do next."""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import DelayStoreError
from message_store.files.array_room import row_blocks

BUCKETS_MAX = 240
BUCKETS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400)
_BLOCK_ROWS = 1 << 16
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
        if last - first < _SECONDS_MAX:
            each = np.zeros(last - begin + 1, np.int64)
            for rows in row_blocks(len(due_ms), max(_BLOCK_ROWS, len(each))):
                each += np.bincount(due_ms[rows] // 1000 - begin, minlength=len(each))
            counts = np.add.reduceat(each, np.arange(0, len(each), step))
            peak = int(each.argmax())
            most, when_s = int(each[peak]), begin + peak
        else:
            seconds = due_ms // 1000
            counts = np.bincount((seconds - begin) // step)
            used_seconds, second_counts = np.unique(seconds, return_counts=True)
            peak = int(second_counts.argmax())
            most, when_s = int(second_counts[peak]), int(used_seconds[peak])
        return cls(begin, step, tuple(counts.tolist()), most, when_s * 1000)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any] | None) -> "DueTimes | None":
        """What a report says of them. Raises KeyError or TypeError for anything else."""
        return None if facts is None else cls(**{**facts, "counts": tuple(facts["counts"])})


@attrs.frozen
class BadRecord:
    """A pending entry that cannot be converted, where it is, and why."""

    level: int
    queue_offset: int
    commit_log_offset: int
    reason: str


@attrs.frozen
class LevelReport:
    """One level's books: ``queued = pending + already_delivered + neutral + expired`` and
    ``pending = converted + skipped + quarantined``. ``queued`` runs from ``from_offset`` to
    ``to_offset``, besides ``before_queue`` that lay before a queue without its first files.
    """

    level: int
    delay_ms: int
    from_offset: int
    to_offset: int
    queued: int
    already_delivered: int
    expired: int
    pending: int
    converted: int
    skipped: int
    quarantined: int
    overdue: int
    rolled: int
    before_queue: int = 0
    neutral: int = 0


@attrs.frozen
class Seconds:
    """How long each stage took."""

    spark_start: float
    plan: float
    write: float
    seal: float
    total: float


COUNT_NAMES = (
    "queued",
    "already_delivered",
    "neutral",
    "expired",
    "pending",
    "converted",
    "skipped",
    "quarantined",
    "overdue",
    "rolled",
)
"""The counts of a level's books, in the order in which they are shown."""


@attrs.frozen
class ConversionReport:
    """The result of a conversion; ``open_before_ms`` is when its wheel, or its log, begins to
    expire; ``engine`` what the target is for.

    Of several sources merged into one target it is the sum, ``source`` names them all, and
    ``sources`` has the report of each; ``target_queue_offset`` is where the messages of one begin
    in the target's timer queue. ``target_runs`` has the first and end of each run of them, where
    there are several: some took the places of bad records of other sources. ``topics`` counts what
    was converted for each real topic, and ``due`` when it is due.
    """

    source: str
    target: str
    now_ms: int
    precision_ms: int
    level_table: str
    offsets_source: str
    levels: tuple[LevelReport, ...]
    due_min_ms: int | None
    due_max_ms: int | None
    open_before_ms: int | None
    bytes_read: int
    bytes_written: int
    bad_records: tuple[BadRecord, ...]
    broker_conf: dict[str, str]
    warnings: tuple[str, ...]
    seconds: Seconds
    request: dict[str, Any]
    identity: str
    left_out_topics: dict[str, int] = attrs.field(factory=dict)
    engine: str = "wheel"
    target_queue_offset: int = 0
    target_runs: tuple[tuple[int, int], ...] = ()
    sources: tuple["ConversionReport", ...] = ()
    topics: dict[str, int] = attrs.field(factory=dict)
    due: DueTimes | None = None

    def total(self, name: str) -> int:
        """A count summed over the levels."""
        return sum(getattr(level, name) for level in self.levels)

    def as_json(self) -> dict[str, Any]:
        """The JSON object that ``convert --json`` prints; keys are a promise."""
        sums = {name: self.total(name) for name in COUNT_NAMES}
        sources = [source.as_json() for source in self.sources]
        return {**sums, **attrs.asdict(self, recurse=True), "sources": sources}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> "ConversionReport":
        """The report that ``as_json`` gave. Raises KeyError or TypeError for anything else."""
        fields = {field.name: facts[field.name] for field in attrs.fields(cls)}
        fields["target_runs"] = tuple(map(tuple, facts["target_runs"]))
        fields["sources"] = tuple(map(cls.from_json, facts["sources"]))
        fields["due"] = DueTimes.from_json(facts["due"])
        fields["levels"] = tuple(LevelReport(**level) for level in facts["levels"])
        fields["bad_records"] = tuple(BadRecord(**record) for record in facts["bad_records"])
        fields["warnings"] = tuple(facts["warnings"])
        fields["seconds"] = Seconds(**facts["seconds"])
        return cls(**fields)


@attrs.frozen
class ConversionPlan:
    """What a conversion would do: the ``report`` that it would end with, but for what only writing
    tells, and the room that its target takes. ``begun`` says that a stopped run would be continued,
    ``refusals`` are the errors with which it would end, as far as is known.
    """

    report: ConversionReport
    bytes_needed: int
    bytes_free: int
    begun: bool
    refusals: tuple[DelayStoreError, ...]

    def as_json(self) -> dict[str, Any]:
        """The JSON object that ``convert --plan --json`` prints; keys are a promise."""
        facts = self.report.as_json()
        for name in (
            "seconds",
            "bytes_read",
            "bytes_written",
            "broker_conf",
            "request",
            "identity",
        ):
            del facts[name]
            for source in facts["sources"]:
                del source[name]
        room = {"bytes_needed": self.bytes_needed, "bytes_free": self.bytes_free}
        return {**facts, **room, "begun": self.begun, "refusals": list(map(str, self.refusals))}
