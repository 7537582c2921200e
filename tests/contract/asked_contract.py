# SPDX-License-Identifier: Apache-2.0
"""The part of the contract about messages whose own properties say when, and about receipts of
messages that share a handle.
"""

from collections.abc import Iterable
from typing import Any

import attrs
import pytest

from message_store import (
    AfterMs,
    AtMs,
    Cancellation,
    DelayStore,
    Delivered,
    ManualClock,
    Message,
    MessageBatch,
)
from message_store.base.errors import BadFieldError

START_MS = 1_793_000_000_000
OWN = {"mine": "own", "a": "b=c"}
ASKED: list[tuple[dict[str, str], int]] = [
    ({"DELAY": "3"}, 10_000),
    ({"DELAY": "3", "TIMER_DELAY_SEC": "60"}, 10_000),
    ({"DELAY": "0", "TIMER_DELAY_SEC": "60"}, 60_000),
    ({"DELAY": "99"}, 7_200_000),
    ({"TIMER_DELAY_SEC": "60", "TIMER_DELAY_MS": "5000"}, 60_000),
    ({"TIMER_DELAY_MS": "5000", "TIMER_DELIVER_MS": str(START_MS + 1_000)}, 5_000),
    ({"TIMER_DELIVER_MS": str(START_MS + 30_000)}, 30_000),
    ({"TIMER_DELAY_SEC": "+5"}, 5_000),
    ({"TIMER_DELAY_SEC": "-5"}, 0),
    ({"TIMER_DELAY_MS": "0"}, 0),
    ({"TIMER_OUT_MS": "7", "TIMER_DELAY_SEC": "60"}, 0),
    ({"__STARTDELIVERTIME": str(START_MS + 60_000)}, 0),
    ({}, 0),
]
"""What properties ask for, as the delay that it is."""
OF_THE_HAND = ("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS")
ROW_IDS = [" ".join(f"{name}={value}" for name, value in given.items()) for given, _ in ASKED]


def asking(number: int, properties: dict[str, str]) -> Message:
    return Message(
        "orders",
        f"body {number}".encode(),
        tags="late",
        unique_key=f"KEY{number:08X}",
        properties={**OWN, **properties},
    )


def bodies(deliveries: Iterable[Delivered]) -> list[bytes]:
    return [each.message.body for each in deliveries]


class AskedContract:
    """What ``DelayStoreContract`` says of ``put``, ``put_batch`` and receipts."""

    def promise(self, due_ms: int, now_ms: int) -> int:
        """The engine's promise rule."""
        raise NotImplementedError

    def _promised_ms(self, delay_ms: int) -> int:
        return self.promise(START_MS + delay_ms, START_MS) if delay_ms else START_MS

    # --- what a message's own properties ask for --------------------------------------------------

    @pytest.mark.parametrize(("properties", "delay_ms"), ASKED, ids=ROW_IDS)
    def test_a_message_that_is_put_comes_when_its_properties_say(
        self, store: DelayStore, clock: ManualClock, properties: dict[str, str], delay_ms: int
    ) -> None:
        receipt = store.put(asking(1, properties))
        promised_ms = self._promised_ms(delay_ms)
        assert receipt.promised_ms == promised_ms
        assert (receipt.topic, receipt.unique_key) == ("orders", "KEY00000001")
        if delay_ms:
            assert receipt.due_ms == START_MS + delay_ms
            assert len(store.advance(promised_ms - 1)) == 0
        [delivered] = store.advance(promised_ms)
        assert delivered.message.body == b"body 1"
        assert OWN.items() <= delivered.message.properties.items()
        assert store.cancel(receipt) is Cancellation.ALREADY_DELIVERED

    def test_a_message_that_is_put_can_be_cancelled(self, store: DelayStore) -> None:
        receipt = store.put(asking(1, {"TIMER_DELAY_SEC": "60"}))
        assert [each.unique_key for each in store.pending()] == ["KEY00000001"]
        assert store.cancel(receipt) is Cancellation.CANCELLED
        assert len(store.advance(START_MS + 600_000)) == 0

    @pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
    @pytest.mark.parametrize("value", ["soon", "1.5", " 5", "9" * 20])
    def test_a_time_that_is_no_number_is_refused_and_nothing_stored(
        self, store: DelayStore, name: str, value: str
    ) -> None:
        with pytest.raises(BadFieldError, match=name):
            store.put(asking(1, {name: value}))
        rows = [asking(1, {}), asking(2, {name: value})]
        with pytest.raises(BadFieldError, match=f"row 1: {name}"):
            store.put_batch(MessageBatch.of(rows))
        assert list(store.pending()) == []
        assert len(store.advance(START_MS + 60_000)) == 0

    def test_a_batch_that_is_put_is_the_same_as_one_by_one(self, store: DelayStore) -> None:
        rows = [asking(number, given) for number, (given, _) in enumerate(ASKED)]
        receipts = store.put_batch(MessageBatch.of(rows))
        promised = [self._promised_ms(delay_ms) for _, delay_ms in ASKED]
        assert receipts.promised_ms.tolist() == promised
        assert [key.decode() for key in receipts.unique_keys] == [row.unique_key for row in rows]
        together = sorted(map(_seen, store.advance(START_MS + 86_400_000)))
        single = [store.put(row) for row in rows]
        assert [each.promised_ms for each in single] == promised
        assert sorted(map(_seen, store.advance(START_MS + 86_400_000))) == together
        assert len(together) == len(ASKED)

    def test_a_delete_marker_comes_alone_and_an_empty_batch_is_nothing(
        self, store: DelayStore
    ) -> None:
        marker = {"TIMER_DELAY_SEC": "60", "TIMER_DEL_UNIQKEY": "K"}
        with pytest.raises(BadFieldError, match="row 1: TIMER_DEL_UNIQKEY"):
            store.put_batch(MessageBatch.of([asking(1, {}), asking(2, marker)]))
        assert len(store.put_batch(MessageBatch.of([]))) == 0
        assert store.next_due_ms() is None

    # --- receipts of messages that share a handle -------------------------------------------------

    def test_a_receipt_takes_back_its_own_message_and_no_other(
        self, store: DelayStore, clock: ManualClock
    ) -> None:
        twins = [
            store.schedule(attrs.evolve(asking(1, {}), body=b"%d" % number), AfterMs(60_000))
            for number in range(5)
        ]
        assert len({receipt.handle for receipt in twins}) == 1
        assert store.cancel(twins[1]) is Cancellation.CANCELLED
        assert store.cancel(twins[3]) is Cancellation.CANCELLED
        assert store.cancel(twins[1]) is Cancellation.CANCELLED
        assert len(list(store.pending())) == 3
        later = store.schedule(attrs.evolve(asking(1, {}), body=b"5"), AfterMs(60_000))
        clock.tick(later.promised_ms - START_MS)
        assert bodies(store.advance(clock.now_ms())) == [b"0", b"2", b"4", b"5"]
        answers = [store.cancel(receipt) for receipt in twins]
        assert [answer is Cancellation.CANCELLED for answer in answers] == [
            False, True, False, True, False,
        ]  # fmt: skip

    def test_a_handle_takes_what_receipts_have_left(self, store: DelayStore) -> None:
        twins = [
            store.schedule(attrs.evolve(asking(1, {}), body=b"%d" % number), AfterMs(60_000))
            for number in range(3)
        ]
        assert store.cancel(twins[0]) is Cancellation.CANCELLED
        assert store.cancel(twins[0].handle) is Cancellation.CANCELLED
        assert list(store.pending()) == []
        assert len(store.advance(START_MS + 600_000)) == 0

    def test_a_receipt_of_what_was_due_when_stored_takes_back_that_alone(
        self, store: DelayStore
    ) -> None:
        twins = [
            store.schedule(attrs.evolve(asking(1, {}), body=b"%d" % number), AtMs(START_MS - 5))
            for number in range(3)
        ]
        assert store.cancel(twins[2]) is Cancellation.CANCELLED
        assert bodies(store.advance(START_MS)) == [b"0", b"1"]


def _seen(delivered: Delivered) -> tuple[Any, ...]:
    """What a consumer sees, without what a wheel adds of the hand that has turned meanwhile."""
    message = delivered.message
    properties = sorted(each for each in message.properties.items() if each[0] not in OF_THE_HAND)
    return (message.body, message.tags, properties, delivered.promised_ms)
