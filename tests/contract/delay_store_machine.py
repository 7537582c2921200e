# SPDX-License-Identifier: Apache-2.0
"""Drives a store and a model with the same random steps and compares them after each.

A subclass says how to make both. Keys are used again, for the same time and for others, after a
cancel, after the delivery and before both. Others, the twins, are equal in everything and never
cancelled: only their number tells whether one was lost or repeated.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from message_store import (
    AfterMs,
    AtLevel,
    AtMs,
    Cancellation,
    Clock,
    DelayStore,
    Delivered,
    Due,
    ManualClock,
    Message,
    MessageBatch,
    Pending,
    Receipt,
    Severity,
)
from message_store.base.errors import UnsupportedDelayError
from message_store.format.recall_handle import RecallHandle
from tests.contract.naive_store import Model

START_MS = 1_793_000_000_000
DAY_MS = 86_400_000

delays_ms = st.one_of(
    st.integers(0, 3_000), st.integers(0, 7_200_000), st.integers(0, 100).map(lambda s: s * 1_000)
)
dues = st.one_of(
    st.builds(AtLevel, st.integers(1, 20)),
    st.builds(AfterMs, delays_ms),
    st.builds(AtMs, st.integers(START_MS - DAY_MS, START_MS + DAY_MS)),
    st.builds(AfterMs, st.integers(0, 40 * DAY_MS)),
)
topics = st.sampled_from(["orders", "orders2", "payments"])
queue_ids = st.integers(0, 2)
steps_ms = st.one_of(delays_ms, st.integers(0, 2 * DAY_MS))

Fact = tuple[object, ...]


def in_order_of_promise(deliveries: Iterable[Delivered]) -> list[Fact]:
    """What was delivered; the order between different promises is left open."""
    return [
        (seen.topic, seen.queue_id, seen.unique_key, seen.body, promised_ms)
        for seen, promised_ms in sorted(
            ((each.message, each.promised_ms) for each in deliveries), key=lambda pair: pair[1]
        )
    ]


def waiting(pending: Iterable[Pending]) -> Counter[Fact]:
    return Counter((p.topic, p.queue_id, p.unique_key, p.due_ms) for p in pending)


class DelayStoreMachine(RuleBasedStateMachine):
    """The steps that any store takes; with ``durable``, its ends and new beginnings too.

    With ``forgets``, files are taken away when what they hold is old: what was delivered long ago
    may be unknown, but nothing else is different. With ``clock_leaps``, the clock is set back too,
    and the store advanced ahead of it.
    """

    durable = False
    forgets = False
    clock_leaps = False
    was_set_back = False

    def promise(self, due_ms: int, now_ms: int) -> int:
        """The promise rule of the store under test."""
        raise NotImplementedError

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        """The store under test: a new one, or what was left in ``folder``."""
        raise NotImplementedError

    def make_model(self, clock: Clock) -> Model:
        """What it is compared with."""
        raise NotImplementedError

    def abandon(self, store: DelayStore) -> None:
        """End without closing; only asked of what is durable."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="delay-store-"))
        self.clock = ManualClock(START_MS)
        self.store = self.open_store(self.folder / "store", self.clock)
        self.model = self.make_model(self.clock)
        self.receipts: list[tuple[Receipt, Receipt]] = []
        self.sent: dict[str, Message] = {}
        self.at_once: dict[str, set[int]] = {}
        self.cancelled: set[str] = set()
        self.delivered: dict[tuple[str, int], list[Fact]] = {}
        self.made = 0

    def teardown(self) -> None:
        try:
            if sys.exception() is None:  # a failure on the way is to be seen as it is
                self.nothing_is_missing_at_the_end()
        finally:
            self.store.close()
            shutil.rmtree(self.folder)

    # --- steps ------------------------------------------------------------------------------------

    def _message(self, topic: str, queue_id: int, is_twin: bool) -> Message:
        self.made += 1
        body, key = (b"twin", "TWIN") if is_twin else (b"%d" % self.made, f"KEY{self.made:08X}")
        self.sent[key] = Message(topic, body, queue_id=queue_id, unique_key=key)
        return self.sent[key]

    def _remember(self, receipt: Receipt, expected: Receipt, is_twin: bool) -> None:
        assert (receipt.unique_key, receipt.due_ms, receipt.promised_ms) == (
            expected.unique_key,
            expected.due_ms,
            expected.promised_ms,
        )
        if not is_twin:
            self.receipts.append((receipt, expected))
            if expected.promised_ms == self.clock.now_ms():
                places = self.at_once.setdefault(receipt.unique_key, set())
                places.add(expected.commit_log_offset)

    @initialize(millisecond=st.integers(0, 999))
    def begin(self, millisecond: int) -> None:
        self.clock.tick(millisecond)

    @rule(topic=topics, queue_id=queue_ids, due=dues, is_twin=st.booleans())
    def schedule(self, topic: str, queue_id: int, due: Due, is_twin: bool) -> None:
        self._schedule(self._message(topic, queue_id, is_twin), due, is_twin)

    @precondition(lambda self: self.receipts)
    @rule(choice=st.integers(0, 10**6), due=st.none() | dues, is_equal=st.booleans())
    def schedule_a_key_again(self, choice: int, due: Due | None, is_equal: bool) -> None:
        """For the same time, where no other is given."""
        known, _ = self.receipts[-1 - choice % min(20, len(self.receipts))]
        message = self.sent[known.unique_key]
        if not is_equal:
            self.made += 1
            message = attrs.evolve(message, body=b"%d" % self.made)
        due = due or AtMs(known.due_ms)
        if self._shares_a_slot(known.unique_key, due):
            return
        self._schedule(message, due, is_twin=False)

    def _shares_a_slot(self, key: str, due: Due) -> bool:
        """Whether a slot may hold two pending messages with one key and two promises, of which one
        is due at once: a wheel takes both back together.
        """
        pending = {p.commit_log_offset for p in self.model.pending() if p.unique_key == key}
        is_at_once = isinstance(due, AtMs) and due.due_ms <= self.clock.now_ms()
        is_at_once |= isinstance(due, AfterMs) and due.delay_ms <= 0
        return bool(pending if is_at_once else pending & self.at_once.get(key, set()))

    def _schedule(self, message: Message, due: Due, is_twin: bool) -> None:
        try:
            expected = self.model.schedule(message, due)
        except UnsupportedDelayError:
            expected = None
        try:
            receipt = self.store.schedule(message, due)
        except UnsupportedDelayError:
            receipt = None
        assert (receipt is None) == (expected is None)
        if receipt and expected:
            self._remember(receipt, expected, is_twin)

    @rule(
        rows=st.lists(
            st.tuples(topics, queue_ids, delays_ms.map(lambda ms: ms - 5_000), st.booleans()),
            max_size=8,
        )
    )
    def schedule_batch(self, rows: list[tuple[str, int, int, bool]]) -> None:
        messages = [self._message(topic, queue_id, twin) for topic, queue_id, _, twin in rows]
        due_ms = [self.clock.now_ms() + delay_ms for _, _, delay_ms, _ in rows]
        batch = MessageBatch.of(messages)
        if any(self._is_refused(each_ms) for each_ms in due_ms):
            with pytest.raises(UnsupportedDelayError):
                self.store.schedule_batch(batch, np.array(due_ms, np.int64))
            return
        receipts = self.store.schedule_batch(batch, np.array(due_ms, np.int64))
        assert len(receipts) == len(rows)
        for row, message in enumerate(messages):
            expected = self.model.schedule(message, AtMs(due_ms[row]))
            self._remember(receipts.receipt(row), expected, rows[row][3])

    def _is_refused(self, due_ms: int) -> bool:
        now_ms = self.clock.now_ms()
        try:
            if due_ms > now_ms:
                self.promise(due_ms, now_ms)
        except UnsupportedDelayError:
            return True
        return False

    def _advance(self, now_ms: int) -> None:
        found = in_order_of_promise(self.store.advance(now_ms))
        assert found == in_order_of_promise(self.model.advance(now_ms))
        for fact in found:
            assert isinstance(fact[-1], int)
            assert fact[-1] <= now_ms
            self.delivered.setdefault((str(fact[0]), int(str(fact[1]))), []).append(fact[2:4])

    @rule(step_ms=steps_ms)
    def advance(self, step_ms: int) -> None:
        self.clock.tick(step_ms)
        self._advance(self.clock.now_ms())

    @rule(step_ms=steps_ms)
    def advance_to_an_earlier_time(self, step_ms: int) -> None:
        self._advance(max(0, self.clock.now_ms() - step_ms))

    @precondition(lambda self: self.clock_leaps)
    @rule(step_ms=steps_ms)
    def advance_ahead_of_the_clock(self, step_ms: int) -> None:
        self._advance(self.clock.now_ms() + step_ms)

    @precondition(lambda self: self.clock_leaps)
    @rule(step_ms=steps_ms)
    def the_clock_is_set_back(self, step_ms: int) -> None:
        self.clock.tick(-step_ms)
        self.was_set_back = True

    @rule()
    def advance_to_the_next_due_time(self) -> None:
        next_ms = self.store.next_due_ms()
        if next_ms is not None:
            self.clock.tick(max(0, next_ms - self.clock.now_ms()))
            self._advance(self.clock.now_ms())
            later_ms = self.store.next_due_ms()
            assert later_ms is None or later_ms > self.clock.now_ms()

    @rule(step_ms=steps_ms)
    def let_time_pass(self, step_ms: int) -> None:
        self.clock.tick(step_ms)

    @precondition(lambda self: self.receipts)
    @rule(choice=st.integers(0, 10**6), by_handle=st.booleans())
    def cancel(self, choice: int, by_handle: bool) -> None:
        receipt, expected = self.receipts[choice % len(self.receipts)]
        pending = {each.commit_log_offset for each in self.model.pending()}
        answer = self.store.cancel(receipt.handle if by_handle else receipt)
        right = self.model.cancel(expected.handle if by_handle else expected)
        is_new = len(pending) > len(list(self.model.pending()))
        was_cancelled = receipt.handle in self.cancelled
        if right is Cancellation.CANCELLED and not is_new:
            # How long a store remembers what it was asked to forget is its own affair.
            assert answer is not Cancellation.ALREADY_DELIVERED
        elif right is Cancellation.ALREADY_DELIVERED and (self.forgets or was_cancelled):
            # Of equal messages it may have forgotten one, or not know which came before the other.
            assert was_cancelled or answer is not Cancellation.CANCELLED
        else:
            assert answer is right
        if right is Cancellation.CANCELLED:
            self.cancelled.add(receipt.handle)

    @precondition(lambda self: self.receipts)
    @rule(choice=st.integers(0, 10**6))
    def cancel_a_stranger(self, choice: int) -> None:
        known = RecallHandle.parse(self.receipts[choice % len(self.receipts)][0].handle)
        stranger = RecallHandle(known.topic, known.broker_name, known.due_ms, "NOBODY").text()
        assert self.store.cancel(stranger) is Cancellation.NEVER_EXISTED

    @rule(topic=topics, after=st.none() | steps_ms, before=st.none() | steps_ms)
    def look_at_a_part_of_what_waits(
        self, topic: str, after: int | None, before: int | None
    ) -> None:
        now_ms = self.clock.now_ms()
        after_ms, before_ms = (None if ms is None else now_ms + ms for ms in (after, before))
        found = self.store.pending(topic=topic, due_after_ms=after_ms, due_before_ms=before_ms)
        expected = (
            each
            for each in self.model.pending()
            if each.topic == topic
            and (after_ms is None or each.due_ms >= after_ms)
            and (before_ms is None or each.due_ms < before_ms)
        )
        assert waiting(found) == waiting(expected)

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @precondition(lambda self: self.durable)
    @rule(is_kill=st.booleans())
    def end_and_reopen(self, is_kill: bool) -> None:
        if is_kill:
            self.abandon(self.store)
        else:
            self.store.close()
        self.store = self.open_store(self.folder / "store", self.clock)

    # --- what holds after every step --------------------------------------------------------------

    @invariant()
    def the_same_waits(self) -> None:
        assert waiting(self.store.pending()) == waiting(self.model.pending())

    @invariant()
    def next_due_is_not_later_than_the_first_promise(self) -> None:
        next_ms, first_ms = self.store.next_due_ms(), self.model.next_due_ms()
        assert (next_ms is None) == (first_ms is None)
        assert next_ms is None or first_ms is None or next_ms <= first_ms

    @invariant()
    def nothing_is_found_to_be_wrong(self) -> None:
        found = [each for each in self.store.check() if each.severity is not Severity.INFO]
        if self.was_set_back:  # which is what the levels' own check then says, and it is so
            found = [each for each in found if "the clock was set back" not in each.remedy]
        assert found == []

    def nothing_is_missing_at_the_end(self) -> None:
        """Every topic holds what was delivered to it, in that order, up to the last message."""
        last_ms = max((each.due_ms for each in self.model.pending()), default=0)
        self.clock.tick(max(0, last_ms - self.clock.now_ms()) + DAY_MS)
        self._advance(self.clock.now_ms())
        assert list(self.store.pending()) == []
        for (topic, queue_id), facts in self.delivered.items() if not self.forgets else ():
            read = self.store.topic(topic).read(queue_id, 0, len(facts) + 1)
            assert [each.queue_offset for each in read] == list(range(len(facts)))
            assert Counter((m.unique_key, m.body) for m in read) == Counter(facts)
