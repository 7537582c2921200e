# SPDX-License-Identifier: Apache-2.0
"""What a queue tells that cannot be: due times that are none, made anew; entries that a loss of
power left half neutralised; and messages of another level table, refused.

A broker of 4.9 that builds a queue anew after a crash writes the hash of the tag where the due time
belongs, and then delivers everything at once. That is replaced by the due time itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from legacy_levels.level_scanner import LevelScanner
from legacy_levels.level_table import PLAUSIBLE_DUE_MS, shown_delays
from legacy_levels.neutral_units import NEUTRAL_SIZES, is_message, is_neutral
from message_store.commit_log import NO_TIME, read_store_times
from message_store.consume_queue import QUEUE_UNIT, QueueEntries, UnitArray
from message_store.delay_levels import format_delay
from message_store.errors import OptionsError
from message_store.properties import LEVEL_TOPIC
from message_store.segment_files import SegmentReader

if TYPE_CHECKING:
    from message_store.live_log import LiveLog
    from message_store.live_store import LiveStore


_SAMPLES = 64
_SECTOR_BYTES = 512
_SIZE_AT = QUEUE_UNIT.offset_of("size_bytes")
_SIZE_FIELD_BYTES = 4


def repair_due_times(live: LiveStore, scanner: LevelScanner) -> int:
    """Replace what is no due time in the units that wait; returns how many that were.

    Only a time before the message was stored is none: what is due at once is due when stored.
    """
    if scanner.next_due_ms > PLAUSIBLE_DUE_MS or scanner.level > live.levels.max_level:
        return 0
    queue = live.queue(LEVEL_TOPIC, scanner.level - 1)
    delay_ms = live.levels.delay_ms(scanner.level)
    repaired = 0
    with SegmentReader(live.log.segments.directory, live.log.file_bytes) as reader:
        for first, units, waits in scanner.waiting():
            rows = np.flatnonzero(waits & (units["tags_code"] <= PLAUSIBLE_DUE_MS))
            doubted = QueueEntries(units[rows], 0, 0)
            offsets, sizes = doubted.commit_log_offset, doubted.size_bytes
            stored_ms = read_store_times(reader, offsets, sizes)
            wrong = np.flatnonzero((stored_ms != NO_TIME) & (doubted.tags_code < stored_ms))
            due_ms = stored_ms + delay_ms  # as 64 bits have it: a record can say any time
            for row in wrong.tolist():
                at = first + int(rows[row])
                queue.overwrite(at, int(offsets[row]), int(sizes[row]), int(due_ms[row]))
            repaired += len(wrong)
    if repaired:
        scanner.rescan()
    return repaired


def finish_half_neutral(live: LiveStore, scanner: LevelScanner) -> int:
    """Neutralise the entries of which only one half says so; returns how many those were.

    A disk keeps a sector whole, so that only those can be meant of which the log's place lies in
    one sector and the size in the next. Nobody was told that they still wait.
    """
    queue = live.queue(LEVEL_TOPIC, scanner.level - 1)
    finished = 0
    for first, units, _ in scanner.waiting():
        places = (first + np.arange(len(units))) * QUEUE_UNIT.size % queue.segments.file_bytes
        rows = np.flatnonzero((places + _SIZE_AT) % _SECTOR_BYTES == 0)
        whole = _with_both_halves(live.log, units[rows])
        for row in np.flatnonzero(whole != units[rows]).tolist():
            queue.overwrite(first + int(rows[row]), *whole[row].tolist())
            finished += 1
    if finished:
        scanner.rescan()
    return finished


def _with_both_halves(log: LiveLog, units: UnitArray) -> UnitArray:
    """These entries, neutral where either half is."""
    whole = units.copy()
    offsets, sizes = (units[name].astype(np.int64) for name in ("commit_log_offset", "size_bytes"))
    is_start = log.store_times_ms(offsets) != NO_TIME
    is_short = is_neutral(units)
    for row in np.flatnonzero(is_short & is_start).tolist():
        head = log.segments.read_at(int(offsets[row]), _SIZE_FIELD_BYTES)
        record_bytes = int.from_bytes(head, "big")
        whole["commit_log_offset"][row] += record_bytes - sizes[row]
    for neutral_bytes in NEUTRAL_SIZES:
        rows = np.flatnonzero(is_message(units) & ~is_start)
        starts = offsets[rows] + neutral_bytes - sizes[rows]
        is_end = log.store_times_ms(starts, sizes[rows]) != NO_TIME
        whole["size_bytes"][rows[is_end]] = neutral_bytes
    return whole


def refuse_another_table(live: LiveStore, scanners: Iterable[LevelScanner]) -> None:
    """Raise OptionsError where messages wait with another delay than the level table has.

    A sample of each level's messages is looked at.
    """
    table, problems = live.levels, []
    with SegmentReader(live.log.segments.directory, live.log.file_bytes) as reader:
        for scanner in scanners:
            if not len(scanner):
                continue
            if scanner.level > table.max_level:
                problems.append(f"messages wait in level {scanner.level}, which it does not have")
                continue
            shown = _shown_delays_ms(reader, scanner) - {table.delay_ms(scanner.level)}
            problems += [
                f"{table.describe(scanner.level)} holds messages that are due after"
                f" {format_delay(delay_ms)}"
                for delay_ms in sorted(shown)
            ]
    if problems:
        raise OptionsError(
            f"messages wait that were stored under another level table than {table.text()!r}:"
            f" {'; '.join(problems)}; open the store with the table it had (--level-table),"
            ' or with on_table_change="keep" to let each message keep its due time'
        )


def _shown_delays_ms(reader: SegmentReader, scanner: LevelScanner) -> set[int]:
    """The delays that a sample of the waiting messages was stored with."""
    places = np.linspace(scanner.head, scanner.queue.max_offset - 1, _SAMPLES)
    chosen = np.unique(places.astype(np.int64)).tolist()
    picked = np.concatenate([scanner.queue.units(at, at + 1) for at in chosen])
    sample = QueueEntries(picked[is_message(picked)], 0, 0)
    stored_ms = read_store_times(reader, sample.commit_log_offset, sample.size_bytes)
    return set(shown_delays(sample.tags_code, stored_ms).tolist())
