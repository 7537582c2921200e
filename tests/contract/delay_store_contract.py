# SPDX-License-Identifier: Apache-2.0
"""The contract of ``DelayStore`` as tests. Whoever claims to keep it subclasses and says how to
make one.

An engine's test file names its promise rule and its levels, opens a store in a folder, and, where
it has files, overrides ``consumed`` to read a topic around the store, so that ``topic().read`` is
not proven by itself. Where an engine cannot do what a test asks for, the test is overridden there
with the reason.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store import (
    AfterMs,
    AtLevel,
    AtMs,
    Cancellation,
    Clock,
    DelayLevels,
    DelayStore,
    Delivered,
    Due,
    ManualClock,
    Message,
    MessageBatch,
    Pending,
    Receipt,
    Severity,
    StoredMessage,
)
from message_store.base.errors import BadFieldError, StoreClosedError, UnsupportedDelayError
from message_store.format.recall_handle import RecallHandle
from tests.contract.asked_contract import AskedContract

START_MS = 1_793_000_000_000
"""When every test begins: a whole second, so that a wheel's slot begins here too."""

Open = Callable[[Clock], DelayStore]

EVERY_DUE: list[Due] = [
    AtLevel(1),
    AtLevel(3),
    AfterMs(1),
    AfterMs(999),
    AfterMs(1_000),
    AfterMs(1_001),
    AfterMs(90_000),
    AtMs(START_MS + 4_321),
    AtMs(START_MS + 3_600_000),
]


def message(number: int, topic: str = "orders") -> Message:
    """Messages that differ in body and unique key."""
    return Message(topic, f"body {number}".encode(), unique_key=f"KEY{number:08X}")


def bodies(found: Iterable[StoredMessage]) -> list[bytes]:
    return [each.body for each in found]


def delivered_bodies(deliveries: Iterable[Delivered]) -> list[bytes]:
    return [each.message.body for each in deliveries]


EVERY_CALL: dict[str, Callable[[DelayStore], object]] = {
    "schedule": lambda store: store.schedule(message(2), AfterMs(1)),
    "schedule_batch": lambda store: store.schedule_batch(
        MessageBatch.of([message(2)]), np.ones(1, np.int64)
    ),
    "put": lambda store: store.put(message(2)),
    "put_batch": lambda store: store.put_batch(MessageBatch.of([message(2)])),
    "advance": lambda store: store.advance(START_MS),
    "next_due_ms": lambda store: store.next_due_ms(),
    "pending": lambda store: list(store.pending()),
    "cancel": lambda store: store.cancel(RecallHandle("orders", "b", 1, "K").text()),
    "topic": lambda store: store.topic("orders").read(0, 0),
    "check": lambda store: store.check(),
    "flush": lambda store: store.flush(),
}


class DelayStoreContract(AskedContract):
    """Every obligation that holds for a store from its opening to its closing."""

    levels = DelayLevels.parse()

    def promise(self, due_ms: int, now_ms: int) -> int:
        """The engine's promise rule."""
        raise NotImplementedError

    def open_store(self, folder: Path, clock: Clock) -> DelayStore:
        """A store in ``folder``: a new one, or what was left there."""
        raise NotImplementedError

    def consumed(self, store: DelayStore, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """All that a consumer would find in a queue; an engine with files reads them itself."""
        return list(store.topic(topic).read(queue_id, 0, 10_000))

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(START_MS)

    @pytest.fixture
    def open_one(self, tmp_path: Path) -> Iterator[Open]:
        opened = []

        def open_one(clock: Clock) -> DelayStore:
            opened.append(self.open_store(tmp_path / "store", clock))
            return opened[-1]

        yield open_one
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_one: Open, clock: ManualClock) -> DelayStore:
        return open_one(clock)

    def due_ms(self, due: Due, now_ms: int) -> int:
        match due:
            case AtLevel(level):
                return now_ms + self.levels.delay_ms(self.levels.clamp(level))
            case AfterMs(delay_ms):
                return now_ms + delay_ms
            case AtMs(due_ms):
                return due_ms

    # --- the promise ------------------------------------------------------------------------------

    @pytest.mark.parametrize("due", EVERY_DUE, ids=str)
    def test_a_receipt_says_what_was_asked_and_what_will_be_kept(
        self, store: DelayStore, due: Due
    ) -> None:
        receipt = store.schedule(message(1), due)
        asked_ms = self.due_ms(due, START_MS)
        assert (receipt.topic, receipt.unique_key) == ("orders", "KEY00000001")
        assert (receipt.due_ms, receipt.promised_ms) == (asked_ms, self.promise(asked_ms, START_MS))
        assert receipt.promised_ms >= receipt.due_ms

    @pytest.mark.parametrize("due", EVERY_DUE, ids=str)
    def test_a_message_comes_at_its_promise_and_not_a_millisecond_earlier(
        self, store: DelayStore, clock: ManualClock, due: Due
    ) -> None:
        receipt = store.schedule(message(1), due)
        clock.tick(receipt.promised_ms - START_MS - 1)
        assert len(store.advance(clock.now_ms())) == 0
        assert self.consumed(store, "orders") == []
        clock.tick(1)
        [delivered] = store.advance(clock.now_ms())
        assert (delivered.message.body, delivered.promised_ms) == (b"body 1", receipt.promised_ms)
        assert bodies(self.consumed(store, "orders")) == [b"body 1"]

    def test_times_between_whole_seconds_are_kept_too(
        self, store: DelayStore, clock: ManualClock
    ) -> None:
        clock.tick(437)
        now_ms = clock.now_ms()
        receipts = [store.schedule(message(ms), AfterMs(ms)) for ms in (1, 562, 563, 564, 90_001)]
        promised = [self.promise(now_ms + ms, now_ms) for ms in (1, 562, 563, 564, 90_001)]
        assert [receipt.promised_ms for receipt in receipts] == promised
        for time_ms in sorted(set(promised)):
            assert len(store.advance(time_ms - 1)) == 0
            due = [receipt for receipt in receipts if receipt.promised_ms == time_ms]
            assert len(store.advance(time_ms)) == len(due)

    def test_a_level_above_the_last_is_the_last(self, store: DelayStore) -> None:
        receipt = store.schedule(message(1), AtLevel(self.levels.max_level + 5))
        assert receipt.due_ms == START_MS + self.levels.delays_ms[-1]

    @pytest.mark.parametrize("due", [AtMs(0), AtMs(START_MS - 86_400_000), AtMs(START_MS - 1)])
    def test_a_past_time_is_promised_for_now(self, store: DelayStore, due: AtMs) -> None:
        receipt = store.schedule(message(1), due)
        assert (receipt.due_ms, receipt.promised_ms) == (due.due_ms, START_MS)
        assert delivered_bodies(store.advance(START_MS)) == [b"body 1"]

    @pytest.mark.parametrize("due", [AtMs(START_MS), AfterMs(0)])
    def test_no_delay_is_promised_for_now(self, store: DelayStore, due: Due) -> None:
        assert store.schedule(message(1), due).promised_ms == START_MS
        assert delivered_bodies(store.advance(START_MS)) == [b"body 1"]

    def test_a_late_advance_brings_everything_that_is_due(self, store: DelayStore) -> None:
        last_ms = max(
            store.schedule(message(number), AtLevel(1 + number % 18)).promised_ms
            for number in range(40)
        )
        found = delivered_bodies(store.advance(last_ms + 604_000_000))
        assert sorted(found) == sorted(f"body {number}".encode() for number in range(40))
        assert store.next_due_ms() is None

    def test_what_is_scheduled_behind_the_last_advance_comes_with_the_next(
        self, store: DelayStore
    ) -> None:
        """A loop may advance to a time that the store's own clock has not reached."""
        ahead_ms = store.schedule(message(1), AfterMs(90_000)).promised_ms
        assert len(store.advance(ahead_ms)) == 1
        receipt = store.schedule(message(2), AfterMs(10_000))
        assert receipt.promised_ms < ahead_ms
        assert delivered_bodies(store.advance(ahead_ms)) == [b"body 2"]

    # --- once, and in order -----------------------------------------------------------------------

    @pytest.mark.parametrize("now_ms", [2**63 - 1, 2**63, 2**64])
    def test_the_end_of_all_time_brings_everything_and_later_promises_are_kept(
        self, store: DelayStore, now_ms: int
    ) -> None:
        for number in range(3):
            store.schedule(message(number), AfterMs(1_000 * number))
        assert len(store.advance(now_ms)) == 3
        receipt = store.schedule(message(3), AfterMs(5_000))
        assert len(store.advance(receipt.promised_ms - 1)) == 0
        assert len(store.advance(receipt.promised_ms)) == 1

    def test_a_clock_that_is_set_back_stops_nothing(
        self, store: DelayStore, clock: ManualClock
    ) -> None:
        store.schedule(message(0), AfterMs(1_000))
        assert len(store.advance(START_MS + 10_000)) == 1
        clock.tick(-3_600_000)
        receipt = store.schedule(message(1), AfterMs(5_000))
        next_ms = store.next_due_ms()
        assert next_ms is not None
        assert next_ms <= receipt.promised_ms
        assert len(store.advance(receipt.promised_ms - 1)) == 0
        assert len(store.advance(receipt.promised_ms)) == 1

    def test_what_is_overdue_when_the_clock_is_set_back_comes_once(
        self, store: DelayStore, clock: ManualClock
    ) -> None:
        store.advance(START_MS + 540_000)
        dues: list[Due] = [AfterMs(0), AfterMs(5_000), AtMs(START_MS - 4_000), AfterMs(300_000)]
        for number, due in enumerate(dues):
            store.schedule(message(number), due)
        assert len(list(store.pending())) == 4
        found = [len(store.advance(START_MS + later_ms)) for later_ms in (100_000, 700_000)]
        assert found == [3, 1]
        assert list(store.pending()) == []

    def test_what_was_due_by_a_clock_that_was_ahead_holds_nothing_back(
        self, store: DelayStore, clock: ManualClock
    ) -> None:
        store.schedule(message(0), AfterMs(0))
        clock.tick(-3_600_000)
        promised_ms = [store.schedule(message(n), AfterMs(5_000 * n)).promised_ms for n in (1, 2)]
        assert delivered_bodies(store.advance(promised_ms[1])) == [b"body 1", b"body 2"]
        assert len(store.advance(START_MS - 1)) == 0
        assert store.next_due_ms() == START_MS
        assert delivered_bodies(store.advance(START_MS)) == [b"body 0"]

    def test_what_was_delivered_ahead_of_the_clock_is_not_taken_back_behind_it(
        self, store: DelayStore
    ) -> None:
        receipt = store.schedule(message(0), AfterMs(100_000))
        assert len(store.advance(START_MS)) == 0
        assert delivered_bodies(store.advance(START_MS + 200_000)) == [b"body 0"]
        store.schedule(message(1), AfterMs(5_000))
        assert len(store.advance(START_MS + 1_000)) == 0
        assert store.cancel(receipt) is Cancellation.ALREADY_DELIVERED
        assert delivered_bodies(store.advance(START_MS + 200_000)) == [b"body 1"]

    def test_a_second_advance_delivers_nothing(self, store: DelayStore) -> None:
        promised_ms = store.schedule(message(1), AfterMs(5_000)).promised_ms
        assert len(store.advance(promised_ms)) == 1
        for time_ms in (promised_ms, promised_ms, promised_ms - 1, START_MS, 0, promised_ms + 1):
            assert len(store.advance(time_ms)) == 0
        assert len(self.consumed(store, "orders")) == 1

    def test_an_earlier_time_keeps_what_waits(self, store: DelayStore) -> None:
        first = store.schedule(message(1), AfterMs(5_000))
        second = store.schedule(message(2), AfterMs(60_000))
        assert len(store.advance(first.promised_ms)) == 1
        assert len(store.advance(START_MS - 600_000)) == 0
        assert len(store.advance(second.promised_ms - 1)) == 0
        assert delivered_bodies(store.advance(second.promised_ms)) == [b"body 2"]

    def test_equal_promises_keep_the_order_of_placing(self, store: DelayStore) -> None:
        due = AtMs(store.schedule(message(0), AfterMs(60_000)).due_ms)
        for number in range(1, 50):
            store.schedule(message(number, topic=f"topic{number % 3}"), due)
        found = delivered_bodies(store.advance(START_MS + 86_400_000))
        assert found == [f"body {number}".encode() for number in range(50)]
        assert bodies(self.consumed(store, "topic1")) == [
            f"body {number}".encode() for number in range(1, 50, 3)
        ]

    def test_equal_promises_made_at_different_times_keep_the_order_of_placing(
        self, store: DelayStore, clock: ManualClock
    ) -> None:
        """Five seconds from now, then one second from four seconds later."""
        first = store.schedule(message(1), AtLevel(2))
        clock.tick(4_000)
        second = store.schedule(message(2), AtLevel(1))
        assert first.promised_ms == second.promised_ms
        clock.tick(1_000)
        assert delivered_bodies(store.advance(clock.now_ms())) == [b"body 1", b"body 2"]

    def test_of_neighbours_in_time_only_those_come_whose_time_has_come(
        self, store: DelayStore, clock: ManualClock
    ) -> None:
        """The last that is due and the first that is not lie a millisecond apart in one queue."""
        receipts = []
        for number in range(4):
            receipts.append(store.schedule(message(number), AtLevel(3)))
            clock.tick(1)
        for now_ms in sorted({each.promised_ms for each in receipts}):
            due = [each.promised_ms == now_ms for each in receipts]
            expected = [f"body {number}".encode() for number in range(4) if due[number]]
            assert delivered_bodies(store.advance(now_ms)) == expected

    def test_messages_that_are_equal_in_everything_are_each_delivered(
        self, store: DelayStore
    ) -> None:
        receipts = [store.schedule(message(1), AfterMs(5_000)) for _ in range(3)]
        assert len({receipt.commit_log_offset for receipt in receipts}) == 3
        assert delivered_bodies(store.advance(START_MS + 60_000)) == [b"body 1"] * 3

    # --- what is delivered ------------------------------------------------------------------------

    def test_a_consumer_sees_what_was_given(self, store: DelayStore, clock: ManualClock) -> None:
        given = Message(
            topic="orders-and-%RETRY%_names",
            body="müde 𝄞".encode(),
            tags="zu-spät",
            keys=("42", "größer"),
            properties={"Käufer": "𝄞 Müller", "a": "b=c; d"},
            queue_id=3,
            flag=7,
            unique_key="0A0102030001",
        )
        receipt = store.schedule(given, AfterMs(30_000))
        clock.tick(receipt.promised_ms - START_MS + 250)
        [delivered] = store.advance(clock.now_ms())
        seen = delivered.message
        assert (seen.topic, seen.body, seen.queue_id) == (given.topic, given.body, 3)
        assert (seen.tags, seen.keys, seen.unique_key) == (
            given.tags,
            given.keys,
            given.unique_key,
        )
        assert seen.flag == 7
        assert given.properties.items() <= seen.properties.items()
        assert seen.born_timestamp_ms == START_MS
        assert (seen.store_timestamp_ms, delivered.lateness_ms) == (clock.now_ms(), 250)
        assert self.consumed(store, given.topic, 3) == [seen]

    @pytest.mark.parametrize("body", [b"", b"\0" * 100, bytes(range(256)) * 200], ids=len)
    def test_any_body_is_delivered_as_it_is(self, store: DelayStore, body: bytes) -> None:
        store.schedule(Message("orders", body), AfterMs(1_000))
        assert delivered_bodies(store.advance(START_MS + 60_000)) == [body]

    def test_a_message_without_a_unique_key_gets_one_of_its_own(self, store: DelayStore) -> None:
        receipts = [store.schedule(Message("orders", b"same"), AfterMs(1_000)) for _ in range(50)]
        keys = [receipt.unique_key for receipt in receipts]
        assert len(set(keys)) == 50
        found = [each.message.unique_key for each in store.advance(START_MS + 60_000)]
        assert found == keys

    def test_deliveries_are_a_sequence(self, store: DelayStore) -> None:
        for number in range(5):
            store.schedule(message(number), AfterMs(1_000))
        deliveries = store.advance(START_MS + 60_000)
        once, again = list(deliveries), list(deliveries)
        assert once == again
        assert len(deliveries) == 5
        assert [deliveries[index] for index in range(5)] == once
        assert [deliveries[index] for index in range(-5, 0)] == once
        for index in (5, -6):
            with pytest.raises(IndexError):
                _ = deliveries[index]

    def test_deliveries_outlive_the_next_advance(self, store: DelayStore) -> None:
        store.schedule(message(1), AfterMs(1_000))
        first = store.advance(START_MS + 60_000)
        store.schedule(message(2), AfterMs(1_000))
        store.advance(START_MS + 120_000)
        assert delivered_bodies(first) == [b"body 1"]

    def test_deliveries_as_columns_are_the_same(self, store: DelayStore) -> None:
        for number in range(5):
            store.schedule(message(number, topic=f"topic{number % 2}"), AfterMs(1_000))
        deliveries = store.advance(START_MS + 60_000)
        batch = deliveries.to_batch()
        assert [batch.message(row) for row in range(len(batch))] == [
            each.message for each in deliveries
        ]
        assert len(store.advance(START_MS + 60_000).to_batch()) == 0

    # --- topics -----------------------------------------------------------------------------------

    def test_what_is_delivered_is_what_a_topic_holds(self, store: DelayStore) -> None:
        for number in range(12):
            store.schedule(
                attrs.evolve(message(number), queue_id=number % 3), AfterMs(1_000 * number)
            )
        for each in store.advance(START_MS + 600_000):
            place = each.message.queue_id, each.message.queue_offset
            assert list(store.topic("orders").read(*place, 1)) == [each.message]

    def test_a_queue_is_read_from_any_ordinal(self, store: DelayStore) -> None:
        for number in range(10):
            store.schedule(message(number), AfterMs(1_000))
        store.advance(START_MS + 60_000)
        queue = store.topic("orders")
        everything = queue.read(0, 0)
        assert [each.queue_offset for each in everything] == list(range(10))
        assert list(queue.read(0, 7)) == list(everything[7:])
        assert list(queue.read(0, 3, 4)) == list(everything[3:7])
        assert list(queue.read(0, 10)) == list(queue.read(0, 99)) == list(queue.read(0, 3, 0)) == []
        assert list(queue.read(1, 0)) == []

    def test_a_topic_reader_sees_later_deliveries(self, store: DelayStore) -> None:
        queue = store.topic("orders")
        assert list(queue.read(0, 0)) == []
        store.schedule(message(1), AfterMs(1_000))
        store.advance(START_MS + 60_000)
        assert bodies(queue.read(0, 0)) == [b"body 1"]

    def test_topics_whose_names_begin_alike_are_apart(self, store: DelayStore) -> None:
        for number, topic in enumerate(("orders", "orders2", "orders-", "order")):
            store.schedule(message(number, topic), AfterMs(1_000))
        store.advance(START_MS + 60_000)
        for number, topic in enumerate(("orders", "orders2", "orders-", "order")):
            assert bodies(self.consumed(store, topic)) == [f"body {number}".encode()]

    # --- what waits -------------------------------------------------------------------------------

    def test_an_empty_store_has_nothing(self, store: DelayStore) -> None:
        assert store.next_due_ms() is None
        assert list(store.pending()) == []
        assert len(store.advance(START_MS + 600_000)) == 0
        assert list(store.topic("orders").read(0, 0)) == []
        store.flush()

    def test_next_due_is_never_later_than_a_promise_and_leads_to_it(
        self, store: DelayStore, clock: ManualClock
    ) -> None:
        promised = {
            number: store.schedule(message(number), due).promised_ms
            for number, due in enumerate(EVERY_DUE)
        }
        while (next_ms := store.next_due_ms()) is not None:
            came = bodies(self.consumed(store, "orders"))
            waiting = [
                promised[number] for number in promised if f"body {number}".encode() not in came
            ]
            assert clock.now_ms() < next_ms <= min(waiting)
            clock.tick(next_ms - clock.now_ms())
            store.advance(clock.now_ms())
        assert len(self.consumed(store, "orders")) == len(EVERY_DUE)

    def test_next_due_of_what_is_overdue_is_not_in_the_future(self, store: DelayStore) -> None:
        store.schedule(message(1), AtMs(START_MS - 5_000))
        next_ms = store.next_due_ms()
        assert next_ms is not None
        assert next_ms <= START_MS

    def test_pending_says_what_waits(self, store: DelayStore) -> None:
        given = Message("orders", b"x" * 300, "late", ("42", "43"), {"a": "b"}, queue_id=2)
        receipt = store.schedule(given, AtLevel(5))
        [pending] = store.pending()
        assert pending.level in (None, 5)
        assert pending.size_bytes > 300
        assert pending == Pending(
            unique_key=receipt.unique_key,
            topic="orders",
            queue_id=2,
            tags="late",
            keys=("42", "43"),
            level=pending.level,
            due_ms=receipt.promised_ms,
            size_bytes=pending.size_bytes,
            commit_log_offset=receipt.commit_log_offset,
        )

    def test_what_is_delivered_or_cancelled_waits_no_more(self, store: DelayStore) -> None:
        receipts = [store.schedule(message(n), AfterMs(10_000 * n)) for n in range(1, 4)]
        store.advance(receipts[0].promised_ms)
        store.cancel(receipts[1])
        assert [each.unique_key for each in store.pending()] == [receipts[2].unique_key]

    def test_each_filter_of_pending_lets_through_what_it_says(self, store: DelayStore) -> None:
        receipts = [
            store.schedule(message(number, topic=f"topic{number % 2}"), AfterMs(20_000 * number))
            for number in range(1, 7)
        ]
        everything = {each.unique_key: each for each in store.pending()}
        assert set(everything) == {receipt.unique_key for receipt in receipts}

        def keys(**filters: object) -> set[str | None]:
            return {each.unique_key for each in store.pending(**filters)}  # type: ignore[arg-type]

        def those(wanted: Callable[[Receipt], bool]) -> set[str]:
            return {receipt.unique_key for receipt in receipts if wanted(receipt)}

        third_ms, fifth_ms = receipts[2].promised_ms, receipts[4].promised_ms
        assert keys(topic="topic1") == those(lambda r: r.topic == "topic1")
        assert keys(topic="topic") == set()
        assert keys(due_after_ms=third_ms) == those(lambda r: r.promised_ms >= third_ms)
        assert keys(due_before_ms=third_ms) == those(lambda r: r.promised_ms < third_ms)
        assert keys(due_after_ms=third_ms, due_before_ms=fifth_ms) == those(
            lambda r: third_ms <= r.promised_ms < fifth_ms
        )
        assert keys(unique_key=receipts[3].unique_key) == {receipts[3].unique_key}
        assert keys(unique_key="NOBODY") == set()
        assert keys(topic="topic1", unique_key=receipts[3].unique_key) == set()
        for level in range(1, 19):
            assert keys(level=level) == {k for k, each in everything.items() if each.level == level}

    # --- taking back ------------------------------------------------------------------------------

    @pytest.mark.parametrize("by_handle", [False, True])
    def test_a_cancelled_message_never_comes(self, store: DelayStore, by_handle: bool) -> None:
        receipts = [store.schedule(message(number), AfterMs(60_000)) for number in range(5)]
        taken = receipts[2].handle if by_handle else receipts[2]
        assert store.cancel(taken) is Cancellation.CANCELLED
        assert store.cancel(taken) is Cancellation.CANCELLED
        found = delivered_bodies(store.advance(START_MS + 600_000))
        assert found == [b"body 0", b"body 1", b"body 3", b"body 4"]
        assert store.cancel(taken) is not Cancellation.ALREADY_DELIVERED

    @pytest.mark.parametrize("due", EVERY_DUE, ids=str)
    def test_whatever_waits_can_be_cancelled_until_it_comes(
        self, store: DelayStore, clock: ManualClock, due: Due
    ) -> None:
        kept, taken = (store.schedule(message(number), due) for number in (1, 2))
        clock.tick(taken.promised_ms - START_MS - 1)
        store.advance(clock.now_ms())
        assert store.cancel(taken) is Cancellation.CANCELLED
        clock.tick(1)
        assert delivered_bodies(store.advance(clock.now_ms())) == [b"body 1"]
        assert store.cancel(kept) is Cancellation.ALREADY_DELIVERED
        assert store.cancel(kept.handle) is Cancellation.ALREADY_DELIVERED
        assert bodies(self.consumed(store, "orders")) == [b"body 1"]

    def test_of_what_is_overdue_nothing_comes_that_was_told_to_be_cancelled(
        self, store: DelayStore, clock: ManualClock
    ) -> None:
        """Nobody advances, and the clock goes on: what came first is overdue for long."""
        receipts = []
        for number in range(4):
            receipts.append(store.schedule(message(number), AfterMs(0)))
            assert len(list(store.pending())) == number + 1  # all that came in is placed
            clock.tick(10_000)
        told = [store.cancel(receipt) for receipt in receipts[1:3]]
        clock.tick(60_000)
        came = [b"body 0", b"body 3"]
        came += [
            b"body %d" % number
            for number, answer in zip((1, 2), told, strict=True)
            if answer is not Cancellation.CANCELLED
        ]
        assert sorted(delivered_bodies(store.advance(clock.now_ms()))) == sorted(came)

    def test_what_was_never_there_cannot_be_cancelled(self, store: DelayStore) -> None:
        receipt = store.schedule(message(1), AfterMs(60_000))
        known = RecallHandle.parse(receipt.handle)
        for stranger in (
            attrs.evolve(known, unique_key="NOBODY"),
            attrs.evolve(known, topic="other"),
            attrs.evolve(known, broker_name="another-broker"),
            attrs.evolve(known, due_ms=known.due_ms + 600_000),
        ):
            assert store.cancel(stranger.text()) is Cancellation.NEVER_EXISTED
        assert delivered_bodies(store.advance(START_MS + 600_000)) == [b"body 1"]

    @pytest.mark.parametrize("due_ms", [-(2**63), -1, 0, 2**62, 2**63 - 1])
    def test_a_handle_of_any_time_has_an_answer(self, store: DelayStore, due_ms: int) -> None:
        handle = RecallHandle.parse(store.schedule(message(0), AfterMs(5_000)).handle)
        other = attrs.evolve(handle, due_ms=due_ms)
        assert store.cancel(other.text()) is Cancellation.NEVER_EXISTED

    def test_text_that_no_record_can_hold_waits_nowhere(self, store: DelayStore) -> None:
        store.schedule(message(0), AfterMs(5_000))
        assert list(store.pending(topic="\udc80")) == []
        assert list(store.pending(unique_key="\udc80")) == []

    def test_one_cancelled_key_leaves_the_same_key_elsewhere(self, store: DelayStore) -> None:
        elsewhere = store.schedule(message(1, topic="other"), AfterMs(60_000))
        later = store.schedule(message(1), AfterMs(90_000))
        taken = store.schedule(message(1), AfterMs(60_000))
        assert store.cancel(taken) is Cancellation.CANCELLED
        found = {
            (each.message.topic, each.promised_ms) for each in store.advance(later.promised_ms)
        }
        assert found == {("other", elsewhere.promised_ms), ("orders", later.promised_ms)}

    def test_a_cancelled_message_can_be_scheduled_anew(self, store: DelayStore) -> None:
        assert store.cancel(store.schedule(message(1), AfterMs(60_000))) is Cancellation.CANCELLED
        store.schedule(message(1), AfterMs(120_000))
        assert len(store.advance(START_MS + 600_000)) == 1

    @pytest.mark.parametrize("due", EVERY_DUE, ids=str)
    def test_a_cancelled_message_can_be_scheduled_again_for_the_same_time(
        self, store: DelayStore, due: Due
    ) -> None:
        """Equal in everything, so that only the order of cancel and schedule tells them apart."""
        receipts = []
        for _ in range(3):
            receipts.append(store.schedule(message(1), due))
            assert len(list(store.pending())) == 1
            assert store.cancel(receipts[-1]) is Cancellation.CANCELLED
            assert list(store.pending()) == []
        receipts.append(store.schedule(message(1), due))
        assert store.next_due_ms() is not None
        for receipt in receipts[:3]:  # nor does another cancel of those take the last
            assert store.cancel(receipt) is Cancellation.CANCELLED
        assert len(list(store.pending(unique_key=receipts[-1].unique_key))) == 1
        assert len(store.advance(receipts[-1].promised_ms - 1)) == 0
        assert delivered_bodies(store.advance(receipts[-1].promised_ms)) == [b"body 1"]
        assert store.cancel(receipts[-1]) is Cancellation.ALREADY_DELIVERED
        assert store.cancel(receipts[-1].handle) is Cancellation.ALREADY_DELIVERED
        for receipt in receipts[:3]:
            assert store.cancel(receipt) is not Cancellation.ALREADY_DELIVERED

    @pytest.mark.parametrize("due", [AtMs(0), AfterMs(10_000)])
    def test_a_cancelled_key_says_nothing_of_a_later_message(
        self, store: DelayStore, clock: ManualClock, due: Due
    ) -> None:
        assert store.cancel(store.schedule(message(1), due)) is Cancellation.CANCELLED
        clock.tick(60_000)
        assert len(store.advance(clock.now_ms())) == 0
        later = store.schedule(message(1), AfterMs(10_000))
        assert delivered_bodies(store.advance(later.promised_ms)) == [b"body 1"]
        assert store.cancel(later) is Cancellation.ALREADY_DELIVERED
        assert store.cancel(later.handle) is Cancellation.ALREADY_DELIVERED

    def test_a_handle_takes_all_that_share_it_however_they_were_scheduled(
        self, store: DelayStore, clock: ManualClock
    ) -> None:
        """One that was scheduled ahead, and one that was due when it was stored."""
        ahead = store.schedule(message(1), AtMs(START_MS + 2_000))
        clock.tick(2_000)
        at_once = store.schedule(message(2, topic="orders"), AtMs(START_MS + 2_000))
        same = attrs.evolve(message(1), body=b"the same key")
        store.schedule(same, AtMs(START_MS + 2_000))
        assert at_once.promised_ms == clock.now_ms()
        shares = ahead.promised_ms == at_once.promised_ms
        assert store.cancel(ahead.handle) is Cancellation.CANCELLED
        left = [b"body 2"] if shares else [b"body 2", b"the same key"]
        assert delivered_bodies(store.advance(START_MS + 600_000)) == left

    @pytest.mark.parametrize("text", ["", "no handle", "djE=", "ÄÖÜ"])
    def test_text_that_is_no_handle_is_refused(self, store: DelayStore, text: str) -> None:
        with pytest.raises(BadFieldError):
            store.cancel(text)

    def test_a_store_of_which_everything_was_cancelled_is_empty(self, store: DelayStore) -> None:
        for number in range(3):
            store.cancel(store.schedule(message(number), AfterMs(30_000)))
        assert list(store.pending()) == []
        assert len(store.advance(START_MS + 600_000)) == 0

    # --- what is refused --------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "bad",
        [
            Message("orders", b"", properties={"a": "x" * 40_000}),
            Message("orders", b"", properties={"a\x01": "b"}),
            Message("orders", b"", tags="a\x02b"),
            Message("orders", b"", queue_id=2**31),
            Message("o" * 40_000, b""),
        ],
        ids=["properties too long", "separator in name", "separator in tags", "queue id", "topic"],
    )
    def test_what_no_record_can_hold_is_refused_and_nothing_stored(
        self, store: DelayStore, bad: Message
    ) -> None:
        with pytest.raises(BadFieldError):
            store.schedule(bad, AfterMs(5_000))
        assert list(store.pending()) == []
        store.schedule(message(1), AfterMs(5_000))
        assert delivered_bodies(store.advance(START_MS + 600_000)) == [b"body 1"]

    @pytest.mark.parametrize("delay_ms", [10**10, 7_200_001, 1_234])
    def test_what_the_engine_cannot_keep_is_refused_and_nothing_stored(
        self, store: DelayStore, delay_ms: int
    ) -> None:
        try:
            promised_ms = self.promise(START_MS + delay_ms, START_MS)
        except UnsupportedDelayError:
            with pytest.raises(UnsupportedDelayError):
                store.schedule(message(1), AfterMs(delay_ms))
            assert list(store.pending()) == []
        else:
            assert store.schedule(message(1), AfterMs(delay_ms)).promised_ms == promised_ms

    # --- many at once -----------------------------------------------------------------------------

    def test_a_batch_is_the_same_as_one_by_one(self, store: DelayStore) -> None:
        messages = [
            attrs.evolve(
                message(number, topic=f"topic{number % 3}"),
                tags="late" if number % 2 else None,
                keys=(str(number), "all"),
                properties={"n": str(number)} if number % 5 else {},
                queue_id=number % 2,
                flag=number,
            )
            for number in range(60)
        ]
        due_ms = [START_MS + 1_000 * (number * 7 % 20) for number in range(60)]
        receipts = store.schedule_batch(MessageBatch.of(messages), np.array(due_ms, np.int64))
        assert len(receipts) == 60
        assert receipts.due_ms.tolist() == due_ms
        rule = [START_MS if ms <= START_MS else self.promise(ms, START_MS) for ms in due_ms]
        assert receipts.promised_ms.tolist() == rule
        assert (np.diff(receipts.commit_log_offsets) > 0).all()
        waiting = {each.unique_key: each for each in store.pending()}
        for row, given in enumerate(messages):
            receipt = receipts.receipt(row)
            assert (receipt.unique_key, receipt.topic) == (given.unique_key, given.topic)
            assert receipt.commit_log_offset == waiting[given.unique_key].commit_log_offset
        together = list(store.advance(START_MS + 60_000))
        for given, asked_ms in zip(messages, due_ms, strict=True):
            store.schedule(given, AtMs(asked_ms))
        single = list(store.advance(START_MS + 60_000))
        assert _in_order_of_promise(together) == _in_order_of_promise(single)

    def test_a_message_of_a_batch_can_be_cancelled(self, store: DelayStore) -> None:
        batch = MessageBatch.of(
            [Message("orders", b"a"), Message("orders", b"b"), Message("orders", b"c")]
        )
        receipts = store.schedule_batch(batch, np.full(3, START_MS + 60_000))
        assert len(set(receipts.unique_keys)) == 3
        assert store.cancel(receipts.receipt(1)) is Cancellation.CANCELLED
        assert store.cancel(receipts.receipt(2).handle) is Cancellation.CANCELLED
        assert delivered_bodies(store.advance(START_MS + 600_000)) == [b"a"]

    def test_a_batch_of_columns_that_nobody_may_write_to_is_stored(self, store: DelayStore) -> None:
        numbers = np.array([0, 1, 2], np.int64)
        numbers.flags.writeable = False  # as Arrow's are
        topics = "orders", "bills", "orders"
        rows = MessageBatch.of(Message(topic, b"a") for topic in topics)
        batch = attrs.evolve(rows, queue_id=numbers)
        receipts = store.schedule_batch(batch, np.full(3, START_MS + 60_000))
        assert len(receipts) == len(list(store.pending())) == 3

    def test_an_empty_batch_is_nothing(self, store: DelayStore) -> None:
        receipts = store.schedule_batch(MessageBatch.of([]), np.zeros(0, np.int64))
        assert len(receipts) == 0
        assert store.next_due_ms() is None

    def test_a_batch_with_one_bad_row_stores_none(self, store: DelayStore) -> None:
        rows = [message(1), attrs.evolve(message(2), properties={"a": "x" * 40_000}), message(3)]
        with pytest.raises(BadFieldError):
            store.schedule_batch(MessageBatch.of(rows), np.full(3, START_MS + 5_000))
        assert list(store.pending()) == []
        assert len(store.advance(START_MS + 600_000)) == 0

    def test_a_batch_takes_any_past_time(self, store: DelayStore) -> None:
        """Also those from which now cannot be subtracted within 64 bits."""
        due_ms = np.array([-(2**63), -1, 0, START_MS - 1], np.int64)
        receipts = store.schedule_batch(MessageBatch.of([message(n) for n in range(4)]), due_ms)
        assert receipts.promised_ms.tolist() == [START_MS] * 4
        assert len(store.advance(START_MS)) == 4

    def test_a_batch_needs_as_many_due_times_as_messages(self, store: DelayStore) -> None:
        batch = MessageBatch.of([message(1), message(2)])
        for count in (1, 3):
            with pytest.raises(ValueError, match=r".+"):
                store.schedule_batch(batch, np.full(count, START_MS + 5_000))
        assert list(store.pending()) == []

    # --- health, threads, the end -----------------------------------------------------------------

    def test_a_healthy_store_has_no_findings(self, store: DelayStore) -> None:
        def bad() -> list[str]:
            found = store.check()
            return [str(each) for each in found if each.severity is not Severity.INFO]

        assert bad() == []
        receipts = [store.schedule(message(n), AfterMs(10_000 * n)) for n in range(1, 9)]
        assert bad() == []
        store.cancel(receipts[7])
        store.advance(receipts[3].promised_ms)
        assert bad() == []
        store.advance(START_MS + 600_000)
        assert bad() == []

    def test_several_threads_may_schedule_and_advance(
        self, store: DelayStore, request: pytest.FixtureRequest
    ) -> None:
        request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
        sys.setswitchinterval(1e-6)  # as often as Python can, so that they do meet
        found: list[bytes] = []
        places: list[int] = []
        errors: list[BaseException] = []

        def schedule(worker: int) -> None:
            for number in range(50):
                receipt = store.schedule(message(100 * worker + number), AfterMs(1_000))
                places.append(receipt.commit_log_offset)

        def advance() -> None:
            for _ in range(50):
                found.extend(delivered_bodies(store.advance(START_MS + 60_000)))

        def run(work: Callable[..., None], *arguments: int) -> None:
            try:
                work(*arguments)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(schedule, worker)) for worker in range(3)]
        threads.append(threading.Thread(target=run, args=(advance,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found.extend(delivered_bodies(store.advance(START_MS + 60_000)))
        assert errors == []
        expected = [f"body {100 * worker + n}".encode() for worker in range(3) for n in range(50)]
        assert sorted(found) == sorted(expected)
        assert len(set(places)) == len(expected)
        assert sorted(bodies(self.consumed(store, "orders"))) == sorted(expected)

    def test_closing_twice_is_fine(self, store: DelayStore) -> None:
        store.schedule(message(1), AfterMs(1_000))
        store.close()
        store.close()

    def test_leaving_the_with_block_closes(self, store: DelayStore) -> None:
        with store as same:
            assert same is store
        with pytest.raises(StoreClosedError):
            store.next_due_ms()

    @pytest.mark.parametrize("call", EVERY_CALL)
    def test_a_closed_store_refuses_every_call(self, store: DelayStore, call: str) -> None:
        store.schedule(message(1), AfterMs(1_000))
        store.close()
        with pytest.raises(StoreClosedError):
            EVERY_CALL[call](store)


def _in_order_of_promise(deliveries: list[Delivered]) -> list[tuple[object, ...]]:
    """Of deliveries, what does not depend on where they lie; between promises any order will do."""
    return [
        (
            *(
                getattr(each.message, name)
                for name in ("topic", "queue_id", "body", "tags", "flag")
            ),
            *(each.message.keys, each.message.unique_key, each.message.properties.get("n")),
            each.promised_ms,
        )
        for each in sorted(deliveries, key=lambda each: each.promised_ms)
    ]
