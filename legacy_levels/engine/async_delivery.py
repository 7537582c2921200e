# SPDX-License-Identifier: Apache-2.0
"""The bulk form of DeliverDelayedMessageTimerTask#asyncDeliver: many deliveries in progress.

They finish in order. RocketMQ: the same, PutResultProcess, HandlePutResultTask. A
delivery stays in progress until all before it are finished, because a level's offset only moves
past delivered entries. A failed one is sent again at growing intervals, without end. A level that
failed often enough starts no new ones (docs/FORMAT.md, delivery of a level).

A disk that refuses is no error of ``advance`` here: the failed delivery is sent again. If a part of
it was stored and nobody knows which, the store has to be opened again.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs
import numpy as np

from legacy_levels.engine.cursor import NEVER_MS, DueEntries
from legacy_levels.engine.delivery import RETRY_MS, DueRows, LevelDelivery
from legacy_levels.engine.rules import AsyncRules
from legacy_levels.engine.state import LevelState
from message_store.base.errors import TargetError
from message_store.reading.consume_queue import BoolArray, Int64Array
from message_store.redelivery.batch import rows_without_successor
from message_store.redelivery.deliveries import LogDeliveries

_WAIT_STEP_MS = 100
_LONGEST_WAIT_MS = 60_000


class Resent(enum.Enum):
    """What came of sending one again."""

    STORED = "stored"
    FAILED = "failed"
    MISSING = "missing"


@attrs.define
class PendingPut:
    """One delivery in progress, by the queue offset of its entry. RocketMQ: PutResultProcess.

    ``next_try_ms`` is None unless it waits to be sent again, which only the oldest one does.
    """

    queue_offset: int
    is_stored: bool
    resend_count: int = 0
    next_try_ms: int | None = None


@attrs.frozen
class Handled:
    """What left the queue of deliveries: stored ones, and given-up ones, by queue offset."""

    stored: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()


class PendingPuts:
    """The deliveries of one level that are under way, oldest first.

    ``unsaved_skip`` is the first that was given up since one was stored: giving up saves no offset.
    """

    def __init__(self, rules: AsyncRules) -> None:
        self._rules = rules
        self._puts: deque[PendingPut] = deque()
        self.unsaved_skip: int | None = None

    def __len__(self) -> int:
        return len(self._puts)

    @property
    def puts(self) -> Sequence[PendingPut]:
        """All under way, oldest first."""
        return tuple(self._puts)

    @property
    def times_sent_again(self) -> int:
        """How often the oldest one was sent again, the one that is waited for not counted."""
        head = self._puts[0] if self._puts else PendingPut(0, is_stored=True)
        return head.resend_count - (head.next_try_ms is not None)

    @property
    def is_blocked(self) -> bool:
        """Whether the oldest one has failed so often that nothing new is started."""
        return bool(self._puts) and self._puts[0].resend_count > self._rules.blocked_after

    @property
    def free_places(self) -> int:
        """How many more may be started; a level is refused when *more* than the limit are."""
        return 0 if self.is_blocked else max(0, self._rules.max_pending + 1 - len(self._puts))

    @property
    def next_try_ms(self) -> int | None:
        """When the oldest one is sent again; None when none waits for that."""
        if self._puts and not self._puts[0].is_stored:
            return self._puts[0].next_try_ms
        return None

    def add(self, queue_offsets: Iterable[int], *, is_stored: bool, now_ms: int) -> None:
        """These were put, or failed; each waits for those in front of it."""
        for queue_offset in queue_offsets:
            self._puts.append(PendingPut(queue_offset, is_stored))
        self._let_wait(now_ms)

    def forget(self, queue_offset: int) -> None:
        """Drop a cancelled entry."""
        self._puts = deque(put for put in self._puts if put.queue_offset != queue_offset)

    def handle_results(self, now_ms: int, resend: Callable[[int], Resent]) -> Handled:
        """Remove stored deliveries from the front; a failed one there is sent again when its time
        has come. RocketMQ: HandlePutResultTask#run, PutResultProcess#doResend.
        """
        stored: list[int] = []
        skipped: list[int] = []
        while self._puts:
            head = self._puts[0]
            if not head.is_stored:
                if self._let_wait(now_ms) > now_ms:
                    break
                head.next_try_ms = None
                outcome = resend(head.queue_offset)
                head.is_stored = outcome is Resent.STORED
                may_give_up = head.resend_count > 2 * self._rules.blocked_after
                if outcome is Resent.MISSING and may_give_up:
                    skipped.append(self._puts.popleft().queue_offset)
                    if self.unsaved_skip is None:
                        self.unsaved_skip = head.queue_offset
                continue
            stored.append(self._puts.popleft().queue_offset)
            self.unsaved_skip = None
        return Handled(tuple(stored), tuple(skipped))

    def _let_wait(self, now_ms: int) -> int:
        """Let the oldest one wait, if it failed and does not wait yet; when it is sent again. As in
        brokers, a wait counts as a resend from its beginning.
        """
        head = self._puts[0] if self._puts else PendingPut(0, is_stored=True)
        if not head.is_stored and head.next_try_ms is None:
            steps = head.resend_count + self._rules.first_wait
            head.resend_count += 1
            head.next_try_ms = now_ms + min(steps * _WAIT_STEP_MS, _LONGEST_WAIT_MS)
        return now_ms if head.next_try_ms is None else head.next_try_ms


class AsyncDelivery(LevelDelivery):
    """Delivers what is due with many under way; results are handled in order of each level."""

    def __init__(self, state: LevelState) -> None:
        super().__init__(state)
        rules = state.rules.async_rules
        self._under_way = {level: PendingPuts(rules) for level in state.cursors}
        self._now_ms = 0
        self._answers: list[LogDeliveries] = []
        self._reached: dict[int, set[int]] = {}

    @property
    def failing(self) -> dict[int, int]:
        """Of each level with deliveries under way, how often its oldest one was sent again."""
        return {level: puts.times_sent_again for level, puts in self._under_way.items() if puts}

    def offset_to_save(self, level: int, head: int) -> int:
        """The offset of a level: what was given up does not move it until something is stored."""
        unsaved = self._under_way[level].unsaved_skip
        return head if unsaved is None else min(head, unsaved)

    def forget(self, level: int, queue_offset: int) -> None:
        """Drop what this delivery remembers of a cancelled entry."""
        super().forget(level, queue_offset)
        if level in self._under_way:
            self._under_way[level].forget(queue_offset)

    def next_due_ms(self) -> int:
        """When something is due, or sent again; ``NEVER_MS`` when nothing waits."""
        soonest_ms = NEVER_MS
        for level in self._state.cursors:
            try_ms = self._under_way[level].next_try_ms
            if try_ms is None:
                soonest_ms = min(soonest_ms, self._next_due_of(level))
            else:
                soonest_ms = min(soonest_ms, max(try_ms, self._now_ms + 1), self._now_ms + RETRY_MS)
        return soonest_ms

    def deliver(self, now_ms: int) -> LogDeliveries:
        """Everything that is due at ``now_ms`` and can be delivered."""
        self._now_ms = now_ms
        self._answers = []
        self._handle_results()
        while self._start_a_round():
            self._handle_results()
        for level, under_way in self._under_way.items():
            if under_way.free_places:
                self.broker_offsets.looked(level, now_ms)
        columns = [(answer.offsets, answer.sizes, answer.promised_ms) for answer in self._answers]
        nothing = np.zeros(0, np.int64)
        joined = zip((nothing, nothing, nothing), *columns, strict=True)
        return LogDeliveries(self._state.live, *map(np.concatenate, joined))

    def _start_a_round(self) -> bool:
        """Put what is due as far as the limits allow; whether there is more to do."""
        parts, masks, cutoffs = self._choose()
        rows = DueRows.merge(parts, in_line=self._in_line)
        if not len(rows):
            return False
        starts = np.cumsum([0, *map(len, parts)])
        chosen = np.concatenate(masks)[starts[rows.part_of_row] + rows.index_in_part]
        if cutoffs and not self._in_line:  # levels of a broker know nothing of each other
            due_ms, offset = min(cutoffs)
            is_before = (rows.due_ms < due_ms) | (
                (rows.due_ms == due_ms) & (rows.commit_log_offset <= offset)
            )
            chosen &= is_before
        if not chosen.any():
            return False
        is_stored = False
        try:
            self._answers.append(self.put(rows, np.flatnonzero(chosen), self._now_ms))
            is_stored = True
        except TargetError:
            if self._state.live.log.is_broken:  # sending again would not help
                raise
            chosen = self._pass_over_bad(rows, chosen)
        finally:  # after Ctrl-C too, as failed ones
            kept = rows.masks_by_part(chosen)
            for part, mask in zip(parts, kept, strict=True):
                queue_offsets = part.queue_offset[mask].tolist()
                puts = self._under_way[part.level]
                puts.add(queue_offsets, is_stored=is_stored, now_ms=self._now_ms)
        if is_stored:
            for part, mask in zip(parts, kept, strict=True):
                self._mark_delivered(part, mask)
                for queue_offset in self._held.get(part.level, ()):
                    self._under_way[part.level].forget(queue_offset)
        return is_stored

    def _pass_over_bad(self, rows: DueRows, chosen: BoolArray) -> BoolArray:
        """After a put that failed: what can go nowhere is skipped now, because a broker would
        never have put it. Sent again and again, it would hold its level back. Returns the others.
        """
        wanted = np.flatnonzero(chosen)
        found = rows_without_successor(
            self._state.live,
            rows.commit_log_offset[wanted],
            rows.size_bytes[wanted],
            self._how,
            store_ms=self._now_ms,
        )
        self._note_bad(rows, wanted, found)
        is_bad = np.zeros(len(rows), np.bool_)
        is_bad[wanted[[row for row, _ in found]]] = True
        for part, mask in zip(rows.parts, rows.masks_by_part(is_bad), strict=True):
            self._mark_delivered(part, mask)
        return chosen & ~is_bad

    def _choose(self) -> tuple[list[DueEntries], list[BoolArray], list[tuple[int, int]]]:
        """What is due, which of it may be started, and where levels had to be cut off."""
        parts, masks, cutoffs = [], [], []
        for level, under_way in self._under_way.items():
            if not under_way.free_places:
                continue
            entries = self._due_in(level, self._now_ms, under_way.free_places + len(under_way))
            started = np.array([put.queue_offset for put in under_way.puts], np.int64)
            mask = ~np.isin(entries.queue_offset, started)
            in_turn = entries.queue_offset < entries.stop
            if in_turn.sum() == under_way.free_places + len(under_way):
                last = np.flatnonzero(in_turn)[-1]
                cutoffs.append((int(entries.due_ms[last]), int(entries.commit_log_offset[last])))
            parts.append(entries)
            masks.append(mask)
        return parts, masks, cutoffs

    def _handle_results(self) -> None:
        """Let what is done go, and send again what failed."""
        for level, under_way in self._under_way.items():
            if not under_way:
                continue
            handled = under_way.handle_results(self._now_ms, partial(self._resend, level))
            reached = self._reached.get(level, set())
            if stored := [each for each in handled.stored if each in reached]:
                self.broker_offsets.delivered(level, stored[-1])
                reached.difference_update(stored)
            gone = np.array(handled.skipped, np.int64)
            if len(gone):
                self._state.cursors[level].mark_delivered(gone)

    def _note_stored(self, rows: DueRows, stored: Int64Array) -> None:
        """Remember those that reached their topics and were not skipped. Others before them
        may be under way, so ``_handle_results`` does the rest.
        """
        if self.broker_offsets.table is not None:
            for row in stored.tolist():
                part, place = rows.source(row)
                self._reached.setdefault(part.level, set()).add(int(part.queue_offset[place]))

    def _resend(self, level: int, queue_offset: int) -> Resent:
        """Put one again, synchronously."""
        cursor = self._state.cursors[level]
        unit = cursor.queue.units(queue_offset, queue_offset + 1)
        entries = DueEntries(
            level,
            np.array([queue_offset], np.int64),
            unit["commit_log_offset"].astype(np.int64),
            unit["size_bytes"].astype(np.int64),
            unit["tags_code"].astype(np.int64),
            cursor.head,  # what lies in front of it may still wait
        )
        try:
            answer = self.put(DueRows.merge([entries]), np.zeros(1, np.int64), self._now_ms)
        except TargetError:
            if self._state.live.log.is_broken:  # sending again would not help
                raise
            return Resent.FAILED
        if queue_offset in self._held.get(level, ()):
            return Resent.FAILED
        if not len(answer):
            return Resent.MISSING
        self._answers.append(answer)
        cursor.delivered_some(entries, np.ones(1, np.bool_))
        return Resent.STORED
