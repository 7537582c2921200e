# SPDX-License-Identifier: Apache-2.0
"""Where delivery of each level continues, and which pending entries were delivered before a kill.

delayOffset.json is a few seconds old after a kill, and damage may have changed it. A delivery mark
(``delivery_marks``) belongs to one offset of the log:

- The log ends at the mark: nobody has delivered anything since, so the mark is believed. A garbled
  or older delayOffset.json would lose or repeat messages.
- The log continues behind the mark: a broker may have delivered since. After an orderly stop its
  offsets are believed, unless they are lower than the mark's, because offsets never decrease. After
  a kill the mark counts, and the copies in the log behind it show the later deliveries.
- After a loss of power the files may be ahead of the log. The latest mark then names a record that
  the log does not have.
- After an orderly stop, an offset that delayOffset.json and its `.bak` share is believed over a
  lower mark. So `retire` moves levels past converted messages.

A broker repeats what was delivered after its last saved offset. Each delivery of ours names its
record: a pending message was delivered if and only if a later record of the log names it. The
copies that a broker made name none. They are matched by everything that survives delivery, as a
multiset, so that of equal messages each is delivered once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy as np

from legacy_levels.delay_offsets import (
    FILE_NAME,
    DelayOffsets,
    OffsetsChoice,
    OffsetsFile,
    read_delay_offsets,
)
from legacy_levels.delivery_marks import (
    FLUSHED_NAME,
    DeliveryMark,
    Run,
    checksum,
    is_of_a_lost_log,
    mark_to_trust,
    read_mark,
)
from legacy_levels.engine.cursor import LevelCursor
from legacy_levels.neutral_units import is_message
from message_store.base.errors import FormatError, SourceError
from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_small_file
from message_store.format.java_numbers import LONG_MAX
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.reading.commit_log import BoolArray, Int64Array
from message_store.reading.consume_queue import out_of_order
from message_store.writing.dispatch import Dispatcher
from message_store.writing.log import LiveLog

if TYPE_CHECKING:
    from legacy_levels.copies.log_notes import LogNotes
    from message_store.writing.store import LiveStore


@attrs.frozen(eq=False)
class Start:
    """The offsets to go on from, by level.

    ``done`` are queue offsets behind them that were delivered out of turn. ``since`` is the place
    in the log that the offsets belong to, None where that is not known. ``counted`` are the offsets
    of a delayOffset.json that is ahead: what lies before them was delivered if the log has a copy,
    of whatever time. ``distrust`` says why delayOffset.json is not believed.
    """

    found: DelayOffsets
    offsets: Mapping[int, int]
    since: int | None = None
    done: Mapping[int, Sequence[Run]] = attrs.field(factory=dict)
    counted: Mapping[int, int] = attrs.field(factory=dict)
    distrust: str | None = None


def where_to_start(live: LiveStore, choice: OffsetsChoice) -> Start:
    """Read the offsets and the marks, and change nothing.

    Raises SourceError where no offsets can be read and no mark is there.
    """
    root = live.root.path
    if choice is not OffsetsChoice.AUTO:
        chosen = read_delay_offsets(root, choice)
        return Start(chosen, chosen.offsets)
    table = checksum(read_small_file(live.root.config_file(FILE_NAME)))
    is_lost = is_of_a_lost_log(root, table, live.log)
    if live.repeats and not is_lost:  # else they are ahead of the log
        chosen = read_delay_offsets(root, choice)
        return Start(chosen, chosen.offsets)
    offsets_read = _broker_offsets(root)
    mark = mark_to_trust(root, live.log)
    if mark is None:
        offsets_read = offsets_read or read_delay_offsets(root)
        return Start(offsets_read, offsets_read.offsets)
    is_whole = offsets_read is not None and offsets_read.main.problem is None
    if offsets_read is None:
        nothing = OffsetsFile(live.root.config_file(FILE_NAME), None, "not used")
        offsets_read = DelayOffsets({}, OffsetsChoice.NONE, nothing, nothing)
    is_old_text = is_lost or table in mark.tables  # our mark says more of a text of ours
    agreed = _agreed_offsets(offsets_read) if live.was_clean and not is_old_text else {}
    if mark.log_end == live.log.end:
        start = _by_mark(mark, offsets_read, agreed)
        # After a close the file is what was written last; a kill may have come before that.
        expected = mark.tables[-1:] if live.was_clean else mark.tables
        is_other = any(offsets_read.offset_of(level) != at for level, at in start.offsets.items())
        if is_whole and is_other and table not in expected:
            return attrs.evolve(start, distrust="it was changed since the levels were saved")
        return start
    is_older = any(offsets_read.offset_of(level) < at for level, at in mark.offsets.items())
    # The same file beside a longer log: the levels were killed, and another engine closed it.
    is_ours = is_lost or table in mark.tables
    if live.was_clean and is_whole and not is_older and not is_ours:
        return Start(offsets_read, offsets_read.offsets)
    start = attrs.evolve(_by_mark(mark, offsets_read, agreed), counted=offsets_read.offsets)
    if is_whole and is_older:
        return attrs.evolve(start, distrust="it is older than the last that was saved")
    return start


def _by_mark(mark: DeliveryMark, offsets_read: DelayOffsets, agreed: Mapping[int, int]) -> Start:
    offsets = {level: at for level, at in offsets_read.offsets.items() if level not in mark.offsets}
    offsets |= {level: max(at, agreed.get(level, 0)) for level, at in mark.offsets.items()}
    return Start(offsets_read, offsets, mark.log_end, mark.done)


def _agreed_offsets(offsets_read: DelayOffsets) -> Mapping[int, int]:
    """The offsets that both files say."""
    main, backup = offsets_read.main, offsets_read.backup
    if main.problem or backup.problem or main.offsets is None or backup.offsets is None:
        return {}
    return dict(main.offsets.items() & backup.offsets.items())


def _broker_offsets(root: Path) -> DelayOffsets | None:
    """What a broker would start from; None where it would not start."""
    try:
        return read_delay_offsets(root)
    except SourceError:
        return None


@attrs.frozen(eq=False)
class _Candidates:
    """Waiting entries in log order. ``is_odd`` says which do not lead behind all entries before
    them and before all behind them, as a queue's do.
    """

    level: Int64Array
    queue_offset: Int64Array
    commit_log_offset: Int64Array
    size_bytes: Int64Array
    due_ms: Int64Array
    is_counted: Int64Array
    is_odd: Int64Array

    def entries(self, rows: list[int]) -> list[list[int]]:
        """Some rows: level, queue offset, commit log offset, size in bytes, due time in ms."""
        columns = (
            *(self.level, self.queue_offset, self.commit_log_offset),
            *(self.size_bytes, self.due_ms),
        )
        table: list[list[int]] = np.stack([column[rows] for column in columns], axis=1).tolist()
        return table


@attrs.frozen(eq=False)
class Delivered:
    """Of each level the queue offsets, sorted, of waiting entries that were delivered already;
    ``astray`` are those of them that are damaged: it was the message of another that was delivered.
    Of each it has level, queue offset, place in the log, size and due time.
    """

    by_level: dict[int, Int64Array]
    astray: list[list[int]]


def delivered_already(
    cursors: Sequence[LevelCursor],
    log: LiveLog,
    *,
    since: int | None,
    names_since: int,
    counted: Mapping[int, int],
    newest_ms: int,
) -> Delivered:
    """Find the waiting entries that were delivered already.

    ``since`` is the place in the log before which the cursors know of every delivery; None where
    only times can tell. Copies from ``names_since`` on count if they name a record. ``counted`` are
    offsets of each level that a broker saved: what lies before them it delivered at whatever time.
    ``newest_ms`` is a time before which no copy was stored that is not in the log: what is due
    later is not looked for.
    """
    # A store that was closed in order needs none of these, and their kernels take time to load.
    from legacy_levels.copies.kernels import NOTE_COLUMNS
    from legacy_levels.copies.log_notes import LogNotes, take_notes
    from legacy_levels.copies.matching import Waiting, find_delivered

    with SegmentReader(log.segments.directory, log.file_bytes) as reader:
        nothing = LogNotes(np.zeros((0, NOTE_COLUMNS), np.int64), log.end)
        if since is None:
            candidates = _candidates(cursors, nothing, newest_ms, {})
            waiting = Waiting(
                candidates.commit_log_offset,
                candidates.size_bytes.astype(np.int32),
                candidates.due_ms,
            )
            delivered, _ = find_delivered(
                reader, waiting, candidates.commit_log_offset, nothing, log.end
            )
        else:
            first = max(min(since, names_since), log.min_offset)
            copies = take_notes(reader, first, known_end=log.end, stop_at=log.end).delivered_copies
            counts = (copies.commit_log_offset >= since) | ~copies.names_none
            copies = attrs.evolve(copies, rows=copies.rows[counts])
            last_ms = int(copies.store_timestamp_ms[copies.names_none].max(initial=-1))
            candidates = _candidates(cursors, copies, last_ms, counted)
            delivered = _match(reader, candidates, copies)
    astray = _are_astray(candidates, log, np.flatnonzero(delivered))
    return Delivered(
        {
            cursor.level: np.sort(
                candidates.queue_offset[delivered & (candidates.level == cursor.level)]
            )
            for cursor in cursors
        },
        candidates.entries(astray),
    )


def _are_astray(candidates: _Candidates, log: LiveLog, rows: Int64Array) -> list[int]:
    """Those of these rows that are damaged entries: their record says that it is of another level
    or, where an entry is out of order, of another place; or there is none of that size.
    """
    queue_ids = log.queue_ids(candidates.commit_log_offset[rows])
    is_other = (queue_ids >= 0) & (queue_ids != candidates.level[rows] - 1)
    astray: list[int] = rows[is_other].tolist()
    for row in rows[~is_other & (candidates.is_odd[rows] == 1)].tolist():
        place = int(candidates.commit_log_offset[row]), int(candidates.size_bytes[row])
        own = int(candidates.level[row]) - 1, int(candidates.queue_offset[row])
        with suppress(FormatError):
            record = log.record(*place)
            if (record.queue_id, record.queue_offset) == own:
                continue
        astray.append(row)
    return astray


def _candidates(
    cursors: Iterable[LevelCursor], copies: LogNotes, newest_ms: int, counted: Mapping[int, int]
) -> _Candidates:
    """Pending entries that a copy names: was due by then, or counts as delivered."""
    rows: list[Int64Array] = []
    for cursor in cursors:
        before = cursor.queue.units(cursor.head - 1, cursor.head)["commit_log_offset"]
        newest = int(before.max(initial=-1))
        for first, units, waits in cursor.waiting():
            due_ms = units["tags_code"].astype(np.int64)
            offsets = units["commit_log_offset"].astype(np.int64)
            is_odd = out_of_order(offsets, behind=newest)
            newest = int(offsets.max(initial=newest))
            is_named = copies.name(offsets)
            is_counted = first + np.arange(len(units)) < counted.get(cursor.level, 0)
            chosen = np.flatnonzero(waits & (is_named | is_counted | (due_ms <= newest_ms)))
            picked = units[chosen]
            rows.append(
                np.stack(
                    [
                        np.full(len(chosen), cursor.level, np.int64),
                        first + chosen,
                        picked["commit_log_offset"].astype(np.int64),
                        picked["size_bytes"].astype(np.int64),
                        due_ms[chosen],
                        is_counted[chosen],
                        is_odd[chosen],
                    ]
                )
            )
    columns = np.concatenate(rows, axis=1) if rows else np.zeros((7, 0), np.int64)
    columns = columns[:, np.argsort(columns[2], kind="stable")]
    return _Candidates(*(np.ascontiguousarray(row) for row in columns))


def _match(reader: SegmentReader, candidates: _Candidates, copies: LogNotes) -> BoolArray:
    """Which of these have a delivered copy.

    A copy that names no record counts only if it lies behind the record and is not older than the
    due time; if a broker counts the message as delivered, any time will do, because it delivers
    early after its clock was set back.
    """
    from legacy_levels.copies.matching import find_copied

    offsets = candidates.commit_log_offset
    newest_ms = np.maximum.accumulate(copies.store_timestamp_ms)
    behind = np.searchsorted(copies.commit_log_offset, offsets, "right").astype(np.int64)
    in_time = np.maximum(behind, np.searchsorted(newest_ms, candidates.due_ms))
    in_time = np.where(candidates.is_counted == 1, behind, in_time)
    places = np.arange(len(newest_ms), dtype=np.int64)
    return find_copied(reader, offsets, candidates.size_bytes, in_time, copies, places)


_LOOKED_AT = 4_096


def refuse_lost_first_files(live: LiveStore, start: Start) -> None:
    """Raise SourceError where a queue that ``delaywheel`` flushed begins behind its offset, though
    the log still has records of what stood there: the level would pass over them for good.
    """
    if read_mark(live.root.path, FLUSHED_NAME) is None:
        return
    for queue in live.queues.of_topic(LEVEL_TOPIC):
        level, first = queue.queue_id + 1, queue.segments.min_offset // QUEUE_UNIT.size
        stored = start.offsets.get(level, 0)
        if not queue.segments.starts or stored >= first:
            continue
        units = queue.units(first, first + _LOOKED_AT)
        messages = units[is_message(units)]["commit_log_offset"]
        stop = min(int(messages.min(initial=LONG_MAX)), live.log.end)
        if queue.queue_id in Dispatcher(live.log, live.queues, live.levels).queue_ids(
            LEVEL_TOPIC, live.log.min_offset, stop
        ):
            raise SourceError(
                f"{queue.segments.directory}: the queue of level {level} has lost its first files."
                f" Delivery continues at {stored:,}, but the queue begins at {first:,}. Take the"
                " files from a backup, or remove this directory: the queue is then rebuilt from the"
                " log, with cancelled messages. Nothing was changed"
            )
