# SPDX-License-Identifier: Apache-2.0
"""Finds delivered copies of pending messages in the log.

A copy that was delivered here names the record that waited (``message_store.redelivery.lineage``):
it counts for that one, and for no other. Copies that a broker made name none. They are matched as a
multiset of everything that survives delivery. The client's message id does not suffice: retries
share it, and some records have none.

Limitations of the multiset: of two pending messages with equal fields, the earlier due counts as
delivered first. A broker may have delivered a message early, because the clock was set back or the
level was shortened. That is only recognised if the log's own times show it.
"""

from typing import TypeAlias

import attrs
import numpy as np

from legacy_levels.copies.kernels import pair_up
from legacy_levels.copies.log_notes import LogNotes, digest_level_records, take_notes
from message_store.files.segments import SegmentReader
from message_store.format.java_numbers import LONG_MAX
from message_store.reading.commit_log import (
    NO_TIME,
    Int32Array,
    Int64Array,
    first_store_times,
    read_store_times,
)
from message_store.reading.consume_queue import BoolArray

_STARTS_A_ROUND = 512


_CLOCK_SLACK_MS = 1_000


@attrs.frozen(eq=False)
class Waiting:
    """Messages that may have been delivered: where they are, and since when that may be."""

    commit_log_offset: Int64Array
    size_bytes: Int32Array
    earliest_ms: Int64Array

    def __len__(self) -> int:
        return len(self.commit_log_offset)


DigestRows: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int64]]


def find_delivered(
    log: SegmentReader,
    waiting: Waiting,
    record_starts: Int64Array,
    tail: LogNotes,
    tail_start: int,
    *,
    log_end: int = LONG_MAX,
) -> tuple[BoolArray, LogNotes]:
    """Which of the waiting messages the log already holds a delivered copy of, and all copies that
    were looked at.

    ``waiting`` is in log order; ``record_starts`` are sorted offsets of records, for a search by
    time; ``tail`` are the notes from ``tail_start`` on, so that this part is not read again. What
    lies behind ``log_end`` does not count.
    """
    if not len(waiting):
        return np.zeros(0, np.bool_), tail.delivered_copies.before(log_end)
    start, times_go_back = _first_stored_since(
        log, int(waiting.earliest_ms.min()), int(waiting.commit_log_offset.min()), record_starts
    )
    before = take_notes(log, start, known_end=tail_start, stop_at=tail_start)
    copies = attrs.evolve(
        tail,
        rows=np.concatenate([before.delivered_copies.rows, tail.delivered_copies.rows]),
        bytes_scanned=before.bytes_scanned + tail.bytes_scanned,
    ).before(log_end)
    earliest_ms = np.zeros_like(waiting.earliest_ms) if times_go_back else waiting.earliest_ms
    is_copied = find_copied(
        log,
        waiting.commit_log_offset,
        waiting.size_bytes,
        earliest_ms,
        copies,
        copies.store_timestamp_ms,
    )
    return is_copied, copies


def find_copied(
    log: SegmentReader,
    offsets: Int64Array,
    size_bytes: Int32Array | Int64Array,
    earliest: Int64Array,
    copies: LogNotes,
    copied: Int64Array,
) -> BoolArray:
    """Which of these records, in log order, the copies are of.

    A copy that names a record is of that one, whatever it looks like and whenever it was stored. An
    entry that holds nothing leads to no record, also where one lies at 0. A copy without a name
    counts for one that is equal in what survives delivery, and whose
    ``earliest`` is not above its own ``copied``: times, or places.
    """
    is_copied = copies.name(offsets) & (size_bytes > 0)
    is_unnamed = copies.names_none
    if is_unnamed.any():
        rows = np.flatnonzero(~is_copied)
        digests, is_record = digest_level_records(log, offsets[rows], size_bytes[rows])
        rows, digests = rows[is_record], digests[is_record]
        is_copied[rows] = match_copies(
            digests, earliest[rows], copies.digests[is_unnamed], copied[is_unnamed]
        )
    return is_copied


def have_copies(log: SegmentReader, offsets: Int64Array, size_bytes: Int64Array) -> BoolArray:
    """Which of these records, in log order, the log holds a delivered copy of, of any time."""
    first = max(int(offsets.min(initial=log.end_offset)), log.min_offset)
    copies = take_notes(log, first, known_end=log.end_offset).delivered_copies
    return find_copied(log, offsets, size_bytes, offsets, copies, copies.commit_log_offset)


def _first_stored_since(
    log: SegmentReader, since_ms: int, oldest_offset: int, record_starts: Int64Array
) -> tuple[int, bool]:
    """An offset before which nothing was stored at or after ``since_ms``, at least
    ``oldest_offset``; and whether store times decrease somewhere. Copies then only have to lie
    behind their record.
    """
    starts = [begin for begin, _stored in first_store_times(log) if begin > oldest_offset]
    low, high = oldest_offset, log.end_offset
    places = np.array([low, *starts], np.int64)
    is_first_round = True
    while True:
        times = read_store_times(log, places)
        places, times = places[times != NO_TIME], times[times != NO_TIME]
        if np.any(np.diff(times) < -_CLOCK_SLACK_MS):
            return oldest_offset, True
        before = int(np.searchsorted(np.maximum.accumulate(times), since_ms, "left"))
        bounds = low, high
        low = int(places[before - 1]) if before else low
        high = int(places[before]) if before < len(places) else high
        first = np.searchsorted(record_starts, low, "right")
        between = record_starts[first : np.searchsorted(record_starts, high, "left")]
        if not len(between) or not (is_first_round or bounds != (low, high)):
            return low, False
        is_first_round = False
        chosen = np.linspace(0, len(between) - 1, min(_STARTS_A_ROUND, len(between)))
        places = between[chosen.astype(np.int64)]


def match_copies(
    digests: DigestRows,
    earliest_ms: Int64Array,
    copies: DigestRows,
    copied_ms: Int64Array,
) -> BoolArray:
    """Which messages have a copy, each copy counting once, none before its message's time.

    Among messages with equal digests the earliest due takes the earliest copy.
    """
    delivered = np.zeros(len(digests), np.bool_)
    both = np.concatenate([digests, copies])
    order = np.lexsort((both[:, 1], both[:, 0]))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any(both[order[1:]] != both[order[:-1]], axis=1)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(is_new) - 1
    message_group, copy_group = group[: len(digests)], group[len(digests) :]
    rows = np.lexsort((earliest_ms, message_group))
    ranked = np.lexsort((copied_ms, copy_group))
    has_copy = np.zeros(len(rows), np.bool_)
    pair_up(message_group[rows], earliest_ms[rows], copy_group[ranked], copied_ms[ranked], has_copy)
    delivered[rows] = has_copy
    return delivered
