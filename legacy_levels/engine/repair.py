# SPDX-License-Identifier: Apache-2.0
"""Repairs wrong entries of level queues: due times are computed again, lengths are taken from the
records, and half neutral entries are completed. Messages of another level table are refused.

A broker of 4.9 that rebuilds a queue after a crash writes the hash of the tag instead of the due
time. It then delivers everything at once. Here the due time itself is restored.
"""

from collections.abc import Collection, Mapping

import attrs
import numpy as np

from legacy_levels.engine.cursor import LevelCursor
from legacy_levels.neutral_units import NEUTRAL_SIZES, is_message, is_neutral
from message_store.base.errors import OptionsError
from message_store.files.segments import SegmentReader
from message_store.format.delay_levels import DelayLevels, format_delay
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.kernels.dispatch import SECTOR_BYTES
from message_store.reading.commit_log import NO_TIME, read_store_times
from message_store.reading.consume_queue import Int64Array, QueueEntries, UnitArray
from message_store.reading.shown_delays import PLAUSIBLE_DUE_MS, WHOLE_DELAY_MS, shown_delays
from message_store.writing.log import LiveLog
from message_store.writing.queue import LiveQueue
from message_store.writing.store import LiveStore

_SAMPLES = 64
_SIZE_AT = QUEUE_UNIT.offset_of("size_bytes")
_SIZE_FIELD_BYTES = 4
_YEAR_MS = 366 * 86_400_000
"""A record may be stored so far ahead of the clock, which was set back since. One that is further
ahead has a damaged store time.
"""


def repair_due_times(live: LiveStore, cursor: LevelCursor) -> int:
    """Correct what is no due time in the units that wait; returns how many of them had a time that
    damage has changed.

    Due times rise along a queue, and the newest is a delay from now at most. Only units that differ
    are compared with their records, so that a store that is in order is opened without reading its
    log; and the last one, whose time none behind it limits. ``find_wrong_units`` looks at others
    when they are due.
    """
    if cursor.level > live.levels.max_level:
        return 0
    latest_ms = live.clock.now_ms() + live.levels.delay_ms(cursor.level)
    is_plausible = cursor.next_due_ms > PLAUSIBLE_DUE_MS and cursor.newest_ms <= latest_ms
    last = cursor.last_unit()
    is_plausible &= not len(_wrong_due_times(live, cursor.level, last, _stored_ms(live, last)).rows)
    if not len(cursor) or (is_plausible and cursor.is_in_order):
        return 0
    repaired = damaged = 0
    newest_ms = 0
    for first, units, waits in cursor.waiting():
        rows = np.flatnonzero(waits)
        due_ms = units["tags_code"][rows].astype(np.int64)
        before_ms = np.maximum.accumulate(np.append(newest_ms, due_ms))[:-1]
        behind_ms = np.minimum.accumulate(due_ms[::-1])[::-1]
        doubted = (due_ms <= PLAUSIBLE_DUE_MS) | (due_ms < before_ms)
        doubted |= (due_ms > behind_ms) | (due_ms > latest_ms)
        doubted[-1:] = True
        rows, newest_ms = rows[doubted], int(due_ms.max(initial=newest_ms))
        asked = units[rows]
        wrong = _wrong_due_times(live, cursor.level, asked, _stored_ms(live, asked))
        replaced = units["tags_code"][rows[wrong.rows]].astype(np.int64)
        damaged += int((replaced != replaced.astype(np.int32)).sum())  # no hash of a tag
        repaired += len(wrong.rows)
        wrong.write(live, cursor.level, first + rows[wrong.rows])
    if repaired:
        cursor.rescan()
    return damaged


@attrs.frozen(eq=False)
class WrongUnits:
    """Rows of units that do not say what their records do, and what they should be."""

    rows: Int64Array
    units: UnitArray

    def none(self) -> "WrongUnits":
        """None of them."""
        return WrongUnits(self.rows[:0], self.units[:0])

    def write(self, live: LiveStore, level: int, queue_offsets: Int64Array) -> None:
        """Put the right units into the queue. Raises TargetError."""
        queue = live.queue(LEVEL_TOPIC, level - 1)
        for queue_offset, unit in zip(queue_offsets.tolist(), self.units, strict=True):
            queue.overwrite(queue_offset, *unit.tolist())


def find_wrong_units(
    live: LiveStore, level: int, queue_offsets: Int64Array, units: UnitArray
) -> tuple[WrongUnits, WrongUnits]:
    """Those whose length is not that of their record, and those with another due time than that.

    The record is right if it says that it is that entry of that queue, and is whole.
    """
    stored_ms = _stored_ms(live, units)
    sizes = _wrong_sizes(live, level, queue_offsets, units, stored_ms)
    return sizes, _wrong_due_times(live, level, units, stored_ms)


def with_right_sizes(
    live: LiveStore, level: int, queue_offsets: Int64Array, units: UnitArray
) -> UnitArray:
    """These units with the lengths of their records, which the queue gets too. Raises
    TargetError.
    """
    wrong = _wrong_sizes(live, level, queue_offsets, units, _stored_ms(live, units))
    wrong.write(live, level, queue_offsets[wrong.rows])
    right = units.copy()
    right[wrong.rows] = wrong.units
    return right


def _wrong_sizes(
    live: LiveStore,
    level: int,
    queue_offsets: Int64Array,
    units: UnitArray,
    stored_ms: Int64Array,
) -> WrongUnits:
    right, rows = units.copy(), []
    doubted = np.flatnonzero(stored_ms == NO_TIME)
    is_start = live.log.store_times_ms(units["commit_log_offset"][doubted]) != NO_TIME
    for row in doubted[is_start].tolist():
        place = int(queue_offsets[row]), int(units["commit_log_offset"][row])
        if (found := live.log.record_of_entry(LEVEL_TOPIC, level - 1, *place)) is not None:
            right["size_bytes"][row] = found[1]
            rows.append(row)
    wrong = np.array(rows, np.int64)
    return WrongUnits(wrong, right[wrong])


def _stored_ms(live: LiveStore, units: UnitArray) -> Int64Array:
    offsets, sizes = (units[name].astype(np.int64) for name in ("commit_log_offset", "size_bytes"))
    return live.log.store_times_ms(offsets, sizes)


def _wrong_due_times(
    live: LiveStore, level: int, units: UnitArray, stored_ms: Int64Array
) -> WrongUnits:
    """Compare due times with store times: a delay is whole seconds, and none is negative.

    So a single flipped bit shows, because no power of two is a multiple of a thousand; and the
    delay of another level table does not, because a message keeps its due time. What is due at once
    is due when it was stored. 4.9 leaves the hash of a tag where it has rebuilt a queue.

    A record with an impossible store time does not overrule a possible due time.
    """
    due_ms, now_ms = units["tags_code"].astype(np.int64), live.clock.now_ms()
    delays_ms, delay_ms = due_ms - stored_ms, live.levels.delay_ms(level)
    is_wrong = (delays_ms < 0) | (delays_ms % WHOLE_DELAY_MS != 0)
    latest_ms = now_ms + _YEAR_MS  # the clock may have been set back
    is_possible = (due_ms > PLAUSIBLE_DUE_MS) & (due_ms <= latest_ms + delay_ms)
    is_wrong &= ~is_possible | ((stored_ms > PLAUSIBLE_DUE_MS) & (stored_ms <= latest_ms))
    rows = np.flatnonzero((stored_ms != NO_TIME) & is_wrong & (delays_ms != delay_ms))
    right = units[rows]
    right["tags_code"] = stored_ms[rows] + delay_ms  # as 64 bits have it
    return WrongUnits(rows, right)


def finish_half_neutral(live: LiveStore, cursor: LevelCursor) -> int:
    """Neutralise the entries of which only one half says so; returns how many those were.

    A disk keeps a sector whole, so that only those can be meant of which the log's place lies in
    one sector and the size in the next. Nobody was told that they still wait.
    """
    queue = live.queue(LEVEL_TOPIC, cursor.level - 1)
    finished = 0
    for first, units, _ in cursor.waiting():
        places = (first + np.arange(len(units))) * QUEUE_UNIT.size % queue.segments.file_bytes
        rows = np.flatnonzero((places + _SIZE_AT) % SECTOR_BYTES == 0)
        whole = _with_both_halves(live.log, units[rows])
        for row in np.flatnonzero(whole != units[rows]).tolist():
            queue.overwrite(first + int(rows[row]), *whole[row].tolist())
            finished += 1
    if finished:
        cursor.rescan()
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


def refuse_another_table(
    live: LiveStore,
    heads: Mapping[int, int],
    rebuilt: Collection[int],
    last_table: DelayLevels | None,
) -> None:
    """Raise OptionsError where messages wait with another delay than the level table has.

    ``heads`` are the queue offsets from which each level waits. A sample of each level's messages
    is looked at. Opening gives the ``rebuilt`` levels entries by the table. Where nothing that
    waits in one shows its delay, the last that was delivered does, or the table of the last user.
    """
    table, problems = live.levels, []
    with SegmentReader(live.log.segments.directory, live.log.file_bytes) as reader:
        for level, head in heads.items():
            queue = live.queue(LEVEL_TOPIC, level - 1)
            if level > table.max_level:
                waits = is_message(queue.units(head, queue.max_offset)).any()
                if waits or level in rebuilt:
                    problems.append(f"messages wait in level {level}, which it does not have")
                continue
            shown = set(_shown_delays_ms(reader, queue, head).tolist())
            if not shown and level in rebuilt:
                newest = max(queue.min_offset, queue.max_offset - _SAMPLES)
                shown = set(_shown_delays_ms(reader, queue, newest)[-1:].tolist())
                if not shown and last_table is not None and level <= last_table.max_level:
                    shown = {last_table.delay_ms(level)}
            problems += [
                f"{table.describe(level)} holds messages that are due after {format_delay(delay)}"
                for delay in sorted(shown - {table.delay_ms(level)})
            ]
    if problems:
        raise OptionsError(
            f"pending messages were stored under another level table than {table.text()!r}:"
            f" {'; '.join(problems)}. Open the store with the table it had (--level-table),"
            ' or with on_table_change="keep" to let each message keep its due time'
        )


def _shown_delays_ms(reader: SegmentReader, queue: LiveQueue, first: int) -> Int64Array:
    """The delays that a sample of the messages from one queue offset on was stored with."""
    if first >= queue.max_offset:
        return np.zeros(0, np.int64)
    places = np.linspace(first, queue.max_offset - 1, _SAMPLES)
    chosen = np.unique(places.astype(np.int64)).tolist()
    picked = np.concatenate([queue.units(at, at + 1) for at in chosen])
    sample = QueueEntries(picked[is_message(picked)], 0, 0)
    stored_ms = read_store_times(reader, sample.commit_log_offset, sample.size_bytes)
    return shown_delays(sample.tags_code, stored_ms)
