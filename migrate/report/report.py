# SPDX-License-Identifier: Apache-2.0
"""What a conversion answers with: counts that add up, per level and in all, and what an operator
must know next.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from migrate.report.due_times import DueTimes


@attrs.frozen
class BadRecord:
    """A pending entry that cannot be converted, where it is, and why."""

    level: int
    queue_offset: int
    commit_log_offset: int
    reason: str


@attrs.frozen
class LevelReport:
    """One level's books: ``queued = pending + already_delivered + expired`` and
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
    in the target's timer queue. ``topics`` counts what was converted for each real topic, and
    ``due`` when it is due.
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
        given = {field.name: facts[field.name] for field in attrs.fields(cls)}
        given["sources"] = tuple(map(cls.from_json, facts["sources"]))
        given["due"] = DueTimes.from_json(facts["due"])
        given["levels"] = tuple(LevelReport(**level) for level in facts["levels"])
        given["bad_records"] = tuple(BadRecord(**record) for record in facts["bad_records"])
        given["warnings"] = tuple(facts["warnings"])
        given["seconds"] = Seconds(**facts["seconds"])
        return cls(**given)
