# SPDX-License-Identifier: Apache-2.0
"""The oracle of a random run of the reference engines, which promise what brokers do.

What was done since the last flush may be done again after a kill, and after a refusal: so there may
be more of a message than one. A cancel also takes what gets its slot and key later.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from message_store import Cancellation, ManualClock, Receipt
from tests.simulation.account import (
    CANCELLED,
    DELIVERED,
    PENDING,
    SHORTEST_LEVEL_MS,
    Account,
    Asked,
    Fate,
    Life,
)

_ANY_NUMBER = 1_000


@attrs.define
class BrokerAccount(Account):
    """All messages of such a run, by the clock of the store. Those with a delay from
    ``rolls_from_ms`` on roll. ``most`` is how many there may be of a life, by its identity.
    """

    clock: ManualClock = attrs.field(kw_only=True)
    rolls_from_ms: int = attrs.field(kw_only=True)
    most: dict[int, int] = attrs.field(factory=dict, kw_only=True)

    def scheduled(self, begun: Sequence[Life], receipts: Sequence[Receipt]) -> None:
        """They are promised; a message that is due waits for those of the shortest level."""
        super().scheduled(begun, receipts)
        for life in begun:
            if life.family == "levels" and life.early_ms <= life.scheduled_ms:
                life.late_ms += SHORTEST_LEVEL_MS
            alike = (each for each in self._own() if each.name == life.name)
            if any(each.was_cancelled and self._may_meet(each, life) for each in alike):
                life.may_also(CANCELLED)

    def cancel(self, life: Life, *, by_receipt: bool) -> Asked:
        """What is due is delivered first."""
        self.advance(self.clock.now_ms())
        return super().cancel(life, by_receipt=by_receipt)

    def cancelled(self, asked: Asked, answer: Cancellation, *, forgets: bool) -> list[str]:
        """The answer: what is due comes, and is not cancelled."""
        names = {life.name for life in asked.meant}
        for life in self._own():  # what rolls may be where the marker is
            if life.name in names and self._rolls(life):
                life.may_also(CANCELLED)
        is_over = [life.early_ms <= self.clock.now_ms() for life in asked.meant]
        was_pending = all(may == {PENDING} for may in asked.fates) and not asked.near
        if all(is_over) and was_pending and answer is Cancellation.CANCELLED:
            return [f"cancelled, and due: {', '.join(map(str, asked.meant))}"]
        if any(is_over):
            return []
        return super().cancelled(asked, answer, forgets=forgets)

    def killed(self) -> None:
        """What was delivered since the last flush waits again, and what rolled rolls again."""
        super().killed()
        self.struck()

    def opened(self) -> None:
        """A wheel goes back to what its last unit says: what was due when it was put in, at once or
        after a roll, has none, and is delivered once more at every opening.
        """
        for life in self._own() if self.family == "timers" else ():
            if life.early_ms <= life.scheduled_ms or self._rolls(life):
                self.most[id(life)] = min(self.most_of(life) + 1, _ANY_NUMBER)
                life.may_be_repeated()

    def struck(self) -> None:
        """The disk refused something: it may have been done, and may be done again."""
        for life in self.lives:
            if self._rolls(life):
                self.most[id(life)] = _ANY_NUMBER
            elif PENDING in life.since:  # by its unit, and by its entry, which gets another
                self.most[id(life)] = min(3 * self.most_of(life), _ANY_NUMBER)
            if PENDING in life.since:  # a marker is late for what gets its unit again
                life.may_be_repeated()

    def most_of(self, life: Life) -> int:
        """How many of this message there may be."""
        return self.most.get(id(life), 1)

    def _may_be(self, fate: Fate, life: Life) -> bool:
        return fate in life.may or self._is_out_of_reach(life)

    def _is_out_of_reach(self, life: Life) -> bool:
        """Whether it may have rolled past the marker that cancelled it."""
        return life.was_cancelled and self._rolls(life)

    def _may_meet(self, cancelled: Life, life: Life) -> bool:
        """Whether the marker of one may come to lie in a slot of the other."""
        return self._is_near(cancelled, life) or self._rolls(life)

    def _rolls(self, life: Life) -> bool:
        return life.early_ms - life.scheduled_ms >= self.rolls_from_ms

    def _observe_name(self, lives: list[Life], seen: tuple[int, int]) -> list[str]:
        if all(self.most_of(life) == 1 and not self._is_out_of_reach(life) for life in lives):
            return super()._observe_name(lives, seen)
        own = [life for life in lives if life.family == self.family]
        pending, came = seen
        for life in lives:
            if not pending and life.family == self.family and life.may != {PENDING}:
                # A marker that hides a message may be late for it.
                life.may |= {DELIVERED} if CANCELLED in life.may else set()
                life.may -= {PENDING}
            if not came and CANCELLED not in life.may and life.may != {DELIVERED}:
                life.may -= {DELIVERED}
        least = sum(life.may <= {PENDING, DELIVERED} for life in own)
        least_came = sum(life.may == {DELIVERED} for life in lives)
        most = sum(self.most_of(life) for life in own if self._may_be(PENDING, life))
        most_came = sum(self.most_of(life) for life in lives if self._may_be(DELIVERED, life))
        told = f"{pending} pending, {came} delivered of: {'; '.join(map(str, lives))}"
        wrong = [f"lost: {told}"] if pending + came < least or came < least_came else []
        return wrong + ([f"doubled: {told}"] if pending > most or came > most_came else [])
