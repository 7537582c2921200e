# SPDX-License-Identifier: Apache-2.0
"""The result of an inspection: a store at a glance. A number that cannot be told is None."""

from typing import Any

import attrs

from migrate.look.files import FilesOf
from migrate.source.members import MemberState


@attrs.frozen
class LevelState:
    """One level: its queue, how far it was delivered, and its pending messages.

    ``offset`` is what delayOffset.json says, None when it says nothing of the level or cannot be
    read. ``pending`` and what follows from it is None when that cannot be told; ``delay_ms`` when
    neither the table nor the store tells it.
    """

    level: int
    delay_ms: int | None
    offset: int | None
    queue_min: int | None
    queue_max: int | None
    pending: int | None
    overdue: int | None
    next_due_ms: int | None
    already_delivered: int | None
    neutral: int | None
    expired: int | None


@attrs.frozen
class WheelSummary:
    """Pending messages of the wheel; every number is None for a wheel that cannot be read.

    ``engine`` is "wheel" or "hierarchy": of a hierarchical wheel ``units`` are the rows of its
    index, ``slots_used`` its hours, minutes and seconds, and ``precision_ms`` is 1.
    ``rolled`` of the pending messages will roll before they are due: the first due time
    and the overdue are those of the others, and ``last_due_ms`` is None then.
    """

    precision_ms: int | None = None
    units: int | None = None
    slots_used: int | None = None
    pending: int | None = None
    overdue: int | None = None
    rolled: int | None = None
    cancelled: int | None = None
    expired: int | None = None
    next_due_ms: int | None = None
    last_due_ms: int | None = None
    engine: str = "wheel"


@attrs.frozen
class TimelineSummary:
    """Pending messages of a RocksDB timeline; every number is None for one that cannot be read.

    ``entries`` are those that its database still holds to be delivered, ``pending`` what is left of
    them when the log is looked at. ``delivered_until_ms`` and ``scan_offset`` are its checkpoints,
    the first None where it never delivered anything.
    """

    entries: int | None = None
    pending: int | None = None
    overdue: int | None = None
    delivered_until_ms: int | None = None
    scan_offset: int | None = None
    next_due_ms: int | None = None
    last_due_ms: int | None = None


@attrs.frozen
class TimeIndexSummary:
    """Pending messages of a time index; every number is None for one that cannot be read."""

    pending: int | None = None
    overdue: int | None = None
    next_due_ms: int | None = None
    last_due_ms: int | None = None


@attrs.frozen
class TopicQueues:
    """A topic that the store knows."""

    name: str
    read_queues: int
    write_queues: int


@attrs.frozen
class StoreInspection:
    """A store at a glance. ``offsets_source`` is the delayOffset.json in force, None when a broker
    would not start on what is there; ``problems`` are sentences. ``beyond_log`` of the pending
    messages of levels lie where the log has no bytes. ``member`` says which member of a DLedger
    group it is, if it is one, and how far its log goes.
    """

    path: str
    now_ms: int
    format: str
    evidence: tuple[str, ...]
    clean: bool
    offsets_source: str | None
    pending: int | None
    overdue: int | None
    levels: tuple[LevelState, ...]
    wheel: WheelSummary | None
    timeline: TimelineSummary | None
    topics: tuple[TopicQueues, ...]
    files: tuple[FilesOf, ...]
    problems: tuple[str, ...]
    beyond_log: int = 0
    time_index: TimeIndexSummary | None = None
    member: MemberState | None = None

    @property
    def next_due_ms(self) -> int | None:
        """When the first of all is due."""
        dues = [level.next_due_ms for level in self.levels]
        timers = (self.wheel, self.timeline, self.time_index)
        dues += [part.next_due_ms for part in timers if part is not None]
        return min((due for due in dues if due is not None), default=None)

    def as_json(self) -> dict[str, Any]:
        """The JSON object that ``inspect --json`` prints; keys are a promise."""
        return attrs.asdict(self)
