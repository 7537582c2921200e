# SPDX-License-Identifier: Apache-2.0
"""Runs a store through the hands of its owners: what ``relay`` describes."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Final

import attrs

from tests.interop.account import once
from tests.interop.broker import Broker
from tests.interop.judge import Judge, Sent
from tests.interop.owners import BrokerOwner, OurOwner, Owner
from tests.interop.relay import SOON_S, Plan, Relay, Tenure
from tests.interop.stages import now_ms
from tests.interop.workload import TOPIC_TABLE, Outgoing, level_delays_ms, varied

_PER_GROUP: Final = 50
_LATE: Final = 8
_SETTLE_S: Final = 3.0


def is_late(message: Outgoing) -> bool:
    """Whether a message is overdue."""
    return message.deliver_ms is not None and message.deliver_ms < now_ms()


def _those(sent: Sequence[Sent], numbers: Set[int]) -> list[Sent]:
    return [each for each in sent if each.message.number in numbers]


class Runner:
    """Runs one relay in a folder of its own."""

    def __init__(self, plan: Plan, scratch: Path, make_broker: Callable[..., Broker]) -> None:
        self.plan = plan
        self._folder = scratch / plan.name.replace(" ", "-")
        self._root = self._folder / "store"
        self._root.mkdir(parents=True)
        self._make_broker = make_broker
        seed = sum(map(ord, plan.name))
        self._fresh = varied(seed, 100_000, body_bytes=(40, 400))
        self._sent: list[list[Sent]] = []
        self._next: list[Sent] = []
        self._doomed: list[Sent] = []
        self._refused: dict[str, int] = {}
        self._taken: dict[str, int] = {}

    def run(self) -> Relay:
        """Let every owner have its time."""
        tenures = []
        owner: Owner
        for turn in range(self.plan.owners):
            is_last = turn == self.plan.owners - 1
            owner = self._owner(turn)
            began_ms = now_ms()
            owner.start()
            self._have(owner, turn, is_last=is_last)
            owner.leave(killed=self.plan.killed and not is_last)
            tenures.append(Tenure(owner.name, turn % 2 == 0, began_ms, now_ms()))
        assert isinstance(owner, BrokerOwner)
        received = once(owner.received)
        return Relay(self.plan, tenures, self._sent, self._taken, self._refused, received)

    def _owner(self, turn: int) -> Owner:
        folder = self._folder / f"owner-{turn}"
        if turn % 2 == 0:
            return OurOwner(self.plan.spec(self._root), folder)
        broker = self._make_broker(
            self.plan.version, self._root, settings=self.plan.broker_settings, topics=TOPIC_TABLE
        )
        return BrokerOwner(broker, Judge(broker, folder), f"group-{turn}")

    def _have(self, owner: Owner, turn: int, *, is_last: bool) -> None:
        """One owner's time: send, take back, deliver, send for the next."""
        self._sent.append([])
        can_recall = isinstance(owner, OurOwner) or self.plan.engine == "wheel"
        if can_recall:
            self._take_back(owner, turn, self._doomed)
        self._doomed = []
        soon = [*self._batch(owner, SOON_S), *self._late(owner)]
        if is_last:
            self._send(owner, soon)
            self._outwait(owner)
            return
        is_near_the_end = turn == self.plan.owners - 2
        far = [] if is_near_the_end else [*self._batch(owner, self.plan.far_s)]
        far, back = self._surrounded(owner, self.plan.far_s, far)
        sent = self._send(owner, [*soon, *far])
        self._take_back(owner, turn, _those(sent, back if can_recall else set()))
        owner.wait_for(self._coming([*sent[: len(soon)], *self._next]))
        if isinstance(owner, OurOwner) and not self.plan.killed:
            owner.rest()
        # The last that is sent: only the change of owners lies before it is taken back.
        doomed_s = self.plan.far_s if is_near_the_end else self.plan.doomed_s
        doomed = list(self._batch(owner, doomed_s, 5))
        following = [*doomed, *self._batch(owner, self.plan.next_s), *self._late(owner)]
        following, back = self._surrounded(owner, self.plan.next_s, following)
        sent = self._send(owner, following)
        self._take_back(owner, turn, _those(sent, back if can_recall else set()))
        kept = {each.number for each in doomed} - back
        self._doomed = _those(sent, kept)
        self._next = [each for each in sent if each.message.number not in kept]

    def _coming(self, sent: Iterable[Sent]) -> list[str]:
        """Leave out what was not stored, as far as anybody knows, and what was taken back."""
        stored = (each.unique_key for each in sent if each.accepted)
        return [key for key in stored if key not in self._taken]

    def _outwait(self, owner: Owner) -> None:
        """Wait for all that must come, and long enough for what must not."""
        every = list(itertools.chain(*self._sent))
        owner.wait_for(self._coming(every))
        delays = level_delays_ms(self.plan.level_table)
        last_ms = max(each.message.due_ms(each.sent_ms, delays) for each in every)
        time.sleep(max(0, last_ms - now_ms()) / 1000 + _SETTLE_S)

    def _surrounded(
        self, owner: Owner, delay_s: int, messages: Sequence[Outgoing]
    ) -> tuple[list[Outgoing], set[int]]:
        """Put messages between two that are to be taken back, as the first and the last of their
        level's queue; others of a level that holds no more; and some between. Returns the numbers
        of all these.
        """
        first, last = self._batch(owner, delay_s, 2)
        alone = list(self._batch(owner, self.plan.far_s, 2, level=4))
        some = [each for each in messages if each.number % 10 == 0 and not is_late(each)]
        back = {each.number for each in (first, last, *alone, *some)}
        return [first, *alone, *messages, last], back

    def _send(self, owner: Owner, messages: Sequence[Outgoing]) -> list[Sent]:
        sent = owner.send(messages)
        self._sent[-1] += sent
        return sent

    def _take_back(self, owner: Owner, turn: int, sent: Sequence[Sent]) -> None:
        sent = [each for each in sent if each.accepted]
        if sent:
            taken = owner.take_back(sent)
            self._taken |= dict.fromkeys(taken, turn)
            answered_ms = now_ms()
            self._refused |= {
                each.unique_key: answered_ms for each in sent if each.unique_key not in taken
            }

    def _batch(
        self, owner: Owner, delay_s: int, count: int = _PER_GROUP, level: int | None = None
    ) -> Iterator[Outgoing]:
        """Fresh messages with that delay, in all the ways in which it can be said."""
        for message in itertools.islice(self._fresh, count):
            way = message.number % 3
            if self.plan.engine == "levels" and (level or way or not isinstance(owner, OurOwner)):
                known = self.plan.level_table.split().index(f"{delay_s}s") + 1
                yield attrs.evolve(message, delay_level=level or known)
            elif way == 0:
                yield attrs.evolve(message, delay_ms=delay_s * 1000 - 400)
            elif way == 1:
                yield attrs.evolve(message, delay_sec=delay_s)
            else:
                yield attrs.evolve(message, deliver_ms=now_ms() + delay_s * 1000 + 137)

    def _late(self, owner: Owner) -> list[Outgoing]:
        """Messages that are overdue when they are sent; brokers have them delivered at once."""
        if not isinstance(owner, OurOwner):
            return []
        late_ms = now_ms() - 5_000
        late = itertools.islice(self._fresh, _LATE)
        return [attrs.evolve(message, deliver_ms=late_ms) for message in late]
