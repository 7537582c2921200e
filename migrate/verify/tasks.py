# SPDX-License-Identifier: Apache-2.0
"""One task of verification: read a run of records once, in bulk, and return numbers.

A task gets its entries as an array or as a file. It reads the log with ``pread`` into one buffer
that is used again, and lets a kernel digest the records. Its result does not grow with the number
of messages, except where records are asked for one by one. Many of those go to the scratch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import SourceError
from message_store.files.array_room import row_blocks
from message_store.files.log_row import open_log
from message_store.files.small_files import read_piece
from message_store.files.store_root import StoreRoot
from message_store.kernels.raw_memory import address_of
from message_store.reading.spans import CHUNK_ENTRIES, Span, SpanReader
from migrate.verify.digests.complaints import LAST_UNREADABLE, Complaint
from migrate.verify.digests.entries import (
    BUCKET_COLUMNS,
    BUCKETS,
    DIGEST_COLUMNS,
    DIGEST_IDENTITY,
    SOURCE_ENTRY,
    TARGET_ENTRY,
    add_to_buckets,
    bucket_of,
)
from migrate.verify.digests.record_kernel import FACT_COUNT, HASH_COUNT, topic_key
from migrate.verify.digests.side_kernels import (
    OVERDUE_COLUMNS,
    OVERDUE_SLOTS,
    TOPIC_COLUMNS,
    TOPIC_COUNT,
    TOPIC_EXAMPLE,
    TOPIC_MAX_QUEUE_ID,
    digest_source,
    digest_target,
)
from migrate.verify.found import Block, BlockWriter, Found, Grouping, found_records, joined

Side = Literal["source", "target"]

EXAMPLES_KEPT = 10
"""Of each complaint so many entries are remembered."""


@attrs.frozen(eq=False)
class DigestTask:
    """A run of ``count`` entries of one side, in the order of the log: here, or in a file.

    ``first_number`` is the number of its first entry among all of that side. With ``topics`` the
    messages of other real topics are left out. Records whose identity is in ``identities``, or
    whose bucket is in ``buckets`` (a byte for each), are returned one by one; with ``grouping`` in
    blocks.
    """

    side: Side
    store: Path
    entries: NDArray[np.void] | Path
    count: int
    first_number: int
    seed: int
    rules: tuple[int, int, int, int]
    file_bytes: int | None = None
    topics: tuple[str, ...] = ()
    identities: tuple[int, ...] = ()
    buckets: bytes | None = None
    grouping: Grouping | None = None


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
    found: Found
    topics: dict[int, TopicUse]
    overdue: NDArray[np.int64]
    blocks: tuple[Block, ...] = ()

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
            joined([self.found, other.found]),
            topics,
            join_overdue(self.overdue, other.overdue),
            self.blocks + other.blocks,
        )


def no_overdue() -> NDArray[np.int64]:
    """The table of a side without overdue messages."""
    table = np.empty((OVERDUE_SLOTS, OVERDUE_COLUMNS), np.int64)
    table[:] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    return table


def join_overdue(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The earliest of the earliest, the latest of the latest."""
    return np.stack([np.minimum(one[:, 0], other[:, 0]), np.maximum(one[:, 1], other[:, 1])], 1)


LAYOUTS = {"source": SOURCE_ENTRY, "target": TARGET_ENTRY}
"""What the entries of each side look like."""

_TOPIC_TABLE_ROWS = 1 << 12


def digest(task: DigestTask) -> DigestResult:
    """Do one task. Raises SourceError when the disk refuses; damage becomes a complaint."""
    return _Digester(task).run()


class _Digester:
    """The buffers and counts of one task while it runs."""

    def __init__(self, task: DigestTask) -> None:
        self.task = task
        self.entries, self.first_number = np.empty(0, LAYOUTS[task.side].dtype), task.first_number
        keys = [topic_key(topic, task.seed) for topic in task.topics]
        self.topics_wanted = np.array(keys, np.uint64)
        self.rules = np.array(task.rules, np.int64)
        self.hashes = np.zeros(HASH_COUNT, np.uint64)
        self.facts = np.zeros(FACT_COUNT, np.int64)
        self.digests = np.zeros((CHUNK_ENTRIES, DIGEST_COLUMNS), np.uint64)
        self.complaints = np.zeros(CHUNK_ENTRIES, np.uint8)
        self.buckets = np.zeros((BUCKETS, BUCKET_COLUMNS), np.uint64)
        self.topic_keys = np.zeros(_TOPIC_TABLE_ROWS, np.uint64)
        self.topic_rows = np.zeros((_TOPIC_TABLE_ROWS, TOPIC_COLUMNS), np.int64)
        self.topics: dict[int, TopicUse] = {}
        self.overdue = no_overdue()
        self.complaint_counts: dict[Complaint, tuple[int, tuple[int, ...]]] = {}
        self.found: list[Found] = []
        self.writer = None if task.grouping is None else BlockWriter(task.grouping)
        self.identities = np.sort(np.array(task.identities, np.uint64))
        self.wanted = _wanted_buckets(task.buckets, self.identities)

    def run(self) -> DigestResult:
        is_read_once = self.task.side == "target"  # a source was read before
        with open_log(StoreRoot(self.task.store), self.task.file_bytes) as reader:
            spans = SpanReader(reader, is_read_once=is_read_once)
            for block in _blocks(self.task):
                self.entries = block
                offsets = block["commit_log_offset"].astype(np.int64)
                sizes = block["size_bytes"].astype(np.int64)
                for span in spans.spans(offsets, sizes):
                    self._digest_span(span)
                self.first_number += len(block)
        self._empty_topics()
        return DigestResult(
            self.task.side,
            self.buckets,
            self.complaint_counts,
            joined(self.found),
            self.topics,
            self.overdue,
            () if self.writer is None else self.writer.finish(),
        )

    def _digest_span(self, span: Span) -> None:
        bytes_there = (address_of(span.buffer), span.offset, span.available)
        first, last = span.first, span.last
        while first < last:
            stop = self._call_kernel(first, last, bytes_there)
            self._take(first, stop)
            if stop < last and not self._empty_topics():
                self.complaints[0] = Complaint.OUTSIDE
                self._take(stop, stop + 1)
                stop += 1
            first = stop

    def _call_kernel(self, first: int, last: int, span: tuple[int, int, int]) -> int:
        common = (address_of(self.entries), first, last, *span, np.uint64(self.task.seed))
        outputs = (self.hashes, self.facts, self.digests, self.complaints)
        if self.task.side == "source":
            return digest_source(*common, self.topics_wanted, *outputs)
        tables = (self.topic_keys, self.topic_rows, self.overdue)
        return digest_target(*common, self.rules, *outputs, *tables)

    def _take(self, first: int, stop: int) -> None:
        """Add the records of entries ``first`` to ``stop``, which lie in rows from 0 on."""
        count = stop - first
        complaints = self.complaints[:count]
        add_to_buckets(self.digests, self.complaints, count, self.buckets)
        if complaints.any():
            self._count_complaints(first, complaints)
        if self.wanted is not None:
            self._find(first, count)

    def _count_complaints(self, first: int, complaints: NDArray[np.uint8]) -> None:
        for code in np.unique(complaints[complaints != 0]):
            rows = np.flatnonzero(complaints == code)
            numbers = tuple(self.first_number + first + int(row) for row in rows[:EXAMPLES_KEPT])
            count, examples = self.complaint_counts.get(Complaint(code), (0, ()))
            self.complaint_counts[Complaint(code)] = (
                count + len(rows),
                (examples + numbers)[:EXAMPLES_KEPT],
            )

    def _find(self, first: int, count: int) -> None:
        """Keep the records that were asked for one by one."""
        assert self.wanted is not None
        identity = self.digests[:count, DIGEST_IDENTITY]
        complaints = self.complaints[:count]
        chosen = self.wanted[bucket_of(identity)]
        chosen &= (complaints == 0) | (complaints > LAST_UNREADABLE)
        rows = np.flatnonzero(chosen)
        if self.task.buckets is None:
            there = np.searchsorted(self.identities, identity[rows])
            rows = rows[self.identities[there % len(self.identities)] == identity[rows]]
        if len(rows):
            numbers = rows + self.first_number + first
            keep = self.found.append if self.writer is None else self.writer.add
            keep(found_records(numbers, self.digests[rows], complaints[rows]))

    def _empty_topics(self) -> bool:
        """Move the kernel's table of topics here, so that it has room; False when it was empty."""
        used = np.flatnonzero(self.topic_rows[:, TOPIC_COUNT])
        for index in used:
            row = self.topic_rows[index]
            use = TopicUse(
                int(row[TOPIC_COUNT]), int(row[TOPIC_MAX_QUEUE_ID]), int(row[TOPIC_EXAMPLE])
            )
            key = int(self.topic_keys[index])
            self.topics[key] = self.topics[key].plus(use) if key in self.topics else use
        is_half_full = 2 * len(used) >= _TOPIC_TABLE_ROWS
        self.topic_rows[:] = 0
        return is_half_full


def _blocks(task: DigestTask) -> Iterator[NDArray[np.void]]:
    """The entries of a task, a block behind the other. Raises SourceError for a cut file."""
    layout = LAYOUTS[task.side]
    for rows in row_blocks(task.count):
        if not isinstance(task.entries, Path):
            yield np.ascontiguousarray(task.entries[rows])
            continue
        size_bytes = (rows.stop - rows.start) * layout.size
        data = read_piece(task.entries, rows.start * layout.size, size_bytes)
        if len(data) < size_bytes:
            raise SourceError(
                f"{task.entries}: gone or cut short; every worker must see the scratch directory"
            )
        yield np.frombuffer(data, layout.dtype)


def _wanted_buckets(
    buckets: bytes | None, identities: NDArray[np.uint64]
) -> NDArray[np.bool_] | None:
    if buckets is not None:
        return np.frombuffer(buckets, np.bool_)
    if not len(identities):
        return None
    wanted = np.zeros(BUCKETS, np.bool_)
    wanted[bucket_of(identities)] = True
    return wanted
