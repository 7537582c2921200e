# SPDX-License-Identifier: Apache-2.0
"""What is due in all levels goes to its topics: by due time, and among equals in log order.

A record that can go nowhere is passed over, or blocks its level (``LevelRules``). Half messages of
transactions are dropped, as brokers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from legacy_levels.level_scanner import NEVER_MS, DueEntries
from legacy_levels.skipped_messages import SkippedMessage
from message_store import properties as names
from message_store.consume_queue import BoolArray, Int64Array
from message_store.errors import FormatError, TargetError
from message_store.log_deliveries import LogDeliveries
from message_store.redelivery import FROM_LEVEL, Redelivered, redeliver

if TYPE_CHECKING:
    from legacy_levels.level_state import LevelState

ROWS_AT_ONCE = 1 << 18
RETRY_MS = 100
"""How long a blocked level is left alone."""


@attrs.frozen(eq=False)
class DueRows:
    """Due entries of several levels in the order of delivery; ``part`` counts ``parts``."""

    parts: Sequence[DueEntries]
    part: Int64Array
    place: Int64Array
    commit_log_offset: Int64Array
    size_bytes: Int64Array
    due_ms: Int64Array

    @classmethod
    def merge(cls, parts: Sequence[DueEntries]) -> DueRows:
        """All of these by due time, and among equals in log order."""
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
        steps = np.diff(due_ms)
        if (steps < 0).any() or ((steps == 0) & (np.diff(offset) < 0)).any():
            order = np.lexsort((offset, due_ms))
            columns = [column[order] for column in columns]
        return cls(parts, *columns)

    def __len__(self) -> int:
        return len(self.part)

    def of_part(self, which: BoolArray) -> list[BoolArray]:
        """For each part which of its entries are meant by these rows."""
        masks = [np.zeros(len(part), np.bool_) for part in self.parts]
        for number, mask in enumerate(masks):
            mask[self.place[which & (self.part == number)]] = True
        return masks

    def skipped(self, row: int, error: FormatError) -> SkippedMessage:
        """A note of a row that could not be delivered."""
        part, place = self.parts[int(self.part[row])], int(self.place[row])
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
        self.discarded = 0

    def next_due_ms(self) -> int:
        """When something is due, or tried again; ``NEVER_MS`` when nothing waits."""
        found = NEVER_MS
        for level, scanner in self._state.scanners.items():
            due_ms = scanner.next_due_ms
            if due_ms != NEVER_MS and level in self._blocked_until_ms:
                due_ms = max(due_ms, self._blocked_until_ms[level])
            found = min(found, due_ms)
        return found

    def offset_to_save(self, level: int, head: int) -> int:
        """What a level's offset is written down as, when its head is there."""
        return head

    def forget(self, level: int, queue_offset: int) -> None:
        """A message was taken back."""

    def deliver(self, now_ms: int) -> LogDeliveries:
        """Everything that is due at ``now_ms``.

        Raises TargetError when the disk refuses the first of it; if it refuses later, what came
        before is answered, and the rest waits for the next call.
        """
        rows = DueRows.merge(self._due_parts(now_ms))
        deliveries, count = self._deliver_rows(rows, now_ms)
        if count == len(rows):
            for part in rows.parts:
                self._state.scanners[part.level].delivered(part)
        else:
            masks = rows.of_part(np.arange(len(rows)) < count)
            for part, mask in zip(rows.parts, masks, strict=True):
                self._state.scanners[part.level].delivered_some(part, mask)
        return deliveries

    def _due_parts(self, now_ms: int) -> list[DueEntries]:
        parts = []
        for level, scanner in self._state.scanners.items():
            limit_ms = self._state.limit_ms(level, now_ms)
            is_due = scanner.next_due_ms <= now_ms
            is_due |= limit_ms is not None and limit_ms < scanner.next_due_ms < NEVER_MS
            if is_due:
                found = scanner.due_entries(
                    now_ms, limit_ms=NEVER_MS if limit_ms is None else limit_ms
                )
                if self._state.rules.poison == "block":
                    found = self._cut_at_poison(found, now_ms)
                parts.append(found)
        return parts

    def _deliver_rows(self, rows: DueRows, now_ms: int) -> tuple[LogDeliveries, int]:
        """Deliver in this order; also returns how many of the rows are dealt with."""
        live = self._state.live
        nothing = np.zeros(0, np.int64)
        deliveries, done = LogDeliveries(live, nothing, nothing, nothing), 0
        while done < len(rows):
            stop = min(done + ROWS_AT_ONCE, len(rows))
            try:
                deliveries = self.put(rows, np.arange(done, stop), now_ms, deliveries)
            except TargetError:
                if not done:
                    raise
                break
            done = stop
        return deliveries, done

    def put(
        self, rows: DueRows, chosen: Int64Array, now_ms: int, before: LogDeliveries
    ) -> LogDeliveries:
        """Append these rows to their topics, all or none; answers ``before`` and them.

        What can go nowhere is noted. Raises TargetError; where the log has the copies and a queue
        does not, nothing more is taken, because a second try would deliver them twice.
        """
        live = self._state.live
        with live.all_or_broken():
            found = redeliver(
                live,
                rows.commit_log_offset[chosen],
                rows.size_bytes[chosen],
                self._how,
                store_ms=max(live.clock.now_ms(), now_ms),
            )
        self._note_bad(rows, chosen, found)
        stored = LogDeliveries(live, found.positions, found.sizes, rows.due_ms[chosen][found.rows])
        return before + stored if len(before) else stored

    def _note_bad(self, rows: DueRows, chosen: Int64Array, found: Redelivered) -> None:
        bad = [(int(chosen[row]), error) for row, error in found.bad]
        halves = [row for row, _ in bad if self._is_half(rows, row)]
        self.discarded += len(halves)
        self._state.skipped.add(rows.skipped(row, error) for row, error in bad if row not in halves)

    def _is_half(self, rows: DueRows, row: int) -> bool:
        """Whether a record goes to the topic of half messages, from where none is delivered."""
        offset, size_bytes = int(rows.commit_log_offset[row]), int(rows.size_bytes[row])
        try:
            return self._state.live.log.record(offset, size_bytes).real_topic == names.HALF_TOPIC
        except FormatError:
            return False

    # --- a level that is blocked ------------------------------------------------------------------

    def _cut_at_poison(self, entries: DueEntries, now_ms: int) -> DueEntries:
        """The entries before the first whose record does not say where it goes."""
        from legacy_levels.poison import first_poison

        self._blocked_until_ms.pop(entries.level, None)
        row = first_poison(self._state.live.log, entries)
        if row is None:
            return entries
        self._blocked_until_ms[entries.level] = now_ms + RETRY_MS
        return entries.before(row)
