# SPDX-License-Identifier: Apache-2.0
"""A workload: which messages arrive when, and when each is wanted; their bodies made when needed.

A message is its number, a row of the columns. Its body begins with that number, which identifies
the message in its topic. The rest of the body is a piece of one random block.
"""

import attrs
import numpy as np

from compare.report.results import WorkloadFacts
from message_store.columns.byte_column import ByteColumn, Bytes, Int64s, int64s
from message_store.columns.message_batch import MessageBatch
from message_store.format.delay_levels import DelayLevels
from message_store.format.message import Message

NUMBER_BYTES = 8
"""The shortest body: a number, big-endian."""
QUEUES = 4
BLOCK_BYTES = 1 << 20
_STRIDE = 7_919


@attrs.frozen(eq=False, kw_only=True)
class Workload:
    """Columns of int64, a row a message, in the order of arrival; times are epoch ms.

    ``due_ms`` is the time asked for. ``level`` is the delay level asked for, 0 where it was a time;
    then ``due_ms`` is the arrival and that level's delay. ``topic`` is an index into ``topics``.
    A message goes to queue ``number // len(topics) % QUEUES``. Its body is its number in
    NUMBER_BYTES bytes and then ``block[number * 7919 % BLOCK_BYTES :]``, ``body_bytes`` in all.
    """

    name: str
    start_ms: int
    arrival_ms: Int64s = attrs.field(converter=int64s)
    due_ms: Int64s = attrs.field(converter=int64s)
    level: Int64s = attrs.field(converter=int64s)
    topic: Int64s = attrs.field(converter=int64s)
    body_bytes: Int64s = attrs.field(converter=int64s)
    topics: tuple[str, ...]
    seed: int = 0
    rate_per_second: float | None = None
    source: str | None = None

    def __len__(self) -> int:
        return len(self.arrival_ms)

    @property
    def end_ms(self) -> int:
        """When the last message is wanted, or arrives."""
        return int(max(self.due_ms.max(initial=0), self.arrival_ms.max(initial=self.start_ms)))

    def block(self) -> Bytes:
        """What bodies are cut from: the same for the same seed."""
        longest = int(self.body_bytes.max(initial=NUMBER_BYTES)) - NUMBER_BYTES
        rng = np.random.default_rng(self.seed)
        return rng.integers(0, 256, BLOCK_BYTES + longest, np.uint8)

    def level_table(self) -> str | None:
        """The level table by which messages were put; None where RocketMQ's own is the one.

        A level is whole seconds. Levels without a message keep RocketMQ's delay.
        """
        own = DelayLevels.parse()
        delays_ms = self.due_ms - self.arrival_ms
        tells = (self.level > 0) & (delays_ms >= 1_000) & (delays_ms % 1_000 == 0)
        found = dict(zip(self.level[tells].tolist(), delays_ms[tells].tolist(), strict=True))
        known = dict(enumerate(own.delays_ms, 1)) | found
        last = max(own.delays_ms)
        table = DelayLevels(tuple(known.get(level, last) for level in range(1, max(known) + 1)))
        return None if table == own else table.text()

    def starting_at(self, start_ms: int) -> "Workload":
        """The same messages, everything as much later or earlier."""
        by_ms = start_ms - self.start_ms
        return attrs.evolve(
            self, start_ms=start_ms, arrival_ms=self.arrival_ms + by_ms, due_ms=self.due_ms + by_ms
        )

    def facts(self) -> WorkloadFacts:
        """What it is, in a few numbers."""
        delays = self.due_ms - self.arrival_ms
        sizes = self.body_bytes
        return WorkloadFacts(
            name=self.name,
            messages=len(self),
            body_bytes=round(float(sizes.mean())) if len(self) else 0,
            topics=len(self.topics),
            seed=self.seed,
            start_ms=self.start_ms,
            arrival_span_ms=int(np.ptp(self.arrival_ms)) if len(self) else 0,
            delay_min_ms=int(delays.min()) if len(self) else 0,
            delay_max_ms=int(delays.max()) if len(self) else 0,
            rate_per_second=self.rate_per_second,
            source=self.source,
            overdue=int((delays < 0).sum()),
        )


class MessageMaker:
    """Makes the messages of a workload, some at a time."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._block = workload.block()
        self._topics = ByteColumn.of(workload.topics)

    def batch(self, first: int, last: int) -> MessageBatch:
        """The messages from one number up to another."""
        numbers = np.arange(first, last)
        lengths = self._workload.body_bytes[numbers]
        starts = np.cumsum(lengths) - lengths
        data = np.empty(int(lengths.sum()), np.uint8)
        heads = numbers.astype(">i8").view(np.uint8).reshape(-1, NUMBER_BYTES)
        data[starts[:, None] + np.arange(NUMBER_BYTES)] = heads
        self._fill(data, numbers, starts, lengths - NUMBER_BYTES)
        return MessageBatch(
            body=ByteColumn(data, starts, lengths),
            topic=self._topics.take(self._workload.topic[numbers]),
            queue_id=numbers // len(self._workload.topics) % QUEUES,
        )

    def singly(self, first: int, last: int) -> list[Message]:
        """The same messages as values."""
        made = self.batch(first, last)
        topics, bodies = self._workload.topics, made.body.data.tobytes()
        starts = made.body.starts
        rows = zip(
            self._workload.topic[first:last].tolist(),
            starts.tolist(),
            (starts + made.body.lengths).tolist(),
            made.queue_id.tolist(),
            strict=True,
        )
        return [
            Message(topics[topic], bodies[start:end], queue_id=queue_id)
            for topic, start, end, queue_id in rows
        ]

    def _fill(self, data: Bytes, numbers: Int64s, starts: Int64s, lengths: Int64s) -> None:
        """Everything behind the numbers; the rows of one length together."""
        places = numbers * _STRIDE % BLOCK_BYTES
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            if not length:
                continue
            pieces = np.lib.stride_tricks.sliding_window_view(self._block, length)[places[rows]]
            if len(rows) == len(numbers):
                data.reshape(len(numbers), -1)[:, NUMBER_BYTES:] = pieces
            else:
                data[starts[rows, None] + np.arange(NUMBER_BYTES, NUMBER_BYTES + length)] = pieces
