# SPDX-License-Identifier: Apache-2.0
"""A store that changes its owner again and again, one of our engines and a broker by turns.

Each owner sends messages for its own time, for the next owner's and for later, takes some back that
it or the owner before it had sent, and leaves cleanly or is killed. The last is a broker, whose
fresh group receives all that ever came to the topics.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final

import attrs

from tests.interop.account import Account, account, once
from tests.interop.broker import Broker
from tests.interop.judge import Judge, Received, Sent
from tests.interop.owners import BrokerOwner, OurOwner, Owner
from tests.interop.stages import SMALL_FILES, now_ms
from tests.interop.workload import TOPIC_TABLE, Outgoing, level_delays_ms, varied

SOON_S: Final = 1
SAVE_INTERVAL_MS: Final = 10_000
"""How often a level store writes down how far its levels are, a broker's and ours."""
_PER_GROUP: Final = 50
_LATE: Final = 8
_SETTLE_S: Final = 3.0


@attrs.frozen
class Plan:
    """Which engine, for which version; whether all owners but the last are killed.

    ``next_s`` is the delay of what is sent for the next owner, ``far_s`` of what is for later, and
    beyond the roll window if there is to be any rolling.
    """

    engine: str
    version: str
    killed: bool = False
    owners: int = 4
    next_s: int = 30
    far_s: int = 60
    roll_window_slots: int = 40

    @property
    def name(self) -> str:
        """For folders and for what is told."""
        return f"{self.engine} {self.version} {'killed' if self.killed else 'stopped'}"

    @property
    def level_table(self) -> str:
        """Level 1 is for the next owner, 2 is soon, 3 is far, and 4 is far and all taken back."""
        return f"{self.next_s}s {SOON_S}s {self.far_s}s {self.far_s}s"

    @property
    def broker_settings(self) -> dict[str, object]:
        """What both sides are told."""
        if self.engine == "levels":
            return {**SMALL_FILES, "messageDelayLevel": self.level_table}
        wheel = {"timerRollWindowSlot": self.roll_window_slots, "recallMessageEnable": "true"}
        return {**SMALL_FILES, **wheel}

    def spec(self, root: Path) -> dict[str, Any]:
        """The same for our engine."""
        return {
            "engine": self.engine,
            "version": self.version,
            "root": str(root),
            "levelTable": self.level_table,
            "rollWindowSlots": self.roll_window_slots,
            "commitLogFileBytes": SMALL_FILES["mappedFileSizeCommitLog"],
            "queueFileBytes": SMALL_FILES["mappedFileSizeConsumeQueue"],
            "timerLogFileBytes": SMALL_FILES["mappedFileSizeTimerLog"],
        }


@attrs.frozen
class Tenure:
    """One owner's time, from the first it could have stored to the last."""

    owner: str
    is_ours: bool
    began_ms: int
    ended_ms: int


@attrs.frozen
class Relay:
    """All that happened to one store.

    ``taken_back`` says in whose time messages were, ``refused`` when it was said of others that it
    is too late.
    """

    plan: Plan
    tenures: Sequence[Tenure]
    sent: Sequence[Sequence[Sent]]
    taken_back: Mapping[str, int]
    refused: Mapping[str, int]
    received: Sequence[Received]

    def account(self) -> Account:
        """Hold what came against what was sent; of what was taken back see `came_back`."""
        taken = self.taken_back
        return account(
            [each for each in itertools.chain(*self.sent) if each.unique_key not in taken],
            [each for each in self.received if each.unique_key not in taken],
            level_delays_ms(self.plan.level_table),
        )

    def came_back(self) -> list[Received]:
        """What was taken back and came all the same."""
        return [each for each in self.received if each.unique_key in self.taken_back]

    def wrongly_refused(self) -> list[str]:
        """What was not taken back though it was not yet due."""
        delays = level_delays_ms(self.plan.level_table)
        return [
            each.unique_key
            for each in itertools.chain(*self.sent)
            if each.unique_key in self.refused
            and each.message.due_ms(each.sent_ms, delays) > self.refused[each.unique_key]
        ]

    def tenure_of(self, time_ms: int) -> int:
        """Whose time it was."""
        return next(i for i, each in enumerate(self.tenures) if time_ms <= each.ended_ms)

    def delivered(self) -> dict[tuple[int, int], int]:
        """How many messages by (who sent, who delivered first)."""
        first: dict[str, int] = {}
        for each in sorted(self.received, key=lambda each: each.stored_ms):
            first.setdefault(str(each.unique_key), self.tenure_of(each.stored_ms))
        counts: defaultdict[tuple[int, int], int] = defaultdict(int)
        for sender, sent in ((i, sent) for i, batch in enumerate(self.sent) for sent in batch):
            if sent.unique_key in first:
                counts[sender, first[sent.unique_key]] += 1
        return dict(sorted(counts.items()))

    def repeats(self) -> list[tuple[Received, Received]]:
        """Each later copy of a message, with the one before it."""
        copies: defaultdict[str, list[Received]] = defaultdict(list)
        for each in sorted(self.received, key=lambda each: each.stored_ms):
            copies[str(each.unique_key)].append(each)
        return [pair for each in copies.values() for pair in itertools.pairwise(each)]


def lost_its_marker(received: Received) -> bool:
    """Whether a message that was taken back came because no broker could help it.

    What rolls and is found overdue is delivered at once, a delete marker that rolled along is then
    of no use.
    """
    properties = received.properties
    return "TIMER_ROLL_TIMES" in properties and properties["TIMER_ENQUEUE_MS"] == str(2**63 - 1)


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
        before, self._doomed = self._doomed if can_recall else [], []
        soon = [*self._batch(owner, SOON_S), *self._late(owner)]
        if is_last:
            self._send(owner, soon)
            self._take_back(owner, turn, before)
            self._outwait(owner)
            return
        doomed = list(self._batch(owner, self.plan.far_s, 5))
        far = [] if turn == self.plan.owners - 2 else [*self._batch(owner, self.plan.far_s)]
        far, back = self._surrounded(owner, self.plan.far_s, [*doomed, *far])
        sent = self._send(owner, [*soon, *far])
        self._doomed = _those(sent, {each.number for each in doomed} - back)
        self._take_back(owner, turn, [*before, *_those(sent, back if can_recall else set())])
        owner.wait_for(self._coming([*sent[: len(soon)], *self._next]))
        if isinstance(owner, OurOwner) and not self.plan.killed:
            owner.rest()
        following = [*self._batch(owner, self.plan.next_s), *self._late(owner)]
        following, back = self._surrounded(owner, self.plan.next_s, following)
        self._next = self._send(owner, following)
        self._take_back(owner, turn, _those(self._next, back if can_recall else set()))

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
