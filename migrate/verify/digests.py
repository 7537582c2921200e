# SPDX-License-Identifier: Apache-2.0
"""What a verification task is asked and what it answers: values that travel and add up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from migrate.verify.complaints import Complaint
from migrate.verify.entries import DIGEST_COLUMNS
from migrate.verify.target_kernel import OVERDUE_COLUMNS, OVERDUE_SLOTS

Side = Literal["source", "target"]

EXAMPLES_KEPT = 10
"""Of each complaint so many entries are remembered."""


@attrs.frozen
class DigestTask:
    """A run of entries of one side, in the order of the log.

    ``first_number`` is the number of its first entry among all of that side. With ``topics`` the
    messages of other real topics are left out. Records whose identity is in ``identities``, or
    whose bucket is in ``buckets`` (a byte for each), are returned one by one.
    """

    side: Side
    commit_log: Path
    entries: bytes | Path
    first_number: int
    seed: int
    rules: tuple[int, int, int, int]
    file_bytes: int | None = None
    topics: tuple[str, ...] = ()
    identities: tuple[int, ...] = ()
    buckets: bytes | None = None


@attrs.frozen(eq=False)
class FoundRecords:
    """Records one by one: the number of each entry, its digests (a row each), its complaint."""

    numbers: NDArray[np.int64]
    digests: NDArray[np.uint64]
    complaints: NDArray[np.uint8]

    @classmethod
    def none(cls) -> "FoundRecords":
        """No record."""
        return cls(
            np.empty(0, np.int64), np.empty((0, DIGEST_COLUMNS), np.uint64), np.empty(0, np.uint8)
        )

    @classmethod
    def joined(cls, parts: Sequence["FoundRecords"]) -> "FoundRecords":
        """All records of several finds."""
        if not parts:
            return cls.none()
        return cls(
            np.concatenate([part.numbers for part in parts]),
            np.concatenate([part.digests for part in parts]),
            np.concatenate([part.complaints for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, chosen: Any) -> "FoundRecords":
        return FoundRecords(self.numbers[chosen], self.digests[chosen], self.complaints[chosen])


@attrs.frozen
class TopicUse:
    """How many messages a real topic has, its highest queue id, the record offset of one."""

    count: int
    max_queue_id: int
    example_offset: int

    def plus(self, other: "TopicUse") -> "TopicUse":
        """Both together."""
        return TopicUse(
            self.count + other.count,
            max(self.max_queue_id, other.max_queue_id),
            min(self.example_offset, other.example_offset),
        )


@attrs.frozen(eq=False)
class DigestResult:
    """What a task found.

    ``complaints`` maps a complaint to its count and the first few entries' numbers; ``topics`` maps
    the hash of a real topic to its use; ``overdue`` is the earliest and latest out time of each
    slot before now.
    """

    side: Side
    buckets: NDArray[np.uint64]
    complaints: dict[Complaint, tuple[int, tuple[int, ...]]]
    found: FoundRecords
    topics: dict[int, TopicUse]
    overdue: NDArray[np.int64]

    def plus(self, other: "DigestResult") -> "DigestResult":
        """Both together; the two are of one side."""
        complaints = dict(self.complaints)
        for complaint, (count, numbers) in other.complaints.items():
            known, examples = complaints.get(complaint, (0, ()))
            complaints[complaint] = (known + count, (examples + numbers)[:EXAMPLES_KEPT])
        topics = dict(self.topics)
        for key, use in other.topics.items():
            topics[key] = topics[key].plus(use) if key in topics else use
        return DigestResult(
            self.side,
            self.buckets + other.buckets,
            complaints,
            FoundRecords.joined([self.found, other.found]),
            topics,
            join_overdue(self.overdue, other.overdue),
        )


def no_overdue() -> NDArray[np.int64]:
    """The table of a side without overdue messages."""
    table = np.empty((OVERDUE_SLOTS, OVERDUE_COLUMNS), np.int64)
    table[:] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    return table


def join_overdue(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The earliest of the earliest, the latest of the latest."""
    return np.stack([np.minimum(one[:, 0], other[:, 0]), np.maximum(one[:, 1], other[:, 1])], 1)
