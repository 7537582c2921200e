# SPDX-License-Identifier: Apache-2.0
"""After a kill: which waiting entries the log already holds a delivered copy of.

A broker delivers these again. Copies are told by all that survives delivery, as a multiset, so that
equal messages are each delivered once (``reconcile``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from legacy_levels.delivery_kernels import NOTE_COLUMNS
from legacy_levels.level_scanner import LevelScanner
from legacy_levels.log_notes import LogNotes, digest_level_records, take_notes
from legacy_levels.reconcile import Waiting, find_delivered, match_copies
from message_store.commit_log import BoolArray, Int64Array
from message_store.live_log import LiveLog
from message_store.segment_files import SegmentReader


@attrs.frozen(eq=False)
class LentTime:
    """How much sooner entries at some queue offsets of a level may have been due than they say.

    An entry that was made anew from its record is due a delay after it was stored. The one that was
    lost may have said "at once", which no record tells.
    """

    queue_offsets: Int64Array
    delay_ms: int

    def of(self, queue_offsets: Int64Array) -> Int64Array:
        """The time for each of these."""
        is_lent = np.isin(queue_offsets, self.queue_offsets)
        return np.where(is_lent, self.delay_ms, 0).astype(np.int64)


@attrs.frozen(eq=False)
class _Candidates:
    """Waiting entries in log order."""

    level: Int64Array
    queue_offset: Int64Array
    commit_log_offset: Int64Array
    size_bytes: Int64Array
    due_ms: Int64Array


def delivered_already(
    scanners: Sequence[LevelScanner],
    log: LiveLog,
    *,
    since: int | None,
    newest_ms: int,
    lent_ms: Mapping[int, LentTime],
) -> dict[int, Int64Array]:
    """Of each level the queue offsets, sorted, of waiting entries that were delivered already.

    ``since`` is the place in the log before which the scanners know of every delivery; None where
    only times can tell. ``newest_ms`` is a time before which no copy was stored that is not in the
    log: what is due later is not looked for. ``lent_ms`` tells by level of entries that may have
    been due sooner than they say.
    """
    with SegmentReader(log.segments.directory, log.file_bytes) as reader:
        if since is None:
            found = _candidates(scanners, newest_ms, lent_ms)
            waiting = Waiting(
                found.commit_log_offset, found.size_bytes.astype(np.int32), found.due_ms
            )
            nothing = LogNotes(np.zeros((0, NOTE_COLUMNS), np.int64), log.end)
            delivered, _ = find_delivered(
                reader, waiting, found.commit_log_offset, nothing, log.end
            )
        else:
            first = max(since, log.min_offset)
            copies = take_notes(reader, first, known_end=log.end, stop_at=log.end).delivered_copies
            last_ms = int(copies.store_timestamp_ms.max(initial=-1))
            found = _candidates(scanners, last_ms, lent_ms)
            delivered = _match(reader, found, copies)
    return {
        scanner.level: np.sort(found.queue_offset[delivered & (found.level == scanner.level)])
        for scanner in scanners
    }


def _candidates(
    scanners: Iterable[LevelScanner], newest_ms: int, lent_ms: Mapping[int, LentTime]
) -> _Candidates:
    """What waits and is, or may have been, due by then."""
    rows: list[Int64Array] = []
    for scanner in scanners:
        for first, units, waits in scanner.waiting():
            due_ms = units["tags_code"].astype(np.int64)
            if (lent := lent_ms.get(scanner.level)) is not None:
                due_ms -= lent.of(first + np.arange(len(units)))
            chosen = np.flatnonzero(waits & (due_ms <= newest_ms))
            picked = units[chosen]
            rows.append(
                np.stack(
                    [
                        np.full(len(chosen), scanner.level, np.int64),
                        first + chosen,
                        picked["commit_log_offset"].astype(np.int64),
                        picked["size_bytes"].astype(np.int64),
                        due_ms[chosen],
                    ]
                )
            )
    table = np.concatenate(rows, axis=1) if rows else np.zeros((5, 0), np.int64)
    table = table[:, np.argsort(table[2], kind="stable")]
    return _Candidates(*(np.ascontiguousarray(row) for row in table))


def _match(reader: SegmentReader, found: _Candidates, copies: LogNotes) -> BoolArray:
    """Which of these have a copy that lies behind them in the log and is not older than their time.

    Times alone do not tell: within one millisecond a message may be delivered and its like be
    scheduled.
    """
    digests, is_record = digest_level_records(reader, found.commit_log_offset, found.size_bytes)
    delivered = np.zeros(len(found.level), np.bool_)
    rows = np.flatnonzero(is_record)
    newest_ms = np.maximum.accumulate(copies.store_timestamp_ms)
    first_behind = np.searchsorted(copies.commit_log_offset, found.commit_log_offset, "right")
    first_in_time = np.searchsorted(newest_ms, found.due_ms)
    earliest = np.maximum(first_behind, first_in_time).astype(np.int64)
    places = np.arange(len(newest_ms), dtype=np.int64)
    delivered[rows] = match_copies(digests[rows], earliest[rows], copies.digests, places)
    return delivered
