# SPDX-License-Identifier: Apache-2.0
"""One task of verification: read a run of records once, in bulk, and return numbers.

A task gets the entries it must find (as bytes, or as a file of them), reads the log with ``pread``
into one reused buffer, and lets a kernel digest what is there. Nothing that it returns grows with
the number of messages, except where differing buckets are asked for one by one.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import SourceError
from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_small_file
from message_store.kernels.raw_memory import address_of
from migrate.verify.complaints import LAST_UNREADABLE, Complaint
from migrate.verify.digests import (
    EXAMPLES_KEPT,
    DigestResult,
    DigestTask,
    FoundRecords,
    TopicUse,
    no_overdue,
)
from migrate.verify.entries import (
    BUCKET_COLUMNS,
    BUCKETS,
    DIGEST_COLUMNS,
    DIGEST_IDENTITY,
    SOURCE_ENTRY,
    TARGET_ENTRY,
    add_to_buckets,
    bucket_of,
)
from migrate.verify.reading import CHUNK_ENTRIES, read_spans
from migrate.verify.record_kernel import FACT_COUNT, HASH_COUNT, topic_key
from migrate.verify.source_kernel import digest_source
from migrate.verify.target_kernel import (
    TOPIC_COLUMNS,
    TOPIC_COUNT,
    TOPIC_EXAMPLE,
    TOPIC_MAX_QUEUE_ID,
    digest_target,
)

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
        self.entries = _entries_of(task)
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
        self.found: list[FoundRecords] = []
        self.identities = np.array(task.identities, np.uint64)
        self.wanted = _wanted_buckets(task.buckets, self.identities)

    def run(self) -> DigestResult:
        with SegmentReader(self.task.commit_log, self.task.file_bytes) as reader:
            for span in read_spans(reader, self.entries):
                self._digest_span(span.first, span.last, span.buffer, span.offset, span.available)
        self._empty_topics()
        return DigestResult(
            self.task.side,
            self.buckets,
            self.complaint_counts,
            FoundRecords.joined(self.found),
            self.topics,
            self.overdue,
        )

    def _digest_span(
        self, first: int, last: int, buffer: NDArray[np.uint8], offset: int, available: int
    ) -> None:
        place = (address_of(buffer), offset, available)
        while first < last:
            stop = self._call_kernel(first, last, place)
            self._take(first, stop)
            if stop < last and not self._empty_topics():
                self.complaints[0] = Complaint.OUTSIDE
                self._take(stop, stop + 1)
                stop += 1
            first = stop

    def _call_kernel(self, first: int, last: int, place: tuple[int, int, int]) -> int:
        common = (address_of(self.entries), first, last, *place, np.uint64(self.task.seed))
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
            numbers = tuple(
                self.task.first_number + first + int(row) for row in rows[:EXAMPLES_KEPT]
            )
            known, examples = self.complaint_counts.get(Complaint(code), (0, ()))
            self.complaint_counts[Complaint(code)] = (
                known + len(rows),
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
            rows = rows[np.isin(identity[rows], self.identities)]
        if len(rows):
            numbers = rows + self.task.first_number + first
            self.found.append(FoundRecords(numbers, self.digests[rows], complaints[rows]))

    def _empty_topics(self) -> bool:
        """Move the kernel's table of topics here, so that it has room; False when it was empty."""
        used = np.flatnonzero(self.topic_rows[:, TOPIC_COUNT])
        for place in used:
            row = self.topic_rows[place]
            use = TopicUse(
                int(row[TOPIC_COUNT]), int(row[TOPIC_MAX_QUEUE_ID]), int(row[TOPIC_EXAMPLE])
            )
            key = int(self.topic_keys[place])
            self.topics[key] = self.topics[key].plus(use) if key in self.topics else use
        is_half_full = 2 * len(used) >= _TOPIC_TABLE_ROWS
        self.topic_rows[:] = 0
        return is_half_full


def _entries_of(task: DigestTask) -> NDArray[np.void]:
    content = task.entries
    if isinstance(content, Path):
        read = read_small_file(content)
        if read is None:
            raise SourceError(f"{content}: gone; every worker must see the scratch directory")
        content = read
    return np.frombuffer(content, LAYOUTS[task.side].dtype)


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
