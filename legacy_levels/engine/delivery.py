# SPDX-License-Identifier: Apache-2.0
"""The bulk form of DeliverDelayedMessageTimerTask#syncDeliver: delivers what is due in all levels.

By due time, and in log order where due times are equal. RocketMQ: the same, #executeOnTimeup,
ScheduleMessageService#messageTimeup (4.9.7); there each level has a thread of its own. A record
that cannot be delivered is skipped, or blocks its level (``LevelRules``). Half messages of
transactions are dropped, as brokers do. A store of 4.9 holds a message whose topic is too long for
brokers of 4.9. It is delivered when the store is opened for 5.x.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from legacy_levels.engine.cursor import NEVER_MS, DueEntries
from legacy_levels.engine.repair import WrongUnits, find_wrong_units
from legacy_levels.engine.state import LevelState, SkippedMessage
from legacy_levels.engine.waiting_records import (
    are_plain_numbers,
    destination_problem,
    read_waiting,
)
from message_store.base.errors import FormatError, TargetError
from message_store.format import properties as names
from message_store.format.dialect import Dialect
from message_store.reading.consume_queue import BoolArray, Int64Array
from message_store.redelivery.batch import FROM_LEVEL, redeliver
from message_store.redelivery.deliveries import LogDeliveries
from message_store.redelivery.record import topic_problem
from message_store.writing.log import LiveLog

_LOOK = 256


class BrokerOffsets:
    """The bulk form of ScheduleMessageService#updateOffset: what a broker's offsetTable would hold,
    level to queue offset. ``table`` is None if brokers are not followed
    (``LevelRules.saved_offsets``).

    RocketMQ: DeliverDelayedMessageTimerTask#executeOnTimeup. Only a stored message moves a level's
    offset, so skipped entries behind the last one stay in front of it. In 5.x an entry that is not
    due moves the offset too, to itself: such a level is named even at 0.
    """

    def __init__(self, state: LevelState) -> None:
        self._state = state
        self._is_4_9 = state.live.dialect is Dialect.ROCKETMQ_4_9
        self._next: dict[int, int] = {}
        self.table: dict[int, int] | None = None
        if state.rules.saved_offsets == "broker":
            self.table = {level: self._corrected(level) for level in state.found.offsets}

    def _corrected(self, level: int) -> int:
        """RocketMQ: ScheduleMessageService#correctDelayOffset; not for levels beyond the table."""
        stored = self._state.found.offset_of(level)
        if level > self._state.table.max_level:
            return stored
        queue = self._state.queue(level)
        return min(max(stored, queue.min_offset), queue.max_offset)

    def copy(self) -> dict[int, int] | None:
        """The table at this moment. A 4.9 broker stands before a message that it cannot store, and
        so does its table, though we deliver what lies behind.
        """
        if self.table is None or not self._is_4_9:
            return None if self.table is None else dict(self.table)
        cursors = self._state.cursors
        heads = {level: cursors[level].head for level in self.table if level in cursors}
        return {level: min(at, heads.get(level, at)) for level, at in self.table.items()}

    def delivered(self, level: int, queue_offset: int) -> None:
        """The message of this entry, and of those before it, were stored in their topics."""
        if self.table is not None:
            self.table[level] = queue_offset + 1

    def looked(self, level: int, now_ms: int) -> None:
        """All that is due in a level was put: 5.x notes the first entry that is not."""
        if self.table is None or self._is_4_9 or level > self._state.table.max_level:
            return
        queue = self._state.queue(level)
        latest_ms = now_ms + self._state.table.delay_ms(level)
        at = max(self._next.get(level, self.table.get(level, 0)), queue.min_offset)
        while at < queue.max_offset:
            units = queue.units(at, min(at + _LOOK, queue.max_offset))
            due_ms = units["tags_code"].astype(np.int64)
            not_due = np.flatnonzero((due_ms > now_ms) & (due_ms <= latest_ms))
            if len(not_due):
                at += int(not_due[0])
                self.table[level] = at
                break
            at += len(units)
        self._next[level] = at


def first_poison(log: LiveLog, entries: DueEntries) -> int | None:
    """The first row of these whose record is poison; one that is missing or damaged is not."""
    for part in read_waiting(log, entries.commit_log_offset, entries.size_bytes):
        doubtful = (part.real_topic.lengths == 0) | ~are_plain_numbers(part.real_queue_id)
        for row in np.flatnonzero(doubtful).tolist():
            if destination_problem(part.batch.message(row)) is not None:
                return int(part.rows[row])
    return None


ROWS_AT_ONCE = 1 << 18
RETRY_MS = 100
"""How long a blocked level is left alone."""


@attrs.frozen(eq=False)
class DueRows:
    """Due entries of several levels in the order of delivery.

    Row ``i`` is entry ``index_in_part[i]`` of ``parts[part_of_row[i]]``; a part is a level's.
    """

    parts: Sequence[DueEntries]
    part_of_row: Int64Array
    index_in_part: Int64Array
    commit_log_offset: Int64Array
    size_bytes: Int64Array
    due_ms: Int64Array

    @classmethod
    def merge(cls, parts: Sequence[DueEntries], *, in_line: bool = False) -> "DueRows":
        """All of these by due time, and among equals in log order. With ``in_line`` an entry comes
        after all that stand in front of it in its queue, whatever their due times.
        """
        if not parts:
            nothing = np.zeros(0, np.int64)
            return cls((), nothing, nothing, nothing, nothing, nothing)
        lengths = [len(part) for part in parts]
        columns = [
            np.repeat(np.arange(len(parts)), lengths),
            np.concatenate([np.arange(length) for length in lengths]),
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("commit_log_offset", "size_bytes", "due_ms")
            ),
        ]
        offset, due_ms = columns[2], columns[4]
        if in_line:
            due_ms = np.concatenate([np.maximum.accumulate(part.due_ms) for part in parts])
        steps = np.diff(due_ms)
        if (steps < 0).any() or ((steps == 0) & (np.diff(offset) < 0)).any():
            order = np.lexsort((offset, due_ms))
            columns = [column[order] for column in columns]
        return cls(parts, *columns)

    def __len__(self) -> int:
        return len(self.part_of_row)

    def masks_by_part(self, which: BoolArray) -> list[BoolArray]:
        """For each part which of its entries are meant by these rows."""
        masks = [np.zeros(len(part), np.bool_) for part in self.parts]
        for number, mask in enumerate(masks):
            mask[self.index_in_part[which & (self.part_of_row == number)]] = True
        return masks

    def source(self, row: int) -> tuple[DueEntries, int]:
        """The part that a row comes from, and its place there."""
        return self.parts[int(self.part_of_row[row])], int(self.index_in_part[row])

    def skipped(self, row: int, error: FormatError) -> SkippedMessage:
        """A note of a row that could not be delivered."""
        part, place = self.source(row)
        return SkippedMessage(
            level=part.level,
            queue_offset=int(part.queue_offset[place]),
            commit_log_offset=int(self.commit_log_offset[row]),
            size_bytes=int(self.size_bytes[row]),
            due_ms=int(self.due_ms[row]),
            reason=str(error),
        )


class LevelDelivery:
    """Delivers what is due, synchronously: a disk that refuses is an error of the caller's.

    ``discarded`` counts half messages of transactions.
    """

    def __init__(self, state: LevelState) -> None:
        self._state = state
        self._how = attrs.evolve(FROM_LEVEL, takes_long_topics=state.live.dialect.knows_long_topics)
        self._blocked_until_ms: dict[int, int] = {}
        self._held: dict[int, set[int]] = {}
        self._in_line = state.rules.out_of_turn == "wait"
        self.broker_offsets = BrokerOffsets(state)
        self.discarded = 0

    def next_due_ms(self) -> int:
        """When something is due, or tried again; ``NEVER_MS`` when nothing waits."""
        return min(map(self._next_due_of, self._state.cursors), default=NEVER_MS)

    def _next_due_of(self, level: int) -> int:
        cursor, now_ms = self._state.cursors[level], self._state.live.clock.now_ms()
        due_ms = cursor.next_due_ms
        if due_ms == NEVER_MS:
            return NEVER_MS
        if self._is_beyond(level, now_ms):
            due_ms = min(due_ms, now_ms)
        return max(due_ms, self._blocked_until_ms.get(level, due_ms))

    def _is_beyond(self, level: int, now_ms: int) -> bool:
        """Whether a level's head is due so late that it is delivered at once, as brokers do."""
        latest_due_ms = self._state.latest_due_ms(level, now_ms)
        return (
            latest_due_ms is not None
            and latest_due_ms < self._state.cursors[level].head_due_ms < NEVER_MS
        )

    def offset_to_save(self, level: int, head: int) -> int:
        """What a level's offset is written down as, when its head is there."""
        return head

    def forget(self, level: int, queue_offset: int) -> None:
        """Drop what this delivery remembers of a cancelled entry."""
        self._held.get(level, set()).discard(queue_offset)

    def deliver(self, now_ms: int) -> LogDeliveries:
        """Everything that is due at ``now_ms``.

        Raises TargetError when the disk refuses the first of it; if it refuses later, what came
        before is answered, and the rest waits for the next call.
        """
        rows = DueRows.merge(self._due_parts(now_ms), in_line=self._in_line)
        deliveries, count = self._deliver_rows(rows, now_ms)
        if count == len(rows):
            for part in rows.parts:
                self._mark_delivered(part, np.ones(len(part), np.bool_))
            for level in self._state.cursors:
                self.broker_offsets.looked(level, now_ms)
        else:
            masks = rows.masks_by_part(np.arange(len(rows)) < count)
            for part, mask in zip(rows.parts, masks, strict=True):
                self._mark_delivered(part, mask)
        return deliveries

    def _mark_delivered(self, part: DueEntries, mask: BoolArray) -> None:
        """These entries of a level were put, but for those that turned out to be held."""
        if held := self._held.get(part.level):
            mask &= ~np.isin(part.queue_offset, [*held])
        cursor = self._state.cursors[part.level]
        if mask.all():
            cursor.delivered(part)
        else:
            cursor.delivered_some(part, mask)

    def _due_parts(self, now_ms: int) -> list[DueEntries]:
        return [
            self._due_in(level, now_ms, NEVER_MS)
            for level, cursor in self._state.cursors.items()
            if cursor.next_due_ms <= now_ms or self._is_beyond(level, now_ms)
        ]

    def _due_in(self, level: int, now_ms: int, most: int) -> DueEntries:
        """What of a level may be put now; of what is in turn at most so many."""
        latest_due_ms = self._state.latest_due_ms(level, now_ms)
        latest_due_ms = NEVER_MS if latest_due_ms is None else latest_due_ms
        held = self._held.get(level, ())
        most = most + len(held)
        cursor = self._state.cursors[level]
        entries = cursor.due_entries(now_ms, latest_due_ms=latest_due_ms, most=most)
        if self._corrects_units(entries, now_ms):
            entries = cursor.due_entries(now_ms, latest_due_ms=latest_due_ms, most=most)
        self._blocked_until_ms.pop(level, None)
        if held:
            entries = entries.without(held)
            self._blocked_until_ms[level] = now_ms + RETRY_MS
        if self._state.rules.poison == "block":
            entries = self._cut_at_poison(entries, now_ms)
        return entries

    def _corrects_units(self, entries: DueEntries, now_ms: int) -> bool:
        """Put right lengths that damage has changed, and due times that it has made too early;
        whether there were any.
        """
        live, level = self._state.live, entries.level
        if not len(entries) or level > live.levels.max_level:
            return False
        sizes, times = find_wrong_units(live, level, entries.queue_offset, entries.units)
        if not self._state.believes_records:
            sizes = sizes.none()
        is_early = times.units["tags_code"] > now_ms
        early = WrongUnits(times.rows[is_early], times.units[is_early])
        for wrong, told in (
            (sizes, self._state.mended_entries),
            (early, self._state.corrected_due_times),
        ):
            wrong.write(live, level, entries.queue_offset[wrong.rows])
            if len(wrong.rows):
                told[level] = told.get(level, 0) + len(wrong.rows)
        if not len(sizes.rows) and not len(early.rows):
            return False
        self._state.cursors[level].rescan()
        return True

    def _deliver_rows(self, rows: DueRows, now_ms: int) -> tuple[LogDeliveries, int]:
        """Deliver in this order; also returns how many of the rows are done."""
        live = self._state.live
        nothing = np.zeros(0, np.int64)
        deliveries, done = LogDeliveries(live, nothing, nothing, nothing), 0
        while done < len(rows):
            stop = min(done + ROWS_AT_ONCE, len(rows))
            try:
                stored = self.put(rows, np.arange(done, stop), now_ms)
            except TargetError:
                if not done:
                    raise
                break
            deliveries = deliveries + stored if done else stored
            done = stop
        return deliveries, done

    def put(self, rows: DueRows, chosen: Int64Array, now_ms: int) -> LogDeliveries:
        """Append these rows to their topics, all or none.

        Each copy names the record that waited. What can go nowhere is noted. Raises TargetError;
        where the log has the copies and a queue does not, nothing more is taken, because a second
        try would deliver them twice.
        """
        live = self._state.live
        offsets = rows.commit_log_offset[chosen]
        with live.all_or_broken():
            redelivered = redeliver(
                live,
                offsets,
                rows.size_bytes[chosen],
                self._how,
                prepared_offsets=~offsets,
                store_ms=max(live.clock.now_ms(), now_ms),
            )
        self._note_bad(rows, chosen, redelivered.bad)
        self._note_stored(rows, chosen[redelivered.rows])
        return LogDeliveries(
            live, redelivered.positions, redelivered.sizes, rows.due_ms[chosen][redelivered.rows]
        )

    def _note_stored(self, rows: DueRows, stored: Int64Array) -> None:
        """These rows reached their topics, and nothing before them is still under way."""
        part_of_row, index = rows.part_of_row[stored], rows.index_in_part[stored]
        for number, part in enumerate(rows.parts):
            queue_offsets = part.queue_offset[index[part_of_row == number]]
            if len(queue_offsets):
                self.broker_offsets.delivered(part.level, int(queue_offsets.max()))

    def _note_bad(
        self, rows: DueRows, chosen: Int64Array, found: Sequence[tuple[int, FormatError]]
    ) -> None:
        bad = []
        for row, error in found:
            if self._is_too_long(rows, int(chosen[row])):
                part, place = rows.source(int(chosen[row]))
                self._held.setdefault(part.level, set()).add(int(part.queue_offset[place]))
            else:
                bad.append((int(chosen[row]), error))
        # From the topic of half messages none is delivered.
        halves = [row for row, _ in bad if self._real_topic(rows, row) == names.HALF_TOPIC]
        self.discarded += len(halves)
        self._state.skipped.add(rows.skipped(row, error) for row, error in bad if row not in halves)

    def _is_too_long(self, rows: DueRows, row: int) -> bool:
        """Whether a record can go to its topic in a store of 5.x, and not in this one."""
        if self._how.takes_long_topics:
            return False
        topic = self._real_topic(rows, row)
        long = attrs.evolve(self._how, takes_long_topics=True)
        return topic_problem(topic, self._how) is not None and topic_problem(topic, long) is None

    def _real_topic(self, rows: DueRows, row: int) -> str:
        offset, size_bytes = int(rows.commit_log_offset[row]), int(rows.size_bytes[row])
        try:
            return self._state.live.log.record(offset, size_bytes).real_topic or ""
        except FormatError:
            return ""

    # --- a level that is blocked ------------------------------------------------------------------

    def _cut_at_poison(self, entries: DueEntries, now_ms: int) -> DueEntries:
        """The entries before the first whose record does not say where it goes."""
        row = first_poison(self._state.live.log, entries)
        if row is None:
            return entries
        self._blocked_until_ms[entries.level] = now_ms + RETRY_MS
        return entries.before(row)
