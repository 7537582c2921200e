# SPDX-License-Identifier: Apache-2.0
"""Reads what was delivered from the files of a store that nobody holds, as its consumers would.

Entries of the consume queues say where; the records themselves are decoded, checksums and all. No
engine is asked. Does for every store in RocketMQ's files, whoever wrote it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from compare.running.observation import Delivered
from compare.workloads.workload import NUMBER_BYTES, QUEUES
from message_store.base.errors import FormatError
from message_store.columns.byte_column import Bytes, Int64s
from message_store.columns.message_batch import StoredBatch, decode_batch
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader, list_directories
from message_store.files.store_root import StoreRoot
from message_store.format.properties import UNIQUE_KEY, WAITING_TOPICS
from message_store.format.queue_unit import MAX_NEUTRAL_BYTES
from message_store.interface.delay_store import DelayStore
from message_store.reading.consume_queue import read_queue
from message_store.reading.spans import read_spans
from message_store.reading.topic_listing import topics_with_queues

_READ_AT_ONCE = 1_024


def read_delivered(path: Path, topics: Sequence[str]) -> Delivered:
    """What stands in these topics of the store at ``path``, in the order of its log.

    A record that cannot be read counts as not there. Raises SourceError where the disk refuses.
    """
    root = StoreRoot(path)
    offsets, sizes = _entries(root, topics)
    with open_log(root) as log:
        return Delivered.of(_numbered(batch) for batch in _batches(log, offsets, sizes))


def read_delivered_keys(path: Path, from_ms: int) -> list[tuple[str, int]]:
    """Unique keys and store times of everything that stands in applications' topics since then, in
    the order of the log; whatever the bodies are.
    """
    root = StoreRoot(path)
    topics = [name for name in topics_with_queues(path) if name not in WAITING_TOPICS]
    offsets, sizes = _entries(root, topics)
    keys_and_times: list[tuple[str, int]] = []
    with open_log(root) as log:
        for batch in _batches(log, offsets, sizes):
            keys = (key.decode("utf-8", "replace") for key in batch.property(UNIQUE_KEY))
            rows = zip(keys, batch.store_timestamp_ms.tolist(), strict=True)
            keys_and_times += [(key, time_ms) for key, time_ms in rows if time_ms >= from_ms]
    return keys_and_times


def read_delivered_of(store: DelayStore, topics: Sequence[str]) -> Delivered:
    """The same of an open store without files, by its topics' readers."""
    messages_read = []
    for topic in topics:
        reader = store.topic(topic)
        for queue_id in range(QUEUES):
            place = 0
            while messages := reader.read(queue_id, place, _READ_AT_ONCE):
                place = messages[-1].queue_offset + 1
                messages_read += [
                    (each.commit_log_offset, each.body, each.store_timestamp_ms)
                    for each in messages
                ]
    messages_read.sort()
    numbers = [int.from_bytes(body[:NUMBER_BYTES], "big") for _offset, body, _ms in messages_read]
    return Delivered(numbers, [stored_ms for _offset, _body, stored_ms in messages_read])


def _entries(root: StoreRoot, topics: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Log offsets and sizes of all entries of these topics, by offset."""
    offsets, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for topic in topics:
        for directory in list_directories(root.consume_queues / topic):
            entries = read_queue(directory)
            is_message = ~entries.is_pre_blank & (entries.size_bytes > MAX_NEUTRAL_BYTES)
            offsets.append(entries.commit_log_offset[is_message])
            sizes.append(entries.size_bytes[is_message])
    offset, size = np.concatenate(offsets), np.concatenate(sizes)
    order = np.argsort(offset, kind="stable")
    return offset[order], size[order]


def _batches(log: SegmentReader, offsets: Int64s, sizes: Int64s) -> Iterator[StoredBatch]:
    """The records that entries name, as far as they are there."""
    for span in read_spans(log, offsets, sizes):
        starts = offsets[span.first : span.last] - span.offset
        is_whole = starts + sizes[span.first : span.last] <= span.available
        if is_whole.any():
            yield from _decoded(span.buffer[: span.available], starts[is_whole])


def _decoded(buffer: Bytes, starts: Int64s) -> Iterator[StoredBatch]:
    """The records that begin there; where one is damaged, the others."""
    try:
        yield decode_batch(buffer, starts)
    except FormatError:
        if len(starts) > 1:
            middle = len(starts) // 2
            yield from _decoded(buffer, starts[:middle])
            yield from _decoded(buffer, starts[middle:])


def _numbered(batch: StoredBatch) -> Delivered:
    """The numbers that bodies begin with; shorter bodies are no messages of a race."""
    rows = np.flatnonzero(batch.body.lengths >= NUMBER_BYTES)
    places = batch.body.starts[rows, None] + np.arange(NUMBER_BYTES)
    numbers = np.ascontiguousarray(batch.body.data[places]).view(">i8").ravel()
    return Delivered(numbers, batch.store_timestamp_ms[rows])
