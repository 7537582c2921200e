# SPDX-License-Identifier: Apache-2.0
"""A model of the model: one dict, searched from end to end by every call, obviously right."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import attrs

from message_store import (
    AfterMs,
    AtLevel,
    AtMs,
    Cancellation,
    Clock,
    DelayLevels,
    Delivered,
    Due,
    Message,
    Pending,
    Receipt,
    StoredMessage,
)
from message_store.format.message import LOCAL_HOST
from message_store.format.properties import UNIQUE_KEY, encode_properties
from message_store.interface.promise_rules import PromiseRule


class Model(Protocol):
    """The part of ``DelayStore`` that a machine asks its model for."""

    def schedule(self, message: Message, due: Due) -> Receipt: ...
    def advance(self, now_ms: int) -> Iterable[Delivered]: ...
    def next_due_ms(self) -> int | None: ...
    def pending(self) -> Iterator[Pending]: ...
    def cancel(self, receipt: Receipt | str) -> Cancellation: ...


@attrs.define
class NaiveStore:
    """Every message by its place, with its receipt and what became of it."""

    clock: Clock
    rule: PromiseRule
    levels: DelayLevels
    known: dict[int, tuple[Message, Receipt]] = attrs.field(factory=dict)
    fates: dict[int, Cancellation] = attrs.field(factory=dict)

    def schedule(self, message: Message, due: Due) -> Receipt:
        now_ms, place = self.clock.now_ms(), len(self.known)
        match due:
            case AtLevel(level):
                due_ms = now_ms + self.levels.delays_ms[min(level, len(self.levels.delays_ms)) - 1]
            case AfterMs(delay_ms):
                due_ms = now_ms + delay_ms
            case AtMs():
                due_ms = due.due_ms
        promised_ms = self.rule(due_ms, now_ms) if due_ms > now_ms else now_ms
        assert message.unique_key is not None
        receipt = Receipt(message.unique_key, message.topic, due_ms, promised_ms, place, "naive")
        self.known[place] = message, receipt
        return receipt

    def waiting(self) -> list[int]:
        return [place for place in self.known if place not in self.fates]

    def advance(self, now_ms: int) -> list[Delivered]:
        due = [place for place in self.waiting() if self.known[place][1].promised_ms <= now_ms]
        due.sort(key=lambda place: self.known[place][1].promised_ms)
        self.fates |= dict.fromkeys(due, Cancellation.ALREADY_DELIVERED)
        return [self._delivered(*self.known[place]) for place in due]

    def _delivered(self, message: Message, receipt: Receipt) -> Delivered:
        text = encode_properties([(UNIQUE_KEY, receipt.unique_key)])
        at = message.queue_id, 0, 0, self.clock.now_ms(), LOCAL_HOST, 0, LOCAL_HOST
        return Delivered(
            StoredMessage(message.topic, message.body, 0, text, *at), receipt.promised_ms
        )

    def next_due_ms(self) -> int | None:
        return min((self.known[place][1].promised_ms for place in self.waiting()), default=None)

    def pending(self) -> Iterator[Pending]:
        for place in self.waiting():
            message, receipt = self.known[place]
            yield Pending(
                unique_key=receipt.unique_key,
                topic=message.topic,
                queue_id=message.queue_id,
                tags=None,
                keys=(),
                level=None,
                due_ms=receipt.promised_ms,
                size_bytes=len(message.body),
                commit_log_offset=place,
            )

    def cancel(self, receipt: Receipt | str) -> Cancellation:
        """A receipt names one message, a handle all of its key, topic and promise."""
        meant = [
            place for place, (_, known) in self.known.items() if receipt in (known, known.handle)
        ]
        pending = [place for place in meant if place not in self.fates]
        self.fates |= dict.fromkeys(pending, Cancellation.CANCELLED)
        if not meant:
            return Cancellation.NEVER_EXISTED
        was_delivered = Cancellation.ALREADY_DELIVERED in {self.fates[place] for place in meant}
        too_late = was_delivered and not pending
        return Cancellation.ALREADY_DELIVERED if too_late else Cancellation.CANCELLED
