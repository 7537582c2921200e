# SPDX-License-Identifier: Apache-2.0
"""After a kill: which waiting entries the log already holds a delivered copy of.

A broker delivers these again. Copies are told by all that survives delivery, as a multiset, so that
equal messages are each delivered once (``reconcile``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from legacy_levels.backlog.reconcile import Waiting, find_delivered, match_copies
from legacy_levels.copies.kernels import NOTE_COLUMNS
from legacy_levels.copies.log_notes import LogNotes, digest_level_records, take_notes
from legacy_levels.engine.cursor import LevelScanner
from message_store.files.segments import SegmentReader
from message_store.format.delay_levels import DelayLevels
from message_store.reading.commit_log import BoolArray, Int64Array
from message_store.writing.log import LiveLog


@attrs.frozen(eq=False)
class _Candidates:
    """Waiting entries in log order."""

    level: Int64Array
    queue_offset: Int64Array
    commit_log_offset: Int64Array
    size_bytes: Int64Array
    due_ms: Int64Array
    is_counted: Int64Array


_NOTHING_COUNTED: Mapping[int, int] = MappingProxyType({})


def delivered_already(
    scanners: Sequence[LevelScanner],
    log: LiveLog,
    *,
    since: int | None,
    counted: Mapping[int, int],
    newest_ms: int,
    table: DelayLevels,
) -> dict[int, Int64Array]:
    """Of each level the queue offsets, sorted, of waiting entries that were delivered already.

    ``since`` is the place in the log before which the scanners know of every delivery; None where
    only times can tell. ``counted`` are offsets of each level that a broker saved: what lies before
    them it delivered at whatever time. ``newest_ms`` is a time before which no copy was stored that
    is not in the log: what is due later is not looked for. What is due at once waits in the
    shortest level of the ``table``.
    """
    with SegmentReader(log.segments.directory, log.file_bytes) as reader:
        if since is None:
            found = _candidates(scanners, newest_ms)
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
            found = _candidates(scanners, last_ms, table, counted)
            delivered = _match(reader, found, copies, table.shortest_level)
    return {
        scanner.level: np.sort(found.queue_offset[delivered & (found.level == scanner.level)])
        for scanner in scanners
    }


def _candidates(
    scanners: Iterable[LevelScanner],
    newest_ms: int,
    table: DelayLevels | None = None,
    counted: Mapping[int, int] = _NOTHING_COUNTED,
) -> _Candidates:
    """What waits and is, or may have been, due by then, and what is counted as delivered."""
    rows: list[Int64Array] = []
    at_once = 0 if table is None else table.shortest_level
    for scanner in scanners:
        for first, units, waits in scanner.waiting():
            due_ms = units["tags_code"].astype(np.int64)
            sooner_ms = table.delay_ms(at_once) if table and scanner.level == at_once else 0
            is_counted = first + np.arange(len(units)) < counted.get(scanner.level, 0)
            chosen = np.flatnonzero(waits & (is_counted | (due_ms - sooner_ms <= newest_ms)))
            picked = units[chosen]
            rows.append(
                np.stack(
                    [
                        np.full(len(chosen), scanner.level, np.int64),
                        first + chosen,
                        picked["commit_log_offset"].astype(np.int64),
                        picked["size_bytes"].astype(np.int64),
                        due_ms[chosen],
                        is_counted[chosen],
                    ]
                )
            )
    columns = np.concatenate(rows, axis=1) if rows else np.zeros((6, 0), np.int64)
    columns = columns[:, np.argsort(columns[2], kind="stable")]
    return _Candidates(*(np.ascontiguousarray(row) for row in columns))


def _match(
    reader: SegmentReader, found: _Candidates, copies: LogNotes, at_once_level: int
) -> BoolArray:
    """Which of these have a copy that lies behind them in the log and is not older than their time,
    unless a broker counts them as delivered: it delivers early after its clock was set back.

    Times alone do not tell: within one millisecond a message may be delivered and its like be
    scheduled. What was due at once is known by its entry alone: where that was lost with the power
    and made anew, it says a delay later. So a copy that none of these explains is one of those.
    """
    digests, is_record = digest_level_records(reader, found.commit_log_offset, found.size_bytes)
    delivered = np.zeros(len(found.level), np.bool_)
    rows = np.flatnonzero(is_record)
    newest_ms = np.maximum.accumulate(copies.store_timestamp_ms)
    behind = np.searchsorted(copies.commit_log_offset, found.commit_log_offset, "right")
    behind = behind.astype(np.int64)
    in_time = np.maximum(behind, np.searchsorted(newest_ms, found.due_ms))
    in_time = np.where(found.is_counted == 1, behind, in_time)
    places = np.arange(len(newest_ms), dtype=np.int64)
    delivered[rows] = match_copies(digests[rows], in_time[rows], copies.digests, places)
    if delivered.sum() < len(places):
        known = np.flatnonzero(delivered)
        is_left = ~match_copies(copies.digests, -places, digests[known], -in_time[known])
        rows = rows[~delivered[rows] & (found.level[rows] == at_once_level)]
        delivered[rows] = match_copies(
            digests[rows], behind[rows], copies.digests[is_left], places[is_left]
        )
    return delivered
