# SPDX-License-Identifier: Apache-2.0
"""The figures of an open store under RocketMQ's own names (RIP-46), as values and for Prometheus.

RocketMQ: DefaultStoreMetricsManager and BrokerMetricsManager (5.5.0). What is pending is counted
once, as the engine lists it. From then on the queues tell what came in and what was delivered, so a
look costs what happened since the last one. Left out is what has no meaning here, or is not known:
docs/ENGINES.md lists it.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Protocol, cast

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumer_groups import GroupStore, group_names, group_topics
from consumer_groups.received import dead_letter_topic, retry_topic
from message_store.columns.byte_column import ByteColumn, Int64s, int64s
from message_store.columns.message_batch import StoredBatch
from message_store.format import properties as names
from message_store.format.queue_unit import MAX_NEUTRAL_BYTES
from message_store.redelivery.deliveries import LogDeliveries
from message_store.writing.queue import LiveQueue
from message_store.writing.store import LiveStore
from timer_wheel.format.timer_due import due_times

Labels = tuple[tuple[str, str], ...]

DELAY_BOUNDS_S = (60, 600, 3_600, 43_200, 86_400, 259_200)
"""The buckets of ``rocketmq_delay_message_latency``: a minute to three days."""

SNAPSHOT_BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""The bounds of ``rocketmq_timer_message_snapshot``: five seconds to a day."""

WIDEST_SLOT_MS = 1_000
_PIECE = 1 << 16


@attrs.frozen
class Sample:
    """One figure; ``suffix`` is what Prometheus adds to the name of a histogram's parts."""

    labels: Labels
    value: int
    suffix: str = ""


@attrs.frozen
class Metric:
    """A metric with its samples; ``kind`` is counter, gauge or histogram."""

    name: str
    kind: str
    meaning: str
    samples: tuple[Sample, ...]


@attrs.define(eq=False)
class _Delays:
    """The histogram of one topic: for how long messages were asked to wait."""

    counts: list[int] = attrs.field(factory=lambda: [0] * (len(DELAY_BOUNDS_S) + 1))
    sum_s: int = 0

    def add(self, delays_s: Int64s) -> None:
        """Count some."""
        buckets = np.searchsorted(DELAY_BOUNDS_S, delays_s)
        for bucket, count in enumerate(np.bincount(buckets, minlength=len(self.counts)).tolist()):
            self.counts[bucket] += count
        self.sum_s += int(delays_s.sum())

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """The parts that Prometheus wants, cumulative."""
        total = 0
        for bound, count in zip((*map(str, DELAY_BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            yield Sample((*labels, ("le", bound)), total, "_bucket")
        yield Sample(labels, self.sum_s, "_sum")
        yield Sample(labels, total, "_count")


class _Engine(Protocol):
    """What figures need of a store besides: every engine on files has it."""

    def waiting_records(self) -> Iterator[LogDeliveries]:
        """The record and the promise of each message that waits, in pieces."""

    def unplaced_offsets(self) -> Int64s:
        """Where the records lie that wait in a queue for their place."""


class StoreMetrics:
    """The figures of one store from the moment at which this was made, when it was just opened.

    Counters count from then on. A message that this process cancels in a delay level stays counted
    as pending if a look has seen it: nothing tells of the cancel. Any thread may ask. Raises
    SourceError where the files cannot be read, and FormatError for a record that is damaged.
    """

    def __init__(self, store: GroupStore) -> None:
        assert store.live is not None
        self._store, self._engine = store, cast(_Engine, store)
        self._live: LiveStore = store.live
        self._enqueued: Counter[str] = Counter()
        self._dequeued: Counter[str] = Counter()
        self._delays: dict[str, _Delays] = {}
        self._pending: Counter[str] = Counter()
        self._due: Counter[int] = Counter()
        """How many pending messages are due in each second to come, at its end."""
        with store.lock:
            for part in self._engine.waiting_records():
                for topic, rows in _rows_by_topic(part.to_batch().property(names.REAL_TOPIC)):
                    self._pending[topic] += len(rows)
                self._due += _by_second(part.promised_ms)
            self._ends = {(q.topic, q.queue_id): q.max_offset for q in self._live.queues}

    def metrics(self) -> list[Metric]:
        """All metrics of this moment. Raises StoreClosedError, and SourceError."""
        with self._store.lock:
            self._live.require_open()
            enqueuing = [*self._enqueue_metrics()]  # what looks for the next message places it
            for queue in self._live.queues:
                self._look_at(queue)
            told = self._timer_metrics(), self._group_metrics(), self._storage_metrics()
            return [*enqueuing, *chain.from_iterable(told)]

    # --- what happened since the last look --------------------------------------------------------

    def _look_at(self, queue: LiveQueue) -> None:
        key = queue.topic, queue.queue_id
        first, end = self._ends.get(key, queue.min_offset), queue.max_offset
        self._ends[key] = end
        if queue.topic not in names.WAITING_TOPICS:
            self._dequeued[queue.topic] += end - first
            self._pending[queue.topic] -= end - first
            return
        for begin in range(max(first, queue.min_offset), end, _PIECE):
            units = queue.units(begin, min(begin + _PIECE, end))
            units = units[units["size_bytes"] > MAX_NEUTRAL_BYTES]
            places = int64s(units["commit_log_offset"]), int64s(units["size_bytes"])
            batch = LogDeliveries(self._live, *places, np.zeros(len(units), np.int64)).to_batch()
            self._came_in(batch, int64s(units["tags_code"]), queue.topic)

    def _came_in(self, batch: StoredBatch, tags_codes: Int64s, system_topic: str) -> None:
        """Count what was scheduled: not what rolled; and what was cancelled by a record."""
        topics = batch.property(names.REAL_TOPIC)
        is_marker = batch.property(names.TIMER_DELETE_UNIQUE_KEY).lengths > 0
        is_copy = batch.prepared_transaction_offset < 0
        is_copy |= batch.property(names.TIMER_ROLL_TIMES).lengths > 0
        is_of_index = system_topic == names.TIME_INDEX_TOPIC
        is_cancel = is_copy if is_of_index else is_marker & ~is_copy
        is_new = ~is_marker & ~is_copy
        if system_topic == names.LEVEL_TOPIC:
            due_ms = tags_codes
        else:
            due_ms = _numbers(batch.property(names.TIMER_OUT_MS))
        if system_topic == names.TIMER_TOPIC:  # narrower slots end in the same second
            due_ms = due_times(due_ms, batch.store_timestamp_ms, WIDEST_SLOT_MS)
        self._due += _by_second(due_ms[is_new])
        self._due -= _by_second(due_ms[is_cancel])
        delays_s = np.maximum(due_ms - batch.born_timestamp_ms, 0) // 1_000
        for topic, rows in _rows_by_topic(topics):
            count = int(is_new[rows].sum())
            self._enqueued[topic] += count
            self._pending[topic] += count - int(is_cancel[rows].sum())
            if count:
                delays = self._delays.setdefault(topic, _Delays())
                delays.add(delays_s[rows][is_new[rows]])

    # --- what is told -----------------------------------------------------------------------------

    def _labels(self, *more: tuple[str, str]) -> Labels:
        broker = self._live.settings.broker_name
        return (("node_type", "broker"), ("node_id", broker), *more)

    def _storage_labels(self, *more: tuple[str, str]) -> Labels:
        """Those of everything that a broker's store tells."""
        return self._labels(("storage_type", "local"), ("storage_medium", "disk"), *more)

    def _by_topic(self, counts: Mapping[str, int]) -> tuple[Sample, ...]:
        return tuple(
            Sample(self._storage_labels(("topic", topic)), count)
            for topic, count in sorted(counts.items())
        )

    def _gauge(self, name: str, meaning: str, *values: int) -> Metric:
        labels = self._storage_labels()
        return Metric(name, "gauge", meaning, tuple(Sample(labels, value) for value in values))

    def _storage_metrics(self) -> Iterator[Metric]:
        """The disk, and what of the log is not on it; without a sample where nothing is to tell."""
        log, used = self._live.log, []
        with suppress(OSError):
            used = [shutil.disk_usage(self._live.root.path).used]
        meaning = "Used bytes of the file system that has the store."
        yield self._gauge("rocketmq_storage_size", meaning, *used)
        meaning = "Bytes of the log that no flush has made durable."
        behind = log.end - self._live.synced_end
        yield self._gauge("rocketmq_storage_flush_behind_bytes", meaning, behind)
        meaning = "Bytes of the log without queue entries: none, an append makes both."
        yield self._gauge("rocketmq_storage_dispatch_behind_bytes", meaning, 0)
        meaning = "Milliseconds since the first record of the log was stored."
        first_ms = log.store_time_ms(log.min_offset)
        ages_ms = [self._store.clock.now_ms() - first_ms] if first_ms else []
        yield self._gauge("rocketmq_storage_message_reserve_time", meaning, *ages_ms)

    def _enqueue_metrics(self) -> Iterator[Metric]:
        """How far an engine is behind with placing what came in."""
        offsets, now_ms = self._engine.unplaced_offsets(), self._store.clock.now_ms()
        since_ms = self._live.log.store_time_ms(int(offsets[0])) if len(offsets) else now_ms
        meaning = "Messages that were stored and have no place on the wheel yet."
        yield self._gauge("rocketmq_timer_enqueue_lag", meaning, len(offsets))
        meaning = "Milliseconds since the first of these was stored."
        yield self._gauge("rocketmq_timer_enqueue_latency", meaning, max(0, now_ms - since_ms))

    def _dequeue_metrics(self) -> Iterator[Metric]:
        """How far an engine is behind with delivering what is due, and what is due when."""
        next_due_ms, now_ms = self._store.next_due_ms(), self._store.clock.now_ms()
        now_s = now_ms // 1_000
        self._due = Counter({at: n for at, n in self._due.items() if at > now_s})
        lag = max(0, self._pending.total() - self._due.total())
        meaning = "Messages that are due and were not delivered yet."
        yield self._gauge("rocketmq_timer_dequeue_lag", meaning, lag)
        late_ms = 0 if next_due_ms is None else max(0, now_ms - next_due_ms)
        meaning = "Milliseconds for which the next message has been due."
        yield self._gauge("rocketmq_timer_dequeue_latency", meaning, late_ms)
        ahead_s = np.fromiter(self._due, np.int64, len(self._due)) - now_s
        counts = np.fromiter(self._due.values(), np.int64, len(self._due))
        buckets = np.searchsorted(SNAPSHOT_BOUNDS_S, ahead_s)
        samples = tuple(
            Sample(
                self._storage_labels(("timer_bound_s", str(bound))),
                int(counts[buckets == bucket].sum()),
            )
            for bucket, bound in enumerate(SNAPSHOT_BOUNDS_S)
        )
        meaning = "Pending messages by the seconds until they are due, up to a day."
        yield Metric("rocketmq_timer_message_snapshot", "gauge", meaning, samples)

    def _timer_metrics(self) -> Iterator[Metric]:
        yield from self._dequeue_metrics()
        yield Metric(
            "rocketmq_timing_messages", "gauge", "Pending messages.", self._by_topic(self._pending)
        )
        yield Metric(
            "rocketmq_timer_enqueue_total",
            "counter",
            "Messages that were scheduled.",
            self._by_topic(self._enqueued),
        )
        yield Metric(
            "rocketmq_timer_dequeue_total",
            "counter",
            "Messages that were delivered.",
            self._by_topic(self._dequeued),
        )
        came_in = tuple(
            Sample(self._labels(("topic", topic), ("message_type", "delay")), count)
            for topic, count in sorted(self._live.came_in.items())
        )
        meaning = "Messages that were scheduled since the store was opened."
        yield Metric("rocketmq_messages_in_total", "counter", meaning, came_in)
        delays = (
            sample
            for topic, each in sorted(self._delays.items())
            for sample in each.samples(self._labels(("topic", topic)))
        )
        yield Metric(
            "rocketmq_delay_message_latency",
            "histogram",
            "Seconds from a message's birth to the time that it was scheduled for.",
            tuple(delays),
        )

    def _group_metrics(self) -> Iterator[Metric]:
        lags = [
            (name, topic, lag)
            for name in group_names(self._store)
            for topic, lag in group_topics(self._store, name).items()
        ]
        labels = [self._group_labels(group, topic) for group, topic, _ in lags]
        meaning = "Messages that a group received since the store was opened."
        out = tuple(map(Sample, labels, [lag.received for _, _, lag in lags]))
        yield Metric("rocketmq_messages_out_total", "counter", meaning, out)
        for name, meaning, values in (
            (
                "lag_messages",
                "Messages that are not acknowledged.",
                [lag.total for _, _, lag in lags],
            ),
            (
                "lag_latency",
                "Milliseconds since the first of these was stored in its topic.",
                [self._age_ms(topic, lag.first_left) for _, topic, lag in lags],
            ),
            ("ready_messages", "Messages that can be received.", [lag.ready for _, _, lag in lags]),
            (
                "queueing_latency",
                "Milliseconds since the first of these was stored in its topic.",
                [self._age_ms(topic, lag.first_ready) for _, topic, lag in lags],
            ),
            ("inflight_messages", "Messages in hand.", [lag.in_flight for _, _, lag in lags]),
        ):
            samples = tuple(map(Sample, labels, values))
            yield Metric(f"rocketmq_consumer_{name}", "gauge", meaning, samples)
        dead = [
            Sample(self._group_labels(name, topic), self._dequeued[topic])
            for name in group_names(self._store)
            if (topic := dead_letter_topic(name)) in self._dequeued
        ]
        yield Metric("rocketmq_send_to_dlq_messages_total", "counter", "Dead letters.", tuple(dead))

    def _group_labels(self, group: str, topic: str) -> Labels:
        is_retry = "true" if topic == retry_topic(group) else "false"
        return self._labels(("topic", topic), ("consumer_group", group), ("is_retry", is_retry))

    def _age_ms(self, topic: str, offsets: Mapping[int, int]) -> int:
        """Age in ms of the oldest of these messages, of one in each queue; 0 without any."""
        queues = ((self._live.queue(topic, queue_id), at) for queue_id, at in offsets.items())
        places = [
            int(place)
            for queue, at in queues
            for place in queue.units(at, at + 1)["commit_log_offset"]
        ]
        times_ms = filter(None, map(self._live.log.store_time_ms, places))
        now_ms = self._store.clock.now_ms()
        return max(0, now_ms - min(times_ms, default=now_ms))


def _rows_by_topic(topics: ByteColumn) -> Iterator[tuple[str, Int64s]]:
    """Each topic with its rows."""
    encoded = topics.to_arrow().dictionary_encode()
    numbers = np.asarray(encoded.indices)
    for number, topic in enumerate(encoded.dictionary.to_pylist()):
        yield topic.decode("utf-8", "replace"), np.flatnonzero(numbers == number)


def _numbers(texts: ByteColumn) -> Int64s:
    """The whole numbers in a column; 0 where it holds none."""
    column = texts.to_arrow(pa.binary()).cast(pa.string(), safe=False)
    is_number = pc.match_substring_regex(column, "^[0-9]{1,18}$")
    return int64s(pc.if_else(is_number, column, "0").cast(pa.int64()))


def _by_second(due_ms: Int64s) -> Counter[int]:
    """How many of these times are in each second, which is named by its end."""
    seconds, counts = np.unique(-(-due_ms // 1_000), return_counts=True)
    return Counter(dict(zip(seconds.tolist(), counts.tolist(), strict=True)))


# --- Prometheus -----------------------------------------------------------------------------------


def prometheus_text(metrics: Iterable[Metric]) -> str:
    """The metrics in Prometheus' text format, version 0.0.4."""
    return "".join(line for metric in metrics for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.meaning}\n# TYPE {metric.name} {metric.kind}\n"
    for sample in metric.samples:
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels)
        yield f"{metric.name}{sample.suffix}{{{labels}}} {sample.value}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
