# SPDX-License-Identifier: Apache-2.0
"""Selects the pending messages of the topics asked for, in one pass over all records."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.backlog import LevelBacklog
from message_store.base.errors import OptionsError
from message_store.files.log_row import open_log
from message_store.files.store_root import StoreRoot
from message_store.format.record_layout import SMALLEST_RECORD_BYTES
from message_store.kernels.cache import kernel
from message_store.kernels.raw_memory import address_of
from message_store.reading.record_reader import NOT_THERE, Chunk, read_chunks
from migrate.source.level_record import FOUND_SIZE, TOPIC_END, TOPIC_START, find_level_record
from migrate.source.topic_table import NOT_PLAIN, TABLE_FULL, TopicTable, add_plain_topic
from migrate.write.rewrite import (
    BadRecordError,
    Placement,
    RewriteLimits,
    real_topic_of,
    rewrite_record,
)

_UNKNOWN = -1
_ANY_OUT_MS = 10**12
"""A due time with as many digits as each that a conversion writes."""


@kernel(
    "int64(int64, int64, int64[::1], int32[::1], int16[::1], int64[::1], int64, int32[::1], int64)"
)
def number_topics(
    buffer: int, buffer_bytes: int, begins: Any, sizes: Any, levels: Any, offsets: Any,
    table: int, numbers: Any, start: int,
) -> int:  # fmt: skip
    """Fill ``numbers`` with each record's number in the topic table, -1 for unusual records.

    Returns how many records were numbered: fewer than all when the table was full.
    """
    facts = np.zeros(FOUND_SIZE, np.int64)
    facts_address = facts.ctypes.data
    for i in range(start, len(begins)):
        numbers[i] = _UNKNOWN
        size = int(sizes[i])
        if begins[i] < 0 or size < SMALLEST_RECORD_BYTES or size > buffer_bytes - begins[i]:
            continue
        record = buffer + int(begins[i])
        if not find_level_record(record, size, int(levels[i]), offsets[i], facts_address):
            continue
        name, name_bytes = facts[TOPIC_START], facts[TOPIC_END] - facts[TOPIC_START]
        number = add_plain_topic(table, name, name_bytes)
        if number == TABLE_FULL:
            return i
        if number == NOT_PLAIN:
            continue
        numbers[i] = number
    return len(begins)


def choose_topics(
    source: StoreRoot, backlog: LevelBacklog, topics: tuple[str, ...]
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """A mask of the backlog: records for one of these topics, and records that cannot be read.

    Unreadable records stay chosen, so that they are reported as bad and not skipped. Also returns
    the number of messages left out, for each other topic. Raises OptionsError for a topic without a
    pending message.
    """
    wanted = {topic.encode() for topic in topics}
    chosen = np.zeros(len(backlog.level), np.bool_)
    counts: Counter[bytes] = Counter()
    for span, numbers, seen in _topics_of(source, backlog, lambda record, _: real_topic_of(record)):
        is_wanted = np.array([topic is None or topic in wanted for topic in seen], np.bool_)
        chosen[span] = is_wanted[numbers]
        counts.update(_counted(numbers, seen))
    if unknown := sorted(topic for topic in topics if not counts[topic.encode()]):
        waiting = ", ".join(sorted(topic.decode("utf-8", "replace") for topic in counts))
        raise OptionsError(f"nothing waits for topic {unknown[0]}; there is: {waiting}")
    left_out = {
        topic.decode("utf-8", "replace"): count
        for topic, count in sorted(counts.items())
        if count and topic not in wanted
    }
    return chosen, left_out


def count_topics(
    source: StoreRoot, backlog: LevelBacklog, chosen: NDArray[np.bool_], limits: RewriteLimits
) -> tuple[dict[str, int], NDArray[np.int64]]:
    """How many of the chosen messages there are for each real topic, and the rows of the chosen
    records that cannot be converted, whatever place they would get.
    """

    def topic_of(record: bytes, row: int) -> bytes | None:
        placement = Placement(
            level=int(backlog.level[row]),
            source_offset=int(backlog.commit_log_offset[row]),
            source_size_bytes=len(record),
            out_ms=_ANY_OUT_MS,
            target_offset=0,
            target_queue_offset=0,
            now_ms=0,
        )
        try:
            return rewrite_record(record, placement, limits).real_topic
        except BadRecordError:
            return None

    counts: Counter[bytes] = Counter()
    unknown = []
    for span, numbers, seen in _topics_of(source, backlog, topic_of):
        counts.update(_counted(numbers[chosen[span]], seen))
        nameless = np.array([topic is None for topic in seen], np.bool_)
        unknown.append(span.start + np.flatnonzero(nameless[numbers] & chosen[span]))
    named = {topic.decode("utf-8", "replace"): count for topic, count in sorted(counts.items())}
    return named, np.concatenate([np.empty(0, np.int64), *unknown])


def _counted(numbers: NDArray[np.int32], seen: list[bytes | None]) -> Counter[bytes]:
    counts: Counter[bytes] = Counter()
    for topic, count in zip(seen, np.bincount(numbers, minlength=len(seen)).tolist(), strict=True):
        if topic is not None and count:
            counts[topic] += count
    return counts


def _topics_of(
    source: StoreRoot, backlog: LevelBacklog, topic_of: Callable[[bytes, int], bytes | None]
) -> Iterator[tuple[slice, NDArray[np.int32], list[bytes | None]]]:
    """For a run of the backlog's rows after the other, in one pass over all records: each record's
    topic, as a number in a list of topics, where one may stand more than once. Of an unusual record
    ``topic_of`` tells it, given its row too; None is there for one that is not in the log.
    """
    table = TopicTable()
    sizes = backlog.size_bytes.astype(np.int32)
    levels = backlog.level.astype(np.int16)
    with open_log(source) as log:
        for chunk in read_chunks(log, backlog.commit_log_offset, sizes):
            span = slice(chunk.first, chunk.end)
            numbers = _numbers(
                chunk, sizes[span], levels[span], backlog.commit_log_offset[span], table
            )
            seen: list[bytes | None] = [entry.topic for entry in table.counts()]
            for at in np.flatnonzero(numbers == _UNKNOWN).tolist():
                row, start = chunk.first + at, int(chunk.buffer_offsets[at])
                record = chunk.buffer[start : start + int(sizes[row])].tobytes()
                numbers[at] = len(seen)
                seen.append(None if start == NOT_THERE else topic_of(record, row))
            yield span, numbers, seen


def _numbers(
    chunk: Chunk, sizes: Any, levels: Any, offsets: Any, table: TopicTable
) -> NDArray[np.int32]:
    numbers = np.empty(chunk.end - chunk.first, np.int32)
    done = 0
    while True:
        done = number_topics(
            address_of(chunk.buffer), chunk.buffer_bytes, chunk.buffer_offsets, sizes, levels,
            offsets, table.address, numbers, done,
        )  # fmt: skip
        if done == len(numbers):
            return numbers
        table.grow()
