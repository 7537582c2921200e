# SPDX-License-Identifier: Apache-2.0
"""What a store owes that outlives its process: all it was given, and each of it once."""

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import attrs
import numpy as np
import pytest

from message_store import (
    AfterMs,
    AtMs,
    Cancellation,
    DelayStore,
    Due,
    ManualClock,
    Message,
    MessageBatch,
    Receipt,
)
from message_store.base.errors import SharedKeyError, UnsupportedStoreError
from message_store.format.recall_handle import RecallHandle
from tests.contract.delay_store_contract import (
    START_MS,
    DelayStoreContract,
    Open,
    bodies,
    delivered_bodies,
    message,
)

FAR_MS = 40 * 86_400_000
"""Farther than any wheel reaches."""

PAST_AND_FLUSHED = [(-1_500, is_busy, is_busy, True) for is_busy in (False, True)]
"""The two of many ways to the same end that ordinary runs try."""


def closed(store: DelayStore) -> None:
    """The orderly end."""
    store.close()


def require_handles_of_one_key_apart(store: DelayStore, first_due_ms: int) -> None:
    """Each handle takes the messages that were promised for its time, and no neighbour: of those
    at the ends of slots of each width, and a little before and after.
    """
    first_due_ms += -first_due_ms % 1_000
    ends = (0, 100, 200, 400, 500, 600, 900, 1_000, 1_100, 1_500, 2_000)
    dues_ms = sorted({first_due_ms + end + near for end in ends for near in (-1, 0, 1, 37)})
    receipts = [
        store.schedule(Message("orders", b"same", unique_key="K"), AtMs(due_ms))
        for due_ms in dues_ms
    ]
    promises = Counter(each.promised_ms for each in receipts)
    for receipt in reversed(receipts):
        if promises.pop(receipt.promised_ms, 0):
            assert store.cancel(receipt.handle) is Cancellation.CANCELLED
            assert Counter(each.due_ms for each in store.pending(unique_key="K")) == promises


class DurableStoreContract(DelayStoreContract):
    """Every obligation that goes from one opening to the next.

    ``abandon`` is how a store dies without being closed, as far as one process can tell; real kills
    have tests of their own.
    """

    def abandon(self, store: DelayStore) -> None:
        """Let go of the folder as a kill would, without a last word."""
        raise NotImplementedError

    @pytest.fixture(params=["closed", "killed"])
    def end(self, request: pytest.FixtureRequest) -> Callable[[DelayStore], None]:
        return closed if request.param == "closed" else self.abandon

    def test_what_waits_is_there_after_reopening(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        dues: list[Due] = [AfterMs(5_000), AfterMs(60_000), AtMs(START_MS - 1), AfterMs(7_000_000)]
        receipts = [store.schedule(message(number), due) for number, due in enumerate(dues)]
        before = sorted(store.pending(), key=lambda each: each.commit_log_offset)
        end(store)
        again = open_one(clock)
        assert sorted(again.pending(), key=lambda each: each.commit_log_offset) == before
        for receipt in sorted(receipts, key=lambda each: each.promised_ms):
            assert len(again.advance(receipt.promised_ms - 1)) == 0
            [delivered] = again.advance(receipt.promised_ms)
            assert delivered.promised_ms == receipt.promised_ms
            assert delivered.message.unique_key == receipt.unique_key

    def test_a_batch_is_there_after_reopening(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        batch = MessageBatch.of([message(number) for number in range(30)])
        store.schedule_batch(batch, np.arange(30) * 1_000 + START_MS)
        end(store)
        assert len(open_one(clock).advance(START_MS + 600_000)) == 30

    def test_nothing_is_delivered_again_after_reopening(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        for number in range(20):
            store.schedule(message(number), AfterMs(1_000 * (number + 1)))
        clock.tick(10_000)
        first = delivered_bodies(store.advance(clock.now_ms()))
        end(store)
        again = open_one(clock)
        assert len(again.advance(clock.now_ms())) == 0
        clock.tick(600_000)
        second = delivered_bodies(again.advance(clock.now_ms()))
        everything = sorted(f"body {number}".encode() for number in range(20))
        assert sorted(first + second) == everything
        assert sorted(bodies(self.consumed(again, "orders"))) == everything

    def test_every_reopening_within_one_moment_repeats_nothing(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        """Equal messages too: what must match is a multiset and not a set of keys."""
        found = []
        store = open_one(clock)
        for _ in range(3):
            store.schedule(message(1), AfterMs(1_000))
            store.schedule(message(1), AfterMs(2_000))
        for _ in range(4):
            found += delivered_bodies(store.advance(clock.now_ms()))
            clock.tick(2_000)
            end(store)
            store = open_one(clock)
        assert found == [b"body 1"] * 6

    def test_order_among_equal_promises_survives_reopening(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        for number in range(10):
            store.schedule(message(number), AtMs(START_MS + 60_000))
            if number == 4:
                end(store)
                store = open_one(clock)
        found = delivered_bodies(store.advance(START_MS + 86_400_000))
        assert found == [f"body {number}".encode() for number in range(10)]

    def test_a_cancellation_outlives_the_store(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        receipts = [store.schedule(message(number), AfterMs(60_000)) for number in range(3)]
        assert store.cancel(receipts[0]) is Cancellation.CANCELLED
        end(store)
        again = open_one(clock)
        assert again.cancel(receipts[0]) is Cancellation.CANCELLED
        assert again.cancel(receipts[1].handle) is Cancellation.CANCELLED
        assert delivered_bodies(again.advance(START_MS + 600_000)) == [b"body 2"]
        end(again)
        answer = open_one(clock).cancel(receipts[2])
        assert answer is Cancellation.ALREADY_DELIVERED

    def test_a_cancel_says_nothing_of_an_equal_message_that_was_delivered_before_it(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        """A clock that was set right comes to one time twice, here because it was never there."""
        store, due = open_one(clock), AtMs(START_MS + 60_000)
        receipts = [store.schedule(message(1), due)]
        assert store.cancel(receipts[0]) is Cancellation.CANCELLED
        receipts.append(store.schedule(message(1), due))
        assert len(store.advance(receipts[1].promised_ms)) == 1
        receipts.append(store.schedule(message(1), due))
        assert store.cancel(receipts[2]) is Cancellation.CANCELLED
        right = [Cancellation.CANCELLED, Cancellation.ALREADY_DELIVERED, Cancellation.CANCELLED]
        for _ in range(3):
            assert [store.cancel(receipt) for receipt in receipts] == right
            end(store)
            store = open_one(clock)
        assert len(store.advance(START_MS + 600_000)) == 0

    def test_what_was_scheduled_again_after_a_cancel_is_delivered_once(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        """Equal in everything: no copy of the second is taken for one of the first."""
        store = open_one(clock)
        for due in (AfterMs(0), AfterMs(5_000), AfterMs(60_000)):
            assert store.cancel(store.schedule(message(1), due)) is Cancellation.CANCELLED
            store.schedule(message(1), due)
        found: list[bytes] = []
        for _ in range(4):
            end(store)
            store = open_one(clock)
            assert len(list(store.pending())) == 3 - len(found)
            found += delivered_bodies(store.advance(clock.now_ms()))
            clock.tick(30_000)
        assert found == [b"body 1"] * 3

    def test_what_was_taken_back_behind_an_advance_ahead_of_the_clock_never_comes(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        store.advance(START_MS + 65_917)
        receipts = [store.schedule(message(number), AfterMs(1_000)) for number in range(2)]
        assert store.cancel(receipts[0]) is Cancellation.CANCELLED
        for _ in range(2):
            end(store)
            store = open_one(clock)
            assert [each.unique_key for each in store.pending()] == [receipts[1].unique_key]
        assert delivered_bodies(store.advance(START_MS + 70_000)) == [b"body 1"]

    def test_what_was_taken_back_after_the_clock_was_set_back_never_comes(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        receipt = store.schedule(message(0), AfterMs(0))
        clock.tick(-3_600_000)
        later = store.schedule(message(1), AfterMs(60_000))
        assert store.cancel(receipt) is Cancellation.CANCELLED
        store.flush()
        assert delivered_bodies(store.advance(later.promised_ms)) == [b"body 1"]
        for _ in range(2):
            end(store)
            store = open_one(clock)
            assert list(store.pending()) == []
        assert len(store.advance(START_MS + 70_000)) == 0

    def test_what_was_due_at_once_comes_at_once_although_time_was_far_ahead(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        store.advance(START_MS + FAR_MS)
        store.schedule(message(0), AfterMs(0))
        later = store.schedule(message(1), AfterMs(1_000))
        end(store)
        store = open_one(clock)
        next_ms = store.next_due_ms()
        assert next_ms is not None
        assert next_ms <= START_MS
        assert len(store.advance(START_MS - 1)) == 0
        assert delivered_bodies(store.advance(START_MS)) == [b"body 0"]
        end(store)
        assert delivered_bodies(open_one(clock).advance(later.promised_ms)) == [b"body 1"]

    def test_what_was_due_at_once_waits_for_its_time_although_the_clock_was_set_far_back(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        store.schedule(message(0), AfterMs(0))
        clock.tick(-2 * FAR_MS)
        store.schedule(message(1), AfterMs(1_000))
        found = []
        for rest_ms in (FAR_MS, 1, 0):
            end(store)
            store = open_one(clock)
            found.append(delivered_bodies(store.advance(START_MS - rest_ms)))
            clock.tick(START_MS - rest_ms - clock.now_ms())
        assert found == [[b"body 1"], [], [b"body 0"]]

    def test_what_waits_comes_once_after_kills_before_and_behind_a_clock_that_was_set_back(
        self, open_one: Open, clock: ManualClock
    ) -> None:
        """What has rolled before the first has two records in the log, and time passes again over
        what was known of that.
        """
        store = open_one(clock)
        rolls = store.schedule(message(0), AfterMs(100_000))
        for later_ms in (50_000, 60_000):
            assert len(store.advance(START_MS + later_ms)) == 0
        self.abandon(store)
        store = open_one(clock)
        clock.tick(-3_600_000)
        assert len(store.advance(clock.now_ms())) == 0
        later = store.schedule(message(1), AfterMs(5_000))
        assert len(store.advance(clock.now_ms() + 1_000)) == 0
        store.flush()
        self.abandon(store)
        store = open_one(clock)
        expected = {(each.unique_key, each.promised_ms) for each in (rolls, later)}
        assert {(each.unique_key, each.due_ms) for each in store.pending()} == expected
        assert delivered_bodies(store.advance(rolls.promised_ms - 1)) == [b"body 1"]
        assert delivered_bodies(store.advance(rolls.promised_ms)) == [b"body 0"]
        assert store.next_due_ms() is None

    def test_what_was_due_at_once_by_a_clock_that_was_set_back_comes_once_after_an_end(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        clock.tick(-6_000)
        later = store.schedule(message(1), AfterMs(1_321))
        assert len(store.advance(clock.now_ms())) == 0
        store.schedule(message(0), AfterMs(0))
        end(store)
        store = open_one(clock)
        assert delivered_bodies(store.advance(clock.now_ms())) == [b"body 0"]
        assert [each.unique_key for each in store.pending()] == [later.unique_key]
        assert delivered_bodies(store.advance(START_MS)) == [b"body 1"]

    @pytest.mark.parametrize(
        ("due_ms", "is_advanced", "is_joined", "is_flushed"),
        [
            pytest.param(*steps, marks=() if steps in PAST_AND_FLUSHED else pytest.mark.nightly)
            for steps in itertools.product(
                [-1_500, 0, 700], [False, True], [False, True], [False, True]
            )
        ],
    )
    def test_what_was_due_at_once_and_taken_back_after_a_reopening_never_comes(
        self,
        open_one: Open,
        clock: ManualClock,
        due_ms: int,
        is_advanced: bool,
        is_joined: bool,
        is_flushed: bool,
    ) -> None:
        """Such a message waits where time has passed already, and so does what takes it back."""
        store = open_one(clock)
        if is_advanced:
            store.advance(START_MS)
        receipt = store.schedule(message(0), AtMs(START_MS + due_ms))
        store.close()
        store = open_one(clock)
        others = [message(1)] if is_joined else []
        for other in others:
            store.schedule(other, AtMs(START_MS + due_ms))
        assert store.cancel(receipt) is Cancellation.CANCELLED
        assert len(store.advance(receipt.promised_ms)) == len(others)
        if is_flushed:
            store.flush()
        self.abandon(store)
        again = open_one(clock)
        assert list(again.pending()) == []
        assert again.cancel(receipt) is Cancellation.CANCELLED
        assert len(again.advance(START_MS + 600_000)) == 0

    def test_a_handle_takes_no_neighbour_of_its_key(
        self, open_one: Open, clock: ManualClock
    ) -> None:
        """An out time means other promises in slots of other widths. Found by random runs."""
        store = open_one(clock)
        store.schedule(message(0), AfterMs(0))  # what is behind it has no slot before it goes
        require_handles_of_one_key_apart(store, START_MS + 9_000)

    @pytest.mark.parametrize("back_ms", [0, 600_000], ids=["clock goes on", "clock was set back"])
    def test_what_is_due_at_once_moves_without_its_neighbours(
        self, open_one: Open, clock: ManualClock, back_ms: int
    ) -> None:
        """They may share a slot and have different promises. Found by random runs."""
        store = open_one(clock)
        store.advance(clock.now_ms())
        clock.tick(-back_ms)
        now_ms = clock.now_ms()
        receipts = [
            store.schedule(Message("orders", b"", unique_key="K"), AtMs(now_ms + later_ms))
            for later_ms in (-1, 1, 500, 999, 1_000, 1_001, 2_000)
        ]
        promised = Counter(each.promised_ms for each in receipts)
        store.close()  # which places all
        store = open_one(clock)
        with suppress(SharedKeyError, UnsupportedStoreError):
            moved = store.reschedule(receipts[0].handle, AfterMs(60_000))
            assert isinstance(moved, Receipt)
            promised += Counter([moved.promised_ms])
            promised -= Counter([receipts[0].promised_ms])
        assert Counter(each.due_ms for each in store.pending(unique_key="K")) == promised
        self.abandon(store)
        store = open_one(clock)
        assert Counter(each.due_ms for each in store.pending(unique_key="K")) == promised

    @pytest.mark.parametrize("is_reopened", [False, True])
    def test_a_handle_of_what_is_gone_takes_no_other_of_its_key(
        self, open_one: Open, clock: ManualClock, is_reopened: bool
    ) -> None:
        """Whatever lies between the promise of the one and that of the other: no slot's width."""
        store = open_one(clock)
        gone = store.schedule(Message("orders", b"gone", unique_key="K"), AfterMs(0))
        clock.tick(2_000)  # also what waits behind others of a level is due
        store.advance(clock.now_ms())
        others = [
            store.schedule(
                Message("orders", b"other", unique_key="K"), AtMs(gone.promised_ms + later_ms)
            )
            for later_ms in range(2_900, 4_100, 100)
        ]
        for clock_ms in (0, 1, 437):
            at = AtMs(START_MS + 5_000 + clock_ms)
            others.append(store.schedule(Message("orders", b"other", unique_key="K"), at))
        promised = Counter(each.promised_ms for each in others)
        if is_reopened:
            self.abandon(store)
            store = open_one(clock)
        first_ms = min(promised)
        for before_ms in (1, 37, 100, 200, 500, 999, 1_000, 1_001):
            if first_ms - before_ms == clock.now_ms():
                continue  # of levels that is the handle of a message that was due when stored
            asked = attrs.evolve(RecallHandle.parse(gone.handle), due_ms=first_ms - before_ms)
            assert store.cancel(asked.text()) is not Cancellation.CANCELLED, before_ms
        assert store.cancel(gone.handle) is Cancellation.ALREADY_DELIVERED
        assert Counter(each.due_ms for each in store.pending(unique_key="K")) == promised

    @pytest.mark.parametrize("by", ["receipt", "handle"])
    @pytest.mark.parametrize("topic", ["orders", "returns"])
    def test_a_key_that_looks_like_a_topic_and_a_key_is_a_key(
        self,
        open_one: Open,
        clock: ManualClock,
        end: Callable[[DelayStore], None],
        by: str,
        topic: str,
    ) -> None:
        """In one form the text of a delete marker is a topic, a plus and a key."""
        store = open_one(clock)
        keys = ["x", "orders+x", "orders+orders+x", "+x", "orders+"]
        receipts = {
            key: store.schedule(Message(topic, key.encode(), unique_key=key), AfterMs(9_000))
            for key in keys
        }
        for key in ("orders+x", "orders+"):
            receipt = receipts[key]
            asked = receipt if by == "receipt" else receipt.handle
            assert store.cancel(asked) is Cancellation.CANCELLED
            keys.remove(key)
            assert sorted(str(each.unique_key) for each in store.pending()) == sorted(keys)
        end(store)
        again = open_one(clock)
        assert sorted(str(each.unique_key) for each in again.pending()) == sorted(keys)
        came = again.advance(receipts["x"].promised_ms)
        assert sorted(bodies(each.message for each in came)) == sorted(map(str.encode, keys))

    @pytest.mark.parametrize("place", [1, 100, 300])
    def test_a_listing_beside_others_has_what_waits_all_the_while_once(
        self, open_one: Open, clock: ManualClock, place: int
    ) -> None:
        """What is listed moves on meanwhile: to the disk, into other slots, and out."""
        store = open_one(clock)
        for number in range(400):
            store.schedule(message(number), AfterMs(1_000 * (number + 1)))
            if number == 200:
                store.flush()
        store.advance(clock.now_ms())
        store.schedule(message(500), AfterMs(0))  # what is behind it has no slot before it goes
        store.schedule(message(501), AfterMs(30_000))
        before = {each.unique_key for each in store.pending()}
        listing = store.pending()
        found = [next(listing) for _ in range(place)]
        for turn in range(3):
            store.flush()
            clock.tick(40_000)
            store.advance(clock.now_ms())
            store.schedule(message(400 + turn), AfterMs(500_000))
        found += listing
        keys = Counter(each.unique_key for each in found)
        assert set(keys.values()) == {1}
        assert {each.unique_key for each in store.pending()} & before <= keys.keys()

    @pytest.mark.parametrize(
        ("place", "step_ms"), [(0, 40_000), (1, 2_000), (1, 40_000), (100, 2_000)]
    )
    def test_a_listing_beside_others_has_nothing_that_went_before_and_nothing_twice(
        self, open_one: Open, clock: ManualClock, place: int, step_ms: int
    ) -> None:
        """Meanwhile a delete marker's time ends, and messages roll. Found by random runs."""
        store = open_one(clock)
        receipts = []
        for number in range(400):
            receipts.append(store.schedule(message(number), AfterMs(700 * (number + 1))))
            clock.tick(5)
            if number % 20 == 0:
                store.advance(clock.now_ms())
            if number == 200:
                store.flush()
        store.schedule(message(500), AfterMs(0))  # what is behind it has no slot before it goes
        store.schedule(message(501), AfterMs(700))
        for receipt in receipts[3::3]:
            assert store.cancel(receipt) is Cancellation.CANCELLED
        before = {each.unique_key for each in store.pending()}
        listing = store.pending()
        found = [next(listing).unique_key for _ in range(place)]
        for _ in range(4):
            clock.tick(step_ms)
            store.advance(clock.now_ms())
            store.flush()
        found += [each.unique_key for each in listing]
        assert set(found) <= before
        assert max(Counter(found).values()) == 1
        assert {each.unique_key for each in store.pending()} <= set(found)

    def test_topics_keep_what_was_delivered_and_go_on_behind_it(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        store.schedule(message(1), AfterMs(1_000))
        [first] = store.advance(START_MS + 60_000)
        kept = first.message
        end(store)
        again = open_one(clock)
        assert list(again.topic("orders").read(0, 0)) == [kept]
        again.schedule(message(2), AfterMs(1_000))
        again.advance(START_MS + 120_000)
        assert [each.queue_offset for each in self.consumed(again, "orders")] == [0, 1]

    def test_what_became_due_while_nobody_ran_comes_at_the_next_advance(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        store = open_one(clock)
        for number in range(5):
            store.schedule(message(number), AfterMs(30_000 * (number + 1)))
        end(store)
        clock.tick(2 * 86_400_000)
        again = open_one(clock)
        assert len(again.advance(clock.now_ms())) == 5
        assert again.next_due_ms() is None

    def test_reopening_an_empty_store_is_fine(
        self, open_one: Open, clock: ManualClock, end: Callable[[DelayStore], None]
    ) -> None:
        end(open_one(clock))
        again = open_one(clock)
        assert again.next_due_ms() is None
        assert list(again.pending()) == []
