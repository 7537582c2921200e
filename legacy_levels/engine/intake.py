# SPDX-License-Identifier: Apache-2.0
"""Schedules messages: chooses the level, stores the record and its queue entry, makes the receipt.

RocketMQ: CommitLog#asyncPutMessage, where the topic of a delayed message is replaced.
"""

import bisect
from typing import Literal

import attrs
import numpy as np

from legacy_levels.engine.state import LevelState
from message_store.base.errors import UnsupportedDelayError
from message_store.columns.byte_column import Int64s
from message_store.columns.message_batch import MessageBatch
from message_store.format.message import Message, StoredMessage
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.intake.records import RecordForm
from message_store.intake.store_intake import LiveIntake
from message_store.interface.delay_store import AfterMs, AtLevel, AtMs, BatchReceipt, Due, Receipt
from message_store.interface.promise_rules import NO_LIMIT, DelayLimit, to_level


class LevelIntake:
    """Appends messages to log and level queues; the store's lock is the caller's."""

    def __init__(
        self, state: LevelState, rounding: Literal["up", "exact"], limit: DelayLimit = NO_LIMIT
    ) -> None:
        self._state = state
        self._live = state.live
        self._table = state.table
        self._rule = to_level(state.table, rounding=rounding, limit=limit)
        self._is_exact = rounding == "exact"
        ranked = sorted((delay, level) for level, delay in enumerate(state.table.delays_ms, 1))
        self._delays_ms, self._ranked = [list(column) for column in zip(*ranked, strict=True)]
        longest_ms = self._delays_ms[-1]
        self._most_ms = longest_ms if limit.max_delay_ms is None else limit.max_delay_ms
        self._delivers_beyond = limit.beyond_max == "deliver"
        self._cursors = state.cursors
        self._queues = {level: state.queue(level) for level in state.cursors}
        settings = state.live.settings
        form = RecordForm.of(state.live.dialect, settings)
        self._form = attrs.evolve(form, born_host=settings.store_host)
        self._intake = LiveIntake(state.live, LEVEL_TOPIC, self._form)

    def _place(self, due: Due, now_ms: int) -> tuple[int, int, int]:
        """Level, time asked for, time promised. Raises UnsupportedDelayError."""
        match due:  # by class alone, the commonest first: patterns with fields cost twice as much
            case AtMs():
                due_ms = due.due_ms
            case AfterMs():
                due_ms = now_ms + due.delay_ms
            case AtLevel():
                level, delay_ms = self._table.asked(due.level)
                due_ms = now_ms + delay_ms
                return level, due_ms, due_ms if delay_ms > 0 else now_ms
        if due_ms <= now_ms:
            return self._table.shortest_level, due_ms, now_ms
        delay_ms = due_ms - now_ms
        place = bisect.bisect_left(self._delays_ms, delay_ms)
        is_beyond = place == len(self._delays_ms) or delay_ms > self._most_ms
        if is_beyond or (self._is_exact and self._delays_ms[place] != delay_ms):
            self._rule(due_ms, now_ms)  # says why not
            return self._table.shortest_level, due_ms, now_ms
        return self._ranked[place], due_ms, now_ms + self._delays_ms[place]

    def schedule(self, message: Message | StoredMessage, due: Due, now_ms: int) -> Receipt:
        """Store one message."""
        level, due_ms, promised_ms = self._place(due, now_ms)
        queue = self._queues[level]
        queue_offset = queue.max_offset
        receipt = self._intake.store(message, queue, due_ms, promised_ms, now_ms, level, None)
        self._cursors[level].appended(queue_offset, promised_ms)
        return receipt

    def reschedule(self, older: Receipt, message: StoredMessage, due: Due, now_ms: int) -> Receipt:
        """Store a pending message again, for another time."""
        level, due_ms, promised_ms = self._place(due, now_ms)
        queue = self._queues[level]
        queue_offset = queue.max_offset
        times = due_ms, promised_ms, now_ms
        receipt, _ = self._intake.store_again(older, message, queue, *times, level, None)
        self._cursors[level].appended(queue_offset, promised_ms)
        return receipt

    # --- many -------------------------------------------------------------------------------------

    def _levels(self, due_ms: Int64s, now_ms: int) -> tuple[Int64s, Int64s]:
        """Level and promised time of each. Raises UnsupportedDelayError for one that has none."""
        from message_store.intake.batch import levels_for

        table = self._state.table
        is_past = due_ms <= now_ms
        delays_ms = np.where(is_past, 0, due_ms - now_ms)  # far past minus now would overflow
        chosen = levels_for(delays_ms, table)
        kept_ms = np.array([0, *table.delays_ms], np.int64)[chosen]
        is_beyond = (chosen == 0) | (delays_ms > self._most_ms)
        refused = is_beyond.copy()
        if self._is_exact:
            refused |= kept_ms != delays_ms
        if self._delivers_beyond:
            is_past |= is_beyond
        for row in np.flatnonzero(refused & ~is_past)[:1].tolist():
            try:
                self._rule(int(due_ms[row]), now_ms)  # says why not
            except UnsupportedDelayError as error:
                raise error.of_row(row) from None
        levels = np.where(is_past, table.shortest_level, chosen)
        return levels, np.where(is_past, now_ms, now_ms + kept_ms)

    def schedule_batch(self, batch: MessageBatch, due_ms: Int64s, now_ms: int) -> BatchReceipt:
        """Store many now, all or none."""
        from message_store.intake.batch import draft_batch

        live = self._live
        levels, promised_ms = self._levels(due_ms, now_ms)
        made = draft_batch(batch, system_topic=LEVEL_TOPIC, delay_levels=levels, form=self._form)
        self._intake.require_room(made.sizes)
        rows_of = _rows_of(levels)
        queue_offsets = self._queue_offsets(rows_of, len(levels))
        positions = live.log.append_rows(made.sizes, made.bind(levels - 1, queue_offsets, now_ms))
        self._append_units(rows_of, positions, made.sizes, promised_ms)
        self._intake.topics.remember_all(batch)
        live.write_checkpoint()
        return made.receipt(due_ms, promised_ms, positions, live.settings.broker_name)

    def _queue_offsets(self, rows_of: dict[int, Int64s], count: int) -> Int64s:
        offsets = np.zeros(count, np.int64)
        for level, rows in rows_of.items():
            offsets[rows] = self._queues[level].max_offset + np.arange(len(rows))
        return offsets

    def _append_units(
        self, rows_of: dict[int, Int64s], positions: Int64s, sizes: Int64s, promised_ms: Int64s
    ) -> None:
        for level, rows in rows_of.items():
            units = np.empty(len(rows), QUEUE_UNIT.dtype)
            units["commit_log_offset"] = positions[rows]
            units["size_bytes"] = sizes[rows]
            units["tags_code"] = promised_ms[rows]
            first = self._queues[level].append(units)
            self._cursors[level].appended_many(first, promised_ms[rows])


def _rows_of(levels: Int64s) -> dict[int, Int64s]:
    """The rows of each level, in their order."""
    counts = np.bincount(levels)
    used = np.flatnonzero(counts)
    # Small numbers are sorted by counting: half of what looking for each level in turn costs.
    order = np.argsort(levels.astype(np.min_scalar_type(len(counts))), kind="stable")
    return dict(zip(used.tolist(), np.split(order, np.cumsum(counts[used])), strict=False))
